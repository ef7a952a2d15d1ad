//! The commands that steer a run: `POST /runs/{run}/cancel` and its siblings.
//!
//! Each appends a command to the log. With `wait=accepted` the reply comes as soon as the log has it; with `wait=decided`, the
//! default, when a supervisor has decided on it. A refusal is a problem with its reason.

mod bodies;
mod command;

use axum::response::{IntoResponse, Response};
use millrace_plan_file::{
    AdditionalTasks, CapabilityMistake, find_capability_mistakes, parse_additional_tasks,
};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{CapabilityRegistry, CommandAction, Edit, Plan};
use millrace_protocol::token::Scope;
use millrace_runtime::Fault;
use millrace_runtime::work::registry;
use utoipa_axum::routes;

use super::submission::parse_budget;
use crate::access::{Access, ApiRoutes};
use crate::extract::{IdempotencyKey, JsonBody, OptionalJsonBody, PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::resume_command;
use command::{CommandQuery, command_id, reply_to_repetition, steer};

pub use bodies::{AddBody, CancelBody, EditBody, MessageBody, ResumeBody, RetryBody, SignalBody};
pub use command::CommandReceipt;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Steer, routes!(cancel_run))
        .scoped(Scope::Steer, routes!(pause_run))
        .scoped(Scope::Steer, routes!(interrupt_run))
        .scoped(Scope::Steer, routes!(resume_run))
        .scoped(Scope::Steer, routes!(send_message))
        .scoped(Scope::Steer, routes!(signal_event))
        .scoped(Scope::Steer, routes!(add_tasks))
        .scoped(Scope::Steer, routes!(edit_task))
        .scoped(Scope::Steer, routes!(cancel_task))
        .scoped(Scope::Steer, routes!(retry_task))
}

/// Cancel a run.
#[utoipa::path(
    post, path = "/runs/{run}/cancel", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/CancelBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn cancel_run(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<CancelBody>,
) -> Result<Response, EarlyReply> {
    let (run, _) = open_run(&gateway, &run, &key).await?;
    Ok(steer(&gateway, &run, CommandAction::CancelRun { reason: body.into_reason() }, query, key).await?)
}

/// Pause a run: running tasks finish, no new ones start.
#[utoipa::path(
    post, path = "/runs/{run}/pause", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn pause_run(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
) -> Result<Response, EarlyReply> {
    let (run, _) = open_run(&gateway, &run, &key).await?;
    Ok(steer(&gateway, &run, CommandAction::Pause, query, key).await?)
}

/// Interrupt a run: work in flight is returned, and nothing runs until it is resumed.
#[utoipa::path(
    post, path = "/runs/{run}/interrupt", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn interrupt_run(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
) -> Result<Response, EarlyReply> {
    let (run, _) = open_run(&gateway, &run, &key).await?;
    Ok(steer(&gateway, &run, CommandAction::Interrupt, query, key).await?)
}

/// Resume a run that is paused, interrupted, or has ended and can be resumed.
#[utoipa::path(
    post, path = "/runs/{run}/resume", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/ResumeBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn resume_run(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<ResumeBody>,
) -> Result<Response, EarlyReply> {
    let (run, plan) = read_plan(&gateway, &run, &key).await?;
    if plan.run.end.as_ref().is_some_and(|end| !end.is_resumable) {
        refuse_ended_run(&run, &plan)?;
    }
    let old = plan.run.start.as_ref().map(|start| start.budget.capabilities.clone()).unwrap_or_default();
    let budget = body.budget.as_ref().map(parse_budget).transpose()?;
    // The budgets of capabilities are replaced as a whole, so those that stay are repeated.
    let budget = budget.map(|mut budget| {
        let changed = std::mem::replace(&mut budget.capabilities, old);
        budget.capabilities.extend(changed);
        budget
    });
    Ok(steer(&gateway, &run, CommandAction::Resume { budget }, query, key).await?)
}

/// Send a message to the planner of a run.
#[utoipa::path(
    post, path = "/runs/{run}/message", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/MessageBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn send_message(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(body): JsonBody<MessageBody>,
) -> Result<Response, EarlyReply> {
    let (run, _) = open_run(&gateway, &run, &key).await?;
    Ok(steer(&gateway, &run, CommandAction::Message { text: body.text }, query, key).await?)
}

/// Signal an event to a run, which ends the waits for it.
#[utoipa::path(
    post, path = "/runs/{run}/signal", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/SignalBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn signal_event(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(SignalBody { name, data }): JsonBody<SignalBody>,
) -> Result<Response, EarlyReply> {
    let (run, _) = open_run(&gateway, &run, &key).await?;
    let data = data.map(|data| data.to_string()).unwrap_or_default();
    Ok(steer(&gateway, &run, CommandAction::Signal { name, data }, query, key).await?)
}

