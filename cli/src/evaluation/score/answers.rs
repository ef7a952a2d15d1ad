//! Scores answers against their objectives, and sums them up. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use millrace_agent::answers::remove_source_list;
use millrace_protocol::result::{StatementVerdict, VerifiedStatement};
use millrace_verification::normalize;
use millrace_views::AnswerState;
use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;

use super::share::Share;
use super::{ConfigurationScores, MethodScore};
use crate::evaluation::input::file::Objective;
use crate::evaluation::input::statement::Statement;
use crate::evaluation::store::{SampleMethod, SampleRecord};
use crate::evaluation::wording::Wording;
use crate::view::separate_thousands;

/// The kind of answer that a sample gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerKind {
    /// There is a deliverable that answers.
    Answered,
    /// The deliverable states that the documents do not answer the question.
    NotAnswered,
    /// The deliverable states that a search found nothing.
    NothingFound,
    /// The deliverable has no expected fact, and none of its statements is verified.
    NotVerified,
    /// The deliverable says nothing.
    Empty,
    /// There is no deliverable.
    Missing,
}

impl AnswerKind {
    /// Its name for a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NotAnswered => "not answered",
            Self::NothingFound => "nothing found",
            Self::NotVerified => "not verified",
            Self::Empty => "empty",
            Self::Missing => "no deliverable",
        }
    }
}

/// The score of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerSample {
    pub kind: AnswerKind,
    /// `true` if the run ended with an accepted deliverable.
    pub is_accepted: bool,
    /// The names of the facts that the answer states.
    pub facts_found: Vec<String>,
    /// The names of the others.
    pub facts_missed: Vec<String>,
    /// The names of those found that a verified statement has.
    pub facts_verified: Vec<String>,
    /// The names of the wrong statements in the answer.
    pub wrong: Vec<String>,
    /// The statements with an expected fact: those that carry a mark, of all.
    pub marked: Share,
}

impl AnswerSample {
    pub fn new(objective: &Objective, record: &SampleRecord) -> Self {
        let answer = record.answer.as_deref().unwrap_or_default();
        let body = answer_body(answer, &objective.text, None);
        let text = match objective.answer_characters {
            None => Wording::read(&body),
            limit => Wording::read(&answer_body(answer, &objective.text, limit)),
        };
        let names =
            |facts: &[&Statement]| facts.iter().map(|fact| fact.name.clone()).collect::<Vec<String>>();
        let (found, missed): (Vec<_>, Vec<_>) =
            objective.facts.iter().partition(|fact| fact.is_stated_in(&text));
        let wrong: Vec<_> = objective.wrong.iter().filter(|one| one.is_stated_in(&text)).collect();
        let delivered: Vec<(&VerifiedStatement, Wording)> =
            delivered(record).map(|one| (one, Wording::read(&one.text))).collect();
        let is_supported = |one: &VerifiedStatement| one.verdict == StatementVerdict::Supported;
        let is_verified = |fact: &&&Statement| {
            delivered.iter().any(|(one, words)| is_supported(one) && fact.is_stated_in(words))
        };
        let verified: Vec<_> = found.iter().filter(is_verified).copied().collect();
        let mut marked = Share::default();
        for (one, words) in &delivered {
            if objective.facts.iter().any(|fact| fact.is_stated_in(words)) {
                marked.count(!is_supported(one));
            }
        }
        let states_fact = !found.is_empty() || !wrong.is_empty();
        Self {
            kind: if states_fact { AnswerKind::Answered } else { find_kind(record, &body) },
            is_accepted: record.answer.is_some(),
            facts_found: names(&found),
            facts_missed: names(&missed),
            facts_verified: names(&verified),
            wrong: names(&wrong),
            marked,
        }
    }

    /// The score in a few words.
    pub fn describe(&self, record: &SampleRecord) -> Vec<String> {
        let count = |items: &[String]| u32::try_from(items.len()).unwrap_or(u32::MAX);
        let mut parts = vec![match (self.kind, record.end) {
            (AnswerKind::Missing, Some(end)) => format!("no deliverable ({end})"),
            (AnswerKind::Missing, None) => "no answer".to_owned(),
            (kind, _) => kind.name().to_owned(),
        }];
        let facts = count(&self.facts_found) + count(&self.facts_missed);
        if facts > 0 {
            parts.push(format!("{} facts", Share::new(count(&self.facts_found), facts)));
        }
        if !self.wrong.is_empty() {
            parts.push(format!("{} wrong", self.wrong.len()));
        }
        let tokens = record.usage.input_tokens + record.usage.output_tokens;
        parts.push(format!("{} tokens", separate_thousands(&tokens.to_string())));
        parts
    }
}

