//! One open stream of the events of many runs.
//!
//! Each lane is read from the client's position on, with the archives of the runs that have left it ([`LaneLog`]); then the
//! follower of the lane delivers what is new. The id of each frame has the positions in all lanes, so that a client that reconnects,
//! to this gateway or another one, gets every later event once. Summaries of runs are sent when they change, so that a list of runs
//! can be kept up to date.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::labels::{LabelSelector, Labels};
use millrace_runtime::Bus;
use millrace_runtime::fault::backoff;
use millrace_runtime::log::follow::{LaneLog, LogTopics};
use millrace_views::RunListLine;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::filter::EventFilter;
use super::frame::{Frame, FrameSink, KEEP_ALIVE, SLOW, StreamNotice, StreamStop, summary_frame};
use super::hub::{LaneHub, LaneItem, Subscription};
use super::labels::read_labels;
use super::message::LaneMessage;
use super::position::{EventCursor, StreamPosition};
use crate::history::HistoryCache;
use crate::listed_run::IndexedRun;
use crate::run_filter::RunFilter;

/// The number of summaries that are sent at a time.
const SUMMARIES: usize = 256;
/// The interval at which changed summaries are sent.
const SUMMARY_INTERVAL: Duration = Duration::from_millis(250);
/// The pause between two reads of a lane while a replica may lag.
const LAG_PAUSE: Duration = Duration::from_millis(50);
/// The number of runs whose selection by labels is remembered.
const MAX_SELECTED: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStart {
    /// With the next event, after the summaries of all runs that have not ended.
    Now,
    After(StreamPosition),
}

/// The events that a client asks for.
#[derive(Debug, Clone)]
pub struct AllRunsRequest {
    /// The beginning.
    pub start: StreamStart,
    pub filter: EventFilter,
    /// Only events of these runs; all if empty.
    pub runs: BTreeSet<RunId>,
    /// Only events of runs with these labels.
    pub labels: Vec<LabelSelector>,
}

/// The parts of the gateway that a stream needs.
#[derive(Clone)]
pub struct StreamSources {
    /// The connection to the cluster.
    pub bus: Bus,
    pub hub: Arc<LaneHub>,
    pub histories: Arc<HistoryCache>,
    /// Ends the stream when the process stops.
    pub shutdown: CancellationToken,
}

pub struct AllRunsStream {
    sources: StreamSources,
    request: AllRunsRequest,
    sink: FrameSink,
    position: StreamPosition,
    lanes: Vec<LaneFeed>,
    /// The runs that were seen, and whether the client asks for them.
    selected: HashMap<RunId, bool>,
}

/// A lane in a stream.
struct LaneFeed {
    log: LaneLog,
    /// `None` if the subscription must be made, or made again.
    subscription: Option<Subscription>,
    /// `true` if the log was read up to the beginning of the subscription, which has what is new.
    is_live: bool,
}

impl AllRunsStream {
    /// Starts to write events into `frames`.
    pub fn start(sources: StreamSources, request: AllRunsRequest, frames: mpsc::Sender<Frame>) {
        let lanes = sources.bus.settings().lanes;
        let position = match &request.start {
            StreamStart::Now => StreamPosition::start(lanes),
            StreamStart::After(position) => position.clone(),
        };
        let sink = FrameSink::new(frames, sources.shutdown.clone());
        let stream = Self { sources, request, sink, position, lanes: Vec::new(), selected: HashMap::new() };
        tokio::spawn(stream.run_to_end());
    }

    async fn run_to_end(mut self) {
        let notice = match self.send_all().await {
            StreamStop::ClientGone => return,
            StreamStop::Stopping => StreamNotice::GatewayStopping { run: None },
            StreamStop::Unreadable(fault) => {
                tracing::warn!(%fault, "event stream of all runs failed");
                StreamNotice::Error { run: None, message: fault.to_string() }
            }
        };
        self.sink.send_last(notice.to_frame()).await;
    }

    async fn send_all(&mut self) -> StreamStop {
        let mut failures = 0;
        let mut is_open = false;
        loop {
            let outcome = match is_open {
                false => self.open().await.map(|()| is_open = true),
                true => self.send_until_fault().await,
            };
            match outcome {
                Ok(()) => failures = 0,
                Err(StreamStop::Unreadable(fault)) if fault.is_transient() => {
                    failures += 1;
                    tracing::debug!(%fault, failures, "reading the lanes failed; retrying");
                    // Messages that were read may not have been sent.
                    self.lanes = self.open_lanes();
                    if let Err(stop) = self.sink.wait(backoff(failures)).await {
                        return stop;
                    }
                }
                Err(stop) => return stop,
            }
        }
    }

