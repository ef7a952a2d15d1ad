//! The tools that change the plan. Each call is applied to the draft at once: it becomes an edit, which the rules accept or refuse,
//! and its result is the changes made or the reason for refusal, with advice. On resume, recorded calls are applied to the draft again,
//! so that it has the same changes.

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use millrace_protocol::plan::{
    Edit, Event, GraphError, OnFailedDependency, PlanDraft, PlanningMode, Refusal, ReviewPolicy, TaskPatch,
    TaskSpec, TaskState,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::normalize::{self, find_capability, remove_empty_texts, resolve_task};

use super::normalize::{
    CancelRequest, ChangeRequest, PatchRequest, RetryRequest, TaskRequest, shorten_schema,
};

use super::{CapabilityOffer, PlanningTurn, messages};

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

/// The maximum number of the answer's own tasks that a refusal names.
const MAX_NAMED: usize = 12;

/// The reason that a change can't be applied.
pub(super) struct ChangeError {
    /// In words, with the alternatives.
    pub why: String,
    /// The edit that the rules refused, if it got that far.
    pub edit: Option<Box<Edit>>,
}

/// Applies a change and returns its events; `None` if no change is needed.
pub(super) fn apply_change(
    draft: &mut PlanDraft,
    offers: &[CapabilityOffer],
    change: &ChangeRequest,
) -> Result<Option<Vec<Event>>, ChangeError> {
    let edit = build_edit(draft, offers, change).map_err(|why| ChangeError { why, edit: None })?;
    let Some(edit) = edit else { return Ok(None) };
    let (edit, end) = split_off_final_mark(draft, edit);
    let mut changed = Vec::new();
    for edit in [Some(edit), end].into_iter().flatten() {
        match draft.apply_edit(edit.clone()) {
            Ok(events) => changed.extend(events),
            Err(refusal) => {
                return Err(ChangeError {
                    why: describe_refusal(draft, &edit, &refusal),
                    edit: Some(Box::new(edit)),
                });
            }
        }
    }
    Ok(Some(changed))
}

/// Splits the final mark off an added task if another task has it: the mark then moves by an edit of its own.
fn split_off_final_mark(draft: &PlanDraft, mut edit: Edit) -> (Edit, Option<Edit>) {
    let Edit::Add(specs) = &mut edit else { return (edit, None) };
    let has_end = draft.plan().tasks().iter().any(|task| task.spec.is_final);
    let mut ends = specs.iter_mut().filter(|spec| spec.is_final);
    let only = ends.next().filter(|_| has_end && ends.next().is_none());
    let end = only.map(|spec| {
        spec.is_final = false;
        Edit::MarkFinal { task: spec.id.clone() }
    });
    (edit, end)
}

fn build_edit(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    change: &ChangeRequest,
) -> Result<Option<Edit>, String> {
    let existing = |name: &str| {
        resolve_task(draft.plan(), name).ok_or_else(|| messages::unknown_task_error(draft.plan(), name))
    };
    Ok(Some(match change {
        ChangeRequest::Add(tasks) => match normalize::build_specs(draft, offers, tasks)? {
            specs if specs.is_empty() => return Ok(None),
            specs => Edit::Add(specs),
        },
        ChangeRequest::Patch(request) => Edit::Patch(build_patch(draft, offers, request)?),
        ChangeRequest::Retry(retry) => {
            let task = existing(&retry.task)?;
            // A retry of a task that it depends on has brought it back.
            let is_pending = draft.plan().task(&task).is_some_and(|task| task.state() == TaskState::Pending);
            if is_pending && draft.edits().iter().any(|edit| matches!(edit, Edit::Retry { .. })) {
                return Ok(None);
            }
            Edit::Retry { task, feedback: retry.feedback.clone(), changes: None }
        }
        ChangeRequest::Cancel(cancel) => {
            let reason = cancel.reason.clone().filter(|reason| !reason.trim().is_empty());
            let reason = reason.unwrap_or_else(|| "the planner no longer needs it".into());
            Edit::Cancel { task: existing(&cancel.task)?, reason }
        }
        ChangeRequest::Final(task) => {
            let task = existing(task)?;
            if draft.plan().task(&task).is_some_and(|task| task.spec.is_final) {
                return Ok(None);
            }
            Edit::MarkFinal { task }
        }
        ChangeRequest::Finish(reason) => Edit::Finish { reason: reason.clone() },
        ChangeRequest::GiveUp(reason) => Edit::GiveUp { reason: reason.clone() },
    }))
}

fn build_patch(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    request: &PatchRequest,
) -> Result<TaskPatch, String> {
    let plan = draft.plan();
    let task =
        resolve_task(plan, &request.task).ok_or_else(|| messages::unknown_task_error(plan, &request.task))?;
    let mut on_failed_dependency: Option<OnFailedDependency> = request.on_failed_dependency;
    let depends_on = match &request.depends_on {
        None => None,
        Some(names) => Some(normalize::resolve_dependencies(plan, &[], names)?),
    };
    // If the planner adds dependencies, the planner decides what to do when one of them is lost.
    if depends_on.is_some() && plan.task(&task).is_some_and(|task| task.spec.depends_on.is_empty()) {
        on_failed_dependency = on_failed_dependency.or(Some(OnFailedDependency::Ask));
    }
    Ok(TaskPatch {
        objective: request.objective.clone(),
        capability: request.capability.as_deref().map(|name| find_capability(offers, name)).transpose()?,
        depends_on,
        parameters: request.parameters.clone(),
        review: request.criteria.as_deref().map(|all| ReviewPolicy::critic(remove_empty_texts(all))),
        on_failed_dependency,
        ..TaskPatch::without_changes(task)
    })
}

/// Words a refusal and adds advice where its own text has none: the ids of the refused tasks are the planner's own, or made
/// from their capabilities, so that the planner may not know them.
fn describe_refusal(draft: &PlanDraft, edit: &Edit, refusal: &Refusal) -> String {
    let advice = match (edit, refusal) {
        (Edit::Add(specs), Refusal::Graph(GraphError::MissingDependency { .. })) => {
            let name = |spec: &TaskSpec| format!("{} ({})", spec.id, spec.capability);
            let new: Vec<String> = specs.iter().take(MAX_NAMED).map(name).collect();
            let (old, own) = match draft.plan().tasks() {
                [] => (String::new(), "your tasks are"),
                _ => (format!("; {}", messages::format_task_list(draft.plan())), "your new ones are"),
            };
            format!("{old}; {own} {}; write their ids in depends_on", new.join(", "))
        }
        (_, refusal) => advice_on(draft, refusal),
    };
    format!("{refusal}{advice}")
}

fn advice_on(draft: &PlanDraft, refusal: &Refusal) -> String {
    match refusal {
        Refusal::Graph(GraphError::MissingDependency { .. }) | Refusal::UnknownTask(_) => {
            format!("; {}", messages::format_task_list(draft.plan()))
        }
        Refusal::Graph(GraphError::TwoFinal(..)) => "; mark only one of them".into(),
        Refusal::Graph(GraphError::Cycle(_)) => "; remove one of these dependencies".into(),
        Refusal::Unusable(why) if why.starts_with("the objective is not achieved") => {
            "; continue, you get another turn when something has ended".into()
        }
        Refusal::WrongState { .. }
        | Refusal::AlreadySubmitted
        | Refusal::NotSubmitted
        | Refusal::RunAlreadyEnded(_)
        | Refusal::NotCurrentAttempt { .. }
        | Refusal::AuthorIsCritic(_)
        | Refusal::NotCurrentTurn { .. }
        | Refusal::NotDue(_)
        | Refusal::AlreadyApplied(_)
        | Refusal::WrongMoment(_)
        | Refusal::Unusable(_)
        | Refusal::Question { .. }
        | Refusal::UnknownCapability { .. }
        | Refusal::WrongParameters { .. }
        | Refusal::FixedPlan { .. }
        | Refusal::TooLarge { .. }
        | Refusal::Graph(
            GraphError::DuplicateTask(_)
            | GraphError::SelfDependency(_)
            | GraphError::DuplicateDependency { .. }
            | GraphError::Empty
            | GraphError::TooManyTasks(_)
            | GraphError::EmptyObjective(_)
            | GraphError::LongObjective { .. }
            | GraphError::Limit { .. }
            | GraphError::ReservedCapability { .. },
        ) => String::new(),
    }
}
