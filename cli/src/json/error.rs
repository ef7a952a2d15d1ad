//! The error that ended a command.

use schemars::JsonSchema;
use serde::Serialize;

use super::tagged;
use crate::exit::CommandExit;

/// An error that ended a command: the last line of its output.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "error")]
#[schemars(transform = tagged("error"))]
pub struct ErrorLine {
    /// The class of the error.
    error: ErrorClass,
    /// The exit code of the command.
    exit_code: u8,
    /// The error, for a person: the mistake, its place, and the remedy.
    message: String,
}

/// The class of an error; each has an exit code.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ErrorClass {
    /// The run or the command failed.
    Failed,
    /// The input is invalid, or the state of the run does not allow the command.
    Refused,
    /// Not everything was done.
    Partial,
    /// A server, a folder or another part of the environment can't be used.
    Environment,
    /// The run is paused, because the provider of a model does not answer.
    Paused,
    /// The user interrupted the command.
    Interrupted,
}

impl ErrorLine {
    pub fn new(exit: CommandExit, message: String) -> Self {
        let error = match exit {
            CommandExit::Completed | CommandExit::Failed => ErrorClass::Failed,
            CommandExit::Refused => ErrorClass::Refused,
            CommandExit::Partial => ErrorClass::Partial,
            CommandExit::Environment => ErrorClass::Environment,
            CommandExit::Paused => ErrorClass::Paused,
            CommandExit::Interrupted => ErrorClass::Interrupted,
        };
        Self { error, exit_code: exit as u8, message }
    }
}
