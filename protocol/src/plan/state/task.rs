//! Tasks: their states, their attempts, and what is read off them. How they change is written in [`super::super::apply`].

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Capability, TaskId, WorkerId};
use crate::plan::Work;
use crate::plan::spec::{OnFailedDependency, Review, TaskSpec};
use crate::result::{TaskError, Usage, Verdict};

/// The nine states of a task. The table of moves between them is in [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It waits for tasks that it depends on.
    Pending,
    /// An attempt waits for a worker.
    Ready,
    /// A worker has claimed the attempt: a journal exists.
    Running,
    /// A result waits for a critic.
    NeedsReview,
    /// Its result is accepted. Terminal.
    Completed,
    /// Its result was rejected; the next attempt waits for a worker.
    Rerun,
    /// The last attempt came to nothing, or nobody offers the capability.
    Errored,
    /// It will not be completed. Terminal.
    Failed,
    /// It is not wanted any more. Terminal.
    Cancelled,
}

impl TaskState {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Ready,
        Self::Running,
        Self::NeedsReview,
        Self::Completed,
        Self::Rerun,
        Self::Errored,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether a task stays in it for ever.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Pending | Self::Ready | Self::Running | Self::NeedsReview | Self::Rerun | Self::Errored => {
                false
            }
        }
    }

    /// Whether a task that depends on one in this state, and has this policy, need not wait for it.
    pub(in crate::plan) fn meets(self, policy: OnFailedDependency) -> bool {
        match self {
            Self::Completed => true,
            Self::Failed | Self::Cancelled => policy == OnFailedDependency::Skip,
            Self::Pending | Self::Ready | Self::Running | Self::NeedsReview | Self::Rerun | Self::Errored => {
                false
            }
        }
    }

    /// Its name on the wire and on the board.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::NeedsReview => "needs_review",
            Self::Completed => "completed",
            Self::Rerun => "rerun",
            Self::Errored => "errored",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The three clocks of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// From the offer to the claim.
    QueueWait,
    /// From the claim to the outcome.
    RunTime,
    /// From one journal entry to the next.
    Silence,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueWait => "no worker took it in time",
            Self::RunTime => "it ran longer than its limit",
            Self::Silence => "its worker was silent for too long",
        })
    }
}

/// How an attempt ended, if it has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// It brought a result.
    Finished {
        /// Where the result is: a sequence of the lane.
        at_sequence: u64,
        /// The result in a sentence.
        summary: String,
        /// Whether there is text in it beyond the summary.
        is_detailed: bool,
    },
    /// It brought an error.
    Errored(TaskError),
    /// A clock ran out.
    TimedOut(Clock),
}

/// One attempt at a task, from its claim on; or one that no worker took in time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: u32,
    /// Who works or worked on it: the last that claimed it.
    pub worker: Option<WorkerId>,
    /// When it was claimed.
    pub claimed_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<AttemptEnd>,
    /// What was used.
    pub usage: Usage,
    /// How its result was judged, and by whom.
    pub verdict: Option<(WorkerId, Box<Verdict>)>,
    /// What its reviews used, those that came to nothing included.
    pub review_usage: Usage,
}

impl Attempt {
    /// What the next attempt should know of it; `None` if it went well, or is not over.
    fn came_to(&self) -> Option<String> {
        let number = self.number;
        if let Some((_, verdict)) = &self.verdict
            && !verdict.passed
        {
            let text = verdict.feedback.as_ref().unwrap_or(&verdict.reasoning);
            return Some(format!("Attempt {number} was rejected: {text}"));
        }
        match self.end.as_ref()? {
            AttemptEnd::Finished { .. } => None,
            AttemptEnd::Errored(error) => Some(format!("Attempt {number} failed: {error}")),
            AttemptEnd::TimedOut(clock) => Some(format!("Attempt {number} timed out: {clock}")),
        }
    }
}

/// What a task in state errored waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErroredFor {
    /// The next attempt, at this time.
    Retry(Timestamp),
    /// A worker that offers its capability.
    Capability,
    /// Parameters that its capability takes.
    Parameters,
}

