//! Scores samples against their objectives and sums them up by configuration. Pure.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use millrace_protocol::plan::ResourceKind;
use millrace_protocol::result::Usage;
use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;

use super::file::Objective;
use super::store::{SampleMethod, SampleRecord};
use super::wording::Wording;
use crate::view::{align_columns, separate_thousands};

/// The kind of answer that a sample gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerKind {
    /// There is a deliverable that answers.
    Answered,
    /// The deliverable states that the documents do not answer the question.
    NotAnswered,
    /// There is no deliverable.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleScore {
    pub kind: AnswerKind,
    /// `true` if the run ended with an accepted deliverable.
    pub is_accepted: bool,
    /// The names of the facts that the answer states.
    pub facts_found: Vec<String>,
    /// The names of the others.
    pub facts_missed: Vec<String>,
    /// The names of the wrong statements in the answer.
    pub wrong: Vec<String>,
}

impl SampleScore {
    pub fn new(objective: &Objective, record: &SampleRecord) -> Self {
        let text = Wording::read(record.answer.as_deref().unwrap_or_default());
        let (found, missed): (Vec<_>, Vec<_>) =
            objective.facts.iter().partition(|fact| fact.is_stated_in(&text));
        let wrong = objective.wrong.iter().filter(|statement| statement.is_stated_in(&text));
        let wrong: Vec<String> = wrong.map(|statement| statement.name.clone()).collect();
        let states_gap = !record.answered || states_no_answer(&text);
        let kind = match &record.answer {
            None => AnswerKind::Missing,
            Some(_) if found.is_empty() && wrong.is_empty() && states_gap => AnswerKind::NotAnswered,
            Some(_) => AnswerKind::Answered,
        };
        let names =
            |facts: Vec<&super::statement::Statement>| facts.iter().map(|fact| fact.name.clone()).collect();
        Self {
            kind,
            is_accepted: record.answer.is_some(),
            facts_found: names(found),
            facts_missed: names(missed),
            wrong,
        }
    }
}

