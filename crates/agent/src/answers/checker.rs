//! The checks that an answer must pass before it counts, beyond its form: its marks, its quotations and its content. An
//! answer is sent back once; after that, invalid marks and quotations are removed, and the notes name other mistakes.
//!
//! # Invariants
//!
//! - I20: Every citation resolves, and every quotation is in its source word for word.
//!   (`tests/tests/first_command.rs::first_command_leaves_a_report_with_valid_citations`,
//!   `crates/agent/tests/extractive.rs::critic_names_the_faults_of_a_result`)
//! - I138: No answer from memory passes as research: without documents and web pages `research` calls no model, and an agent that
//!   reads the web must quote lines that it has read.
//!   (`crates/agent/tests/pages.rs::lines_that_were_not_read_are_refused_and_never_cited`,
//!   `crates/agent/tests/answers.rs::research_without_sources_says_so_and_asks_no_model`)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;

use super::grounding::{self, GroundedFindings};
use super::labels::PassageLabels;
use super::{Findings, NumberedResults, Report, content, find_repeated_result, findings};
use crate::citations;
use crate::corpus::{Corpus, Document};
use crate::model::ModelAbility;
use crate::turn::ReadLines;

/// The number of times that an answer is sent back.
const MAX_CORRECTIONS: u32 = 1;
/// The answer in place of statements that no passage supports.
const NOT_ANSWERED: &str = "The documents do not answer this question.";
/// The same for a prompt without passages.
const NOT_ANSWERED_BY_READING: &str = "The pages and documents that were read do not answer this question.";
/// The correction for a small model that has read nothing. It names only fields that its form has, and no tool: a correction has none.
const NOTHING_READ: &str = "You have read no page and no document, so nothing supports the answer. Say in 'output' that you found \
no answer, and in 'notes' what you searched for.";

/// The corrections that an attempt was sent so far. A resumed attempt checks the same answers in the same order.
#[derive(Debug, Default)]
struct CorrectionCount(AtomicU32);

impl CorrectionCount {
    /// `true` if another correction may be sent; it counts as sent.
    fn take(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < MAX_CORRECTIONS
    }
}

/// Checks answers from documents.
pub(crate) struct FindingsChecker<'a> {
    pub objective: &'a str,
    pub labels: PassageLabels,
    /// The lines that the attempt has read with its tools.
    pub read_lines: Arc<ReadLines>,
    pub inputs: Vec<(TaskId, TaskResult)>,
    pub ability: ModelAbility,
    corrections: CorrectionCount,
}

impl<'a> FindingsChecker<'a> {
    pub fn new(
        objective: &'a str,
        labels: PassageLabels,
        read_lines: Arc<ReadLines>,
        inputs: Vec<(TaskId, TaskResult)>,
        ability: ModelAbility,
    ) -> Self {
        Self { objective, labels, read_lines, inputs, ability, corrections: CorrectionCount::default() }
    }

    /// Returns the final form of the answer. `corpus` has the sources that it may cite.
    pub fn check_findings(&self, answer: Findings, corpus: Option<&Corpus>) -> Result<Findings, String> {
        let answer = match self.labels.expand_labels(&answer.output, corpus) {
            Some(output) => Findings { output, ..answer },
            None => answer,
        };
        let (numbered, mistake) = match self.labels.number_citations(answer.clone(), corpus) {
            Ok(numbered) => (numbered, None),
            Err(mistake) => {
                let known = self.labels.remove_unknown_marks(&answer, corpus);
                (self.labels.number_citations(known, corpus).unwrap_or(answer), Some(mistake))
            }
        };
        let numbered = findings::relocate_quotations(numbered, corpus);
        if let Some(checked) = corpus.and_then(|corpus| self.check_by_grounding(&numbered, corpus)) {
            return checked;
        }
        let unresolved = findings::resolve_findings(&numbered, corpus).err();
        let content = self.find_content_mistakes(&numbered);
        let mistakes: Vec<String> = mistake
            .into_iter()
            .chain(unresolved.clone())
            .chain(content.iter().map(|m| m.correction.clone()))
            .collect();
        if mistakes.is_empty() {
            return Ok(numbered);
        }
        if self.corrections.take() {
            return Err(mistakes.join(" "));
        }
        let mended = match unresolved {
            None => numbered,
            Some(mistake) => {
                let rest = findings::remove_unverified_quotations(&numbered, corpus);
                let rest = rest.filter(|rest| findings::resolve_findings(rest, corpus).is_ok());
                rest.ok_or(mistake)?
            }
        };
        Ok(Findings { notes: add_notes(mended.notes.clone(), &content), ..mended })
    }