/// The statements that a deliverable has.
pub fn delivered(record: &SampleRecord) -> impl Iterator<Item = &VerifiedStatement> {
    record.statements.iter().filter(|one| !one.removed)
}

/// The kind of an answer without an expected fact and a wrong statement.
fn find_kind(record: &SampleRecord, body: &str) -> AnswerKind {
    let text = Wording::read(body);
    if record.answer.is_none() {
        return AnswerKind::Missing;
    }
    if text.is_empty() {
        return AnswerKind::Empty;
    }
    match record.state {
        AnswerState::NothingFound => AnswerKind::NothingFound,
        AnswerState::NotInSources => AnswerKind::NotAnswered,
        AnswerState::NotVerified => AnswerKind::NotVerified,
        AnswerState::Answered if states_no_answer(&text) => AnswerKind::NotAnswered,
        AnswerState::Answered => AnswerKind::Answered,
    }
}

/// The text of a deliverable: its first characters, or all, without its sources, the footnotes of verdicts, and a title that repeats
/// the question.
pub fn answer_body(answer: &str, question: &str, characters: Option<usize>) -> String {
    let body = remove_source_list(answer);
    let cut = characters.and_then(|most| body.char_indices().nth(most)).map_or(body.len(), |(at, _)| at);
    let is_title = |line: &str| {
        line.strip_prefix("# ").is_some_and(|title| normalize(title.trim()) == normalize(question.trim()))
    };
    let is_footnote = |line: &str| line.starts_with("[^v") && line.contains("]: ");
    let lines = body[..cut].lines().filter(|line| !is_title(line) && !is_footnote(line));
    lines.collect::<Vec<_>>().join("\n")
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

/// The sums of answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerSums {
    pub accepted: u32,
    pub facts_expected: u32,
    pub facts_found: u32,
    /// The facts that were found, by file.
    pub facts_by_file: BTreeMap<String, Share>,
    /// The facts found in deliverables that were verified: those that a verified statement has, of all.
    pub verified: Share,
    pub wrong: u32,
    /// The statements with an expected fact: those that carry a mark, of all.
    pub marked: Share,
    /// The numbers in statements without a mark that no document has.
    pub invented: u32,
    /// The samples of questions that the documents answer, by kind.
    pub answerable: BTreeMap<AnswerKind, u32>,
    /// The samples of other questions, by kind.
    pub unanswerable: BTreeMap<AnswerKind, u32>,
    pub citations: Share,
    /// The objectives and facts that were found in at least one sample.
    found: BTreeSet<(String, String)>,
    /// The objective and fact of each expected fact, and `true` if it was found, by sample.
    outcomes: Vec<(String, String, bool)>,
}

impl AnswerSums {
    /// Scores a sample and adds it.
    pub fn add(&mut self, objective: &Objective, record: &SampleRecord) -> AnswerSample {
        let score = AnswerSample::new(objective, record);
        let count = |items: &[String]| u32::try_from(items.len()).unwrap_or(u32::MAX);
        self.accepted += u32::from(score.is_accepted);
        self.facts_expected += count(&score.facts_found) + count(&score.facts_missed);
        self.facts_found += count(&score.facts_found);
        let of_file = self.facts_by_file.entry(objective.origin.file.clone()).or_default();
        *of_file =
            of_file.plus(count(&score.facts_found), count(&score.facts_found) + count(&score.facts_missed));
        if !record.statements.is_empty() {
            self.verified = self.verified.plus(count(&score.facts_verified), count(&score.facts_found));
        }
        self.wrong += count(&score.wrong);
        self.marked = self.marked.plus(score.marked.part, score.marked.whole);
        self.invented += count(&record.invented);
        let kinds = if objective.is_answerable() { &mut self.answerable } else { &mut self.unanswerable };
        *kinds.entry(score.kind).or_default() += 1;
        self.citations = self.citations.plus(record.resolved_citations, record.citations);
        let id = objective.id.as_str();
        let found = score.facts_found.iter().map(|name| (name, true));
        for (name, is_found) in found.chain(score.facts_missed.iter().map(|name| (name, false))) {
            self.outcomes.push((id.to_owned(), name.clone(), is_found));
            if is_found {
                self.found.insert((id.to_owned(), name.clone()));
            }
        }
        score
    }

    /// Returns the share of the facts that the model finds alone, in at least one sample of `ceiling`, that these samples
    /// found. `None` if the model alone found none of them.
    pub fn share_of_ceiling(&self, ceiling: &Self) -> Option<Share> {
        let mut share = Share::default();
        for (objective, fact, is_found) in &self.outcomes {
            if ceiling.found.contains(&(objective.clone(), fact.clone())) {
                share.count(*is_found);
            }
        }
        (share.whole > 0).then_some(share)
    }

