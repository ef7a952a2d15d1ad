//! Events about the state of a task between its attempts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{Capability, TaskId};
use crate::result::Usage;

/// A task's change of state between its attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum TaskEvent {
    /// The next attempt may be dispatched.
    #[serde(rename = "TaskReady")]
    Ready {
        task: TaskId,
        /// The attempt, from 1.
        attempt: u32,
    },
    /// The task waits for its dependencies again.
    #[serde(rename = "TaskPending")]
    Pending { task: TaskId },
    /// The task can't start because no worker offers its capability.
    CapabilityMissing {
        task: TaskId,
        /// The missing capability.
        capability: Capability,
    },
    /// The task can't start because its capability does not accept its parameters.
    #[serde(rename = "ParametersWrong")]
    ParametersRejected {
        task: TaskId,
        /// The problem with the parameters.
        problem: String,
    },
    /// The task runs again.
    #[serde(rename = "TaskReopened")]
    Reopened {
        task: TaskId,
        /// The next attempt.
        attempt: u32,
        /// `true` if all dependencies are met.
        ready: bool,
        /// Instructions for the next attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
    },
    /// A task that this one depends on runs again, and so must this one.
    #[serde(rename = "TaskInvalidated")]
    Invalidated {
        task: TaskId,
        /// The next attempt.
        attempt: u32,
        /// The usage counted for work in flight: all that was reserved, since the real usage is unknown.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// The result is accepted: the task is completed.
    #[serde(rename = "TaskAccepted")]
    Accepted {
        task: TaskId,
        /// The attempt with the result.
        attempt: u32,
    },
    /// The result is rejected; the next attempt may be dispatched.
    #[serde(rename = "TaskRerun")]
    Rerun {
        task: TaskId,
        /// The next attempt.
        attempt: u32,
    },
    /// The task failed for good.
    #[serde(rename = "TaskFailed")]
    Failed { task: TaskId, reason: String },
    /// The parent of the task wrote instructions for it.
    #[serde(rename = "TaskInstructed")]
    Instructed {
        task: TaskId,
        /// The first attempt that gets them.
        attempt: u32,
        /// The instructions.
        text: String,
    },
    /// The task is cancelled.
    #[serde(rename = "TaskCancelled")]
    Cancelled {
        task: TaskId,
        reason: String,
        /// The dependency whose loss cancelled this task, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<TaskId>,
        /// The usage counted for work in flight: all that was reserved, since the real usage is unknown.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
}

impl TaskEvent {
    #[must_use]
    pub fn task(&self) -> &TaskId {
        match self {
            Self::Ready { task, .. }
            | Self::Pending { task }
            | Self::CapabilityMissing { task, .. }
            | Self::ParametersRejected { task, .. }
            | Self::Reopened { task, .. }
            | Self::Invalidated { task, .. }
            | Self::Accepted { task, .. }
            | Self::Rerun { task, .. }
            | Self::Failed { task, .. }
            | Self::Instructed { task, .. }
            | Self::Cancelled { task, .. } => task,
        }
    }

    /// The error that this event reports, if it reports one.
    #[must_use]
    pub fn error_message(&self) -> Option<String> {
        match self {
            Self::CapabilityMissing { capability, .. } => {
                Some(format!("no worker offers the capability {:?}", capability.as_str()))
            }
            Self::ParametersRejected { problem, .. } => Some(problem.clone()),
            Self::Failed { reason, .. } => Some(format!("failed: {reason}")),
            Self::Ready { .. }
            | Self::Pending { .. }
            | Self::Reopened { .. }
            | Self::Invalidated { .. }
            | Self::Accepted { .. }
            | Self::Rerun { .. }
            | Self::Instructed { .. }
            | Self::Cancelled { .. } => None,
        }
    }

    pub(super) fn needs_capability_check(&self) -> bool {
        match self {
            Self::Reopened { .. } | Self::Invalidated { .. } => true,
            Self::Ready { .. }
            | Self::Pending { .. }
            | Self::CapabilityMissing { .. }
            | Self::ParametersRejected { .. }
            | Self::Accepted { .. }
            | Self::Rerun { .. }
            | Self::Failed { .. }
            | Self::Instructed { .. }
            | Self::Cancelled { .. } => false,
        }
    }
}

impl fmt::Display for TaskEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { task, attempt } => write!(f, "{task} ready, attempt {attempt}"),
            Self::Pending { task } => write!(f, "{task} waits for its dependencies"),
            Self::CapabilityMissing { task, capability } => {
                write!(f, "{task} waits: no worker offers {:?}", capability.as_str())
            }
            Self::ParametersRejected { task, problem } => write!(f, "{task} waits: {problem}"),
            Self::Reopened { task, attempt, .. } => write!(f, "{task} reopened, attempt {attempt}"),
            Self::Invalidated { task, .. } => write!(f, "{task} must run again: a dependency does"),
            Self::Accepted { task, .. } => write!(f, "{task} completed"),
            Self::Rerun { task, attempt } => write!(f, "{task} runs again, attempt {attempt}"),
            Self::Failed { task, reason } => write!(f, "{task} failed: {reason}"),
            Self::Instructed { task, text, .. } => write!(f, "{task} gets instructions: {text}"),
            Self::Cancelled { task, reason, .. } => write!(f, "{task} cancelled: {reason}"),
        }
    }
}
