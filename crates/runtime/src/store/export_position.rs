//! The position of an exporter that follows all lanes: which messages it has exported. Of several processes one is the exporter; it
//! is the one that has written the position last. Whoever finds the position unchanged for long enough takes over from there.
//! Each write expects the one before, so that two exporters notice each other at once.

use std::collections::BTreeMap;

use async_nats::jetstream::kv;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::error::fault_from_client_error;
use crate::nats::topology::KEYS;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPosition {
    pub position: ExportPosition,
    /// Its version, which the next write expects.
    pub revision: u64,
}

/// Reads the position of the exporter with this name; `None` if there was none yet.
///
/// # Errors
/// The server does not respond, or the cluster has no bucket for it: its supervisors are older.
pub async fn read_position(bus: &Bus, name: &str) -> Result<Option<StoredPosition>, Fault> {
    let what = "reading the position of an exporter";
    let store = bus.bucket(KEYS).await?;
    let entry = store.entry(key_of(name)).await.map_err(|error| fault_from_client_error(what, error))?;
    let Some(entry) = entry.filter(|entry| entry.operation == kv::Operation::Put) else { return Ok(None) };
    let position = serde_json::from_slice(&entry.value).map_err(|error| Fault::unavailable(what, error))?;
    Ok(Some(StoredPosition { position, revision: entry.revision }))
}

/// Writes a position in place of the one with this revision, 0 for the first. Returns the new revision; `None` if another process has
/// written one since.
pub async fn write_position(
    bus: &Bus,
    name: &str,
    position: &ExportPosition,
    revision: u64,
) -> Result<Option<u64>, Fault> {
    let store = bus.bucket(KEYS).await?;
    let value = serde_json::to_vec(position).expect("a position serialises to JSON");
    match store.update(key_of(name), value.into(), revision).await {
        Ok(revision) => Ok(Some(revision)),
        Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Ok(None),
        Err(error) => Err(fault_from_client_error("writing the position of an exporter", error)),
    }
}

/// Idempotency keys are hexadecimal, so that none is the key of a position.
fn key_of(name: &str) -> String {
    format!("exporter-{name}")
}
