//! Reading a lane, in three ways. All use consumers without acknowledgements, in memory on one server.
//!
//! [`LaneTail`] follows a lane as it grows, from any sequence on, in order and without gaps. The client library's own ordered
//! consumer takes half a minute to notice that its server is down. This one has a heartbeat of one second, and is created again,
//! after the last message that was read, as soon as anything fails.
//!
//! [`LaneScan`] reads everything that a lane holds, oldest first, with which its new owner starts. A long lane is read by a
//! consumer, which is several times faster than direct gets. But a consumer does not report the end if pending messages
//! were removed meanwhile, so a scan always ends with direct gets.
//!
//! The *outline* leaves out the payloads of journals: it has the last message of each subject, and the decisions. Journals are most
//! of the bytes of a lane, and decisions have answered nearly all of their entries, so that a new owner does not need them. Each read fails if the server does not answer in time, or if messages are removed meanwhile: the caller then reads the whole
//! lane. A replica that lags may answer, so the caller must compare what it has read with the last message of each subject.
//!
//! # Invariants
//!
//! - I9: A reader of a lane misses nothing when its server restarts.
//!   (`crates/runtime/tests/runtime.rs::lane_tail_has_no_gap_after_a_server_restart`)

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, ReplayPolicy, pull};
use futures::future::BoxFuture;
use futures::stream::ReadyChunks;
use futures::{FutureExt, StreamExt};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject;
use tracing::{debug, warn};

use crate::Fault;
use crate::fault::{ClientResult, backoff};
use crate::log::read::read_run;
use crate::nats::bus::Bus;
use crate::nats::direct_get::{self, ALL_SUBJECTS, PagedReader};
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;

/// The interval of the server's heartbeats while there are no messages.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// When one pull request expires.
const EXPIRES: Duration = Duration::from_secs(10);
/// The number of messages per pull request.
const BATCH: usize = 4_000;
/// The maximum number of messages in a chunk.
pub(super) const CHUNK: usize = 512;

/// The messages of a consumer, as they arrive, in chunks of at most [`CHUNK`].
pub(super) type LaneMessages = ReadyChunks<pull::Stream>;

/// The configuration of a consumer of a lane, for all messages from the first one on.
pub(super) fn lane_consumer_config() -> pull::Config {
    pull::Config {
        ack_policy: AckPolicy::None,
        replay_policy: ReplayPolicy::Instant,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: Duration::from_secs(30),
        ..Default::default()
    }
}

/// Creates a consumer of a lane. `what` is the subject of an error message.
pub(super) async fn create_lane_consumer(
    bus: &Bus,
    lane: Lane,
    config: pull::Config,
    what: &str,
) -> Result<Consumer<pull::Config>, Fault> {
    let created = bus.request_context().create_consumer_on_stream(config, lane_stream(lane)).await;
    created.or_fault(what)
}

/// Starts to pull the messages of a consumer.
pub(super) async fn pull_messages(
    consumer: &Consumer<pull::Config>,
    what: &str,
) -> Result<LaneMessages, Fault> {
    let stream = consumer
        .stream()
        .max_messages_per_batch(BATCH)
        .heartbeat(HEARTBEAT)
        .expires(EXPIRES)
        .messages()
        .await
        .or_fault(what)?;
    Ok(stream.ready_chunks(CHUNK))
}

/// A reader that follows a lane.
pub struct LaneTail {
    bus: Bus,
    lane: Lane,
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
            next,
            delivered: 0,
            pending: u64::MAX,
            stream: None,
            has_failed: false,
        }
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

    async fn open_consumer(&self) -> Result<LaneMessages, Fault> {
        let what = "the consumer of the lane";
        let deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: self.next };
        let config = pull::Config { deliver_policy, ..lane_consumer_config() };
        let consumer = create_lane_consumer(&self.bus, self.lane, config, what).await?;
        pull_messages(&consumer, what).await
    }
}

/// The minimum number of messages for which a consumer is created.
const MIN_FOR_CONSUMER: u64 = 5_000;
/// The timeout of the consumer, after which the rest is read with direct gets.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(1);

/// A scan of all messages of a lane.
pub struct LaneScan {
    bus: Bus,
    lane: Lane,
    source: MessageSource,
}

/// The source of the next messages.
enum MessageSource {
    NotStarted,
    Consumer(Box<LaneTail>),
    DirectGets(Box<PagedReader>),
}

