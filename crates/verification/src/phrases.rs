//! The phrases of Millrace in a deliverable: names of verdicts, reasons, and the ends without an answer. They are in the language of the
//! question; `data/phrases.json` has them all.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use millrace_protocol::result::{Finder, SourceLines, StatementVerdict, VerifiedStatement};
use serde::Deserialize;

use crate::language::choose_language;

/// The language of a text whose language has no phrases or is unknown.
const ENGLISH: &str = "en";

static PHRASES: LazyLock<BTreeMap<String, Phrases>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/phrases.json")).expect("the file of the program is valid")
});

/// The phrases in one language. The methods fill in those with places.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phrases {
    supported: String,
    partly: String,
    contradicted: String,
    unsupported: String,
    unverified: String,
    by_model: String,
    quoted: String,
    separator: String,
    one_line: String,
    several_lines: String,
    sources: String,
    missing_figures: String,
    missing_quotation: String,
    word_for_word: String,
    found: String,
    found_in_part: String,
    found_opposite: String,
    not_found: String,
    no_answer: String,
    uncounted_cost: String,
    answered_none: String,
    not_believed: String,
    nothing_found_for: String,
    /// Reasons of statements.
    pub no_verdict: String,
    pub missing_words: String,
    pub no_lines: String,
    pub no_verifier: String,
    pub no_text_verifier: String,
    pub no_budget: String,
    /// Ends of deliverables.
    pub everything_removed: String,
    pub no_sources: String,
    pub no_sources_advice: String,
    pub no_passage: String,
    pub no_passage_advice: String,
    pub closing: String,
}

impl Phrases {
    /// The phrases for a question and the text that answers it: in the language of the question, or in that of the text if there is no
    /// question or its language is unclear.
    pub fn choose(question: &str, text: &str) -> &'static Self {
        let language = choose_language(&[question, text]).and_then(|language| PHRASES.get(language));
        language.unwrap_or_else(Self::english)
    }

    /// The phrases of terminals and logs.
    pub fn english() -> &'static Self {
        &PHRASES[ENGLISH]
    }

    /// The phrases of all languages.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        PHRASES.values()
    }

    /// The verdict on a statement, with the model that gave it.
    pub(crate) fn describe_outcome(&self, one: &VerifiedStatement) -> String {
        let verdict = match one.verdict {
            StatementVerdict::Supported => &self.supported,
            StatementVerdict::Partly => &self.partly,
            StatementVerdict::Contradicted => &self.contradicted,
            StatementVerdict::Unsupported => &self.unsupported,
            StatementVerdict::Unverified => &self.unverified,
        };
        match &one.found_by {
            Some(Finder::Model(model)) => fill(&self.by_model, &[("verdict", verdict), ("model", model)]),
            Some(Finder::Quotation | Finder::Figure) | None => verdict.clone(),
        }
    }

    /// The reason for a verdict of a model that gives none.
    pub(crate) fn describe_verdict(&self, verdict: StatementVerdict, lines: &[SourceLines]) -> String {
        let phrase = match verdict {
            StatementVerdict::Supported => &self.found,
            StatementVerdict::Partly => &self.found_in_part,
            StatementVerdict::Contradicted => &self.found_opposite,
            StatementVerdict::Unsupported => &self.not_found,
            StatementVerdict::Unverified => return self.no_verdict.clone(),
        };
        fill(phrase, &[("place", &self.describe_place(lines))])
    }

    fn describe_place(&self, lines: &[SourceLines]) -> String {
        lines.first().map_or_else(|| self.sources.clone(), |lines| self.describe_lines(lines))
    }

    /// The reason for a statement whose passages do not answer the question of its text.
    pub(crate) fn describe_no_answer(&self, lines: &[SourceLines]) -> String {
        fill(&self.no_answer, &[("place", &self.describe_place(lines))])
    }

    /// The reason for a statement that a source has word for word.
    pub(crate) fn describe_quotation(&self, lines: &SourceLines) -> String {
        fill(&self.word_for_word, &[("place", &self.describe_lines(lines))])
    }

    /// The reason for a statement with figures that no source has.
    pub(crate) fn describe_missing_figures(&self, figures: &[String]) -> String {
        let quoted = figures.iter().map(|figure| self.quote(figure)).collect::<Vec<_>>();
        fill(&self.missing_figures, &[("words", &quoted.join(&self.separator))])
    }

    /// The reason for a statement with a quotation that no source has.
    pub(crate) fn describe_missing_quotation(&self, words: &str) -> String {
        fill(&self.missing_quotation, &[("words", &self.quote(words))])
    }

    /// The reason for all statements if the cost of the model can't be counted.
    pub fn describe_uncounted_cost(&self, model: &str) -> String {
        fill(&self.uncounted_cost, &[("model", model)])
    }

    pub(crate) fn describe_no_answers(&self, model: &str, claims: usize) -> String {
        fill(&self.answered_none, &[("model", model), ("claims", &claims.to_string())])
    }

    pub(crate) fn describe_low_accuracy(&self, model: &str, percent: f64, needed: f64) -> String {
        let (percent, needed) = (percent.to_string(), needed.to_string());
        fill(&self.not_believed, &[("model", model), ("percent", &percent), ("needed", &needed)])
    }

    /// The end of a report for questions without a finding.
    pub fn describe_unanswered(&self, questions: &str) -> String {
        fill(&self.nothing_found_for, &[("questions", questions)])
    }

    fn describe_lines(&self, lines: &SourceLines) -> String {
        let SourceLines { source, first_line, last_line } = lines;
        let (first, last) = (first_line.to_string(), last_line.to_string());
        match first_line == last_line {
            true => fill(&self.one_line, &[("source", source), ("line", &first)]),
            false => fill(&self.several_lines, &[("source", source), ("first", &first), ("last", &last)]),
        }
    }

    fn quote(&self, words: &str) -> String {
        fill(&self.quoted, &[("words", words)])
    }
}