/// Add tasks to a run.
#[utoipa::path(
    post, path = "/runs/{run}/tasks", tag = "commands",
    params(("run" = String, Path, description = "The run"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/AddBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn add_tasks(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(AddBody { tasks }): JsonBody<AddBody>,
) -> Result<Response, EarlyReply> {
    let (run, plan) = editable_run(&gateway, &run, &key).await?;
    let text = serde_json::json!({ "tasks": tasks }).to_string();
    let AdditionalTasks { tasks, positions } = parse_additional_tasks(text.as_bytes(), &plan)
        .map_err(|mistakes| Problem::new(ProblemKind::InvalidRun, mistakes))?;
    if !plan.has_planner() {
        let known = registry::read_capabilities(&gateway.bus).await?;
        let known = CapabilityRegistry::from_descriptions(known.values());
        let mistakes = find_capability_mistakes(&tasks, &positions, &known).into_iter();
        let refused = mistakes.filter_map(|mistake| match mistake {
            CapabilityMistake::Unknown(_) => None,
            CapabilityMistake::Parameters(mistake) => Some(mistake.text),
        });
        let refused: Vec<String> = refused.collect();
        if !refused.is_empty() {
            return Err(Problem::new(ProblemKind::InvalidRun, refused.join("\n")).into());
        }
    }
    Ok(steer(&gateway, &run, CommandAction::Edit(Edit::Add(tasks)), query, key).await?)
}

/// Change a task that no worker has claimed yet.
#[utoipa::path(
    patch, path = "/runs/{run}/tasks/{task}", tag = "commands",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/EditBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn edit_task(
    gateway: Access,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(body): JsonBody<EditBody>,
) -> Result<Response, EarlyReply> {
    let (run, plan) = open_run(&gateway, &run, &key).await?;
    let task = find_task(&plan, &task)?;
    let edit =
        if body.is_final { Edit::MarkFinal { task } } else { Edit::Patch(body.into_patch(task, &plan)?) };
    Ok(steer(&gateway, &run, CommandAction::Edit(edit), query, key).await?)
}

/// Cancel a task and its dependents.
#[utoipa::path(
    post, path = "/runs/{run}/tasks/{task}/cancel", tag = "commands",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/CancelBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn cancel_task(
    gateway: Access,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<CancelBody>,
) -> Result<Response, EarlyReply> {
    let (run, plan) = open_run(&gateway, &run, &key).await?;
    let action = CommandAction::CancelTask { task: find_task(&plan, &task)?, reason: body.into_reason() };
    Ok(steer(&gateway, &run, action, query, key).await?)
}

/// Retry a task and the tasks that depend on it.
#[utoipa::path(
    post, path = "/runs/{run}/tasks/{task}/retry", tag = "commands",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), CommandQuery, ("Idempotency-Key" = Option<String>, Header, description = "A key by which a repetition is recognised")),
    request_body = ref("#/components/schemas/RetryBody"),
    responses(
        (status = 200, description = "The command was applied", body = ref("#/components/schemas/AppliedCommand")),
        (status = 202, description = "The command is in the log", body = ref("#/components/schemas/AcceptedCommand"))
    )
)]
async fn retry_task(
    gateway: Access,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<RetryBody>,
) -> Result<Response, EarlyReply> {
    let (run, plan) = editable_run(&gateway, &run, &key).await?;
    let action = CommandAction::Edit(Edit::Retry { task: find_task(&plan, &task)?, feedback: body.feedback });
    Ok(steer(&gateway, &run, action, query, key).await?)
}

/// The reply to a command before it is appended.
enum EarlyReply {
    /// The command is not possible.
    Problem(Problem),
    /// A command with this key was applied before.
    Applied(Response),
}

impl From<Problem> for EarlyReply {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Fault> for EarlyReply {
    fn from(fault: Fault) -> Self {
        Self::Problem(fault.into())
    }
}

impl IntoResponse for EarlyReply {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => problem.into_response(),
            Self::Applied(response) => response,
        }
    }
}

/// Reads the plan of a run. A command that was applied before has its reply, whatever has become of the run since.
async fn read_plan(gateway: &Access, run: &str, key: &IdempotencyKey) -> Result<(RunId, Plan), EarlyReply> {
    let (run, _) = gateway.find_run(run).await?;
    let state = gateway.read_history(&run, None).await?;
    let id = key.0.as_ref().map(|key| command_id(gateway, &run, key));
    if id.is_some_and(|id| state.history.plan.run.commands.contains(&id)) {
        return Err(EarlyReply::Applied(reply_to_repetition(&run, state.sequence())));
    }
    Ok((run, state.plan().clone()))
}

/// Reads the plan of a run that has not ended, or that a retry or more tasks reopen.
async fn editable_run(
    gateway: &Access,
    run: &str,
    key: &IdempotencyKey,
) -> Result<(RunId, Plan), EarlyReply> {
    let (run, plan) = read_plan(gateway, run, key).await?;
    if !plan.can_be_reopened() {
        refuse_ended_run(&run, &plan)?;
    }
    Ok((run, plan))
}

/// Reads the plan of a run that has not ended.
async fn open_run(gateway: &Access, run: &str, key: &IdempotencyKey) -> Result<(RunId, Plan), EarlyReply> {
    let (run, plan) = read_plan(gateway, run, key).await?;
    refuse_ended_run(&run, &plan)?;
    Ok((run, plan))
}

fn refuse_ended_run(run: &RunId, plan: &Plan) -> Result<(), Problem> {
    let Some(end) = &plan.run.end else { return Ok(()) };
    let advice = match resume_command(run, plan) {
        Some(_) => "resume it first",
        None => "submit a run that follows up on it (the field `after`)",
    };
    Err(Problem::new(ProblemKind::CommandRefused, format!("run {run} has ended ({}); {advice}", end.reason)))
}

/// Finds a task. Before the first decision no task is known; the supervisor then checks the id.
fn find_task(plan: &Plan, id: &str) -> Result<TaskId, Problem> {
    let unknown = || Problem::new(ProblemKind::TaskNotFound, format!("the run has no task {id:?}"));
    let task = TaskId::new(id).map_err(|_| unknown())?;
    match plan.run.start.is_none() || plan.task(&task).is_some() {
        true => Ok(task),
        false => Err(unknown()),
    }
}
