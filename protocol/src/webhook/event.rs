//! The events that webhooks tell of, derived from decisions, and the messages about them: a message has ids only, so that a
//! receiver reads the rest with its own token.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::{MessageId, RunId, TaskId};
use crate::plan::{AttemptEvent, BudgetEvent, Decision, EndReason, Event, RunEvent, TaskEvent};
use crate::wait::{Wait, WaitCondition};

/// The kinds of events that webhooks tell of.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Named,
)]
#[serde(rename_all = "snake_case")]
pub enum WebhookEventKind {
    /// A run started.
    RunStarted,
    /// A run was paused or interrupted: no new tasks start.
    RunPaused,
    /// A run continues after a pause or an end.
    RunResumed,
    /// A run ended.
    RunEnded,
    /// A run asks a person.
    QuestionAsked,
    /// A task failed for good.
    TaskFailed,
    /// The soft limit of a run's budget is reached.
    BudgetLow,
    /// A test that a user requested; every webhook has it.
    WebhookTest,
}

impl WebhookEventKind {
    /// The kinds that a webhook can be created for.
    pub const EVENTS: [Self; 7] = [
        Self::RunStarted,
        Self::RunPaused,
        Self::RunResumed,
        Self::RunEnded,
        Self::QuestionAsked,
        Self::TaskFailed,
        Self::BudgetLow,
    ];
    /// The kinds of a webhook whose creator does not choose.
    pub const DEFAULT: [Self; 3] = [Self::RunEnded, Self::QuestionAsked, Self::BudgetLow];
}

impl fmt::Display for WebhookEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no event of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no event of a webhook; use one or more of run_started, run_paused, run_resumed, run_ended, question_asked, \
     task_failed and budget_low"
)]
pub struct UnknownEventKind(String);

impl FromStr for WebhookEventKind {
    type Err = UnknownEventKind;

    fn from_str(text: &str) -> Result<Self, UnknownEventKind> {
        let kind = Self::EVENTS.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| UnknownEventKind(text.chars().take(100).collect()))
    }
}

/// An event of a decision that webhooks tell of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventNotice {
    /// Its kind.
    pub kind: WebhookEventKind,
    /// The index of the event in its decision.
    pub index: u32,
    /// The number of the notice among those of its event.
    pub part: u32,
    /// The task that it is about.
    pub task: Option<TaskId>,
    /// The key of the question's wait, and the attempt that asks; `None` as the attempt if it is about the plan.
    pub question: Option<(String, Option<u32>)>,
    /// The reason, if the run has ended.
    pub reason: Option<EndReason>,
}

/// Returns the events of a decision that webhooks tell of.
#[must_use]
pub fn notices_of_decision(decision: &Decision) -> Vec<EventNotice> {
    let notices = (0_u32..).zip(&decision.events).flat_map(|(index, event)| {
        let notices = notices_of_event(event);
        (0_u32..).zip(notices).map(move |(part, notice)| EventNotice { index, part, ..notice })
    });
    notices.collect()
}

fn notice(kind: WebhookEventKind) -> EventNotice {
    EventNotice { kind, index: 0, part: 0, task: None, question: None, reason: None }
}

fn notices_of_event(event: &Event) -> Vec<EventNotice> {
    match event {
        Event::Run(event) => notices_of_run_event(event).into_iter().collect(),
        Event::Task(TaskEvent::Failed { task, .. }) => {
            vec![EventNotice { task: Some(task.clone()), ..notice(WebhookEventKind::TaskFailed) }]
        }
        Event::Attempt(AttemptEvent::Parked { task, attempt, waits }) => {
            waits.iter().filter_map(|wait| question_notice(Some((task, *attempt)), wait)).collect()
        }
        Event::Attempt(AttemptEvent::QuestionRenewed { task, attempt, key, .. }) => vec![EventNotice {
            task: Some(task.clone()),
            question: Some((key.clone(), Some(*attempt))),
            ..notice(WebhookEventKind::QuestionAsked)
        }],
        Event::Budget(BudgetEvent::Low { .. }) => vec![notice(WebhookEventKind::BudgetLow)],
        Event::Task(_)
        | Event::Attempt(_)
        | Event::Budget(BudgetEvent::Reserved { .. } | BudgetEvent::TooSmall { .. })
        | Event::User(_)
        | Event::Planning(_)
        | Event::Graph(_)
        | Event::Review(_)
        | Event::Provider(_) => Vec::new(),
    }
}

fn notices_of_run_event(event: &RunEvent) -> Option<EventNotice> {
    match event {
        RunEvent::Started { .. } => Some(notice(WebhookEventKind::RunStarted)),
        RunEvent::Paused | RunEvent::Interrupted => Some(notice(WebhookEventKind::RunPaused)),
        RunEvent::Resumed { .. } | RunEvent::Reopened => Some(notice(WebhookEventKind::RunResumed)),
        RunEvent::Ended { reason, .. } => {
            Some(EventNotice { reason: Some(*reason), ..notice(WebhookEventKind::RunEnded) })
        }
        RunEvent::PlanQuestionAsked { wait, .. } => question_notice(None, wait),
        RunEvent::Held { .. }
        | RunEvent::SessionTurnCame { .. }
        | RunEvent::PlaceGranted
        | RunEvent::PlaceRefused { .. }
        | RunEvent::PlanQuestionEnded { .. }
        | RunEvent::ClocksStopped(_)
        | RunEvent::WindingDown { .. }
        | RunEvent::Retired => None,
    }
}

