//! The queues: orders that wait for a process with their capability. A queue is derived state: the supervisor publishes
//! a lost order again, and the journal makes a duplicate harmless. [`super::host`] pulls orders from queues.

use std::collections::{BTreeMap, BTreeSet};

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use futures::FutureExt;
use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject;
use millrace_protocol::wire::{MAX_INLINE, encode_body, encode_with_inline_body, encode_with_stored_body};
use millrace_protocol::work::Order;
use tracing::{debug, warn};

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::error::{fault_from_client_error, jetstream_error_code};
use crate::nats::provenance::{DeliveryPath, ID_HEADER, Provenance, new_id};
use crate::nats::publish::publish_to_stream;
use crate::nats::topology::{self, WORK};
use crate::ops::metrics::names::OFFERS;
use crate::work::queue_state;

/// The error code of the server for "the subject has a message already".
const SUBJECT_IS_TAKEN: ErrorCode = ErrorCode(10077);

/// The maximum number of known queues at which this process still creates queues for unregistered capabilities.
const MAX_QUEUES: usize = 256;
/// The metrics label of all other capabilities; no capability can have this name.
const OTHER: &str = "(other)";

/// The maximum number of orders that wait for acknowledgements.
const MAX_IN_FLIGHT: usize = 1_000;

/// Creates the queues of these capabilities where they do not exist. Called by supervisors.
pub fn ensure_queues<'a>(
    bus: &'a Bus,
    capabilities: &'a BTreeSet<Capability>,
) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        topology::ensure_queues(bus.request_context(), bus.settings(), capabilities).await?;
        bus.lock_created_queues().extend(capabilities.iter().cloned());
        Ok(())
    }
    .boxed()
}

/// Publishes orders to their queues, pipelined. An order that is already queued counts as published.
///
/// # Errors
/// Some orders could not be published: these orders, and the last fault.
pub async fn publish_orders(bus: &Bus, orders: Vec<Order>) -> Result<(), (Vec<Order>, Fault)> {
    let mut failed = Vec::new();
    let mut last_fault = None;
    let mut published = BTreeMap::<String, u32>::new();
    let mut remaining = orders.into_iter();
    loop {
        let batch: Vec<Order> = remaining.by_ref().take(MAX_IN_FLIGHT).collect();
        let results = join_all(batch.iter().map(|order| publish_order(bus, order))).await;
        for (order, result) in batch.into_iter().zip(results) {
            let is_new = match result {
                Ok(is_new) => is_new,
                Err(fault) => {
                    failed.push(order);
                    last_fault = Some(fault);
                    continue;
                }
            };
            let queue = order.work().queue_name(&order.capability);
            match published.get_mut(queue.as_str()) {
                Some(orders) => *orders += u32::from(is_new),
                None => drop(published.insert(queue.as_str().to_owned(), u32::from(is_new))),
            }
        }
        if remaining.len() == 0 {
            break;
        }
    }
    for (queue, orders) in published {
        if let Err(fault) = create_queue_once(bus, &queue).await {
            debug!(queue, %fault, "creating a queue failed; its orders wait");
        }
        if orders > 0 {
            OFFERS.with_labels(&[queue_metric_label(bus, &queue)]).add(orders.into());
        }
    }
    match last_fault {
        Some(fault) => Err((failed, fault)),
        None => Ok(()),
    }
}

/// Returns the metrics label of a queue. Clients can invent capability names, so unknown ones share a label.
fn queue_metric_label<'a>(bus: &Bus, queue: &'a str) -> &'a str {
    if bus.lock_created_queues().iter().any(|known| known.as_str() == queue) { queue } else { OTHER }
}

/// Creates the queue of a published order, once per process: the capability may have no worker yet, and an autoscaler
/// that starts one looks at the queue. Clients can invent capability names, so at most [`MAX_QUEUES`] queues are
/// created for unregistered ones.
async fn create_queue_once(bus: &Bus, queue: &str) -> Result<(), Fault> {
    let Ok(queue) = Capability::new(queue) else { return Ok(()) };
    let (exists, count) = {
        let queues = bus.lock_created_queues();
        (queues.contains(&queue), queues.len())
    };
    let is_built_in = [subject::CRITIC, subject::PLANNER].contains(&queue.as_str());
    if exists || (count >= MAX_QUEUES && !is_built_in) {
        return Ok(());
    }
    topology::ensure_queue(bus.request_context(), bus.settings(), &queue).await?;
    bus.lock_created_queues().insert(queue);
    Ok(())
}

