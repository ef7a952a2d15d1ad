//! The messages of one run from any sequence on: first from the log, then as the follower of its lane delivers them, and in the end
//! from the archive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::fault::max_replica_lag;
use millrace_runtime::nats::direct_get::PagedReader;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive::{has_reopening_command, join_with_archive};
use millrace_runtime::{Bus, Fault};
use tokio::time::Instant;

use super::hub::{LaneHub, LaneItem, Subscription};
use super::message::LaneMessage;

/// The maximum number of messages of a page.
const PAGE: usize = 64;
/// The poll interval while a replica may lag.
const POLL: Duration = Duration::from_millis(50);

pub struct RunFeed {
    bus: Bus,
    hub: Arc<LaneHub>,
    run: RunId,
    lane: Lane,
    filter: String,
    has_journals: bool,
    /// The sequence of the last message that was returned.
    seen: u64,
    /// The rest of the part of the run that the archive holds.
    archived: Option<ArchivedPart>,
    following: Option<Following>,
}

/// The messages of a run from the archive, and those that the lane held after them.
struct ArchivedPart {
    messages: VecDeque<Arc<LaneMessage>>,
    /// The sequence of the last message that was read.
    through: u64,
    /// `true` if the run is archived, and nothing in the lane continues it.
    is_whole: bool,
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
    Messages(Vec<Arc<LaneMessage>>),
    /// All messages so far were returned.
    EndOfLog,
    /// The run is archived, and all its messages were returned: no more follow unless it is reopened.
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
            if let Some(step) = self.next_archived() {
                return Ok(step);
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
        let found = self.hub.index().find(&self.run);
        let summary = found.as_ref().map(|run| &run.summary).filter(|summary| self.needs_archive(summary));
        let Some(summary) = summary else {
            return self.next_page(records, pages.is_over(), is_caught_up).await;
        };
        let joined = join_with_archive(&self.bus, &self.run, records, Some(summary)).await?;
        let through = joined.records.last().map_or(0, |last| last.sequence);
        let is_whole = summary.archived
            && joined.archived_through > 0
            && joined.archived_through == through
            && !has_reopening_command(&self.bus, self.lane, &self.run, through).await?;
        let rest = joined.records.into_iter().filter(|record| record.sequence > self.seen);
        let rest = rest.collect::<Vec<_>>();
        if !is_whole && joined.archived_through <= self.seen {
            return self.next_page(rest, pages.is_over(), is_caught_up).await;
        }
        let messages = rest.into_iter().filter_map(LaneMessage::from_record);
        let messages = messages.filter(|message| self.is_wanted(message)).collect();
        self.archived = Some(ArchivedPart { messages, through, is_whole });
        if is_whole {
            self.following = None;
        }
        match self.next_archived() {
            Some(step) => Ok(step),
            None => Ok(FeedStep::Messages(Vec::new())),
        }
    }

    /// `true` if the archive holds messages that were not returned, or may hold the end of the run.
    fn needs_archive(&self, summary: &RunSummary) -> bool {
        summary.archived || summary.archived_span.is_some_and(|(_, last)| last > self.seen)
    }

    /// Returns a page of the lane. Pauses at the end of the log while a replica may lag.
    async fn next_page(
        &mut self,
        records: Vec<StreamRecord>,
        is_over: bool,
        is_caught_up: bool,
    ) -> Result<FeedStep, Fault> {
        let Some(last) = records.last() else {
            if is_caught_up && let Some(following) = &mut self.following {
                following.is_live = true;
            } else {
                tokio::time::sleep(POLL).await;
            }
            return Ok(FeedStep::EndOfLog);
        };
        self.seen = last.sequence;
        if let Some(following) = self.following.as_mut().filter(|_| is_caught_up && is_over) {
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

    /// Returns the next messages of the archived part; `None` if there is none, or the lane continues it.
    fn next_archived(&mut self) -> Option<FeedStep> {
        let rest = self.archived.as_mut()?;
        let part: Vec<Arc<LaneMessage>> = rest.messages.drain(..rest.messages.len().min(PAGE)).collect();
        if let Some(last) = part.last() {
            self.seen = last.sequence();
            return Some(FeedStep::Messages(part));
        }
        if rest.is_whole {
            return Some(FeedStep::Complete);
        }
        self.seen = self.seen.max(rest.through);
        self.archived = None;
        None
    }

    fn is_wanted(&self, message: &LaneMessage) -> bool {
        self.has_journals || message.is_decision()
    }
}