impl LaneScan {
    #[must_use]
    pub fn new(bus: &Bus, lane: Lane) -> Self {
        Self { bus: bus.clone(), lane, source: MessageSource::NotStarted }
    }

    /// Returns the next messages, or none after the last.
    pub fn next_records<'a>(&'a mut self) -> BoxFuture<'a, Result<Vec<StreamRecord>, Fault>> {
        async move {
            if let MessageSource::NotStarted = self.source {
                self.source = self.choose_source().await?;
            }
            if let MessageSource::Consumer(tail) = &mut self.source {
                // Messages that are lost when a read times out are read again: the position is before them.
                let records = tokio::time::timeout(CONSUMER_TIMEOUT, tail.next_records()).await.unwrap_or_default();
                let (position, is_over) = (tail.next_sequence(), tail.pending_message_count() == 0);
                if is_over || records.is_empty() {
                    debug!(lane = %self.lane, position, is_over, "reading the rest of the lane with direct gets");
                    self.source = self.direct_get_source(position);
                }
                if !records.is_empty() {
                    return Ok(records);
                }
            }
            match &mut self.source {
                MessageSource::DirectGets(pages) => pages.next_page().await,
                MessageSource::NotStarted | MessageSource::Consumer(_) => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    async fn choose_source(&self) -> Result<MessageSource, Fault> {
        let name = lane_stream(self.lane);
        let stream =
            self.bus.request_context().get_stream(&name).await.or_fault_with(|| format!("reading {name}"))?;
        if stream.cached_info().state.messages < MIN_FOR_CONSUMER {
            return Ok(self.direct_get_source(1));
        }
        Ok(MessageSource::Consumer(Box::new(LaneTail::follow_lane(&self.bus, self.lane, 1))))
    }

    fn direct_get_source(&self, from: u64) -> MessageSource {
        MessageSource::DirectGets(Box::new(PagedReader::new(
            self.bus.client(),
            lane_stream(self.lane),
            ALL_SUBJECTS.into(),
            from,
        )))
    }
}

/// The minimum size of a lane for which its journals are left out: a smaller one is read in a moment.
const MIN_LANE_BYTES: u64 = 1 << 20;
/// The minimum number of bytes per subject for which the journals are left out. Below it, reading the whole lane in its order
/// takes the server less time than looking messages up by their subjects.
const MIN_SUBJECT_BYTES: u64 = 16 << 10;
/// The timeout of the next messages.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns `true` if a lane is read faster without its journals.
pub async fn has_large_journals(bus: &Bus, lane: Lane) -> Result<bool, Fault> {
    let name = lane_stream(lane);
    let stream = bus.request_context().get_stream(&name).await.or_fault_with(|| format!("reading {name}"))?;
    let state = &stream.cached_info().state;
    Ok(state.bytes >= MIN_LANE_BYTES && state.bytes >= MIN_SUBJECT_BYTES * state.subjects_count)
}

/// Returns the last message of each subject of a lane, without its payload.
pub fn read_last_of_subjects(bus: &Bus, lane: Lane) -> BoxFuture<'_, Result<Vec<StreamRecord>, Fault>> {
    async move {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::LastPerSubject,
            headers_only: true,
            filter_subject: subject::all_subjects_of_lane(lane),
            ..lane_consumer_config()
        };
        let mut scan = ConsumerScan::open(bus, lane, config).await?;
        let mut all = Vec::new();
        loop {
            let records = scan.next_records().await?;
            if records.is_empty() {
                return Ok(all);
            }
            all.extend(records);
        }
    }
    .boxed()
}

/// Starts a scan of the decisions of all runs of a lane, oldest first.
pub async fn scan_decisions(bus: &Bus, lane: Lane) -> Result<ConsumerScan, Fault> {
    let filter_subject = subject::plan_subjects_of_lane(lane);
    ConsumerScan::open(bus, lane, pull::Config { filter_subject, ..lane_consumer_config() }).await
}

/// Returns the messages of a subject from sequence `from` to sequence `last`.
/// Fails also if the message with the sequence `last` is not there.
pub async fn read_subject_range(
    bus: &Bus,
    lane: Lane,
    subject: &str,
    from: u64,
    last: u64,
) -> Result<Vec<StreamRecord>, Fault> {
    let mut records = direct_get::read_matching(bus.client(), &lane_stream(lane), subject, from).await?;
    records.retain(|record| record.sequence <= last);
    require_sequences(subject, &records, &[last])?;
    Ok(records)
}

