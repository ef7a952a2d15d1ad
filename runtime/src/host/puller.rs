//! The task that fills the slots of one queue. While a slot is free, a request stands for exactly as many orders as
//! there were free slots when it was made; each order takes one of them along. It ends only when it is told to.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::pull::{Lease, Puller, pause};
use super::standing::Standing;
use crate::Fault;
use crate::bus::Bus;

/// What the task works with.
pub(super) struct Pulling {
    pub bus: Bus,
    pub capability: Capability,
    pub slots: Arc<Semaphore>,
    pub draining: CancellationToken,
    pub standing: Arc<Standing>,
}

impl Pulling {
    /// Hands each order with its slot to `take` until it is told to drain. Orders that come after that go back.
    pub async fn run(self, mut take: impl FnMut(Lease, OwnedSemaphorePermit)) {
        let mut tries = 0;
        loop {
            let opened = tokio::select! {
                () = self.draining.cancelled() => return,
                opened = Puller::open(&self.bus, &self.capability) => opened,
            };
            let fault = match opened {
                Ok(mut puller) => {
                    if puller.was_seen {
                        self.standing.opened();
                    }
                    match self.pull_from(&mut puller, &mut tries, &mut take).await {
                        Ok(()) => return give_back_the_rest(puller).await,
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            tries += 1;
            self.standing.is_missing("its queue does not answer");
            warn!(capability = %self.capability, tries, %fault, "the queue does not answer; trying again");
            tokio::select! {
                () = self.draining.cancelled() => return,
                () = tokio::time::sleep(pause(tries)) => {}
            }
        }
    }

    /// Fills slots until it is told to drain.
    async fn pull_from(
        &self,
        puller: &mut Puller,
        tries: &mut u32,
        take: &mut impl FnMut(Lease, OwnedSemaphorePermit),
    ) -> Result<(), Fault> {
        loop {
            let mut free = tokio::select! {
                () = self.draining.cancelled() => return Ok(()),
                free = all_free(&self.slots) => free,
            };
            let wanted = free.num_permits();
            let pulled = puller.pull(wanted, |lease| match free.split(1) {
                Some(slot) => take(lease, slot),
                None => debug!(subject = lease.subject(), "an order too many; it comes back by itself"),
            });
            tokio::select! {
                () = self.draining.cancelled() => return Ok(()),
                pulled = pulled => pulled?,
            }
            self.standing.opened();
            if std::mem::take(tries) > 0 {
                info!(capability = %self.capability, "the queue answers again");
            }
        }
    }
}

/// All slots that are free, at least one.
async fn all_free(slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let closed = "the slots are never closed";
    let mut free = slots.clone().acquire_owned().await.expect(closed);
    while let Ok(more) = u32::try_from(slots.available_permits())
        && more > 0
    {
        // Somebody may have given one back or, after a restart, still hold one; what is there is taken.
        match slots.clone().try_acquire_many_owned(more) {
            Ok(more) => free.merge(more),
            Err(_) => break,
        }
    }
    free
}

/// What was on its way when we stopped asking is for others.
async fn give_back_the_rest(puller: Puller) {
    let mut rest = Vec::new();
    puller.close(|lease| rest.push(lease)).await;
    for lease in rest {
        lease.give_back(Duration::ZERO).await;
    }
}
