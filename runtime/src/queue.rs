//! The queues: orders that wait for whoever offers their capability. A queue is derived state; an order that is lost
//! is offered again by the supervisor, and one that is there twice meets a journal that says so. Orders are taken out
//! by [`crate::host`].

use std::collections::{BTreeMap, BTreeSet};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, ErrorCode, message::PublishMessage};
use futures::FutureExt;
use futures::StreamExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject;
use millrace_protocol::wire::{MAX_INLINE, body, seal, seal_stored};
use millrace_protocol::work::Order;
use tracing::{debug, warn};

use crate::Fault;
use crate::bus::Bus;
use crate::metrics::names::OFFERS;
use crate::record::{ID_HEADER, is_stray, made_id};
use crate::topology::{self, WORK, code, fault};

/// The code of "there is a message on this subject already".
const SUBJECT_IS_TAKEN: ErrorCode = ErrorCode(10077);

/// How many queues this process knows at the most when it makes another for work that nobody offers yet.
const MAX_MADE: usize = 256;
/// What the work of all others is counted under; no capability has such a name.
const OTHER: &str = "(other)";

/// How many orders are on their way at once: well below what the connection lets wait for acknowledgements.
const CHUNK: usize = 1_000;

/// Makes sure that these capabilities have their queues. For supervisors.
///
/// # Errors
/// The server does not answer, or what is there differs.
pub fn ensure<'a>(bus: &'a Bus, capabilities: &'a BTreeSet<Capability>) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        topology::ensure_queues(bus.control(), bus.settings(), capabilities).await?;
        bus.queues().extend(capabilities.iter().cloned());
        Ok(())
    }
    .boxed()
}

/// Puts orders in their queues, pipelined. One that waits there already counts as put. Gives back those that could
/// not be put, with the last reason.
pub async fn offer(bus: &Bus, orders: Vec<Order>) -> Result<(), (Vec<Order>, Fault)> {
    let mut failed = Vec::new();
    let mut reason = None;
    let mut put = BTreeMap::<String, u32>::new();
    let mut waiting = orders.into_iter();
    loop {
        let mut under_way = Vec::with_capacity(CHUNK.min(waiting.len()));
        for order in waiting.by_ref().take(CHUNK) {
            match send(bus, &order).await {
                Ok(acknowledgement) => under_way.push((order, acknowledgement)),
                Err(fault) => {
                    failed.push(order);
                    reason = Some(fault);
                }
            }
        }
        for (order, acknowledgement) in under_way {
            let is_new = match acknowledgement.await {
                Ok(_) => true,
                Err(error) if code(&error) == Some(SUBJECT_IS_TAKEN) => false,
                Err(error) => {
                    failed.push(order);
                    reason = Some(fault("offering work", &error));
                    continue;
                }
            };
            let queue = subject::queue(&order.capability, &order.work);
            match put.get_mut(queue) {
                Some(orders) => *orders += u32::from(is_new),
                None => drop(put.insert(queue.to_owned(), u32::from(is_new))),
            }
        }
        if waiting.len() == 0 {
            break;
        }
    }
    for (queue, orders) in put {
        if let Err(fault) = make_once(bus, &queue).await {
            debug!(queue, %fault, "could not make a queue; the orders wait for it");
        }
        if orders > 0 {
            OFFERS.tally(&[label(bus, &queue)]).add(orders.into());
        }
    }
    match reason {
        Some(reason) => Err((failed, reason)),
        None => Ok(()),
    }
}

/// Under which name orders are counted: anybody may make up names, and a page has no room for all.
fn label<'a>(bus: &Bus, queue: &'a str) -> &'a str {
    if bus.queues().iter().any(|made| made.as_str() == queue) { queue } else { OTHER }
}

/// Makes the queue of what was put in its place, the first time that this process does: nobody may have said yet that it
/// offers the capability, and whoever is to start somebody that does looks at the queue. Names may be made up, so not
/// more than [`MAX_MADE`] are made for what nobody offers.
async fn make_once(bus: &Bus, queue: &str) -> Result<(), Fault> {
    let Ok(queue) = Capability::new(queue) else { return Ok(()) };
    let (is_made, count) = {
        let queues = bus.queues();
        (queues.contains(&queue), queues.len())
    };
    let is_ours = [subject::CRITIC, subject::PLANNER].contains(&queue.as_str());
    if is_made || (count >= MAX_MADE && !is_ours) {
        return Ok(());
    }
    topology::ensure_queue(bus.control(), bus.settings(), &queue).await?;
    bus.queues().insert(queue);
    Ok(())
}

async fn send(bus: &Bus, order: &Order) -> Result<jetstream::context::PublishAckFuture, Fault> {
    let bytes = body(order);
    let payload = if bytes.len() <= MAX_INLINE {
        seal::<Order>(&bytes)
    } else {
        seal_stored::<Order>(bus.blobs().put(&bytes).await?)
    };
    let subject = subject::order(&order.run, &order.capability, &order.work);
    let publish = PublishMessage::build().payload(payload.into()).header(ID_HEADER, made_id().as_str());
    let sent = bus.publisher().send_publish(subject.clone(), publish).await;
    sent.map_err(|error| fault(&format!("offering {subject}"), &error))
}

/// Takes one order out of its queue, if it waits there.
///
/// # Errors
/// The server does not answer.
pub fn withdraw<'a>(
    bus: &'a Bus,
    run: &'a RunId,
    capability: &'a Capability,
    work: &'a Work,
) -> BoxFuture<'a, Result<(), Fault>> {
    async move { purge(bus, &subject::order(run, capability, work)).await }.boxed()
}

/// Takes all orders of a run out of all queues, and tells whoever works on one to stop.
///
/// # Errors
/// The server does not answer.
pub fn clear<'a>(bus: &'a Bus, run: &'a RunId) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        purge(bus, &subject::orders_of(run)).await?;
        stop(bus, run, None).await
    }
    .boxed()
}

/// Tells whoever works on a run, or on one piece of its work, to stop. May be missed: who missed it finds out when
/// it next renews its lease and the order is not in the queue any more, or writes to its journal.
///
/// # Errors
/// The connection is closed.
pub async fn stop(bus: &Bus, run: &RunId, work: Option<&Work>) -> Result<(), Fault> {
    let payload = rmp_serde::to_vec_named(&work).expect("work has a form in MessagePack");
    let mut headers = HeaderMap::new();
    headers.insert(ID_HEADER, made_id().as_str());
    bus.client()
        .publish_with_headers(subject::stop(run), headers, payload.into())
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

    /// The next stop; `None` when the connection is closed. What nobody said here, and only an answer of the server
    /// was sent to, stops nothing; neither does a stop of 0.3, which has no id: its worker finds out as if it had missed
    /// it.
    pub async fn next(&mut self) -> Option<(RunId, Option<Work>)> {
        loop {
            let message = self.0.next().await?;
            if is_stray(message.headers.as_ref(), 0) {
                warn!(subject = %message.subject, "a stop that nobody wrote is passed over");
                continue;
            }
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
