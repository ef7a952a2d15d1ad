//! Decided events. Events are final: folding them gives the state of a run, whatever the current rules are. Fields are
//! only ever added, with a default; a field or variant is never renamed on the wire or given another meaning.
//!
//! In code an event is nested by noun, one file each; on the wire it is flat: [`TaskEvent::Failed`] is `TaskFailed`. A new
//! event is a variant here, with its text for people, and an arm in the file of [`super::apply()`] of the same noun.
//!
//! | file | events about |
//! |---|---|
//! | `run` | the run as a whole |
//! | `user` | commands and messages of users |
//! | `planning` | the planner's turns |
//! | `graph` | the tasks that exist, and what they depend on |
//! | `task` | the state of a task between its attempts |
//! | `attempt` | attempts at tasks |
//! | `review` | reviews of results |
//! | `budget` | reservations and the budget |
//! | `provider` | waits for models' providers |
//! | `wire` | the flat form |

mod attempt;
mod budget;
mod graph;
mod planning;
mod provider;
mod review;
mod run;
mod task;
mod user;
mod wire;

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::attempt::AttemptEvent;
pub use self::budget::BudgetEvent;
pub use self::graph::GraphEvent;
pub use self::planning::PlanningEvent;
pub use self::provider::ProviderEvent;
pub use self::review::ReviewEvent;
pub use self::run::RunEvent;
pub use self::task::TaskEvent;
pub use self::user::UserEvent;
use super::Refusal;
use crate::ids::{TaskId, WorkerId};

/// A decided event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// About the run as a whole.
    Run(RunEvent),
    /// A user's command or message.
    User(UserEvent),
    /// About the planner's turns.
    Planning(PlanningEvent),
    /// A change of the task graph.
    Graph(GraphEvent),
    /// A task's change of state between its attempts.
    Task(TaskEvent),
    /// About an attempt at a task.
    Attempt(AttemptEvent),
    /// About a review of a result.
    Review(ReviewEvent),
    /// About reservations and the budget.
    Budget(BudgetEvent),
    /// About waits for models' providers.
    Provider(ProviderEvent),
}

impl Event {
    /// The task that this event concerns, if it concerns one.
    #[must_use]
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
    #[must_use]
    pub fn needs_capability_check(&self) -> bool {
        match self {
            Self::Graph(event) => event.needs_capability_check(),
            Self::Task(event) => event.needs_capability_check(),
            Self::Attempt(event) => event.needs_capability_check(),
            Self::Run(_)
            | Self::User(_)
            | Self::Planning(_)
            | Self::Review(_)
            | Self::Budget(_)
            | Self::Provider(_) => false,
        }
    }

    /// `true` if this event changes the pending effects of every task.
    #[must_use]
    pub fn affects_all_tasks(&self) -> bool {
        match self {
            Self::Run(event) => event.affects_all_tasks(),
            Self::Provider(event) => event.affects_all_tasks(),
            Self::User(_)
            | Self::Planning(_)
            | Self::Graph(_)
            | Self::Task(_)
            | Self::Attempt(_)
            | Self::Review(_)
            | Self::Budget(_) => false,
        }
    }
}

/// One line for a person. Texts of users and models may bring line breaks in.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(event) => event.fmt(f),
            Self::User(event) => event.fmt(f),
            Self::Planning(event) => event.fmt(f),
            Self::Graph(event) => event.fmt(f),
            Self::Task(event) => event.fmt(f),
            Self::Attempt(event) => event.fmt(f),
            Self::Review(event) => event.fmt(f),
            Self::Budget(event) => event.fmt(f),
            Self::Provider(event) => event.fmt(f),
        }
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
    #[must_use]
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
    #[must_use]
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
