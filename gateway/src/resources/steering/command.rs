//! Appends a command to the log of a run, and waits for the decision on it.
//!
//! # Invariants
//!
//! - I165: A command over HTTP is applied once per idempotency key, which belongs to its operation and what that acts on, and a
//!   refusal has the supervisor's reason.
//!   (`tests/tests/gateway.rs::commands_are_decided_once_and_refusals_have_a_reason`,
//!   `tests/tests/gateway.rs::key_belongs_to_an_operation_a_resource_and_a_request`)

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use millrace_client::{AppliedMessage, MessageDecision, append_run_message, find_obstacle};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, RunCommand};
use millrace_protocol::subject::Topic;
use millrace_views::CommandOutcome;
use millrace_views::changes::describe_changes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::access::Access;
use crate::idempotency::RepeatableRequest;
use crate::problem::{Problem, ProblemKind};
use crate::resources::Written;
use crate::state::json_response;
use crate::waiting::await_decision;

/// The longest wait for a decision in seconds.
const MAX_WAIT: u64 = 60;
/// The wait in seconds if the client does not choose one.
const DEFAULT_WAIT: u64 = 10;

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

/// Replies to a command that was applied; its events are visible at `sequence`.
pub async fn reply_to_applied(
    repeatable: RepeatableRequest<'_>,
    run: &RunId,
    AppliedMessage { sequence, events }: AppliedMessage,
) -> Result<Response, Problem> {
    let outcome = CommandOutcome::applied(run, describe_changes(run, &events), &events);
    repeatable.reply((StatusCode::OK, None), &Written { sequence, outcome }).await
}

/// Appends a command, and waits as the client asks.
pub async fn steer(
    gateway: &Access,
    run: &RunId,
    control: CommandAction,
    query: CommandQuery,
    mut repeatable: RepeatableRequest<'_>,
) -> Result<Response, Problem> {
    if let Some(refusal) = find_obstacle(&gateway.bus, run).await? {
        return Err(repeatable.refuse(Problem::new(ProblemKind::CommandRefused, refusal)).await);
    }
    let (_, id) = repeatable.claim(run.clone(), uuid::Uuid::now_v7().simple().to_string()).await?;
    let command = RunCommand { id: id.clone(), by: gateway.caller.name.clone(), control };
    let fact = append_run_message(&gateway.bus, run, &Topic::Control, (&command, &id)).await?;
    let accepted = |id: String| {
        let outcome = CommandReceipt::CommandAccepted { run, command: id };
        json_response(StatusCode::ACCEPTED, &Written { sequence: fact, outcome })
    };
    if query.wait == WaitFor::Accepted {
        return Ok(accepted(id));
    }
    let timeout = Duration::from_secs(query.timeout.unwrap_or(DEFAULT_WAIT).min(MAX_WAIT));
    let deciding = await_decision(gateway, run, (fact, &id));
    match tokio::time::timeout(timeout, deciding).await {
        Ok(decision) => match decision? {
            MessageDecision::Applied(applied) => reply_to_applied(repeatable, run, applied).await,
            MessageDecision::Refused(refusal) => {
                Err(repeatable.refuse(Problem::new(ProblemKind::CommandRefused, refusal)).await)
            }
            MessageDecision::Archived => {
                let detail = format!("run {run} ended before the command");
                Err(repeatable.refuse(Problem::new(ProblemKind::CommandRefused, detail)).await)
            }
            MessageDecision::Interrupted => Ok(accepted(id)),
        },
        Err(_) => Ok(accepted(id)),
    }
}
