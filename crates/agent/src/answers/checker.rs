//! The checks that an answer must pass before it counts, beyond its form: its marks and quotations, and the verification of its
//! statements. An answer is sent back once; after that, invalid marks and quotations are removed, and statements that are not verified
//! keep their verdict.
//!
//! # Invariants
//!
//! - I20: Every citation resolves, and every quotation is in its source word for word.
//!   (`tests/tests/first_command.rs::first_command_leaves_a_report_with_valid_citations`,
//!   `crates/agent/tests/extractive.rs::critic_names_the_faults_of_a_result`)
//! - I101: A statement with a figure that no source has is sent back once, for models of any size; after that it is delivered only with that verdict.
//!   (`crates/agent/tests/answers.rs::invented_figure_is_sent_back_once_and_then_marked`)
//! - I138: No answer from memory passes as research: without documents and web pages `research` calls no model, and an agent that
//!   reads the web must quote lines that it has read.
//!   (`crates/agent/tests/pages.rs::lines_that_were_not_read_are_refused_and_never_cited`,
//!   `crates/agent/tests/answers.rs::research_without_sources_says_so_and_asks_no_model`)
//! - I302: A result is marked as unanswered only if its model confirms it after a second search with other words.
//!   (`crates/agent/tests/answers.rs::absence_is_said_only_after_a_second_search`)

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{
    SourceLines, StatementVerdict, TaskResult, VerificationPolicy, VerifiedStatement,
};
use millrace_verification::{CitedLines, Verification};

use super::labels::{PassageLabels, ShownPassage};
use super::{Findings, NumberedResults, Passage, Report, find_repeated_result, findings};
use crate::citations;
use crate::corpus::Corpus;
use crate::turn::{AnswerCheck, ReadLines};
use crate::verification::LineSources;

/// The number of times that an answer is sent back.
const MAX_CORRECTIONS: u32 = 1;
/// The most statements that a correction quotes.
const MAX_NAMED: usize = 5;
/// The most passages of a second search, and their most characters.
const MAX_SECOND_PASSAGES: usize = 4;
const MAX_SECOND_CHARACTERS: usize = 4_000;

/// The correction for an answer that cites nothing.
const UNCITED: &str = "The answer cites nothing. After each statement, cite the lines that say it: as [PATH:LINE], or as the number of \
a quotation. The path of a web page is its URL. If the sources do not answer the question, set 'answered' to false.";

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
    objective: &'a str,
    labels: Mutex<PassageLabels>,
    /// The lines that the attempt has read with its tools.
    read_lines: Arc<ReadLines>,
    inputs: Vec<(TaskId, TaskResult)>,
    /// Returns the sources that an answer may cite.
    sources: Box<dyn Fn() -> Option<Corpus> + Send + Sync + 'a>,
    corrections: CorrectionCount,
    policy: VerificationPolicy,
    has_searched_again: AtomicBool,
}

impl<'a> FindingsChecker<'a> {
    pub fn new(
        objective: &'a str,
        labels: PassageLabels,
        read_lines: Arc<ReadLines>,
        inputs: Vec<(TaskId, TaskResult)>,
        sources: impl Fn() -> Option<Corpus> + Send + Sync + 'a,
    ) -> Self {
        Self {
            objective,
            labels: Mutex::new(labels),
            read_lines,
            inputs,
            sources: Box::new(sources),
            corrections: CorrectionCount::default(),
            policy: VerificationPolicy::default(),
            has_searched_again: AtomicBool::new(false),
        }
    }

    #[must_use]
    pub fn with_policy(self, policy: VerificationPolicy) -> Self {
        Self { policy, ..self }
    }

