//! One open event stream of a run: reads the log from the client's position on, and writes frames.
//!
//! The log is read by sequence, so nothing depends on what the gateway remembers: whatever the client has received, another
//! gateway continues after its last id.

use std::sync::Arc;

use async_nats::Subscriber;
use futures::StreamExt;
use millrace_client::RunEndState;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::JournalKey;
use millrace_protocol::subject::{self, Topic, live_output_subjects_of_run};
use millrace_runtime::Bus;
use millrace_runtime::fault::backoff;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::filter::{EventFilter, EventLevel};
use super::frame::{Frame, FrameSink, KEEP_ALIVE, SLOW, StreamNotice, StreamStop};
use super::hub::LaneHub;
use super::message::LaneMessage;
use super::position::EventCursor;
use super::run_feed::{FeedStep, RunFeed};
use crate::history::read_end_state_at;

/// The number of frames that wait for a slow client, in addition to what the connection buffers.
pub const QUEUED_FRAMES: usize = 32;

/// The events that a client asks for.
#[derive(Debug, Clone, Default)]
pub struct EventRequest {
    /// The position after which events are sent; `None` is the beginning.
    pub after: Option<EventCursor>,
    pub filter: EventFilter,
}

pub struct EventStream {
    bus: Bus,
    hub: Arc<LaneHub>,
    run: RunId,
    request: EventRequest,
    sink: FrameSink,
    /// The position of the last event that was read, whether or not the client asked for it.
    last: EventCursor,
    end: RunEndState,
    dropped_deltas: u64,
}

impl EventStream {
    /// Starts to write the events of a run into `frames`.
    pub fn start(
        (bus, hub, run): (&Bus, &Arc<LaneHub>, &RunId),
        request: EventRequest,
        frames: mpsc::Sender<Frame>,
        shutdown: CancellationToken,
    ) {
        let last = request.after.unwrap_or_default();
        let stream = Self {
            bus: bus.clone(),
            hub: hub.clone(),
            run: run.clone(),
            request,
            sink: FrameSink::new(frames, shutdown),
            last,
            end: RunEndState::No,
            dropped_deltas: 0,
        };
        tokio::spawn(stream.run_to_end());
    }

    async fn run_to_end(mut self) {
        let outcome = self.send_all().await;
        let run = self.run.clone();
        let notice = match outcome {
            Ok(()) => StreamNotice::End {
                run: &run,
                last: self.last.to_string(),
                resumable: self.end == RunEndState::Resumable,
            },
            Err(StreamStop::ClientGone) => return,
            Err(StreamStop::Stopping) => StreamNotice::GatewayStopping { run: Some(&run) },
            Err(StreamStop::Unreadable(fault)) => {
                tracing::warn!(%run, %fault, "event stream failed");
                StreamNotice::Error { run: Some(&run), message: fault.to_string() }
            }
        };
        self.sink.send_last(notice.to_frame()).await;
    }

    /// Sends all events until the run ends.
    async fn send_all(&mut self) -> Result<(), StreamStop> {
        let has_journals = self.request.filter.level >= EventLevel::Steps;
        // The message at the client's position may have more events.
        let seen = self.last.sequence.saturating_sub(1);
        let mut feed = RunFeed::new(&self.bus, &self.hub, &self.run, has_journals, seen);
        let mut live = match self.request.filter.level {
            EventLevel::Live => {
                self.bus.client().subscribe(live_output_subjects_of_run(&self.run)).await.ok()
            }
            EventLevel::Decisions | EventLevel::Steps => None,
        };
        self.send(Frame::Comment("millrace events")).await?;
        self.end = self.read_end_before(seen).await?;
        let mut keep_alive = Instant::now() + KEEP_ALIVE;
        let mut failures = 0;
        loop {
            let step = tokio::select! {
                step = feed.next_step() => step,
                Some(message) = next_message(&mut live) => {
                    self.send_delta(&message)?;
                    continue;
                }
                () = tokio::time::sleep_until(keep_alive) => {
                    keep_alive = Instant::now() + KEEP_ALIVE;
                    self.send(Frame::Comment("keep-alive")).await?;
                    continue;
                }
                stop = self.sink.closed() => return Err(stop),
            };
            match step {
                Ok(FeedStep::Messages(messages)) => {
                    failures = 0;
                    for message in messages {
                        self.send_message(&message).await?;
                    }
                    if self.end != RunEndState::No {
                        // It ends the stream if the log has nothing after it: any ended run can be reopened.
                        feed.read_again();
                    }
                }
                Ok(FeedStep::EndOfLog) if self.end == RunEndState::No => failures = 0,
                Ok(FeedStep::EndOfLog | FeedStep::Complete) => return Ok(()),
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    tracing::debug!(run = %self.run, %fault, failures, "reading the run failed; retrying");
                    self.sink.wait(backoff(failures)).await?;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            }
        }
    }

