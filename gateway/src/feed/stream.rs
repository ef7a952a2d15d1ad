//! One open event stream of a run: reads the log from the client's position on, and writes frames.
//!
//! The log is read by sequence, so nothing depends on what the gateway remembers: whatever the client has received, another
//! gateway continues after its last id. New messages are noticed by a core subscription to the run's subjects, which only
//! wakes the reader, and by polling where the subscription is silent or denied.

use std::time::Duration;

use async_nats::Subscriber;
use bytes::Bytes;
use futures::StreamExt;
use millrace_client::{ReceivedEntry, RunEndState};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, JournalKey};
use millrace_protocol::subject::{self, Topic, live_output_subjects_of_run};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::fault::backoff;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::{Bus, Fault};
use millrace_views::journal::read_entry;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cursor::EventCursor;
use super::frame::{PositionedEvent, StreamNotice};
use super::reader::RunReader;

/// The number of frames that wait for a slow client, in addition to what the connection buffers.
pub const QUEUED_FRAMES: usize = 32;
/// The interval of comments that keep the connection open, and that reveal a client that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The poll interval as long as the subscription has not delivered anything.
const POLL_UNNOTIFIED: Duration = Duration::from_millis(100);
/// The poll interval once the subscription has delivered something.
const POLL_NOTIFIED: Duration = Duration::from_secs(2);
/// The delays before the reads after a notification: a message may be delivered before it is stored.
const AFTER_NOTIFICATION: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(2),
    Duration::from_millis(8),
    Duration::from_millis(30),
    Duration::from_millis(100),
];
/// The time that a client may take for a frame before it counts as slow.
const SLOW: Duration = Duration::from_secs(1);

/// The parts of a run that a stream has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventLevel {
    /// The events of the supervisor's decisions.
    #[default]
    Decisions,
    /// The same, and each entry of the journals: model calls, tool results, notes, results.
    Steps,
    /// The same, and the output of models as it is written.
    Live,
}

/// The events that a client asks for.
#[derive(Debug, Clone, Default)]
pub struct EventRequest {
    /// The position after which events are sent; `None` is the beginning.
    pub after: Option<EventCursor>,
    /// The level.
    pub level: EventLevel,
    /// Only events with these names; all if empty.
    pub types: Vec<String>,
    /// Only events of this task.
    pub task: Option<String>,
}

impl EventRequest {
    fn selects(&self, event: &PositionedEvent) -> bool {
        self.after.is_none_or(|after| event.cursor > after)
            && (self.types.is_empty() || self.types.contains(&event.name))
            && (self.task.is_none() || self.task == event.task)
    }
}

/// The reason for the end of a stream other than its run's end.
enum StreamStop {
    /// The client is gone.
    ClientGone,
    /// The process stops.
    Stopping,
    /// A message can't be read.
    Unreadable(Fault),
}

/// An open stream.
pub struct EventStream {
    bus: Bus,
    run: RunId,
    request: EventRequest,
    frames: mpsc::Sender<Bytes>,
    shutdown: CancellationToken,
    /// The position of the last event that was read, whether or not the client asked for it.
    last: EventCursor,
    end: RunEndState,
    dropped_deltas: u64,
}

impl EventStream {
    /// Starts to write the events of a run into `frames`.
    pub fn start(
        (bus, run): (&Bus, &RunId),
        request: EventRequest,
        frames: mpsc::Sender<Bytes>,
        shutdown: CancellationToken,
    ) {
        let last = request.after.unwrap_or_default();
        let stream = Self {
            bus: bus.clone(),
            run: run.clone(),
            request,
            frames,
            shutdown,
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
            Err(StreamStop::Stopping) => StreamNotice::GatewayStopping { run: &run },
            Err(StreamStop::Unreadable(fault)) => {
                tracing::warn!(%run, %fault, "event stream failed");
                StreamNotice::Error { run: &run, message: fault.to_string() }
            }
        };
        // A client that is gone needs no notice.
        let _ = self.frames.send(notice.to_frame()).await;
    }

