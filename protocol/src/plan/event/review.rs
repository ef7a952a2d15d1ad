//! Events about reviews of results.

use std::fmt;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use super::optional_micros;
use crate::ids::{TaskId, WorkerId};
use crate::result::{ModelUsage, Usage, Verdict};

/// An event about a review of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum ReviewEvent {
    /// A review failed.
    #[api(name = "review_failed")]
    #[serde(rename = "ReviewErrored")]
    Errored {
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The number of the try at the review.
        review: u32,
        error: String,
        /// `true` if it is tried again.
        #[api(name = "retried")]
        again: bool,
        /// When it is tried again.
        // `None` is at once.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// A review waits for a critic again.
    #[serde(rename = "ReviewReady")]
    Ready { task: TaskId },
    /// A critic gave its verdict.
    #[api(name = "review_finished")]
    VerdictGiven {
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The critic.
        critic: WorkerId,
        /// The verdict.
        verdict: Box<Verdict>,
    },
}

impl ReviewEvent {
    pub fn task(&self) -> &TaskId {
        match self {
            Self::Errored { task, .. } | Self::Ready { task } | Self::VerdictGiven { task, .. } => task,
        }
    }

    /// The error that this event reports, if it reports one, and the attempt under review.
    pub fn attempt_and_error(&self) -> Option<(u32, String)> {
        match self {
            Self::Errored { attempt, error, .. } => Some((*attempt, error.clone())),
            Self::VerdictGiven { attempt, verdict, .. } if !verdict.passed => {
                Some((*attempt, format!("rejected: {}", verdict.reasoning)))
            }
            Self::VerdictGiven { .. } | Self::Ready { .. } => None,
        }
    }
}

impl fmt::Display for ReviewEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errored { task, error, .. } => write!(f, "review of {task} failed: {error}"),
            Self::Ready { task } => write!(f, "{task} is reviewed again"),
            Self::VerdictGiven { task, critic, verdict, .. } => {
                let outcome = if verdict.passed { "passed" } else { "rejected" };
                write!(f, "{task} {outcome} by {critic}: {}", verdict.reasoning)
            }
        }
    }
}
