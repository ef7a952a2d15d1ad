//! Renews the lease of one lane, in a task of its own: neither the folding of a lane nor another lane's lease, nor
//! anything else that the lane manager waits for, delays it.

use std::time::Duration;

use millrace_protocol::ids::Lane;
use millrace_runtime::work::lane_lease::{LaneLease, LaneLeaseManager};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// The renewal of one lease. It ends when it is stopped or dropped, or when the lease is lost.
pub(crate) struct LeaseRenewal {
    lease: watch::Receiver<LaneLease>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl LeaseRenewal {
    /// Starts to renew a lease at an interval. `lost_leases` receives its lane if another supervisor has the lease.
    pub fn start(
        leases: LaneLeaseManager,
        lease: LaneLease,
        interval: Duration,
        lost_leases: mpsc::UnboundedSender<Lane>,
    ) -> Self {
        let (updates, current) = watch::channel(lease);
        let stop = CancellationToken::new();
        let renewing = renew_until_stopped(leases, updates, interval, stop.clone(), lost_leases);
        Self { lease: current, stop, task: tokio::spawn(renewing) }
    }

    /// Returns the lease, whose receivers see each renewal.
    pub fn lease(&self) -> watch::Receiver<LaneLease> {
        self.lease.clone()
    }

    /// Ends the renewal and returns the lease as it was renewed last. Waits for a renewal in flight, up to `timeout`.
    pub async fn stop(mut self, timeout: Duration) -> LaneLease {
        self.stop.cancel();
        if tokio::time::timeout(timeout, &mut self.task).await.is_err() {
            debug!("a renewal did not end in time; its lease will expire");
        }
        self.lease.borrow().clone()
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew_until_stopped(
    leases: LaneLeaseManager,
    updates: watch::Sender<LaneLease>,
    interval: Duration,
    stop: CancellationToken,
    lost_leases: mpsc::UnboundedSender<Lane>,
) {
    let mut rounds = tokio::time::interval(interval);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let mut lease = updates.borrow().clone();
        match leases.renew_lease(&mut lease).await {
            Ok(true) => drop(updates.send_replace(lease)),
            Ok(false) => {
                // Only during shutdown does the manager end first.
                let _ = lost_leases.send(lease.lane);
                return;
            }
            Err(fault) => debug!(lane = %lease.lane, %fault, "failed to renew a lease; retrying"),
        }
    }
}