    /// Sends all events until the run ends.
    async fn send_all(&mut self) -> Result<(), StreamStop> {
        let has_journals = self.request.level >= EventLevel::Steps;
        // The message at the client's position may have more events.
        let seen = self.last.sequence.saturating_sub(1);
        let mut reader = RunReader::new(&self.bus, &self.run, has_journals, seen);
        let mut wakes = self.subscribe(reader.subject().to_owned()).await;
        let mut live = match self.request.level {
            EventLevel::Live => self.subscribe(live_output_subjects_of_run(&self.run)).await,
            EventLevel::Decisions | EventLevel::Steps => None,
        };
        self.send(Bytes::from_static(b": millrace events\n\n")).await?;
        self.end = self.read_end_before(seen).await?;
        let (mut failures, mut reads, mut is_notified) = (0, AFTER_NOTIFICATION.len(), false);
        let mut keep_alive = Instant::now() + KEEP_ALIVE;
        loop {
            let page = match reader.next_records().await {
                Ok(page) => page,
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    tracing::debug!(run = %self.run, %fault, failures, "reading the run failed; retrying");
                    self.wait(backoff(failures)).await?;
                    continue;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            };
            failures = 0;
            for record in page.records {
                self.send_record(&record).await?;
                if self.end == RunEndState::Final {
                    return Ok(());
                }
            }
            if page.is_complete || (page.is_end_of_log && self.end != RunEndState::No) {
                return Ok(());
            }
            if !page.is_end_of_log {
                continue;
            }
            let delay = match AFTER_NOTIFICATION.get(reads) {
                Some(delay) => *delay,
                None if is_notified => POLL_NOTIFIED,
                None => POLL_UNNOTIFIED,
            };
            reads = reads.saturating_add(1);
            let due = Instant::now() + delay;
            // The next read is due at `due`, or as soon as something arrives.
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(due) => break,
                    Some(_) = next_message(&mut wakes) => {
                        is_notified = true;
                        reads = 0;
                        if delay > Duration::ZERO { break }
                    }
                    Some(message) = next_message(&mut live) => self.send_delta(&message)?,
                    () = tokio::time::sleep_until(keep_alive) => {
                        keep_alive = Instant::now() + KEEP_ALIVE;
                        self.send(Bytes::from_static(b": keep-alive\n\n")).await?;
                    }
                    () = self.frames.closed() => return Err(StreamStop::ClientGone),
                    () = self.shutdown.cancelled() => return Err(StreamStop::Stopping),
                }
            }
        }
    }

    /// Subscribes to a subject; `None` if the connection is closed. Without it the run is polled.
    async fn subscribe(&self, subject: String) -> Option<Subscriber> {
        self.bus.client().subscribe(subject).await.ok()
    }

    /// Returns the end state of the run as of the client's position, so that a stream that is opened after the last event
    /// ends too.
    async fn read_end_before(&self, seen: u64) -> Result<RunEndState, StreamStop> {
        if seen == 0 {
            return Ok(RunEndState::No);
        }
        let mut end = RunEndState::No;
        let mut reader = RunReader::new(&self.bus, &self.run, false, 0);
        let mut failures = 0;
        loop {
            let page = match reader.next_records().await {
                Ok(page) => page,
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    self.wait(backoff(failures)).await?;
                    continue;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            };
            for record in &page.records {
                if record.sequence > seen {
                    return Ok(end);
                }
                let decision: Decision = self.decode(record).await?;
                end = decision.events.iter().fold(end, RunEndState::after_event);
            }
            if page.is_complete || page.is_end_of_log {
                return Ok(end);
            }
        }
    }

    async fn decode<M: millrace_protocol::wire::WireMessage>(
        &self,
        record: &StreamRecord,
    ) -> Result<M, StreamStop> {
        let mut failures = 0;
        loop {
            match self.bus.decode_record(record).await {
                Ok(message) => return Ok(message),
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    self.wait(backoff(failures)).await?;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            }
        }
    }

    async fn send_record(&mut self, record: &StreamRecord) -> Result<(), StreamStop> {
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => {
                let decision: Decision = self.decode(record).await?;
                for event in PositionedEvent::of_decision(&self.run, record.sequence, &decision) {
                    self.send_event(event).await?;
                }
                self.end = decision.events.iter().fold(self.end, RunEndState::after_event);
                Ok(())
            }
            Some((_, _, Topic::Journal(journal))) => {
                let event = self.read_step(record, &journal).await?;
                self.send_event(event).await
            }
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer)) | None => Ok(()),
        }
    }

    /// Reads an entry of a journal with its values. An entry that can't be decoded is an event that says so.
    async fn read_step(
        &self,
        record: &StreamRecord,
        journal: &JournalKey,
    ) -> Result<PositionedEvent, StreamStop> {
        let mut failures = 0;
        loop {
            let entry = match self.bus.decode_record::<JournalEntry>(record).await {
                Err(fault) if fault.is_transient() => Err(fault),
                entry => {
                    let received = ReceivedEntry {
                        sequence: record.sequence,
                        at: record.time,
                        journal: journal.clone(),
                        entry: entry.map_err(|fault| fault.to_string()),
                    };
                    read_entry(&self.bus, received).await
                }
            };
            match entry {
                Ok(entry) => return Ok(PositionedEvent::of_entry(&self.run, journal, &entry)),
                Err(fault) if fault.is_transient() => {
                    failures += 1;
                    self.wait(backoff(failures)).await?;
                }
                Err(fault) => return Err(StreamStop::Unreadable(fault)),
            }
        }
    }

    async fn send_event(&mut self, event: PositionedEvent) -> Result<(), StreamStop> {
        if self.request.selects(&event) {
            self.send(event.to_frame()).await?;
        }
        self.last = self.last.max(event.cursor);
        Ok(())
    }

    /// Sends a piece of model output, or drops it if the client is slow.
    fn send_delta(&mut self, message: &async_nats::Message) -> Result<(), StreamStop> {
        let Some(notice) = parse_delta(&self.run, &message.subject, &message.payload) else { return Ok(()) };
        match self.frames.try_send(notice.to_frame()) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.dropped_deltas += 1;
                Ok(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(StreamStop::ClientGone),
        }
    }

    /// Sends a frame. A client that was slow gets a notice before the next one.
    async fn send(&mut self, frame: Bytes) -> Result<(), StreamStop> {
        let started = Instant::now();
        tokio::select! {
            sent = self.frames.send(frame) => sent.map_err(|_| StreamStop::ClientGone)?,
            () = self.shutdown.cancelled() => return Err(StreamStop::Stopping),
        }
        let waited = started.elapsed();
        if waited < SLOW && self.dropped_deltas == 0 {
            return Ok(());
        }
        let notice = StreamNotice::Lagged {
            run: &self.run,
            last: self.last.to_string(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            dropped_deltas: std::mem::take(&mut self.dropped_deltas),
        };
        self.frames.send(notice.to_frame()).await.map_err(|_| StreamStop::ClientGone)
    }

    async fn wait(&self, delay: Duration) -> Result<(), StreamStop> {
        tokio::select! {
            () = tokio::time::sleep(delay) => Ok(()),
            () = self.frames.closed() => Err(StreamStop::ClientGone),
            () = self.shutdown.cancelled() => Err(StreamStop::Stopping),
        }
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
