//! The commands that steer a run: `POST /runs/{run}/cancel` and its siblings, as a table.
//!
//! Each appends a command to the log. With `wait=accepted` the reply comes as soon as the log has it; with `wait=decided`, the
//! default, when a supervisor has decided on it. A refusal is a problem with its reason.
//!
//! # Invariants
//!
//! - I165: A command over HTTP is applied once per idempotency key, which belongs to its operation and what that acts on, and a
//!   refusal has the supervisor's reason.
//!   (`tests/tests/gateway.rs::commands_are_decided_once_and_refusals_have_a_reason`,
//!   `tests/tests/gateway.rs::key_belongs_to_an_operation_a_resource_and_a_request`)

mod bodies;

use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use millrace_client::{AppliedMessage, MessageDecision, append_run_message, find_obstacle};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, RunCommand};
use millrace_protocol::subject::Topic;
use millrace_protocol::token::Scope;
use millrace_views::CommandOutcome;
use millrace_views::changes::describe_changes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::IntoParams;
use utoipa::openapi::Paths;
use utoipa::openapi::path::{ParameterIn, PathItem};
use utoipa_axum::router::UtoipaMethodRouter;

use crate::access::{Access, ApiRoutes};
use crate::extract::{IdempotencyKey, Path, Query, parse_json, read_json};
use crate::idempotency::{EarlyReply, RepeatableRequest};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::resources::Written;
use crate::state::{json_response, resume_command};
use crate::waiting::await_decision;

pub use bodies::{AddBody, CancelBody, EditBody, MessageBody, ResumeBody, RetryBody, SignalBody, Steering};

/// The longest wait for a decision in seconds.
const MAX_WAIT: u64 = 60;
/// The wait in seconds if the client does not choose one.
const DEFAULT_WAIT: u64 = 10;

struct SteeringRoute {
    method: &'static str,
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    body: RouteBody,
}

