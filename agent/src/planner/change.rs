//! The tools that change the plan. Each call is tried on the draft at once, by the rules, and told what it changed or why
//! it can't be had. A call that is recorded is carried out on the draft once more when the turn is taken up again, so
//! that the draft holds what it held.

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use millrace_protocol::plan::Mode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::drafted::carry_out;
use super::wish::{CancelWish, PatchWish, RetryWish, TaskWish, Wish, slim};
use super::{Turn, told};
use crate::model::{ToolResult, ToolSpec};
use crate::tool::{Call, Output, Tool, ToolError, read_arguments, schema_of};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Tasks {
    /// The tasks; they may depend on each other.
    #[schemars(length(min = 1))]
    tasks: Vec<TaskWish>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetStatus {
    /// The id of the task.
    task: String,
    /// ready or rerun: it runs once more. cancelled: it is not wanted any more.
    status: Status,
    /// Why.
    reason: Option<String>,
}

/// The plan's states by their names alone: the type that the rules have would describe each of them in the tool's schema.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
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
#[serde(deny_unknown_fields)]
struct MarkFinal {
    /// The id of the task.
    task: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Finish {
    /// Why the objective is achieved; or what is lost, and why nothing makes up for it.
    #[schemars(length(min = 1))]
    reason: String,
    /// false to give the run up where nothing can be done any more; true if left out.
    achieved: Option<bool>,
}

type Read = fn(Value) -> Result<Wish, ToolError>;

struct Changing {
    turn: Arc<Turn>,
    spec: ToolSpec,
    read: Read,
}

/// The tools that the turn's mode allows, as far as there is something to use them on.
pub(super) fn tools(turn: &Arc<Turn>) -> Vec<Arc<dyn Tool>> {
    let tool = |name: &str, description: &str, schema: Value, read: Read| -> Arc<dyn Tool> {
        let schema = with_task_id(schema);
        let spec = ToolSpec { name: name.into(), description: description.into(), schema };
        Arc::new(Changing { turn: turn.clone(), spec, read })
    };
    let mut tools = vec![tool("cancel_task", CANCEL, schema_of::<CancelWish>(), |value| {
        Ok(Wish::Cancel(read("cancel_task", value)?))
    })];
    if turn.has_tasks() {
        tools.extend([
            tool("retry_task", RETRY, schema_of::<RetryWish>(), |value| {
                Ok(Wish::Retry(read("retry_task", value)?))
            }),
            tool("set_status", STATUS, schema_of::<SetStatus>(), set_status),
            tool("finish", FINISH, schema_of::<Finish>(), finish),
        ]);
    }
    if turn.mode != Mode::Fixed {
        tools.extend([
            tool("add_task", ADD, schema_of::<TaskWish>(), |value| {
                Ok(Wish::Add(vec![read("add_task", value)?]))
            }),
            tool("add_tasks", ADD_ALL, schema_of::<Tasks>(), |value| {
                let Tasks { tasks } = read("add_tasks", value)?;
                Ok(Wish::Add(tasks))
            }),
            tool("patch_task", PATCH, schema_of::<PatchWish>(), |value| {
                Ok(Wish::Patch(read("patch_task", value)?))
            }),
            tool("mark_final", MARK_FINAL, schema_of::<MarkFinal>(), |value| {
                let MarkFinal { task } = read("mark_final", value)?;
                Ok(Wish::Final(task))
            }),
        ]);
    }
    tools
}

const ADD: &str = "Adds one task to the plan.";
const ADD_ALL: &str = "Adds tasks that may depend on each other: all of them or none.";
const PATCH: &str =
    "Changes a task that waits: its objective, capability, dependencies, criteria or parameters.";
const CANCEL: &str = "Cancels a task that has not ended. What depends on it goes by its own policy.";
const RETRY: &str = "Runs a task once more that failed, was cancelled, waits to try again, or is completed. What was \
                     built on its result is done again too.";
const STATUS: &str = "Sets the status of a task, as far as that is the planner's to say: ready or rerun to run it \
                      once more, cancelled to give it up.";
const MARK_FINAL: &str = "Makes a task the one whose result is the deliverable; no other is then.";
const FINISH: &str = "Says that the objective is achieved: the final task is completed and its result is what was \
                      asked for. Or, with achieved=false, that nothing more can be done.";

/// In tools a task is named by `task_id`, as in those that read results.
fn with_task_id(mut schema: Value) -> Value {
    slim(&mut schema);
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

fn read<A: DeserializeOwned>(tool: &str, mut arguments: Value) -> Result<A, ToolError> {
    if let Some(fields) = arguments.as_object_mut()
        && let Some(task) = fields.remove("task_id")
    {
        fields.insert("task".into(), task);
    }
    read_arguments(tool, arguments)
}

fn set_status(arguments: Value) -> Result<Wish, ToolError> {
    let SetStatus { task, status, reason } = read("set_status", arguments)?;
    let instead = match status {
        Status::Ready | Status::Rerun => return Ok(Wish::Retry(RetryWish { task, feedback: reason })),
        Status::Cancelled => return Ok(Wish::Cancel(CancelWish { task, reason })),
        Status::Completed => {
            "a task is completed when its own result is accepted, and by nothing else; if you can do without it, use \
             cancel_task"
        }
        Status::Failed => "a task fails by its attempts alone; to give it up, use cancel_task",
        Status::NeedsReview => "results go to review by themselves; to have one done anew, use retry_task",
        Status::Running => "tasks that are ready begin by themselves as soon as a worker is free",
        Status::Pending => "a task waits for what it depends on; use patch_task with depends_on",
        Status::Errored => {
            "a task is errored by its attempts alone; use retry_task, patch_task or cancel_task"
        }
    };
    Err(ToolError::Refused(format!("the status of '{task}' is not set: {instead}")))
}

fn finish(arguments: Value) -> Result<Wish, ToolError> {
    let Finish { reason, achieved } = read("finish", arguments)?;
    Ok(if achieved == Some(false) { Wish::GiveUp(reason) } else { Wish::Finish(reason) })
}

impl Changing {
    fn change(&self, arguments: Value) -> Result<String, ToolError> {
        let wish = (self.read)(arguments)?;
        let mut draft = self.turn.draft();
        // What is refused half way leaves nothing behind.
        let mut tried = draft.clone();
        match carry_out(&mut tried, &self.turn.offers, &wish) {
            Ok(None) => Ok(format!("It is so already; the plan has {}.", told::counts(draft.plan()))),
            Ok(Some(events)) => {
                *draft = tried;
                Ok(told::changed(draft.plan(), &events))
            }
            Err(refused) => Err(ToolError::Refused(refused.why)),
        }
    }
}

impl Tool for Changing {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    // It is done before it is first waited for, so that the calls of one reply are carried out in their order.
    fn call<'a>(&'a self, arguments: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let done = self.change(arguments).map(Output::from);
        Box::pin(ready(done))
    }

    fn replayed(&self, arguments: &Value, result: &ToolResult, _: &Call) {
        if !result.is_error {
            drop(self.change(arguments.clone()));
        }
    }
}
