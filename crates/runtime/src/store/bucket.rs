//! Buckets of typed entries. The entries of most buckets count only if a client with permission to write them has published them:
//! a redirected server reply (see [`crate::nats::record`]) is ignored, and so is an entry under the key of another one. A write can
//! expect the sequence of the entry that it replaces.
//!
//! # Invariants
//!
//! - I265: A follower of the summaries of runs gets every change once, whether it reads few changes one by one or many in pages.
//!   (`crates/runtime/tests/summary_changes.rs::each_pass_returns_every_summary_that_was_written_since`)

use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::ErrorCode;
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Fault;
use crate::fault::{backoff, fault_from_client_error, jetstream_error_code, max_replica_lag};
use crate::log::{AppendError, append_payload};
use crate::nats::bus::Bus;
use crate::nats::direct_get::{self, ALL_SUBJECTS, StreamTail};
use crate::nats::publish::publish_to_stream;
use crate::nats::record::{ID_HEADER, StreamRecord, new_id};
use crate::nats::topology::bucket_stream;
use crate::ops::telemetry::LogLimit;

/// The error code of the server for "the last sequence of the subject is another one".
const WRONG_LAST_SEQUENCE: ErrorCode = ErrorCode(10071);
/// The header of a message that deletes a key.
const OPERATION_HEADER: &str = "KV-Operation";
/// The least number of tries of a change before it fails.
const MIN_TRIES: u32 = 8;

/// The entries of one type in a bucket: those whose keys begin with a prefix. Keys are given and returned without it.
#[derive(Debug)]
pub struct Bucket<T> {
    name: &'static str,
    prefix: &'static str,
    key_of: Option<fn(&T) -> String>,
    is_open: bool,
}

/// An entry of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<T> {
    pub key: String,
    pub value: T,
    pub sequence: u64,
    /// When the server stored it.
    pub at: jiff::Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketChange<T> {
    /// A key has a value.
    Set(Entry<T>),
    /// A key has none any more.
    Removed(String),
}

