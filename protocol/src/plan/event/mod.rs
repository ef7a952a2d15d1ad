//! Decided events. Events are final: folding them gives the state of a run, whatever the current rules are. Fields are
//! only ever added, with a default; a field or variant is never renamed on the wire or given another meaning.
//!
//! In code an event is nested by noun, one file each; on the wire it is flat: [`TaskEvent::Failed`] is `TaskFailed`, and
//! `task_failed` in the API, whose form is derived ([`ApiForm`](millrace_api_form::ApiForm)): the docs of variants and fields are its
//! documentation. A new event is a variant here, with its text for people, and an arm in the file of [`super::apply()`] of the
//! same noun.
//!
//! | file | events about |
//! |---|---|
//! | `run` | the run as a whole, its users, its budget and its models' providers |
//! | `planning` | the planner's turns |
//! | `task` | tasks, their dependencies, attempts and reviews |
//! | `wire` | the flat forms |

mod planning;
mod run;
mod task;
mod wire;

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{EnumAccess, Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use self::planning::{PlanningEvent, PlanningEventJson};
pub use self::run::{RunEvent, RunEventJson};
pub use self::task::{TaskEvent, TaskEventJson};
use super::Refusal;
use super::start::PLAN_WAIT_PREFIX;
use crate::ids::{TaskId, WorkerId};
pub use crate::plan::event::run::{
    BudgetEvent, BudgetEventJson, ProviderEvent, ProviderEventJson, UserEvent, UserEventJson,
};
pub use crate::plan::event::task::{
    AttemptEvent, AttemptEventJson, GraphEvent, GraphEventJson, ReviewEvent, ReviewEventJson,
};

wire::define_events! {
    /// About the run as a whole.
    Run(RunEvent, RunEventJson),
    /// A user's command or message.
    User(UserEvent, UserEventJson),
    /// About the planner's turns.
    Planning(PlanningEvent, PlanningEventJson),
    /// A change of the task graph.
    Graph(GraphEvent, GraphEventJson),
    /// A task's change of state between its attempts.
    Task(TaskEvent, TaskEventJson),
    /// About an attempt at a task.
    Attempt(AttemptEvent, AttemptEventJson),
    /// About a review of a result.
    Review(ReviewEvent, ReviewEventJson),
    /// About reservations and the budget.
    Budget(BudgetEvent, BudgetEventJson),
    /// About waits for models' providers.
    Provider(ProviderEvent, ProviderEventJson),
}

impl Event {
    /// The task that this event concerns, if it concerns one.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Graph(event) => Some(event.task()),
            Self::Task(event) => Some(event.task()),
            Self::Attempt(event) => Some(event.task()),
            Self::Review(event) => Some(event.task()),
            Self::Budget(event) => event.task(),
            Self::Provider(event) => event.task(),
            Self::Run(_) | Self::User(_) | Self::Planning(_) => None,
        }
    }

    /// `true` if this event adds, changes, reopens or starts a task, so that its capability must be checked again.
    pub fn needs_capability_check(&self) -> bool {
        match self {
            Self::Graph(event) => event.spec().is_some(),
            Self::Task(event) => {
                matches!(event, TaskEvent::Reopened { .. } | TaskEvent::Invalidated { .. })
            }
            // The task is not checked while it waits for its start.
            Self::Attempt(event) => {
                matches!(event, AttemptEvent::WaitEnded { ended, .. } if ended.key.starts_with(PLAN_WAIT_PREFIX))
            }
            Self::Run(_)
            | Self::User(_)
            | Self::Planning(_)
            | Self::Review(_)
            | Self::Budget(_)
            | Self::Provider(_) => false,
        }
    }

    /// `true` if this event changes the pending effects of every task.
    pub fn affects_all_tasks(&self) -> bool {
        matches!(
            self,
            Self::Run(
                RunEvent::Paused
                    | RunEvent::Interrupted
                    | RunEvent::Resumed { .. }
                    | RunEvent::Reopened
                    | RunEvent::SessionTurnCame { .. }
                    | RunEvent::PlaceGranted
                    | RunEvent::PlanQuestionEnded { .. }
            ) | Self::Provider(ProviderEvent::GivenUp { .. })
        )
    }
}

/// One message on a run's `plan` subject: the inputs that were answered together, and the events decided on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The supervisor that decided.
    pub by: WorkerId,
    /// The sequence, in the lane, of the run's previous decision; 0 for the first.
    pub previous: u64,
    /// Time of the decision, by that supervisor's clock.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub at: Timestamp,
    /// The answered inputs, in order; their events are in `events`, one answer after the other.
    pub answers: Vec<InputAnswer>,
    /// The decided events.
    pub events: Vec<Event>,
}

impl Decision {
    /// The highest sequence of a fact that this decision answers. Every fact of the run up to it is answered.
    pub fn answered_through(&self) -> Option<u64> {
        self.answers
            .iter()
            .filter_map(|answer| match answer.cause {
                AnswerCause::Fact(sequence) => Some(sequence),
                AnswerCause::Clock | AnswerCause::Registry | AnswerCause::Rules => None,
            })
            .max()
    }

    /// `true` if this is the first decision of a run.
    pub fn begins_run(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Run(RunEvent::Started { .. })))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputAnswer {
    /// The input.
    pub cause: AnswerCause,
    /// The number of events it produced.
    pub events: u32,
    /// The reason for which it was refused and produced no event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerCause {
    /// A fact, by its sequence in the lane.
    Fact(u64),
    /// Time passed.
    Clock,
    /// The capabilities of the cluster changed.
    Registry,
    /// It follows from the answer before.
    Rules,
}

/// Rounds a time down to the microseconds that the log keeps.
pub(super) fn truncate_to_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// Timestamps that may be missing, as microseconds.
mod optional_micros {
    pub use jiff::fmt::serde::timestamp::microsecond::optional::{deserialize, serialize};
}
