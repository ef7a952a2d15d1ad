//! Compares the wording of an answer with an expected statement: words without their case, figures by their value
//! (`millrace_figures`). Pure.
//!
//! | written | equal to |
//! |---|---|
//! | `1,500 g` | `1.5 kg`, `1500 grams` |
//! | `two weeks` | `14 days`, `2 weeks` |
//! | `€2,000` | `2000 euros`, `EUR 2 000` |
//! | `3 March 2026` | `2026-03-03`, `March 3rd, 2026` |
//! | `2:30 pm` | `14:30` |
//!
//! A number without a unit in an expected statement equals the number with any unit; a number with a unit needs that unit.
//! Punctuation, emphasis and citations do not count.
//!
//! An answer of a question file is compared character by character instead, after both texts are normalised (NFKC, case, white space,
//! typography): as whole words in scripts with spaces between words.

use std::sync::LazyLock;

use millrace_figures::{Figure, is_unspaced, read_figures};
use millrace_verification::normalize;
use regex::Regex;

/// A part of a text: a word in lower case, or a figure. A number in words is both.
#[derive(Debug, Clone, PartialEq)]
struct Token {
    word: Option<String>,
    figure: Option<Figure>,
}

impl Token {
    /// `true` if a text with `other` states this expected token.
    fn is_stated_by(&self, other: &Self) -> bool {
        let is_same_word = self.word.is_some() && self.word == other.word;
        is_same_word
            || matches!((&self.figure, &other.figure), (Some(own), Some(stated)) if own.is_stated_by(stated))
    }
}

/// A text that is searched for statements.
#[derive(Debug)]
pub struct Wording {
    tokens: Vec<Token>,
    /// Its words alone, also those that are part of a figure.
    words: Vec<String>,
    /// The text for patterns: on one line, without citations.
    plain: String,
    /// The same for answers: normalised, in lower case.
    normalized: String,
}

/// The text of an answer.
#[derive(Debug, Clone)]
pub struct AnswerText {
    normalized: String,
    /// `true` if the source text has it as whole words.
    has_whole_words: bool,
}

impl AnswerText {
    /// An answer, with the text that contains it.
    pub fn new(answer: &str, context: &Wording) -> Self {
        let answer = Self { normalized: normalize(answer).to_lowercase(), has_whole_words: true };
        let has_whole_words = context.has_answer(&answer);
        Self { has_whole_words, ..answer }
    }
}

impl Wording {
    pub fn read(text: &str) -> Self {
        static CITATION: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"\[(?:\^v|(?:[A-Za-z0-9_.-]+/)?S?)[0-9]{1,6}\]").expect("a valid pattern")
        });
        static MARKUP: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"(?m)^[ \t]*(?:>[ \t]?)+|\\([[:punct:]])").expect("a valid pattern")
        });
        let without = CITATION.replace_all(text, " ");
        let without = MARKUP.replace_all(&without, "$1");
        let without = without.replace(['*', '`'], "");
        let plain = without.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = words_of(&plain).map(str::to_lowercase).collect();
        let normalized = normalize(&plain).to_lowercase();
        Self { tokens: read_tokens(&plain), words, plain, normalized }
    }

    /// `true` if an answer stands in it.
    pub fn has_answer(&self, answer: &AnswerText) -> bool {
        self.has_characters(&answer.normalized, answer.has_whole_words)
    }

    /// `true` if normalised text stands in it; as whole words, in scripts with spaces between words, if `has_whole_words`.
    fn has_characters(&self, wanted: &str, has_whole_words: bool) -> bool {
        let continues = |before: Option<char>, after: Option<char>| {
            let is_letter = |c: char| c.is_alphanumeric() && !is_unspaced(c);
            before.is_some_and(is_letter) && after.is_some_and(is_letter)
        };
        let is_whole = |at: usize| {
            let (before, after) = (&self.normalized[..at], &self.normalized[at + wanted.len()..]);
            !continues(before.chars().next_back(), wanted.chars().next())
                && !continues(wanted.chars().next_back(), after.chars().next())
        };
        let mut places = self.normalized.match_indices(wanted).map(|(at, _)| at);
        !wanted.is_empty() && places.any(|at| !has_whole_words || is_whole(at))
    }

    pub fn plain_text(&self) -> &str {
        &self.plain
    }

    /// `true` if the tokens of `expected` occur here in order, without others in between; in scripts without spaces between words, which
    /// have no such tokens, if its characters do.
    pub fn states(&self, expected: &Self) -> bool {
        let wanted = &expected.tokens;
        let has_tokens = || {
            let mut windows = self.tokens.windows(wanted.len());
            windows
                .any(|window| wanted.iter().zip(window).all(|(expected, token)| expected.is_stated_by(token)))
        };
        let is_without_figures = wanted.iter().all(|token| token.figure.is_none());
        // The month of a date is a word, too.
        let has_words = || {
            is_without_figures
                && self.words.windows(expected.words.len()).any(|window| window == expected.words)
        };
        let has_characters = || {
            is_without_figures
                && expected.normalized.contains(is_unspaced)
                && self.has_characters(&expected.normalized, true)
        };
        !wanted.is_empty() && (has_tokens() || has_words() || has_characters())
    }

    /// `true` if it has no word and no number.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

