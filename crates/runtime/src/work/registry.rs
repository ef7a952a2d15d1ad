//! The registry of a cluster: capabilities, heartbeats and run summaries. These buckets contain derived data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, RunId, WorkerId};
use millrace_protocol::registry::{Heartbeat, RunSummary};
use millrace_protocol::result::CapabilityDescription;

use crate::Fault;
use crate::fault::ClientResult;
use crate::nats::bus::Bus;
use crate::nats::topology::{CAPABILITIES, HEARTBEATS, RUNS, bucket_stream};
use crate::store::bucket::{Bucket, BucketChanges, Change, Entry, ExpectedEntry};

static REGISTERED: Bucket<CapabilityDescription> =
    Bucket::new(CAPABILITIES, "").with_key(|capability: &CapabilityDescription| capability.name.to_string());
/// Below the role of a process, so that permissions keep one role from sending the heartbeats of another.
static BEATS: Bucket<Heartbeat> = Bucket::new(HEARTBEATS, "").with_key(heartbeat_key).open();
static SUMMARIES: Bucket<RunSummary> =
    Bucket::new(RUNS, "").with_key(|summary: &RunSummary| summary.run.to_string()).open();

/// The maximum number of capabilities of a cluster. Each has a queue, and a stream has a limited number of consumers.
const MAX_CAPABILITIES: usize = 1_000;

/// The number of capabilities up to which they are read by name: each has a schema, so that most readers want few of them.
const MAX_NAMED: usize = 16;

/// Registers a capability. It stays registered when no process provides it.
pub async fn register_capability(bus: &Bus, capability: &CapabilityDescription) -> Result<(), Fault> {
    REGISTERED.put(bus, capability.name.as_str(), capability).await
}

/// Registers a capability again if its entry is missing or invalid. An entry of another release of the same capability
/// stays.
pub async fn restore_capability(bus: &Bus, capability: &CapabilityDescription) -> Result<(), Fault> {
    if REGISTERED.read(bus, capability.name.as_str()).await?.is_some() {
        return Ok(());
    }
    tracing::debug!(capability = %capability.name, "the entry of a capability is missing or invalid; writing it again");
    register_capability(bus, capability).await
}

/// Returns the registered capabilities by name. Invalid entries are ignored, and so are those over the maximum number.
pub async fn read_capabilities(bus: &Bus) -> Result<BTreeMap<Capability, CapabilityDescription>, Fault> {
    let entries = REGISTERED.read_all(bus).await?.into_iter().take(MAX_CAPABILITIES);
    Ok(entries.map(|entry| (entry.value.name.clone(), entry.value)).collect())
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
    let mut found = BTreeMap::new();
    for name in names {
        found.extend(REGISTERED.read(bus, name.as_str()).await?.map(|entry| ((*name).clone(), entry)));
    }
    Ok(found)
}

/// Returns the names of the registered capabilities.
pub async fn read_capability_names(bus: &Bus) -> Result<BTreeSet<Capability>, Fault> {
    Ok(read_capabilities(bus).await?.into_keys().collect())
}

/// Removes the invalid entries of the capability bucket that are older than `age`; returns how many. Called by
/// supervisors: every reader reads the whole bucket.
pub async fn remove_invalid_capabilities(bus: &Bus, age: Duration) -> Result<u64, Fault> {
    let (what, now) = ("removing invalid capabilities", Timestamp::now());
    let invalid = REGISTERED.read_invalid(bus).await?.into_iter();
    let old: Vec<_> =
        invalid.filter(|record| now.duration_since(record.time).unsigned_abs() >= age).collect();
    if old.is_empty() {
        return Ok(0);
    }
    let stream =
        bus.request_context().get_stream_no_info(bucket_stream(CAPABILITIES)).await.or_fault(what)?;
    let mut removed = 0;
    for record in old {
        // A newer entry of that key stays.
        let purged = stream.purge().filter(record.subject.as_str()).sequence(record.sequence + 1).await;
        removed += purged.or_fault(what)?.purged;
    }
    Ok(removed)
}