/// Creates the consumer of a queue that holds orders and has no consumer, unless orders for the capability were never
/// meant to have a queue. Returns `true` if it was created.
pub async fn create_lost_queue(bus: &Bus, capability: &Capability) -> Result<bool, Fault> {
    let had_queue = bus.lock_created_queues().remove(capability);
    create_queue_once(bus, capability.as_str()).await?;
    Ok(had_queue)
}

/// Publishes an order. Returns `false` if its queue holds it already.
async fn publish_order(bus: &Bus, order: &Order) -> Result<bool, Fault> {
    let bytes = encode_body(order);
    let payload = if bytes.len() <= MAX_INLINE {
        encode_with_inline_body::<Order>(&bytes)
    } else {
        encode_with_stored_body::<Order>(bus.blobs().put_blob(&bytes).await?)
    };
    let subject = subject::order_subject(&order.run, &order.capability, &order.work());
    let mut headers = HeaderMap::new();
    headers.insert(ID_HEADER, new_id().as_str());
    match publish_to_stream(bus, subject, headers, payload.into()).await {
        Ok(_) => Ok(true),
        Err(error) if jetstream_error_code(&error) == Some(SUBJECT_IS_TAKEN) => Ok(false),
        Err(error) => Err(fault_from_client_error("publishing orders", error)),
    }
}

/// Removes one order from its queue, if it is there.
pub fn withdraw_order<'a>(
    bus: &'a Bus,
    run: &'a RunId,
    capability: &'a Capability,
    work: &'a Work,
) -> BoxFuture<'a, Result<(), Fault>> {
    async move { queue_state::remove_order(bus, &subject::order_subject(run, capability, work)).await }
        .boxed()
}

/// Removes all orders of a run from all queues, and publishes a stop for the run.
pub fn withdraw_orders_of_run<'a>(bus: &'a Bus, run: &'a RunId) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        // No consumer has a filter that contains this subject, so the server leaves the consumers' positions alone. A
        // purge of an exact subject would strand orders of other runs: see `queue_state::remove_order`.
        let filter = subject::order_subjects_of_run(run);
        let stream = bus
            .request_context()
            .get_stream_no_info(WORK)
            .await
            .map_err(|error| fault_from_client_error(WORK, error))?;
        let purged = stream.purge().filter(&filter).await;
        purged.map_err(|error| fault_from_client_error(&format!("removing orders {filter}"), error))?;
        publish_stop(bus, run, None).await
    }
    .boxed()
}

/// Publishes a stop: every process that works on the run, or on this piece of its work, cancels it. Delivery is at most
/// once; a process that misses the stop notices at its next lease renewal that the order was removed, or when it
/// appends to the journal.
pub async fn publish_stop(bus: &Bus, run: &RunId, work: Option<&Work>) -> Result<(), Fault> {
    let payload = rmp_serde::to_vec_named(&work).expect("work serialises to MessagePack");
    let mut headers = HeaderMap::new();
    headers.insert(ID_HEADER, new_id().as_str());
    bus.client()
        .publish_with_headers(subject::stop_subject(run), headers, payload.into())
        .await
        .map_err(|error| Fault::unavailable(format!("publishing a stop for run {run}"), error))
}

pub struct StopSubscription(async_nats::Subscriber);

impl StopSubscription {
    /// Subscribes to stops.
    pub async fn subscribe_to_stops(bus: &Bus) -> Result<Self, Fault> {
        let subscriber = bus
            .client()
            .subscribe(subject::ALL_STOPS)
            .await
            .map_err(|error| Fault::unavailable("subscribing to stops", error))?;
        Ok(Self(subscriber))
    }

    /// Returns the next stop: a run, and a piece of its work or `None` for all of it. Returns `None` when the
    /// connection is closed. Forged stops are ignored.
    pub async fn next_stop(&mut self) -> Option<(RunId, Option<Work>)> {
        loop {
            let message = self.0.next().await?;
            if Provenance::from_headers(message.headers.as_ref(), DeliveryPath::AsStored).is_forged() {
                warn!(subject = %message.subject, "ignoring forged stop (no Millrace-Id header)");
                continue;
            }
            let run = message.subject.strip_prefix("stop.").and_then(|run| RunId::new(run).ok());
            let work = millrace_protocol::wire::decode_message_pack(&message.payload, "a stop");
            match (run, work) {
                (Some(run), Ok(work)) => return Some((run, work)),
                (run, work) => warn!(?run, error = ?work.err(), "ignoring an invalid stop"),
            }
        }
    }
}