/// Returns all messages of a run. `last` are the sequences of the last message of each of its subjects.
/// Fails also if one of these messages is not there.
pub async fn read_run_with_last(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    last: &[u64],
) -> Result<Vec<StreamRecord>, Fault> {
    let records = read_run(bus, lane, run, 1).await?;
    require_sequences(&subject::all_subjects_of_run(lane, run), &records, last)?;
    Ok(records)
}

/// Checks that the messages read from `filter`, oldest first, contain all of these sequences. A replica that lags lacks the
/// newest ones.
fn require_sequences(filter: &str, records: &[StreamRecord], sequences: &[u64]) -> Result<(), Fault> {
    let is_missing =
        |sequence: &u64| records.binary_search_by_key(sequence, |record| record.sequence).is_err();
    match sequences.iter().copied().find(is_missing) {
        Some(missing) => {
            Err(Fault::unavailable(format!("reading {filter}"), format!("message {missing} is missing")))
        }
        None => Ok(()),
    }
}

/// A read of the messages that a consumer has to deliver.
pub struct ConsumerScan {
    /// `None` after the last message.
    stream: Option<LaneMessages>,
    delivered: u64,
    what: String,
}

impl ConsumerScan {
    async fn open(bus: &Bus, lane: Lane, config: pull::Config) -> Result<Self, Fault> {
        let what = format!("reading {}", lane_stream(lane));
        let consumer = create_lane_consumer(bus, lane, config, &what).await?;
        let stream = match consumer.cached_info().num_pending {
            0 => None,
            _ => Some(pull_messages(&consumer, &what).await?),
        };
        Ok(Self { stream, delivered: 0, what })
    }

    /// Returns the next messages, or none after the last.
    pub fn next_records(&mut self) -> BoxFuture<'_, Result<Vec<StreamRecord>, Fault>> {
        async move {
            let Some(stream) = &mut self.stream else { return Ok(Vec::new()) };
            let failed = |why: &str| Fault::unavailable(&self.what, why);
            let chunk = tokio::time::timeout(TIMEOUT, stream.next()).await;
            let chunk = chunk.map_err(|_| failed("the next message is late"))?;
            let chunk = chunk.ok_or_else(|| failed("the consumer ended"))?;
            let (mut records, mut is_over) = (Vec::with_capacity(chunk.len()), false);
            for message in chunk {
                let message = message.map_err(|error| failed(&error.to_string()))?;
                let info = message.info().map_err(|error| failed(&error.to_string()))?;
                if info.consumer_sequence != self.delivered + 1 {
                    return Err(failed("the consumer skipped a message"));
                }
                self.delivered = info.consumer_sequence;
                is_over = info.pending == 0;
                records.push(StreamRecord::from_delivery(&message, &info));
            }
            if is_over {
                self.stream = None;
            }
            Ok(records)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::wire::Encoding;

    use super::*;
    use crate::nats::record::Provenance;

    fn record_at(sequence: u64) -> StreamRecord {
        StreamRecord {
            sequence,
            subject: "lane.0.run.r.submitted".into(),
            payload: bytes::Bytes::new(),
            encoding: Encoding::MessagePack,
            time: jiff::Timestamp::UNIX_EPOCH,
            is_deletion: false,
            provenance: Provenance::Published,
        }
    }

    #[test]
    fn read_that_lacks_a_last_message_fails() {
        let records: Vec<StreamRecord> = [2, 3, 5, 8].map(record_at).into();
        for complete in [&[8, 2, 5][..], &[2, 3, 5, 8], &[]] {
            assert_eq!(require_sequences("r", &records, complete).ok(), Some(()), "{complete:?}");
        }
        for (lacking, missing) in [(&[2, 8, 9][..], 9), (&[4], 4), (&[1, 8], 1)] {
            let fault = require_sequences("r", &records, lacking).unwrap_err();
            assert!(fault.is_transient());
            assert!(fault.to_string().contains(&format!("message {missing} is missing")), "{fault}");
        }
        assert!(require_sequences("r", &[], &[1]).is_err(), "a replica that has nothing yet");
    }
}
