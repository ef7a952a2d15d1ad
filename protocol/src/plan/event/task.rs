//! Events about the tasks of a plan, their dependencies, their attempts, and the reviews of these.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::form::{ErrorDetails, WaitJson};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::plan::AttemptClock;
use crate::plan::event::optional_micros;
use crate::plan::spec::{ReviewPolicy, TaskSpec};
use crate::result::{Build, ModelUsage, TaskError, Usage, Verdict};
use crate::wait::{EndedWait, EndedWaitJson, Wait};

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

/// A change of the task graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum GraphEvent {
    /// The plan has one more task.
    TaskAdded {
        /// The specification, as in a plan file.
        #[api(before(task: &'a TaskId = &spec.id))]
        spec: Arc<TaskSpec>,
        /// `true` if it does not wait for dependencies.
        ready: bool,
    },
    /// A task was changed.
    // It was waiting. If it may start now, a separate event follows.
    #[api(name = "task_changed")]
    TaskPatched {
        /// The specification from now on.
        #[api(before(task: &'a TaskId = &spec.id))]
        spec: Arc<TaskSpec>,
        /// The current attempt, if the attempt before was dispatched with the old specification; else 0.
        #[api(skip)]
        attempt: u32,
    },
    /// The result of this task is the deliverable.
    #[api(name = "task_marked_final")]
    FinalMarked { task: TaskId },
}

impl GraphEvent {
    /// The task that is added or changed.
    pub fn task(&self) -> &TaskId {
        match self {
            Self::TaskAdded { spec, .. } | Self::TaskPatched { spec, .. } => &spec.id,
            Self::FinalMarked { task } => task,
        }
    }

    /// The specification of the task from now on, if this event changes it.
    pub fn spec(&self) -> Option<&TaskSpec> {
        match self {
            Self::TaskAdded { spec, .. } | Self::TaskPatched { spec, .. } => Some(spec),
            Self::FinalMarked { .. } => None,
        }
    }
}

impl fmt::Display for GraphEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaskAdded { spec, .. } => {
                write!(f, "{} added ({}): {}", spec.id, spec.capability, spec.objective)
            }
            Self::TaskPatched { spec, .. } => write!(f, "{} changed: {}", spec.id, spec.objective),
            Self::FinalMarked { task } => write!(f, "{task} is the final task"),
        }
    }
}
