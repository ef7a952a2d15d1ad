//! The words of a text, for the index, for queries and for comparing texts: all of them split, fold and stem here, so that
//! a match in one is a match in the others. It is pure: the same text gives the same words everywhere.
//!
//! Words are those of Unicode (UAX #29), without joining punctuation. Scripts that write no spaces give overlapping groups of
//! characters. The language of a text determines its stems and stop words; a query is stemmed as each language of the
//! texts that it searches.

use icu_properties::props::Script;
use unicode_segmentation::UnicodeSegmentation;

use super::language::{Language, fold_word, script_of};

/// The maximum length of a word, in bytes. Longer ones are data, and are skipped.
const MAX_WORD: usize = 64;
/// Punctuation that UAX #29 has inside words. Here it separates: `report.pdf`, `l'article` and `max_size` are two words
/// each. Between digits, a point and a comma are part of the number.
const JOINERS: &[char] = &['.', ',', ':', ';', '\'', '’', '‘', '_', '·'];

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Its stems, one in most texts. Words that share one are equal.
    pub stems: Vec<String>,
    /// Its start in the text, in bytes.
    pub start: usize,
    pub end: usize,
    /// Its number in the text. Stop words count, so that adjacent words have consecutive numbers.
    pub position: usize,
}

/// The words of a text in order, without the stop words.
pub(crate) fn tokenize(text: &str, language: Language) -> Vec<Token> {
    tokenize_for(text, language, &[])
}

/// The words of a query for texts in these languages.
pub(crate) fn tokenize_query(query: &str, languages: &[Language]) -> Vec<Token> {
    tokenize_for(query, Language::detect_query(query, languages), languages)
}

fn tokenize_for(text: &str, language: Language, others: &[Language]) -> Vec<Token> {
    let words = split_into_words(text).into_iter().enumerate();
    words
        .filter_map(|(position, (start, end))| {
            let word = &text[start..end];
            let mut stems = vec![stem_word(word, language)?];
            for other in others {
                let stem = other.stem(word);
                if !stems.contains(&stem) {
                    stems.push(stem);
                }
            }
            Some(Token { stems, start, end, position })
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
        if let Some(group) = group_size(first) {
            if run.group != group {
                run.end_into(&mut words);
            }
            run.group = group;
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

/// Returns the form in which words of a text are compared; `None` for a stop word and for a word that is too long.
pub(super) fn stem_word(word: &str, language: Language) -> Option<String> {
    (word.len() <= MAX_WORD && !language.is_stop_word(word)).then(|| language.stem(word))
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
    group: usize,
}

impl UnspacedRun {
    fn extend(&mut self, start: usize, segment: &str) {
        let starts = segment.grapheme_indices(true).map(|(at, _)| start + at);
        self.starts.extend(starts);
        self.end = start + segment.len();
    }

    /// Adds the groups of characters, or all of them if they are fewer.
    fn end_into(&mut self, words: &mut Vec<(usize, usize)>) {
        let mut starts = std::mem::take(&mut self.starts);
        let Some(&first) = starts.first() else { return };
        if starts.len() <= self.group {
            words.push((first, self.end));
            return;
        }
        starts.push(self.end);
        words.extend(
            starts.windows(self.group + 1).filter_map(|group| Some((*group.first()?, *group.last()?))),
        );
    }
}

/// Returns the number of characters that count as a word, for a character of a script that doesn't separate words. A syllable of the
/// alphabets of Southeast Asia has more of them than one of East Asia.
fn group_size(c: char) -> Option<usize> {
    const EAST: &[Script] = &[Script::Han, Script::Hiragana, Script::Katakana];
    if c.is_ascii() || !c.is_alphanumeric() {
        return None;
    }
    // The prolonged sound mark is common to both Japanese syllabaries.
    if c == 'ー' || EAST.contains(&script_of(c)) {
        return Some(2);
    }
    has_complex_breaks(c).then_some(3)
}

/// `true` for a letter of a script in which spaces separate phrases.
pub(crate) fn has_complex_breaks(c: char) -> bool {
    !c.is_ascii() && matches!(script_of(c), Script::Thai | Script::Lao | Script::Khmer | Script::Myanmar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stem_words(text: &str) -> Vec<String> {
        let tokens = tokenize(text, Language::default());
        tokens.into_iter().map(|token| token.stems.join("/")).collect()
    }

    #[test]
    fn forms_of_a_word_are_one_term() {
        for (one, other) in [("licensed", "Licensing"), ("patents", "PATENT"), ("behaviors", "behavior")] {
            assert_eq!(stem_words(one), stem_words(other));
        }
        assert_ne!(stem_words("patent"), stem_words("parent"));
    }

    #[test]
    fn words_of_a_query_have_the_stems_of_each_language() {
        let languages = ["deu", "eng"].map(|code| Language::from(code.to_owned()));
        let tokens = tokenize_query("Mühlen", &languages);
        assert_eq!(tokens[0].stems, ["muhl", "muhlen"]);
    }

    #[test]
    fn stop_words_are_skipped_and_positions_are_those_of_the_text() {
        let text = "How do the Contributor's patents end?";
        let words: Vec<&str> =
            tokenize(text, Language::default()).iter().map(|token| &text[token.start..token.end]).collect();
        assert_eq!(words, ["Contributor", "patents", "end"]);
    }

    #[test]
    fn words_are_those_of_their_scripts() {
        let table: [(&str, &[&str]); 12] = [
            ("中国人民。鱼", &["中国", "国人", "人民", "鱼"]),
            ("東京タワーへ行く", &["東京", "京タ", "タワ", "ワー", "ーへ", "へ行", "行く"]),
            ("使用 Rust 2024版", &["使用", "rust", "2024", "版"]),
            ("ภาษาไทย", &["ภาษ", "าษา", "ษาไ", "าไท", "ไทย"]),
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
        let tokens = tokenize(text, Language::default());
        let places: Vec<(&str, usize)> =
            tokens.iter().map(|token| (&text[token.start..token.end], token.position)).collect();
        let expected = [("Das", 0), ("Ende", 1), ("end", 3), ("契約", 5), ("約期", 6), ("期間", 7)];
        assert_eq!(places, expected);
        let endless = format!("{} word", "x".repeat(MAX_WORD + 1));
        assert_eq!(
            tokenize(&endless, Language::default()).iter().map(|token| token.position).collect::<Vec<_>>(),
            [1]
        );
    }
}
