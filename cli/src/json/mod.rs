//! The JSON that commands print with `--json`: one dialect for all of them. `docs/json.md` states its rules and its stability.
//!
//! The types that the gateway returns too are in `millrace_views`; those of commands only are here. Every line of standard
//! output is one object with a `type`. No command builds JSON by hand.
//!
//! | file | objects |
//! |---|---|
//! | `doctor` | the environment |
//! | `error` | the error that ended a command |
//! | `evaluation` | samples and configurations of an evaluation |
//! | `schema` | the schema of each command's output |
//! | `verification` | the verdicts on a text |
//!
//! # Invariants
//!
//! - I83: The output of commands with `--json` matches `millrace schema`: every field, and no other.
//!   (`cli/src/report/tests.rs::every_event_of_a_run_matches_the_schema`,
//!   `cli/src/json/tests.rs::every_command_prints_json_and_has_a_schema`,
//!   `cli/tests/command_line.rs::the_json_of_every_command_matches_its_printed_schema`)

mod doctor;
mod error;
mod evaluation;
mod schema;
mod verification;

pub use crate::view::print_json;
pub use doctor::*;
pub use error::*;
pub use evaluation::*;
pub use millrace_views::*;
pub use schema::output_schema;
pub use verification::VerificationJson;

#[cfg(test)]
pub mod tests;
