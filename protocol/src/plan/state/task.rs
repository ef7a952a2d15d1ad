//! Tasks: states, and values derived from them. [`super::super::apply()`] changes them.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attempt::{Attempt, AttemptEnd, AttemptReview};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::plan::Work;
use crate::plan::attendance::UncountedTime;
use crate::plan::spec::{OnFailedDependency, ReviewPolicy, TaskSpec};
use crate::result::Usage;
use crate::wait::describe_waits;

/// The states of a task. The table of transitions is in [`crate::plan`].
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Named,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It waits for its dependencies.
    Pending,
    /// An attempt waits for a worker.
    Ready,
    /// A worker claimed the attempt: a journal exists.
    Running,
    /// A result waits for a critic.
    NeedsReview,
    /// Its result is accepted. Terminal.
    Completed,
    /// Its result was rejected; the next attempt waits for a worker.
    Rerun,
    /// It waits for its backoff, its capability, or other parameters.
    Errored,
    /// It failed for good. Terminal.
    Failed,
    /// It was cancelled. Terminal.
    Cancelled,
    /// It waits for something outside, without a worker: its attempt is parked, or persons judge its result.
    Waiting,
}

impl TaskState {
    /// `true` if a task leaves this state only when it is reopened.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Pending
            | Self::Ready
            | Self::Running
            | Self::NeedsReview
            | Self::Rerun
            | Self::Errored
            | Self::Waiting => false,
        }
    }

    /// `true` if a task in this state meets a dependency with this policy.
    pub(in crate::plan) fn satisfies_dependency(self, policy: OnFailedDependency) -> bool {
        match self {
            Self::Completed => true,
            Self::Failed | Self::Cancelled => policy == OnFailedDependency::Skip,
            Self::Pending
            | Self::Ready
            | Self::Running
            | Self::NeedsReview
            | Self::Rerun
            | Self::Errored
            | Self::Waiting => false,
        }
    }

    /// Its name on the wire and on the board.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.name()
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The event that a task in state errored waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErroredTaskWait {
    /// The next attempt, at this time.
    Retry(Timestamp),
    /// A worker that offers its capability.
    Capability {
        /// `true` if an order was dispatched before the capability went missing: it stays in its queue.
        is_dispatched: bool,
    },
    /// Parameters that its capability accepts.
    Parameters {
        /// The problem with the present ones.
        problem: String,
    },
}

/// The state of a task with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskPhase {
    /// [`TaskState::Pending`].
    Pending,
    /// [`TaskState::Ready`].
    Ready,
    /// [`TaskState::Running`].
    Running,
    /// [`TaskState::NeedsReview`]. [`Attempt::review`] has the review.
    NeedsReview {
        /// When the review is retried, if it waits for its backoff.
        retry_at: Option<Timestamp>,
    },
    /// [`TaskState::Completed`].
    Completed,
    /// [`TaskState::Rerun`].
    Rerun,
    /// [`TaskState::Errored`], with the event that the task waits for; `None` if it is about to fail for good.
    Errored(Option<ErroredTaskWait>),
    /// [`TaskState::Failed`].
    Failed { reason: String },
    /// [`TaskState::Cancelled`].
    Cancelled {
        reason: String,
        /// The dependency whose loss cancelled the task, if one did: the task comes back with it.
        with: Option<TaskId>,
        /// `true` if it was cancelled because the run was winding down.
        is_wound_down: bool,
    },
    /// [`TaskState::Waiting`]. [`Attempt::waits`] has the waits.
    Waiting {
        /// The first time at which one of its waits ends, whatever else happens.
        until: Option<Timestamp>,
    },
}

impl TaskPhase {
    pub fn state(&self) -> TaskState {
        match self {
            Self::Pending => TaskState::Pending,
            Self::Ready => TaskState::Ready,
            Self::Running => TaskState::Running,
            Self::NeedsReview { .. } => TaskState::NeedsReview,
            Self::Completed => TaskState::Completed,
            Self::Rerun => TaskState::Rerun,
            Self::Errored(_) => TaskState::Errored,
            Self::Failed { .. } => TaskState::Failed,
            Self::Cancelled { .. } => TaskState::Cancelled,
            Self::Waiting { .. } => TaskState::Waiting,
        }
    }
}

