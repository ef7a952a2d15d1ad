//! The state of a run: what folding its decisions gives. Reading it is free; only [`super::apply`] writes it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Work;
use super::budget::{Budget, DEFAULT_STEPS};
use super::reserved::Reservations;
use super::spec::{Consult, DocumentSet, Mode, Review, TaskSpec};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::result::{ModelUsage, TaskError, Usage, Verdict};

/// How many notes are kept for the planner.
pub const MAX_NOTES: usize = 40;
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
    /// What it may use is used up. It can be gone on with, with more.
    BudgetExhausted,
    /// The planner was asked as often as it may be. It can be gone on with, with more.
    MaxSteps,
}

impl EndReason {
    /// Whether a run that ended so can be gone on with.
    #[must_use]
    pub fn is_resumable(self) -> bool {
        match self {
            Self::BudgetExhausted | Self::MaxSteps => true,
            Self::Completed
            | Self::CompletedPartial
            | Self::Failed
            | Self::Cancelled
            | Self::NoProgress
            | Self::PlannerUnavailable => false,
        }
    }
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
            Self::BudgetExhausted => "budget_exhausted",
            Self::MaxSteps => "max_steps",
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
    /// A task whose result has text beyond its summary.
    Detailed,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// What was used, by whom and of what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Spend {
    /// Everything.
    pub total: Usage,
    /// By planners.
    pub planner: Usage,
    /// By workers.
    pub workers: Usage,
    /// By critics.
    pub critics: Usage,
    /// By capability, `planner` and `critic` among them.
    pub by_capability: BTreeMap<Capability, Usage>,
    /// By model, as far as that is known.
    pub by_model: ModelUsage,
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
    /// Whether it can be gone on with.
    pub is_resumable: bool,
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
    pub spend: Spend,
    /// What work in flight may still use, in a run with a budget.
    pub reserved: Reservations,
    /// What the planner is to be asked about at its next turn.
    pub occasions: Vec<Occasion>,
    /// How often the planner was asked.
    pub turns: u32,
    /// How many turns in a row brought the run nowhere.
    pub idle_turns: u32,
    /// Why the planner is asked no more.
    pub planner_lost: Option<String>,
    /// The last of the planner's work, where it was given up: whoever has it in hand need not go on.
    pub planning_superseded: Option<Work>,
    /// What users said to the planner, oldest first: who, and what.
    pub messages: Vec<(String, String)>,
    /// The names of the commands that were carried out.
    pub commands: BTreeSet<String>,
    /// What happened since the planner was asked last, for its next turn; the newest are kept.
    pub notes: Vec<String>,
    /// Since when nothing is given out.
    pub paused: Option<Timestamp>,
    /// How long it was paused, earlier pauses only.
    pub paused_for: SignedDuration,
    /// Whether it was said that the budget comes to its end.
    pub budget_is_low: bool,
    /// Why the run is coming to its end.
    pub winding_down: Option<(EndReason, String)>,
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
    /// How many tasks have a budget of their own.
    #[serde(skip)]
    pub(super) budgeted: u32,
    /// Reviews that are tried again, and when.
    #[serde(skip)]
    pub(super) reviews: BTreeSet<(Timestamp, u32)>,
    /// The task whose result is to be the deliverable.
    #[serde(skip)]
    pub(super) final_at: Option<u32>,
    /// The tasks whose work can't be given out before something is reserved for it: by capability, reviews under none.
    #[serde(skip)]
    pub(super) waiting: BTreeMap<Option<Capability>, BTreeSet<u32>>,
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
    /// What it may use.
    pub budget: Budget,
    /// When the planner is asked.
    pub consult: Consult,
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

    /// Whether it has ended and can be gone on with.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.is_resumable)
    }

    /// Whether the planner is asked in this run.
    #[must_use]
    pub fn has_planner(&self) -> bool {
        self.start.as_ref().is_some_and(|start| start.consult > Consult::Never)
    }

    /// How often the planner may be asked.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.start.as_ref().and_then(|start| start.budget.steps).unwrap_or(DEFAULT_STEPS)
    }

    /// Whether work needs a reservation before it is given out.
    #[must_use]
    pub fn needs_reservation(&self, work: &Work) -> bool {
        let Some(start) = &self.start else { return false };
        let of_task = || work.task().and_then(|task| self.task(task));
        start.budget.counts() || of_task().is_some_and(|task| !task.spec.budget.is_empty())
    }

    /// The task whose result is to be the deliverable.
    #[must_use]
    pub fn final_task(&self) -> Option<&Task> {
        self.final_at.map(|at| &self.tasks[at as usize])
    }

    /// How long the run took until `now`, apart from pauses and from the time in which it had ended.
    #[must_use]
    pub fn worked(&self, now: Timestamp) -> SignedDuration {
        let Some(start) = &self.start else { return SignedDuration::ZERO };
        let until = self.paused.or(self.end.as_ref().map(|end| end.at)).unwrap_or(now);
        until.duration_since(start.at).saturating_sub(self.paused_for)
    }

    /// Whether the run has begun and not ended.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.start.is_some() && self.end.is_none()
    }

    /// Whether the first failure ends the run, and has come.
    pub(super) fn has_failed_fast(&self) -> bool {
        self.count(TaskState::Failed) > 0 && self.start.as_ref().is_some_and(|start| start.fail_fast)
    }

    /// Whether any work needs a reservation.
    pub(super) fn is_counted(&self) -> bool {
        self.budgeted > 0 || self.start.as_ref().is_some_and(|start| start.budget.counts())
    }

    pub(super) fn position(&self, id: &TaskId) -> Option<u32> {
        self.index.get(id).copied()
    }
}