/// Replaces the names in braces. A value may have braces of its own.
fn fill(phrase: &str, values: &[(&str, &str)]) -> String {
    let value_of = |name: &str| {
        let found = values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).expect("the phrases of all languages have the same places")
    };
    let parts = phrase.split(['{', '}']).enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { part } else { value_of(part) }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn phrases_of_all_languages_are_complete_with_the_same_places() {
        let all: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(include_str!("../data/phrases.json")).unwrap();
        let codes: BTreeSet<&str> = all.keys().map(String::as_str).collect();
        let expected = "ar de en es fr hi it ja ko nl pl pt ru th tr zh";
        assert_eq!(codes, expected.split(' ').collect());
        let places = |phrase: &str| -> BTreeSet<String> {
            phrase.split(['{', '}']).skip(1).step_by(2).map(str::to_owned).collect()
        };
        for (code, phrases) in &all {
            assert!(phrases.keys().eq(all[ENGLISH].keys()), "{code}");
            for (name, phrase) in phrases {
                let english = &all[ENGLISH][name];
                assert_eq!(places(phrase), places(english), "{code}: {name}");
                let is_translated = phrase != english || !english.ends_with('.');
                assert!(!phrase.trim().is_empty() && (code == ENGLISH || is_translated), "{code}: {name}");
            }
        }
        assert_eq!(Phrases::all().count(), all.len(), "each has each phrase");
    }

    #[test]
    fn english_verdicts_are_those_of_the_terminal() {
        use StatementVerdict::{Contradicted, Partly, Supported, Unsupported, Unverified};
        for verdict in [Supported, Partly, Contradicted, Unsupported, Unverified] {
            for found_by in [None, Some(Finder::Figure), Some(Finder::Model("openai:m".into()))] {
                let one = VerifiedStatement {
                    text: String::new(),
                    start: 0,
                    end: 0,
                    verdict,
                    lines: Vec::new(),
                    found_by,
                    reason: String::new(),
                    probability: None,
                    removed: false,
                };
                assert_eq!(Phrases::english().describe_outcome(&one), one.outcome());
            }
        }
    }

    #[test]
    fn values_are_filled_in_as_they_are() {
        let lines = |last_line| SourceLines { source: "a{last}.md".into(), first_line: 3, last_line };
        let english = Phrases::english();
        assert_eq!(english.describe_quotation(&lines(3)), "a{last}.md, line 3 has it word for word.");
        assert_eq!(
            PHRASES["de"].describe_verdict(StatementVerdict::Supported, &[lines(4)]),
            "Das Modell findet es in a{last}.md, Zeilen 3–4."
        );
        let figures = ["9 kg".to_owned(), "1999".to_owned()];
        assert_eq!(english.describe_missing_figures(&figures), "No source has “9 kg”, “1999”.");
        assert_eq!(PHRASES["zh"].describe_missing_figures(&figures), "没有来源包含“9 kg”、“1999”。");
    }
}