    fn labels(&self) -> PassageLabels {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The final form of the answer, apart from the verdicts.
    fn check_findings(&self, answer: Findings, corpus: Option<&Corpus>) -> Result<Findings, String> {
        let labels = self.labels();
        let answer = match labels.expand_labels(&answer.output, corpus) {
            Some(output) => Findings { output, ..answer },
            None => answer,
        };
        let (numbered, mistake) = match labels.number_citations(answer.clone(), corpus) {
            Ok(numbered) => (numbered, None),
            Err(mistake) => {
                let known = labels.remove_unknown_marks(&answer, corpus);
                (labels.number_citations(known, corpus).unwrap_or(answer), Some(mistake))
            }
        };
        let numbered = findings::relocate_quotations(numbered, corpus);
        let numbered = Findings { output: citations::split_combined_citations(&numbered.output), ..numbered };
        if numbered.says_absence()
            && let Some(passages) = corpus.and_then(|corpus| self.search_again(&numbered, corpus))
        {
            return Err(passages);
        }
        let unresolved = findings::resolve_findings(&numbered, corpus).err();
        // The lines for statements without marks are found among those that the model has seen.
        let has_seen =
            !labels.is_empty() || corpus.is_some_and(|corpus| !self.read_lines.list_lines(corpus).is_empty());
        if !has_seen && !numbered.says_absence() && findings::lacks_quotations(&numbered, corpus) {
            return Err(UNCITED.to_owned());
        }
        let mistakes: Vec<String> =
            mistake.into_iter().chain(unresolved.clone()).chain(self.find_repetition(&numbered)).collect();
        if mistakes.is_empty() {
            return Ok(numbered);
        }
        if self.corrections.take() {
            return Err(mistakes.join(" "));
        }
        match unresolved {
            None => Ok(numbered),
            Some(mistake) => {
                let rest = findings::remove_unverified_quotations(&numbered, corpus);
                let rest = rest.filter(|rest| findings::resolve_findings(rest, corpus).is_ok());
                rest.ok_or(mistake)
            }
        }
    }

    fn find_repetition(&self, answer: &Findings) -> Option<String> {
        let task = find_repeated_result(&answer.output, &self.inputs)?;
        Some(format!("Your answer repeats the result of {task}. Answer the objective of your own task."))
    }

    /// Searches with other words than the first time. Returns the passages that are new, for the model to read, once.
    fn search_again(&self, answer: &Findings, corpus: &Corpus) -> Option<String> {
        if self.has_searched_again.swap(true, Ordering::Relaxed) {
            return None;
        }
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = labels.shown_lines(corpus).into_iter().chain(self.read_lines.list_lines(corpus));
        let known: BTreeSet<(&str, usize)> =
            lines.map(|(document, line)| (document.path.as_str(), line)).collect();
        let words = answer.other_words.as_deref().filter(|words| !words.trim().is_empty());
        let query = words.unwrap_or(self.objective).replace('"', " ");
        let found = corpus.search(&query, known.len() + MAX_SECOND_PASSAGES, MAX_SECOND_PASSAGES);
        let new = found.hits.into_iter().filter(|hit| {
            (hit.first_line..=hit.last_line).any(|line| !known.contains(&(hit.document.path.as_str(), line)))
        });
        let shown: Vec<ShownPassage<'_>> = new
            .take(MAX_SECOND_PASSAGES)
            .map(|hit| ShownPassage {
                document: hit.document,
                first_line: hit.first_line,
                last_line: hit.last_line,
            })
            .collect();
        let passages = labels.append_passages(&shown, MAX_SECOND_CHARACTERS);
        (!passages.is_empty()).then(|| {
            format!(
                "It says that the sources do not answer. A second search with other words found these passages; answer \
                 from them if they do, or set 'answered' to false again.\n\n{passages}"
            )
        })
    }

    fn line_sources(&self, answer: &Findings, corpus: Corpus) -> LineSources {
        let lines = self.labels().shown_lines(&corpus).into_iter().chain(self.read_lines.list_lines(&corpus));
        let read = lines.map(|(document, _)| document.path.clone()).collect();
        let marks = (1..).zip(&answer.quotations).filter_map(|(number, passage): (usize, &Passage)| {
            let document = corpus.find_document(&passage.document)?;
            let source = document.path.clone();
            let Passage { first_line, last_line, .. } = *passage;
            Some((number.to_string(), vec![CitedLines::Lines(SourceLines { source, first_line, last_line })]))
        });
        LineSources { marks: marks.collect(), read, corpus }
    }
}

impl AnswerCheck<Findings> for FindingsChecker<'_> {
    fn check(&self, answer: Findings) -> Result<Findings, String> {
        self.check_findings(answer, (self.sources)().as_ref())
    }

