//! The task that fills the slots of one queue. While slots are free, it requests exactly that many orders; each order
//! takes a slot with it. The task ends only when the queue drains.
//!
//! # Invariants
//!
//! - I16: A worker never runs more attempts than it has slots; a large run does not starve a small one.
//!   (`worker/tests/worker.rs::attempts_in_flight_never_exceed_the_slots`,
//!   `supervisor/src/lane/fair_share.rs::large_run_does_not_block_a_small_one`,
//!   `tests/tests/supervision.rs::work_finished_without_a_lane_owner_frees_its_slots`)

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::order_lease::OrderLease;
use super::order_puller::OrderPuller;
use super::queue_status::QueueStatus;
use crate::Fault;
use crate::fault::backoff;
use crate::nats::bus::Bus;

/// The task and its parameters.
pub(super) struct SlotFiller {
    pub bus: Bus,
    pub capability: Capability,
    pub slots: Arc<Semaphore>,
    pub draining: CancellationToken,
    pub status: Arc<QueueStatus>,
}

impl SlotFiller {
    /// Passes each order with its slot to `take` until the queue drains. Later orders are returned to the queue.
    pub async fn fill_slots_until_draining(self, mut take: impl FnMut(OrderLease, OwnedSemaphorePermit)) {
        let mut tries = 0;
        loop {
            let opened = tokio::select! {
                () = self.draining.cancelled() => return,
                opened = OrderPuller::open(&self.bus, &self.capability) => opened,
            };
            let fault = match opened {
                Ok(mut puller) => {
                    if puller.is_confirmed {
                        self.status.set_open();
                    }
                    match self.pull_until_draining(&mut puller, &mut tries, &mut take).await {
                        Ok(()) => return return_late_orders(puller).await,
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            tries += 1;
            self.status.set_unavailable("its queue does not respond");
            warn!(capability = %self.capability, tries, %fault, "no response from the queue; retrying");
            tokio::select! {
                () = self.draining.cancelled() => return,
                () = tokio::time::sleep(backoff(tries)) => {}
            }
        }
    }

    /// Fills slots until the queue drains.
    async fn pull_until_draining(
        &self,
        puller: &mut OrderPuller,
        tries: &mut u32,
        take: &mut impl FnMut(OrderLease, OwnedSemaphorePermit),
    ) -> Result<(), Fault> {
        loop {
            let mut free = tokio::select! {
                () = self.draining.cancelled() => return Ok(()),
                free = take_free_slots(&self.slots) => free,
            };
            let wanted = free.num_permits();
            let pull = puller.pull_orders(wanted, |lease| match free.split(1) {
                Some(slot) => take(lease, slot),
                None => debug!(
                    subject = lease.subject(),
                    "ignoring an order without a slot; it is redelivered when its lease expires"
                ),
            });
            tokio::select! {
                () = self.draining.cancelled() => return Ok(()),
                result = pull => result?,
            }
            self.status.set_open();
            if std::mem::take(tries) > 0 {
                info!(capability = %self.capability, "the queue responds again");
            }
        }
    }
}

/// Waits for a free slot and takes all free slots.
async fn take_free_slots(slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let closed = "the semaphore is never closed";
    let mut free = slots.clone().acquire_owned().await.expect(closed);
    while let Ok(more) = u32::try_from(slots.available_permits())
        && more > 0
    {
        // The number may have changed since; then take what was acquired so far.
        match slots.clone().try_acquire_many_owned(more) {
            Ok(more) => free.merge(more),
            Err(_) => break,
        }
    }
    free
}

/// Returns orders to the queue that arrived after the last request.
async fn return_late_orders(puller: OrderPuller) {
    let mut rest = Vec::new();
    puller.close_and_take_late_orders(|lease| rest.push(lease)).await;
    for lease in rest {
        lease.release_order(Duration::ZERO).await;
    }
}