/// The entry that a write expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedEntry {
    /// Any, or none.
    Any,
    /// The one with this sequence; 0 is none, and a deletion has a sequence too.
    Sequence(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState<T> {
    /// The entry; `None` if there is none, or an invalid one.
    pub entry: Option<Entry<T>>,
    /// The sequence that the next write must expect.
    pub last: u64,
}

impl<T> Bucket<T> {
    #[must_use]
    pub const fn new(name: &'static str, prefix: &'static str) -> Self {
        Self { name, prefix, key_of: None, is_open: false }
    }

    /// Ignores an entry under another key than that of its value.
    #[must_use]
    pub const fn with_key(self, key_of: fn(&T) -> String) -> Self {
        Self { name: self.name, prefix: self.prefix, key_of: Some(key_of), is_open: self.is_open }
    }

    /// Accepts entries without proof of their writer: for derived data.
    #[must_use]
    pub const fn open(self) -> Self {
        Self { name: self.name, prefix: self.prefix, key_of: self.key_of, is_open: true }
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{}{key}", self.name, self.prefix)
    }

    fn describe(&self, key: &str) -> String {
        format!("bucket {}, key {}{key}", self.name, self.prefix)
    }

    /// Logs an ignored entry: one line per bucket and minute, since other processes can write any number of them.
    fn warn_of_ignored_entry(&self, key: &str) {
        static LINES: LogLimit = LogLimit::new();
        if let Some(count) = LINES.count_event(self.name) {
            tracing::warn!(
                bucket = self.name,
                key,
                count,
                "ignoring an unreadable entry, or one under the key of another"
            );
        }
    }
}

impl<T: DeserializeOwned> Bucket<T> {
    /// Parses a message; `None` if it is forged, not of this type, or under the key of another entry.
    fn parse_change(&self, record: &StreamRecord) -> Option<BucketChange<T>> {
        let key = record.subject.strip_prefix(&*self.subject(""))?.to_owned();
        if record.is_forged() && !self.is_open {
            return None;
        }
        if record.is_deletion {
            return Some(BucketChange::Removed(key));
        }
        let value: Option<T> = serde_json::from_slice(&record.payload).ok();
        let value = value.filter(|value| self.key_of.is_none_or(|key_of| key_of(value) == key));
        if value.is_none() && self.is_open {
            self.warn_of_ignored_entry(&key);
        }
        let value = value?;
        Some(BucketChange::Set(Entry { key, value, sequence: record.sequence, at: record.time }))
    }

    fn parse_entry(&self, record: &StreamRecord) -> Option<Entry<T>> {
        match self.parse_change(record)? {
            BucketChange::Set(entry) => Some(entry),
            BucketChange::Removed(_) => None,
        }
    }

    /// Returns the state of a key. On a replicated stream it may be an earlier one, and a write that expects it fails.
    pub async fn read_state(&self, bus: &Bus, key: &str) -> Result<KeyState<T>, Fault> {
        let (stream, subject) = (bucket_stream(self.name), self.subject(key));
        let record = direct_get::read_last_of_subject(bus.client(), &stream, &subject).await?;
        let last = record.as_ref().map_or(0, |record| record.sequence);
        Ok(KeyState { entry: record.and_then(|record| self.parse_entry(&record)), last })
    }

    /// Returns the value of a key.
    pub async fn read(&self, bus: &Bus, key: &str) -> Result<Option<T>, Fault> {
        Ok(self.read_state(bus, key).await?.entry.map(|entry| entry.value))
    }

    /// Returns the entries of these keys, in any order.
    pub async fn read_keys(
        &self,
        bus: &Bus,
        keys: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<Vec<Entry<T>>, Fault> {
        let subjects: Vec<String> = keys.into_iter().map(|key| self.subject(key.as_ref())).collect();
        let stream = bucket_stream(self.name);
        let records = direct_get::read_last_per_subject(bus.client(), &stream, &subjects).await?;
        let records =
            records.ok_or_else(|| Fault::unavailable(self.describe(""), "too many keys at once"))?;
        Ok(records.iter().filter_map(|record| self.parse_entry(record)).collect())
    }

    /// Returns all entries, in the order in which they were written.
    pub async fn read_all(&self, bus: &Bus) -> Result<Vec<Entry<T>>, Fault> {
        self.read_below(bus, "").await
    }

    /// Returns the entries whose keys begin with `part`, which ends with a dot, in the order in which they were written.
    pub async fn read_below(&self, bus: &Bus, part: &str) -> Result<Vec<Entry<T>>, Fault> {
        let (stream, subjects) = (bucket_stream(self.name), self.subject(part) + ">");
        let records = direct_get::read_matching(bus.client(), &stream, &subjects, 1).await?;
        Ok(records.iter().filter_map(|record| self.parse_entry(record)).collect())
    }

    /// Returns the messages with entries that do not count.
    pub async fn read_invalid(&self, bus: &Bus) -> Result<Vec<StreamRecord>, Fault> {
        let (stream, subjects) = (bucket_stream(self.name), self.subject("") + ">");
        let mut records = direct_get::read_matching(bus.client(), &stream, &subjects, 1).await?;
        records.retain(|record| self.parse_entry(record).is_none());
        Ok(records)
    }

    /// Returns a reader of all changes, from the first one on.
    pub fn changes(&'static self) -> BucketChanges<T> {
        self.changes_below("", 0)
    }

    /// Returns a reader of the changes of keys that begin with `part`, which is empty or ends with a dot, after a sequence.
    pub fn changes_below(&'static self, part: &str, after: u64) -> BucketChanges<T> {
        let filter = match self.prefix.is_empty() && part.is_empty() {
            true => ALL_SUBJECTS.to_owned(),
            false => self.subject(part) + ">",
        };
        let tail = StreamTail::new(bucket_stream(self.name), filter, after + 1);
        BucketChanges { bucket: self, tail }
    }
}

impl<T: Serialize> Bucket<T> {
    /// Writes a value, if the key has the expected entry. Returns the new sequence; `None` if it has another entry.
    pub async fn write(
        &self,
        bus: &Bus,
        key: &str,
        value: &T,
        expected: ExpectedEntry,
    ) -> Result<Option<u64>, Fault> {
        let bytes = serde_json::to_vec(value).expect("the values of a bucket serialise to JSON");
        self.publish(bus, key, (HeaderMap::new(), bytes.into()), expected).await
    }

    /// Writes a value, if the last message of the key has this sequence, 0 if there is none. Finds out the outcome if an
    /// acknowledgement is lost. `topic` is the label in metrics.
    /// Errors: the key has another entry, or the server does not accept the value for a minute.
    pub async fn append(
        &self,
        bus: &Bus,
        key: &str,
        value: &T,
        last: u64,
        topic: &'static str,
    ) -> Result<u64, AppendError> {
        let bytes = serde_json::to_vec(value).expect("the values of a bucket serialise to JSON");
        let (stream, subject) = (bucket_stream(self.name), self.subject(key));
        append_payload(bus, topic, stream, subject, bytes.into(), last, new_id()).await
    }

    /// Writes a value, whatever the key has.
    pub async fn put(&self, bus: &Bus, key: &str, value: &T) -> Result<(), Fault> {
        self.write(bus, key, value, ExpectedEntry::Any).await.map(drop)
    }

    /// Removes the value of a key, if it has the expected entry. Returns `false` if it has another one.
    pub async fn remove(&self, bus: &Bus, key: &str, expected: ExpectedEntry) -> Result<bool, Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION_HEADER, "DEL");
        Ok(self.publish(bus, key, (headers, Bytes::new()), expected).await?.is_some())
    }

    async fn publish(
        &self,
        bus: &Bus,
        key: &str,
        (mut headers, payload): (HeaderMap, Bytes),
        expected: ExpectedEntry,
    ) -> Result<Option<u64>, Fault> {
        let subject = self.subject(key);
        headers.insert(ID_HEADER, new_id().as_str());
        if let ExpectedEntry::Sequence(last) = expected {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(last));
        }
        let publishing = async {
            match publish_to_stream(bus, subject.clone(), headers, payload).await {
                Ok(sequence) => Ok(Some(sequence)),
                Err(error) if jetstream_error_code(&error) == Some(WRONG_LAST_SEQUENCE) => Ok(None),
                Err(error) => Err(fault_from_client_error(&self.describe(key), error)),
            }
        };
        bus.fail_on_denial(&subject, publishing).await
    }
}