/// A task of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The specification, shared with the event that added or changed the task.
    pub spec: Arc<TaskSpec>,
    /// The state, with its data.
    pub phase: TaskPhase,
    /// When the task entered that state.
    pub since: Timestamp,
    /// The number of the current attempt: the one dispatched, running, under review or last ended. 0 before the first.
    pub attempt: u32,
    /// The number of the last attempt that the task may have; raised when it is reopened.
    pub granted: u32,
    /// The number of dependencies that are not met yet.
    pub unmet: u32,
    /// The instructions of the planner and of users, each with the number of the first attempt that gets them.
    pub instructions: Vec<(u32, String)>,
    /// Dispatched work that is not wanted any more, with its queue; dropped when other work of the task is claimed.
    pub superseded: Vec<(Work, Capability)>,
    /// The policy to restore when the run is resumed, if winding down replaced it.
    pub(in crate::plan) own_policy: Option<OnFailedDependency>,
    /// The time of its current work that its clock does not count.
    pub uncounted: UncountedTime,
    /// The attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The positions of the tasks that depend on this one.
    pub(in crate::plan) dependents: Vec<u32>,
}

impl Task {
    pub fn state(&self) -> TaskState {
        self.phase.state()
    }

    /// Returns the event that the task waits for, if its state is errored.
    pub fn errored_wait(&self) -> Option<&ErroredTaskWait> {
        if let TaskPhase::Errored(errored) = &self.phase { errored.as_ref() } else { None }
    }

    /// `true` if an attempt at the task, or its next one, waits for a worker.
    pub fn is_waiting_for_worker(&self) -> bool {
        matches!(self.state(), TaskState::Ready | TaskState::Rerun)
            || matches!(self.errored_wait(), Some(ErroredTaskWait::Capability { .. }))
    }

    /// `true` if a worker has the current attempt, or had it when an interrupt returned it: entries that the worker wrote before it
    /// was notified count.
    pub(in crate::plan) fn has_worker_or_lost_it_to_interrupt(&self) -> bool {
        let has_begun = |attempt: &Attempt| attempt.claimed_at.is_some() && attempt.end.is_none();
        match self.state() {
            TaskState::Running => true,
            TaskState::Ready => self.current_attempt().is_some_and(has_begun),
            TaskState::Pending
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting => false,
        }
    }

    /// `true` if the current attempt was parked and waits for a worker again: it has done a part of its work.
    pub(in crate::plan) fn is_woken(&self) -> bool {
        let was_parked = |attempt: &Attempt| {
            !attempt.waits.is_empty() && attempt.claimed_at.is_some() && attempt.end.is_none()
        };
        self.state() == TaskState::Ready && self.current_attempt().is_some_and(was_parked)
    }

    /// `true` if the current attempt is parked and no worker has claimed it: it waits for its start.
    pub fn is_waiting_to_start(&self) -> bool {
        let has_begun = |attempt: &Attempt| attempt.claimed_at.is_some();
        self.state() == TaskState::Waiting && !self.current_attempt().is_some_and(has_begun)
    }

    /// `true` if the current attempt would be dispatched, although the conditions for its start have not been checked.
    pub(in crate::plan) fn has_unchecked_start(&self) -> bool {
        let is_checked = |attempt: &Attempt| !attempt.waits.is_empty() || attempt.claimed_at.is_some();
        self.spec.has_start_conditions()
            && matches!(self.phase, TaskPhase::Ready | TaskPhase::Rerun)
            && !self.current_attempt().is_some_and(is_checked)
    }

    /// Describes what the task waits for; `None` if it is in progress or has ended.
    pub fn describe_wait(&self) -> Option<String> {
        let capability = self.spec.capability.as_str();
        match &self.phase {
            TaskPhase::Pending => {
                Some(format!("{} of {} dependencies", self.unmet, self.spec.depends_on.len()))
            }
            TaskPhase::Ready | TaskPhase::Rerun => Some(format!("a worker that provides {capability}")),
            TaskPhase::Errored(None) => None,
            TaskPhase::Errored(Some(ErroredTaskWait::Retry(at))) => {
                Some(format!("the next attempt, at {}", at.strftime("%H:%M:%S")))
            }
            TaskPhase::Errored(Some(ErroredTaskWait::Capability { .. })) => {
                Some(format!("a worker that provides {capability}; none is running"))
            }
            TaskPhase::Errored(Some(ErroredTaskWait::Parameters { problem })) => {
                Some(format!("other parameters ({problem})"))
            }
            TaskPhase::NeedsReview { retry_at: Some(at) } => {
                Some(format!("the next review, at {}", at.strftime("%H:%M:%S")))
            }
            TaskPhase::Waiting { .. } => Some(describe_waits(self.current_attempt()?.open_waits())),
            TaskPhase::NeedsReview { retry_at: None }
            | TaskPhase::Running
            | TaskPhase::Completed
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => None,
        }
    }