    /// Finds the beginning, and tells it to the client.
    async fn open(&mut self) -> Result<(), StreamStop> {
        let StreamSources { bus, hub, .. } = &self.sources;
        let (bus, hub) = (bus.clone(), hub.clone());
        if self.request.start == StreamStart::Now {
            hub.index().refresh(&bus).await?;
            self.position.revision = hub.index().revision();
            for lane in 0..bus.settings().lanes {
                let sequence = millrace_runtime::log::read_lane_end(&bus, Lane(lane)).await?;
                self.position.lanes[usize::from(lane)] = EventCursor { sequence, index: u32::MAX };
            }
        }
        self.lanes = self.open_lanes();
        let started = StreamNotice::StreamStarted { last: self.position.to_string() };
        self.send(started.to_frame_with_id(Some(self.position.to_string()))).await?;
        if self.request.start == StreamStart::Now {
            let mut live = Vec::new();
            let collect = |run: &IndexedRun| {
                if run.summary.end.is_none() {
                    live.push(run.summary.run.clone());
                }
            };
            hub.index().visit_runs(&bus, &RunFilter::live(), collect).await?;
            for run in live.iter().filter_map(|run| hub.index().find(run)) {
                self.send_summary(&run).await?;
            }
        }
        Ok(())
    }

    /// Returns readers of all lanes from the position on.
    fn open_lanes(&self) -> Vec<LaneFeed> {
        let StreamSources { bus, hub, .. } = &self.sources;
        let topics = if self.request.filter.has_steps() { LogTopics::All } else { LogTopics::Decisions };
        let open = |(lane, cursor): (u16, &EventCursor)| {
            let (find_archived, kind) = (hub.index().find_archived(bus), (Lane(lane), topics));
            // The message at the position may have more events.
            let log = LaneLog::new(bus, find_archived, kind, cursor.sequence.saturating_sub(1));
            LaneFeed { log, subscription: None, is_live: false }
        };
        (0..).zip(&self.position.lanes).map(open).collect()
    }

    async fn send_until_fault(&mut self) -> Result<(), StreamStop> {
        for lane in 0..self.lanes.len() {
            self.read_lane_to_its_end(lane).await?;
        }
        let mut keep_alive = Instant::now() + KEEP_ALIVE;
        let mut summaries_due = Instant::now();
        loop {
            let next = next_item(&mut self.lanes);
            let item = tokio::select! {
                item = next => Some(item),
                () = tokio::time::sleep_until(summaries_due) => None,
                () = tokio::time::sleep_until(keep_alive) => {
                    keep_alive = Instant::now() + KEEP_ALIVE;
                    self.send(Frame::Comment("keep-alive")).await?;
                    continue;
                }
                stop = self.sink.closed() => return Err(stop),
            };
            match item {
                Some((lane, Some(LaneItem::Messages(messages)))) => {
                    self.send_messages(lane, &messages).await?;
                    if let Some(last) = messages.last() {
                        self.lanes[lane].log.skip_to(last.sequence());
                        self.move_past(lane, last.sequence());
                    }
                }
                Some((lane, Some(LaneItem::Archived) | None)) => {
                    (self.lanes[lane].subscription, self.lanes[lane].is_live) = (None, false);
                    self.read_lane_to_its_end(lane).await?;
                }
                None => {
                    self.send_changed_summaries().await?;
                    summaries_due = Instant::now() + SUMMARY_INTERVAL;
                }
            }
        }
    }

    /// Reads a lane until its follower delivers all that comes after.
    async fn read_lane_to_its_end(&mut self, lane: usize) -> Result<(), StreamStop> {
        let StreamSources { bus, hub, .. } = self.sources.clone();
        let number = Lane(u16::try_from(lane).unwrap_or(u16::MAX));
        if self.lanes[lane].subscription.is_none() {
            self.lanes[lane].subscription = Some(hub.subscribe(number, None).await?);
        }
        while !self.lanes[lane].is_live {
            let LaneFeed { log, subscription, .. } = &mut self.lanes[lane];
            // The end is one that was read after the time that a replica may lag.
            let is_certain = subscription.as_ref().is_some_and(|it| it.has_readable_past(&bus));
            let runs = &self.request.runs;
            let part = log.next_part(|run| runs.is_empty() || runs.contains(run)).await?;
            let seen = log.seen();
            let messages: Vec<_> = part.records.into_iter().filter_map(LaneMessage::from_record).collect();
            self.send_messages(lane, &messages).await?;
            self.move_past(lane, seen);
            match (part.is_end_of_log, is_certain) {
                (true, true) => self.lanes[lane].is_live = true,
                (true, false) => self.sink.wait(LAG_PAUSE).await?,
                (false, _) => {}
            }
        }
        Ok(())
    }

