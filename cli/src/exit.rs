//! Exit codes of `millrace`, which scripts rely on, and interruption.
//!
//! # Invariants
//!
//! - I62: Exit codes are the same for every program and every way to start it.
//!   (`tests/tests/exit_codes.rs::refused_input_exits_with_2_in_every_role`,
//!   `tests/tests/exit_codes.rs::refused_input_exits_with_2_in_every_command`,
//!   `tests/tests/exit_codes.rs::an_unreachable_server_exits_with_4`)

use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use millrace_client::questions::SendAnswerError;
use millrace_client::{EarlierRunError, FindError};
use millrace_protocol::plan::{EndReason, RunEnd};
use millrace_runtime::Fault;
use millrace_runtime::program::{self, FailureExitCode};
use tokio_util::sync::CancellationToken;

/// Time that work has to end after an interrupt.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandExit {
    /// Success; for a run: completed.
    Completed = 0,
    Failed = 1,
    /// The command line, the plan or the documents are invalid, or the run does not allow the command.
    Refused = 2,
    /// There is a deliverable, but not every task completed.
    Partial = 3,
    /// Something in the environment is missing or unusable: a server, a folder, a cluster.
    Environment = 4,
    /// The run is paused, because a model's provider does not answer.
    Paused = 5,
    Interrupted = 130,
}

impl From<CommandExit> for ExitCode {
    fn from(exit: CommandExit) -> Self {
        Self::from(exit as u8)
    }
}

impl CommandExit {
    /// Returns the code for the end of a run.
    pub fn from_run_end(end: &RunEnd) -> Self {
        match (end.reason, &end.deliverable) {
            // A wrong key, no credit, no such model.
            (_, None) if end.is_refused_by_provider => Self::Environment,
            (EndReason::Completed, _) => Self::Completed,
            (EndReason::CompletedPartial, _)
            | (
                EndReason::NoProgress
                | EndReason::PlannerUnavailable
                | EndReason::BudgetExhausted
                | EndReason::MaxSteps,
                Some(_),
            ) => Self::Partial,
            (EndReason::Failed | EndReason::Cancelled, _)
            | (
                EndReason::NoProgress
                | EndReason::PlannerUnavailable
                | EndReason::BudgetExhausted
                | EndReason::MaxSteps,
                None,
            ) => Self::Failed,
        }
    }
}

pub type CommandResult = Result<CommandExit, CommandError>;

/// An error with the exit code it leads to.
#[derive(Debug)]
pub struct CommandError {
    /// The code.
    pub exit: CommandExit,
    /// The error that is printed to standard error.
    pub error: anyhow::Error,
}

impl CommandError {
    /// Invalid input: exit code 2.
    pub fn invalid_input(error: impl Into<anyhow::Error>) -> Self {
        Self { exit: CommandExit::Refused, error: error.into() }
    }

    /// An unusable environment: exit code 4.
    pub fn unusable_environment(error: impl Into<anyhow::Error>) -> Self {
        Self { exit: CommandExit::Environment, error: error.into() }
    }
}

impl From<Fault> for CommandError {
    fn from(fault: Fault) -> Self {
        Self::unusable_environment(fault)
    }
}

impl From<FindError> for CommandError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Fault(fault) => fault.into(),
            error @ (FindError::NoRuns
            | FindError::Empty
            | FindError::NotFound(_)
            | FindError::Ambiguous { .. }) => Self::invalid_input(error),
        }
    }
}

impl From<EarlierRunError> for CommandError {
    fn from(error: EarlierRunError) -> Self {
        match error {
            EarlierRunError::Find(error) => error.into(),
            EarlierRunError::Fault(fault) => fault.into(),
            error @ EarlierRunError::NotEnded(_) => Self::invalid_input(error),
        }
    }
}

impl From<SendAnswerError> for CommandError {
    fn from(error: SendAnswerError) -> Self {
        match error {
            SendAnswerError::Fault(fault) => fault.into(),
            error @ SendAnswerError::LostRun(_) => Self::unusable_environment(error),
        }
    }
}

impl From<program::ProgramError> for CommandError {
    fn from(error: program::ProgramError) -> Self {
        match error.exit_code() {
            FailureExitCode::Refused => Self::invalid_input(error),
            FailureExitCode::Environment => Self::unusable_environment(error),
        }
    }
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self::unusable_environment(error)
    }
}

/// Waits for `work`. After an interrupt the work gets one more second to end by itself.
pub fn run_until_interrupt<'a>(
    interrupt: &'a CancellationToken,
    work: impl Future<Output = CommandResult> + 'a,
) -> Pin<Box<dyn Future<Output = CommandResult> + 'a>> {
    Box::pin(async move {
        let grace = async {
            interrupt.cancelled().await;
            tokio::time::sleep(INTERRUPT_GRACE).await;
        };
        tokio::select! {
            outcome = work => outcome,
            () = grace => Ok(CommandExit::Interrupted),
        }
    })
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::TaskId;
    use millrace_protocol::plan::DeliverableRule;

    use super::*;

    #[test]
    fn exit_code_depends_on_end_reason_and_deliverable() {
        let code = |reason, has_deliverable: bool| {
            let deliverable = has_deliverable.then(|| (TaskId::new("a").unwrap(), DeliverableRule::Any));
            let at = jiff::Timestamp::UNIX_EPOCH;
            let detail = String::new();
            let (is_resumable, is_refused_by_provider) = (false, false);
            let end = RunEnd { reason, detail, deliverable, at, is_resumable, is_refused_by_provider };
            let refused =
                CommandExit::from_run_end(&RunEnd { is_refused_by_provider: true, ..end.clone() }) as u8;
            assert_eq!(
                refused,
                if has_deliverable { CommandExit::from_run_end(&end) as u8 } else { 4 },
                "{reason}"
            );
            CommandExit::from_run_end(&end) as u8
        };
        for (reason, with, without) in [
            (EndReason::Completed, 0, 0),
            (EndReason::CompletedPartial, 3, 3),
            (EndReason::Failed, 1, 1),
            (EndReason::Cancelled, 1, 1),
            (EndReason::NoProgress, 3, 1),
            (EndReason::PlannerUnavailable, 3, 1),
            (EndReason::BudgetExhausted, 3, 1),
            (EndReason::MaxSteps, 3, 1),
        ] {
            assert_eq!((code(reason, true), code(reason, false)), (with, without), "{reason}");
        }
    }
}
