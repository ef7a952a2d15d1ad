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
//! | `fault` | errors |
//! | `field_names` | the two names of each field in JSON |
//! | `rest`, `rpc` | the bindings |
//!
//! # Invariants
//!
//! - I212: A message of an A2A client that is sent again starts no second run; its task has the state, the questions and the
//!   report of the run, and the sequences of its updates grow.
//!   (`tests/tests/standards.rs::a2a_clients_drive_runs_with_questions_to_their_ends`)

mod card;
mod fault;
mod field_names;
mod message;
mod operations;
mod push;
mod rest;
mod rpc;
mod task;
mod updates;

pub use push::build_notification;
pub use rest::{A2aServer, MEDIA_TYPE};
