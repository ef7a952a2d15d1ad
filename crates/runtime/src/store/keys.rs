//! The bucket `keys`: idempotency keys of requests, and the positions of exporters.
//!
//! A key belongs to its author, to an operation and to what that acts on. The first claim decides which
//! request the key stands for, and under which id the cluster carries it out; whoever repeats the request finds that id and, once there
//! is one, the reply. So a client that did not get the reply can repeat its request at any time, also with another process, for as
//! long as the run is kept. A request that was refused gives its key free.
//!
//! The position is that of an exporter that follows all lanes: which messages it has exported. Of several processes one is the exporter; it
//! is the one that has written the position last. Whoever finds the position unchanged for long enough takes over from there.
//! Each write expects the one before, so that two exporters notice each other at once.
//!
//! # Invariants
//!
//! - I162: Requests to submit with one idempotency key make one run, at any gateway, for as long as the run is kept, and if a
//!   gateway dies between the key and the submission. A repetition has the reply of the first one; the key never names another
//!   request, and a refused request owns none.
//!   (`tests/tests/gateway.rs::request_with_a_key_submits_one_run_however_often_it_is_repeated`,
//!   `tests/tests/gateway.rs::repeated_submission_is_answered_as_the_first_one_and_a_refused_one_owns_no_key`)

use std::collections::BTreeMap;

use millrace_protocol::ids::RunId;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::fault::{backoff, max_replica_lag};
use crate::nats::bus::Bus;
use crate::nats::topology::KEYS;
use crate::store::blobs::sha256_hex;
use crate::store::bucket::{Bucket, Entry, ExpectedEntry};

pub(super) static STORE: Bucket<KeyedRequest> = Bucket::new(KEYS, "");

#[derive(Debug, Clone)]
pub struct KeyScope<'a> {
    /// The author of the request.
    pub author: &'a str,
    pub operation: &'a str,
    /// What it acts on, such as a run; empty if that is the cluster.
    pub resource: &'a str,
    /// The key. Those of clients may have any characters.
    pub key: &'a str,
}

impl KeyScope<'_> {
    /// Returns the name of the record. Names are hexadecimal, so that none is the name of a position in the same bucket.
    pub fn record_name(&self) -> String {
        let Self { author, operation, resource, key } = self;
        sha256_hex(format!("{author}\0{operation}\0{resource}\0{key}").as_bytes())
    }
}

/// The request that a key stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedRequest {
    /// The run that it submits or changes.
    pub run: RunId,
    /// The id under which it is carried out: of a run or of a command.
    pub id: String,
    /// The SHA-256 of its normal form in hexadecimal.
    pub request: String,
    /// The reply; `None` until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<KeyedReply>,
}

/// The reply to a request with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedReply {
    /// The HTTP status.
    pub status: u16,
    /// The path of what was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The body, JSON as text.
    pub body: String,
}

/// A record of a key, with the sequence that the next write must expect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    pub keyed: KeyedRequest,
    sequence: u64,
}

/// Returns the record of a key by its name, if there is one.
/// Fails also if the cluster has no such bucket.
pub async fn read_keyed_request(bus: &Bus, name: &str) -> Result<Option<KeyRecord>, Fault> {
    let entry = STORE.read_state(bus, name).await?.entry;
    Ok(entry.map(|entry| KeyRecord { keyed: entry.value, sequence: entry.sequence }))
}

/// Claims a key for a request. Returns the record of the key, which is that of another request if that was faster.
pub async fn claim_key(bus: &Bus, name: &str, keyed: &KeyedRequest) -> Result<KeyRecord, Fault> {
    let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
    let mut tries = 0;
    loop {
        let state = STORE.read_state(bus, name).await?;
        if let Some(entry) = state.entry {
            return Ok(KeyRecord { keyed: entry.value, sequence: entry.sequence });
        }
        if let Some(sequence) = STORE.write(bus, name, keyed, ExpectedEntry::Sequence(state.last)).await? {
            return Ok(KeyRecord { keyed: keyed.clone(), sequence });
        }
        // Another process was faster, or the replica that answered lags behind its leader.
        tries += 1;
        if started.elapsed() > lag && tries > 5 {
            return Err(Fault::unavailable(
                "claiming an idempotency key",
                "the bucket does not return the key",
            ));
        }
        tokio::time::sleep(backoff(tries)).await;
    }
}

/// Stores the reply to a request, unless the record of its key has changed.
pub async fn store_reply(bus: &Bus, name: &str, record: KeyRecord, reply: KeyedReply) -> Result<(), Fault> {
    let keyed = KeyedRequest { reply: Some(reply), ..record.keyed };
    STORE.write(bus, name, &keyed, ExpectedEntry::Sequence(record.sequence)).await.map(drop)
}

/// Gives the key of a refused request free, unless its record has changed.
pub async fn release_key(bus: &Bus, name: &str, record: &KeyRecord) -> Result<(), Fault> {
    STORE.remove(bus, name, ExpectedEntry::Sequence(record.sequence)).await.map(drop)
}

/// Idempotency keys are hexadecimal, so that none is the key of a position.
static POSITIONS: Bucket<ExportPosition> = Bucket::new(KEYS, "exporter-").open();

/// The position of an exporter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportPosition {
    /// The exporter; empty if it has stopped in order.
    pub exporter: String,
    /// For each lane, the sequence up to which everything is exported.
    pub lanes: BTreeMap<u16, u64>,
    /// The sequence, in the bucket of summaries, up to which archived runs are exported.
    pub summaries: u64,
}

/// Reads the position of the exporter with this name; `None` if there was none yet.
/// Fails also if the cluster has no bucket for it.
pub async fn read_position(bus: &Bus, name: &str) -> Result<Option<Entry<ExportPosition>>, Fault> {
    Ok(POSITIONS.read_state(bus, name).await?.entry)
}

/// Writes a position in place of the one with this sequence, 0 for the first. Returns the new one; `None` if another process has
/// written one since.
pub async fn write_position(
    bus: &Bus,
    name: &str,
    position: &ExportPosition,
    sequence: u64,
) -> Result<Option<u64>, Fault> {
    POSITIONS.write(bus, name, position, ExpectedEntry::Sequence(sequence)).await
}
