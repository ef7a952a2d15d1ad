//! The tools with which a planner looks closer: all that became of a task's attempts, and the whole of a result. They
//! change nothing.

use std::sync::Arc;

use millrace_protocol::plan::{Attempt, AttemptEnd, Plan, Task};
use millrace_protocol::work::Input;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::kindness::meant;
use super::{Turn, told};
use crate::desk::{SourceError, Sources};
use crate::tool::{Tool, ToolError, head_and_tail, typed};

/// How many characters of a result are shown when nothing is said.
const PAGE: usize = 12_000;
/// The most characters of a result that are shown at once.
const MAX_PAGE: usize = 60_000;
/// The most characters of one text in a report.
const MAX_TEXT: usize = 2_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Report {
    /// The id of the task.
    task_id: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The id of the task.
    task_id: String,
    /// The number of the attempt, from 1; the last that brought a result if left out.
    attempt: Option<u32>,
    /// From which character of the output on; 0 if left out.
    offset: Option<usize>,
    /// The most characters of the output, 500 to 60000; 12000 if left out.
    #[schemars(range(min = 500, max = 60_000))]
    max_chars: Option<usize>,
}

pub(super) fn tools(turn: &Arc<Turn>, sources: &Arc<dyn Sources>) -> Vec<Arc<dyn Tool>> {
    vec![view_qa_report(turn.clone()), get_task_result(turn.clone(), sources.clone())]
}

/// `view_qa_report{task_id}`: what became of each attempt, as JSON.
fn view_qa_report(turn: Arc<Turn>) -> Arc<dyn Tool> {
    typed(
        "view_qa_report",
        "Shows all attempts at a task, as JSON: errors, verdicts with each criterion, reasons and feedback.",
        move |Report { task_id }: Report, _| {
            let report = with_task(&turn, &task_id, report);
            async move { report }
        },
    )
}

/// `get_task_result{task_id, attempt?, offset?, max_chars?}`: a result as JSON, its output page by page.
fn get_task_result(turn: Arc<Turn>, sources: Arc<dyn Sources>) -> Arc<dyn Tool> {
    typed(
        "get_task_result",
        "Reads the result of a task, accepted or not, as JSON: summary, notes, sources, and the output; of a long \
         output a page, with the offset of the next.",
        move |arguments: Get, _| {
            let sources = sources.clone();
            let input = with_task(&turn, &arguments.task_id, |_, task| input(task, arguments.attempt));
            async move {
                let (input, attempt) = input?;
                let read = sources.result(&input).await;
                let result = read.map_err(|error| match error {
                    SourceError::Unavailable(why) => ToolError::Unavailable(why),
                    SourceError::Broken(why) => {
                        let told = format!("the result of {} can't be read", input.task);
                        ToolError::Failed { told, detail: why }
                    }
                })?;
                let length = result.output.chars().count();
                let offset = arguments.offset.unwrap_or(0);
                if offset > 0 && offset >= length {
                    let why = format!("the output has {length} characters, and none from {offset} on");
                    return Err(ToolError::Refused(why));
                }
                let page = arguments.max_chars.unwrap_or(PAGE).min(MAX_PAGE);
                let output: String = result.output.chars().skip(offset).take(page).collect();
                let next = (offset + page < length).then_some(offset + page);
                let sources: Vec<String> = result
                    .sources
                    .iter()
                    .map(|source| format!("{}: {}", source.id, source.location))
                    .collect();
                Ok(json!({
                    "task_id": input.task, "attempt": attempt, "summary": result.summary, "output": output,
                    "next_offset": next, "characters": length, "notes": result.notes, "sources": sources,
                    "quotations": result.quotations.len(),
                    "data": result.data.map(|data| head_and_tail(&data.to_string(), page)),
                })
                .to_string())
            }
        },
    )
}

/// Asks something of a task that a text names.
fn with_task<T>(
    turn: &Turn,
    name: &str,
    ask: impl FnOnce(&Plan, &Task) -> Result<T, ToolError>,
) -> Result<T, ToolError> {
    let draft = turn.draft();
    let plan = draft.plan();
    match meant(plan, name).and_then(|id| plan.task(&id)) {
        Some(task) => ask(plan, task),
        None => Err(ToolError::Refused(told::unknown(plan, name))),
    }
}

fn report(_: &Plan, task: &Task) -> Result<String, ToolError> {
    if task.attempts.is_empty() {
        let why = format!("there is no attempt at task {} yet: it is {}", task.spec.id, task.state);
        return Err(ToolError::Refused(why));
    }
    let told: Vec<Value> = task
        .told
        .iter()
        .map(|(attempt, text)| json!({"from_attempt": attempt, "feedback": cut(text)}))
        .collect();
    Ok(json!({
        "task_id": task.spec.id, "state": task.state, "reason": task.reason,
        "attempts_allowed": task.granted, "attempts": task.attempts.iter().map(attempt).collect::<Vec<_>>(),
        "told": told,
    })
    .to_string())
}

fn attempt(attempt: &Attempt) -> Value {
    let (came_to, text) = match &attempt.end {
        None => ("under way", None),
        Some(AttemptEnd::Finished { summary, .. }) => ("a result", Some(cut(summary))),
        Some(AttemptEnd::Errored(error)) => ("an error", Some(cut(&error.message))),
        Some(AttemptEnd::TimedOut(clock)) => ("a time-out", Some(clock.to_string())),
    };
    let verdict = attempt.verdict.as_ref().map(|(_, verdict)| {
        let criteria: Vec<Value> = verdict
            .criteria
            .iter()
            .map(|one| json!({"criterion": cut(&one.criterion), "met": one.met, "gap": one.gap.as_deref().map(cut)}))
            .collect();
        json!({
            "passed": verdict.passed, "criteria": criteria, "reasoning": cut(&verdict.reasoning),
            "feedback": verdict.feedback.as_deref().map(cut), "confidence": verdict.confidence,
        })
    });
    json!({"attempt": attempt.number, "came_to": came_to, "text": text, "verdict": verdict})
}

fn cut(text: &str) -> String {
    head_and_tail(text, MAX_TEXT)
}

/// The result of an attempt, as the log knows it, and the attempt's number.
fn input(task: &Task, number: Option<u32>) -> Result<(Input, u32), ToolError> {
    let id = &task.spec.id;
    let found =
        task.attempts.iter().rev().filter(|attempt| number.is_none_or(|number| attempt.number == number));
    let result = found.filter_map(|attempt| match attempt.end.as_ref()? {
        AttemptEnd::Finished { at_sequence, summary, .. } => {
            let input = Input {
                task: id.clone(),
                objective: task.spec.objective.clone(),
                capability: task.spec.capability.clone(),
                worker: attempt.worker.clone()?,
                summary: summary.clone(),
                at_sequence: *at_sequence,
            };
            Some((input, attempt.number))
        }
        AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
    });
    result.into_iter().next().ok_or_else(|| {
        let which = number.map_or_else(String::new, |number| format!(" of attempt {number}"));
        let why = format!(
            "task {id} has no result{which}: it is {}; view_qa_report tells of its attempts",
            task.state
        );
        ToolError::Refused(why)
    })
}
