//! The registry of a cluster: capabilities, heartbeats and run summaries. These buckets contain derived data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures::future::try_join_all;
use jiff::Timestamp;
use millrace_protocol::ids::{Capability, RunId, WorkerId};
use millrace_protocol::registry::{Heartbeat, RunSummary};
use millrace_protocol::result::CapabilityDescription;
use serde::Serialize;

use crate::Fault;
use crate::fault::backoff;
use crate::nats::buckets::{BucketEntry, entries_with_times, read_bucket_entries};
use crate::nats::bus::Bus;
use crate::nats::direct_get;
use crate::nats::error::fault_from_client_error;
use crate::nats::provenance::{ID_HEADER, new_id};
use crate::nats::record::StreamRecord;
use crate::nats::topology::{CAPABILITIES, HEARTBEATS, RUNS, bucket_stream};
use crate::ops::log_limit::LogLimit;

async fn put_value(bus: &Bus, bucket: &'static str, key: &str, value: &impl Serialize) -> Result<(), Fault> {
    let bytes = serde_json::to_vec(value).expect("values of the registry serialise to JSON");
    let store = bus.bucket(bucket).await?;
    let put = store.put(key, bytes.into()).await;
    put.map(|_| ()).map_err(|error| fault_from_client_error(&format!("bucket {bucket}, key {key}"), error))
}

/// The maximum number of capabilities of a cluster. Each has a queue, and a stream has a limited number of consumers.
const MAX_CAPABILITIES: usize = 1_000;

/// The number of capabilities up to which they are read by name: each has a schema, so that most readers want few of them.
const MAX_NAMED: usize = 16;

/// An entry of the capability bucket.
struct CapabilityEntry {
    sequence: u64,
    subject: String,
    at: Timestamp,
    /// `None` if the entry is invalid.
    description: Option<CapabilityDescription>,
}

/// Registers a capability. It stays registered when no process provides it.
pub async fn register_capability(bus: &Bus, capability: &CapabilityDescription) -> Result<(), Fault> {
    let what = format!("registering the capability {}", capability.name);
    let bytes = serde_json::to_vec(capability).expect("values of the registry serialise to JSON");
    let message = PublishMessage::build().payload(bytes.into()).header(ID_HEADER, new_id().as_str());
    let sent = bus.request_context().send_publish(capability_subject(&capability.name), message).await;
    let acknowledgement = sent.map_err(|error| fault_from_client_error(&what, error))?.await;
    acknowledgement.map(|_| ()).map_err(|error| fault_from_client_error(&what, error))
}

/// Registers a capability again if its entry is missing or invalid. An entry of another release of the same capability
/// stays.
pub async fn restore_capability(bus: &Bus, capability: &CapabilityDescription) -> Result<(), Fault> {
    let subject = capability_subject(&capability.name);
    let stream = bucket_stream(CAPABILITIES);
    let last = direct_get::read_last_of_subject(bus.client(), &stream, &subject).await?;
    if last.map(capability_entry).is_some_and(|entry| entry.description.is_some()) {
        return Ok(());
    }
    tracing::debug!(capability = %capability.name, "the entry of a capability is missing or invalid; writing it again");
    register_capability(bus, capability).await
}

fn capability_subject(name: &Capability) -> String {
    format!("$KV.{CAPABILITIES}.{name}")
}

/// Reads an entry. It is valid if a client has published it and it describes the capability that its key names: a
/// redirected server reply does neither.
fn capability_entry(record: StreamRecord) -> CapabilityEntry {
    let parsed: Option<CapabilityDescription> = serde_json::from_slice(&record.payload).ok();
    let description = parsed.filter(|parsed| {
        !record.is_forged() && !record.is_deletion && *record.subject == *capability_subject(&parsed.name)
    });
    CapabilityEntry {
        sequence: record.sequence,
        subject: record.subject.to_string(),
        at: record.time,
        description,
    }
}

async fn read_capability_entries(bus: &Bus) -> Result<Vec<CapabilityEntry>, Fault> {
    let (stream, subjects) = (bucket_stream(CAPABILITIES), format!("$KV.{CAPABILITIES}.>"));
    let records = direct_get::read_matching(bus.client(), &stream, &subjects, 1).await?;
    Ok(records.into_iter().map(capability_entry).collect())
}

/// Returns the registered capabilities by name. Invalid entries are ignored, and so are those over the maximum number.
pub async fn read_capabilities(bus: &Bus) -> Result<BTreeMap<Capability, CapabilityDescription>, Fault> {
    let entries = read_capability_entries(bus).await?;
    let descriptions = entries.into_iter().filter_map(|entry| entry.description);
    Ok(descriptions.take(MAX_CAPABILITIES).map(|capability| (capability.name.clone(), capability)).collect())
}

