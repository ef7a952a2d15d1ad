//! Buckets whose entries count only if a client with permission to write them has published them: a redirected server reply
//! (see [`super::provenance`]) is ignored. Writes are fenced by the sequence of the entry that they replace.

use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::ErrorCode;
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bus::Bus;
use super::direct_get;
use super::error::{fault_from_client_error, jetstream_error_code};
use super::provenance::{ID_HEADER, new_id};
use super::publish::publish_to_stream;
use super::record::StreamRecord;
use super::stream_tail::StreamTail;
use super::topology::bucket_stream;
use crate::Fault;

/// The error code of the server for "the last sequence of the subject is another one".
const WRONG_LAST_SEQUENCE: ErrorCode = ErrorCode(10071);
/// The header of a message that deletes a key.
const OPERATION_HEADER: &str = "KV-Operation";

/// An entry of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedEntry<T> {
    pub key: String,
    pub value: T,
    pub sequence: u64,
    /// When the server stored it.
    pub at: jiff::Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketChange<T> {
    /// A key has a value.
    Set(PublishedEntry<T>),
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

fn key_subject(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{key}")
}

/// Parses an entry; `None` if it is forged, or not of this type.
fn parse_change<T: DeserializeOwned>(bucket: &str, record: &StreamRecord) -> Option<BucketChange<T>> {
    let key = record.subject.strip_prefix("$KV.")?.strip_prefix(bucket)?.strip_prefix('.')?.to_owned();
    if record.is_forged() {
        return None;
    }
    if record.is_deletion {
        return Some(BucketChange::Removed(key));
    }
    let value = serde_json::from_slice(&record.payload).ok()?;
    let (sequence, at) = (record.sequence, record.time);
    Some(BucketChange::Set(PublishedEntry { key, value, sequence, at }))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState<T> {
    /// The entry; `None` if there is none, or an invalid one.
    pub entry: Option<PublishedEntry<T>>,
    /// The sequence that the next write must expect.
    pub last: u64,
}

/// Returns the state of a key. On a replicated stream it may be an earlier one, and a write that expects it fails.
pub async fn read_key<T: DeserializeOwned>(bus: &Bus, bucket: &str, key: &str) -> Result<KeyState<T>, Fault> {
    let subject = [key_subject(bucket, key)];
    let records = direct_get::read_last_per_subject(bus.client(), &bucket_stream(bucket), &subject).await?;
    let record = records.unwrap_or_default().pop();
    let last = record.as_ref().map_or(0, |record| record.sequence);
    let entry = record.and_then(|record| match parse_change(bucket, &record)? {
        BucketChange::Set(entry) => Some(entry),
        BucketChange::Removed(_) => None,
    });
    Ok(KeyState { entry, last })
}

/// Returns the entries whose keys begin with `prefix`, which ends with a dot or is empty, in the order in which they were
/// written.
pub async fn read_entries<T: DeserializeOwned>(
    bus: &Bus,
    bucket: &str,
    prefix: &str,
) -> Result<Vec<PublishedEntry<T>>, Fault> {
    let mut changes = BucketChanges::new(bus, bucket, prefix);
    let mut entries = Vec::new();
    loop {
        let (changed, is_last) = changes.next_page::<T>().await?;
        entries.extend(changed.into_iter().filter_map(|change| match change {
            BucketChange::Set(entry) => Some(entry),
            BucketChange::Removed(_) => None,
        }));
        if is_last {
            return Ok(entries);
        }
    }
}

/// Writes a value, if the key has the expected entry. Returns the new sequence; `None` if it has another entry.
///
/// # Errors
/// The server does not respond, is full, or denies it.
pub async fn write_key(
    bus: &Bus,
    bucket: &str,
    key: &str,
    value: &impl Serialize,
    expected: ExpectedEntry,
) -> Result<Option<u64>, Fault> {
    let bytes = serde_json::to_vec(value).expect("the values of a bucket serialise to JSON");
    publish_change(bus, bucket, key, (HeaderMap::new(), bytes.into()), expected).await
}

/// Removes the value of a key, if it has the expected entry. Returns `false` if it has another one.
///
/// # Errors
/// The server does not respond, is full, or denies it.
pub async fn remove_key(bus: &Bus, bucket: &str, key: &str, expected: ExpectedEntry) -> Result<bool, Fault> {
    let mut headers = HeaderMap::new();
    headers.insert(OPERATION_HEADER, "DEL");
    Ok(publish_change(bus, bucket, key, (headers, Bytes::new()), expected).await?.is_some())
}

async fn publish_change(
    bus: &Bus,
    bucket: &str,
    key: &str,
    (mut headers, payload): (HeaderMap, Bytes),
    expected: ExpectedEntry,
) -> Result<Option<u64>, Fault> {
    let (what, subject) = (format!("bucket {bucket}, key {key}"), key_subject(bucket, key));
    headers.insert(ID_HEADER, new_id().as_str());
    if let ExpectedEntry::Sequence(last) = expected {
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(last));
    }
    let publishing = async {
        match publish_to_stream(bus, subject.clone(), headers, payload).await {
            Ok(sequence) => Ok(Some(sequence)),
            Err(error) if jetstream_error_code(&error) == Some(WRONG_LAST_SEQUENCE) => Ok(None),
            Err(error) => Err(fault_from_client_error(&what, error)),
        }
    };
    bus.fail_on_denial(&subject, publishing).await
}

/// The changes of the keys of a bucket that begin with a prefix, from its first entry on.
pub struct BucketChanges {
    bus: Bus,
    bucket: String,
    tail: StreamTail,
}

impl BucketChanges {
    /// Starts with the first entry.
    #[must_use]
    pub fn new(bus: &Bus, bucket: &str, prefix: &str) -> Self {
        let filter = key_subject(bucket, prefix) + ">";
        let tail = StreamTail::new(bucket_stream(bucket), filter, 1);
        Self { bus: bus.clone(), bucket: bucket.to_owned(), tail }
    }

    /// The sequence up to which changes were read.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.tail.seen()
    }

    /// Returns the next changes, and `true` if there were no more at this time. Forged and unreadable entries are left out.
    pub async fn next_page<T: DeserializeOwned>(&mut self) -> Result<(Vec<BucketChange<T>>, bool), Fault> {
        let records = self.tail.next_page(self.bus.client()).await?;
        let changes = records.iter().filter_map(|record| parse_change(&self.bucket, record));
        Ok((changes.collect(), records.is_empty()))
    }

    /// Returns all changes up to now.
    ///
    /// # Errors
    /// The server does not respond. The next call returns the changes that this one has read.
    pub async fn read_new<T: DeserializeOwned>(&mut self) -> Result<Vec<BucketChange<T>>, Fault> {
        let seen = self.seen();
        let mut all = Vec::new();
        loop {
            match self.next_page().await {
                Ok((_, true)) => return Ok(all),
                Ok((changes, false)) => all.extend(changes),
                Err(fault) => {
                    self.tail.continue_after(seen);
                    return Err(fault);
                }
            }
        }
    }
}
