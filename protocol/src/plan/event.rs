//! What has been decided. Events are past and final: a fold of them is the state of a run, whatever the rules are by
//! then. Fields are only ever added, with a default; a field or variant is never renamed or given another meaning.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::spec::{DocumentSet, Mode, TaskSpec};
use super::{Clock, EndReason, FinalRung, Refusal};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::result::{TaskError, Usage, Verdict};

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
    },
    /// The planner is asked for a plan.
    PlanningAsked {
        /// The number of the turn, from 1.
        turn: u32,
        /// The number of the attempt at it, from 1.
        attempt: u32,
        /// What the last attempt did wrong.
        feedback: Option<String>,
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
    /// The planner's proposal was accepted; its tasks follow as events of their own.
    ProposalAccepted {
        /// The turn.
        turn: u32,
        /// The attempt.
        attempt: u32,
        /// The planner's reasons.
        reasoning: String,
        /// What it used.
        #[serde(default)]
        usage: Usage,
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
        /// What it used.
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
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
            Self::TaskReady { task, .. }
            | Self::CapabilityMissing { task, .. }
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
            | Self::RunEnded { .. } => None,
        }
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

/// A time as the log keeps it.
pub(super) fn whole_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// Timestamps that may be missing, as microseconds.
mod optional_micros {
    pub use jiff::fmt::serde::timestamp::microsecond::optional::{deserialize, serialize};
}