    /// Checks an answer of a small model by the lines of its passages and those that it has read. `None` for other answers, and if
    /// there are no such lines: then its quotations or its notes count.
    fn check_by_grounding(&self, answer: &Findings, corpus: &Corpus) -> Option<Result<Findings, String>> {
        if !self.ability.is_small() || answer.answered.is_some() {
            return None;
        }
        let ground = |lines| grounding::ground_findings(answer, self.objective, lines, corpus);
        let lines = self.list_citable_lines(corpus);
        if !lines.is_empty() || !self.labels.is_empty() {
            return Some(self.check_grounded(ground(&lines)));
        }
        let is_uncited = findings::lacks_quotations(answer, Some(corpus));
        is_uncited.then(|| match self.corrections.take() {
            true => Err(NOTHING_READ.to_owned()),
            false => self.check_grounded(ground(&[])),
        })
    }

    /// Returns the lines that code may cite for a statement: those of the passages first.
    fn list_citable_lines<'c>(&self, corpus: &'c Corpus) -> Vec<(&'c Document, usize)> {
        let shown = self.labels.shown_lines(corpus);
        shown.into_iter().chain(self.read_lines.list_lines(corpus)).collect()
    }

    /// Checks an answer of a small model whose statements were compared with lines. A statement without support is
    /// sent back once and then left out.
    fn check_grounded(&self, grounded: GroundedFindings) -> Result<Findings, String> {
        let GroundedFindings { findings, unsupported, foreign_words, is_answer } = grounded;
        let line = if self.labels.is_empty() { "line that you have read" } else { "passage" };
        let correction =
            (!unsupported.is_empty()).then(|| correct_unsupported(line, &unsupported, &foreign_words));
        let removed = (!unsupported.is_empty()).then(|| note_unsupported(&unsupported));
        if !is_answer {
            if let Some(correction) = correction.filter(|_| self.corrections.take()) {
                return Err(correction);
            }
            let is_blank = content::is_blank(&findings.output);
            let not_answered = if self.labels.is_empty() { NOT_ANSWERED_BY_READING } else { NOT_ANSWERED };
            let output = if is_blank { not_answered.to_owned() } else { findings.output };
            let notes = findings.notes.or(removed).or_else(|| Some(output.clone()));
            return Ok(Findings { output, notes, answered: Some(false), ..findings });
        }
        let content = self.find_content_mistakes(&findings);
        let corrections = content.iter().map(|mistake| mistake.correction.clone());
        let mistakes: Vec<String> = correction.into_iter().chain(corrections).collect();
        if !mistakes.is_empty() && self.corrections.take() {
            return Err(mistakes.join(" "));
        }
        let notes: Vec<String> = findings.notes.clone().into_iter().chain(removed).collect();
        let notes = (!notes.is_empty()).then(|| notes.join(" "));
        Ok(Findings { notes: add_notes(notes, &content), ..findings })
    }

    fn find_content_mistakes(&self, answer: &Findings) -> Vec<ContentMistake> {
        let mut mistakes = Vec::new();
        let has_notes = answer.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
        if !answer.quotations.is_empty() && !citations::has_citations(&answer.output) {
            mistakes.push(ContentMistake {
                correction: "'output' has no mark: put the mark of its line after each statement.".into(),
                note: None,
            });
        }
        if !has_notes && answer.answered.is_none() && content::lacks_number(self.objective, &answer.output) {
            mistakes.push(ContentMistake::lacking_number());
        }
        if let Some(task) = find_repeated_result(&answer.output, &self.inputs) {
            mistakes.push(ContentMistake {
                correction: format!(
                    "Your answer repeats the result of {task}. Answer the objective of your own task; if the documents \
                     do not answer it, say so in 'notes'."
                ),
                note: Some(format!("The answer repeats the result of {task}.")),
            });
        }
        mistakes
    }
}

/// Checks reports.
pub(crate) struct ReportChecker<'a> {
    pub objective: &'a str,
    pub results: &'a NumberedResults,
    pub ability: ModelAbility,
    corrections: CorrectionCount,
}

impl<'a> ReportChecker<'a> {
    pub fn new(objective: &'a str, results: &'a NumberedResults, ability: ModelAbility) -> Self {
        Self { objective, results, ability, corrections: CorrectionCount::default() }
    }

