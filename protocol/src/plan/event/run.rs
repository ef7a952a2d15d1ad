//! Events about the run as a whole, its users, its budget and its models' providers.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::form::{DeliverableChoice, QuestionJson, WorkJson};
use crate::ids::{Capability, SessionId, TaskId};
use crate::labels::Labels;
use crate::plan::attendance::StoppedClocksJson;
use crate::plan::budget::{Budget, ResourceAmounts};
use crate::plan::spec::{DocumentSet, EarlierRun, PlannerConsultMode, PlanningMode};
use crate::plan::{DeliverableRule, EndReason, JournalKey, RunHold, StoppedClocks, Work};
use crate::question::{StandingAnswer, StandingAnswerJson};
use crate::result::VerificationPolicy;
use crate::wait::{ProviderWait, ProviderWaitJson, Signal, SignalJson, Wait, WaitEnd, WaitEndJson};

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
        /// The consequence of verdicts on statements; absent if it is that of each capability.
        #[api(optional)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verification: Option<VerificationPolicy>,
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

/// A user's command or message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum UserEvent {
    /// A user's command was applied; its consequences follow.
    #[api(name = "user_command")]
    Commanded {
        /// The id of the command.
        id: String,
        /// The user.
        by: String,
        /// The command, for a person.
        #[api(name = "description")]
        what: String,
    },
    /// A user sent the planner a message.
    #[api(name = "user_message")]
    MessageReceived {
        /// The user.
        by: String,
        /// The message.
        text: String,
    },
    /// A user or a program signalled an event to the run.
    #[api(name = "event_signalled")]
    Signalled(#[api(form(SignalJson<'a>))] Signal),
    /// A person's answer also decides further calls.
    #[api(name = "standing_answer")]
    StandingAnswerGiven(#[api(form(StandingAnswerJson<'a>))] StandingAnswer),
}

impl fmt::Display for UserEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commanded { by, what, .. } => write!(f, "{by}: {what}"),
            Self::MessageReceived { by, text } => write!(f, "{by} to the planner: {text}"),
            Self::Signalled(Signal { name, by, .. }) => write!(f, "{by} signalled the event {name:?}"),
            Self::StandingAnswerGiven(StandingAnswer { capability, tool, digest, by, answer }) => {
                let calls = if digest.is_some() { "the same calls" } else { "all calls" };
                write!(f, "{by} {answer}, for {calls} of {tool} by {capability}")
            }
        }
    }
}

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

/// An event about the wait of a piece of work for its model's provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum ProviderEvent {
    /// Work waits for the provider of its model.
    #[serde(rename = "ProviderAwaited")]
    Awaited {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
        /// The wait.
        #[api(form(ProviderWaitJson<'a>))]
        wait: ProviderWait,
    },
    /// The provider answers again.
    #[serde(rename = "ProviderRecovered")]
    Recovered {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
    },
    /// The provider did not answer in time; the run is paused.
    // The work is returned, without the loss of an attempt.
    #[serde(rename = "ProviderGivenUp")]
    GivenUp {
        /// The work.
        #[api(name = "work", form(WorkJson<'a>))]
        journal: JournalKey,
        /// The wait.
        #[api(form(ProviderWaitJson<'a>))]
        wait: ProviderWait,
    },
}

impl ProviderEvent {
    /// The journal of the work.
    pub fn journal(&self) -> &JournalKey {
        match self {
            Self::Awaited { journal, .. } | Self::Recovered { journal } | Self::GivenUp { journal, .. } => {
                journal
            }
        }
    }

    /// The task that this event concerns, if it concerns one.
    pub fn task(&self) -> Option<&TaskId> {
        self.journal().task()
    }
}

impl fmt::Display for ProviderEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Awaited { journal, wait } => write!(f, "{journal} waiting for {wait}"),
            Self::Recovered { journal } => write!(f, "{journal} continues: its provider answers again"),
            Self::GivenUp { journal, wait } => {
                write!(f, "paused: {journal} has waited too long for {}: {}", wait.model, wait.error)
            }
        }
    }
}