/// Sends the heartbeat of a process.
pub async fn send_heartbeat(bus: &Bus, heartbeat: &Heartbeat) -> Result<(), Fault> {
    BEATS.put(bus, &heartbeat_key(heartbeat), heartbeat).await
}

fn heartbeat_key(heartbeat: &Heartbeat) -> String {
    format!("{}.{}", heartbeat.role.name(), heartbeat.id)
}

/// Removes the heartbeat of a process that stops.
pub async fn remove_heartbeat(bus: &Bus, heartbeat: &Heartbeat) -> Result<(), Fault> {
    BEATS.remove(bus, &heartbeat_key(heartbeat), ExpectedEntry::Any).await.map(drop)
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
    Ok(BEATS.read_all(bus).await?.into_iter().map(|entry| entry.value).collect())
}

/// Returns the current heartbeats with their times. A heartbeat under the key of another process is ignored.
pub async fn read_received_heartbeats(bus: &Bus) -> Result<Vec<ReceivedHeartbeat>, Fault> {
    let received = |entry: Entry<Heartbeat>| ReceivedHeartbeat { heartbeat: entry.value, at: entry.at };
    Ok(BEATS.read_all(bus).await?.into_iter().map(received).collect())
}

pub async fn write_summary(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    SUMMARIES.put(bus, summary.run.as_str(), summary).await
}

/// Writes the summary of a run if `is_wanted` accepts the stored one, which is none if there is no valid one. A summary that is written
/// meanwhile is checked, too.
pub async fn write_summary_if(
    bus: &Bus,
    summary: &RunSummary,
    is_wanted: impl Fn(Option<&RunSummary>) -> bool,
) -> Result<(), Fault> {
    let change = |stored: Option<RunSummary>| match is_wanted(stored.as_ref()) {
        true => Change::Write(summary.clone(), ()),
        false => Change::Keep(()),
    };
    SUMMARIES.change(bus, summary.run.as_str(), change).await
}

/// Removes the summary of a deleted run. Readers of changes learn of it by the marker that stays.
pub async fn remove_summary(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    SUMMARIES.remove(bus, run.as_str(), ExpectedEntry::Any).await.map(drop)
}

/// Returns the summary of a run; `None` if there is no such run, or it was only just submitted. A summary of another
/// run under this key is ignored.
pub async fn read_summary(bus: &Bus, run: &RunId) -> Result<Option<RunSummary>, Fault> {
    SUMMARIES.read(bus, run.as_str()).await
}

/// The maximum number of summaries that [`read_summaries`] returns: the server returns no more at once.
pub const MAX_SUMMARIES: usize = 500;

/// Returns the summaries of these runs, at most [`MAX_SUMMARIES`], in any order; of runs without one, none.
pub async fn read_summaries(bus: &Bus, runs: &[RunId]) -> Result<Vec<RunSummary>, Fault> {
    Ok(SUMMARIES
        .read_keys(bus, runs.iter().map(RunId::as_str))
        .await?
        .into_iter()
        .map(|entry| entry.value)
        .collect())
}

/// Returns the summaries of all runs, oldest first. A summary under the key of another run is ignored.
pub async fn read_run_summaries(bus: &Bus) -> Result<Vec<RunSummary>, Fault> {
    let mut runs: Vec<RunSummary> =
        SUMMARIES.read_all(bus).await?.into_iter().map(|entry| entry.value).collect();
    runs.sort_by(|a, b| (a.started, &a.run).cmp(&(b.started, &b.run)));
    Ok(runs)
}

/// Returns a reader of the changes of summaries after a revision, which is their sequence in the bucket; 0 is before the first.
pub fn follow_summaries(revision: u64) -> BucketChanges<RunSummary> {
    SUMMARIES.changes_below("", revision)
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