    /// The problem with the task's parameters, if it waits for others.
    pub fn parameter_problem(&self) -> Option<&str> {
        if let Some(ErroredTaskWait::Parameters { problem }) = self.errored_wait() {
            Some(problem)
        } else {
            None
        }
    }

    /// The reason for which the task failed or was cancelled.
    pub fn end_reason(&self) -> Option<&str> {
        if let TaskPhase::Failed { reason } | TaskPhase::Cancelled { reason, .. } = &self.phase {
            Some(reason)
        } else {
            None
        }
    }

    /// The dependency whose loss cancelled the task, if one did.
    pub fn cancelled_with_dependency(&self) -> Option<&TaskId> {
        if let TaskPhase::Cancelled { with, .. } = &self.phase { with.as_ref() } else { None }
    }

    /// `true` if the task was cancelled because the run was winding down.
    pub fn is_wound_down(&self) -> bool {
        matches!(self.phase, TaskPhase::Cancelled { is_wound_down: true, .. })
    }

    /// When the review is retried, if it waits for its backoff.
    pub fn review_retry_at(&self) -> Option<Timestamp> {
        if let TaskPhase::NeedsReview { retry_at } = self.phase { retry_at } else { None }
    }

    /// The number of the current or last try at a review, from 1; 0 before the first.
    pub fn review_number(&self) -> u32 {
        self.last_review().map_or(0, |review| review.number)
    }

    /// The policy of the current or last review.
    pub fn review_policy(&self) -> &ReviewPolicy {
        self.last_review().map_or(&ReviewPolicy::None, AttemptReview::policy)
    }

    fn last_review(&self) -> Option<&AttemptReview> {
        self.attempts.iter().rev().find_map(|attempt| attempt.review.as_ref())
    }