/// Returns the registered capabilities of these names. Invalid entries are ignored.
pub async fn read_named_capabilities(
    bus: &Bus,
    names: &BTreeSet<&Capability>,
) -> Result<BTreeMap<Capability, CapabilityDescription>, Fault> {
    if names.len() > MAX_NAMED {
        let mut all = read_capabilities(bus).await?;
        all.retain(|name, _| names.contains(name));
        return Ok(all);
    }
    let stream = bucket_stream(CAPABILITIES);
    let reads = names.iter().map(|name| capability_subject(name)).map(|subject| {
        let stream = &stream;
        async move { direct_get::read_last_of_subject(bus.client(), stream, &subject).await }
    });
    let entries = try_join_all(reads).await?.into_iter().flatten().map(capability_entry);
    let descriptions = entries.filter_map(|entry| entry.description);
    Ok(descriptions.map(|capability| (capability.name.clone(), capability)).collect())
}

/// Returns the names of the registered capabilities.
pub async fn read_capability_names(bus: &Bus) -> Result<BTreeSet<Capability>, Fault> {
    Ok(read_capabilities(bus).await?.into_keys().collect())
}

/// Removes the invalid entries of the capability bucket that are older than `age`; returns how many. Called by
/// supervisors: every reader reads the whole bucket.
pub async fn remove_invalid_capabilities(bus: &Bus, age: Duration) -> Result<u64, Fault> {
    let (what, now) = ("removing invalid capabilities", Timestamp::now());
    let is_old = |at: Timestamp| now.duration_since(at).unsigned_abs() >= age;
    let entries = read_capability_entries(bus).await?.into_iter();
    let invalid: Vec<CapabilityEntry> =
        entries.filter(|entry| entry.description.is_none() && is_old(entry.at)).collect();
    if invalid.is_empty() {
        return Ok(0);
    }
    let stream = bus
        .request_context()
        .get_stream_no_info(bucket_stream(CAPABILITIES))
        .await
        .map_err(|error| fault_from_client_error(what, error))?;
    let mut removed = 0;
    for CapabilityEntry { sequence, subject, .. } in invalid {
        // A newer entry of that key stays.
        let purged = stream.purge().filter(subject).sequence(sequence + 1).await;
        removed += purged.map_err(|error| fault_from_client_error(what, error))?.purged;
    }
    Ok(removed)
}

/// Sends the heartbeat of a process.
pub async fn send_heartbeat(bus: &Bus, heartbeat: &Heartbeat) -> Result<(), Fault> {
    let key = heartbeat_key(heartbeat);
    let sending = put_value(bus, HEARTBEATS, &key, heartbeat);
    bus.fail_on_denial(&format!("$KV.{HEARTBEATS}.{key}"), sending).await
}

/// Returns the key of a heartbeat: below its role, so that permissions keep one role from sending those of another.
fn heartbeat_key(heartbeat: &Heartbeat) -> String {
    format!("{}.{}", heartbeat.role.name(), heartbeat.id)
}

/// Removes the heartbeat of a process that stops.
///
/// # Errors
/// The server does not respond: the heartbeat expires by itself.
pub async fn remove_heartbeat(bus: &Bus, heartbeat: &Heartbeat) -> Result<(), Fault> {
    let deleted = bus.bucket(HEARTBEATS).await?.delete(heartbeat_key(heartbeat)).await;
    deleted.map_err(|error| fault_from_client_error("removing the heartbeat", error))
}

/// A heartbeat with the time at which the server stored it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedHeartbeat {
    pub heartbeat: Heartbeat,
    /// When the server stored it.
    pub at: Timestamp,
}

/// Returns the current heartbeats. A heartbeat under the key of another process is ignored.
pub async fn read_heartbeats(bus: &Bus) -> Result<Vec<Heartbeat>, Fault> {
    Ok(read_received_heartbeats(bus).await?.into_iter().map(|received| received.heartbeat).collect())
}

/// Returns the current heartbeats with their times. A heartbeat under the key of another process is ignored.
pub async fn read_received_heartbeats(bus: &Bus) -> Result<Vec<ReceivedHeartbeat>, Fault> {
    let mut heartbeats = Vec::new();
    for BucketEntry { key, value, at } in entries_with_times(bus.client(), HEARTBEATS).await? {
        match serde_json::from_slice::<Heartbeat>(&value) {
            Ok(heartbeat) if key == heartbeat_key(&heartbeat) => {
                heartbeats.push(ReceivedHeartbeat { heartbeat, at });
            }
            Ok(_) => warn_of_ignored_entry(HEARTBEATS, &key, "a heartbeat under the key of another process"),
            Err(_) => warn_of_ignored_entry(HEARTBEATS, &key, "an unreadable heartbeat"),
        }
    }
    Ok(heartbeats)
}

pub async fn write_summary(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    put_value(bus, RUNS, summary.run.as_str(), summary).await
}