/// `true` if a text states that the documents do not have the answer.
fn states_no_answer(text: &Wording) -> bool {
    static GAP: LazyLock<Regex> = LazyLock::new(|| {
        let subject = r"(?:documents?|passages?|sources?|texts?|files?|context|information)";
        Regex::new(&format!(
            r"(?ix)
            \bno \s (?:\w+ \s)? {subject} \b (?: \s\w+){{0,3}} \s (?:answers?|says?|states?|mentions?|contains?|gives?|about|on|is|was|found|available)
          | \b{subject} \s (?:\w+ \s){{0,4}} (?:do|does|did|is|are) (?: \s not | n['’]t ) \b
          | \b(?:is|are|was|were) \s not \s (?:\w+ \s)? (?:mentioned|stated|specified|given|provided|found|answered|included|known|contained|listed|available)
          | \b(?:cannot|can['’]t|can\ not|could\ not) \s be \s (?:answered|determined|found)
          | \bnot \s answered \b
          | \b(?:unable|not \s able) \s to \s (?:answer|find|determine)
            "
        ))
        .expect("a valid pattern")
    });
    GAP.is_match(text.plain_text())
}

/// The sum of the samples of a configuration that were measured in one way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationScore {
    pub selected: u32,
    /// Those that have ended.
    pub samples: u32,
    pub accepted: u32,
    pub facts_expected: u32,
    pub facts_found: u32,
    pub wrong: u32,
    /// Samples of questions that the documents do not answer.
    pub unanswerable: u32,
    /// Those of them whose deliverable says so.
    pub not_answered: u32,
    /// Those of them that were answered all the same.
    pub unfounded: u32,
    /// Samples of other questions whose deliverable states that there is no answer.
    pub answers_missed: u32,
    pub citations: u32,
    pub resolved_citations: u32,
    pub usage: Usage,
    /// The working time in milliseconds.
    pub elapsed_ms: u64,
    /// The objectives and facts that were found in at least one sample.
    found: BTreeSet<(String, String)>,
    /// The objective and fact of each expected fact, and `true` if it was found, by sample.
    outcomes: Vec<(String, String, bool)>,
}

impl ConfigurationScore {
    pub fn add(&mut self, objective: &Objective, record: &SampleRecord) -> SampleScore {
        let score = SampleScore::new(objective, record);
        let count = |items: &[String]| u32::try_from(items.len()).unwrap_or(u32::MAX);
        self.samples += 1;
        self.accepted += u32::from(score.is_accepted);
        self.facts_expected += count(&score.facts_found) + count(&score.facts_missed);
        self.facts_found += count(&score.facts_found);
        self.wrong += count(&score.wrong);
        match (objective.is_answerable(), score.kind) {
            (true, AnswerKind::NotAnswered) => self.answers_missed += 1,
            (true, AnswerKind::Answered | AnswerKind::Missing) => {}
            (false, kind) => {
                self.unanswerable += 1;
                self.not_answered += u32::from(kind == AnswerKind::NotAnswered);
                self.unfounded += u32::from(kind == AnswerKind::Answered);
            }
        }
        self.citations += record.citations;
        self.resolved_citations += record.resolved_citations;
        self.usage.add(record.usage);
        self.elapsed_ms += record.elapsed_ms;
        let id = objective.id.as_str();
        for (name, is_found) in score
            .facts_found
            .iter()
            .map(|name| (name, true))
            .chain(score.facts_missed.iter().map(|name| (name, false)))
        {
            self.outcomes.push((id.to_owned(), name.clone(), is_found));
            if is_found {
                self.found.insert((id.to_owned(), name.clone()));
            }
        }
        score
    }

    /// Returns the share of the facts that the model finds alone, in at least one sample of `ceiling`, that these samples
    /// found: the facts found and those expected. `None` if the model alone found none of them.
    pub fn share_of_ceiling(&self, ceiling: &Self) -> Option<(u32, u32)> {
        let known = self
            .outcomes
            .iter()
            .filter(|(objective, fact, _)| ceiling.found.contains(&(objective.clone(), fact.clone())));
        let (mut found, mut expected) = (0, 0);
        for (_, _, is_found) in known {
            expected += 1;
            found += u32::from(*is_found);
        }
        (expected > 0).then_some((found, expected))
    }

    /// The method's samples that have not ended.
    pub fn missing(&self) -> u32 {
        self.selected.saturating_sub(self.samples)
    }
}

/// Returns a share as a percentage, rounded; `None` of nothing.
pub fn percent(part: u32, whole: u32) -> Option<u32> {
    let rounded = (u64::from(part) * 100 + u64::from(whole) / 2).checked_div(u64::from(whole))?;
    u32::try_from(rounded).ok()
}

/// The name of a method in tables.
pub fn method_name(method: SampleMethod) -> &'static str {
    match method {
        SampleMethod::Run => "run",
        SampleMethod::Ceiling => "ceiling",
    }
}

#[derive(Debug, Default)]
pub struct ConfigurationScores {
    pub name: String,
    pub runs: ConfigurationScore,
    /// The model alone, if that was measured.
    pub ceiling: Option<ConfigurationScore>,
}

const HEADINGS: [&str; 12] = [
    "configuration",
    "method",
    "samples",
    "accepted",
    "facts",
    "wrong",
    "unfounded",
    "not answered",
    "citations",
    "calls",
    "tokens",
    "cost",
];

/// Returns the table as lines: a row for each configuration and method, and a line on the share of the ceiling.
pub fn table_lines(configurations: &[ConfigurationScores]) -> Vec<String> {
    let mut rows: Vec<[String; 13]> = vec![heading_row()];
    for configuration in configurations {
        rows.push(score_row(&configuration.name, SampleMethod::Run, &configuration.runs));
        if let Some(ceiling) = &configuration.ceiling {
            rows.push(score_row(&configuration.name, SampleMethod::Ceiling, ceiling));
        }
    }
    let mut lines = align_columns(&rows);
    for configuration in configurations {
        let share =
            configuration.ceiling.as_ref().and_then(|ceiling| configuration.runs.share_of_ceiling(ceiling));
        if let Some((found, expected)) = share {
            lines.push(format!(
                "{}: {} of the facts that the model finds alone",
                configuration.name,
                share_text(found, expected)
            ));
        }
    }
    lines
}

fn heading_row() -> [String; 13] {
    std::array::from_fn(|at| HEADINGS.get(at).map_or_else(|| "time".to_owned(), |name| (*name).to_owned()))
}

fn score_row(name: &str, method: SampleMethod, score: &ConfigurationScore) -> [String; 13] {
    let is_run = method == SampleMethod::Run;
    let of_runs = |text: String| if is_run { text } else { "-".to_owned() };
    let mean = |total: u64| total.checked_div(u64::from(score.samples)).unwrap_or_default();
    let tokens = ResourceKind::Tokens.amount_used(&score.usage);
    let calls = score.usage.model_calls as f64 / f64::from(score.samples.max(1));
    let seconds = score.elapsed_ms as f64 / 1000.0 / f64::from(score.samples.max(1));
    let samples = match score.missing() {
        0 => score.samples.to_string(),
        _ => format!("{} of {}", score.samples, score.selected),
    };
    let not_answered = match score.unanswerable {
        0 => "-".to_owned(),
        all => format!("{} of {all}", score.not_answered),
    };
    [
        name.to_owned(),
        method_name(method).to_owned(),
        samples,
        of_runs(share_text(score.accepted, score.samples)),
        share_text(score.facts_found, score.facts_expected),
        score.wrong.to_string(),
        of_runs(score.unfounded.to_string()),
        of_runs(not_answered),
        of_runs(share_text(score.resolved_citations, score.citations)),
        format!("{calls:.1}"),
        separate_thousands(&mean(tokens).to_string()),
        ResourceKind::Cost.format_amount(mean(score.usage.cost_micros)),
        format!("{seconds:.1} s"),
    ]
}

/// Returns a share as counts and as a percentage.
pub fn share_text(part: u32, whole: u32) -> String {
    match percent(part, whole) {
        None => "-".to_owned(),
        Some(percent) => format!("{part} of {whole} ({percent}%)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_recognised_and_answers_are_not() {
        for text in [
            "The documents do not say which colour it has.",
            "No passage answers the question.",
            "The provided document doesn't mention the price.",
            "The price is not specified in the documents.",
            "This cannot be answered from the documents.",
            "There is no information about parking.",
            "I was unable to find the number.",
            "Not answered: who signs the contract.",
        ] {
            assert!(states_no_answer(&Wording::read(text)), "{text}");
        }
        for text in [
            "The visitor car park has 12 places.",
            "It is not waterproof.",
            "Staff do not need a permit.",
            "The document names Ada Berg.",
            "No deposit is needed.",
        ] {
            assert!(!states_no_answer(&Wording::read(text)), "{text}");
        }
    }

    #[test]
    fn percentages_are_rounded() {
        assert_eq!((percent(1, 3), percent(2, 3), percent(0, 0)), (Some(33), Some(67), None));
    }
}
