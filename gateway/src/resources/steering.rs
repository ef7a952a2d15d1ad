//! The commands that steer a run: `POST /runs/{run}/cancel` and its siblings.
//!
//! Each appends a command to the log. With `wait=accepted` the reply comes as soon as the log has it; with `wait=decided`, the
//! default, when a supervisor has decided on it. A refusal is a problem with its reason.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use millrace_client::{
    AppliedMessage, MessageDecision, Patience, append_run_message, await_message_decision,
};
use millrace_plan_file::{
    AdditionalTasks, CapabilityMistake, find_capability_mistakes, parse_additional_tasks, parse_not_before,
    parse_on_failed_dependency, parse_review, parse_start_event,
};
use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{
    CapabilityRegistry, CommandAction, Edit, Plan, RunCommand, RunEnd, TaskLimits, TaskPatch,
};
use millrace_protocol::subject::Topic;
use millrace_runtime::duration::parse_duration;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::work::registry;
use millrace_views::CommandOutcome;
use millrace_views::changes::describe_changes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Written;
use super::submission::parse_budget;
use crate::extract::{IdempotencyKey, JsonBody, OptionalJsonBody, PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, SharedGateway, json_response, resume_command};

/// The longest wait for a decision in seconds.
const MAX_WAIT: u64 = 60;
/// The wait in seconds if the client does not choose one.
const DEFAULT_WAIT: u64 = 10;

/// The routes.
pub fn routes() -> OpenApiRouter<SharedGateway> {
    OpenApiRouter::new()
        .routes(routes!(cancel_run))
        .routes(routes!(pause_run))
        .routes(routes!(interrupt_run))
        .routes(routes!(resume_run))
        .routes(routes!(send_message))
        .routes(routes!(signal_event))
        .routes(routes!(add_tasks))
        .routes(routes!(edit_task))
        .routes(routes!(cancel_task))
        .routes(routes!(retry_task))
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
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
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

/// The body of a cancellation.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CancelBody {
    /// The reason; recorded in the log.
    reason: Option<String>,
}

impl CancelBody {
    fn into_reason(self) -> String {
        self.reason.unwrap_or_else(|| "cancelled by the user".into())
    }
}

/// The body of a resumption.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeBody {
    /// New total limits, as in a plan file, such as `{"tokens": "400k"}`; the others stay.
    budget: Option<Value>,
}

/// The body of a message to the planner.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageBody {
    /// The message.
    text: String,
}

/// The body of a signal.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalBody {
    /// The name of the event.
    name: String,
    /// The data of the event, which the attempt that waits for it receives.
    #[serde(default)]
    data: Option<Value>,
}

/// The body of a retry.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBody {
    /// Feedback for the next attempt.
    feedback: Option<String>,
}

/// Tasks to add.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    /// The tasks, as in a plan file. Either all are added or none; they may depend on tasks of the run.
    tasks: Value,
}