fn read_tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let add_words = |tokens: &mut Vec<Token>, text: &str| {
        let words = words_of(text).map(|word| Token { word: Some(word.to_lowercase()), figure: None });
        tokens.extend(words);
    };
    let mut end = 0;
    for figure in read_figures(text) {
        add_words(&mut tokens, &text[end..figure.range.start]);
        end = figure.range.end;
        let word = figure.is_in_words.then(|| text[figure.range.clone()].to_lowercase());
        tokens.push(Token { word, figure: Some(figure) });
    }
    add_words(&mut tokens, &text[end..]);
    tokens
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[\p{Alphabetic}_][\p{Alphabetic}\p{Nd}_]*").expect("a valid pattern"));
    WORD.find_iter(text).map(|word| word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_states(text: &str, expected: &str, is_stated: bool) {
        let (wording, expectation) = (Wording::read(text), Wording::read(expected));
        assert_eq!(
            wording.states(&expectation),
            is_stated,
            "{expected:?} in {text:?}: {:?} in {:?}",
            expectation.tokens,
            wording.tokens
        );
    }

    #[test]
    fn equal_quantities_match_in_any_notation() {
        for (text, expected) in [
            ("It weighs 1,500 g.", "1.5 kg"),
            ("It weighs 1.5kg", "1500 grams"),
            ("Notice is two weeks.", "14 days"),
            ("The price is €2,000 net", "2000 euros"),
            ("costs EUR 2 000", "€2,000"),
            ("2.5 million euros", "€2,500,000"),
            ("a two-week trial", "2 weeks"),
            ("for twenty-four hours", "1 day"),
            ("reached 93 per cent of", "93%"),
            ("at -20 °C it", "-20 degrees Celsius"),
            ("up to 45 km/h", "12.5 m/s"),
            ("a 5000 mAh cell", "5 Ah"),
            ("warranty of 2 years", "24 months"),
            ("It lasts **9** hours [S1].", "9 hours"),
            ("| Weight | 1,2 kg |", "Weight"),
            ("the meeting is at 2:30 pm", "14:30"),
            ("opens at 9 am on", "9:00 a.m."),
            ("takes 1 h", "60 min"),
        ] {
            assert_states(text, expected, true);
        }
    }

    #[test]
    fn different_quantities_do_not_match() {
        for (text, expected) in [
            ("It weighs 1.5 g", "1.5 kg"),
            ("It has 15 units", "1.5"),
            ("It weighs 1500", "1500 g"),
            ("in 2 days", "2 weeks"),
            ("costs $2,000", "€2,000"),
            ("version 4.2.1", "4.2"),
            ("at 20 °C", "-20 °C"),
            ("pages 12 to 14", "1214"),
            ("128 days", "28 days"),
            ("IP67", "67"),
            ("2 MB", "2 MiB"),
        ] {
            assert_states(text, expected, false);
        }
    }

    #[test]
    fn dates_match_in_any_notation() {
        for (text, expected, is_stated) in [
            ("from 2026-03-03 on", "3 March 2026", true),
            ("on March 3rd, 2026", "2026-03-03", true),
            ("the 3rd of March", "3 March", true),
            ("on 3 March 2026", "March 3", true),
            ("on 3 March", "3 March 2026", false),
            ("on 13 March 2026", "3 March 2026", false),
            ("in March 2026", "March 2026", true),
        ] {
            assert_states(text, expected, is_stated);
        }
    }

    #[test]
    fn words_of_scripts_without_spaces_match_by_their_characters() {
        for (text, expected, is_stated) in [
            ("它是由船长的女儿捐赠的。", "船长的女儿", true),
            ("彼女は船長の娘です。", "船長", true),
            ("它是由船长的儿子捐赠的。", "船长的女儿", false),
            ("一共十二件。", "12", true),
            ("It is by Annabel.", "Anna", false),
        ] {
            assert_states(text, expected, is_stated);
        }
    }

    #[test]
    fn answers_match_character_by_character() {
        let has = |text: &str, answer: &str, context: &str| {
            Wording::read(text).has_answer(&AnswerText::new(answer, &Wording::read(context)))
        };
        assert!(has("> The *mill* has\n> ３０８ “sails”[^v1].", "308 \"Sails\"", "with 308 “sails”"));
        assert!(has("A \\[grey\\] one", "[grey]", "the [grey] one"));
        assert!(!has("in 1308 and 3081", "308", "it has 308"));
        assert!(!has("The miller", "mill", "the mill"));
        assert!(has("磨坊建于1811年。", "建于1811", "磨坊建于1811年"));
        assert!(has("الكتاب", "كتاب", "هذا الكتاب"), "as a part of a word, as in its own text");
    }

    #[test]
    fn words_match_without_case_punctuation_and_citations() {
        assert_states("It is *not* allowed,\n[S2] Mr. Ōkami said.", "not allowed Mr Ōkami", true);
        assert_states("The safety [3] officer", "safety officer", true);
        assert_states("unsafe officer", "safe officer", false);
        assert_states("", "x", false);
        assert!(Wording::read("… !").is_empty());
        assert!(!Wording::read("anything").states(&Wording::read("…")), "an empty statement is never stated");
    }
}
