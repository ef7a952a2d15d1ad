//! The state of a run: what folding its decisions gives. Reading it is free; only [`super::apply`] writes it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::{DocumentSet, Mode, TaskSpec};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::result::{TaskError, Usage, Verdict};

/// How many waiting tasks a report of a blocked plan names.
pub const MAX_BLOCKED: usize = 12;

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

/// Why a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Everything that was asked for is done.
    Completed,
    /// There is a deliverable, but not everything was done.
    CompletedPartial,
    /// There is no deliverable.
    Failed,
    /// Somebody did not want it any more.
    Cancelled,
    /// Tasks are open and none of them can ever begin.
    NoProgress,
    /// No plan could be had from the planner.
    PlannerUnavailable,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Completed => "completed",
            Self::CompletedPartial => "completed_partial",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::NoProgress => "no_progress",
            Self::PlannerUnavailable => "planner_unavailable",
        })
    }
}

/// The rule by which the deliverable was chosen among the completed tasks: the first that finds one, the newest task
/// winning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalRung {
    /// The task marked final.
    Final,
    /// A task of the capability `producer`.
    Producer,
    /// Any completed task.
    Any,
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
}

/// What a task in state errored waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErroredFor {
    /// The next attempt, at this time.
    Retry(Timestamp),
    /// A worker that offers its capability.
    Capability,
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
    /// Which try at the review of the current attempt is under way, from 1.
    pub review: u32,
    /// How many of the tasks it depends on are not accepted yet (nor skipped).
    pub unmet: u32,
    /// What it waits for, in state errored.
    pub errored: Option<ErroredFor>,
    /// Why it failed or was cancelled.
    pub reason: Option<String>,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The positions of the tasks that depend on it.
    #[serde(skip)]
    pub(super) dependents: Vec<u32>,
}

impl Task {
    /// The current attempt, if it was claimed or has ended.
    #[must_use]
    pub fn current(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.number == self.attempt)
    }

    /// Where the accepted result is, and its summary.
    #[must_use]
    pub fn accepted(&self) -> Option<(&Attempt, u64, &str)> {
        if self.state != TaskState::Completed {
            return None;
        }
        let attempt = self.current()?;
        match attempt.end.as_ref()? {
            AttemptEnd::Finished { at_sequence, summary } => Some((attempt, *at_sequence, summary)),
            AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
        }
    }

    /// What earlier attempts were told, oldest first: the reasons of rejections and errors.
    pub fn feedback(&self) -> impl Iterator<Item = String> + '_ {
        self.attempts.iter().filter(|attempt| attempt.number < self.attempt).filter_map(|attempt| {
            let number = attempt.number;
            if let Some((_, verdict)) = &attempt.verdict {
                let text = verdict.feedback.as_ref().unwrap_or(&verdict.reasoning);
                return Some(format!("Attempt {number} was rejected: {text}"));
            }
            match attempt.end.as_ref()? {
                AttemptEnd::Finished { .. } => None,
                AttemptEnd::Errored(error) => Some(format!("Attempt {number} failed: {error}")),
                AttemptEnd::TimedOut(clock) => Some(format!("Attempt {number} timed out: {clock}")),
            }
        })
    }
}

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
}

/// A run that is over.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct End {
    /// How.
    pub reason: EndReason,
    /// What a person should know about it.
    pub detail: String,
    /// The deliverable's task, and by which rule it was chosen.
    pub deliverable: Option<(TaskId, FinalRung)>,
    /// When.
    pub at: Timestamp,
}

/// The state of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// What the run was started with; `None` before its first decision.
    pub start: Option<Start>,
    /// The planner's turn, while one is open.
    pub planning: Option<Planning>,
    /// The planner's reasons, turn by turn.
    pub reasoning: Vec<String>,
    /// What all work used that has ended: planner, workers and critics.
    pub usage: Usage,
    /// How the run ended.
    pub end: Option<End>,
    /// Every fact up to this sequence is answered.
    pub through: u64,
    pub(super) tasks: Vec<Task>,
    #[serde(skip)]
    pub(super) index: HashMap<TaskId, u32>,
    #[serde(skip)]
    pub(super) counts: [u32; 9],
    #[serde(skip)]
    pub(super) retries: BTreeSet<(Timestamp, u32)>,
    /// Dependents of tasks that have not been added yet.
    #[serde(skip)]
    pub(super) unlinked: HashMap<TaskId, Vec<u32>>,
    #[serde(skip)]
    pub(super) open_by_capability: BTreeMap<Capability, u32>,
}

/// What a run was started with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Start {
    /// What the user wants.
    pub objective: String,
    /// Who makes the plan.
    pub mode: Mode,
    /// The documents of the run.
    pub documents: Option<DocumentSet>,
    /// The model that agents use.
    pub model: Option<String>,
    /// The models of single capabilities.
    pub models: BTreeMap<Capability, String>,
    /// Whether the first failed task ends the run.
    pub fail_fast: bool,
    /// When.
    pub at: Timestamp,
}

impl Plan {
    /// The tasks, in the order in which they were added.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// A task by its id.
    #[must_use]
    pub fn task(&self, id: &TaskId) -> Option<&Task> {
        self.position(id).map(|at| &self.tasks[at as usize])
    }

    /// The ids of the tasks that depend on `task`.
    pub fn dependents<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = &'a TaskId> + 'a {
        task.dependents.iter().map(|&at| &self.tasks[at as usize].spec.id)
    }

    /// How many tasks are in a state.
    #[must_use]
    pub fn count(&self, state: TaskState) -> u32 {
        self.counts[state as usize]
    }

    /// How many tasks are not in a terminal state.
    #[must_use]
    pub fn open(&self) -> u32 {
        TaskState::ALL.iter().filter(|state| !state.is_terminal()).map(|&state| self.count(state)).sum()
    }

    /// Whether the run has begun and not ended.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.start.is_some() && self.end.is_none()
    }

    pub(super) fn position(&self, id: &TaskId) -> Option<u32> {
        self.index.get(id).copied()
    }
}
