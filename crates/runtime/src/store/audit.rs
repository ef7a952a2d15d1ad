//! The record of administrative actions, in a bucket: each has a key that sorts by time, and none is ever written again.

use millrace_protocol::audit::AuditRecord;

use crate::Fault;
use crate::log::{AppendError, append_payload};
use crate::nats::bus::Bus;
use crate::nats::direct_get::PagedReader;
use crate::nats::provenance::new_id;
use crate::nats::topology::{AUDIT, bucket_stream};

/// Records an action, before it is carried out.
///
/// # Errors
/// The server does not respond, or the cluster has no such bucket: its supervisors are older.
pub async fn record_action(bus: &Bus, record: &AuditRecord) -> Result<(), Fault> {
    let payload = serde_json::to_vec(record).expect("an action serialises to JSON");
    let subject = format!("$KV.{AUDIT}.{}", uuid::Uuid::now_v7().simple());
    match append_payload(bus, "audit", bucket_stream(AUDIT), subject, payload.into(), 0, new_id()).await {
        Ok(_) => Ok(()),
        Err(AppendError::Fault(fault)) => Err(fault),
        Err(AppendError::Fenced { last }) => {
            Err(Fault::unavailable("recording an action", format!("its key is taken (sequence {last})")))
        }
    }
}

/// Returns the actions after a sequence, oldest first, each with its sequence, at most `limit`.
pub async fn read_actions(bus: &Bus, after: u64, limit: usize) -> Result<Vec<(u64, AuditRecord)>, Fault> {
    let mut pages = PagedReader::new(
        bus.client(),
        bucket_stream(AUDIT),
        format!("$KV.{AUDIT}.>"),
        after.saturating_add(1),
    );
    let mut actions = Vec::new();
    loop {
        let records = pages.next_page().await?;
        if records.is_empty() {
            return Ok(actions);
        }
        for record in records.iter().filter(|record| !record.is_forged() && !record.is_deletion) {
            if actions.len() == limit {
                return Ok(actions);
            }
            // A record of a newer release has an action that this one does not know.
            match serde_json::from_slice::<AuditRecord>(&record.payload) {
                Ok(action) => actions.push((record.sequence, action)),
                Err(error) => {
                    tracing::warn!(sequence = record.sequence, %error, "can't read a recorded action");
                }
            }
        }
    }
}
