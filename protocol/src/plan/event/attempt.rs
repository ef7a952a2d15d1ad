//! Events about attempts at tasks.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use super::optional_micros;
use crate::form::{ErrorDetails, WaitJson};
use crate::ids::{TaskId, WorkerId};
use crate::plan::AttemptClock;
use crate::plan::spec::ReviewPolicy;
use crate::result::{Build, ModelUsage, TaskError, Usage};
use crate::wait::{EndedWait, EndedWaitJson, Wait};

/// An event about an attempt at a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum AttemptEvent {
    /// A worker claimed the attempt.
    #[serde(rename = "AttemptClaimed")]
    Claimed {
        task: TaskId,
        attempt: u32,
        worker: WorkerId,
        /// Its software, if it named it.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<Arc<Build>>,
    },
    /// The attempt produced a result.
    #[serde(rename = "AttemptFinished")]
    Finished {
        task: TaskId,
        attempt: u32,
        worker: WorkerId,
        /// The sequence, in the lane, of the result.
        #[api(name = "result_sequence")]
        at_sequence: u64,
        /// The result in a sentence.
        summary: String,
        /// `true` if the result has text beyond the summary.
        #[api(name = "detailed")]
        is_detailed: bool,
        /// `false` if the result does not answer its question.
        #[api(name = "answered")]
        #[serde(default = "default_is_answered", skip_serializing_if = "is_true")]
        is_answered: bool,
        /// The review that the capability demands.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        review: Option<Box<ReviewPolicy>>,
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// The attempt failed.
    #[api(name = "attempt_failed")]
    #[serde(rename = "AttemptErrored")]
    Errored {
        task: TaskId,
        attempt: u32,
        #[api(form(ErrorDetails<'a>), value(error.as_ref().into()))]
        error: Box<TaskError>,
        /// When the next attempt starts; `null` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
    },
    /// The attempt timed out.
    #[serde(rename = "AttemptTimedOut")]
    TimedOut {
        task: TaskId,
        attempt: u32,
        /// The limit that was reached.
        clock: AttemptClock,
        /// When the next attempt starts; `null` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// The counted usage.
        // All that was reserved, since the real usage is unknown.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// The attempt waits for times or events, and holds no worker meanwhile.
    #[serde(rename = "AttemptParked")]
    Parked {
        task: TaskId,
        attempt: u32,
        /// The waits.
        #[api(form(Vec<WaitJson<'a>>), value(waits.iter().map(Into::into).collect()))]
        waits: Vec<Wait>,
    },
    /// A task that the attempt delegated is not added to the plan.
    ChildRefused {
        task: TaskId,
        attempt: u32,
        /// The delegated task.
        child: TaskId,
        reason: String,
    },
    /// A wait of the attempt has ended.
    #[serde(rename = "AttemptWaitEnded")]
    WaitEnded {
        task: TaskId,
        attempt: u32,
        #[api(form(EndedWaitJson<'a>), flatten)]
        ended: EndedWait,
    },
    /// A question of the attempt expired and is asked again.
    QuestionRenewed {
        task: TaskId,
        attempt: u32,
        /// The key of its wait.
        key: String,
        /// The person or role that should answer now; empty is anyone.
        to: String,
    },
    /// All waits of the attempt have ended; it waits for a worker again.
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

    /// The error that this event reports, if it reports one, and the attempt.
    pub fn attempt_and_error(&self) -> Option<(u32, String)> {
        if let Self::Errored { attempt, error, .. } = self {
            Some((*attempt, error.message.clone()))
        } else if let Self::TimedOut { attempt, clock, .. } = self {
            Some((*attempt, clock.to_string()))
        } else {
            None
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
