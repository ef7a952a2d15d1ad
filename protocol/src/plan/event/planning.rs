//! Events about the planner's turns.

use std::fmt;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use super::optional_micros;
use crate::ids::WorkerId;
use crate::plan::PlannerTrigger;
use crate::result::{ModelUsage, Usage};

/// An event about the planner's turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum PlanningEvent {
    /// There is a reason to call the planner.
    #[api(name = "planner_triggered")]
    #[serde(rename = "OccasionRaised")]
    TriggerRaised {
        /// The reason, for a person.
        #[api(form(String), value(trigger.to_string()))]
        #[serde(rename = "occasion")]
        trigger: PlannerTrigger,
    },
    /// A turn of the planner waits for a planner.
    #[api(name = "planner_requested")]
    #[serde(rename = "PlanningAsked")]
    Requested {
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        /// The error of the attempt before.
        feedback: Option<String>,
        /// The reasons, for a person.
        #[api(form(Vec<String>), value(triggers.iter().map(ToString::to_string).collect()))]
        #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "occasions")]
        triggers: Vec<PlannerTrigger>,
    },
    /// A planner claimed the turn.
    #[api(name = "planner_claimed")]
    #[serde(rename = "PlanningClaimed")]
    Claimed {
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        worker: WorkerId,
    },
    /// The planner's turn ended with a proposal.
    // The events of the edits that were accepted follow.
    #[api(name = "planner_finished")]
    ProposalAccepted {
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        /// The planner's reasons.
        reasoning: String,
        /// The edits that were refused, with the reason.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<String>,
        /// The reason for a plain plan that was made without the planner's model; absent for the planner's own plan.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fallback: Option<String>,
        /// `true` if the turn made no progress.
        // It changed nothing, or claimed an end that was not reached.
        #[api(name = "idle", form(bool), value(*is_idle || *is_repetition))]
        is_idle: bool,
        /// `true` if all that the turn changed was to repeat what had failed.
        #[api(skip)]
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_repetition: bool,
        usage: Usage,
        #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
        models: ModelUsage,
    },
    /// An attempt at the planner's turn failed.
    #[api(name = "planner_failed")]
    #[serde(rename = "PlanningErrored")]
    Errored {
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        error: String,
        /// When it is retried; `null` if it is not.
        #[serde(with = "optional_micros")]
        retry_at: Option<Timestamp>,
        /// `true` if its reservation was used up.
        // The next attempt gets all that is left.
        #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "outgrew")]
        exceeded_reservation: bool,
        /// `true` if the model's provider refused the request for good.
        #[api(name = "refused_by_provider")]
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
