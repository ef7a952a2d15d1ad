//! A hold: while one exists, supervisors remove no runs and no blobs. A backup takes one, because it copies one stream after
//! the other and nothing that a copied message refers to may go meanwhile. A hold is renewed while it is needed, and counts for
//! a limited time, so that a process that dies does not keep runs for ever.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::debug;

use crate::nats::provenance::new_id;
use crate::nats::topology::RETENTION;
use crate::store::bucket::{Bucket, ExpectedEntry};
use crate::{Bus, Fault};

/// The interval at which a hold is renewed.
const RENEWAL: Duration = Duration::from_secs(20);
/// The age at which a hold does not count any more.
const MAX_AGE: Duration = Duration::from_secs(120);

static STORE: Bucket<HoldRecord> = Bucket::new(RETENTION, "hold.");

/// The content of a hold.
#[derive(Debug, Serialize, Deserialize)]
struct HoldRecord {
    why: String,
}

/// A hold of this process, until it is released or dropped.
#[derive(Debug)]
pub struct RetentionHold {
    key: String,
    renewal: JoinHandle<()>,
}

impl RetentionHold {
    /// Takes a hold. Removals that have begun end within moments.
    ///
    /// # Errors
    /// The server does not respond, or the cluster has no such bucket: its supervisors are older and remove nothing.
    pub async fn take(bus: &Bus, why: &str) -> Result<Self, Fault> {
        let key = new_id();
        let record = HoldRecord { why: why.to_owned() };
        STORE.put(bus, &key, &record).await?;
        let (renewed, renewing_bus) = (key.clone(), bus.clone());
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEWAL).await;
                if let Err(fault) = STORE.put(&renewing_bus, &renewed, &record).await {
                    debug!(%fault, "failed to renew a hold; retrying");
                }
            }
        });
        Ok(Self { key, renewal })
    }

    /// Releases the hold.
    pub async fn release(self, bus: &Bus) {
        self.renewal.abort();
        if let Err(fault) = STORE.remove(bus, &self.key, ExpectedEntry::Any).await {
            debug!(%fault, "failed to release a hold; it expires by itself");
        }
    }
}

impl Drop for RetentionHold {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Returns `true` if a process holds everything from being removed.
pub(super) async fn is_held(bus: &Bus) -> Result<bool, Fault> {
    let now = Timestamp::now();
    let is_current = |at: Timestamp| now.duration_since(at).unsigned_abs() < MAX_AGE;
    let holds = STORE.read_all(bus).await?;
    Ok(holds.iter().any(|hold| is_current(hold.at)))
}
