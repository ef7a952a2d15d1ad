//! What a question is about, by words alone: its terms, other words for them, and what kind of answer it wants. It owns
//! the word lists; it knows nothing of any subject.

use std::collections::BTreeSet;

use millrace_protocol::result::Quotation;

use crate::corpus::terms;

/// Words of questions and instructions that say what to do, not what to look for; as stems.
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

/// Words that often stand for each other. A term of a question that is in a row stands for the whole row.
const SAME: &[&[&str]] = &[
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
];

/// The most terms of a question that are looked for: the first ones. What is longer is a text, not a question.
const MAX_WANTED: usize = 24;

/// What kind of answer a question wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A time, a condition or an event.
    When,
    /// A number.
    HowMany,
    /// A reason.
    Why,
    /// Anything.
    Open,
}

impl Kind {
    /// Words that answers of this kind have.
    pub fn cues(self) -> &'static [&'static str] {
        match self {
            Self::When => &[
                "if", "when", "upon", "until", "after", "before", "once", "date", "days", "within", "unless",
            ],
            Self::Why => &["because", "since", "therefore", "reason", "so", "order", "due"],
            Self::HowMany | Self::Open => &[],
        }
    }
}

/// A word that an answer should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// As it is written in the question.
    pub word: String,
    /// Its own stem.
    pub stem: String,
    /// Its stem, and those of the words that stand for it.
    pub stems: BTreeSet<String>,
    /// The words that stand for it, itself first.
    pub words: Vec<String>,
}

/// A question, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub wanted: Vec<Wanted>,
    pub kind: Kind,
}

impl Question {
    pub fn read(text: &str) -> Self {
        let all = terms(text);
        let of_substance: Vec<_> =
            all.iter().filter(|term| !TASK_WORDS.contains(&term.stem.as_str())).cloned().collect();
        // A question of nothing but small words is looked for as it stands.
        let chosen = if of_substance.is_empty() { all } else { of_substance };
        let mut wanted: Vec<Wanted> = Vec::new();
        for term in chosen {
            if wanted.len() < MAX_WANTED && wanted.iter().all(|known| known.stem != term.stem) {
                wanted.push(Wanted::of(&text[term.start..term.end], &term.stem));
            }
        }
        Self { wanted, kind: kind_of(text) }
    }

    /// The terms that no quotation has.
    pub fn uncovered(&self, quotations: &[Quotation]) -> Vec<Wanted> {
        let quoted: BTreeSet<String> =
            quotations.iter().flat_map(|quotation| terms(&quotation.text)).map(|term| term.stem).collect();
        self.wanted.iter().filter(|wanted| wanted.stems.is_disjoint(&quoted)).cloned().collect()
    }

    /// The words of the question that an answer should have.
    pub fn words(&self) -> Vec<&str> {
        self.wanted.iter().map(|wanted| wanted.word.as_str()).collect()
    }
}

impl Wanted {
    fn of(word: &str, stem: &str) -> Self {
        let mut words = vec![word.to_owned()];
        let mut stems = BTreeSet::from([stem.to_owned()]);
        for row in SAME {
            let row_stems: Vec<String> =
                row.iter().flat_map(|word| terms(word)).map(|term| term.stem).collect();
            if row_stems.iter().any(|other| other == stem) {
                words.extend(row.iter().filter(|other| **other != word).map(|&other| other.to_owned()));
                stems.extend(row_stems);
            }
        }
        Self { word: word.to_owned(), stem: stem.to_owned(), stems, words }
    }
}

/// Whether a text says anything that can be looked for.
pub(super) fn has_substance(text: &str) -> bool {
    terms(text).iter().any(|term| !TASK_WORDS.contains(&term.stem.as_str()))
}

fn kind_of(text: &str) -> Kind {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let pair = |first: &str, second: &[&str]| {
        words.windows(2).any(|two| two[0] == first && second.contains(&two[1].as_str()))
    };
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    if has("when") || pair("how", &["long", "soon", "often"]) {
        Kind::When
    } else if pair("how", &["many", "much"]) {
        Kind::HowMany
    } else if has("why") {
        Kind::Why
    } else {
        Kind::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terms_of_a_question_are_its_subject_and_not_its_instruction() {
        let table = [
            ("How do these licences treat patents?", vec!["licences", "patents"], Kind::Open),
            ("When does a patent grant end?", vec!["patent", "grant", "end"], Kind::When),
            ("Please compare the licence and the License of each file.", vec!["licence"], Kind::Open),
            ("How many days are there?", vec!["days"], Kind::HowMany),
            ("Why so?", vec![], Kind::Why),
            ("Find the documents.", vec!["Find", "documents"], Kind::Open),
        ];
        for (text, words, kind) in table {
            let question = Question::read(text);
            assert_eq!((question.words(), question.kind), (words, kind), "{text}");
        }
    }

    #[test]
    fn a_term_stands_for_the_words_that_are_used_for_it() {
        let question = Question::read("When does it end?");
        let end = &question.wanted[0];
        let stem = |word| terms(word)[0].stem.clone();
        assert!(end.stems.contains(&stem("terminates")) && end.stems.contains(&stem("expired")));
        assert_eq!(end.words[0], "end");
    }
}