    fn begin_verification(&self, answer: &Findings) -> Option<Verification> {
        let corpus = (self.sources)().filter(Corpus::has_sources)?;
        let sources = self.line_sources(answer, corpus);
        let is_mark = |text: &str| sources.marks.contains_key(text);
        let verification = Verification::new(&answer.output, &is_mark, self.objective, &sources, []);
        // No line can support a statement about an absence.
        Some(if answer.says_absence() { verification.without_open_statements() } else { verification })
    }

    fn conclude(&self, answer: Findings, statements: Vec<VerifiedStatement>) -> Result<Findings, String> {
        if let Some(correction) =
            correct_statements(&statements, self.policy).filter(|_| self.corrections.take())
        {
            return Err(correction);
        }
        Ok(findings::cite_found_lines(answer, statements))
    }
}

/// Checks reports.
pub(crate) struct ReportChecker<'a> {
    objective: &'a str,
    results: &'a NumberedResults,
    /// The sources of the results, if they can be read.
    corpus: Option<&'a Corpus>,
    policy: VerificationPolicy,
    corrections: CorrectionCount,
}

impl<'a> ReportChecker<'a> {
    pub fn new(
        objective: &'a str,
        results: &'a NumberedResults,
        corpus: Option<&'a Corpus>,
        policy: VerificationPolicy,
    ) -> Self {
        Self { objective, results, corpus, policy, corrections: CorrectionCount::default() }
    }
}

impl AnswerCheck<Report> for ReportChecker<'_> {
    fn check(&self, report: Report) -> Result<Report, String> {
        let Err(mistake) = self.results.resolve_citations(&report) else { return Ok(report) };
        if self.corrections.take() {
            return Err(mistake);
        }
        let mended = self.results.mend_citations(&report);
        self.results.resolve_citations(&mended).map(|_| mended)
    }

    fn begin_verification(&self, report: &Report) -> Option<Verification> {
        let corpus = self.corpus.filter(|corpus| corpus.has_sources())?;
        let marks = self.results.cited_lines(corpus);
        let sources = LineSources { marks, read: Vec::new(), corpus: corpus.clone() };
        let is_mark = |text: &str| self.results.knows_mark(text);
        let known = self.results.numbered_results().iter().flat_map(|(_, result)| result.statements.clone());
        let text = super::remove_source_list(&report.output);
        let verification = Verification::new(text, &is_mark, self.objective, &sources, known);
        Some(if report.answered == Some(false) {
            verification.without_open_statements()
        } else {
            verification
        })
    }

    fn conclude(&self, report: Report, statements: Vec<VerifiedStatement>) -> Result<Report, String> {
        if let Some(correction) =
            correct_statements(&statements, self.policy).filter(|_| self.corrections.take())
        {
            return Err(correction);
        }
        Ok(Report { statements, ..report })
    }
}

/// The correction for statements that the sources refute: by a figure or a quotation that none of them has, or by saying the
/// opposite. If statements must be supported, those that the sources do not say are mistakes too.
fn correct_statements(statements: &[VerifiedStatement], policy: VerificationPolicy) -> Option<String> {
    let is_mistake = |one: &&VerifiedStatement| match policy {
        VerificationPolicy::Mark | VerificationPolicy::Remove => one.is_refuted(),
        VerificationPolicy::Require => one.is_open() && one.verdict != StatementVerdict::Unverified,
    };
    let refuted: Vec<String> = statements
        .iter()
        .filter(is_mistake)
        .take(MAX_NAMED)
        .map(|one| format!("“{}”: {}", one.text, one.reason))
        .collect();
    (!refuted.is_empty()).then(|| {
        format!(
            "The sources do not say this: {} Correct these statements or leave them out.",
            refuted.join(" ")
        )
    })
}
