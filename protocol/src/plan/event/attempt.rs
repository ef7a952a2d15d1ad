//! Events about attempts at tasks.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::optional_micros;
use crate::ids::{TaskId, WorkerId};
use crate::plan::AttemptClock;
use crate::plan::spec::ReviewPolicy;
use crate::plan::start::PLAN_WAIT_PREFIX;
use crate::result::{Build, ModelUsage, TaskError, Usage};
use crate::wait::{EndedWait, Wait};

/// An event about an attempt at a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AttemptEvent {
    /// A worker claimed the attempt.
    #[serde(rename = "AttemptClaimed")]
    Claimed {
        task: TaskId,
        attempt: u32,
        /// The claimant.
        worker: WorkerId,
        /// The software of the claimant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<Arc<Build>>,
    },
    /// The attempt produced a result.
    #[serde(rename = "AttemptFinished")]
    Finished {
        task: TaskId,
        attempt: u32,
        /// The worker that produced the result.
        worker: WorkerId,
        /// The sequence, in the lane, of the journal entry with the result.
        at_sequence: u64,
        /// The result in a sentence.
        summary: String,
        /// `true` if the result has text beyond the summary.
        is_detailed: bool,
        /// `false` if the result does not answer its question. Absent on the wire if it does.
        #[serde(default = "default_is_answered", skip_serializing_if = "is_true")]
        is_answered: bool,
        /// The review of the result, if it is not the one in the task's specification.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        review: Option<Box<ReviewPolicy>>,
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// The attempt ended without a result.
    #[serde(rename = "AttemptErrored")]
    Errored {
        task: TaskId,
        attempt: u32,
        error: Box<TaskError>,
        /// The time of the next attempt; `None` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
    },
    /// The attempt timed out.
    #[serde(rename = "AttemptTimedOut")]
    TimedOut {
        task: TaskId,
        attempt: u32,
        /// The clock that ran out.
        clock: AttemptClock,
        /// The time of the next attempt; `None` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// The counted usage: all that was reserved, since the real usage is unknown.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// The attempt waits for something outside; it holds no worker meanwhile.
    #[serde(rename = "AttemptParked")]
    Parked {
        task: TaskId,
        attempt: u32,
        /// The waits, at least one.
        waits: Vec<Wait>,
    },
    /// A wait of the parked attempt has ended.
    #[serde(rename = "AttemptWaitEnded")]
    WaitEnded { task: TaskId, attempt: u32, ended: EndedWait },
    /// A question of the parked attempt expired and is asked again: its next round.
    QuestionRenewed {
        task: TaskId,
        attempt: u32,
        /// The key of its wait.
        key: String,
        /// The person or role that should answer now; empty is anyone.
        to: String,
    },
    /// A task that the attempt delegated was refused.
    #[serde(rename = "ChildRefused")]
    ChildRefused { task: TaskId, attempt: u32, child: TaskId, reason: String },
    /// All waits of the parked attempt have ended: it waits for a worker again.
    #[serde(rename = "AttemptWoken")]
    Woken { task: TaskId, attempt: u32 },
}

fn default_is_answered() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

impl AttemptEvent {
    #[must_use]
    pub fn task(&self) -> &TaskId {
        match self {
            Self::Claimed { task, .. }
            | Self::Finished { task, .. }
            | Self::Errored { task, .. }
            | Self::TimedOut { task, .. }
            | Self::Parked { task, .. }
            | Self::WaitEnded { task, .. }
            | Self::QuestionRenewed { task, .. }
            | Self::ChildRefused { task, .. }
            | Self::Woken { task, .. } => task,
        }
    }

    /// `true` if it ends a wait for the start of its task: the task is not checked while it waits.
    pub(super) fn needs_capability_check(&self) -> bool {
        match self {
            Self::WaitEnded { ended, .. } => ended.key.starts_with(PLAN_WAIT_PREFIX),
            Self::Claimed { .. }
            | Self::Finished { .. }
            | Self::Errored { .. }
            | Self::TimedOut { .. }
            | Self::Parked { .. }
            | Self::QuestionRenewed { .. }
            | Self::ChildRefused { .. }
            | Self::Woken { .. } => false,
        }
    }

    /// The error that this event reports, if it reports one, and the attempt.
    #[must_use]
    pub fn attempt_and_error(&self) -> Option<(u32, String)> {
        match self {
            Self::Errored { attempt, error, .. } => Some((*attempt, error.message.clone())),
            Self::TimedOut { attempt, clock, .. } => Some((*attempt, clock.to_string())),
            Self::Claimed { .. }
            | Self::Finished { .. }
            | Self::Parked { .. }
            | Self::WaitEnded { .. }
            | Self::QuestionRenewed { .. }
            | Self::ChildRefused { .. }
            | Self::Woken { .. } => None,
        }
    }
}

impl fmt::Display for AttemptEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let will_retry = |retry_at: &Option<Timestamp>| if retry_at.is_some() { "; will retry" } else { "" };
        match self {
            Self::Claimed { task, attempt, worker, .. } => {
                write!(f, "{task} running, attempt {attempt} on {worker}")
            }
            Self::Finished { task, summary, .. } => write!(f, "{task} finished: {summary}"),
            Self::Errored { task, attempt, error, retry_at } => {
                write!(f, "{task} attempt {attempt} failed: {}{}", error.message, will_retry(retry_at))
            }
            Self::TimedOut { task, attempt, clock, retry_at, .. } => {
                write!(f, "{task} attempt {attempt} timed out: {clock}{}", will_retry(retry_at))
            }
            Self::Parked { task, waits, .. } => {
                let conditions: Vec<String> = waits.iter().map(|wait| wait.condition.to_string()).collect();
                write!(f, "{task} waits for {}", conditions.join(", "))
            }
            Self::WaitEnded { task, ended, .. } => write!(f, "{task} waits no longer: {}", ended.end),
            Self::QuestionRenewed { task, to, .. } if to.is_empty() => {
                write!(f, "{task} asks its question again")
            }
            Self::QuestionRenewed { task, to, .. } => write!(f, "{task} asks its question again, to {to}"),
            Self::ChildRefused { task, child, reason, .. } => {
                write!(f, "{task} can't delegate {child}: {reason}")
            }
            Self::Woken { task, attempt } => write!(f, "{task} attempt {attempt} continues"),
        }
    }
}
