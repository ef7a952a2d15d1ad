//! Stray messages of a stream: forged ones, and those of unsubmitted runs. A supervisor collects their sequences while it
//! reads, and deletes them after a grace period. Streams that no supervisor reads otherwise are scanned for forged
//! messages. Messages are deleted by sequence: a purge of a subject could remove messages of others, and takes longer for each
//! subject than the deletion of a message.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::response::Response;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::bus::Bus;
use super::direct_get::{ALL_SUBJECTS, PagedReader};
use super::topology::streams::{FILES, object_stream};
use crate::Fault;
use crate::fault::{ClientResult, response_fault};

/// The time in which strays with consecutive sequences are collected as one range.
const RANGE_PERIOD: Duration = Duration::from_secs(2);
/// The maximum number of ranges that are collected, 12 MB. Those that do not fit are found by the next reader of the
/// stream.
const MAX_RANGES: usize = 250_000;
/// The number of deletions that are in flight at the same time.
const MAX_IN_FLIGHT: usize = 128;
/// The number of deletions after which the position is remembered, so that a failure repeats no more than these.
const CHUNK: u64 = 4_096;
/// The maximum number of messages of a first scan: it must not read the whole store. Forged ones before them stay.
const MAX_FIRST_SCAN: u64 = 100_000;
/// The number of messages per request of a scan: at most 20 MB.
const SCAN_PAGE: usize = 64;
/// The error code of the server for a message that does not exist.
const NOT_DELETED: ErrorCode = ErrorCode(10057);

/// Consecutive sequences of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRange {
    /// The first sequence.
    pub first: u64,
    /// The last sequence; not before the first.
    pub last: u64,
}

impl SequenceRange {
    /// Returns the number of sequences.
    #[must_use]
    pub fn length(self) -> u64 {
        self.last - self.first + 1
    }
}

/// The strays of a stream that were found and not deleted yet, in the order in which they were found.
#[derive(Debug, Default)]
pub struct StrayMessages(VecDeque<(SequenceRange, Instant)>);

impl StrayMessages {
    /// Adds a stray that was found now.
    pub fn add(&mut self, sequence: u64, now: Instant) {
        self.add_range(SequenceRange { first: sequence, last: sequence }, now);
    }

    /// Adds consecutive strays that were found now.
    pub fn add_range(&mut self, range: SequenceRange, now: Instant) {
        if let Some((back, found)) = self.0.back_mut()
            && range.first == back.last + 1
            && now.duration_since(*found) < RANGE_PERIOD
        {
            back.last = range.last;
        } else if self.0.len() < MAX_RANGES {
            self.0.push_back((range, now));
        }
    }

    /// Removes and returns the strays that were found before the grace period.
    #[must_use]
    pub fn take_due(&mut self, now: Instant, grace: Duration) -> Vec<SequenceRange> {
        let is_due = |found: Instant| now.duration_since(found) >= grace + RANGE_PERIOD;
        let due = self.0.iter().take_while(|(_, found)| is_due(*found)).count();
        self.0.drain(..due).map(|(range, _)| range).collect()
    }

    /// Returns the number of strays.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(range, _)| range.length()).sum()
    }
}

/// The ranges that a failed deletion has left, and the reason.
#[derive(Debug)]
pub struct UnfinishedDeletion {
    /// The messages that may still exist.
    pub rest: Vec<SequenceRange>,
    /// The fault that ended the deletion.
    pub fault: Fault,
}

/// A repeated scan of a stream for forged messages.
pub struct StrayScan {
    bus: Bus,
    stream: String,
    /// The sequence of the next message to read; 0 before the first scan.
    next: u64,
}

impl StrayScan {
    /// Creates a scan of the files of all runs.
    #[must_use]
    pub fn of_files(bus: &Bus) -> Self {
        Self { bus: bus.clone(), stream: FILES.into(), next: 0 }
    }

    /// Creates a scan of an object store.
    #[must_use]
    pub fn of_object_store(bus: &Bus, bucket: &str) -> Self {
        Self { bus: bus.clone(), stream: object_stream(bucket), next: 0 }
    }

