//! The events of a run, read from the API: those after a position, and new ones until a deadline.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::StreamExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::api::{ApiClient, ApiProblem, encode_part};

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
    body: BodyDataStream,
    received: Vec<u8>,
}

impl RunEvents {
    /// Opens the stream after a position: an event's id, or a sequence; empty is the beginning.
    pub async fn open(api: &ApiClient, run: &str, after: &str, level: &str) -> Result<Self, ApiProblem> {
        let (run, after) = (encode_part(run), encode_part(after));
        let body = api.open_stream(&format!("/runs/{run}/events?after={after}&level={level}")).await?;
        Ok(Self::of_body(body))
    }

    fn of_body(body: Body) -> Self {
        Self { body: body.into_data_stream(), received: Vec::new() }
    }

    /// Returns the next event; `None` after the end of the stream.
    pub async fn next_event(&mut self) -> Option<RunEvent> {
        loop {
            while let Some(length) = self.received.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.received.drain(..length + 2).collect();
                if let Some(event) = parse_frame(&String::from_utf8_lossy(&frame)) {
                    return Some(event);
                }
            }
            // A stream of this process fails only if the process stops.
            let bytes = self.body.next().await?.ok()?;
            self.received.extend_from_slice(&bytes);
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

/// Parses a frame; `None` for comments, which keep connections open.
fn parse_frame(frame: &str) -> Option<RunEvent> {
    let field = |name: &str| {
        let mut lines = frame.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(|value| value.trim_start().to_owned())
    };
    let data = serde_json::from_str(&field("data:")?).ok()?;
    Some(RunEvent { id: field("id:"), name: field("event:")?, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_whatever_their_pieces_and_a_batch_ends_with_the_run() {
        let frames = ": keep-alive\n\nid: 3.0\nevent: run_ended\ndata: {\"a\":1}\n\nevent: end\ndata: {}\n\n";
        let pieces: Vec<_> = frames.bytes().map(|byte| Ok::<_, std::io::Error>(vec![byte])).collect();
        let mut events = RunEvents::of_body(Body::from_stream(futures::stream::iter(pieces)));
        let batch = events.read_batch(10, Instant::now() + Duration::from_secs(5)).await;
        assert_eq!(batch.len(), 2);
        assert_eq!(
            batch[0],
            RunEvent { id: Some("3.0".into()), name: "run_ended".into(), data: json!({"a": 1}) }
        );
        assert!(batch[1].is_end());
        assert!(events.next_event().await.is_none());
    }

    #[test]
    fn long_data_is_cut() {
        let event =
            RunEvent { id: None, name: "step".into(), data: json!({ "text": "ä".repeat(MAX_DATA) }) };
        let event = event.shortened();
        assert!(event.data.to_string().len() < MAX_DATA + 200, "{}", event.data.to_string().len());
        assert_eq!(event.data["cut_to"], MAX_DATA);
    }
}
