//! The commands that steer a run: `POST /runs/{run}/cancel` and its siblings.
//!
//! Each appends a command to the log. With `wait=accepted` the reply comes as soon as the log has it; with `wait=decided`, the
//! default, when a supervisor has decided on it. A refusal is a problem with its reason.

mod bodies;
mod command;

use axum::response::Response;
use millrace_client::AppliedMessage;
use millrace_plan_file::{
    AdditionalTasks, CapabilityMistake, find_capability_mistakes, parse_additional_tasks,
};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CapabilityRegistry, CommandAction, Edit, Plan};
use millrace_protocol::token::Scope;
use millrace_runtime::work::registry;
use serde::Serialize;
use utoipa_axum::routes;

use super::submission::parse_budget;
use crate::access::{Access, ApiRoutes};
use crate::extract::{IdempotencyKey, JsonBody, OptionalJsonBody, PathParts, QueryParts};
use crate::idempotency::{EarlyReply, RepeatableRequest};
use crate::problem::{Problem, ProblemKind};
use crate::state::{find_task, resume_command};
use command::{CommandQuery, reply_to_applied, steer};

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
    let (run, _, repeatable) = open_run(&gateway, (&run, None), ("cancel_run", key), &body).await?;
    Ok(steer(&gateway, &run, CommandAction::CancelRun { reason: body.into_reason() }, query, repeatable)
        .await?)
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
    let (run, _, repeatable) = open_run(&gateway, (&run, None), ("pause_run", key), &()).await?;
    Ok(steer(&gateway, &run, CommandAction::Pause, query, repeatable).await?)
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
    let (run, _, repeatable) = open_run(&gateway, (&run, None), ("interrupt_run", key), &()).await?;
    Ok(steer(&gateway, &run, CommandAction::Interrupt, query, repeatable).await?)
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
    let (run, plan, repeatable) = read_plan(&gateway, (&run, None), ("resume_run", key), &body).await?;
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
    Ok(steer(&gateway, &run, CommandAction::Resume { budget }, query, repeatable).await?)
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
    let (run, _, repeatable) = open_run(&gateway, (&run, None), ("send_message", key), &body).await?;
    Ok(steer(&gateway, &run, CommandAction::Message { text: body.text }, query, repeatable).await?)
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
    JsonBody(body): JsonBody<SignalBody>,
) -> Result<Response, EarlyReply> {
    let (run, _, repeatable) = open_run(&gateway, (&run, None), ("signal_event", key), &body).await?;
    let SignalBody { name, data } = body;
    let data = data.map(|data| data.to_string()).unwrap_or_default();
    Ok(steer(&gateway, &run, CommandAction::Signal { name, data }, query, repeatable).await?)
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
    JsonBody(body): JsonBody<AddBody>,
) -> Result<Response, EarlyReply> {
    let (run, plan, repeatable) = editable_run(&gateway, (&run, None), ("add_tasks", key), &body).await?;
    let text = serde_json::json!({ "tasks": body.tasks }).to_string();
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
    Ok(steer(&gateway, &run, CommandAction::Edit(Edit::Add(tasks)), query, repeatable).await?)
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
    let (run, plan, repeatable) = open_run(&gateway, (&run, Some(&task)), ("edit_task", key), &body).await?;
    let task = find_task(&plan, &task)?;
    let edit =
        if body.is_final { Edit::MarkFinal { task } } else { Edit::Patch(body.into_patch(task, &plan)?) };
    Ok(steer(&gateway, &run, CommandAction::Edit(edit), query, repeatable).await?)
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
    let (run, plan, repeatable) =
        open_run(&gateway, (&run, Some(&task)), ("cancel_task", key), &body).await?;
    let action = CommandAction::CancelTask { task: find_task(&plan, &task)?, reason: body.into_reason() };
    Ok(steer(&gateway, &run, action, query, repeatable).await?)
}

/// Retry a task, with changes if wanted, and the tasks that depend on it.
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
    let (run, plan, repeatable) =
        editable_run(&gateway, (&run, Some(&task)), ("retry_task", key), &body).await?;
    let action = CommandAction::Edit(body.into_edit(find_task(&plan, &task)?, &plan)?);
    Ok(steer(&gateway, &run, action, query, repeatable).await?)
}

/// A run that a command changes, with its plan and the request.
type Steered<'a> = (RunId, Plan, RepeatableRequest<'a>);

/// Reads the plan of a run. A command that was applied before has its reply, whatever has become of the run since.
async fn read_plan<'a>(
    gateway: &'a Access,
    (run, task): (&str, Option<&str>),
    (operation, key): (&str, IdempotencyKey),
    body: &impl Serialize,
) -> Result<Steered<'a>, EarlyReply> {
    let (run, _) = gateway.find_run(run).await?;
    let resource = format!("{run}/{}", task.unwrap_or_default());
    let repeatable = RepeatableRequest::look_up(gateway, key, (operation, &resource), body).await?;
    let state = gateway.read_history(&run, None).await?;
    let commands = &state.history.plan.run.commands;
    if repeatable.earlier().is_some_and(|(_, id)| commands.contains(id)) {
        let applied = AppliedMessage { sequence: state.sequence(), events: Vec::new() };
        return Err(EarlyReply::Repeated(reply_to_applied(repeatable, &run, applied).await?));
    }
    Ok((run, state.plan().clone(), repeatable))
}

/// Reads the plan of a run that has not ended, or that a retry or more tasks reopen.
async fn editable_run<'a>(
    gateway: &'a Access,
    place: (&str, Option<&str>),
    request: (&str, IdempotencyKey),
    body: &impl Serialize,
) -> Result<Steered<'a>, EarlyReply> {
    let (run, plan, repeatable) = read_plan(gateway, place, request, body).await?;
    if !plan.can_be_reopened() {
        refuse_ended_run(&run, &plan)?;
    }
    Ok((run, plan, repeatable))
}

/// Reads the plan of a run that has not ended.
async fn open_run<'a>(
    gateway: &'a Access,
    place: (&str, Option<&str>),
    request: (&str, IdempotencyKey),
    body: &impl Serialize,
) -> Result<Steered<'a>, EarlyReply> {
    let (run, plan, repeatable) = read_plan(gateway, place, request, body).await?;
    refuse_ended_run(&run, &plan)?;
    Ok((run, plan, repeatable))
}

fn refuse_ended_run(run: &RunId, plan: &Plan) -> Result<(), Problem> {
    let Some(end) = &plan.run.end else { return Ok(()) };
    let advice = match resume_command(run, plan) {
        Some(_) => "resume it first",
        None => "submit a run that follows up on it (the field `after`)",
    };
    Err(Problem::new(ProblemKind::CommandRefused, format!("run {run} has ended ({}); {advice}", end.reason)))
}
