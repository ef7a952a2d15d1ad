//! A2A 1.0: other agents send objectives as messages, follow them as tasks and answer their questions. Both bindings over HTTP are served:
//! HTTP+JSON and JSON-RPC. A task is a run, and has its id; `input-required` is an open question, and the next message to the
//! task answers it; the artifacts are the report and the files.
//!
//! The types are those of `a2a-lf`. The server of the same project holds tasks in memory, and needs gRPC and a compiler of Protocol
//! Buffers; so the bindings are here.
//!
//! | file | contents |
//! |---|---|
//! | `card` | the agent card |
//! | `message` | messages of clients as runs and answers |
//! | `task` | runs as tasks |
//! | `operations` | the operations, for both bindings |
//! | `updates` | the events of a task as a stream |
//! | `push` | push notification configs, and the notifications |
//! | `binding` | what both bindings share |
//! | `rest`, `rpc` | the bindings |
//!
//! # Invariants
//!
//! - I212: A message of an A2A client that is sent again starts no second run; its task has the state, the questions and the
//!   report of the run, and the sequences of its updates grow.
//!   (`tests/tests/standards.rs::a2a_clients_drive_runs_with_questions_to_their_ends`)

mod binding;
mod card;
mod message;
mod operations;
mod push;
mod rest;
mod rpc;
mod task;
mod updates;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};

use self::card::ROOT;
use self::rpc::answer_rpc;
use super::mcp::MAX_BODY;

pub use card::A2aServer;
pub use push::build_notification;
pub use rest::MEDIA_TYPE;

impl A2aServer {
    /// Returns the routes: those of the public card, and those of the operations, which need credentials.
    pub fn into_routes(self) -> (Router, Router) {
        let server = Arc::new(self);
        let card = Router::new().route("/.well-known/agent-card.json", get(rest::read_card));
        // Clients that resolve a path against the address of the card end it with a slash.
        let with_slash = Router::new().route(&format!("{ROOT}/"), post(answer_rpc));
        let with_slash = with_slash.layer(DefaultBodyLimit::max(MAX_BODY)).with_state(server.clone());
        let operations = Router::new()
            .route("/", post(answer_rpc))
            .route("/message:send", post(rest::post_message))
            .route("/message:stream", post(rest::stream_message))
            .route("/tasks", get(rest::get_tasks))
            .route("/tasks/{task}", get(rest::read_or_follow_task).post(rest::act_on_task))
            .route(
                "/tasks/{task}/pushNotificationConfigs",
                get(rest::get_push_configs).post(rest::post_push_config),
            )
            .route(
                "/tasks/{task}/pushNotificationConfigs/{config}",
                get(rest::read_push_config).delete(rest::remove_push_config),
            )
            .route("/extendedAgentCard", get(rest::read_extended_card))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(server.clone());
        (card.with_state(server), Router::new().nest(ROOT, operations).merge(with_slash))
    }
}
