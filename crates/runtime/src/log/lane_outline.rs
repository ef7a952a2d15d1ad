//! Reading a lane without the payloads of its journals: the last message of each subject, and the decisions. Journals are most of
//! the bytes of a lane, and decisions have answered nearly all of their entries, so that a new owner does not need them.
//!
//! Each read fails if the server does not answer in time, or if messages are removed meanwhile: the caller then reads the whole
//! lane. A replica that lags may answer, so the caller must compare what it has read with the last message of each subject.

use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject;

use super::lane_consumer::{LaneMessages, create_lane_consumer, lane_consumer_config, pull_messages};
use super::read::read_run;
use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::direct_get;
use crate::nats::error::fault_from_client_error;
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;

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
    let stream = bus
        .request_context()
        .get_stream(&name)
        .await
        .map_err(|error| fault_from_client_error(&format!("reading {name}"), error))?;
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
///
/// # Errors
/// The server does not respond, or the message with the sequence `last` is not there.
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
///
/// # Errors
/// The server does not respond, or one of these messages is not there.
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
    use crate::nats::provenance::Provenance;

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
