//! The standing criteria: those that apply to every result. Code checks all but one of them, before a model is asked; the
//! last one is asked in addition to the criteria of the task.

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, Source, SourceKind, TaskResult};

use super::checks::{build_criterion_outcome, find_faults, has_nothing_to_check};
use crate::answers::find_repeated_result;
use crate::corpus::Corpus;
use crate::roles::{PRODUCER, RESEARCH, WEB_RESEARCH};

/// Checked before any review.
pub(crate) const NOT_EMPTY: &str = "The result is not empty.";
/// Checked by code.
pub(crate) const CITATIONS: &str =
    "Every citation names a listed source, and every listed source is cited and can be read.";
/// Checked by code.
pub(crate) const QUOTATIONS: &str =
    "Every quotation stands in its source word for word, at the lines it names.";
/// Checked by code, for results other than reports: those repeat what they combine.
pub(crate) const NOT_REPEATED: &str = "The result is not a repetition of a result that it used.";
/// Judged by a model.
pub(crate) const ANSWERS: &str =
    "It answers the objective of the task, or says plainly what its sources do not answer.";

/// The result under review, with what code compares it to.
pub(crate) struct ReviewedResult<'a> {
    pub result: &'a TaskResult,
    /// The capability that produced it.
    pub capability: &'a str,
    pub corpus: Option<&'a Corpus>,
    pub inputs: &'a [(TaskId, TaskResult)],
}

/// Returns the criteria to ask a model about, in order: those of the task that need judgement, and [`ANSWERS`].
pub(crate) fn select_asked_criteria(criteria: &[String]) -> Vec<String> {
    let is_checked = |criterion: &&String| [NOT_EMPTY, CITATIONS, QUOTATIONS].contains(&criterion.as_str());
    let mut asked: Vec<String> =
        criteria.iter().filter(|criterion| !is_checked(criterion)).cloned().collect();
    if asked.iter().all(|criterion| criterion != ANSWERS) {
        asked.push(ANSWERS.to_owned());
    }
    asked
}

/// Returns the outcomes of the criteria that code checks: those that apply to the result, and those that `criteria` name.
pub(crate) fn check_standing_criteria(
    reviewed: &ReviewedResult<'_>,
    criteria: &[String],
) -> Vec<CriterionOutcome> {
    let ReviewedResult { result, capability, corpus, inputs } = reviewed;
    let is_cited_work = [RESEARCH, WEB_RESEARCH, PRODUCER].contains(capability) || !result.sources.is_empty();
    let is_named = |criterion: &str| criteria.iter().any(|named| named == criterion);
    // Without documents of the run there is nothing to compare quotations with.
    let uncompared = || {
        let unread = |source: &Source| Source { kind: SourceKind::Other, ..source.clone() };
        let sources = result.sources.iter().map(unread);
        TaskResult { sources: sources.collect(), quotations: Vec::new(), ..(*result).clone() }
    };
    let without_documents = corpus.is_none().then(uncompared);
    let comparable = without_documents.as_ref().unwrap_or(result);
    let mut outcomes = Vec::new();
    if is_named(NOT_EMPTY) {
        outcomes.push(build_criterion_outcome(NOT_EMPTY, Vec::new()));
    }
    for (criterion, check) in [(CITATIONS, ReviewCheck::Citations), (QUOTATIONS, ReviewCheck::Quotations)] {
        let applies = is_cited_work && !has_nothing_to_check(&check, comparable);
        if applies || is_named(criterion) {
            let faults = if applies { find_faults(&check, comparable, *corpus) } else { Ok(None) };
            let faults = faults.ok().flatten().unwrap_or_default();
            outcomes.push(build_criterion_outcome(criterion, faults));
        }
    }
    if *capability != PRODUCER && !inputs.is_empty() {
        let repeated = find_repeated_result(&result.output, inputs);
        let fault = |task: &TaskId| {
            format!(
                "It repeats the result of {task}. It must answer its own objective, or say what is not answered."
            )
        };
        outcomes.push(build_criterion_outcome(NOT_REPEATED, repeated.map(fault).into_iter().collect()));
    }
    outcomes
}