    /// The current attempt, if it was claimed or has ended.
    pub fn current_attempt(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.number == self.attempt)
    }

    /// The worker that has the current attempt.
    pub fn claimant(&self) -> Option<&WorkerId> {
        let running = self.current_attempt().filter(|_| self.state() == TaskState::Running);
        running.and_then(|attempt| attempt.worker.as_ref())
    }

    /// `false` if the result of the current attempt states that it does not answer its question.
    pub fn is_answered(&self) -> bool {
        let end = self.current_attempt().and_then(|attempt| attempt.end.as_ref());
        !matches!(end, Some(AttemptEnd::Finished { is_answered: false, .. }))
    }

    /// The dispatched work of the task: it waits in its queue, or is in flight.
    pub fn dispatched_work(&self) -> Option<Work> {
        match &self.phase {
            TaskPhase::Ready | TaskPhase::Rerun | TaskPhase::Running => Some(self.attempt_work()),
            TaskPhase::NeedsReview { retry_at: None } => Some(self.review_work()),
            // A worker that still offers the capability may claim it.
            TaskPhase::Errored(Some(ErroredTaskWait::Capability { is_dispatched: true })) => {
                Some(self.attempt_work())
            }
            TaskPhase::Pending
            | TaskPhase::Waiting { .. }
            | TaskPhase::NeedsReview { .. }
            | TaskPhase::Errored(_)
            | TaskPhase::Completed
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => None,
        }
    }

    /// The orphaned work of the task: a worker may still be busy with it, although the task does not want it any more.
    pub fn orphaned_work(&self) -> Option<Work> {
        let is_cancelled = match &self.phase {
            TaskPhase::Cancelled { .. } => true,
            TaskPhase::Errored(_) | TaskPhase::Failed { .. } => false,
            TaskPhase::Pending
            | TaskPhase::Ready
            | TaskPhase::Running
            | TaskPhase::Waiting { .. }
            | TaskPhase::NeedsReview { .. }
            | TaskPhase::Completed
            | TaskPhase::Rerun => return None,
        };
        if self.attempt == 0 {
            return None;
        }
        let current = self.current_attempt();
        match current.and_then(|current| current.end.as_ref()) {
            // Dispatched or claimed, and then cancelled. An order that waits for its capability is still wanted.
            None => is_cancelled.then(|| self.attempt_work()),
            Some(AttemptEnd::TimedOut(_)) => Some(self.attempt_work()),
            Some(AttemptEnd::Errored(_)) => None,
            Some(AttemptEnd::Finished { .. }) => {
                current.is_some_and(|current| current.verdict().is_none()).then(|| self.review_work())
            }
        }
    }

    /// The work that holds a reservation: the dispatched work, or the parked attempt, whose usage so far is counted at its end.
    pub fn reserved_work(&self) -> Option<Work> {
        match self.phase {
            TaskPhase::Waiting { .. } => Some(self.attempt_work()),
            TaskPhase::Pending
            | TaskPhase::Ready
            | TaskPhase::Running
            | TaskPhase::NeedsReview { .. }
            | TaskPhase::Completed
            | TaskPhase::Rerun
            | TaskPhase::Errored(_)
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => self.dispatched_work(),
        }
    }

    pub(in crate::plan) fn attempt_work(&self) -> Work {
        Work::Task { task: self.spec.id.clone(), attempt: self.attempt }
    }

    /// The current try at the review as work.
    pub(in crate::plan) fn review_work(&self) -> Work {
        Work::Review { task: self.spec.id.clone(), attempt: self.attempt, review: self.review_number() }
    }

    /// The accepted attempt, the sequence of its result in the lane, and the summary.
    pub fn accepted_result(&self) -> Option<(&Attempt, u64, &str)> {
        if self.state() != TaskState::Completed {
            return None;
        }
        let attempt = self.current_attempt()?;
        match attempt.end.as_ref()? {
            AttemptEnd::Finished { at_sequence, summary, .. } => Some((attempt, *at_sequence, summary)),
            AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
        }
    }

    /// The feedback for the current attempt, oldest first: rejections and errors of earlier attempts, and the instructions of
    /// the planner and of users.
    pub fn collect_feedback(&self) -> Vec<String> {
        let earlier = self.attempts.iter().filter(|attempt| attempt.number < self.attempt);
        let ends = earlier.filter_map(|attempt| Some((attempt.number, attempt.failure_feedback()?)));
        let instructions =
            self.instructions.iter().map(|(number, text)| (number.saturating_sub(1), text.clone()));
        let mut all: Vec<(u32, String)> = ends.chain(instructions).collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, text)| text).collect()
    }

    /// The attempt whose result was rejected last, the sequence of that result in the lane, and the summary.
    pub fn last_rejected_result(&self) -> Option<(&Attempt, u64, &str)> {
        let earlier = self.attempts.iter().rev().filter(|attempt| attempt.number < self.attempt);
        earlier.filter(|attempt| attempt.verdict().is_some_and(|(_, verdict)| !verdict.passed)).find_map(
            |attempt| match attempt.end.as_ref()? {
                AttemptEnd::Finished { at_sequence, summary, .. } => {
                    Some((attempt, *at_sequence, summary.as_str()))
                }
                AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
            },
        )
    }

    /// The attempt whose children may run: the current one, from its dispatch to its end.
    pub fn live_attempt(&self) -> Option<u32> {
        let is_live = match &self.phase {
            // A result that persons judge has ended its attempt.
            TaskPhase::Waiting { .. } => self.current_attempt().is_some_and(|attempt| attempt.end.is_none()),
            TaskPhase::Ready
            | TaskPhase::Rerun
            | TaskPhase::Running
            | TaskPhase::Errored(Some(ErroredTaskWait::Capability { is_dispatched: true })) => true,
            TaskPhase::Pending
            | TaskPhase::NeedsReview { .. }
            | TaskPhase::Errored(_)
            | TaskPhase::Completed
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => false,
        };
        is_live.then_some(self.attempt)
    }

    /// `true` if its attempt waits for nothing but children.
    pub fn waits_for_children_only(&self) -> bool {
        let mut open = self.current_attempt().into_iter().flat_map(Attempt::open_waits);
        self.state() == TaskState::Waiting && open.all(|wait| !wait.condition.tasks().is_empty())
    }

    /// The usage of all attempts and their reviews.
    pub fn total_usage(&self) -> Usage {
        let mut all = Usage::default();
        for attempt in &self.attempts {
            all.add(attempt.usage);
            all.add(attempt.review_usage());
        }
        all
    }
}
