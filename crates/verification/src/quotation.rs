//! Quotations: whether the words of a text stand in lines, after both are brought to one form of white space, quotation marks,
//! hyphens and Unicode.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use icu_normalizer::ComposingNormalizerBorrowed;
use millrace_figures::{detect_language, is_unspaced};
use millrace_protocol::result::SourceLines;
use unicode_segmentation::UnicodeSegmentation;

use crate::lines::{MAX_BYTES, Sources, are_all_read};

/// The signs that end a sentence or a cell. A colon and a semicolon do not: the rest may qualify the first part.
const ENDS: [char; 9] = ['.', '!', '?', '。', '！', '？', '؟', '।', '|'];
/// The pairs of quotation marks.
const QUOTES: [(char, char); 9] = [
    ('"', '"'),
    ('“', '”'),
    ('„', '“'),
    ('„', '”'),
    ('«', '»'),
    ('»', '«'),
    ('「', '」'),
    ('『', '』'),
    ('‹', '›'),
];
/// The number of characters of a source from which its language is detected.
const LANGUAGE_SAMPLE: usize = 2_000;
/// The least number of words of a sentence that is compared without quotation marks: a shorter one is an answer, not a sentence.
const MIN_WORDS: usize = 4;
/// The least number of characters of a quotation that proves or refutes anything.
const MIN_CHARACTERS: usize = 3;

/// The normalised texts of all sources, each read once when it is needed.
pub(crate) struct QuotableTexts<'s> {
    sources: &'s dyn Sources,
    order: Vec<String>,
    read: RefCell<BTreeMap<String, Rc<NormalizedLines>>>,
}

impl<'s> QuotableTexts<'s> {
    pub fn new(sources: &'s dyn Sources) -> Self {
        Self { sources, order: sources.locations(), read: RefCell::default() }
    }

    /// `true` if words that are not found are in no source.
    pub fn is_complete(&self) -> bool {
        are_all_read(self.sources, &self.order)
    }

    /// Finds whole sentences in one of these sources.
    pub fn find_sentences(&self, words: &str, locations: &[&str]) -> Option<SourceLines> {
        let is_short = words.unicode_words().count() < MIN_WORDS;
        let found = |location: &&str| {
            let found = self.lines_of(location).find_whole_sentences(words)?;
            Some(to_source_lines(location, &found))
        };
        if is_short { None } else { locations.iter().find_map(found) }
    }

    /// Finds words in any source: in these first.
    pub fn find_words(&self, words: &str, first: &[&str]) -> Option<SourceLines> {
        let mut bytes = 0;
        let all = first.iter().copied().chain(self.order.iter().map(String::as_str));
        let within_limit = |location: &&str| {
            bytes += self.sources.text(location).map_or(0, str::len);
            bytes <= MAX_BYTES
        };
        all.take_while(within_limit).find_map(|location| {
            let found = self.lines_of(location).find_words(words)?;
            Some(to_source_lines(location, &found))
        })
    }

    /// A text in quotation marks inside of a statement that no source has, unless the sources are in another language than the
    /// statement: then it may be a translation.
    pub fn find_missing_quotation<'t>(&self, statement: &'t str, cited: &[String]) -> Option<&'t str> {
        let spans = quoted_spans(statement);
        if spans.is_empty() {
            return None;
        }
        let language = detect_language(statement);
        let of_source = || {
            let text = self.sources.text(cited.first().or(self.order.first())?)?;
            let beginning: String = text.chars().take(LANGUAGE_SAMPLE).collect();
            detect_language(&beginning)
        };
        if language.is_none() || language != of_source() || !self.is_complete() {
            return None;
        }
        spans.into_iter().find(|span| self.find_words(span, &[]).is_none())
    }

    fn lines_of(&self, location: &str) -> Rc<NormalizedLines> {
        if let Some(known) = self.read.borrow().get(location) {
            return known.clone();
        }
        let text = self.sources.text(location).unwrap_or_default();
        let lines = Rc::new(NormalizedLines::new(text.lines().enumerate().map(|(at, line)| (at + 1, line))));
        self.read.borrow_mut().insert(location.to_owned(), lines.clone());
        lines
    }
}

