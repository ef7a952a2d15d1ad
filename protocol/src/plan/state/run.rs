//! The run as a whole: how it began, what it has used, how it ended, and [`Plan`], which holds all of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::task::{Task, TaskState};
use super::turn::{Occasion, Planning};
use crate::ids::{Capability, TaskId};
use crate::plan::Work;
use crate::plan::budget::{Budget, DEFAULT_STEPS, Elapsed};
use crate::plan::reserved::Reservations;
use crate::plan::spec::{Consult, DocumentSet, Mode};
use crate::result::{ModelUsage, Usage};

/// How many waiting tasks a report of a blocked plan names.
pub const MAX_BLOCKED: usize = 12;

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
    pub(in crate::plan) tasks: Vec<Task>,
    #[serde(skip)]
    pub(in crate::plan) index: HashMap<TaskId, u32>,
    #[serde(skip)]
    pub(in crate::plan) counts: [u32; 9],
    #[serde(skip)]
    pub(in crate::plan) retries: BTreeSet<(Timestamp, u32)>,
    /// The occasions once more, to look one up in.
    #[serde(skip)]
    pub(in crate::plan) raised: HashSet<Occasion>,
    /// Dependents of tasks that have not been added yet.
    #[serde(skip)]
    pub(in crate::plan) unlinked: HashMap<TaskId, Vec<u32>>,
    #[serde(skip)]
    pub(in crate::plan) open_by_capability: BTreeMap<Capability, u32>,
    /// How many tasks have a budget of their own.
    #[serde(skip)]
    pub(in crate::plan) budgeted: u32,
    /// Reviews that are tried again, and when.
    #[serde(skip)]
    pub(in crate::plan) reviews: BTreeSet<(Timestamp, u32)>,
    /// The task whose result is to be the deliverable.
    #[serde(skip)]
    pub(in crate::plan) final_at: Option<u32>,
    /// The tasks whose work can't be given out before something is reserved for it: by capability, reviews under none.
    #[serde(skip)]
    pub(in crate::plan) waiting: BTreeMap<Option<Capability>, BTreeSet<u32>>,
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

    /// What of its time is over by `now`; `None` if it may take any.
    pub(in crate::plan) fn elapsed(&self, now: Timestamp) -> Option<Elapsed> {
        self.start.as_ref()?.budget.elapsed(self.worked(now))
    }

    /// Whether the run has begun and not ended.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.start.is_some() && self.end.is_none()
    }

    /// Whether the first failure ends the run, and has come.
    pub(in crate::plan) fn has_failed_fast(&self) -> bool {
        self.count(TaskState::Failed) > 0 && self.start.as_ref().is_some_and(|start| start.fail_fast)
    }

    /// Whether any work needs a reservation.
    pub(in crate::plan) fn is_counted(&self) -> bool {
        self.budgeted > 0 || self.start.as_ref().is_some_and(|start| start.budget.counts())
    }

    pub(in crate::plan) fn position(&self, id: &TaskId) -> Option<u32> {
        self.index.get(id).copied()
    }
}
