//! The tools with which a planner inspects tasks: the history of a task's attempts, and full results. They change
//! nothing.

use std::sync::Arc;

use millrace_protocol::plan::{Attempt, AttemptEnd, Plan, Task};
use millrace_protocol::work::InputResult;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::normalize::resolve_task;
use super::{PlanningTurn, messages};
use crate::sources::{OrderInputError, OrderInputs};
use crate::tool::{Tool, ToolError, keep_head_and_tail, tool_from_function};

/// The default page size of a result, in characters.
const PAGE: usize = 12_000;
/// The maximum page size of a result, in characters.
const MAX_PAGE: usize = 60_000;
/// The maximum number of characters of one text in a report.
const MAX_TEXT: usize = 2_000;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ReportArguments")]
#[serde(deny_unknown_fields)]
struct QaReportArguments {
    /// The id of the task.
    task_id: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "GetArguments")]
#[serde(deny_unknown_fields)]
struct TaskResultArguments {
    /// The id of the task.
    task_id: String,
    /// The number of the attempt, from 1; by default the last with a result.
    attempt: Option<u32>,
    /// The first character of the output to return; 0 by default.
    offset: Option<usize>,
    /// The maximum number of characters of the output, 500 to 60000; 12000 by default.
    #[schemars(range(min = 500, max = 60_000))]
    max_chars: Option<usize>,
}

pub(super) fn create_inspection_tools(
    turn: &Arc<PlanningTurn>,
    sources: &Arc<dyn OrderInputs>,
) -> Vec<Arc<dyn Tool>> {
    vec![create_qa_report_tool(turn.clone()), create_task_result_tool(turn.clone(), sources.clone())]
}

/// `view_qa_report{task_id}`: the outcome of each attempt, as JSON.
fn create_qa_report_tool(turn: Arc<PlanningTurn>) -> Arc<dyn Tool> {
    tool_from_function(
        "view_qa_report",
        "Shows all attempts of a task, as JSON: errors, verdicts with each criterion, reasons and feedback.",
        move |QaReportArguments { task_id }: QaReportArguments, _| {
            let report = query_task(&turn, &task_id, render_qa_report);
            async move { report }
        },
    )
}

/// `get_task_result{task_id, attempt?, offset?, max_chars?}`: a result as JSON, its output in pages.
fn create_task_result_tool(turn: Arc<PlanningTurn>, sources: Arc<dyn OrderInputs>) -> Arc<dyn Tool> {
    tool_from_function(
        "get_task_result",
        "Reads the result of a task, accepted or not, as JSON: summary, notes, sources, and the output; a long output in \
         pages, with the offset of the next one.",
        move |arguments: TaskResultArguments, _| {
            let sources = sources.clone();
            let input =
                query_task(&turn, &arguments.task_id, |_, task| find_result_input(task, arguments.attempt));
            async move {
                let (input, attempt) = input?;
                let read = sources.read_result(&input).await;
                let result = read.map_err(|error| match error {
                    OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
                    OrderInputError::Broken(why) => {
                        let message = format!("the result of {} can't be read", input.task);
                        ToolError::Failed { message, detail: why }
                    }
                })?;
                let length = result.output.chars().count();
                let offset = arguments.offset.unwrap_or(0);
                if offset > 0 && offset >= length {
                    let why = format!("the output has {length} characters; offset {offset} is past its end");
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
                    "data": result.data.map(|data| keep_head_and_tail(&data.to_string(), page)),
                })
                .to_string())
            }
        },
    )
}

/// Calls `ask` with the task that a name refers to.
fn query_task<T>(
    turn: &PlanningTurn,
    name: &str,
    ask: impl FnOnce(&Plan, &Task) -> Result<T, ToolError>,
) -> Result<T, ToolError> {
    let draft = turn.lock_draft();
    let plan = draft.plan();
    match resolve_task(plan, name).and_then(|id| plan.task(&id)) {
        Some(task) => ask(plan, task),
        None => Err(ToolError::Refused(messages::unknown_task_error(plan, name))),
    }
}

fn render_qa_report(_: &Plan, task: &Task) -> Result<String, ToolError> {
    if task.attempts.is_empty() {
        let why = format!("task {} has no attempt yet: it is {}", task.spec.id, task.state());
        return Err(ToolError::Refused(why));
    }
    let feedback: Vec<Value> = task
        .instructions
        .iter()
        .map(|(attempt, text)| json!({"from_attempt": attempt, "feedback": shorten_text(text)}))
        .collect();
    Ok(json!({
        "task_id": task.spec.id, "state": task.state(), "reason": task.end_reason(),
        "attempts_allowed": task.granted, "attempts": task.attempts.iter().map(attempt_to_json).collect::<Vec<_>>(),
        "feedback": feedback,
    })
    .to_string())
}

fn attempt_to_json(attempt: &Attempt) -> Value {
    let (outcome, text) = match &attempt.end {
        None => ("running", None),
        Some(AttemptEnd::Finished { summary, .. }) => ("result", Some(shorten_text(summary))),
        Some(AttemptEnd::Errored(error)) => ("error", Some(shorten_text(&error.message))),
        Some(AttemptEnd::TimedOut(clock)) => ("timeout", Some(clock.to_string())),
    };
    let verdict = attempt.verdict().map(|(_, verdict)| {
        let criteria: Vec<Value> = verdict
            .criteria
            .iter()
            .map(|one| json!({"criterion": shorten_text(&one.criterion), "met": one.met, "gap": one.gap.as_deref().map(shorten_text)}))
            .collect();
        json!({
            "passed": verdict.passed, "criteria": criteria, "reasoning": shorten_text(&verdict.reasoning),
            "feedback": verdict.feedback.as_deref().map(shorten_text), "confidence": verdict.confidence,
        })
    });
    json!({"attempt": attempt.number, "outcome": outcome, "text": text, "verdict": verdict})
}

fn shorten_text(text: &str) -> String {
    keep_head_and_tail(text, MAX_TEXT)
}

/// The result of an attempt as recorded in the log, and the attempt's number.
fn find_result_input(task: &Task, number: Option<u32>) -> Result<(InputResult, u32), ToolError> {
    let id = &task.spec.id;
    let attempts =
        task.attempts.iter().rev().filter(|attempt| number.is_none_or(|number| attempt.number == number));
    let result = attempts.filter_map(|attempt| match attempt.end.as_ref()? {
        AttemptEnd::Finished { at_sequence, summary, .. } => {
            let input = InputResult {
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
            "task {id} has no result{which}: it is {}; view_qa_report shows its attempts",
            task.state()
        );
        ToolError::Refused(why)
    })
}