    /// Returns the end state of the run as of the client's position, so that a stream that is opened after the last event
    /// ends too.
    async fn read_end_before(&self, seen: u64) -> Result<RunEndState, StreamStop> {
        if seen == 0 {
            return Ok(RunEndState::No);
        }
        let mut failures = 0;
        loop {
            match read_end_state_at(&self.bus, &self.run, seen).await {
                Ok(end) => return Ok(end),
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    self.sink.wait(backoff(failures)).await?;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            }
        }
    }

    async fn send_message(&mut self, message: &LaneMessage) -> Result<(), StreamStop> {
        let mut failures = 0;
        let content = loop {
            match message.content(&self.bus).await {
                Ok(content) => break content,
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    self.sink.wait(backoff(failures)).await?;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            }
        };
        for event in &content.events {
            let is_new = self.request.after.is_none_or(|after| event.cursor > after);
            if is_new && self.request.filter.selects(event) {
                self.send(event.to_frame(event.cursor.to_string())).await?;
            }
            self.last = self.last.max(event.cursor);
        }
        self.end = content.end.unwrap_or(self.end);
        Ok(())
    }

    /// Sends a piece of model output, or drops it if the client is slow.
    fn send_delta(&mut self, message: &async_nats::Message) -> Result<(), StreamStop> {
        let Some(notice) = parse_delta(&self.run, &message.subject, &message.payload) else { return Ok(()) };
        let StreamNotice::Delta { task, .. } = &notice else { return Ok(()) };
        if !self.request.filter.selects_task(task.as_ref().map(TaskId::as_str)) {
            return Ok(());
        }
        if !self.sink.send_if_room(notice.to_frame())? {
            self.dropped_deltas += 1;
        }
        Ok(())
    }

    /// Sends a frame. A client that was slow gets a notice before the next one.
    async fn send(&mut self, frame: Frame) -> Result<(), StreamStop> {
        let waited = self.sink.send(frame).await?;
        if waited < SLOW && self.dropped_deltas == 0 {
            return Ok(());
        }
        let notice = StreamNotice::Lagged {
            run: Some(&self.run),
            last: self.last.to_string(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            dropped_deltas: std::mem::take(&mut self.dropped_deltas),
        };
        self.sink.send(notice.to_frame()).await.map(drop)
    }
}

/// Returns the next message of a subscription; never returns without one, or after its end.
async fn next_message(subscriber: &mut Option<Subscriber>) -> Option<async_nats::Message> {
    if let Some(messages) = subscriber {
        if let Some(message) = messages.next().await {
            return Some(message);
        }
        *subscriber = None;
    }
    std::future::pending().await
}

/// A piece of model output, as workers publish it.
#[derive(Deserialize)]
struct LivePiece {
    text: String,
    calls: Vec<String>,
    anew: bool,
}

/// Returns the notice for a piece of model output; `None` if it shows nothing.
fn parse_delta<'a>(run: &'a RunId, subject: &str, payload: &[u8]) -> Option<StreamNotice<'a>> {
    // The rest of the subject is that of the journal.
    let journal_subject = format!("lane.0.run.{}", subject.strip_prefix("live.")?);
    let (_, _, Topic::Journal(journal)) = subject::parse_lane_subject(&journal_subject)? else { return None };
    let LivePiece { text, calls, anew } = serde_json::from_slice(payload).ok()?;
    if text.is_empty() && calls.is_empty() && !anew {
        return None;
    }
    let (task, attempt, review) = match journal {
        JournalKey::Task(task, attempt) => (Some(task), attempt, false),
        JournalKey::Review(task, attempt) => (Some(task), attempt, true),
        JournalKey::Planning(_, attempt) => (None, attempt, false),
    };
    Some(StreamNotice::Delta { run, task, attempt, review, text, calls, restarted: anew })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_name_their_work_and_silent_ones_are_left_out() {
        let run = RunId::new("r-1").unwrap();
        let delta = |subject: &str, payload: &str| {
            parse_delta(&run, subject, payload.as_bytes()).map(|notice| millrace_views::to_value(&notice))
        };
        let shown = delta("live.r-1.review.draft.2", r#"{"text":"a","calls":[],"anew":false}"#).unwrap();
        assert_eq!(
            (&shown["task"], &shown["attempt"], &shown["review"]),
            (&"draft".into(), &2.into(), &true.into())
        );
        assert!(
            delta("live.r-1.planning.1.1", r#"{"text":"","calls":[],"anew":false,"writing":true}"#).is_none()
        );
        assert!(delta("live.r-1.task.draft.1", "no JSON").is_none());
        assert!(delta("other", r#"{"text":"a","calls":[],"anew":false}"#).is_none());
    }
}
