//! What has been decided. Events are past and final: a fold of them is the state of a run, whatever the rules are by
//! then. Fields are only ever added, with a default; a field or variant is never renamed or given another meaning.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::budget::{Amounts, Budget};
use super::spec::{Consult, DocumentSet, Mode, Review, TaskSpec};
use super::{Clock, EndReason, FinalRung, Occasion, Refusal, Work};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::result::{ModelUsage, TaskError, Usage, Verdict};

/// One thing that was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The run begins.
    RunStarted {
        /// What the user wants.
        objective: String,
        /// Who makes the plan.
        mode: Mode,
        /// The documents of the run.
        documents: Option<DocumentSet>,
        /// The model that agents use.
        model: Option<String>,
        /// The models of single capabilities.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        models: BTreeMap<Capability, String>,
        /// Whether the first failed task ends the run.
        fail_fast: bool,
        /// What it may use.
        #[serde(default, skip_serializing_if = "Budget::is_default")]
        budget: Box<Budget>,
        /// When the planner is asked.
        #[serde(default = "as_before")]
        consult: Consult,
    },
    /// The planner is asked for a plan.
    PlanningAsked {
        /// The number of the turn, from 1.
        turn: u32,
        /// The number of the attempt at it, from 1.
        attempt: u32,
        /// What the last attempt did wrong.
        feedback: Option<String>,
        /// Why it is asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        occasions: Vec<Occasion>,
    },
    /// The planner is to be asked about something, at its next turn.
    OccasionRaised {
        /// What.
        occasion: Occasion,
    },
    /// A planner took the turn.
    PlanningClaimed {
        /// The turn.
        turn: u32,
        /// The attempt.
        attempt: u32,
        /// Who took it.
        worker: WorkerId,
    },
    /// The planner's turn is over; what it changed follows as events of their own.
    ProposalAccepted {
        /// The turn.
        turn: u32,
        /// The attempt.
        attempt: u32,
        /// The planner's reasons.
        reasoning: String,
        /// What of it does not hold any more, and why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<String>,
        /// Whether it brought the run nowhere: it changed nothing, or claimed an end that is none.
        #[serde(default)]
        is_idle: bool,
        /// What it used.
        #[serde(default)]
        usage: Usage,
        /// The same by model.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// The planner's attempt came to nothing.
    PlanningErrored {
        /// The turn.
        turn: u32,
        /// The attempt.
        attempt: u32,
        /// Why.
        error: String,
        /// When the next attempt begins; `None` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// Whether what it had reserved was too little: the next attempt has all that is left.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        outgrew: bool,
        /// What it used.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The same by model.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// The plan has one more task.
    TaskAdded {
        /// The task.
        spec: TaskSpec,
        /// Whether nothing it depends on is open, so that it is ready at once.
        ready: bool,
    },
    /// A task may begin its next attempt.
    TaskReady {
        /// The task.
        task: TaskId,
        /// The attempt, from 1.
        attempt: u32,
    },
    /// A task can't begin because nobody offers its capability.
    CapabilityMissing {
        /// The task.
        task: TaskId,
        /// What it needs.
        capability: Capability,
    },
    /// A task can't begin because its parameters are not what its capability takes.
    ParametersWrong {
        /// The task.
        task: TaskId,
        /// What is wrong with them.
        problem: String,
    },
    /// A task that waits is another now. Whether it may begin follows as an event of its own.
    TaskPatched {
        /// The task as it is now.
        spec: Box<TaskSpec>,
        /// The attempt that waits now, where another was offered already under what it was.
        #[serde(default)]
        attempt: u32,
    },
    /// Its result is the deliverable, and no other's.
    FinalMarked {
        /// The task.
        task: TaskId,
    },
    /// A task runs once more.
    TaskReopened {
        /// The task.
        task: TaskId,
        /// The next attempt.
        attempt: u32,
        /// Whether nothing it depends on is open.
        ready: bool,
        /// What the next attempt is told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feedback: Option<String>,
    },
    /// What a task was built on is done again, and so will it be.
    TaskInvalidated {
        /// The task.
        task: TaskId,
        /// The attempt that waits for that.
        attempt: u32,
        /// What is counted as used of what was in hand: all that was reserved.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// Work may use so much; until it ends, nobody else may.
    Reserved {
        /// The work.
        work: Work,
        /// How much.
        amounts: Amounts,
    },
    /// The soft part of the budget is used up.
    BudgetLow {
        /// What of it, for a person.
        detail: String,
    },
    /// Nothing new is begun any more but what the deliverable needs; then the run ends for this reason.
    WindingDown {
        /// Why.
        reason: EndReason,
        /// What a person should know about it.
        detail: String,
    },
    /// A user's command is carried out; what it changes follows as events of their own.
    Commanded {
        /// The name of the command.
        id: String,
        /// Who gave it.
        by: String,
        /// What it was, for a person.
        what: String,
    },
    /// A user said something to the planner.
    MessageReceived {
        /// Who.
        by: String,
        /// What.
        text: String,
    },
    /// Nothing more is given out.
    Paused,
    /// Work is given out again, under this budget.
    Resumed {
        /// What the run may use from now on.
        budget: Box<Budget>,
    },
    /// A run that had ended goes on.
    RunReopened,
    /// A run that has ended can't be gone on with any more.
    RunRetired,
    /// The capability that a task needs is there; it waits for what it depends on.
    TaskPending {
        /// The task.
        task: TaskId,
    },
    /// A worker took an attempt.
    AttemptClaimed {
        /// The task.
        task: TaskId,
        /// The attempt.
        attempt: u32,
        /// Who took it.
        worker: WorkerId,
    },
    /// An attempt brought a result.
    AttemptFinished {
        /// The task.
        task: TaskId,
        /// The attempt.
        attempt: u32,
        /// Who worked on it.
        worker: WorkerId,
        /// The sequence, in the lane, of the journal entry that holds the result.
        at_sequence: u64,
        /// The result in a sentence.
        summary: String,
        /// Whether there is text in it beyond the summary.
        #[serde(default = "yes")]
        is_detailed: bool,
        /// How it is judged, where that is not as the task says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        review: Option<Review>,
        /// What it used.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The same by model.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// An attempt ended without a result.
    AttemptErrored {
        /// The task.
        task: TaskId,
        /// The attempt.
        attempt: u32,
        /// Why.
        error: TaskError,
        /// When the next attempt begins; `None` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
    },
    /// One of an attempt's clocks ran out.
    AttemptTimedOut {
        /// The task.
        task: TaskId,
        /// The attempt.
        attempt: u32,
        /// Which clock.
        clock: Clock,
        /// When the next attempt begins; `None` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// What is counted as used, since nobody can say what was: all that was reserved.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// A critic's review came to nothing.
    ReviewErrored {
        /// The task.
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// Which try at the review this was, from 1.
        review: u32,
        /// Why.
        error: String,
        /// Whether another critic is asked.
        again: bool,
        /// When; `None` is at once.
        #[serde(default, with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// What it used.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        /// The same by model.
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// A review is to be tried again.
    ReviewReady {
        /// The task.
        task: TaskId,
    },
    /// A critic judged a result.
    VerdictGiven {
        /// The task.
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// Who judged.
        critic: WorkerId,
        /// The judgement.
        verdict: Verdict,
    },
    /// A result is accepted: the task is completed.
    TaskAccepted {
        /// The task.
        task: TaskId,
        /// The attempt whose result it is.
        attempt: u32,
    },
    /// A result is rejected and the task runs again.
    TaskRerun {
        /// The task.
        task: TaskId,
        /// The next attempt.
        attempt: u32,
    },
    /// A task will not be completed.
    TaskFailed {
        /// The task.
        task: TaskId,
        /// Why.
        reason: String,
    },
    /// A task is not wanted any more.
    TaskCancelled {
        /// The task.
        task: TaskId,
        /// Why.
        reason: String,
        /// The task that it was lost with, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<TaskId>,
        /// What is counted as used of what was in hand, since nobody can say what was: all that was reserved.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
    },
    /// The run is over.
    RunEnded {
        /// How.
        reason: EndReason,
        /// What a person should know about it; empty if nothing.
        #[serde(default)]
        detail: String,
        /// The task whose result is the deliverable, and by which rule it was chosen.
        deliverable: Option<(TaskId, FinalRung)>,
    },
}

impl Event {
    /// The task that it is about, if it is about one.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::TaskAdded { spec, .. } => Some(&spec.id),
            Self::TaskPatched { spec, .. } => Some(&spec.id),
            Self::Reserved { work, .. } => work.task(),
            Self::TaskReady { task, .. }
            | Self::CapabilityMissing { task, .. }
            | Self::ParametersWrong { task, .. }
            | Self::FinalMarked { task }
            | Self::TaskReopened { task, .. }
            | Self::TaskInvalidated { task, .. }
            | Self::ReviewReady { task }
            | Self::TaskPending { task }
            | Self::AttemptClaimed { task, .. }
            | Self::AttemptFinished { task, .. }
            | Self::AttemptErrored { task, .. }
            | Self::AttemptTimedOut { task, .. }
            | Self::ReviewErrored { task, .. }
            | Self::VerdictGiven { task, .. }
            | Self::TaskAccepted { task, .. }
            | Self::TaskRerun { task, .. }
            | Self::TaskFailed { task, .. }
            | Self::TaskCancelled { task, .. } => Some(task),
            Self::RunStarted { .. }
            | Self::PlanningAsked { .. }
            | Self::PlanningClaimed { .. }
            | Self::ProposalAccepted { .. }
            | Self::PlanningErrored { .. }
            | Self::OccasionRaised { .. }
            | Self::BudgetLow { .. }
            | Self::WindingDown { .. }
            | Self::Commanded { .. }
            | Self::MessageReceived { .. }
            | Self::Paused
            | Self::Resumed { .. }
            | Self::RunReopened
            | Self::RunRetired
            | Self::RunEnded { .. } => None,
        }
    }

    /// Whether there is a task from it on, or a task as it was not before, of which nobody has said that it can be done.
    #[must_use]
    pub fn asks_the_cluster(&self) -> bool {
        matches!(
            self,
            Self::TaskAdded { .. }
                | Self::TaskPatched { .. }
                | Self::TaskReopened { .. }
                | Self::TaskInvalidated { .. }
        )
    }

    /// Whether it changes what is owed for every task.
    #[must_use]
    pub fn concerns_all(&self) -> bool {
        matches!(self, Self::Paused | Self::Resumed { .. } | Self::RunReopened)
    }
}

/// What one append to a run's `plan` subject holds: the events that were decided together, and what they answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The supervisor that decided.
    pub by: WorkerId,
    /// The sequence, in the lane, of the run's previous decision; 0 for the first.
    pub previous: u64,
    /// When it was decided, by that supervisor's clock.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub at: Timestamp,
    /// What was answered, in order; the events of all answers lie one after the other in `events`.
    pub answers: Vec<Answer>,
    /// What was decided.
    pub events: Vec<Event>,
}

impl Decision {
    /// The highest sequence of a fact that this decision answers. Every fact of the run up to it is answered.
    #[must_use]
    pub fn through(&self) -> Option<u64> {
        self.answers
            .iter()
            .filter_map(|answer| match answer.cause {
                Cause::Fact(sequence) => Some(sequence),
                Cause::Clock | Cause::Registry | Cause::Rules => None,
            })
            .max()
    }
}

/// What was decided on one fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What was answered.
    pub cause: Cause,
    /// How many events it produced.
    #[serde(default)]
    pub events: u32,
    /// Why it produced none, where it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

/// Why something was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// A fact, by its sequence in the lane.
    Fact(u64),
    /// Time passed.
    Clock,
    /// What the cluster can do has changed.
    Registry,
    /// It follows from what was decided just before.
    Rules,
}

fn yes() -> bool {
    true
}

/// Runs of before there was a choice made one plan and asked nobody again.
fn as_before() -> Consult {
    Consult::Never
}

/// A time as the log keeps it.
pub(super) fn whole_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// Timestamps that may be missing, as microseconds.
mod optional_micros {
    pub use jiff::fmt::serde::timestamp::microsecond::optional::{deserialize, serialize};
}
