//! The queues: orders that wait for whoever offers their capability. A queue is derived state; an order that is lost
//! is offered again by the supervisor, and one that is there twice meets a journal that says so.

use std::time::Duration;

use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::{self, AckKind, message::PublishMessage};
use futures::StreamExt;
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject;
use millrace_protocol::wire::{MAX_INLINE, body, seal, seal_stored};
use millrace_protocol::work::Order;
use tracing::{debug, warn};

use crate::Fault;
use crate::bus::{Bus, Record, encoding};
use crate::topology::{WORK, ensure_queue, fault};

/// How long one request for orders stands.
const EXPIRES: Duration = Duration::from_secs(5);
/// The code of "there is a message on this subject already".
const SUBJECT_IS_TAKEN: u64 = 10077;

/// Puts orders in their queues, pipelined. One that waits there already counts as put. Gives back those that could
/// not be put, with the last reason.
pub async fn offer(bus: &Bus, orders: Vec<Order>) -> Result<(), (Vec<Order>, Fault)> {
    let mut under_way = Vec::with_capacity(orders.len());
    let mut failed = Vec::new();
    let mut reason = None;
    for order in orders {
        match send(bus, &order).await {
            Ok(acknowledgement) => under_way.push((order, acknowledgement)),
            Err(fault) => {
                failed.push(order);
                reason = Some(fault);
            }
        }
    }
    for (order, acknowledgement) in under_way {
        match acknowledgement.await {
            Ok(_) => {}
            Err(error) if code(&error) == Some(SUBJECT_IS_TAKEN) => {}
            Err(error) => {
                failed.push(order);
                reason = Some(fault("offering work", &error));
            }
        }
    }
    match reason {
        Some(reason) => Err((failed, reason)),
        None => Ok(()),
    }
}

async fn send(bus: &Bus, order: &Order) -> Result<jetstream::context::PublishAckFuture, Fault> {
    let bytes = body(order);
    let payload = if bytes.len() <= MAX_INLINE {
        seal::<Order>(&bytes)
    } else {
        seal_stored::<Order>(bus.blobs().put(&bytes).await?)
    };
    let subject = subject::order(&order.run, &order.capability, &order.work);
    let publish = PublishMessage::build().payload(payload.into());
    let sent = bus.publisher().send_publish(subject.clone(), publish).await;
    sent.map_err(|error| fault(&format!("offering {subject}"), &error))
}

fn code(error: &(dyn std::error::Error + 'static)) -> Option<u64> {
    let mut cause = Some(error);
    while let Some(at) = cause {
        if let Some(error) = at.downcast_ref::<jetstream::Error>() {
            return Some(error.error_code().0);
        }
        cause = at.source();
    }
    None
}

/// Takes one order out of its queue, if it waits there.
///
/// # Errors
/// The server does not answer.
pub async fn withdraw(bus: &Bus, run: &RunId, capability: &Capability, work: &Work) -> Result<(), Fault> {
    purge(bus, &subject::order(run, capability, work)).await
}

/// Takes all orders of a run out of all queues, and tells whoever works on one to stop.
///
/// # Errors
/// The server does not answer.
pub async fn clear(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    purge(bus, &subject::orders_of(run)).await?;
    stop(bus, run, None).await
}

/// Tells whoever works on a run, or on one piece of its work, to stop. May be missed: who missed it finds out when
/// it next writes to its journal.
///
/// # Errors
/// The connection is closed.
pub async fn stop(bus: &Bus, run: &RunId, work: Option<&Work>) -> Result<(), Fault> {
    let payload = rmp_serde::to_vec_named(&work).expect("work has a form in MessagePack");
    bus.client()
        .publish(subject::stop(run), payload.into())
        .await
        .map_err(|error| Fault::unavailable(format!("stopping run {run}"), error))
}

/// What [`stop`] said: the run, and the piece of work or all of it.
pub struct Stops(async_nats::Subscriber);

impl Stops {
    /// Listens to what is stopped.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn listen(bus: &Bus) -> Result<Self, Fault> {
        let subscriber = bus
            .client()
            .subscribe(subject::ALL_STOPS)
            .await
            .map_err(|error| Fault::unavailable("listening to stops", error))?;
        Ok(Self(subscriber))
    }

    /// The next stop; `None` when the connection is closed.
    pub async fn next(&mut self) -> Option<(RunId, Option<Work>)> {
        loop {
            let message = self.0.next().await?;
            let run = message.subject.strip_prefix("stop.").and_then(|run| RunId::new(run).ok());
            let work = millrace_protocol::wire::read(&message.payload, "a stop");
            match (run, work) {
                (Some(run), Ok(work)) => return Some((run, work)),
                (run, work) => warn!(?run, error = ?work.err(), "a stop that can't be read is passed over"),
            }
        }
    }
}

