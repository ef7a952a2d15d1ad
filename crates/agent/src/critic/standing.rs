//! The standing criteria: those that apply to every result. Code checks all but one of them, before a model is asked; the
//! last one is asked in addition to the criteria of the task.

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, Source, SourceKind, TaskResult, Verdict};

use super::ReviewTask;
use super::checks::{build_criterion_outcome, find_faults, has_nothing_to_check};
use crate::answers::{find_invented_numbers, find_repeated_result};
use crate::citations::has_citations;
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

/// `true` if a small model is not asked about a result that passed the checks of code, because its opinion adds nothing: the
/// result says that its documents have no answer, or it is a finding for another task whose statements are cited, without a
/// number that its quotations do not have. Tasks with criteria of their own are always judged.
pub(crate) fn is_settled_by_code(task: &ReviewTask, is_final: bool) -> bool {
    let ReviewTask { result, criteria, capability, objective, .. } = task;
    if ![RESEARCH, WEB_RESEARCH].contains(&capability.as_str())
        || criteria.iter().any(|criterion| criterion != ANSWERS)
    {
        return false;
    }
    let is_grounded = || {
        let quoted = result.quotations.iter().map(|quotation| quotation.text.as_str());
        let material: Vec<&str> = quoted.chain([objective.as_str()]).collect();
        has_citations(&result.output)
            && !result.quotations.is_empty()
            && find_invented_numbers(&result.output, &material).is_empty()
    };
    !result.is_answered() || (!is_final && is_grounded())
}

/// The verdict on such a result.
pub(crate) fn verdict_without_model(task: &ReviewTask) -> Verdict {
    let criteria =
        task.criteria.iter().map(|criterion| build_criterion_outcome(criterion, Vec::new())).collect();
    let reasoning = match task.result.is_answered() {
        true => "Code found its citations and its numbers in the quotations; it was not judged by a model.",
        false => "It reports that the documents have no answer; it was not judged by a model.",
    };
    Verdict { passed: true, criteria, reasoning: reasoning.into(), ..Verdict::default() }
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
