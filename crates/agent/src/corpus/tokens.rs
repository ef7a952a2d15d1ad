//! The words of a text, for the index, for queries and for comparing texts: all of them split, fold and stem here, so that
//! a match in one is a match in the others. It is pure: the same text gives the same words everywhere.
//!
//! Words are those of Unicode (UAX #29), without joining punctuation. Scripts that write no spaces give overlapping pairs of
//! characters. A word's script determines its stemmer and its stop words; Latin counts as English.

use std::collections::HashSet;
use std::sync::LazyLock;

use frostem::{Algorithm, Stemmer};
use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_properties::CodePointMapData;
use icu_properties::props::Script;
use unicode_segmentation::UnicodeSegmentation;

/// The maximum length of a word, in bytes. Longer ones are data, and are skipped.
const MAX_WORD: usize = 64;
/// Punctuation that UAX #29 has inside words. Here it separates: `report.pdf`, `l'article` and `max_size` are two words
/// each. Between digits, a point and a comma are part of the number.
const JOINERS: &[char] = &['.', ',', ':', ';', '\'', '’', '‘', '_', '·'];

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Its stem: words with the same stem are equal.
    pub stem: String,
    /// Its start in the text, in bytes.
    pub start: usize,
    pub end: usize,
    /// Its number in the text. Stop words count, so that adjacent words have consecutive numbers.
    pub position: usize,
}

/// The words of a text in order, without the stop words.
pub(crate) fn tokenize(text: &str) -> Vec<Token> {
    let words = split_into_words(text).into_iter().enumerate();
    words
        .filter_map(|(position, (start, end))| {
            Some(Token { stem: stem_word(&text[start..end])?, start, end, position })
        })
        .collect()
}

/// The words of a text in order, folded but not stemmed, with the stop words.
pub(crate) fn fold_words(text: &str) -> impl Iterator<Item = String> {
    split_into_words(text).into_iter().map(|(start, end)| fold_word(&text[start..end]))
}

/// The start and end of each word in order, with the stop words.
pub(super) fn split_into_words(text: &str) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut run = UnspacedRun::default();
    for (start, segment) in text.split_word_bound_indices() {
        let Some(first) = segment.chars().next() else { continue };
        if is_unspaced(first) {
            run.extend(start, segment);
            continue;
        }
        run.end_into(&mut words);
        if segment.contains(char::is_alphanumeric) {
            split_at_joiners(start, segment, &mut words);
        }
    }
    run.end_into(&mut words);
    words
}

/// Returns the form in which words are compared; `None` for a stop word and for a word that is too long.
pub(super) fn stem_word(word: &str) -> Option<String> {
    if word.len() > MAX_WORD {
        return None;
    }
    let folded = fold_word(word);
    let Some(language) = folded.chars().next().and_then(language_of) else {
        return Some(folded);
    };
    if language.stop_words.contains(&folded) {
        return None;
    }
    let american = if language.is_english { to_american_spelling(&folded) } else { None };
    Some(language.stemmer.stem(american.as_deref().unwrap_or(&folded)).into_owned())
}

fn split_at_joiners(start: usize, segment: &str, words: &mut Vec<(usize, usize)>) {
    let is_digit = |c: Option<char>| c.is_some_and(char::is_numeric);
    let mut open = 0;
    let mut push = |from: usize, to: usize| {
        if segment[from..to].contains(char::is_alphanumeric) {
            words.push((start + from, start + to));
        }
    };
    for (at, joiner) in segment.match_indices(JOINERS) {
        let (before, after) =
            (segment[..at].chars().next_back(), segment[at + joiner.len()..].chars().next());
        if matches!(joiner, "." | ",") && is_digit(before) && is_digit(after) {
            continue;
        }
        push(open, at);
        open = at + joiner.len();
    }
    push(open, segment.len());
}

/// Adjacent characters of scripts without spaces, by their starts; marks belong to the character before them.
#[derive(Default)]
struct UnspacedRun {
    starts: Vec<usize>,
    end: usize,
}

