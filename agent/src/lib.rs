//! The agent: a model, its tools and the loop between them, stepped by a machine that can be stopped and taken up
//! at any point. It owns no connection and no store: whoever runs it brings the journal, the results and the
//! documents, and the crate knows nothing of NATS.

pub mod builtin;
mod citations;
pub mod corpus;
pub mod critic;
pub mod desk;
pub mod files;
pub mod markdown;
mod material;
pub mod model;
pub mod planner;
pub mod roles;
pub mod spec;
pub mod tool;
pub mod turn;
