//! Events as frames of an event stream (`text/event-stream`). Pure.

use bytes::Bytes;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Decision, JournalKey};
use millrace_views::journal::TranscriptEntry;
use millrace_views::{EntryLine, EventLine, RunListLine};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::cursor::EventCursor;

/// The name of the frames with entries of journals.
pub const STEP: &str = "step";
/// The name of the frames with summaries of runs.
pub const RUN_SUMMARY: &str = "run_summary";

/// An event with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionedEvent {
    /// Its position.
    pub cursor: EventCursor,
    /// Its name: that of a decision's event, or [`STEP`].
    pub name: String,
    /// The task that it is about.
    pub task: Option<String>,
    /// Its frame without the id.
    body: Bytes,
}

impl PositionedEvent {
    /// Returns the events of a decision.
    pub fn of_decision(run: &RunId, sequence: u64, decision: &Decision) -> Vec<Self> {
        let line = |(index, event): (usize, _)| {
            let data = millrace_views::to_value(&EventLine {
                run,
                sequence,
                at: decision.at.into(),
                event: From::from(event),
            });
            let name = data["type"].as_str().unwrap_or_default().to_owned();
            Self {
                cursor: EventCursor { sequence, index: u32::try_from(index).unwrap_or(u32::MAX) },
                task: data["task"].as_str().map(str::to_owned),
                body: frame_body(&name, &data),
                name,
            }
        };
        decision.events.iter().enumerate().map(line).collect()
    }

    /// Returns an entry of a journal.
    pub fn of_entry(run: &RunId, journal: &JournalKey, entry: &TranscriptEntry) -> Self {
        let task: Option<&TaskId> = match journal {
            JournalKey::Task(task, _) | JournalKey::Review(task, _) => Some(task),
            JournalKey::Planning(..) => None,
        };
        Self {
            cursor: EventCursor { sequence: entry.sequence, index: 0 },
            name: STEP.to_owned(),
            task: task.map(ToString::to_string),
            body: frame_body(STEP, &millrace_views::to_value(&EntryLine { run, task, entry })),
        }
    }

    /// Returns the frame. Its id is a position, so that a client that reconnects continues after it.
    #[must_use]
    pub fn to_frame(&self, id: &str) -> Bytes {
        frame_with_id(id, &self.body)
    }
}

/// Returns a frame without an id.
fn frame_body(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

fn frame_with_id(id: &str, body: &[u8]) -> Bytes {
    [b"id: ", id.as_bytes(), b"\n", body].concat().into()
}

/// Returns the frame with the summary of a run.
pub fn summary_frame(id: &str, line: &RunListLine<'_>) -> Bytes {
    frame_with_id(id, &frame_body(RUN_SUMMARY, &millrace_views::to_value(line)))
}

/// Notices of a stream, which have no position: a client that reconnects does not get them again.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamNotice<'a> {
    /// The run has ended, and so has the stream.
    End {
        /// The run.
        run: &'a RunId,
        /// The position of the last event.
        last: String,
        /// `true` if the run can be resumed; later events follow then on another stream.
        resumable: bool,
    },
    /// The client reads more slowly than events are appended. Nothing of the log is left out; model output is.
    Lagged {
        /// The run; absent in a stream of many runs.
        #[serde(skip_serializing_if = "Option::is_none")]
        run: Option<&'a RunId>,
        /// The position of the last event that was sent before.
        last: String,
        /// The time that the stream waited for the client, in milliseconds.
        waited_ms: u64,
        /// The number of pieces of model output that were left out.
        dropped_deltas: u64,
    },
    /// Model output as it is written; it is not part of the log.
    Delta {
        /// The run.
        run: &'a RunId,
        /// The task; `null` for the planner.
        task: Option<TaskId>,
        /// The attempt at the task, or at the planner's turn.
        attempt: u32,
        /// `true` if a critic writes it.
        review: bool,
        /// The text, after the text of the deltas before.
        text: String,
        /// The tools that the model calls.
        calls: Vec<String>,
        /// `true` if the earlier text is void: the model call was started again.
        restarted: bool,
    },
    /// The stream ends before the run, because the gateway stops. Reconnect with the last id.
    GatewayStopping {
        /// The run; absent in a stream of many runs.
        #[serde(skip_serializing_if = "Option::is_none")]
        run: Option<&'a RunId>,
    },
    /// A stream of many runs begins after this position, which is its id.
    StreamStarted {
        /// The position.
        last: String,
    },
    /// An event can't be read. It ends the stream of one run.
    Error {
        /// The run.
        #[serde(skip_serializing_if = "Option::is_none")]
        run: Option<&'a RunId>,
        /// The reason.
        message: String,
    },
}

impl StreamNotice<'_> {
    /// Returns the frame, without an id.
    #[must_use]
    pub fn to_frame(&self) -> Bytes {
        let data = millrace_views::to_value(self);
        frame_body(data["type"].as_str().unwrap_or_default(), &data)
    }

    /// Returns the frame with an id.
    #[must_use]
    pub fn to_frame_with_id(&self, id: &str) -> Bytes {
        frame_with_id(id, &self.to_frame())
    }
}