    /// Returns the report as it counts.
    pub fn check_report(&self, report: Report) -> Result<Report, String> {
        let unresolved = self.results.resolve_citations(&report).err();
        let content = self.find_content_mistakes(&report);
        let invented = self.find_invented_numbers(&report);
        let corrections = content.iter().map(|mistake| mistake.correction.clone());
        let unsupported = (!invented.is_empty()).then(|| {
            format!(
                "No result says: “{}”. Use the numbers of the results, and no others.",
                invented.join(" ")
            )
        });
        let mistakes: Vec<String> =
            unresolved.iter().cloned().chain(unsupported).chain(corrections).collect();
        if mistakes.is_empty() {
            return Ok(report);
        }
        if self.corrections.take() {
            return Err(mistakes.join(" "));
        }
        let report = Report {
            output: invented
                .iter()
                .fold(report.output.clone(), |output, statement| output.replace(statement, "")),
            ..report
        };
        if content::is_blank(&report.output) {
            return Err(mistakes.join(" "));
        }
        let mended = if unresolved.is_none() { report } else { self.results.mend_citations(&report) };
        match self.results.resolve_citations(&mended) {
            Ok(_) => Ok(Report { notes: add_notes(mended.notes.clone(), &content), ..mended }),
            Err(mistake) => Err(mistake),
        }
    }

    /// Returns the statements of a small model's report with a number that neither the results nor the objective have.
    fn find_invented_numbers(&self, report: &Report) -> Vec<String> {
        if !self.ability.is_small() || report.answered.is_some() {
            return Vec::new();
        }
        let results = self.results.numbered_results().iter();
        let objectives = results.clone().map(|(entry, _)| entry.objective.as_str());
        let material: Vec<&str> = results
            .clone()
            .map(|(_, result)| result.output.as_str())
            .chain(objectives)
            .chain([self.objective])
            .collect();
        grounding::find_invented_numbers(&report.output, &material)
    }

    fn find_content_mistakes(&self, report: &Report) -> Vec<ContentMistake> {
        if report.answered.is_some() {
            // The built-in model quotes; it can't be asked for more.
            return Vec::new();
        }
        let has_notes = report.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
        let known: Vec<&str> =
            self.results.numbered_results().iter().map(|(_, result)| result.output.as_str()).collect();
        let mut mistakes = Vec::new();
        let missing = content::find_missing_names(self.objective, &report.output, &known);
        if !missing.is_empty() && !has_notes {
            let names = missing.join(", ");
            mistakes.push(ContentMistake {
                correction: format!(
                    "The report does not mention {names}, which the objective asks about. If the results do not cover \
                     it, say so in 'notes'."
                ),
                note: Some(format!("Not mentioned: {names}.")),
            });
        }
        let has_number = known.iter().any(|output| content::has_number(output));
        if !has_notes && has_number && content::lacks_number(self.objective, &report.output) {
            mistakes.push(ContentMistake::lacking_number());
        }
        mistakes
    }
}

/// A mistake in what an answer says. It is corrected once; then the answer counts, with a note.
struct ContentMistake {
    correction: String,
    note: Option<String>,
}

impl ContentMistake {
    fn lacking_number() -> Self {
        Self {
            correction: "The objective asks for a number, and the answer has none. Give it with its unit; if it is not \
                         known, say so in 'notes'."
                .into(),
            note: Some("The answer has no number, although the objective asks for one.".into()),
        }
    }
}

/// The correction for statements that no line supports. `line` names the lines: `passage`, or those that were read.
fn correct_unsupported(line: &str, statements: &[String], foreign_words: &BTreeSet<String>) -> String {
    let foreign = match foreign_words.len() {
        0 => String::new(),
        _ => format!(
            " No document has the word {}.",
            Vec::from_iter(foreign_words.iter().map(String::as_str)).join(", ")
        ),
    };
    format!(
        "No {line} says: “{}”.{foreign} Answer with what a {line} says, in its words. If no {line} answers the question, \
         write that they do not answer it.",
        statements.join(" ")
    )
}

/// The note on statements that were left out.
fn note_unsupported(statements: &[String]) -> String {
    let count = statements.len();
    let statements = if count == 1 { "One statement".to_owned() } else { format!("{count} statements") };
    format!("{statements} of the answer had no support in the documents and was left out.")
}

/// Adds the notes of mistakes that were not corrected.
fn add_notes(notes: Option<String>, mistakes: &[ContentMistake]) -> Option<String> {
    let own = notes.filter(|notes| !notes.trim().is_empty());
    let all: Vec<String> =
        own.into_iter().chain(mistakes.iter().filter_map(|mistake| mistake.note.clone())).collect();
    (!all.is_empty()).then(|| all.join(" "))
}
