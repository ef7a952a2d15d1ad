//! Appends a command to the log of a run, and waits for the decision on it.
//!
//! # Invariants
//!
//! - I165: A command over HTTP is applied once per idempotency key, and a refusal has the supervisor's reason.
//!   (`tests/tests/gateway.rs::commands_are_decided_once_and_refusals_have_a_reason`)

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use millrace_client::{AppliedMessage, MessageDecision, append_run_message};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, RunCommand};
use millrace_protocol::subject::Topic;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_views::CommandOutcome;
use millrace_views::changes::describe_changes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::access::Access;
use crate::extract::IdempotencyKey;
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

/// Returns the id of the command that a key names. The key of another run is another command.
pub fn command_id(gateway: &Access, run: &RunId, key: &str) -> String {
    sha256_hex(format!("{run}\0{}\0{key}", gateway.caller.name).as_bytes())
}

/// Replies to the repetition of a command that was applied; its events are visible at `sequence`.
pub fn reply_to_repetition(run: &RunId, sequence: u64) -> Response {
    let outcome = CommandOutcome::applied(run, describe_changes(run, &[]), &[]);
    json_response(StatusCode::OK, &Written { sequence, outcome })
}

/// Appends a command, and waits as the client asks.
pub async fn steer(
    gateway: &Access,
    run: &RunId,
    control: CommandAction,
    query: CommandQuery,
    IdempotencyKey(key): IdempotencyKey,
) -> Result<Response, Problem> {
    let id = match key {
        Some(key) => command_id(gateway, run, &key),
        None => uuid::Uuid::now_v7().simple().to_string(),
    };
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