fn to_source_lines(location: &str, lines: &RangeInclusive<usize>) -> SourceLines {
    let line = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    SourceLines {
        source: location.to_owned(),
        first_line: line(*lines.start()),
        last_line: line(*lines.end()),
    }
}

/// Lines as one normalised text.
pub(crate) struct NormalizedLines {
    text: String,
    /// The start of each line in the text, with its number.
    starts: Vec<(usize, usize)>,
}

impl NormalizedLines {
    /// Normalises lines, each with its number.
    pub fn new<'t>(lines: impl IntoIterator<Item = (usize, &'t str)>) -> Self {
        let (mut text, mut starts) = (String::new(), Vec::new());
        for (number, line) in lines {
            let line = normalize(line.trim_start().trim_start_matches(['#', '>', '-', '*', '+', '|', ' ']));
            let is_hyphenated = text.ends_with('-') && line.starts_with(char::is_lowercase);
            if is_hyphenated {
                text.pop();
            }
            let joins = text.chars().next_back().is_none_or(is_without_spaces) || is_hyphenated;
            if !joins && !line.is_empty() {
                text.push(' ');
            }
            starts.push((text.len(), number));
            text.push_str(&line);
        }
        Self { text, starts }
    }

    fn lines_of(&self, start: usize, end: usize) -> RangeInclusive<usize> {
        let number = |at: usize| {
            self.starts.iter().rev().find(|(start, _)| *start <= at).map_or(1, |(_, number)| *number)
        };
        number(start)..=number(end.saturating_sub(1).max(start))
    }

    /// The lines with these words, which are one or several whole sentences of them.
    pub fn find_whole_sentences(&self, words: &str) -> Option<RangeInclusive<usize>> {
        let words = normalize(words);
        let words = words.trim_end_matches(ENDS).trim();
        let is_whole = |start: usize, end: usize| {
            let (before, after) = (self.text[..start].trim_end(), &self.text[end..]);
            let begins = self.starts.iter().any(|(at, _)| *at == start) || before.ends_with(ENDS);
            let ends = self.starts.iter().any(|(at, _)| *at == end + 1) || after.trim().is_empty();
            let stops = after.strip_prefix(ENDS).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with(char::is_whitespace) || rest.starts_with(is_unspaced)
            });
            begins && (ends || stops || after.starts_with(" |"))
        };
        self.find(words, is_whole)
    }

    /// The lines with these words, which begin and end with whole words.
    pub fn find_words(&self, words: &str) -> Option<RangeInclusive<usize>> {
        let words = normalize(words);
        let is_inside = |one: Option<char>, other: Option<char>| {
            one.zip(other).is_some_and(|(one, other)| {
                one.is_alphanumeric() && other.is_alphanumeric() && !is_unspaced(one) && !is_unspaced(other)
            })
        };
        let words = words.trim_matches(|c: char| c.is_whitespace() || c.is_ascii_punctuation());
        self.find(words, |start, end| {
            let (first, last) = (words.chars().next(), words.chars().next_back());
            !is_inside(self.text[..start].chars().next_back(), first)
                && !is_inside(last, self.text[end..].chars().next())
        })
    }

    fn find(&self, words: &str, fits: impl Fn(usize, usize) -> bool) -> Option<RangeInclusive<usize>> {
        if words.chars().count() < MIN_CHARACTERS {
            return None;
        }
        let forms = [words.to_owned(), with_other_first_case(words)];
        let found = forms.iter().find_map(|form| {
            let mut places = self.text.match_indices(form.as_str()).map(|(at, _)| (at, at + form.len()));
            places.find(|(start, end)| fits(*start, *end))
        });
        found.map(|(start, end)| self.lines_of(start, end))
    }
}

/// The inner text of a text that is wholly in quotation marks.
pub(crate) fn inside_quotes(text: &str) -> Option<&str> {
    let text = text.trim().trim_end_matches(ENDS);
    let pair = |(open, close): &(char, char)| text.strip_prefix(*open)?.strip_suffix(*close);
    let inner = QUOTES.iter().find_map(pair)?;
    let is_one = !inner.contains(|c| QUOTES.iter().any(|(open, close)| c == *open || c == *close));
    is_one.then_some(inner)
}

