//! Lexical analysis of a question: its terms, their synonyms, and the kind of answer. It owns the word lists; it has no
//! knowledge of any subject.

use std::collections::BTreeSet;

use millrace_protocol::result::Quotation;

use crate::corpus::{fold_words, tokenize};

/// Words of questions and instructions that describe the work, not the subject; as stems.
const TASK_WORDS: &[&str] = &[
    "address",
    "analyz",
    "answer",
    "ask",
    "brief",
    "check",
    "compar",
    "concern",
    "consid",
    "cover",
    "deal",
    "describ",
    "determin",
    "discuss",
    "document",
    "each",
    "evalu",
    "explain",
    "file",
    "find",
    "follow",
    "give",
    "handl",
    "happen",
    "identifi",
    "list",
    "long",
    "mani",
    "may",
    "mean",
    "much",
    "must",
    "name",
    "often",
    "outlin",
    "pleas",
    "question",
    "regard",
    "relat",
    "report",
    "respect",
    "say",
    "show",
    "soon",
    "specifi",
    "state",
    "summar",
    "tell",
    "text",
    "treat",
    "treatment",
    "use",
    "various",
    "want",
    "whether",
    "write",
];

/// Synonyms. A term of a question that is in a row is searched as the whole row.
const SYNONYMS: &[&[&str]] = &[
    &["end", "terminate", "termination", "expire", "expiry", "cease", "lapse", "revoke", "revocation"],
    &["begin", "start", "commence", "commencement"],
    &["allow", "permit", "permission", "authorise", "authorisation"],
    &["forbid", "prohibit", "prohibition", "ban"],
    &["require", "requirement", "obligation", "oblige", "must"],
    &["pay", "payment", "fee", "royalty", "charge"],
    &["price", "cost"],
    &["change", "modify", "modification", "alter", "amend"],
    &["keep", "kept", "retain", "preserve", "preservation"],
    &["share", "distribute", "distribution", "redistribute", "redistribution", "convey"],
    &["sue", "lawsuit", "litigation", "suit"],
    &["grant", "licence", "confer"],
    &["liability", "liable", "damage"],
    &["warranty", "guarantee"],
    &["buy", "purchase"],
    &["big", "large"],
    &["quick", "fast", "speed"],
    &["cause", "reason", "because"],
    &["error", "fault", "failure", "fail"],
    &["delete", "remove", "removal"],
    &["create", "creation", "make"],
    &["protect", "protection"],
    &["person", "people", "individual"],
    &["weigh", "weight", "heavy"],
    &["length", "lengthy"],
    &["wide", "width"],
    &["high", "height", "tall"],
    &["deep", "depth"],
    &["hot", "heat", "temperature"],
    &["loud", "noise", "noisy"],
    &["strong", "strength"],
    &["thick", "thickness"],
    &["broad", "breadth"],
    &["warm", "warmth"],
    &["teach", "teacher", "taught"],
    &["sell", "sold", "sale"],
    &["choose", "chosen", "choice"],
    &["lose", "lost", "loss"],
    &["break", "broken", "broke"],
    &["borrow", "lend", "lent", "loan"],
    &["leave", "left"],
    &["bring", "brought"],
    &["speak", "spoken", "speech"],
    &["receive", "receipt"],
    &["produce", "product", "production"],
    &["grow", "growth"],
    &["live", "life"],
    &["die", "death", "dead"],
    &["free", "freedom"],
    &["true", "truth"],
    &["rise", "rose", "raise"],
];

/// The maximum number of terms of a question, the first ones: anything longer is a text rather than a question.
const MAX_TERMS: usize = 24;

/// The kind of answer that a question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuestionKind {
    /// A time, a condition or an event.
    When,
    /// A number.
    HowMany,
    /// A reason.
    Why,
    /// Anything.
    Open,
}

impl QuestionKind {
    /// Words that are typical of such answers.
    pub fn cue_words(self) -> &'static [&'static str] {
        match self {
            Self::When => &[
                "if", "when", "upon", "until", "after", "before", "once", "date", "days", "within", "unless",
            ],
            Self::Why => &["because", "since", "therefore", "reason", "so", "order", "due"],
            Self::HowMany | Self::Open => &[],
        }
    }
}

