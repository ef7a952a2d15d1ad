//! The agent: a model, its tools and the loop between them, driven by a state machine that can be stopped and resumed
//! at any point. It owns no connection and no store: the caller provides the journal, the results and the documents,
//! and the crate does not depend on NATS.

pub mod answers;
pub mod approval;
pub mod builtin;
pub mod citations;
pub mod corpus;
pub mod critic;
pub mod embeddings;
pub mod files;
pub mod hooks;
pub mod material;
pub mod model;
pub mod planner;
pub mod roles;
pub mod session;
pub mod skills;
pub mod sources;
pub mod spec;
pub mod state;
pub mod tool;
pub mod transcript;
pub mod turn;
pub mod verification;