/// The body of a command's request, with the name of its schema.
enum RouteBody {
    None(fn() -> Steering),
    Optional(&'static str, fn(&[u8]) -> Result<Steering, Problem>),
    Required(&'static str, fn(&[u8]) -> Result<Steering, Problem>),
}

const fn post(
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    body: RouteBody,
) -> SteeringRoute {
    SteeringRoute { method: "post", path, name, summary, body }
}

static ROUTES: [SteeringRoute; 10] = [
    post(
        "/runs/{run}/cancel",
        "cancel_run",
        "Cancel a run.",
        RouteBody::Optional("CancelBody", |body| parse_json(body).map(Steering::CancelRun)),
    ),
    post(
        "/runs/{run}/pause",
        "pause_run",
        "Pause a run: running tasks finish, no new ones start.",
        RouteBody::None(|| Steering::PauseRun),
    ),
    post(
        "/runs/{run}/interrupt",
        "interrupt_run",
        "Interrupt a run: work in flight is returned, and nothing runs until it is resumed.",
        RouteBody::None(|| Steering::InterruptRun),
    ),
    post(
        "/runs/{run}/resume",
        "resume_run",
        "Resume a run that is paused, interrupted, or has ended and can be resumed.",
        RouteBody::Optional("ResumeBody", |body| parse_json(body).map(Steering::ResumeRun)),
    ),
    post(
        "/runs/{run}/message",
        "send_message",
        "Send a message to the planner of a run.",
        RouteBody::Required("MessageBody", |body| parse_json(body).map(Steering::SendMessage)),
    ),
    post(
        "/runs/{run}/signal",
        "signal_event",
        "Signal an event to a run, which ends the waits for it.",
        RouteBody::Required("SignalBody", |body| parse_json(body).map(Steering::SignalEvent)),
    ),
    post(
        "/runs/{run}/tasks",
        "add_tasks",
        "Add tasks to a run.",
        RouteBody::Required("AddBody", |body| parse_json(body).map(Steering::AddTasks)),
    ),
    SteeringRoute {
        method: "patch",
        path: "/runs/{run}/tasks/{task}",
        name: "edit_task",
        summary: "Change a task that no worker has claimed yet.",
        body: RouteBody::Required("EditBody", |body| parse_json(body).map(Steering::EditTask)),
    },
    post(
        "/runs/{run}/tasks/{task}/cancel",
        "cancel_task",
        "Cancel a task and its dependents.",
        RouteBody::Optional("CancelBody", |body| parse_json(body).map(Steering::CancelTask)),
    ),
    post(
        "/runs/{run}/tasks/{task}/retry",
        "retry_task",
        "Retry a task, with changes if wanted, and the tasks that depend on it.",
        RouteBody::Optional("RetryBody", |body| parse_json(body).map(Steering::RetryTask)),
    ),
];

pub fn routes() -> ApiRoutes {
    ROUTES.iter().fold(ApiRoutes::new(), |routes, route| routes.scoped(Scope::Steer, route.describe()))
}

impl SteeringRoute {
    fn describe(&'static self) -> UtoipaMethodRouter {
        let names = [("run", "The run"), ("task", "The task")].into_iter();
        let names = names.filter(|(name, _)| self.path.contains(&format!("{{{name}}}")));
        let path_parameter = |(name, description)| json!({ "name": name, "in": "path", "description": description, "required": true, "schema": { "type": "string" } });
        let mut parameters: Vec<_> = names.map(path_parameter).collect();
        let query = CommandQuery::into_params(|| Some(ParameterIn::Query));
        parameters.extend(query.iter().map(|parameter| json!(parameter)));
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false, "schema": { "type": ["string", "null"] },
            "description": "A key by which a repetition is recognised",
        }));
        let content = |schema: &str| json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } });
        let mut operation = json!({
            "tags": ["commands"], "summary": self.summary, "operationId": self.name, "parameters": parameters,
            "responses": {
                "200": { "description": "The command was applied", "content": content("AppliedCommand") },
                "202": { "description": "The command is in the log", "content": content("AcceptedCommand") },
            },
        });
        if let RouteBody::Optional(schema, _) | RouteBody::Required(schema, _) = self.body {
            operation["requestBody"] = json!({ "content": content(schema) });
        }
        let item: Result<PathItem, _> = serde_json::from_value(json!({ self.method: operation }));
        let mut paths = Paths::new();
        paths.paths.insert(self.path.to_owned(), item.expect("the description is one of an operation"));
        let method = if self.method == "post" { MethodFilter::POST } else { MethodFilter::PATCH };
        let handler = move |access: Access,
                            Path(place): Path<SteeredPlace>,
                            Query(query): Query<CommandQuery>,
                            key: IdempotencyKey,
                            request: Request| async move {
            let steering = match &self.body {
                RouteBody::None(steering) => steering(),
                RouteBody::Optional(_, parse) => parse(&read_json(request, true).await?)?,
                RouteBody::Required(_, parse) => parse(&read_json(request, false).await?)?,
            };
            steer(&access, (&place.run, place.task.as_deref()), steering, (key, query)).await
        };
        (Vec::new(), paths, on(method, handler))
    }
}

/// The run, and the task if a command is for one.
#[derive(Deserialize)]
struct SteeredPlace {
    run: String,
    task: Option<String>,
}

/// The moment of the reply to a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// The log has the command.
    Accepted,
    /// A supervisor has decided on it.
    #[default]
    Decided,
}

/// The parameters of every command.
#[derive(Debug, Clone, Copy, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CommandQuery {
    /// `accepted` replies as soon as the log has the command, `decided` (default) when a supervisor has decided on it.
    #[param(inline)]
    #[serde(default)]
    pub wait: WaitFor,
    /// The longest wait for the decision in seconds, 10 by default and at most 60.
    pub timeout: Option<u64>,
}

