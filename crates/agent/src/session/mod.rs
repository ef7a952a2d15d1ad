//! Running an agent on an order. A [`AgentSession`] reads what the order refers to, opens the model and the tools that the
//! agent's [`AgentSpec`] names, drives the conversation, and turns the answer into a result or a proposal.
//!
//! ```text
//! AgentHost                      one per process: open models, cached documents
//! └─ AgentSession::prepare(host, spec, order, SessionEnvironment)
//!    ├─ SessionInputs            documents and results of the order
//!    ├─ ToolContext              opens the tools by the table of names
//!    └─ run_work / run_planning  Conversation → answer → TaskResult / Proposal
//!
//! AgentHost::run_review          the same for a critic's order: one or more judges → Verdict
//! AgentHost::verify_text         a conversation whose answer is given → TaskResult with verdicts
//! ```
//! Nothing here opens a connection: the journal, the log and the blob store are reached through the [`SessionEnvironment`].
//!
//! # Invariants
//!
//! - I156: A worker that takes an attempt over has all that its agent has: skills, pages, state and phase, files, the work of
//!   programs, a shortened conversation; recorded replies and results are not requested again.
//!   (`tests/tests/agent_takeover.rs::takeover_after_any_append_continues_with_all_that_the_agent_has`)

mod agent;
mod environment;
mod host;
mod inputs;
mod memory;
mod models;
mod plan;
mod prompts;
mod rerun;
mod review;
mod text;
pub mod tools;
mod verdicts;

pub use agent::AgentSession;
pub use environment::{MemoryFile, SessionEnvironment, SessionError};
pub use host::{AgentHost, HostSettings};
pub use models::{ModelPreferences, ModelPreferencesError};
