//! Words as the search sees them: lower case, one spelling, without the small words, in their stems. The index and
//! whoever scores sentences use the same, so that a hit in one is a hit in the other.

use std::sync::OnceLock;

use tantivy::tokenizer::{
    Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, Token,
    TokenFilter, TokenStream, Tokenizer,
};

/// Words that say nothing of what a text is about.
const STOP_WORDS: &[&str] = &[
    "a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being", "but", "by", "can",
    "could", "did", "do", "does", "doing", "for", "from", "had", "has", "have", "having", "he", "her",
    "hers", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "ll", "me", "might",
    "my", "no", "not", "of", "on", "or", "our", "ours", "re", "s", "shall", "she", "should", "so", "such",
    "t", "than", "that", "the", "their", "theirs", "them", "then", "there", "these", "they", "this", "those",
    "to", "too", "us", "ve", "very", "was", "we", "were", "what", "when", "where", "which", "while", "who",
    "whom", "whose", "why", "will", "with", "would", "you", "your", "yours",
];

/// The longest word that is looked at, in bytes.
const MAX_WORD: usize = 64;

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    /// Its stem: two words with the same stem count as one.
    pub stem: String,
    /// Where it begins in the text, in bytes.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
}

/// The words of a text in order, without the stop words.
pub(crate) fn terms(text: &str) -> Vec<Term> {
    let mut analyzer = analyzer();
    let mut stream = analyzer.token_stream(text);
    let mut terms = Vec::new();
    while let Some(token) = stream.next() {
        terms.push(Term { stem: token.text.clone(), start: token.offset_from, end: token.offset_to });
    }
    terms
}

pub(super) fn analyzer() -> TextAnalyzer {
    static ANALYZER: OnceLock<TextAnalyzer> = OnceLock::new();
    let build = || {
        TextAnalyzer::builder(SimpleTokenizer::default())
            .filter(RemoveLongFilter::limit(MAX_WORD))
            .filter(LowerCaser)
            .filter(StopWordFilter::remove(STOP_WORDS.iter().map(|&word| word.to_owned())))
            .filter(OneSpelling)
            .filter(Stemmer::new(Language::English))
            .build()
    };
    ANALYZER.get_or_init(build).clone()
}

/// Brings British spellings to the American ones. It goes by endings and so changes some words that have only one
/// spelling; as both sides of a comparison go through it, that does no harm.
fn american(word: &str) -> Option<String> {
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
struct OneSpelling;

impl TokenFilter for OneSpelling {
    type Tokenizer<T: Tokenizer> = OneSpellingTokenizer<T>;

    fn transform<T: Tokenizer>(self, tokenizer: T) -> OneSpellingTokenizer<T> {
        OneSpellingTokenizer(tokenizer)
    }
}

#[derive(Clone)]
struct OneSpellingTokenizer<T>(T);

impl<T: Tokenizer> Tokenizer for OneSpellingTokenizer<T> {
    type TokenStream<'a> = OneSpellingStream<T::TokenStream<'a>>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Self::TokenStream<'a> {
        OneSpellingStream(self.0.token_stream(text))
    }
}

struct OneSpellingStream<S>(S);

impl<S: TokenStream> TokenStream for OneSpellingStream<S> {
    fn advance(&mut self) -> bool {
        if !self.0.advance() {
            return false;
        }
        if let Some(american) = american(&self.0.token().text) {
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

    fn stems(text: &str) -> Vec<String> {
        terms(text).into_iter().map(|term| term.stem).collect()
    }

    #[test]
    fn words_that_differ_only_in_form_or_spelling_are_one_term() {
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
            assert_eq!(stems(one), stems(other));
        }
        assert_ne!(stems("patent"), stems("parent"));
    }

    #[test]
    fn small_words_are_passed_over_and_places_are_those_of_the_text() {
        let text = "How do the Contributor's patents end?";
        let words: Vec<&str> = terms(text).iter().map(|term| &text[term.start..term.end]).collect();
        assert_eq!(words, ["Contributor", "patents", "end"]);
    }
}
