//! The position of an exporter that follows all lanes: which messages it has exported. Of several processes one is the exporter; it
//! is the one that has written the position last. Whoever finds the position unchanged for long enough takes over from there.
//! Each write expects the one before, so that two exporters notice each other at once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::topology::KEYS;
use crate::store::bucket::{Bucket, Entry, ExpectedEntry};

/// Idempotency keys are hexadecimal, so that none is the key of a position.
static STORE: Bucket<ExportPosition> = Bucket::new(KEYS, "exporter-").open();

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
///
/// # Errors
/// The server does not respond, or the cluster has no bucket for it: its supervisors are older.
pub async fn read_position(bus: &Bus, name: &str) -> Result<Option<Entry<ExportPosition>>, Fault> {
    Ok(STORE.read_state(bus, name).await?.entry)
}

/// Writes a position in place of the one with this sequence, 0 for the first. Returns the new one; `None` if another process has
/// written one since.
pub async fn write_position(
    bus: &Bus,
    name: &str,
    position: &ExportPosition,
    sequence: u64,
) -> Result<Option<u64>, Fault> {
    STORE.write(bus, name, position, ExpectedEntry::Sequence(sequence)).await
}
