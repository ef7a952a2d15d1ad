//! The messages of one run from any sequence on: first from the log, then as the follower of its lane delivers them, and in the end
//! from the archive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::fault::max_replica_lag;
use millrace_runtime::nats::direct_get::PagedReader;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive::read_archived_run;
use millrace_runtime::{Bus, Fault};
use tokio::time::Instant;

use super::hub::{LaneHub, LaneItem, Subscription};
use super::message::LaneMessage;

/// The maximum number of messages of a page.
const PAGE: usize = 64;
/// The poll interval while a replica may lag.
const POLL: Duration = Duration::from_millis(50);

/// The messages of a run.
pub struct RunFeed {
    bus: Bus,
    hub: Arc<LaneHub>,
    run: RunId,
    lane: Lane,
    filter: String,
    has_journals: bool,
    /// The sequence of the last message that was returned.
    seen: u64,
    /// The rest of the run, once it has been archived.
    archived: Option<VecDeque<Arc<LaneMessage>>>,
    following: Option<Following>,
}

/// A subscription to the follower of the lane.
struct Following {
    subscription: Subscription,
    since: Instant,
    /// `true` if the log was read up to the beginning of the subscription.
    is_live: bool,
    /// `true` if the next step is the end of the log.
    is_at_end: bool,
}

/// The next part of a feed.
pub enum FeedStep {
    /// Messages, in their order.
    Messages(Vec<Arc<LaneMessage>>),
    /// All messages so far were returned.
    EndOfLog,
    /// The run is archived, and all its messages were returned: no more will follow.
    Complete,
}

impl RunFeed {
    /// Creates a feed of the messages after sequence `seen`: the decisions, and the journals if `has_journals`.
    pub fn new(bus: &Bus, hub: &Arc<LaneHub>, run: &RunId, has_journals: bool, seen: u64) -> Self {
        let lane = bus.lane_of_run(run);
        let filter = match has_journals {
            true => subject::all_subjects_of_run(lane, run),
            false => subject::topic_subject(lane, run, &Topic::Plan),
        };
        let (bus, hub, run) = (bus.clone(), hub.clone(), run.clone());
        Self { bus, hub, run, lane, filter, has_journals, seen, archived: None, following: None }
    }

    /// Waits for the next messages. After [`FeedStep::EndOfLog`] it returns when there are more. Cancellation loses nothing.
    ///
    /// # Errors
    /// The server does not respond; the next call continues.
    pub async fn next_step(&mut self) -> Result<FeedStep, Fault> {
        loop {
            if self.archived.is_some() {
                return Ok(self.next_archived());
            }
            let Some(following) = &mut self.following else {
                let subscription = self.hub.subscribe(self.lane, Some(self.run.clone())).await?;
                let since = Instant::now();
                self.following = Some(Following { subscription, since, is_live: false, is_at_end: false });
                continue;
            };
            if !following.is_live {
                let is_caught_up = following.since.elapsed() >= max_replica_lag(self.bus.settings().replicas);
                return self.read_log(is_caught_up).await;
            }
            if std::mem::take(&mut following.is_at_end) {
                return Ok(FeedStep::EndOfLog);
            }
            if let Some(step) = self.next_live().await {
                return Ok(step);
            }
        }
    }

    /// Reads the log again before the next messages are awaited, so that the next step is [`FeedStep::EndOfLog`] if there are none.
    pub fn read_again(&mut self) {
        self.following = None;
    }

    /// Reads the next messages of the log. Pauses at its end while a replica may lag.
    async fn read_log(&mut self, is_caught_up: bool) -> Result<FeedStep, Fault> {
        let filter = self.filter.clone();
        let pages = PagedReader::new(self.bus.client(), lane_stream(self.lane), filter, self.seen + 1);
        let mut pages = pages.with_page_size(PAGE);
        let records = pages.next_page().await?;
        // The order matters: a run is marked as archived before its messages are removed from the lane. If it is not marked
        // after the read, no message of this page was missing.
        self.hub.index().refresh(&self.bus).await?;
        let is_archived = self.hub.index().find(&self.run).is_some_and(|run| run.summary.archived);
        if is_archived && let Some(all) = read_archived_run(&self.bus, &self.run).await? {
            let rest = all.into_iter().filter(|record| record.sequence > self.seen);
            let rest = rest.filter_map(LaneMessage::from_record).filter(|message| self.is_wanted(message));
            self.archived = Some(rest.collect());
            self.following = None;
            return Ok(self.next_archived());
        }
        let Some(last) = records.last() else {
            if is_caught_up && let Some(following) = &mut self.following {
                following.is_live = true;
            } else {
                tokio::time::sleep(POLL).await;
            }
            return Ok(FeedStep::EndOfLog);
        };
        self.seen = last.sequence;
        if let Some(following) = self.following.as_mut().filter(|_| is_caught_up && pages.is_over()) {
            (following.is_live, following.is_at_end) = (true, true);
        }
        let messages = records.into_iter().filter_map(LaneMessage::from_record);
        Ok(FeedStep::Messages(messages.filter(|message| self.is_wanted(message)).collect()))
    }

    /// Waits for the next messages of the follower; `None` if the log or the archive must be read.
    async fn next_live(&mut self) -> Option<FeedStep> {
        let following = self.following.as_mut()?;
        let messages = match following.subscription.next_item().await {
            Some(LaneItem::Messages(messages)) => messages,
            Some(LaneItem::Archived) | None => {
                self.following = None;
                return None;
            }
        };
        let is_new = |message: &&Arc<LaneMessage>| message.sequence() > self.seen && self.is_wanted(message);
        let new: Vec<Arc<LaneMessage>> = messages.iter().filter(is_new).cloned().collect();
        self.seen = messages.last().map_or(self.seen, |last| self.seen.max(last.sequence()));
        (!new.is_empty()).then_some(FeedStep::Messages(new))
    }

    fn next_archived(&mut self) -> FeedStep {
        let rest = self.archived.get_or_insert_default();
        let part: Vec<Arc<LaneMessage>> = rest.drain(..rest.len().min(PAGE)).collect();
        match part.last() {
            Some(last) => {
                self.seen = last.sequence();
                FeedStep::Messages(part)
            }
            None => FeedStep::Complete,
        }
    }

    fn is_wanted(&self, message: &LaneMessage) -> bool {
        self.has_journals || message.is_decision()
    }
}
