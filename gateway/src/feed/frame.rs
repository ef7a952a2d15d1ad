//! Events as frames of a stream. Pure.

use std::time::Duration;

use bytes::Bytes;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Decision, JournalKey};
use millrace_runtime::Fault;
use millrace_views::journal::TranscriptEntry;
use millrace_views::{EntryLine, EventLine, RunListLine};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::position::EventCursor;

/// The name of the frames with entries of journals.
pub const STEP: &str = "step";
/// The name of the frames with summaries of runs.
pub const RUN_SUMMARY: &str = "run_summary";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionedEvent {
    pub cursor: EventCursor,
    /// Its name: that of a decision's event, or [`STEP`].
    pub name: String,
    pub task: Option<String>,
    data: Bytes,
}

#[derive(Debug, Clone)]
pub enum Frame {
    /// A comment keeps a connection open.
    Comment(&'static str),
    /// An event with its position, or a notice without one.
    Event { id: Option<String>, name: String, data: Bytes },
}

impl Frame {
    fn of_value(id: Option<String>, name: &str, data: &Value) -> Self {
        Self::Event { id, name: name.to_owned(), data: data.to_string().into() }
    }

    /// Returns the frame as `text/event-stream` has it.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Comment(text) => format!(": {text}\n\n").into(),
            Self::Event { id, name, data } => {
                let id = id.iter().flat_map(|id| ["id: ", id, "\n"]).collect::<String>();
                [id.as_bytes(), b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"].concat().into()
            }
        }
    }
}

impl PositionedEvent {
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
                data: data.to_string().into(),
                name,
            }
        };
        decision.events.iter().enumerate().map(line).collect()
    }

    pub fn of_entry(run: &RunId, journal: &JournalKey, entry: &TranscriptEntry) -> Self {
        let task: Option<&TaskId> = match journal {
            JournalKey::Task(task, _) | JournalKey::Review(task, _) => Some(task),
            JournalKey::Planning(..) => None,
        };
        Self {
            cursor: EventCursor { sequence: entry.sequence, index: 0 },
            name: STEP.to_owned(),
            task: task.map(ToString::to_string),
            data: millrace_views::to_value(&EntryLine { run, task, entry }).to_string().into(),
        }
    }

    /// Returns the frame. Its id is a position, so that a client that reconnects continues after it.
    pub fn to_frame(&self, id: String) -> Frame {
        Frame::Event { id: Some(id), name: self.name.clone(), data: self.data.clone() }
    }
}

/// Returns the frame with the summary of a run.
pub fn summary_frame(id: String, line: &RunListLine<'_>) -> Frame {
    Frame::of_value(Some(id), RUN_SUMMARY, &millrace_views::to_value(line))
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
    pub fn to_frame(&self) -> Frame {
        self.to_frame_with_id(None)
    }

    pub fn to_frame_with_id(&self, id: Option<String>) -> Frame {
        let data = millrace_views::to_value(self);
        Frame::of_value(id, data["type"].as_str().unwrap_or_default(), &data)
    }
}

/// The time that a client may take for a frame before it counts as slow.
pub const SLOW: Duration = Duration::from_secs(1);
/// The interval of comments that keep the connection open, and that reveal a client that is gone.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The reason for the end of a stream other than the end of what it shows.
pub enum StreamStop {
    ClientGone,
    Stopping,
    /// A message can't be read.
    Unreadable(Fault),
}

impl From<Fault> for StreamStop {
    fn from(fault: Fault) -> Self {
        Self::Unreadable(fault)
    }
}

/// The client's end of a stream.
#[derive(Clone)]
pub struct FrameSink {
    frames: mpsc::Sender<Frame>,
    shutdown: CancellationToken,
}

impl FrameSink {
    /// Creates a sink; the token ends the stream when the process stops.
    pub fn new(frames: mpsc::Sender<Frame>, shutdown: CancellationToken) -> Self {
        Self { frames, shutdown }
    }

    /// Sends a frame, and returns the time that the client took to make room for it.
    pub async fn send(&self, frame: Frame) -> Result<Duration, StreamStop> {
        let frame = match self.frames.try_send(frame) {
            Ok(()) => return Ok(Duration::ZERO),
            Err(mpsc::error::TrySendError::Full(frame)) => frame,
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(StreamStop::ClientGone),
        };
        let started = Instant::now();
        tokio::select! {
            sent = self.frames.send(frame) => sent.map_err(|_| StreamStop::ClientGone)?,
            () = self.shutdown.cancelled() => return Err(StreamStop::Stopping),
        }
        Ok(started.elapsed())
    }

    /// Sends a frame if there is room for it. Returns `false` if there is not.
    pub fn send_if_room(&self, frame: Frame) -> Result<bool, StreamStop> {
        match self.frames.try_send(frame) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Full(_)) => Ok(false),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(StreamStop::ClientGone),
        }
    }

    /// Sends the last frame, also while the process stops. A client that is gone needs none.
    pub async fn send_last(&self, frame: Frame) {
        let _ = self.frames.send(frame).await;
    }

    /// Waits until the stream must end.
    pub async fn closed(&self) -> StreamStop {
        tokio::select! {
            () = self.frames.closed() => StreamStop::ClientGone,
            () = self.shutdown.cancelled() => StreamStop::Stopping,
        }
    }

    /// Waits for a time, unless the stream must end.
    pub async fn wait(&self, delay: Duration) -> Result<(), StreamStop> {
        tokio::select! {
            () = tokio::time::sleep(delay) => Ok(()),
            stop = self.closed() => Err(stop),
        }
    }
}