impl UnspacedRun {
    fn extend(&mut self, start: usize, segment: &str) {
        let starts = segment.grapheme_indices(true).map(|(at, _)| start + at);
        self.starts.extend(starts);
        self.end = start + segment.len();
    }

    /// Adds the pairs of characters, or the only character.
    fn end_into(&mut self, words: &mut Vec<(usize, usize)>) {
        let mut starts = std::mem::take(&mut self.starts);
        let last = starts.len();
        starts.push(self.end);
        match last {
            0 => {}
            1 => words.push((starts[0], starts[1])),
            _ => words.extend(starts.windows(3).map(|three| (three[0], three[2]))),
        }
    }
}

fn script_of(c: char) -> Script {
    CodePointMapData::<Script>::new().get(c)
}

/// `true` for a character of a script that doesn't separate words.
fn is_unspaced(c: char) -> bool {
    const UNSPACED: &[Script] = &[
        Script::Han,
        Script::Hiragana,
        Script::Katakana,
        Script::Thai,
        Script::Lao,
        Script::Khmer,
        Script::Myanmar,
    ];
    // The prolonged sound mark is common to both Japanese syllabaries.
    !c.is_ascii() && (c == 'ー' || UNSPACED.contains(&script_of(c))) && c.is_alphanumeric()
}

/// Folds a word: lower case, compatible forms as one, Latin and Greek letters without diacritics.
fn fold_word(word: &str) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize(word);
    let mut letters = String::with_capacity(decomposed.len());
    let mut drops_marks = false;
    for c in decomposed.chars() {
        match c {
            '\u{300}'..='\u{36f}' if drops_marks => {}
            // The soft hyphen and the zero-width joiners and spaces.
            '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}' => {}
            _ => {
                drops_marks = matches!(script_of(c), Script::Latin | Script::Greek);
                letters.extend(c.to_lowercase());
            }
        }
    }
    ComposingNormalizerBorrowed::new_nfc().normalize(&letters).into_owned()
}

/// A language as far as the search knows it.
struct Language {
    stemmer: Stemmer,
    stop_words: HashSet<String>,
    is_english: bool,
}

impl Language {
    fn new(algorithm: Algorithm, stop_words: Option<&str>) -> Self {
        let stop_words = stop_words.and_then(stop_words::lookup).unwrap_or_default();
        Self {
            stemmer: Stemmer::new(algorithm),
            stop_words: stop_words.iter().map(|word| fold_word(word)).collect(),
            is_english: algorithm == Algorithm::English,
        }
    }
}

/// The language that a word is stemmed as, by its first letter. A text in another language of the script is stemmed alike on
/// both sides of a comparison.
fn language_of(first: char) -> Option<&'static Language> {
    static ENGLISH: LazyLock<Language> = LazyLock::new(|| Language::new(Algorithm::English, Some("en")));
    static RUSSIAN: LazyLock<Language> = LazyLock::new(|| Language::new(Algorithm::Russian, Some("ru")));
    static ARABIC: LazyLock<Language> = LazyLock::new(|| Language::new(Algorithm::Arabic, Some("ar")));
    static HINDI: LazyLock<Language> = LazyLock::new(|| Language::new(Algorithm::Hindi, None));
    static GREEK: LazyLock<Language> = LazyLock::new(|| Language::new(Algorithm::Greek, Some("el")));
    if first.is_ascii() {
        return first.is_ascii_alphabetic().then(|| &*ENGLISH);
    }
    match script_of(first) {
        Script::Latin => Some(&ENGLISH),
        Script::Cyrillic => Some(&RUSSIAN),
        Script::Arabic => Some(&ARABIC),
        Script::Devanagari => Some(&HINDI),
        Script::Greek => Some(&GREEK),
        _ => None,
    }
}