/// A task of the plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Task {
    /// What was asked for.
    pub spec: TaskSpec,
    /// Its state.
    pub state: TaskState,
    /// Since when it is in that state.
    pub since: Timestamp,
    /// The number of the current attempt: the one offered, running, under review or last ended. 0 before the first.
    pub attempt: u32,
    /// The last attempt that it may have: more are given when it is opened again.
    pub granted: u32,
    /// Which try at the review of the current attempt is under way, from 1.
    pub review: u32,
    /// How the current attempt's result is judged.
    pub asked: Review,
    /// When the review is tried again, if it waits for that.
    pub review_at: Option<Timestamp>,
    /// How many of the tasks it depends on are not accepted yet (nor skipped).
    pub unmet: u32,
    /// What it waits for, in state errored.
    pub errored: Option<ErroredFor>,
    /// Whether an order of it is out while it waits for its capability.
    pub is_out: bool,
    /// What is wrong with its parameters, where it waits for others.
    pub problem: Option<String>,
    /// What planner and users told its next attempts, each with the number of the first attempt that is told.
    pub told: Vec<(u32, String)>,
    /// Work that was given out for it and is not wanted any more, and in whose queue it is; forgotten when other work of
    /// it is claimed.
    pub superseded: Vec<(Work, Capability)>,
    /// The task that it was cancelled with, if it was: it comes back with that.
    pub lost_with: Option<TaskId>,
    /// Whether it was cancelled because the run was coming to its end.
    pub is_wound_down: bool,
    /// What was asked to happen to it when a task it depends on is lost, where the end of the run has it go on without.
    #[serde(skip)]
    pub(in crate::plan) own_policy: Option<OnFailedDependency>,
    /// Why it failed or was cancelled.
    pub reason: Option<String>,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The positions of the tasks that depend on it.
    #[serde(skip)]
    pub(in crate::plan) dependents: Vec<u32>,
}

impl Task {
    /// The current attempt, if it was claimed or has ended.
    #[must_use]
    pub fn current(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.number == self.attempt)
    }

    /// The work of it whose order is out: it waits for somebody, or somebody has it in hand.
    #[must_use]
    pub fn given_out(&self) -> Option<Work> {
        let (task, attempt, review) = (|| self.spec.id.clone(), self.attempt, self.review);
        match self.state {
            TaskState::Ready | TaskState::Rerun | TaskState::Running => {
                Some(Work::Task { task: task(), attempt })
            }
            TaskState::NeedsReview if self.review_at.is_none() => {
                Some(Work::Review { task: task(), attempt, review })
            }
            // Whoever offers the capability may take it still.
            TaskState::Errored if self.is_out => Some(Work::Task { task: task(), attempt }),
            TaskState::Pending
            | TaskState::NeedsReview
            | TaskState::Errored
            | TaskState::Completed
            | TaskState::Failed
            | TaskState::Cancelled => None,
        }
    }

    /// What somebody may still have in hand of it, although it does not want it any more.
    #[must_use]
    pub fn left_behind(&self) -> Option<Work> {
        match self.state {
            TaskState::Errored | TaskState::Failed | TaskState::Cancelled if self.attempt > 0 => {}
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled => return None,
        }
        let (task, attempt, current) = (|| self.spec.id.clone(), self.attempt, self.current());
        match current.and_then(|current| current.end.as_ref()) {
            // Offered or claimed, and then cancelled. An order that waits for its capability is wanted still.
            None => (self.state == TaskState::Cancelled).then(|| Work::Task { task: task(), attempt }),
            Some(AttemptEnd::TimedOut(_)) => Some(Work::Task { task: task(), attempt }),
            Some(AttemptEnd::Errored(_)) => None,
            Some(AttemptEnd::Finished { .. }) => current
                .is_some_and(|current| current.verdict.is_none())
                .then(|| Work::Review { task: task(), attempt, review: self.review }),
        }
    }

    /// Where the accepted result is, and its summary.
    #[must_use]
    pub fn accepted(&self) -> Option<(&Attempt, u64, &str)> {
        if self.state != TaskState::Completed {
            return None;
        }
        let attempt = self.current()?;
        match attempt.end.as_ref()? {
            AttemptEnd::Finished { at_sequence, summary, .. } => Some((attempt, *at_sequence, summary)),
            AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
        }
    }

    /// What the current attempt is told of earlier ones, oldest first: the reasons of rejections and errors, and what
    /// the planner and users said.
    #[must_use]
    pub fn feedback(&self) -> Vec<String> {
        let earlier = self.attempts.iter().filter(|attempt| attempt.number < self.attempt);
        let ends = earlier.filter_map(|attempt| Some((attempt.number, attempt.came_to()?)));
        let told = self.told.iter().map(|(number, text)| (number.saturating_sub(1), text.clone()));
        let mut all: Vec<(u32, String)> = ends.chain(told).collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, text)| text).collect()
    }

    /// The attempt whose result was rejected last, and where that result is.
    #[must_use]
    pub fn rejected(&self) -> Option<(&Attempt, u64, &str)> {
        let earlier = self.attempts.iter().rev().filter(|attempt| attempt.number < self.attempt);
        earlier
            .filter(|attempt| attempt.verdict.as_ref().is_some_and(|(_, verdict)| !verdict.passed))
            .find_map(|attempt| match attempt.end.as_ref()? {
                AttemptEnd::Finished { at_sequence, summary, .. } => {
                    Some((attempt, *at_sequence, summary.as_str()))
                }
                AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
            })
    }

    /// What its attempts and their reviews have used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        for attempt in &self.attempts {
            all.add(attempt.usage);
            all.add(attempt.review_usage);
        }
        all
    }
}