/// A term of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueryTerm {
    /// As written in the question.
    pub word: String,
    /// Its own stem.
    pub stem: String,
    /// Its stem, and those of its synonyms.
    pub stems: BTreeSet<String>,
    /// The word and its synonyms.
    pub words: Vec<String>,
}

/// An analysed question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub terms: Vec<QueryTerm>,
    pub kind: QuestionKind,
}

impl Question {
    pub fn parse(text: &str) -> Self {
        let all = tokenize(text);
        let of_substance: Vec<_> =
            all.iter().filter(|term| !TASK_WORDS.contains(&term.stem.as_str())).cloned().collect();
        // A question of such words only is searched as it is.
        let chosen = if of_substance.is_empty() { all } else { of_substance };
        let mut wanted: Vec<QueryTerm> = Vec::new();
        for term in chosen {
            if wanted.len() < MAX_TERMS && wanted.iter().all(|earlier| earlier.stem != term.stem) {
                wanted.push(QueryTerm::new(&text[term.start..term.end], &term.stem));
            }
        }
        Self { terms: wanted, kind: classify_question(text) }
    }

    /// The terms that no quotation contains.
    pub fn find_unanswered_terms(&self, quotations: &[Quotation]) -> Vec<QueryTerm> {
        let quoted: BTreeSet<String> =
            quotations.iter().flat_map(|quotation| tokenize(&quotation.text)).map(|term| term.stem).collect();
        self.terms.iter().filter(|term| term.stems.is_disjoint(&quoted)).cloned().collect()
    }

    /// The terms as written in the question.
    pub fn list_words(&self) -> Vec<&str> {
        self.terms.iter().map(|term| term.word.as_str()).collect()
    }
}

impl QueryTerm {
    fn new(word: &str, stem: &str) -> Self {
        let mut words = vec![word.to_owned()];
        let mut stems = BTreeSet::from([stem.to_owned()]);
        for row in SYNONYMS {
            let row_stems: Vec<String> =
                row.iter().flat_map(|word| tokenize(word)).map(|term| term.stem).collect();
            if row_stems.iter().any(|other| other == stem) {
                words.extend(row.iter().filter(|other| **other != word).map(|&other| other.to_owned()));
                stems.extend(row_stems);
            }
        }
        Self { word: word.to_owned(), stem: stem.to_owned(), stems, words }
    }
}

/// `true` if a text contains any searchable term.
pub(super) fn has_searchable_terms(text: &str) -> bool {
    tokenize(text).iter().any(|term| !TASK_WORDS.contains(&term.stem.as_str()))
}

fn classify_question(text: &str) -> QuestionKind {
    let words: Vec<String> = fold_words(text).collect();
    let pair = |first: &str, second: &[&str]| {
        words.windows(2).any(|two| two[0] == first && second.contains(&two[1].as_str()))
    };
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    if has("when") || pair("how", &["long", "soon", "often"]) {
        QuestionKind::When
    } else if pair("how", &["many", "much"]) {
        QuestionKind::HowMany
    } else if has("why") {
        QuestionKind::Why
    } else {
        QuestionKind::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_the_subject_without_the_instruction() {
        let table = [
            ("How do these licences treat patents?", vec!["licences", "patents"], QuestionKind::Open),
            ("When does a patent grant end?", vec!["patent", "grant", "end"], QuestionKind::When),
            ("Please compare the licence and the License of each file.", vec!["licence"], QuestionKind::Open),
            ("How many days are there?", vec!["days"], QuestionKind::HowMany),
            ("Why so?", vec![], QuestionKind::Why),
            ("Find the documents.", vec!["Find", "documents"], QuestionKind::Open),
        ];
        for (text, words, kind) in table {
            let question = Question::parse(text);
            assert_eq!((question.list_words(), question.kind), (words, kind), "{text}");
        }
    }

    #[test]
    fn a_term_includes_its_synonyms() {
        let question = Question::parse("When does it end?");
        let end = &question.terms[0];
        let stem = |word| tokenize(word)[0].stem.clone();
        assert!(end.stems.contains(&stem("terminates")) && end.stems.contains(&stem("expired")));
        assert_eq!(end.words[0], "end");
    }
}
