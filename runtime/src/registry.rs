//! What the cluster can do, who is alive, and which runs there are: buckets that can be thrown away.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream::kv;
use millrace_protocol::ids::{Capability, RunId, WorkerId};
use millrace_protocol::registry::{Beat, RunSummary};
use millrace_protocol::result::CapabilityDescription;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Fault;
use crate::bus::Bus;
use crate::lease::entries;
use crate::topology::{self, BEATS, CAPABILITIES, RUNS, fault};

fn store<'a>(bus: &'a Bus, bucket: &'a str) -> BoxFuture<'a, Result<kv::Store, Fault>> {
    topology::open_bucket(bus.control(), bucket).boxed()
}

async fn put(bus: &Bus, bucket: &str, key: &str, value: &impl Serialize) -> Result<(), Fault> {
    let bytes = serde_json::to_vec(value).expect("what stands in buckets has a form in JSON");
    let store = store(bus, bucket).await?;
    let put = store.put(key, bytes.into()).await;
    put.map(|_| ()).map_err(|error| fault(&format!("bucket {bucket}, key {key}"), &error))
}

/// All values of a bucket that can be read. One that can't is somebody else's: it is passed over.
async fn all<T: DeserializeOwned>(bus: &Bus, bucket: &str) -> Result<Vec<T>, Fault> {
    let entries = entries(bus, bucket).await?;
    Ok(entries
        .into_iter()
        .filter_map(|(key, bytes)| {
            serde_json::from_slice(&bytes)
                .inspect_err(|error| tracing::warn!(bucket, key, %error, "an entry is passed over"))
                .ok()
        })
        .collect())
}

/// Tells the cluster what a capability is. It stays known when nobody offers it for a while.
///
/// # Errors
/// The server does not answer.
pub async fn register(bus: &Bus, capability: &CapabilityDescription) -> Result<(), Fault> {
    put(bus, CAPABILITIES, capability.name.as_str(), capability).await
}

/// The capabilities that the cluster knows, by name.
///
/// # Errors
/// The server does not answer.
pub async fn capabilities(bus: &Bus) -> Result<BTreeMap<Capability, CapabilityDescription>, Fault> {
    let all: Vec<CapabilityDescription> = all(bus, CAPABILITIES).await?;
    Ok(all.into_iter().map(|capability| (capability.name.clone(), capability)).collect())
}

/// The names of the capabilities that the cluster knows.
///
/// # Errors
/// The server does not answer.
pub async fn capability_names(bus: &Bus) -> Result<BTreeSet<Capability>, Fault> {
    Ok(entries(bus, CAPABILITIES)
        .await?
        .into_iter()
        .filter_map(|(key, _)| Capability::new(key).ok())
        .collect())
}

/// Says that a process lives.
///
/// # Errors
/// The server does not answer.
pub async fn beat(bus: &Bus, beat: &Beat) -> Result<(), Fault> {
    put(bus, BEATS, &beat_key(beat), beat).await
}

/// Where a process says that it lives: below its role, so that no role speaks for another.
fn beat_key(beat: &Beat) -> String {
    format!("{}.{}", beat.role.name(), beat.id)
}

/// Says that a process is gone.
///
/// # Errors
/// The server does not answer: the entry runs out by itself.
pub async fn leave(bus: &Bus, beat: &Beat) -> Result<(), Fault> {
    let deleted = store(bus, BEATS).await?.delete(beat_key(beat)).await;
    deleted.map_err(|error| fault("leaving the registry", &error))
}

/// Who lives. What is said below another role than it says is passed over.
///
/// # Errors
/// The server does not answer.
pub async fn beats(bus: &Bus) -> Result<Vec<Beat>, Fault> {
    let mut beats = Vec::new();
    for (key, bytes) in entries(bus, BEATS).await? {
        match serde_json::from_slice::<Beat>(&bytes) {
            Ok(beat) if key == beat_key(&beat) => beats.push(beat),
            // An older program said it under its name alone, and goes on for as long as it lives.
            Ok(beat) if key == beat.id.as_str() => beats.push(beat),
            Ok(_) => tracing::warn!(bucket = BEATS, key, "a sign of life in another's place is passed over"),
            Err(error) => tracing::warn!(bucket = BEATS, key, %error, "an entry is passed over"),
        }
    }
    Ok(beats)
}

/// Writes the summary of a run.
///
/// # Errors
/// The server does not answer.
pub async fn summarise(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    put(bus, RUNS, summary.run.as_str(), summary).await
}

/// The summary of a run; `None` if there is no such run, or it has only just been handed in. One of another run in its
/// place is none.
///
/// # Errors
/// The server does not answer.
pub async fn summary(bus: &Bus, run: &RunId) -> Result<Option<RunSummary>, Fault> {
    let found =
        store(bus, RUNS).await?.get(run.as_str()).await.map_err(|error| fault("bucket runs", &error))?;
    let summary: Option<RunSummary> = found.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(summary.filter(|summary| summary.run == *run))
}

/// All runs, oldest first. A summary in another run's place is passed over.
///
/// # Errors
/// The server does not answer.
pub async fn runs(bus: &Bus) -> Result<Vec<RunSummary>, Fault> {
    let mut runs = Vec::new();
    for (key, bytes) in entries(bus, RUNS).await? {
        match serde_json::from_slice::<RunSummary>(&bytes) {
            Ok(summary) if key == summary.run.as_str() => runs.push(summary),
            Ok(_) => tracing::warn!(bucket = RUNS, key, "a summary in another run's place is passed over"),
            Err(error) => tracing::warn!(bucket = RUNS, key, %error, "an entry is passed over"),
        }
    }
    runs.sort_by(|a, b| (a.started, &a.run).cmp(&(b.started, &b.run)));
    Ok(runs)
}

/// The name of this machine.
#[must_use]
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A name for this process that no other has: its role, the machine, the process, and 32 random bits.
#[must_use]
pub fn made_id(role: &str) -> WorkerId {
    let host: String = host().chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    let random = uuid::Uuid::new_v4().as_fields().0;
    WorkerId::new(format!("{role}-{host}-{}-{random:08x}", std::process::id()))
        .expect("letters, digits and hyphens make a name")
}
