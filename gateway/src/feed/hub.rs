//! One follower per lane for all streams and waits of this process.
//!
//! A follower reads its lane by sequence, each message once, and hands it to the subscribers of its run and to those of the whole
//! lane. It holds nothing that could not be read again: a subscriber that is too slow, or for which a message may be missing, is
//! told so and reads the log itself.
//!
//! New messages are noticed by a core subscription to the lane, which only wakes the follower, and by polling where the
//! subscription is silent or denied.
//!
//! **No gap.** A subscriber gets every message that the follower reads from then on. Messages that were removed before the
//! follower could read them belong to runs that were archived, and a run is marked as archived before its messages are removed. So
//! the follower reads the summaries after each page of messages: of the part of a run that is marked by then it delivers nothing more,
//! and its subscribers turn to the archive. Messages after that part belong to a run that was reopened, and are delivered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use async_nats::Subscriber;
use futures::{FutureExt, StreamExt};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject;
use millrace_runtime::fault::{backoff, max_replica_lag};
use millrace_runtime::log::read_lane_end;
use millrace_runtime::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::{Bus, Fault};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message::LaneMessage;
use crate::run_index::RunIndex;

/// The maximum number of messages of a page.
const PAGE: usize = 256;
/// The number of items that wait for a subscriber before it counts as too slow.
const QUEUED_ITEMS: usize = 64;
/// The poll interval as long as the subscription has not delivered anything.
const POLL_UNNOTIFIED: Duration = Duration::from_millis(100);
/// The poll interval once the subscription has delivered something.
const POLL_NOTIFIED: Duration = Duration::from_secs(2);
/// The shortest and the longest time from the start of a read to that of the next one in a busy lane: it then reads several messages
/// at once. In between it is [`BUSY_SHARE`] times as long as the read took, so that reads take a bounded share of a busy server.
const BUSY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
const BUSY_SHARE: u32 = 4;
/// The interval at which the summaries are read while nothing is appended.
const POLL_SUMMARIES: Duration = Duration::from_millis(250);
/// The delays before the reads after a notification: a message may be delivered before it is stored.
const AFTER_NOTIFICATION: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(2),
    Duration::from_millis(8),
    Duration::from_millis(30),
    Duration::from_millis(100),
];
/// The time after which a follower without subscribers ends.
const IDLE: Duration = Duration::from_secs(30);

/// The followers of this process.
pub struct LaneHub {
    bus: Bus,
    index: Arc<RunIndex>,
    lanes: Mutex<BTreeMap<u16, Weak<Follower>>>,
    shutdown: CancellationToken,
}

#[derive(Clone)]
pub enum LaneItem {
    /// New messages of a lane, in their order.
    Messages(Arc<[Arc<LaneMessage>]>),
    /// The run of the subscriber is archived: the rest of its messages is in the archive.
    Archived,
}

/// A subscription; it ends when it is dropped.
pub struct Subscription {
    since: Instant,
    items: mpsc::Receiver<LaneItem>,
    mailbox: Arc<Mailbox>,
    follower: Arc<Follower>,
}

impl Subscription {
    /// `true` if what was in the log at its beginning is readable, whichever replica answers.
    pub fn has_readable_past(&self, bus: &Bus) -> bool {
        self.since.elapsed() >= max_replica_lag(bus.settings().replicas)
    }

    /// Waits for the next item. `None` if items were left out after the last one: the subscriber must read the log and subscribe
    /// again.
    pub async fn next_item(&mut self) -> Option<LaneItem> {
        self.items.recv().await
    }

    /// The same for a caller that waits for several subscriptions.
    pub fn poll_next_item(&mut self, context: &mut Context<'_>) -> Poll<Option<LaneItem>> {
        self.items.poll_recv(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.follower.lock().remove(&self.mailbox);
    }
}

struct Mailbox {
    run: Option<RunId>,
    /// `None` once an item was left out.
    items: Mutex<Option<mpsc::Sender<LaneItem>>>,
}

impl Mailbox {
    fn deliver(&self, item: LaneItem) {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        if items.as_ref().is_some_and(|items| items.try_send(item).is_err()) {
            *items = None;
        }
    }

