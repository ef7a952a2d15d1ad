//! Events about the state of a task between its attempts.

use std::fmt;

use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::ids::{Capability, TaskId};
use crate::result::Usage;

/// A task's change of state between its attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum TaskEvent {
    /// The task waits for a worker.
    #[serde(rename = "TaskReady")]
    Ready { task: TaskId, attempt: u32 },
    /// The task waits for its dependencies.
    #[serde(rename = "TaskPending")]
    Pending { task: TaskId },
    /// The task waits for a worker that provides its capability; none does.
    #[api(name = "task_capability_missing")]
    CapabilityMissing {
        task: TaskId,
        /// The capability.
        capability: Capability,
    },
    /// The task waits for other parameters.
    #[api(name = "task_parameters_rejected")]
    #[serde(rename = "ParametersWrong")]
    ParametersRejected {
        task: TaskId,
        /// The problem with its parameters.
        problem: String,
    },
    /// The task runs again.
    #[serde(rename = "TaskReopened")]
    Reopened {
        task: TaskId,
        /// The next attempt.
        attempt: u32,
        /// `true` if it does not wait for dependencies.
        ready: bool,
        /// Instructions for the next attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
    },
    /// The task must run again, because one that it depends on does.
    #[serde(rename = "TaskInvalidated")]
    Invalidated {
        task: TaskId,
        /// The next attempt.
        attempt: u32,
        /// The usage counted for work in flight.
        // All that was reserved, since the real usage is unknown.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// The result of the task was accepted.
    #[api(name = "task_completed")]
    #[serde(rename = "TaskAccepted")]
    Accepted {
        task: TaskId,
        /// The attempt with the result.
        attempt: u32,
    },
    /// The result was rejected; the next attempt waits for a worker.
    #[serde(rename = "TaskRerun")]
    Rerun {
        task: TaskId,
        /// The next attempt.
        attempt: u32,
    },
    /// The task gets instructions of the task that delegated it.
    #[serde(rename = "TaskInstructed")]
    Instructed {
        task: TaskId,
        /// The first attempt that gets them.
        attempt: u32,
        /// The instructions.
        text: String,
    },
    /// The task failed for good.
    #[serde(rename = "TaskFailed")]
    Failed { task: TaskId, reason: String },
    /// The task was cancelled.
    #[serde(rename = "TaskCancelled")]
    Cancelled {
        task: TaskId,
        reason: String,
        /// The dependency whose loss cancelled it.
        #[api(name = "because_of")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<TaskId>,
        /// The usage counted for work in flight.
        // All that was reserved, since the real usage is unknown.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
}

impl TaskEvent {
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
    pub fn error_message(&self) -> Option<String> {
        if let Self::CapabilityMissing { capability, .. } = self {
            Some(format!("no worker offers the capability {:?}", capability.as_str()))
        } else if let Self::ParametersRejected { problem, .. } = self {
            Some(problem.clone())
        } else if let Self::Failed { reason, .. } = self {
            Some(format!("failed: {reason}"))
        } else {
            None
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
