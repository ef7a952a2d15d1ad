//! The words of a question, without the stop words of its language. It has no knowledge of any subject.

use std::ops::Range;

use crate::corpus::{Language, Token, tokenize, tokenize_query};

/// The maximum number of terms of a question, the first ones: anything longer is a text rather than a question.
const MAX_TERMS: usize = 128;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question<'a> {
    text: &'a str,
    /// Its words, each once.
    pub terms: Vec<QueryTerm<'a>>,
}

/// A term of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueryTerm<'a> {
    /// As written in the question.
    pub word: &'a str,
    place: Range<usize>,
    stems: Vec<String>,
}

impl<'a> Question<'a> {
    /// Splits a question about texts in these languages.
    pub fn parse(text: &'a str, languages: &[Language]) -> Self {
        let mut terms: Vec<QueryTerm<'a>> = Vec::new();
        for Token { stems, start, end, .. } in tokenize_query(text, languages) {
            if terms.len() < MAX_TERMS && terms.iter().all(|earlier| earlier.stems != stems) {
                terms.push(QueryTerm { word: &text[start..end], place: start..end, stems });
            }
        }
        Self { text, terms }
    }

    /// For each word of a text in order, the index of the term that it matches.
    pub fn match_words(&self, text: &str, language: Language) -> Vec<Option<usize>> {
        let find = |token: Token| {
            self.terms.iter().position(|term| token.stems.iter().any(|stem| term.stems.contains(stem)))
        };
        tokenize(text, language).into_iter().map(find).collect()
    }

    /// The text of some of the terms; those that overlap, as in scripts without spaces, are one text.
    pub fn quote_terms(&self, terms: impl IntoIterator<Item = usize>) -> Vec<&'a str> {
        let mut places: Vec<Range<usize>> = Vec::new();
        for place in terms.into_iter().filter_map(|at| self.terms.get(at)).map(|term| term.place.clone()) {
            match places.last_mut() {
                Some(last) if place.start < last.end => last.end = place.end,
                Some(_) | None => places.push(place),
            }
        }
        places.into_iter().map(|place| &self.text[place]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_the_words_of_the_question_without_stop_words() {
        let table: [(&str, &[&str]); 5] = [
            ("When does a patent grant end?", &["patent", "grant", "end"]),
            ("Compare the licence and the Licence.", &["Compare", "licence"]),
            ("Wann endet der Vertrag?", &["Wann", "endet", "der", "Vertrag"]),
            ("合同期", &["合同", "同期"]),
            ("Why so?", &[]),
        ];
        for (text, words) in table {
            let question = Question::parse(text, &[]);
            assert_eq!(question.terms.iter().map(|term| term.word).collect::<Vec<_>>(), words, "{text}");
        }
    }

    #[test]
    fn overlapping_terms_are_quoted_as_one_text() {
        let question = Question::parse("合同什么时候 end now lease", &[]);
        assert_eq!(question.quote_terms([1, 2, 5, 6]), ["同什么", "end", "lease"]);
    }
}