fn question_notice(asker: Option<(&TaskId, u32)>, wait: &Wait) -> Option<EventNotice> {
    let WaitCondition::Answer(_) = &wait.condition else { return None };
    Some(EventNotice {
        task: asker.map(|(task, _)| task.clone()),
        question: Some((wait.key.clone(), asker.map(|(_, attempt)| attempt))),
        ..notice(WebhookEventKind::QuestionAsked)
    })
}

/// A message to a receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookMessage {
    /// The kind of the event.
    #[serde(rename = "type")]
    pub kind: WebhookEventKind,
    /// When it happened.
    pub timestamp: Timestamp,
    /// The ids.
    pub data: WebhookData,
}

/// The ids in a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookData {
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The sequence of the event, in the lane of the run, from which on the API shows its effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The question, as the API names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The reason for the end of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
}

impl WebhookMessage {
    /// Returns the message about a notice. `question` is the id of the question, if it is about one.
    #[must_use]
    pub fn new(
        run: &RunId,
        sequence: u64,
        at: Timestamp,
        notice: &EventNotice,
        question: Option<String>,
    ) -> Self {
        let EventNotice { kind, task, reason, index: _, part: _, question: _ } = notice;
        let data = WebhookData {
            run: Some(run.clone()),
            sequence: Some(sequence),
            task: task.clone(),
            question,
            reason: *reason,
        };
        Self { kind: *kind, timestamp: at, data }
    }

    /// Returns a test message.
    #[must_use]
    pub fn test(at: Timestamp) -> Self {
        Self { kind: WebhookEventKind::WebhookTest, timestamp: at, data: WebhookData::default() }
    }

    /// Returns the body of the request.
    pub fn to_body(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a message serialises to JSON")
    }
}

impl EventNotice {
    /// Returns the id of its message. It follows from the place in the log, so that whoever derives it finds the same.
    ///
    /// # Panics
    /// Never: hexadecimal digits are a valid id.
    pub fn message_id(&self, run: &RunId, sequence: u64) -> MessageId {
        let place = format!("{run}/{sequence}/{}/{}", self.index, self.part);
        let hash = Sha256::digest(place);
        let digits: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        MessageId::new(format!("msg_{digits}")).expect("hexadecimal digits are a valid id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;

    fn decision(events: Vec<Event>) -> Decision {
        Decision {
            by: WorkerId::new("s").unwrap(),
            previous: 0,
            at: Timestamp::UNIX_EPOCH,
            answers: Vec::new(),
            events,
        }
    }

    #[test]
    fn notices_have_the_places_of_their_events() {
        let ended = Event::Run(RunEvent::Ended {
            reason: EndReason::Failed,
            detail: "secret".into(),
            deliverable: None,
            is_resumable: false,
        });
        let failed =
            Event::Task(TaskEvent::Failed { task: TaskId::new("t").unwrap(), reason: "secret".into() });
        let retired = Event::Run(RunEvent::Retired);
        let notices = notices_of_decision(&decision(vec![retired, failed, ended]));
        let kinds: Vec<_> = notices.iter().map(|notice| (notice.kind, notice.index)).collect();
        assert_eq!(kinds, [(WebhookEventKind::TaskFailed, 1), (WebhookEventKind::RunEnded, 2)]);
        let run = RunId::new("r").unwrap();
        let message = WebhookMessage::new(&run, 7, Timestamp::UNIX_EPOCH, &notices[1], None);
        assert_eq!(
            String::from_utf8(message.to_body()).unwrap(),
            r#"{"type":"run_ended","timestamp":"1970-01-01T00:00:00Z","data":{"run":"r","sequence":7,"reason":"failed"}}"#,
        );
    }

    #[test]
    fn message_ids_follow_from_the_log() {
        let run = RunId::new("r").unwrap();
        let first = EventNotice { index: 1, ..notice(WebhookEventKind::RunEnded) };
        assert_eq!(first.message_id(&run, 7).as_str(), "msg_96d4268794671e4a2e69a8a8d39b10d5");
        let others = [
            EventNotice { index: 2, ..first.clone() }.message_id(&run, 7),
            EventNotice { part: 1, ..first.clone() }.message_id(&run, 7),
            first.message_id(&run, 8),
            first.message_id(&RunId::new("q").unwrap(), 7),
        ];
        assert!(others.iter().all(|other| *other != first.message_id(&run, 7)));
    }

    #[test]
    fn names_of_kinds_are_those_on_the_wire() {
        for kind in WebhookEventKind::EVENTS {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert!("webhook_test".parse::<WebhookEventKind>().is_err());
    }
}
