//! The tools that change the plan. Each call is applied to the draft at once, under the rules, and its result is the
//! changes made or the reason for refusal. On resume, recorded calls are applied to the draft again, so that it has the
//! same content as before.

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use millrace_protocol::plan::PlanningMode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::apply::apply_change;
use super::request::{CancelRequest, ChangeRequest, PatchRequest, RetryRequest, TaskRequest, shorten_schema};
use super::{PlanningTurn, messages};
use crate::model::{ToolResult, ToolSpec};
use crate::tool::{Call, Output, Tool, ToolError, read_arguments, schema_of};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Tasks")]
#[serde(deny_unknown_fields)]
struct AddTasksArguments {
    /// The tasks; they may depend on each other.
    #[schemars(length(min = 1))]
    tasks: Vec<TaskRequest>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SetStatus")]
#[serde(deny_unknown_fields)]
struct SetStatusArguments {
    /// The id of the task.
    task: String,
    /// ready or rerun: run it again. cancelled: it is no longer needed.
    status: RequestedTaskStatus,
    /// Why.
    reason: Option<String>,
}

/// The plan's states by name only: the rules' own type would add a description of each to the tool's schema.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[schemars(rename = "Status")]
#[serde(rename_all = "snake_case")]
enum RequestedTaskStatus {
    Pending,
    Ready,
    Running,
    NeedsReview,
    Completed,
    Rerun,
    Errored,
    Failed,
    Cancelled,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "MarkFinal")]