/// The receipt of a command that no supervisor has decided on.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CommandReceipt<'a> {
    /// The command is in the log at `sequence`; a supervisor will decide on it.
    CommandAccepted {
        /// The run.
        run: &'a RunId,
        /// The id of the command.
        command: String,
    },
}

/// Replies to a command that was applied; its events are visible at `sequence`.
async fn reply_to_applied(
    repeatable: RepeatableRequest<'_>,
    run: &RunId,
    AppliedMessage { sequence, events }: AppliedMessage,
) -> ApiResult {
    let outcome = CommandOutcome::applied(run, describe_changes(run, &events), &events);
    repeatable.reply((StatusCode::OK, None), &Written { sequence, outcome }).await
}

/// Appends a command for a run or a task, and waits as the client asks. A command that was applied before has its reply, whatever
/// has become of the run since.
pub async fn steer(
    gateway: &Access,
    (run, task): (&str, Option<&str>),
    steering: Steering,
    (key, query): (IdempotencyKey, CommandQuery),
) -> Result<Response, EarlyReply> {
    let (run, _) = gateway.find_run(run).await?;
    let resource = format!("{run}/{}", task.unwrap_or_default());
    let mut repeatable =
        RepeatableRequest::look_up(gateway, key, (steering.name(), &resource), &steering).await?;
    let state = gateway.read_history(&run, None).await?;
    let plan = state.plan();
    if repeatable.earlier().is_some_and(|(_, id)| plan.run.commands.contains(id)) {
        let applied = AppliedMessage { sequence: state.sequence(), events: Vec::new() };
        return Err(EarlyReply::Repeated(reply_to_applied(repeatable, &run, applied).await?));
    }
    if !steering.is_for(plan) {
        refuse_ended_run(&run, plan)?;
    }
    let control = steering.into_action(gateway, plan, task).await?;
    if let Some(refusal) = find_obstacle(&gateway.bus, &run).await? {
        return Err(repeatable.refuse(Problem::new(ProblemKind::CommandRefused, refusal)).await.into());
    }
    let (_, id) = repeatable.claim(run.clone(), uuid::Uuid::now_v7().simple().to_string()).await?;
    let command = RunCommand { id: id.clone(), by: gateway.caller.name.clone(), control };
    let fact = append_run_message(&gateway.bus, &run, &Topic::Control, (&command, &id)).await?;
    let decision = match query.wait {
        WaitFor::Accepted => None,
        WaitFor::Decided => {
            let timeout = Duration::from_secs(query.timeout.unwrap_or(DEFAULT_WAIT).min(MAX_WAIT));
            tokio::time::timeout(timeout, await_decision(gateway, &run, (fact, &id)))
                .await
                .ok()
                .transpose()?
        }
    };
    let refusal = match decision {
        Some(MessageDecision::Applied(applied)) => {
            return Ok(reply_to_applied(repeatable, &run, applied).await?);
        }
        Some(MessageDecision::Refused(refusal)) => refusal.to_string(),
        Some(MessageDecision::Archived) => format!("run {run} ended before the command"),
        Some(MessageDecision::Interrupted) | None => {
            let outcome = CommandReceipt::CommandAccepted { run: &run, command: id };
            return Ok(json_response(StatusCode::ACCEPTED, &Written { sequence: fact, outcome }));
        }
    };
    Err(repeatable.refuse(Problem::new(ProblemKind::CommandRefused, refusal)).await.into())
}

fn refuse_ended_run(run: &RunId, plan: &Plan) -> Result<(), Problem> {
    let Some(end) = &plan.run.end else { return Ok(()) };
    let advice = match resume_command(run, plan) {
        Some(_) => "resume it first",
        None => "submit a run that follows up on it (the field `after`)",
    };
    Err(Problem::new(ProblemKind::CommandRefused, format!("run {run} has ended ({}); {advice}", end.reason)))
}
