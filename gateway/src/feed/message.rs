//! A message of a lane with its events. All streams that send it share one decoded copy.

use std::sync::Arc;

use millrace_client::{ReceivedEntry, RunEndState};
use millrace_protocol::ids::RunId;
use millrace_protocol::labels::Labels;
use millrace_protocol::plan::{Decision, Event, JournalKey, RunEvent};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::{Bus, Fault};
use millrace_views::journal::read_entry;
use tokio::sync::OnceCell;

use super::frame::PositionedEvent;

/// A message that streams send: a decision, or an entry of a journal.
pub struct LaneMessage {
    pub run: RunId,
    pub record: StreamRecord,
    pub kind: MessageKind,
    content: OnceCell<MessageContent>,
}

/// The kinds of messages that streams send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageKind {
    Decision,
    Entry(JournalKey),
}

pub struct MessageContent {
    pub events: Vec<PositionedEvent>,
    /// The end state of the run after it, if it changes that.
    pub end: Option<RunEndState>,
    /// The labels of the run, if it starts with this message.
    pub labels: Option<Labels>,
}

impl LaneMessage {
    /// Returns the message in a record; `None` if streams do not send it.
    pub fn from_record(record: StreamRecord) -> Option<Arc<Self>> {
        if record.is_forged() {
            return None;
        }
        let (_, run, topic) = subject::parse_lane_subject(&record.subject)?;
        let kind = match topic {
            Topic::Plan => MessageKind::Decision,
            Topic::Journal(journal) => MessageKind::Entry(journal),
            Topic::Submitted | Topic::Control | Topic::Answer => return None,
        };
        Some(Arc::new(Self { run, record, kind, content: OnceCell::new() }))
    }

    pub fn sequence(&self) -> u64 {
        self.record.sequence
    }

    pub fn is_decision(&self) -> bool {
        self.kind == MessageKind::Decision
    }

    /// Returns the decoded content.
    ///
    /// # Errors
    /// A decision is unreadable, or the cluster does not respond. An unreadable entry is an event that says so.
    pub async fn content(&self, bus: &Bus) -> Result<&MessageContent, Fault> {
        self.content.get_or_try_init(|| self.decode(bus)).await
    }

    async fn decode(&self, bus: &Bus) -> Result<MessageContent, Fault> {
        match &self.kind {
            MessageKind::Decision => {
                let decision: Decision = bus.decode_record(&self.record).await?;
                Ok(MessageContent {
                    events: PositionedEvent::of_decision(&self.run, self.record.sequence, &decision),
                    end: end_after(&decision),
                    labels: find_labels(&decision),
                })
            }
            MessageKind::Entry(journal) => {
                let entry = match bus.decode_record::<JournalEntry>(&self.record).await {
                    Err(fault) if fault.is_transient() => return Err(fault),
                    entry => entry.map_err(|fault| fault.to_string()),
                };
                let received = ReceivedEntry {
                    sequence: self.record.sequence,
                    at: self.record.time,
                    journal: journal.clone(),
                    entry,
                };
                let entry = read_entry(bus, received).await?;
                let events = vec![PositionedEvent::of_entry(&self.run, journal, &entry)];
                Ok(MessageContent { events, end: None, labels: None })
            }
        }
    }
}

/// Returns the end state of a run after a decision, if the decision changes it.
fn end_after(decision: &Decision) -> Option<RunEndState> {
    let changes = |event: &Event| {
        let (open, over) = (RunEndState::No.after_event(event), RunEndState::Final.after_event(event));
        (open == over).then_some(open)
    };
    decision.events.iter().rev().find_map(changes)
}

fn find_labels(decision: &Decision) -> Option<Labels> {
    decision.events.iter().find_map(|event| match event {
        Event::Run(RunEvent::Started { labels, .. }) => Some(labels.clone()),
        Event::Run(_)
        | Event::User(_)
        | Event::Planning(_)
        | Event::Graph(_)
        | Event::Task(_)
        | Event::Attempt(_)
        | Event::Review(_)
        | Event::Budget(_)
        | Event::Provider(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::WorkerId;
    use millrace_protocol::plan::EndReason;

    use super::*;

    #[test]
    fn last_change_of_the_end_counts() {
        let end = |is_resumable| {
            Event::Run(RunEvent::Ended {
                reason: EndReason::Failed,
                detail: String::new(),
                deliverable: None,
                is_resumable,
            })
        };
        let decision = |events| Decision {
            by: WorkerId::new("s").unwrap(),
            previous: 0,
            at: jiff::Timestamp::UNIX_EPOCH,
            answers: Vec::new(),
            events,
        };
        let paused = || Event::Run(RunEvent::Paused);
        assert_eq!(end_after(&decision(vec![paused()])), None);
        assert_eq!(end_after(&decision(vec![end(false), paused()])), Some(RunEndState::Final));
        assert_eq!(
            end_after(&decision(vec![end(true), Event::Run(RunEvent::Reopened)])),
            Some(RunEndState::No)
        );
        assert_eq!(end_after(&decision(vec![end(true)])), Some(RunEndState::Resumable));
    }
}