async fn purge(bus: &Bus, filter: &str) -> Result<(), Fault> {
    let stream = bus.control().get_stream_no_info(WORK).await.map_err(|error| fault(WORK, &error))?;
    stream
        .purge()
        .filter(filter)
        .await
        .map(|_| ())
        .map_err(|error| fault(&format!("withdrawing {filter}"), &error))
}

/// The end of a queue from which a worker takes orders.
pub struct Puller {
    consumer: Consumer<pull::Config>,
}

impl Puller {
    /// Opens the queue of a capability, making it if need be.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn open(bus: &Bus, capability: &Capability) -> Result<Self, Fault> {
        let consumer = ensure_queue(bus.control(), bus.settings(), capability).await?;
        Ok(Self { consumer })
    }

    /// Asks for at most `free` orders, and hands each to `take` as it comes. Returns when that many came, or after
    /// five seconds.
    ///
    /// One request with an end, never a standing stream: those fetch ahead and starve other workers.
    ///
    /// # Errors
    /// The server does not answer or lost the queue: open it again.
    pub async fn pull(&self, free: usize, mut take: impl FnMut(Lease)) -> Result<(), Fault> {
        let mut batch = self
            .consumer
            .batch()
            .max_messages(free)
            .expires(EXPIRES)
            .heartbeat(Duration::from_secs(1))
            .messages()
            .await
            .map_err(|error| fault("asking for work", &error))?;
        while let Some(message) = batch.next().await {
            match message {
                Ok(message) => take(Lease { message }),
                Err(error) => return Err(Fault::unavailable("waiting for work", error)),
            }
        }
        Ok(())
    }
}

/// An order that we hold: ours until its lease runs out, is renewed, or it is done.
pub struct Lease {
    message: jetstream::Message,
}

impl Lease {
    /// Reads the order.
    ///
    /// # Errors
    /// It is no order, or its body can't be had.
    pub async fn order(&self, bus: &Bus) -> Result<Order, Fault> {
        let record = Record {
            sequence: 0,
            subject: self.message.subject.clone(),
            payload: self.message.payload.clone(),
            encoding: encoding(self.message.headers.as_ref()),
            time: jiff::Timestamp::UNIX_EPOCH,
            is_deletion: false,
        };
        bus.open::<Order>(&record).await
    }

    /// The subject that the order came on.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.message.subject
    }

    /// The work is done, or never will be: the order leaves the queue. Not waited for; a lost one comes again and
    /// meets the journal.
    pub async fn done(&self) {
        self.acknowledge(AckKind::Ack).await;
    }

    /// The work goes on: the lease begins anew.
    pub async fn renew(&self) {
        self.acknowledge(AckKind::Progress).await;
    }

    /// Somebody else may have it, after a while.
    pub async fn give_back(&self, after: Duration) {
        self.acknowledge(AckKind::Nak(Some(after))).await;
    }

    async fn acknowledge(&self, kind: AckKind) {
        if let Err(error) = self.message.ack_with(kind).await {
            debug!(subject = %self.message.subject, %error, "an acknowledgement was lost");
        }
    }
}