#[serde(deny_unknown_fields)]
struct MarkFinalArguments {
    /// The id of the task.
    task: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Finish")]
#[serde(deny_unknown_fields)]
struct FinishArguments {
    /// Why the objective is achieved; or what is lost, and why nothing can replace it.
    #[schemars(length(min = 1))]
    reason: String,
    /// false to give the run up if nothing more can be done; true by default.
    achieved: Option<bool>,
}

type ParseChangeRequest = fn(Value) -> Result<ChangeRequest, ToolError>;

struct PlanChangeTool {
    turn: Arc<PlanningTurn>,
    spec: ToolSpec,
    read: ParseChangeRequest,
}

/// The tools that the turn's mode allows, without those that have nothing to act on.
pub(super) fn create_plan_change_tools(turn: &Arc<PlanningTurn>) -> Vec<Arc<dyn Tool>> {
    let tool = |name: &str, description: &str, schema: Value, read: ParseChangeRequest| -> Arc<dyn Tool> {
        let schema = with_task_id(schema);
        let spec = ToolSpec { name: name.into(), description: description.into(), schema: schema.into() };
        Arc::new(PlanChangeTool { turn: turn.clone(), spec, read })
    };
    let mut tools = vec![tool("cancel_task", CANCEL, schema_of::<CancelRequest>(), |value| {
        Ok(ChangeRequest::Cancel(parse_arguments_with_task_id("cancel_task", value)?))
    })];
    if turn.has_planned_tasks() {
        tools.extend([
            tool("retry_task", RETRY, schema_of::<RetryRequest>(), |value| {
                Ok(ChangeRequest::Retry(parse_arguments_with_task_id("retry_task", value)?))
            }),
            tool("set_status", STATUS, schema_of::<SetStatusArguments>(), parse_set_status),
            tool("finish", FINISH, schema_of::<FinishArguments>(), parse_finish),
        ]);
    }
    if turn.mode != PlanningMode::Fixed {
        tools.extend([
            tool("add_task", ADD, schema_of::<TaskRequest>(), |value| {
                Ok(ChangeRequest::Add(vec![parse_arguments_with_task_id("add_task", value)?]))
            }),
            tool("add_tasks", ADD_ALL, schema_of::<AddTasksArguments>(), |value| {
                let AddTasksArguments { tasks } = parse_arguments_with_task_id("add_tasks", value)?;
                Ok(ChangeRequest::Add(tasks))
            }),
            tool("patch_task", PATCH, schema_of::<PatchRequest>(), |value| {
                Ok(ChangeRequest::Patch(parse_arguments_with_task_id("patch_task", value)?))
            }),
            tool("mark_final", MARK_FINAL, schema_of::<MarkFinalArguments>(), |value| {
                let MarkFinalArguments { task } = parse_arguments_with_task_id("mark_final", value)?;
                Ok(ChangeRequest::Final(task))
            }),
        ]);
    }
    tools
}

const ADD: &str = "Adds one task to the plan.";
const ADD_ALL: &str = "Adds several tasks, which may depend on each other: all of them or none.";
const PATCH: &str =
    "Changes a waiting task: its objective, capability, dependencies, criteria or parameters.";
const CANCEL: &str = "Cancels a task that has not ended. Its dependents follow their own policy.";
const RETRY: &str = "Runs a task again that failed, was cancelled, waits for a retry, or is completed. Tasks that used \
                      its result run again too.";
const STATUS: &str = "Sets the status of a task, as far as a planner may: ready or rerun to run it again, cancelled to \
                       give it up.";
const MARK_FINAL: &str = "Marks a task as the one whose result is the deliverable, instead of any other.";
const FINISH: &str = "Declares the objective achieved: the final task is completed and its result is what was asked \
                       for. Or, with achieved=false, that nothing more can be done.";

/// Renames the field `task` to `task_id`, the name that the tools for reading results use.
fn with_task_id(mut schema: Value) -> Value {
    shorten_schema(&mut schema);
    if let Some(properties) = schema["properties"].as_object_mut() {
        let renamed = std::mem::take(properties)
            .into_iter()
            .map(|(name, field)| if name == "task" { ("task_id".to_owned(), field) } else { (name, field) });
        *properties = renamed.collect();
    }
    for name in schema["required"].as_array_mut().into_iter().flatten().filter(|name| *name == "task") {
        *name = "task_id".into();
    }
    schema
}

fn parse_arguments_with_task_id<A: DeserializeOwned>(
    tool: &str,
    mut arguments: Value,
) -> Result<A, ToolError> {
    if let Some(fields) = arguments.as_object_mut()
        && let Some(task) = fields.remove("task_id")
    {
        fields.insert("task".into(), task);
    }
    read_arguments(tool, arguments)
}

fn parse_set_status(arguments: Value) -> Result<ChangeRequest, ToolError> {
    let SetStatusArguments { task, status, reason } = parse_arguments_with_task_id("set_status", arguments)?;
    let advice = match status {
        RequestedTaskStatus::Ready | RequestedTaskStatus::Rerun => {
            return Ok(ChangeRequest::Retry(RetryRequest { task, feedback: reason }));
        }
        RequestedTaskStatus::Cancelled => return Ok(ChangeRequest::Cancel(CancelRequest { task, reason })),
        RequestedTaskStatus::Completed => {
            "a task is completed only when its own result is accepted; if you do not need it, use \
             cancel_task"
        }
        RequestedTaskStatus::Failed => {
            "a task fails only through its attempts; to give it up, use cancel_task"
        }
        RequestedTaskStatus::NeedsReview => {
            "results are reviewed automatically; to run a task again, use retry_task"
        }
        RequestedTaskStatus::Running => "ready tasks start automatically as soon as a worker is free",
        RequestedTaskStatus::Pending => "a task waits for its dependencies; use patch_task with depends_on",
        RequestedTaskStatus::Errored => {
            "a task is errored only through its attempts; use retry_task, patch_task or cancel_task"
        }
    };
    Err(ToolError::Refused(format!("the status of '{task}' was not set: {advice}")))
}

fn parse_finish(arguments: Value) -> Result<ChangeRequest, ToolError> {
    let FinishArguments { reason, achieved } = parse_arguments_with_task_id("finish", arguments)?;
    Ok(if achieved == Some(false) { ChangeRequest::GiveUp(reason) } else { ChangeRequest::Finish(reason) })
}

impl PlanChangeTool {
    fn apply_change_request(&self, arguments: Value) -> Result<String, ToolError> {
        let change = (self.read)(arguments)?;
        let mut draft = self.turn.lock_draft();
        // Applied to a copy, so that a refusal half way changes nothing.
        let mut changed = draft.clone();
        match apply_change(&mut changed, &self.turn.offers, &change) {
            Ok(None) => Ok(format!(
                "No change was needed; the plan has {}.",
                messages::count_tasks_by_state(draft.plan())
            )),
            Ok(Some(events)) => {
                *draft = changed;
                Ok(messages::describe_edit(draft.plan(), &events))
            }
            Err(error) => Err(ToolError::Refused(error.why)),
        }
    }
}

impl Tool for PlanChangeTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    // Runs before the future is first polled, so that the calls of one reply are applied in order.
    fn call<'a>(&'a self, arguments: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let done = self.apply_change_request(arguments).map(Output::from);
        Box::pin(ready(done))
    }

    fn on_replay(&self, arguments: &Value, result: &ToolResult, _: &Call) {
        if !result.is_error {
            drop(self.apply_change_request(arguments.clone()));
        }
    }
}