/// Changes of a task that no worker has claimed yet. Fields that are absent stay as they are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EditBody {
    /// The objective.
    objective: Option<String>,
    /// The capability.
    capability: Option<Capability>,
    /// The complete list of its dependencies.
    depends_on: Option<Vec<TaskId>>,
    /// Parameters to set; `null` removes one, the others stay.
    parameters: BTreeMap<String, Value>,
    /// The review of its result, as in a plan file.
    review: Option<Value>,
    /// The maximum number of attempts.
    max_attempts: Option<u32>,
    /// The maximum run time of an attempt, such as `15m`.
    run_time: Option<String>,
    /// The policy if a task it depends on fails or is cancelled: `cancel`, `skip` or `ask`.
    on_failed_dependency: Option<String>,
    /// The time before which it does not start, or a duration after the start of the run; `none` removes it.
    not_before: Option<String>,
    /// The event without which it does not start, as in a plan file; `none` removes it.
    wait_for_event: Option<Value>,
    /// `true` makes its result the deliverable; no other change is possible then.
    #[serde(rename = "final")]
    is_final: bool,
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<CancelBody>,
) -> Result<Response, Problem> {
    let (run, _) = open_run(&gateway, &run).await?;
    steer(&gateway, &run, CommandAction::CancelRun { reason: body.into_reason() }, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
) -> Result<Response, Problem> {
    let (run, _) = open_run(&gateway, &run).await?;
    steer(&gateway, &run, CommandAction::Pause, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
) -> Result<Response, Problem> {
    let (run, _) = open_run(&gateway, &run).await?;
    steer(&gateway, &run, CommandAction::Interrupt, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<ResumeBody>,
) -> Result<Response, Problem> {
    let (run, plan) = read_plan(&gateway, &run).await?;
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
    steer(&gateway, &run, CommandAction::Resume { budget }, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(body): JsonBody<MessageBody>,
) -> Result<Response, Problem> {
    let (run, _) = open_run(&gateway, &run).await?;
    steer(&gateway, &run, CommandAction::Message { text: body.text }, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(SignalBody { name, data }): JsonBody<SignalBody>,
) -> Result<Response, Problem> {
    let (run, _) = open_run(&gateway, &run).await?;
    let data = data.map(|data| data.to_string()).unwrap_or_default();
    steer(&gateway, &run, CommandAction::Signal { name, data }, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(AddBody { tasks }): JsonBody<AddBody>,
) -> Result<Response, Problem> {
    let (run, plan) = editable_run(&gateway, &run).await?;
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
            return Err(Problem::new(ProblemKind::InvalidRun, refused.join("\n")));
        }
    }
    steer(&gateway, &run, CommandAction::Edit(Edit::Add(tasks)), query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    JsonBody(body): JsonBody<EditBody>,
) -> Result<Response, Problem> {
    let (run, plan) = open_run(&gateway, &run).await?;
    let task = find_task(&plan, &task)?;
    let edit =
        if body.is_final { Edit::MarkFinal { task } } else { Edit::Patch(body.into_patch(task, &plan)?) };
    steer(&gateway, &run, CommandAction::Edit(edit), query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<CancelBody>,
) -> Result<Response, Problem> {
    let (run, plan) = open_run(&gateway, &run).await?;
    let action = CommandAction::CancelTask { task: find_task(&plan, &task)?, reason: body.into_reason() };
    steer(&gateway, &run, action, query, key).await
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
    State(gateway): State<SharedGateway>,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<CommandQuery>,
    key: IdempotencyKey,
    OptionalJsonBody(body): OptionalJsonBody<RetryBody>,
) -> Result<Response, Problem> {
    let (run, plan) = editable_run(&gateway, &run).await?;
    let action = CommandAction::Edit(Edit::Retry { task: find_task(&plan, &task)?, feedback: body.feedback });
    steer(&gateway, &run, action, query, key).await
}

impl EditBody {
    fn into_patch(self, task: TaskId, plan: &Plan) -> Result<TaskPatch, Problem> {
        let mistake = |pointer: &str, message: String| {
            Problem::new(ProblemKind::InvalidRequest, format!("{pointer}: {message}"))
        };
        let text_of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let run_time = self.run_time.as_deref().map(parse_duration).transpose();
        let run_time = run_time.map_err(|error| mistake("run_time", error.to_string()))?;
        let old = plan.task(&task).map(|task| task.spec.limits.clone()).unwrap_or_default();
        let limits = (self.max_attempts.is_some() || run_time.is_some()).then(|| TaskLimits {
            max_attempts: self.max_attempts.unwrap_or(old.max_attempts),
            run_time: run_time.unwrap_or(old.run_time),
            ..old
        });
        let review = self.review.as_ref().map(|review| parse_review(&text_of(review))).transpose();
        let policy = self.on_failed_dependency.as_deref().map(parse_on_failed_dependency).transpose();
        let not_before = self.not_before.as_deref().map(parse_not_before).transpose();
        let event = self.wait_for_event.as_ref().map(|event| parse_start_event(&text_of(event))).transpose();
        Ok(TaskPatch {
            objective: self.objective,
            capability: self.capability,
            depends_on: self.depends_on,
            parameters: self.parameters.into_iter().collect(),
            review: review.map_err(|error| mistake("review", error.text))?,
            limits,
            on_failed_dependency: policy
                .map_err(|error| mistake("on_failed_dependency", error.to_string()))?,
            not_before: not_before.map_err(|error| mistake("not_before", error.text))?,
            wait_for_event: event.map_err(|error| mistake("wait_for_event", error.text))?,
            ..TaskPatch::without_changes(task)
        })
    }
}

/// Reads the plan of a run.
async fn read_plan(gateway: &Gateway, run: &str) -> Result<(RunId, Plan), Problem> {
    let (run, _) = gateway.find_run(run).await?;
    let plan = gateway.read_history(&run, None).await?.history.plan;
    Ok((run, plan))
}

/// Reads the plan of a run that has not ended, or that failed and continues with a retry or with more tasks.
async fn editable_run(gateway: &Gateway, run: &str) -> Result<(RunId, Plan), Problem> {
    let (run, plan) = read_plan(gateway, run).await?;
    let can_continue = |end: &RunEnd| end.is_resumable && end.reason.can_be_retried();
    if plan.run.end.as_ref().is_some_and(|end| !can_continue(end)) {
        refuse_ended_run(&run, &plan)?;
    }
    Ok((run, plan))
}

/// Reads the plan of a run that has not ended.
async fn open_run(gateway: &Gateway, run: &str) -> Result<(RunId, Plan), Problem> {
    let (run, plan) = read_plan(gateway, run).await?;
    refuse_ended_run(&run, &plan)?;
    Ok((run, plan))
}

fn refuse_ended_run(run: &RunId, plan: &Plan) -> Result<(), Problem> {
    let Some(end) = &plan.run.end else { return Ok(()) };
    let advice = match resume_command(run, plan) {
        Some(_) => "resume it first",
        None => "submit a new run for further work",
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

/// Appends a command, and waits as the client asks.
async fn steer(
    gateway: &Gateway,
    run: &RunId,
    control: CommandAction,
    query: CommandQuery,
    IdempotencyKey(key): IdempotencyKey,
) -> Result<Response, Problem> {
    // The key of another run is another command.
    let id = match key {
        Some(key) => sha256_hex(format!("{run}\0{}\0{key}", gateway.author).as_bytes()),
        None => uuid::Uuid::now_v7().simple().to_string(),
    };
    let command = RunCommand { id: id.clone(), by: gateway.author.clone(), control };
    let fact = append_run_message(&gateway.bus, run, &Topic::Control, (&command, &id)).await?;
    let accepted = |id: String| {
        let outcome = CommandReceipt::CommandAccepted { run, command: id };
        json_response(StatusCode::ACCEPTED, &Written { sequence: fact, outcome })
    };
    if query.wait == WaitFor::Accepted {
        return Ok(accepted(id));
    }
    let timeout = Duration::from_secs(query.timeout.unwrap_or(DEFAULT_WAIT).min(MAX_WAIT));
    let never = CancellationToken::new();
    let patience = Patience { interrupt: &never, on_quiet: &|| {} };
    let deciding = await_message_decision(&gateway.bus, run, (fact, &id), patience);
    match tokio::time::timeout(timeout, deciding).await {
        Ok(decision) => match decision? {
            MessageDecision::Applied(AppliedMessage { sequence, events }) => {
                let summary = describe_changes(run, &events);
                let outcome = CommandOutcome::applied(run, summary, &events);
                Ok(json_response(StatusCode::OK, &Written { sequence, outcome }))
            }
            MessageDecision::Refused(refusal) => Err(Problem::new(ProblemKind::CommandRefused, refusal)),
            MessageDecision::Archived => {
                Err(Problem::new(ProblemKind::CommandRefused, format!("run {run} ended before the command")))
            }
            MessageDecision::Interrupted => Ok(accepted(id)),
        },
        Err(_) => Ok(accepted(id)),
    }
}