/// Converts British spellings to American ones. It goes by word endings and so changes some words that have only one
/// spelling, which is harmless, since both sides of a comparison are converted.
fn to_american_spelling(word: &str) -> Option<String> {
    const WORDS: &[(&str, &str)] = &[
        ("licenc", "licens"),
        ("defenc", "defens"),
        ("offenc", "offens"),
        ("pretenc", "pretens"),
        ("judgement", "judgment"),
        ("programme", "program"),
        ("catalogue", "catalog"),
        ("fulfil", "fulfill"),
    ];
    const ENDINGS: &[(&str, &str)] = &[
        ("isation", "ization"),
        ("isations", "izations"),
        ("ise", "ize"),
        ("ised", "ized"),
        ("ises", "izes"),
        ("ising", "izing"),
        ("our", "or"),
        ("ours", "ors"),
        ("oured", "ored"),
        ("ouring", "oring"),
        ("tre", "ter"),
        ("tres", "ters"),
    ];
    if word.len() < 5 || !word.is_ascii() {
        return None;
    }
    if let Some((british, american)) = WORDS.iter().find(|(british, _)| word.starts_with(british)) {
        let rest = &word[british.len()..];
        return (!word.starts_with(american)).then(|| format!("{american}{rest}"));
    }
    let (british, american) = ENDINGS
        .iter()
        .filter(|(british, _)| word.ends_with(british))
        .max_by_key(|(british, _)| british.len())?;
    Some(format!("{}{american}", &word[..word.len() - british.len()]))
}
#[cfg(test)]
mod tests {
    use super::*;

    fn stem_words(text: &str) -> Vec<String> {
        tokenize(text).into_iter().map(|token| token.stem).collect()
    }

    #[test]
    fn forms_and_spellings_of_a_word_are_one_term() {
        for (one, other) in [
            ("licences", "License"),
            ("licensed", "licencing"),
            ("organisation", "organizations"),
            ("behaviour", "behaviors"),
            ("patents", "PATENT"),
            ("centre", "centers"),
            ("defence", "defense"),
            ("fulfil", "fulfill"),
        ] {
            assert_eq!(stem_words(one), stem_words(other));
        }
        assert_ne!(stem_words("patent"), stem_words("parent"));
    }

    #[test]
    fn stop_words_are_skipped_and_positions_are_those_of_the_text() {
        let text = "How do the Contributor's patents end?";
        let words: Vec<&str> = tokenize(text).iter().map(|token| &text[token.start..token.end]).collect();
        assert_eq!(words, ["Contributor", "patents", "end"]);
    }

    #[test]
    fn words_are_those_of_their_scripts() {
        let table: [(&str, &[&str]); 12] = [
            ("中国人民。鱼", &["中国", "国人", "人民", "鱼"]),
            ("東京タワーへ行く", &["東京", "京タ", "タワ", "ワー", "ーへ", "へ行", "行く"]),
            ("使用 Rust 2024版", &["使用", "rust", "2024", "版"]),
            ("ภาษาไทย", &["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
            ("ที่นี่", &["ที่นี่"]),
            ("हिन्दी", &["हिन्द"]),
            ("книги книгой", &["книг", "книг"]),
            ("الكتاب كتاب", &["كتاب", "كتاب"]),
            ("Zürich ZU\u{308}RICH", &["zurich", "zurich"]),
            ("ｆｕｌｌ\u{ad}width ﬁle", &["fullwidth", "file"]),
            ("report.pdf l'eau max_size", &["report", "pdf", "l", "eau", "max", "size"]),
            ("3.5 mm, 1,500 at 11:00", &["3.5", "mm", "1,500", "11", "00"]),
        ];
        for (text, stems) in table {
            assert_eq!(stem_words(text), stems, "{text}");
        }
    }

    #[test]
    fn tokens_point_at_their_characters_and_count_every_word() {
        let text = "Das Ende — the end of 契約期間.";
        let tokens = tokenize(text);
        let places: Vec<(&str, usize)> =
            tokens.iter().map(|token| (&text[token.start..token.end], token.position)).collect();
        let expected = [("Das", 0), ("Ende", 1), ("end", 3), ("契約", 5), ("約期", 6), ("期間", 7)];
        assert_eq!(places, expected);
        let endless = format!("{} word", "x".repeat(MAX_WORD + 1));
        assert_eq!(tokenize(&endless).iter().map(|token| token.position).collect::<Vec<_>>(), [1]);
    }
}
