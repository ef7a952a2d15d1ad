//! The words and the rules of Millrace, pure: ids, subjects, messages, and the plan's state machine. No sockets, no
//! clock, no randomness; time and names are arguments.

pub mod file;
pub mod ids;
pub mod plan;
pub mod registry;
pub mod result;
pub mod schema;
pub mod subject;
pub mod wire;
pub mod work;