/// The texts in quotation marks inside of a text.
pub(crate) fn quoted_spans(text: &str) -> Vec<&str> {
    let mut spans = Vec::new();
    let mut rest = text;
    while let Some((at, open)) = rest.char_indices().find(|(_, c)| QUOTES.iter().any(|(open, _)| open == c)) {
        let after = &rest[at + open.len_utf8()..];
        let closes = |c: char| QUOTES.iter().any(|(one, close)| *one == open && *close == c);
        let Some(end) = after.find(closes) else { break };
        let span = &after[..end];
        if span.chars().count() >= MIN_CHARACTERS && span.contains(char::is_alphabetic) {
            spans.push(span);
        }
        rest = &after[end..];
        rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..];
    }
    spans
}

/// One form of white space, quotation marks, hyphens and Unicode; without emphasis.
pub fn normalize(text: &str) -> String {
    let composed = ComposingNormalizerBorrowed::new_nfkc().normalize(text);
    let mut plain = String::with_capacity(composed.len());
    for c in composed.chars() {
        match c {
            '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}' | '*' | '`' => {}
            '“' | '”' | '„' | '«' | '»' | '‹' | '›' | '「' | '」' | '『' | '』' => {
                plain.push('"')
            }
            '‘' | '’' | '‚' | '‛' => plain.push('\''),
            '‐' | '‑' | '‒' | '–' | '—' | '―' | '−' => plain.push('-'),
            c if c.is_whitespace() => {
                if !plain.is_empty() && !plain.ends_with(' ') {
                    plain.push(' ');
                }
            }
            c => plain.push(c),
        }
    }
    plain.truncate(plain.trim_end().len());
    plain
}

/// `true` for a letter after which a line is continued without a space.
fn is_without_spaces(c: char) -> bool {
    is_unspaced(c) && !('\u{ac00}'..='\u{d7a3}').contains(&c)
}

/// The first letter as a sentence that begins with these words would have it, or without.
fn with_other_first_case(words: &str) -> String {
    let mut letters = words.chars();
    let Some(first) = letters.next() else { return String::new() };
    let other: String =
        if first.is_uppercase() { first.to_lowercase().collect() } else { first.to_uppercase().collect() };
    other + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> NormalizedLines {
        NormalizedLines::new([
            (4, "- The kiln fires at 1,240 °C. It is not true that the kiln is new, but it was re-"),
            (5, "paired in 1987. “Nobody” said so."),
            (6, "| door | 0.9 m |"),
            (7, "它建于"),
            (8, "1931年。"),
        ])
    }

    #[test]
    fn whole_sentence_is_found_whatever_its_typography() {
        let found = |words: &str| lines().find_whole_sentences(words);
        assert_eq!(found("the kiln fires at 1,240\u{a0}°C."), Some(4..=4));
        assert_eq!(found("\"Nobody\" said so"), Some(5..=5));
        assert_eq!(found("它建于1931年"), Some(7..=8));
        assert_eq!(found("door | 0.9 m"), Some(6..=6));
        assert_eq!(found("The kiln is new"), None, "only a part of a sentence that says the opposite");
        assert_eq!(found("The kiln fires at 1"), None);
    }

    #[test]
    fn words_are_found_across_hyphenated_lines() {
        assert_eq!(lines().find_words("was repaired in 1987"), Some(4..=5));
        assert_eq!(lines().find_words("kiln is"), Some(4..=4));
        assert_eq!(lines().find_words("iln is"), None);
    }

    #[test]
    fn quotation_marks_of_many_languages_are_known() {
        assert_eq!(inside_quotes("«Il fait chaud»."), Some("Il fait chaud"));
        assert_eq!(inside_quotes("“One” and “two”"), None);
        assert_eq!(quoted_spans("He said „sofort“ and 「今すぐ」."), ["sofort", "今すぐ"]);
    }
}
