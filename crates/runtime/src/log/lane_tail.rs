//! Following a lane as it grows, from any sequence on, in order and without gaps.
//!
//! The client library's own ordered consumer takes half a minute to notice that the server that hosts it is down. This
//! one is a memory-backed pull consumer with a heartbeat of one second. It is created again, after the last message
//! that was read, as soon as a heartbeat is missed, a sequence is skipped, or anything else fails.
//!
//! A reader of a single subject polls with direct gets instead: clients have no permission to create consumers.
//!
//! # Invariants
//!
//! - I9: A reader of a lane misses nothing when its server restarts.
//!   (`crates/runtime/tests/runtime.rs::lane_tail_has_no_gap_after_a_server_restart`)

use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use futures::StreamExt;
use millrace_protocol::ids::Lane;
use tracing::{debug, warn};

use super::lane_consumer::{CHUNK, LaneMessages, create_lane_consumer, lane_consumer_config, pull_messages};
use crate::Fault;
use crate::fault::backoff;
use crate::nats::bus::Bus;
use crate::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;

/// The poll interval of a single subject.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A reader that follows a lane.
pub struct LaneTail {
    bus: Bus,
    lane: Lane,
    filter: Option<String>,
    next: u64,
    delivered: u64,
    pending: u64,
    stream: Option<LaneMessages>,
    /// `true` if the consumer failed. The cause may be a message that the client library takes for a status of the server
    /// (a redirected reply), so the next messages are read with direct gets.
    has_failed: bool,
}

impl LaneTail {
    /// Creates a reader of a whole lane that starts at sequence `from` (1 is the first).
    #[must_use]
    pub fn follow_lane(bus: &Bus, lane: Lane, from: u64) -> Self {
        let next = from.max(1);
        Self {
            bus: bus.clone(),
            lane,
            filter: None,
            next,
            delivered: 0,
            pending: u64::MAX,
            stream: None,
            has_failed: false,
        }
    }

    /// Creates a reader of one subject of a lane.
    #[must_use]
    pub fn follow_subject(bus: &Bus, lane: Lane, filter: String, from: u64) -> Self {
        Self { filter: Some(filter), ..Self::follow_lane(bus, lane, from) }
    }

    /// Waits for the next messages and returns at least one. Retries all failures. Not cancellation-safe: dropping the
    /// future loses messages that were already taken from the connection.
    pub fn next_records<'a>(&'a mut self) -> BoxFuture<'a, Vec<StreamRecord>> {
        async move {
            let mut failures = 0;
            loop {
                let records = match self.fetch_next_records().await {
                    Ok(records) => records,
                    Err(fault) => {
                        failures += 1;
                        self.stream = None;
                        debug!(lane = %self.lane, %fault, failures, "reading the lane failed; restarting the reader");
                        if failures % 20 == 0 {
                            warn!(lane = %self.lane, %fault, failures, "reading the lane keeps failing; retrying");
                        }
                        tokio::time::sleep(backoff(failures)).await;
                        continue;
                    }
                };
                failures = 0;
                if !records.is_empty() {
                    return records;
                }
            }
        }
        .boxed()
    }

    /// Returns the sequence of the next message to return.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Returns the number of messages after the last returned one, as of when the server sent it.
    pub(crate) fn pending_message_count(&self) -> u64 {
        self.pending
    }

    async fn fetch_next_records(&mut self) -> Result<Vec<StreamRecord>, Fault> {
        if let Some(filter) = self.filter.clone() {
            return self.poll_subject(filter).await;
        }
        if std::mem::take(&mut self.has_failed) {
            let records = self.read_past_failure().await?;
            if !records.is_empty() {
                return Ok(records);
            }
        }
        let failed = |why: &str| Fault::unavailable("reading the lane", why);
        if self.stream.is_none() {
            self.stream = Some(self.open_consumer().await?);
            self.delivered = 0;
        }
        let stream = self.stream.as_mut().expect("the stream was just opened");
        let chunk = stream.next().await.ok_or_else(|| failed("the consumer ended"))?;
        let mut records = Vec::with_capacity(chunk.len());
        for message in chunk {
            let message = match message {
                Ok(message) => message,
                // Messages before the failure count.
                Err(error) => {
                    (self.stream, self.has_failed) = (None, true);
                    debug!(lane = %self.lane, %error, "the consumer of the lane failed");
                    break;
                }
            };
            let info = message.info().map_err(|error| failed(&error.to_string()))?;
            let (sequence, delivered, pending) = (info.stream_sequence, info.consumer_sequence, info.pending);
            if delivered != self.delivered + 1 {
                self.stream = None;
                debug!(lane = %self.lane, delivered, "the consumer of the lane skipped a message");
                break;
            }
            (self.delivered, self.pending) = (delivered, pending);
            if sequence < self.next {
                continue;
            }
            self.next = sequence + 1;
            records.push(StreamRecord::from_delivery(&message, &info));
        }
        Ok(records)
    }

    /// Reads the messages at which the consumer has failed.
    async fn read_past_failure(&mut self) -> Result<Vec<StreamRecord>, Fault> {
        let pages =
            PagedReader::new(self.bus.client(), lane_stream(self.lane), ALL_SUBJECTS.into(), self.next);
        let records = pages.with_page_size(CHUNK).next_page().await?;
        self.next = records.last().map_or(self.next, |last| last.sequence + 1);
        Ok(records)
    }

    /// Reads new messages of a single subject; returns none after a poll interval without any.
    async fn poll_subject(&mut self, filter: String) -> Result<Vec<StreamRecord>, Fault> {
        let mut pages = PagedReader::new(self.bus.client(), lane_stream(self.lane), filter, self.next);
        let records = pages.next_page().await?;
        match records.last() {
            Some(last) => self.next = last.sequence + 1,
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
        Ok(records)
    }

    async fn open_consumer(&self) -> Result<LaneMessages, Fault> {
        let what = "the consumer of the lane";
        let deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: self.next };
        let config = pull::Config { deliver_policy, ..lane_consumer_config() };
        let consumer = create_lane_consumer(&self.bus, self.lane, config, what).await?;
        pull_messages(&consumer, what).await
    }
}