    /// Moves the position past the messages of a lane up to a sequence, which were sent or are not wanted.
    fn move_past(&mut self, lane: usize, sequence: u64) {
        let cursor = &mut self.position.lanes[lane];
        if cursor.sequence < sequence {
            *cursor = EventCursor { sequence, index: u32::MAX };
        }
    }

    async fn send_messages(&mut self, lane: usize, messages: &[Arc<LaneMessage>]) -> Result<(), StreamStop> {
        for message in messages {
            // A message at the client's position may have more events.
            let is_new = message.sequence() >= self.position.lanes[lane].sequence;
            if is_new && self.is_wanted(message).await? {
                self.send_message(lane, message).await?;
            }
        }
        Ok(())
    }

    async fn send_message(&mut self, lane: usize, message: &LaneMessage) -> Result<(), StreamStop> {
        let content = match message.content(&self.sources.bus).await {
            Ok(content) => content,
            Err(fault) if fault.is_transient() => return Err(fault.into()),
            Err(fault) => {
                // One damaged run must not end the stream of all others.
                tracing::warn!(run = %message.run, %fault, "ignoring an unreadable decision");
                self.position.lanes[lane] = EventCursor { sequence: message.sequence(), index: u32::MAX };
                let notice = StreamNotice::Error { run: Some(&message.run), message: fault.to_string() };
                return self.send(notice.to_frame()).await;
            }
        };
        for event in &content.events {
            if event.cursor <= self.position.lanes[lane] {
                continue;
            }
            self.position.lanes[lane] = event.cursor;
            if self.request.filter.selects(event) {
                self.send(event.to_frame(self.position.to_string())).await?;
            }
        }
        Ok(())
    }

    /// `true` if the client asks for a message of this kind and of its run. The follower delivers all messages.
    async fn is_wanted(&mut self, message: &LaneMessage) -> Result<bool, StreamStop> {
        if !self.request.filter.selects_message(message) {
            return Ok(false);
        }
        if !self.request.runs.is_empty() && !self.request.runs.contains(&message.run) {
            return Ok(false);
        }
        if self.request.labels.is_empty() {
            return Ok(true);
        }
        if let Some(is_selected) = self.selected.get(&message.run) {
            return Ok(*is_selected);
        }
        let StreamSources { bus, hub, histories, .. } = &self.sources;
        let labels = read_labels(bus, hub.index(), histories, message).await?;
        let is_selected = self.has_labels(&labels);
        if self.selected.len() >= MAX_SELECTED {
            self.selected.clear();
        }
        self.selected.insert(message.run.clone(), is_selected);
        Ok(is_selected)
    }

    fn has_labels(&self, labels: &Labels) -> bool {
        self.request.labels.iter().all(|label| label.selects(labels))
    }

    async fn send_changed_summaries(&mut self) -> Result<(), StreamStop> {
        loop {
            let index = self.sources.hub.index().clone();
            let (changed, complete) = index.changed_since(self.position.revision, SUMMARIES);
            for run in &changed {
                self.position.revision = run.revision;
                self.send_summary(run).await?;
            }
            self.position.revision = self.position.revision.max(complete);
            if changed.len() < SUMMARIES {
                return Ok(());
            }
        }
    }

    async fn send_summary(&mut self, run: &IndexedRun) -> Result<(), StreamStop> {
        let summary = &run.summary;
        let is_selected = self.request.runs.is_empty() || self.request.runs.contains(&summary.run);
        if !is_selected || !self.has_labels(&summary.labels) {
            return Ok(());
        }
        let line = RunListLine::new(&summary.run, Some(summary));
        self.send(summary_frame(self.position.to_string(), &line)).await
    }

    /// Sends a frame. A client that was slow gets a notice before the next one.
    async fn send(&self, frame: Frame) -> Result<(), StreamStop> {
        let waited = self.sink.send(frame).await?;
        if waited < SLOW {
            return Ok(());
        }
        let notice = StreamNotice::Lagged {
            run: None,
            last: self.position.to_string(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            dropped_deltas: 0,
        };
        self.sink.send(notice.to_frame()).await.map(drop)
    }
}

/// Waits for the next item of any lane that is followed.
async fn next_item(lanes: &mut [LaneFeed]) -> (usize, Option<LaneItem>) {
    std::future::poll_fn(|context| {
        for (lane, feed) in lanes.iter_mut().enumerate().filter(|(_, feed)| feed.is_live) {
            if let Some(subscription) = &mut feed.subscription
                && let Poll::Ready(item) = subscription.poll_next_item(context)
            {
                return Poll::Ready((lane, item));
            }
        }
        Poll::Pending
    })
    .await
}