    /// Returns the name of the stream.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Reads the messages that were stored since the last scan, and adds the forged ones to `strays`. The first scan reads
    /// a limited number of the newest messages.
    pub fn scan_new_messages<'a>(
        &'a mut self,
        strays: &'a mut StrayMessages,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        async move {
            let what = format!("scanning {}", self.stream);
            let fault = |error: async_nats::Error| Fault::unavailable(&what, error);
            let context = self.bus.request_context();
            let stream = context.get_stream(&self.stream).await.map_err(|error| fault(error.into()))?;
            let last = stream.cached_info().state.last_sequence;
            if self.next == 0 {
                self.next = last.saturating_sub(MAX_FIRST_SCAN) + 1;
            }
            if self.next > last {
                return Ok(());
            }
            let client = self.bus.client();
            let pages = PagedReader::new(client, self.stream.clone(), ALL_SUBJECTS.into(), self.next);
            let mut pages = pages.with_page_size(SCAN_PAGE);
            loop {
                let records = pages.next_page().await?;
                let Some(newest) = records.last() else { break };
                self.next = newest.sequence + 1;
                let now = Instant::now();
                for record in records.iter().filter(|record| record.is_forged()) {
                    strays.add(record.sequence, now);
                }
            }
            Ok(())
        }
        .boxed()
    }
}

/// Deletes messages of a stream. Returns the number of messages that existed.
pub fn delete_messages<'a>(
    bus: &'a Bus,
    stream: &'a str,
    ranges: Vec<SequenceRange>,
) -> BoxFuture<'a, Result<u64, UnfinishedDeletion>> {
    async move {
        let (mut ranges, mut deleted) = (VecDeque::from(ranges), 0);
        while let Some(range) = ranges.pop_front() {
            let end = range.last.min(range.first.saturating_add(CHUNK - 1));
            match delete_range(bus, stream, SequenceRange { last: end, ..range }).await {
                Ok(count) => deleted += count,
                Err(fault) => {
                    ranges.push_front(range);
                    return Err(UnfinishedDeletion { rest: ranges.into(), fault });
                }
            }
            if end < range.last {
                ranges.push_front(SequenceRange { first: end + 1, ..range });
            }
        }
        Ok(deleted)
    }
    .boxed()
}

async fn delete_range(bus: &Bus, stream: &str, range: SequenceRange) -> Result<u64, Fault> {
    futures::stream::iter(range.first..=range.last)
        .map(|sequence| delete_message(bus, stream, sequence))
        .buffer_unordered(MAX_IN_FLIGHT)
        .try_fold(0, async |deleted, existed| Ok(deleted + u64::from(existed)))
        .await
}

/// Deletes a message; returns `false` if it does not exist.
async fn delete_message(bus: &Bus, stream: &str, sequence: u64) -> Result<bool, Fault> {
    let what = || format!("deleting message {sequence} of {stream}");
    // Without `no_erase` the server overwrites the message on the disk, which rewrites its whole block.
    let request = json!({ "seq": sequence, "no_erase": true });
    let response: Response<DeleteResponse> = bus
        .request_context()
        .request(format!("STREAM.MSG.DELETE.{stream}"), &request)
        .await
        .or_fault_with(what)?;
    match response {
        Response::Ok(_) => Ok(true),
        Response::Err { error } if error.error_code() == NOT_DELETED => Ok(false),
        Response::Err { error } => Err(response_fault(&what(), error)),
    }
}

/// The answer to a deletion, which says nothing more.
#[derive(Deserialize)]
struct DeleteResponse {}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    #[test]
    fn consecutive_strays_are_one_range() {
        let (mut strays, start) = (StrayMessages::default(), Instant::now());
        (1..=1_000_000).for_each(|sequence| strays.add(sequence, start));
        strays.add(1_000_002, start);
        assert_eq!((strays.0.len(), strays.count()), (2, 1_000_001));
    }

    #[test]
    fn strays_are_due_after_the_grace_period() {
        let (mut strays, start) = (StrayMessages::default(), Instant::now());
        strays.add(7, start);
        strays.add(8, start + RANGE_PERIOD);
        assert_eq!(strays.take_due(start + GRACE, GRACE), []);
        let due = strays.take_due(start + GRACE + RANGE_PERIOD, GRACE);
        assert_eq!(due, [SequenceRange { first: 7, last: 7 }]);
        assert_eq!(strays.count(), 1, "the second was found later");
    }

    #[test]
    fn number_of_ranges_is_bounded() {
        let (mut strays, now) = (StrayMessages::default(), Instant::now());
        (0..MAX_RANGES as u64 + 10).for_each(|number| strays.add(1 + 2 * number, now));
        assert_eq!(strays.count(), MAX_RANGES as u64);
    }
}