/// Writes the summary of a run if `is_wanted` accepts the stored one, which is none if there is no valid one. A summary that is written
/// meanwhile is checked, too.
pub async fn write_summary_if(
    bus: &Bus,
    summary: &RunSummary,
    is_wanted: impl Fn(Option<&RunSummary>) -> bool,
) -> Result<(), Fault> {
    let what = "bucket runs";
    let bucket = bus.bucket(RUNS).await?;
    let value: Bytes = serde_json::to_vec(summary).expect("a summary serialises to JSON").into();
    let mut tries = 0;
    loop {
        let entry =
            bucket.entry(summary.run.as_str()).await.map_err(|error| fault_from_client_error(what, error))?;
        let stored = entry.as_ref().filter(|entry| entry.operation == kv::Operation::Put);
        let stored: Option<RunSummary> = stored.and_then(|entry| serde_json::from_slice(&entry.value).ok());
        if !is_wanted(stored.as_ref().filter(|stored| stored.run == summary.run)) {
            return Ok(());
        }
        let revision = entry.map_or(0, |entry| entry.revision);
        match bucket.update(summary.run.as_str(), value.clone(), revision).await {
            Ok(_) => return Ok(()),
            // Another process has written it, or the replica that answered the read lags.
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {
                tries += 1;
                tokio::time::sleep(backoff(tries)).await;
            }
            Err(error) => return Err(fault_from_client_error(what, error)),
        }
    }
}

/// Removes the summary of a deleted run. Readers of changes learn of it by the marker that stays.
pub async fn remove_summary(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    let deleted = bus.bucket(RUNS).await?.delete(run.as_str()).await;
    deleted.map_err(|error| fault_from_client_error("removing the summary of a run", error))
}

/// Returns the summary of a run; `None` if there is no such run, or it was only just submitted. A summary of another
/// run under this key is ignored.
pub async fn read_summary(bus: &Bus, run: &RunId) -> Result<Option<RunSummary>, Fault> {
    let bytes = bus
        .bucket(RUNS)
        .await?
        .get(run.as_str())
        .await
        .map_err(|error| fault_from_client_error("bucket runs", error))?;
    let summary: Option<RunSummary> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(summary.filter(|summary| summary.run == *run))
}

/// The maximum number of summaries that [`read_summaries`] returns: the server returns no more at once.
pub const MAX_SUMMARIES: usize = 500;

/// Returns the summaries of these runs, at most [`MAX_SUMMARIES`], in any order; of runs without one, none.
pub async fn read_summaries(bus: &Bus, runs: &[RunId]) -> Result<Vec<RunSummary>, Fault> {
    let subjects: Vec<String> = runs.iter().map(|run| format!("$KV.{RUNS}.{run}")).collect();
    let records = direct_get::read_last_per_subject(bus.client(), &bucket_stream(RUNS), &subjects).await?;
    let records = records.ok_or_else(|| Fault::unavailable("bucket runs", "too many summaries at once"))?;
    Ok(records.iter().filter(|record| !record.is_deletion).filter_map(summary_of_key).collect())
}

/// Parses a summary; a summary of another run under this key is ignored.
fn summary_of_key(record: &StreamRecord) -> Option<RunSummary> {
    let summary: RunSummary = serde_json::from_slice(&record.payload).ok()?;
    (*record.subject == *format!("$KV.{RUNS}.{}", summary.run)).then_some(summary)
}

/// Returns the summaries of all runs, oldest first. A summary under the key of another run is ignored.
pub async fn read_run_summaries(bus: &Bus) -> Result<Vec<RunSummary>, Fault> {
    let mut runs = Vec::new();
    for (key, bytes) in read_bucket_entries(bus.client(), RUNS).await? {
        match serde_json::from_slice::<RunSummary>(&bytes) {
            Ok(summary) if key == summary.run.as_str() => runs.push(summary),
            Ok(_) => warn_of_ignored_entry(RUNS, &key, "a summary under the key of another run"),
            Err(_) => warn_of_ignored_entry(RUNS, &key, "an unreadable summary"),
        }
    }
    runs.sort_by(|a, b| (a.started, &a.run).cmp(&(b.started, &b.run)));
    Ok(runs)
}

/// Logs an ignored entry of a bucket: one line per kind and minute, since other processes can write any number of them.
fn warn_of_ignored_entry(bucket: &str, key: &str, kind: &'static str) {
    static LINES: LogLimit = LogLimit::new();
    if let Some(count) = LINES.count_event(kind) {
        tracing::warn!(bucket, key, count, "ignoring {kind}");
    }
}

/// Returns the name of this machine.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns a unique id for this process: its role, machine, process id, and 32 random bits.
#[must_use]
pub fn new_process_id(role: &str) -> WorkerId {
    let host: String = host_name().chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    let random = uuid::Uuid::new_v4().as_fields().0;
    WorkerId::new(format!("{role}-{host}-{}-{random:08x}", std::process::id()))
        .expect("letters, digits and hyphens make a valid id")
}
