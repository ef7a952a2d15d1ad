//! The planner's turn, and the triggers that lead to one.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, Serializer};

use crate::ids::{TaskId, WorkerId};
use crate::plan::Work;
use crate::plan::attendance::UncountedTime;

/// The largest number of notes for the planner's next turn.
pub const MAX_NOTES: usize = 40;

/// The state of the planner's turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanningTurn {
    /// Its number, from 1.
    pub turn: u32,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The claimant.
    pub worker: Option<WorkerId>,
    /// When the attempt was requested or, after its claim, first claimed.
    pub since: Timestamp,
    /// The time for which claimants have worked on the attempt before it was returned.
    #[serde(skip)]
    pub worked: SignedDuration,
    /// The error of the attempt before.
    pub feedback: Option<String>,
    /// The time of the next attempt, if this one has ended.
    pub retry_at: Option<Timestamp>,
    /// `true` if an attempt at this turn exceeded its reservation: the next one gets all that is left.
    #[serde(rename = "outgrew")]
    pub exceeded_reservation: bool,
    /// The triggers of the turn.
    #[serde(rename = "occasions")]
    pub triggers: Vec<PlannerTrigger>,
    /// The changes since the last turn.
    pub notes: Vec<String>,
    /// The time that its clock does not count; the current wait for its provider is part of the JSON form.
    #[serde(
        rename = "waiting_for_provider",
        serialize_with = "serialize_current",
        skip_serializing_if = "UncountedTime::is_wait_over"
    )]
    pub uncounted: UncountedTime,
}

/// Writes the current wait alone.
fn serialize_current<S: Serializer>(uncounted: &UncountedTime, serializer: S) -> Result<S::Ok, S::Error> {
    uncounted.current_wait().serialize(serializer)
}

impl PlanningTurn {
    /// The current or last attempt as work.
    pub fn work(&self) -> Work {
        Work::Planning { turn: self.turn, attempt: self.attempt }
    }
}

/// A reason to consult the planner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannerTrigger {
    /// There is no plan.
    NoPlan,
    /// A task failed for good, or was cancelled with one that did.
    TaskLost { task: TaskId },
    /// A task can't start: no worker offers its capability, or the capability does not accept its parameters.
    TaskStuck {
        task: TaskId,
        /// The problem, and the alternatives.
        problem: String,
    },
    /// A result was accepted.
    Accepted { task: TaskId },
    /// No task is open, or no open task can start.
    Standstill {
        /// The open tasks, each with the reason why it waits.
        report: String,
    },
    /// A user sent a message.
    Message {
        /// The user's name.
        by: String,
        /// The message.
        text: String,
    },
    /// The soft limit of the budget is reached: it is time to wrap up.
    BudgetLow {
        /// The amount that is low.
        detail: String,
    },
    /// Edits of the last turn were refused.
    Refused {
        /// The edits, and why they were refused.
        reasons: Vec<String>,
    },
    /// The last turn claimed that the objective was achieved, and it was not.
    FalseEnd {
        /// The missing part.
        why: String,
    },
}

impl fmt::Display for PlannerTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPlan => f.write_str("There is no plan yet: make one."),
            Self::TaskLost { task } => {
                write!(f, "Task {task} is lost: retry it with feedback, replace it, or do without it.")
            }
            Self::TaskStuck { task, problem } => write!(f, "Task {task} can't begin: {problem}"),
            Self::Accepted { task } => write!(f, "The result of task {task} was accepted."),
            Self::Standstill { report } => f.write_str(report),
            Self::Message { by, text } => write!(f, "{by} says: {text}"),
            Self::BudgetLow { detail } => {
                write!(f, "The budget is running low ({detail}): wrap up, start only what is needed.")
            }
            Self::Refused { reasons } => {
                write!(f, "These edits of your last turn were refused: {}", reasons.join("; "))
            }
            Self::FalseEnd { why } => write!(f, "You said that the objective is achieved, but {why}."),
        }
    }
}
