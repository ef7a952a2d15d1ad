//! The planner's turn: why it is asked, and how far the asking has come.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{TaskId, WorkerId};
use crate::plan::Work;

/// How many notes are kept for the planner.
pub const MAX_NOTES: usize = 40;

/// The state of the planner's turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Planning {
    /// Its number, from 1.
    pub turn: u32,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Who works on it.
    pub worker: Option<WorkerId>,
    /// When the attempt was asked for, or first claimed.
    pub since: Timestamp,
    /// What the attempt before did wrong.
    pub feedback: Option<String>,
    /// When the next attempt begins, if this one is over.
    pub retry_at: Option<Timestamp>,
    /// Whether an attempt at this turn came to nothing for want of what it had reserved: the next has all that is left.
    pub outgrew: bool,
    /// Why it is asked.
    pub occasions: Vec<Occasion>,
    /// What happened since it was asked last.
    pub notes: Vec<String>,
}

impl Planning {
    /// The attempt that is under way, or was the last.
    #[must_use]
    pub fn work(&self) -> Work {
        Work::Planning { turn: self.turn, attempt: self.attempt }
    }
}

/// Something on which the planner's judgement is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// There is no plan.
    NoPlan,
    /// A task failed for good, or was lost with one that did.
    TaskLost {
        /// The task.
        task: TaskId,
    },
    /// A task can't begin: nobody offers its capability, or its parameters are not what that takes.
    TaskStuck {
        /// The task.
        task: TaskId,
        /// What is wrong, and what there is instead.
        problem: String,
    },
    /// A result was accepted.
    Accepted {
        /// The task.
        task: TaskId,
    },
    /// Nothing is left to do, or nothing of what is left can begin.
    Standstill {
        /// What is there, and what waits for what.
        report: String,
    },
    /// A user said something.
    Message {
        /// Who.
        by: String,
        /// What.
        text: String,
    },
    /// The soft part of the budget is used up: it is time to come to an end.
    BudgetLow {
        /// What of it.
        detail: String,
    },
    /// Something of the last turn did not hold any more when it came.
    Refused {
        /// What, and why.
        reasons: Vec<String>,
    },
    /// The last turn claimed an end that is none.
    FalseEnd {
        /// Why it is none.
        why: String,
    },
}

impl fmt::Display for Occasion {
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
                write!(
                    f,
                    "The budget comes to its end ({detail}): wrap up, begin nothing that is not needed."
                )
            }
            Self::Refused { reasons } => {
                write!(f, "Of your last turn this was not carried out: {}", reasons.join("; "))
            }
            Self::FalseEnd { why } => write!(f, "You said that the objective is achieved, but {why}."),
        }
    }
}
