//! Events about reservations and the budget.

use std::fmt;

use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::form::WorkJson;
use crate::ids::TaskId;
use crate::plan::budget::ResourceAmounts;
use crate::plan::{JournalKey, Work};

/// An event about reservations and the budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum BudgetEvent {
    /// Part of the budget is reserved for work in flight.
    #[api(name = "budget_reserved")]
    Reserved {
        /// The work.
        #[api(form(WorkJson<'a>))]
        work: Work,
        /// The amounts.
        amounts: ResourceAmounts,
    },
    /// A reservation does not pay for the first request of its work.
    // None was sent: the work is returned, without the loss of an attempt, and reserves at least this next time.
    #[api(name = "budget_reservation_too_small")]
    #[serde(rename = "ReservationTooSmall")]
    TooSmall {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
        /// The amounts that it needs.
        needs: ResourceAmounts,
    },
    /// The budget runs low.
    #[serde(rename = "BudgetLow")]
    Low {
        /// The amount, for a person.
        detail: String,
    },
}

impl BudgetEvent {
    /// The task that this event concerns, if it concerns one.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Reserved { work, .. } => work.task(),
            Self::TooSmall { journal, .. } => journal.task(),
            Self::Low { .. } => None,
        }
    }
}

impl fmt::Display for BudgetEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved { work, amounts } => {
                match work {
                    Work::Task { task, .. } => write!(f, "reserved for {task}")?,
                    Work::Review { task, .. } => write!(f, "reserved for the review of {task}")?,
                    Work::Planning { .. } => f.write_str("reserved for the planner")?,
                }
                if amounts.is_empty() { f.write_str(": no limit") } else { write!(f, ": {amounts}") }
            }
            Self::TooSmall { journal, needs } => {
                write!(f, "{journal} returned: its first request needs {needs}, more than was reserved")
            }
            Self::Low { detail } => write!(f, "budget running low: {detail}"),
        }
    }
}