    /// The facts that were found.
    pub fn facts(&self) -> Share {
        Share::new(self.facts_found, self.facts_expected)
    }

    /// The samples of questions that the documents do not answer: those of these kinds.
    pub fn count_unanswerable(&self, kinds: &[AnswerKind]) -> Share {
        Share::new(sum_of(&self.unanswerable, kinds), self.unanswerable.values().sum())
    }

    /// The samples of questions that the documents answer: those of these kinds.
    pub fn count_answerable(&self, kinds: &[AnswerKind]) -> Share {
        Share::new(sum_of(&self.answerable, kinds), self.answerable.values().sum())
    }
}

fn sum_of(counts: &BTreeMap<AnswerKind, u32>, kinds: &[AnswerKind]) -> u32 {
    kinds.iter().filter_map(|kind| counts.get(kind)).sum()
}

/// The kinds of deliverables that do not answer, told apart.
const WITHOUT_ANSWER: [AnswerKind; 5] = [
    AnswerKind::NotAnswered,
    AnswerKind::NothingFound,
    AnswerKind::NotVerified,
    AnswerKind::Empty,
    AnswerKind::Missing,
];
/// The right ends of a question that the documents do not answer.
pub const RIGHT_WITHOUT_ANSWER: [AnswerKind; 3] =
    [AnswerKind::NotAnswered, AnswerKind::NothingFound, AnswerKind::NotVerified];

impl MethodScore<AnswerSums> {
    /// The rows of the table.
    pub fn rows(&self, method: SampleMethod) -> Vec<(String, String)> {
        let sums = &self.sums;
        let is_run = method == SampleMethod::Run;
        let row = |name: &str, value: String| Some((name.to_owned(), value));
        let of_runs = |name: &str, value: String| row(name, value).filter(|_| is_run);
        let without = sums.count_answerable(&WITHOUT_ANSWER);
        let detail: Vec<String> = WITHOUT_ANSWER
            .iter()
            .filter_map(|kind| Some(format!("{} {}", sums.answerable.get(kind)?, kind.name())))
            .collect();
        let detail = if detail.is_empty() { String::new() } else { format!(": {}", detail.join(", ")) };
        let false_absence = sums.count_answerable(&[AnswerKind::NotAnswered]);
        let right = sums.count_unanswerable(&RIGHT_WITHOUT_ANSWER);
        let unfounded = sums.count_unanswerable(&[AnswerKind::Answered]);
        let rows = [
            row("samples", self.samples_cell()),
            of_runs("accepted", Share::new(sums.accepted, self.samples).with_interval()),
            row("facts", sums.facts().with_interval()),
            of_runs("verified", sums.verified.with_interval()),
            of_runs("true but marked", sums.marked.with_interval()),
            row("without an answer", format!("{}{detail}", without.with_interval())),
            row("false \"not answered\"", false_absence.with_interval()),
            row("wrong", sums.wrong.to_string()),
            of_runs("rightly unanswered", right.with_interval()),
            of_runs("unfounded", unfounded.part.to_string()),
            row("invented figures", sums.invented.to_string()),
            of_runs("citations", sums.citations.to_string()),
        ];
        let mut rows: Vec<(String, String)> = rows.into_iter().flatten().collect();
        let at = rows.iter().position(|(name, _)| name == "facts").map_or(0, |at| at + 1);
        let by_file = sums.facts_by_file.iter().filter(|(file, _)| !file.is_empty());
        rows.splice(at..at, by_file.map(|(file, share)| (format!("facts in {file}"), share.with_interval())));
        rows.into_iter().chain(self.usage_rows("", self.samples)).collect()
    }
}

impl ConfigurationScores<AnswerSums> {
    /// The share of the facts that the model finds alone which the runs have found.
    pub fn share_of_ceiling(&self) -> Option<Share> {
        let (runs, ceiling) = (self.find(SampleMethod::Run)?, self.find(SampleMethod::Ceiling)?);
        runs.sums.share_of_ceiling(&ceiling.sums)
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
    fn body_has_no_sources_footnotes_and_repeated_question() {
        let answer = "# How old?\n\nIt is 9[^v1].\nMore.\n\n## Sources\n\n- [1] a: a.md\n\n[^v1]: not supported: No source has “9”.\n";
        assert_eq!(answer_body(answer, "How old?", None).trim(), "It is 9[^v1].\nMore.");
        assert_eq!(answer_body(answer, "How old?", Some(16)).trim(), "It i");
        assert_eq!(answer_body("# Age\n\n[^v1]: not supported: x", "How old?", None).trim(), "# Age");
    }
}
