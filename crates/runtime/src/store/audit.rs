//! The record of administrative actions, in a bucket: each has a key that sorts by time, and none is ever written again.

use millrace_protocol::audit::AuditRecord;

use crate::Fault;
use crate::log::AppendError;
use crate::nats::bus::Bus;
use crate::nats::topology::AUDIT;
use crate::store::bucket::{Bucket, BucketChange};

static STORE: Bucket<AuditRecord> = Bucket::new(AUDIT, "");

/// Records an action, before it is carried out.
///
/// # Errors
/// The server does not respond, or the cluster has no such bucket: its supervisors are older.
pub async fn record_action(bus: &Bus, record: &AuditRecord) -> Result<(), Fault> {
    let key = uuid::Uuid::now_v7().simple().to_string();
    match STORE.append(bus, &key, record, 0, "audit").await {
        Ok(_) => Ok(()),
        Err(AppendError::Fault(fault)) => Err(fault),
        Err(AppendError::Fenced { last }) => {
            Err(Fault::unavailable("recording an action", format!("its key is taken (sequence {last})")))
        }
    }
}

/// Returns the actions after a sequence, oldest first, each with its sequence, at most `limit`. Those that only a newer release can
/// read are left out.
pub async fn read_actions(bus: &Bus, after: u64, limit: usize) -> Result<Vec<(u64, AuditRecord)>, Fault> {
    let mut changes = STORE.changes_below(bus, "", after);
    let mut actions = Vec::new();
    while let Some(page) = changes.next_page().await? {
        for change in page {
            let BucketChange::Set(entry) = change else { continue };
            if actions.len() == limit {
                return Ok(actions);
            }
            actions.push((entry.sequence, entry.value));
        }
    }
    Ok(actions)
}
