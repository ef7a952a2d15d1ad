//! Which orders are accepted without headers. Programs before 0.4 published orders without a `Millrace-Id`, so that
//! such an order can't be told from a redirected server reply (see [`super::provenance`]). The cluster's settings
//! contain the sequence of the last order that is accepted without headers, once no supervisor publishes such orders
//! any more.

use std::time::Duration;

use async_nats::jetstream;
use millrace_protocol::registry::ClusterSettings;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::topology;
use crate::Fault;

/// The minimum interval between two reads of the settings.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Which orders are accepted without headers, as the settings said when they were last read.
pub(crate) struct UnmarkedOrderPolicy(Mutex<CachedSequenceLimit>);

struct CachedSequenceLimit {
    /// The sequence of the last accepted order; `None` while all are accepted.
    last_accepted: Option<u64>,
    read_at: Option<Instant>,
}

impl UnmarkedOrderPolicy {
    pub fn from_settings(settings: &ClusterSettings) -> Self {
        Self(Mutex::new(CachedSequenceLimit {
            last_accepted: settings.unmarked_orders_through,
            read_at: None,
        }))
    }

    /// `true` if the order with this sequence is accepted although it has no headers.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn accepts_unmarked_order(
        &self,
        control: &jetstream::Context,
        sequence: u64,
    ) -> Result<bool, Fault> {
        let mut cached = self.0.lock().await;
        if cached.last_accepted.is_none() && cached.read_at.is_none_or(|at| at.elapsed() >= READ_INTERVAL) {
            cached.last_accepted = topology::read_current_settings(control).await?.0.unmarked_orders_through;
            cached.read_at = Some(Instant::now());
        }
        Ok(cached.last_accepted.is_none_or(|last| sequence <= last))
    }
}
