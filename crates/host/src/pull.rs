//! Pulling orders from one queue: the task that fills its slots requests exactly as many orders as slots are free, and each order
//! takes a slot with it. The task ends only when the queue drains.
//!
//! Pull requests go over one subscription, without the client library's consumers. The library's batch does not
//! register a wake-up after an idle heartbeat, so that a later order is noticed seconds late; and its streams prefetch
//! orders, which starves other processes.
//!
//! # Invariants
//!
//! - I16: A worker never runs more attempts than it has slots; a large run does not starve a small one.
//!   (`worker/tests/worker.rs::attempts_in_flight_never_exceed_the_slots`,
//!   `supervisor/src/lane/offers.rs::large_run_does_not_block_a_small_one`,
//!   `tests/tests/supervision.rs::work_finished_without_a_lane_owner_frees_its_slots`)

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use millrace_protocol::ids::Capability;
use millrace_runtime::fault::backoff;
use millrace_runtime::nats::topology::{WORK, has_queue};
use millrace_runtime::{Bus, Fault};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::order_lease::OrderLease;
use crate::queue_status::QueueStatus;

/// When one pull request expires.
const EXPIRES: Duration = Duration::from_secs(5);
/// The interval of the server's heartbeats for a pull request.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After this time without an order or a heartbeat, a pull request counts as lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(2_500);
/// The poll interval for a queue that does not exist yet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The timeout of one such poll. A queue without a leader does not respond; its next leader will respond to pull
/// requests, so these can be sent meanwhile.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of polls after which a log line says that the queue is missing.
const POLLS_BEFORE_LOG: u32 = 100;

/// The task and its parameters.
pub(crate) struct SlotFiller {
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

/// Pulls orders from the queue of one capability.
pub(crate) struct OrderPuller {
    bus: Bus,
    capability: Capability,
    /// The subject of pull requests.
    next: String,
    /// The prefix of reply subjects; each request has its own.
    inbox: String,
    replies: Subscriber,
    requests: u64,
    /// `false` if the queue did not respond and is only assumed to exist.
    pub is_confirmed: bool,
}

impl OrderPuller {
    /// Opens the queue of a capability, and waits for a supervisor to create it if necessary. A queue without a leader
    /// is assumed to exist.
    pub async fn open(bus: &Bus, capability: &Capability) -> Result<Self, Fault> {
        let mut tries = 0;
        let is_confirmed = loop {
            match find_queue(bus, capability).await? {
                QueueLookup::Exists => break true,
                QueueLookup::NoResponse => break false,
                QueueLookup::Missing => tries += 1,
            }
            if tries == POLLS_BEFORE_LOG {
                info!(%capability, "waiting for a supervisor to create the queue");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let inbox = bus.client().new_inbox();
        let replies = bus
            .client()
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| Fault::unavailable(format!("opening the queue of {capability}"), error))?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{WORK}.{capability}");
        let (bus, capability) = (bus.clone(), capability.clone());
        Ok(Self { bus, capability, next, inbox, replies, requests: 0, is_confirmed })
    }

    /// Requests up to `wanted` orders and passes each to `take` as it arrives. Returns after that many orders, or after
    /// five seconds. Dropping the future leaves the request open: call [`OrderPuller::close_and_take_late_orders`] then.
    ///
    /// # Errors
    /// The server does not respond or has lost the queue: open it again.
    pub async fn pull_orders(
        &mut self,
        wanted: usize,
        mut take: impl FnMut(OrderLease),
    ) -> Result<(), Fault> {
        let reply = self.request_orders(wanted).await?;
        let mut missing = wanted;
        while missing > 0 {
            let message = tokio::time::timeout(RESPONSE_TIMEOUT, self.replies.next())
                .await
                .map_err(|_| self.pull_fault("no heartbeat"))?
                .ok_or_else(|| self.pull_fault("the connection was closed"))?;
            match message.status.map(|status| status.as_u16()) {
                None => {
                    missing -= 1;
                    take(OrderLease::new(self.bus.clone(), message));
                }
                // The end of an earlier request.
                Some(_) if *message.subject != *reply => {}
                Some(100) => {}
                Some(404 | 408) => return Ok(()),
                Some(status) => {
                    return Err(self.pull_fault(message.description.unwrap_or_else(|| status.to_string())));
                }
            }
        }
        Ok(())
    }

    async fn request_orders(&mut self, wanted: usize) -> Result<String, Fault> {
        self.requests += 1;
        let reply = format!("{}.{}", self.inbox, self.requests);
        let request = format!(
            r#"{{"batch":{wanted},"expires":{},"idle_heartbeat":{}}}"#,
            EXPIRES.as_nanos(),
            HEARTBEAT.as_nanos()
        );
        self.bus
            .client()
            .publish_with_reply(self.next.clone(), reply.clone(), request.into())
            .await
            .map_err(|error| self.pull_fault(error))?;
        Ok(reply)
    }

    /// Stops requesting orders, and passes those already on their way to `take`. Takes two seconds at most.
    pub async fn close_and_take_late_orders(mut self, mut take: impl FnMut(OrderLease)) {
        if self.replies.drain().await.is_err() {
            return;
        }
        let mut rest = std::pin::pin!(tokio::time::sleep(RESPONSE_TIMEOUT));
        loop {
            tokio::select! {
                () = &mut rest => return,
                message = self.replies.next() => match message {
                    Some(message) if message.status.is_none() => {
                        take(OrderLease::new(self.bus.clone(), message));
                    }
                    Some(_) => {}
                    None => return,
                },
            }
        }
    }

    fn pull_fault(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
        Fault::unavailable(format!("pulling orders for {}", self.capability), cause)
    }
}

/// The result of looking up a queue.
enum QueueLookup {
    Exists,
    Missing,
    /// The queue has no leader at the moment.
    NoResponse,
}

async fn find_queue(bus: &Bus, capability: &Capability) -> Result<QueueLookup, Fault> {
    match tokio::time::timeout(POLL_TIMEOUT, has_queue(bus.request_context(), capability)).await {
        Ok(Ok(true)) => Ok(QueueLookup::Exists),
        Ok(Ok(false)) => Ok(QueueLookup::Missing),
        Ok(Err(fault)) if !fault.is_transient() => Err(fault),
        Ok(Err(_)) | Err(_) => Ok(QueueLookup::NoResponse),
    }
}
