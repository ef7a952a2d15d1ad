//! The exit codes of `millrace`, which scripts rely on.

use std::process::ExitCode;

use millrace_protocol::plan::{End, EndReason};
use millrace_runtime::Fault;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Completed = 0,
    /// The run came to nothing.
    Failed = 1,
    /// The command line, the plan or the documents were refused.
    Refused = 2,
    /// There is a deliverable, but not everything was done.
    Partial = 3,
    /// Something that is needed is not there: a server, a folder, a cluster.
    Environment = 4,
    /// The user interrupted.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// The code for the end of a run.
    pub fn of(end: &End) -> Self {
        match (end.reason, &end.deliverable) {
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

/// An error with the code that the command ends with.
#[derive(Debug)]
pub struct Stop {
    /// The code.
    pub exit: Exit,
    /// What is said on standard error.
    pub error: anyhow::Error,
}

impl Stop {
    /// Refused input.
    pub fn refused(error: impl Into<anyhow::Error>) -> Self {
        Self { exit: Exit::Refused, error: error.into() }
    }

    /// An environment that can't be used.
    pub fn environment(error: impl Into<anyhow::Error>) -> Self {
        Self { exit: Exit::Environment, error: error.into() }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::environment(fault)
    }
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::environment(error)
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::TaskId;
    use millrace_protocol::plan::FinalRung;

    use super::*;

    #[test]
    fn the_exit_code_says_how_a_run_ended_and_whether_it_left_something() {
        let code = |reason, has_deliverable: bool| {
            let deliverable = has_deliverable.then(|| (TaskId::new("a").unwrap(), FinalRung::Any));
            let at = jiff::Timestamp::UNIX_EPOCH;
            Exit::of(&End { reason, detail: String::new(), deliverable, at, is_resumable: false }) as u8
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
