//! Events about the run as a whole.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::form::{DeliverableChoice, QuestionJson};
use crate::ids::{Capability, SessionId, TaskId};
use crate::labels::Labels;
use crate::plan::attendance::StoppedClocksJson;
use crate::plan::budget::Budget;
use crate::plan::spec::{DocumentSet, EarlierRun, PlannerConsultMode, PlanningMode};
use crate::plan::{DeliverableRule, EndReason, RunHold, StoppedClocks};
use crate::wait::{Wait, WaitEnd, WaitEndJson};

/// An event about the run as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum RunEvent {
    /// The run started.
    #[serde(rename = "RunStarted")]
    Started {
        /// The objective.
        objective: String,
        /// The planning mode.
        mode: PlanningMode,
        /// The documents of the run.
        documents: Option<Box<DocumentSet>>,
        /// The model of agents.
        model: Option<String>,
        /// The models by capability.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        models: BTreeMap<Capability, String>,
        /// `true` if the first failed task ends the run.
        fail_fast: bool,
        /// The limits of the run.
        #[serde(default, skip_serializing_if = "Budget::is_default")]
        budget: Box<Budget>,
        /// When the planner is called.
        consult: PlannerConsultMode,
        /// `true` if a person must approve the plan before its first task starts.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        approve_plan: bool,
        /// The criteria for the deliverable.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        criteria: Vec<String>,
        /// The runs that this run follows up on.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        after: Vec<EarlierRun>,
        /// The labels.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        labels: Labels,
        /// The session.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<SessionId>,
    },
    /// The run waits before its first task.
    #[serde(rename = "RunHeld")]
    Held {
        /// The reason.
        hold: RunHold,
        /// The time of the submission, by which places are given; `None` where only the order of the session counts.
        #[api(skip)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submitted: Option<Timestamp>,
    },
    /// The turn of the run in its session has come. It sees the results of the runs before it.
    SessionTurnCame {
        /// The number of the run in its session, from 1.
        position: u32,
        /// The runs before it whose results it sees.
        // In addition to those that its submission names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        earlier: Vec<EarlierRun>,
        /// All of its documents, the results of these runs included.
        documents: Option<Box<DocumentSet>>,
    },
    /// The run has a place among the running runs.
    PlaceGranted,
    /// The run can't wait for a place, since as many runs as allowed wait. It ends.
    PlaceRefused {
        /// The number of waiting runs.
        waiting: u32,
    },
    /// Clocks have not counted the time in which a worker, or every supervisor, was absent.
    ClocksStopped(#[api(form(StoppedClocksJson<'a>))] StoppedClocks),
    /// A person must approve the plan.
    PlanQuestionAsked {
        /// The question.
        #[api(name = "question", form(Option<QuestionJson<'a>>), value(wait.condition.question().map(QuestionJson::from)))]
        wait: Wait,
        /// `true` if it is the next round of the open question, because the plan has changed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// The question about the plan has ended.
    // If it was approved, tasks start.
    PlanQuestionEnded {
        /// Its end.
        #[api(form(WaitEndJson<'a>))]
        end: WaitEnd,
    },
    /// No new tasks start until the run is resumed.
    #[api(name = "run_paused")]
    Paused,
    /// Nothing of the run is in progress until it is resumed.
    // Work in flight is returned to wait for a worker as the same attempt.
    #[serde(rename = "RunInterrupted")]
    Interrupted,
    /// The run continues after a pause or an interrupt, or with another budget.
    #[api(name = "run_resumed")]
    Resumed {
        /// The new limits.
        budget: Box<Budget>,
    },
    /// The run ends as soon as what is in progress has ended.
    // Only work that the deliverable needs still starts.
    #[api(name = "run_winding_down")]
    WindingDown { reason: EndReason, detail: String },
    /// The run continues after its end.
    #[serde(rename = "RunReopened")]
    Reopened,
    /// The run can no longer be resumed.
    #[serde(rename = "RunRetired")]
    Retired,
    /// The run ended.
    #[serde(rename = "RunEnded")]
    Ended {
        reason: EndReason,
        detail: String,
        /// The task whose result is the deliverable.
        #[api(form(Option<DeliverableChoice<'a>>), value(deliverable.as_ref().map(Into::into)))]
        deliverable: Option<(TaskId, DeliverableRule)>,
        /// `true` if the run can be resumed.
        // As it is, or, if it ended with some results, with larger limits of its capabilities or attempts. Apart from that, a run
        // whose budget is exhausted can be resumed with a larger one.
        #[api(name = "resumable")]
        #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "resumable")]
        is_resumable: bool,
    },
}

impl RunEvent {
    /// Creates the end of a run.
    pub(in crate::plan) fn ended(
        reason: EndReason,
        detail: String,
        deliverable: Option<(TaskId, DeliverableRule)>,
    ) -> Self {
        Self::Ended { reason, detail, deliverable, is_resumable: reason.can_be_retried() }
    }
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { .. } => f.write_str("run started"),
            Self::Held { hold, .. } => write!(f, "run waits for {hold}"),
            Self::SessionTurnCame { position, earlier, .. } => {
                let seen = earlier.len();
                write!(
                    f,
                    "run is number {position} of its session and sees the results of {seen} earlier runs"
                )
            }
            Self::PlaceGranted => f.write_str("run has a place among the running runs"),
            Self::PlaceRefused { waiting } => write!(f, "run refused: {waiting} runs wait for a place"),
            Self::PlanQuestionAsked { wait, again: false } => write!(f, "waiting for {}", wait.condition),
            Self::PlanQuestionAsked { wait, again: true } => {
                write!(f, "the plan has changed; waiting for {}", wait.condition)
            }
            Self::PlanQuestionEnded { end } => write!(f, "plan: {end}"),
            Self::ClocksStopped(stopped) => stopped.fmt(f),
            Self::Paused => f.write_str("paused"),
            Self::Interrupted => f.write_str("run interrupted"),
            Self::Resumed { budget } if budget.amounts.is_empty() => f.write_str("resumed"),
            Self::Resumed { budget } => write!(f, "resumed with a budget of {}", budget.amounts),
            Self::WindingDown { reason, detail } => write!(f, "winding down ({reason}): {detail}"),
            Self::Reopened => f.write_str("run reopened"),
            Self::Retired => f.write_str("run can no longer be resumed"),
            Self::Ended { reason, detail, .. } if detail.is_empty() => write!(f, "run {reason}"),
            Self::Ended { reason, detail, .. } => write!(f, "run {reason}: {detail}"),
        }
    }
}
