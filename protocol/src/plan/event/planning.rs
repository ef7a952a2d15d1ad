//! Events about the planner's turns.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::optional_micros;
use crate::ids::WorkerId;
use crate::plan::PlannerTrigger;
use crate::result::{ModelUsage, Usage};

/// An event about the planner's turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PlanningEvent {
    /// Something happened that the planner's next turn must consider.
    #[serde(rename = "OccasionRaised")]
    TriggerRaised {
        #[serde(rename = "occasion")]
        trigger: PlannerTrigger,
    },
    /// An attempt at a turn may be dispatched.
    #[serde(rename = "PlanningAsked")]
    Requested {
        /// The number of the turn, from 1.
        turn: u32,
        /// The number of the attempt at it, from 1.
        attempt: u32,
        /// The error of the attempt before.
        feedback: Option<String>,
        /// The triggers of the turn.
        #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "occasions")]
        triggers: Vec<PlannerTrigger>,
    },
    /// A planner claimed the turn.
    #[serde(rename = "PlanningClaimed")]
    Claimed {
        turn: u32,
        attempt: u32,
        /// The claimant.
        worker: WorkerId,
    },
    /// The planner's turn is over; the events of the edits that were accepted follow.
    ProposalAccepted {
        turn: u32,
        attempt: u32,
        /// The planner's reasons.
        reasoning: String,
        /// The edits that were refused, and why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<String>,
        /// The reason for a plain plan that was made without the planner's model; `None` for the planner's own plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fallback: Option<String>,
        /// `true` if the turn made no progress: it changed nothing, or claimed an end that was not reached.
        is_idle: bool,
        /// `true` if all that the turn changed was to repeat what had failed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_repetition: bool,
        usage: Usage,
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// The planner's attempt failed.
    #[serde(rename = "PlanningErrored")]
    Errored {
        turn: u32,
        attempt: u32,
        error: String,
        /// The time of the next attempt; `None` if there is none.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// `true` if the attempt exceeded its reservation: the next one gets all that is left.
        #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "outgrew")]
        exceeded_reservation: bool,
        /// `true` if the provider refused the request for good.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_refused_by_provider: bool,
        #[serde(default, skip_serializing_if = "Usage::is_zero")]
        usage: Usage,
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
}

impl fmt::Display for PlanningEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TriggerRaised { trigger } => write!(f, "for the planner's next turn: {trigger}"),
            Self::Requested { turn, attempt: 1, triggers, .. } => {
                write!(f, "planner turn {turn} requested:")?;
                triggers.iter().try_for_each(|trigger| write!(f, " {trigger}"))
            }
            Self::Requested { turn, attempt, .. } => {
                write!(f, "planner turn {turn} requested again, attempt {attempt}")
            }
            Self::Claimed { turn, worker, .. } => write!(f, "planner turn {turn} on {worker}"),
            Self::ProposalAccepted { turn, reasoning, refused, is_idle, is_repetition, fallback, .. } => {
                let idle = match (is_idle, is_repetition) {
                    (true, _) => "; no progress",
                    (false, true) => "; it only repeats what failed",
                    (false, false) => "",
                };
                write!(f, "planner turn {turn} finished: {reasoning}{idle}")?;
                if let Some(why) = fallback {
                    write!(f, "; plain plan, because: {why}")?;
                }
                refused.iter().try_for_each(|why| write!(f, "; refused: {why}"))
            }
            Self::Errored { turn, attempt, error, retry_at, .. } => {
                let next = if retry_at.is_some() { "will retry" } else { "no attempts left" };
                write!(f, "planner turn {turn}, attempt {attempt} failed: {error}; {next}")
            }
        }
    }
}
