//! The protocol of Millrace: ids, subjects, messages, and the state machine of a plan. The caller passes in the time and new ids.
//!
//! # Invariants
//!
//! - I1: The rules are pure: `protocol` has no sockets, clocks or randomness; dependencies point one way.
//!   (`tests/tests/architecture.rs::dependencies_follow_the_table`,
//!   `tests/tests/architecture.rs::rules_have_no_sockets_and_agents_no_nats`)

// The forms that `ApiForm` derives name this crate.
extern crate self as millrace_protocol;

pub mod admission;
pub mod audit;
pub mod child;
pub mod file;
pub mod foreign_json;
pub mod form;
pub mod ids;
pub mod labels;
pub mod overrides;
pub mod parameters;
pub mod plan;
pub mod question;
pub mod registry;
pub mod result;
pub mod retention;
pub mod safe_text;
pub mod schema;
mod schema_cost;
pub mod secrets;
pub mod subject;
pub mod tenant;
pub mod time_text;
pub mod token;
pub mod trace_context;
pub mod wait;
pub mod webhook;
pub mod wire;
pub mod work;
