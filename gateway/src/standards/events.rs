//! The events of a run: those after a position, and new ones until a deadline.

use std::time::Duration;

use millrace_protocol::token::Scope;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::api::Operator;
use crate::access::StreamPermit;
use crate::feed::{EventLevel, Frame};
use crate::problem::Problem;
use crate::resources::events::{EventQuery, open_events};

/// The time in which further events belong to a batch, after its first one.
const BATCH_TIME: Duration = Duration::from_millis(200);
/// The longest data of an event for a model, in bytes: prompts and replies of agents are much longer.
const MAX_DATA: usize = 4_000;

/// An event of a run, or a notice of its stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunEvent {
    /// The position in the log, such as `17.0`; absent for notices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name, such as `task_completed`.
    pub name: String,
    /// The event.
    pub data: Value,
}

impl RunEvent {
    /// `true` if the stream ends with it, because the run has ended.
    pub fn is_end(&self) -> bool {
        self.id.is_none() && self.name == "end"
    }

    /// Returns the event with at most some thousand bytes of data.
    pub fn shortened(mut self) -> Self {
        let text = self.data.to_string();
        if text.len() > MAX_DATA {
            let cut = text.floor_char_boundary(MAX_DATA);
            self.data = json!({ "cut_to": MAX_DATA, "of_bytes": text.len(), "text": &text[..cut] });
        }
        self
    }
}

/// A stream of the events of a run.
pub struct RunEvents {
    frames: mpsc::Receiver<Frame>,
    _permit: StreamPermit,
}

impl RunEvents {
    /// Opens the stream after a position: an event's id, or a sequence; empty is the beginning.
    pub async fn open(
        operator: &Operator,
        run: &str,
        after: &str,
        level: EventLevel,
    ) -> Result<Self, Problem> {
        let query = EventQuery { after: Some(after.to_owned()), level, ..EventQuery::default() };
        let (frames, permit) = open_events(&operator.with(Scope::Read)?, run, query).await?;
        Ok(Self { frames, _permit: permit })
    }

    /// Returns the next event; `None` after the end of the stream.
    pub async fn next_event(&mut self) -> Option<RunEvent> {
        loop {
            if let Frame::Event { id, name, data } = self.frames.recv().await? {
                return Some(RunEvent { id, name, data: serde_json::from_slice(&data).ok()? });
            }
        }
    }

    /// Returns the events up to the end of the run, `limit` events, or a pause after the first one. Waits for the first one
    /// until the deadline.
    pub async fn read_batch(&mut self, limit: usize, deadline: Instant) -> Vec<RunEvent> {
        let (mut events, mut until) = (Vec::new(), deadline);
        while events.len() < limit {
            let Ok(Some(event)) = timeout_at(until, self.next_event()).await else { break };
            let is_end = event.is_end();
            events.push(event);
            if is_end {
                break;
            }
            until = Instant::now() + BATCH_TIME;
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_data_is_cut() {
        let event =
            RunEvent { id: None, name: "step".into(), data: json!({ "text": "ä".repeat(MAX_DATA) }) };
        let event = event.shortened();
        assert!(event.data.to_string().len() < MAX_DATA + 200, "{}", event.data.to_string().len());
        assert_eq!(event.data["cut_to"], MAX_DATA);
    }
}
