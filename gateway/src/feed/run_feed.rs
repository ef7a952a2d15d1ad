//! The messages of one run from any sequence on: first from its log, then as the follower of its lane delivers them, and again from its
//! log if the follower may have missed one.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_runtime::log::follow::{LogStep, LogTopics, RunLog, RunPosition};
use millrace_runtime::{Bus, Fault};

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
    has_journals: bool,
    log: RunLog,
    following: Option<Following>,
}

/// A subscription to the follower of the lane.
struct Following {
    subscription: Subscription,
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
        let topics = if has_journals { LogTopics::All } else { LogTopics::Decisions };
        let log = RunLog::new(bus, run, topics, RunPosition::after(seen)).with_page_size(PAGE);
        let (bus, hub, run) = (bus.clone(), hub.clone(), run.clone());
        Self { bus, hub, run, has_journals, log, following: None }
    }

    /// Waits for the next messages. After [`FeedStep::EndOfLog`] it returns when there are more. Cancellation loses nothing.
    ///
    /// # Errors
    /// The server does not respond; the next call continues.
    pub async fn next_step(&mut self) -> Result<FeedStep, Fault> {
        loop {
            let Some(following) = &mut self.following else {
                let lane = self.bus.lane_of_run(&self.run);
                let subscription = self.hub.subscribe(lane, Some(self.run.clone())).await?;
                self.following = Some(Following { subscription, is_live: false, is_at_end: false });
                continue;
            };
            if !following.is_live {
                return self.read_log().await;
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
    async fn read_log(&mut self) -> Result<FeedStep, Fault> {
        let following = self.following.as_mut();
        let mut caught_up = following.filter(|following| following.subscription.has_readable_past(&self.bus));
        match self.log.next_part().await? {
            LogStep::Messages(records) => {
                if let Some(following) = caught_up.filter(|_| self.log.is_at_end()) {
                    (following.is_live, following.is_at_end) = (true, true);
                }
                let messages = records.into_iter().filter_map(LaneMessage::from_record);
                Ok(FeedStep::Messages(messages.collect()))
            }
            // One that is submitted again after its deletion has no summary yet.
            LogStep::EndOfLog | LogStep::Deleted => {
                match &mut caught_up {
                    Some(following) => following.is_live = true,
                    None => tokio::time::sleep(POLL).await,
                }
                Ok(FeedStep::EndOfLog)
            }
            LogStep::Complete => {
                self.following = None;
                Ok(FeedStep::Complete)
            }
        }
    }

    /// Waits for the next messages of the follower; `None` if the log must be read.
    async fn next_live(&mut self) -> Option<FeedStep> {
        let following = self.following.as_mut()?;
        let Some(LaneItem::Messages(messages)) = following.subscription.next_item().await else {
            self.following = None;
            return None;
        };
        let seen = self.log.position().sequence;
        let is_new = |message: &&Arc<LaneMessage>| {
            message.sequence() > seen && (self.has_journals || message.is_decision())
        };
        let new: Vec<Arc<LaneMessage>> = messages.iter().filter(is_new).cloned().collect();
        self.log.skip_to(messages.last().map_or(seen, |last| last.sequence()));
        (!new.is_empty()).then_some(FeedStep::Messages(new))
    }
}