    /// Ends the delivery: the subscriber may have missed a message.
    fn close(&self) {
        *self.items.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

struct Follower {
    lane: Lane,
    state: Mutex<FollowerState>,
}

#[derive(Default)]
struct FollowerState {
    /// The sequence up to which the lane was read and delivered.
    head: u64,
    by_run: HashMap<RunId, Vec<Arc<Mailbox>>>,
    whole: Vec<Arc<Mailbox>>,
    /// The sequence of the last delivered message of each run that is not archived.
    last: HashMap<RunId, u64>,
    /// The revision of the summaries up to which archived runs were handled.
    revision: u64,
    /// Since when there are no subscribers.
    idle_since: Option<Instant>,
    /// `true` if it no longer reads.
    has_ended: bool,
}

impl FollowerState {
    fn remove(&mut self, mailbox: &Arc<Mailbox>) {
        let others = match &mailbox.run {
            Some(run) => self.by_run.get_mut(run),
            None => Some(&mut self.whole),
        };
        if let Some(others) = others {
            others.retain(|other| !Arc::ptr_eq(other, mailbox));
            if let Some(run) = mailbox.run.as_ref().filter(|_| others.is_empty()) {
                self.by_run.remove(run);
            }
        }
        if self.by_run.is_empty() && self.whole.is_empty() {
            self.idle_since = Some(Instant::now());
        }
    }
}

impl Follower {
    fn lock(&self) -> MutexGuard<'_, FollowerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneHub {
    /// Creates the hub; it reads nothing until there is a subscriber.
    pub fn new(bus: Bus, index: Arc<RunIndex>, shutdown: CancellationToken) -> Self {
        Self { bus, index, lanes: Mutex::new(BTreeMap::new()), shutdown }
    }

    /// The summaries that the followers read.
    pub fn index(&self) -> &Arc<RunIndex> {
        &self.index
    }

    /// Subscribes to the messages of a run, or of the whole lane.
    pub async fn subscribe(&self, lane: Lane, run: Option<RunId>) -> Result<Subscription, Fault> {
        if let Some(subscription) = self.join(lane, run.as_ref()) {
            return Ok(subscription);
        }
        // A new follower begins behind the last message that the leader of the stream knows.
        self.index.refresh(&self.bus).await?;
        let revision = self.index.revision();
        let head = read_lane_end(&self.bus, lane).await?;
        if let Some(subscription) = self.join(lane, run.as_ref()) {
            return Ok(subscription);
        }
        let idle_since = Some(Instant::now());
        let state = FollowerState { head, revision, idle_since, ..FollowerState::default() };
        let follower = Arc::new(Follower { lane, state: Mutex::new(state) });
        self.lanes().insert(lane.0, Arc::downgrade(&follower));
        let reader = LaneReader {
            bus: self.bus.clone(),
            index: self.index.clone(),
            follower: follower.clone(),
            shutdown: self.shutdown.clone(),
        };
        tokio::spawn(reader.read_until_idle());
        match self.join(lane, run.as_ref()) {
            Some(subscription) => Ok(subscription),
            None => Err(Fault::unavailable("following the lane", "its follower has ended")),
        }
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<u16, Weak<Follower>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to a follower that reads already.
    fn join(&self, lane: Lane, run: Option<&RunId>) -> Option<Subscription> {
        let follower = self.lanes().get(&lane.0)?.upgrade()?;
        let mut state = follower.lock();
        if state.has_ended {
            return None;
        }
        state.idle_since = None;
        let (sender, items) = mpsc::channel(QUEUED_ITEMS);
        let mailbox = Arc::new(Mailbox { run: run.cloned(), items: Mutex::new(Some(sender)) });
        match run {
            Some(run) => state.by_run.entry(run.clone()).or_default().push(mailbox.clone()),
            None => state.whole.push(mailbox.clone()),
        }
        drop(state);
        Some(Subscription { since: Instant::now(), items, mailbox, follower })
    }
}

/// The task of a follower.
struct LaneReader {
    bus: Bus,
    index: Arc<RunIndex>,
    follower: Arc<Follower>,
    shutdown: CancellationToken,
}

impl LaneReader {
    async fn read_until_idle(self) {
        let lane = self.follower.lane;
        let mut wakes = self.bus.client().subscribe(subject::all_subjects_of_lane(lane)).await.ok();
        let (mut failures, mut reads, mut is_notified) = (0, 0_usize, false);
        let mut summaries_due = Instant::now();
        loop {
            let is_idle = {
                let mut state = self.follower.lock();
                let is_idle = state.idle_since.is_some_and(|since| since.elapsed() > IDLE);
                state.has_ended = is_idle || self.shutdown.is_cancelled();
                state.has_ended
            };
            if is_idle {
                return;
            }
            let started = Instant::now();
            match self.read_page(summaries_due <= started).await {
                Ok(count @ 1..) => {
                    (failures, summaries_due) = (0, Instant::now() + POLL_SUMMARIES);
                    if count < PAGE {
                        let pause = (started.elapsed() * BUSY_SHARE).clamp(BUSY.0, BUSY.1);
                        tokio::time::sleep_until(started + pause).await;
                    }
                    continue;
                }
                Ok(_) => {
                    failures = 0;
                    if summaries_due <= Instant::now() {
                        summaries_due = Instant::now() + POLL_SUMMARIES;
                    }
                }
                Err(fault) => {
                    failures += 1;
                    tracing::debug!(%lane, %fault, failures, "reading the lane failed; retrying");
                    tokio::time::sleep(backoff(failures)).await;
                    continue;
                }
            }
            let delay = match AFTER_NOTIFICATION.get(reads) {
                Some(delay) => *delay,
                None if is_notified => POLL_NOTIFIED,
                None => POLL_UNNOTIFIED,
            };
            reads = reads.saturating_add(1);
            let due = (Instant::now() + delay).min(summaries_due);
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = wait_for_message(&mut wakes) => (is_notified, reads) = (true, 0),
                () = self.shutdown.cancelled() => {}
            }
        }
    }

    /// Reads the next messages, delivers them and returns their number.
    async fn read_page(&self, reads_summaries: bool) -> Result<usize, Fault> {
        let lane = self.follower.lane;
        let head = self.follower.lock().head;
        let pages = PagedReader::new(self.bus.client(), lane_stream(lane), ALL_SUBJECTS.into(), head + 1);
        let records = pages.with_page_size(PAGE).next_page().await?;
        if records.is_empty() && !reads_summaries {
            return Ok(0);
        }
        // The order matters: see the documentation of this module.
        self.index.refresh(&self.bus).await?;
        let mut state = self.follower.lock();
        let has_hole = self.handle_archived_runs(&mut state);
        let (Some(last), count) = (records.last(), records.len()) else { return Ok(0) };
        state.head = last.sequence;
        let messages: Vec<Arc<LaneMessage>> =
            records.into_iter().filter_map(LaneMessage::from_record).collect();
        if has_hole {
            state.whole.iter().for_each(|mailbox| mailbox.close());
        }
        self.deliver(&mut state, messages);
        Ok(count)
    }

    /// Sends the subscribers of archived runs to the archive. Returns `true` if the follower has missed a message of one.
    fn handle_archived_runs(&self, state: &mut FollowerState) -> bool {
        let (archived, revision) = self.index.archived_since(self.follower.lane, state.revision);
        state.revision = revision;
        let mut has_hole = false;
        for run in archived {
            let delivered = state.last.remove(&run.summary.run);
            has_hole |= match (run.summary.archived_span, delivered) {
                (Some((_, last)), Some(delivered)) => delivered < last,
                (Some((_, last)), None) => last > state.head,
                (None, _) => true,
            };
            for mailbox in state.by_run.get(&run.summary.run).into_iter().flatten() {
                mailbox.deliver(LaneItem::Archived);
            }
        }
        has_hole
    }

    fn deliver(&self, state: &mut FollowerState, messages: Vec<Arc<LaneMessage>>) {
        let messages = self.index.without_archived(messages);
        let mut by_run: HashMap<&RunId, Vec<Arc<LaneMessage>>> = HashMap::new();
        for message in &messages {
            state.last.insert(message.run.clone(), message.sequence());
            if state.by_run.contains_key(&message.run) {
                by_run.entry(&message.run).or_default().push(message.clone());
            }
        }
        for (run, messages) in by_run {
            let messages: Arc<[Arc<LaneMessage>]> = messages.into();
            for mailbox in state.by_run.get(run).into_iter().flatten() {
                mailbox.deliver(LaneItem::Messages(messages.clone()));
            }
        }
        if !state.whole.is_empty() && !messages.is_empty() {
            let messages: Arc<[Arc<LaneMessage>]> = messages.into();
            for mailbox in &state.whole {
                mailbox.deliver(LaneItem::Messages(messages.clone()));
            }
        }
    }
}

/// Waits for a message of a subscription; never returns without one, or after its end.
async fn wait_for_message(subscriber: &mut Option<Subscriber>) {
    if let Some(messages) = subscriber {
        if messages.next().await.is_some() {
            // One read is enough for all that have arrived.
            while let Some(Some(_)) = messages.next().now_or_never() {}
            return;
        }
        *subscriber = None;
    }
    std::future::pending().await
}
