//! Text analysis for the search: lower case, one spelling, no stop words, stemmed. The index and the scoring of sentences
//! share it, so that a match in one is a match in the other.

use std::sync::OnceLock;

use tantivy::tokenizer::{
    Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, Token,
    TokenFilter, TokenStream, Tokenizer,
};

/// Words without meaning for the topic of a text.
const STOP_WORDS: &[&str] = &[
    "a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being", "but", "by", "can",
    "could", "did", "do", "does", "doing", "for", "from", "had", "has", "have", "having", "he", "her",
    "hers", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "ll", "me", "might",
    "my", "no", "not", "of", "on", "or", "our", "ours", "re", "s", "shall", "she", "should", "so", "such",
    "t", "than", "that", "the", "their", "theirs", "them", "then", "there", "these", "they", "this", "those",
    "to", "too", "us", "ve", "very", "was", "we", "were", "what", "when", "where", "which", "while", "who",
    "whom", "whose", "why", "will", "with", "would", "you", "your", "yours",
];

/// The maximum length of a word, in bytes.
const MAX_WORD: usize = 64;

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchTerm {
    /// Its stem: words with the same stem are equal.
    pub stem: String,
    /// Its start in the text, in bytes.
    pub start: usize,
    /// Its end.
    pub end: usize,
}

/// The words of a text in order, without the stop words.
pub(crate) fn split_into_terms(text: &str) -> Vec<SearchTerm> {
    let mut analyzer = build_analyzer();
    let mut stream = analyzer.token_stream(text);
    let mut terms = Vec::new();
    while let Some(token) = stream.next() {
        terms.push(SearchTerm { stem: token.text.clone(), start: token.offset_from, end: token.offset_to });
    }
    terms
}

pub(super) fn build_analyzer() -> TextAnalyzer {
    static ANALYZER: OnceLock<TextAnalyzer> = OnceLock::new();
    let build = || {
        TextAnalyzer::builder(SimpleTokenizer::default())
            .filter(RemoveLongFilter::limit(MAX_WORD))
            .filter(LowerCaser)
            .filter(StopWordFilter::remove(STOP_WORDS.iter().map(|&word| word.to_owned())))
            .filter(AmericanSpellingFilter)
            .filter(Stemmer::new(Language::English))
            .build()
    };
    ANALYZER.get_or_init(build).clone()
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

#[derive(Clone)]
struct AmericanSpellingFilter;

impl TokenFilter for AmericanSpellingFilter {
    type Tokenizer<T: Tokenizer> = AmericanSpellingTokenizer<T>;

    fn transform<T: Tokenizer>(self, tokenizer: T) -> AmericanSpellingTokenizer<T> {
        AmericanSpellingTokenizer(tokenizer)
    }
}

#[derive(Clone)]
struct AmericanSpellingTokenizer<T>(T);

impl<T: Tokenizer> Tokenizer for AmericanSpellingTokenizer<T> {
    type TokenStream<'a> = AmericanSpellingStream<T::TokenStream<'a>>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Self::TokenStream<'a> {
        AmericanSpellingStream(self.0.token_stream(text))
    }
}

struct AmericanSpellingStream<S>(S);

impl<S: TokenStream> TokenStream for AmericanSpellingStream<S> {
    fn advance(&mut self) -> bool {
        if !self.0.advance() {
            return false;
        }
        if let Some(american) = to_american_spelling(&self.0.token().text) {
            self.0.token_mut().text = american;
        }
        true
    }

    fn token(&self) -> &Token {
        self.0.token()
    }

    fn token_mut(&mut self) -> &mut Token {
        self.0.token_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stem_words(text: &str) -> Vec<String> {
        split_into_terms(text).into_iter().map(|term| term.stem).collect()
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
        let words: Vec<&str> =
            split_into_terms(text).iter().map(|term| &text[term.start..term.end]).collect();
        assert_eq!(words, ["Contributor", "patents", "end"]);
    }
}
