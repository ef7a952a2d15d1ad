//! A lane as it grows, from any sequence on, in order and without gaps.
//!
//! The client library's own ordered consumer is silent for half a minute when the server that hosts it dies. This one
//! is a memory-backed pull consumer with a heartbeat of a second, made anew behind the last message that was seen as
//! soon as a heartbeat is missed, a sequence is skipped, or anything else goes wrong.
//!
//! Who reads a single subject asks for it again and again instead: who watches needs nothing to be made on the server,
//! and may make nothing there, since a consumer can be told to deliver to anybody.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull};
use futures::StreamExt;
use futures::stream::ReadyChunks;
use millrace_protocol::ids::Lane;
use tracing::{debug, warn};

use crate::Fault;
use crate::bus::Bus;
use crate::direct::Pages;
use crate::fault::pause;
use crate::record::{Record, encoding, is_stray, timestamp};
use crate::topology::{fault, lane_stream};

/// How often the server says that it is there when there is nothing else to say.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long one request for messages stands.
const EXPIRES: Duration = Duration::from_secs(10);
/// How many messages one request asks for.
const BATCH: usize = 4_000;
/// How many messages are handed on at once, at the most.
const CHUNK: usize = 512;
/// How often a single subject is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A reader of a lane.
pub struct Tail {
    bus: Bus,
    lane: Lane,
    filter: Option<String>,
    next: u64,
    delivered: u64,
    pending: u64,
    stream: Option<ReadyChunks<pull::Stream>>,
}

impl Tail {
    /// A reader of a whole lane from sequence `from` (1 is the beginning).
    #[must_use]
    pub fn lane(bus: &Bus, lane: Lane, from: u64) -> Self {
        let next = from.max(1);
        Self { bus: bus.clone(), lane, filter: None, next, delivered: 0, pending: u64::MAX, stream: None }
    }

    /// A reader of one subject of a lane.
    #[must_use]
    pub fn subject(bus: &Bus, lane: Lane, filter: String, from: u64) -> Self {
        Self { filter: Some(filter), ..Self::lane(bus, lane, from) }
    }

    /// The next messages, at least one; waits for them, and through every failure of the server. Not to be cancelled
    /// and asked again where a message must not be lost: messages taken from the connection are lost with it.
    pub fn next<'a>(&'a mut self) -> BoxFuture<'a, Vec<Record>> {
        async move {
            let mut failures = 0;
            loop {
                let records = match self.try_next().await {
                    Ok(records) => records,
                    Err(fault) => {
                        failures += 1;
                        self.stream = None;
                        debug!(lane = %self.lane, %fault, failures, "the lane's reader begins anew");
                        if failures % 20 == 0 {
                            warn!(lane = %self.lane, %fault, failures, "the lane can't be read; still trying");
                        }
                        tokio::time::sleep(pause(failures)).await;
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

    /// The sequence from which on nothing has been given yet.
    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    /// How many messages there were behind the last one that was given, when the server sent it.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    async fn try_next(&mut self) -> Result<Vec<Record>, Fault> {
        if let Some(filter) = self.filter.clone() {
            return self.look(filter).await;
        }
        let lost = |why: &str| Fault::unavailable("reading the lane", why);
        if self.stream.is_none() {
            self.stream = Some(self.open().await?);
            self.delivered = 0;
        }
        let stream = self.stream.as_mut().expect("the stream was just opened");
        let chunk = stream.next().await.ok_or_else(|| lost("the consumer ended"))?;
        let mut records = Vec::with_capacity(chunk.len());
        for message in chunk {
            let message = match message {
                Ok(message) => message,
                // What came before the failure counts.
                Err(error) => {
                    self.stream = None;
                    debug!(lane = %self.lane, %error, "the lane's consumer failed");
                    break;
                }
            };
            let info = message.info().map_err(|error| lost(&error.to_string()))?;
            let (sequence, delivered, pending) = (info.stream_sequence, info.consumer_sequence, info.pending);
            if delivered != self.delivered + 1 {
                self.stream = None;
                debug!(lane = %self.lane, delivered, "the lane's consumer skipped a message");
                break;
            }
            (self.delivered, self.pending) = (delivered, pending);
            if sequence < self.next {
                continue;
            }
            self.next = sequence + 1;
            let time = timestamp(info.published.unix_timestamp_nanos());
            let (encoding, is_stray) =
                (encoding(message.headers.as_ref()), is_stray(message.headers.as_ref(), 0));
            let async_nats::Message { subject, payload, .. } = message.message;
            records.push(Record { sequence, subject, payload, encoding, time, is_deletion: false, is_stray });
        }
        Ok(records)
    }

    /// What there is of a single subject; after a while without any, nothing.
    async fn look(&mut self, filter: String) -> Result<Vec<Record>, Fault> {
        let mut pages = Pages::new(self.bus.client(), lane_stream(self.lane), filter, self.next);
        let records = pages.next().await?;
        match records.last() {
            Some(last) => self.next = last.sequence + 1,
            None => tokio::time::sleep(LOOK).await,
        }
        Ok(records)
    }

    async fn open(&self) -> Result<ReadyChunks<pull::Stream>, Fault> {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.next },
            ack_policy: AckPolicy::None,
            replay_policy: ReplayPolicy::Instant,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: Duration::from_secs(30),
            ..Default::default()
        };
        let what = "a reader of the lane";
        let consumer = self
            .bus
            .control()
            .create_consumer_on_stream(config, lane_stream(self.lane))
            .await
            .map_err(|error| fault(what, &error))?;
        let stream = consumer
            .stream()
            .max_messages_per_batch(BATCH)
            .heartbeat(HEARTBEAT)
            .expires(EXPIRES)
            .messages()
            .await
            .map_err(|error| fault(what, &error))?;
        Ok(stream.ready_chunks(CHUNK))
    }
}
