//! The sentences of a text.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

/// The question marks of all scripts.
pub const QUESTION_MARKS: [char; 8] = ['?', '？', '؟', '\u{37e}', '፧', '՞', '⸮', '⁇'];
/// The longest single question in characters.
const MAX_SINGLE_QUESTION: usize = 200;
/// A word with a point and at most so many letters, the first a capital, is an abbreviation rather than the end of a sentence.
const MAX_ABBREVIATION: usize = 3;

/// Returns the places of the sentences of a text (UAX #29), but for ends after abbreviations. Together they are the whole text.
pub fn split_sentences(text: &str) -> Vec<Range<usize>> {
    let mut sentences: Vec<Range<usize>> = Vec::new();
    for (start, sentence) in text.split_sentence_bound_indices() {
        let range = start..start + sentence.len();
        match sentences.last_mut() {
            Some(last) if ends_with_abbreviation(&text[last.clone()]) => last.end = range.end,
            Some(_) | None => sentences.push(range),
        }
    }
    sentences
}

/// `true` if a text is one short question in any language: one sentence that ends with a question mark.
pub fn is_single_question(text: &str) -> bool {
    let text = text.trim();
    let Some(question) = text.strip_suffix(QUESTION_MARKS) else { return false };
    let has_end = question.contains(QUESTION_MARKS) || question.contains([';', '\n']);
    !has_end && text.chars().count() <= MAX_SINGLE_QUESTION && split_sentences(text).len() == 1
}

fn ends_with_abbreviation(sentence: &str) -> bool {
    let Some(rest) = sentence.trim_end().strip_suffix('.') else { return false };
    let last = rest.rsplit(|c: char| c.is_whitespace() || "([\"“«".contains(c)).next().unwrap_or_default();
    // A word with a point inside, such as "e.g.", is no number.
    if last.contains('.') && last.chars().all(|c| c.is_alphabetic() || c == '.') {
        return true;
    }
    let word = rest.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    // `400 V.` and `90 °C.` end a sentence.
    let before = &rest[..rest.len() - word.len()];
    let is_apart =
        before.is_empty() || before.ends_with(|c: char| c.is_whitespace() || ['.', '('].contains(&c));
    if !is_apart || before.trim_end().ends_with(char::is_numeric) {
        return false;
    }
    let is_short = word.chars().count() <= MAX_ABBREVIATION && word.chars().all(char::is_alphabetic);
    is_short && word.starts_with(char::is_uppercase)
}