/// The outcome of a change of a key.
pub enum Change<T, R> {
    /// The key is to have this value.
    Write(T, R),
    /// The key stays as it is.
    Keep(R),
}

impl<T: Serialize + DeserializeOwned> Bucket<T> {
    /// Changes the value of a key by compare-and-set, and returns the result of the change that was written.
    /// Fails also if others change the key all the time.
    pub async fn change<R>(
        &self,
        bus: &Bus,
        key: &str,
        mut change: impl FnMut(Option<T>) -> Change<T, R>,
    ) -> Result<R, Fault> {
        let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
        let mut tries = 0;
        loop {
            let KeyState { entry, last } = self.read_state(bus, key).await?;
            let (value, result) = match change(entry.map(|entry| entry.value)) {
                Change::Keep(result) => return Ok(result),
                Change::Write(value, result) => (value, result),
            };
            if self.write(bus, key, &value, ExpectedEntry::Sequence(last)).await?.is_some() {
                return Ok(result);
            }
            // Another process was faster, or the replica that answered the read lags behind its leader.
            tries += 1;
            if tries >= MIN_TRIES && started.elapsed() > lag {
                return Err(Fault::unavailable(self.describe(key), "other processes change it all the time"));
            }
            tokio::time::sleep(backoff(tries.min(2)) / 4).await;
        }
    }
}

/// The changes of the keys of a bucket, from a sequence on.
pub struct BucketChanges<T: 'static> {
    bucket: &'static Bucket<T>,
    tail: StreamTail,
}

impl<T: DeserializeOwned> BucketChanges<T> {
    /// The sequence up to which changes were read.
    pub fn seen(&self) -> u64 {
        self.tail.seen()
    }

    /// Returns the next changes; `None` if there were no more at this time. Forged and unreadable entries are left out.
    /// Errors: the server does not respond. The next call continues after the changes that were returned.
    pub async fn next_page(&mut self, bus: &Bus) -> Result<Option<Vec<BucketChange<T>>>, Fault> {
        let records = self.tail.next_page(bus.client()).await?;
        let changes = || records.iter().filter_map(|record| self.bucket.parse_change(record)).collect();
        Ok((!records.is_empty()).then(changes))
    }

    /// Returns all changes up to now.
    /// Errors: the server does not respond. The next call returns the changes that this one has read.
    pub async fn read_new(&mut self, bus: &Bus) -> Result<Vec<BucketChange<T>>, Fault> {
        let seen = self.seen();
        let mut all = Vec::new();
        loop {
            match self.next_page(bus).await {
                Ok(None) => return Ok(all),
                Ok(Some(changes)) => all.extend(changes),
                Err(fault) => {
                    self.tail.continue_after(seen);
                    return Err(fault);
                }
            }
        }
    }
}
