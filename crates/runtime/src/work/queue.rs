//! The queues: orders that wait for a process with their capability. A queue is derived state: the supervisor publishes
//! a lost order again, and the journal makes a duplicate harmless. [`super::host`] pulls orders from queues.
//!
//! The state of all queues as the server reports it: which orders the stream holds, and how far each consumer is. Lane
//! owners compare it with their plans, because a queue can lose orders: an operator deletes messages or a consumer, a
//! server loses its newest writes, or a consumer counts orders as handled that nobody has acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{ErrorCode, consumer, stream};
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, StreamExt};
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject;
use millrace_protocol::wire::{MAX_INLINE, encode_body, encode_with_inline_body, encode_with_stored_body};
use millrace_protocol::work::Order;
use serde::Deserialize;
use serde_json::json;
use tracing::{debug, warn};

use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error, jetstream_error_code, response_fault};
use crate::nats::bus::Bus;
use crate::nats::publish::publish_to_stream;
use crate::nats::record::{DeliveryPath, ID_HEADER, Provenance, new_id};
use crate::nats::topology::{self, WORK};
use crate::ops::metrics::names::OFFERS;

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
/// Errors: some orders could not be published: these orders, and the last fault.
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
    async move { remove_order(bus, &subject::order_subject(run, capability, work)).await }.boxed()
}

/// Removes all orders of a run from all queues, and publishes a stop for the run.
pub fn withdraw_orders_of_run<'a>(bus: &'a Bus, run: &'a RunId) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        // No consumer has a filter that contains this subject, so the server leaves the consumers' positions alone. A
        // purge of an exact subject would strand orders of other runs: see `remove_order`.
        let filter = subject::order_subjects_of_run(run);
        let stream = bus.request_context().get_stream_no_info(WORK).await.or_fault(WORK)?;
        let purged = stream.purge().filter(&filter).await;
        purged.or_fault_with(|| format!("removing orders {filter}"))?;
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

/// The object of faults when the stream of all queues is read.
const THE_QUEUES: &str = "reading the state of the queues";
/// The timeout of one request: the state of a queue without a leader is unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The orders and the consumers of all queues, read one after the other: orders that arrive or are acknowledged
/// meanwhile may be in one and not in the other.
#[derive(Debug, Default)]
pub struct QueueSnapshot {
    /// The subjects of all orders in the stream, by run.
    pub orders: HashMap<RunId, HashSet<String>>,
    /// The consumer of each capability that has orders; `None` if it does not exist.
    pub consumers: BTreeMap<Capability, Option<ConsumerPosition>>,
    /// When the read began; `None` before the first one.
    pub read_from: Option<Instant>,
}

/// The position of the consumer of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerPosition {
    /// The number of its orders in the stream.
    pub orders: u64,
    /// The number of orders that it has not delivered.
    pub undelivered: u64,
    /// The number of orders that it has delivered and that are not acknowledged; it redelivers them.
    pub unacknowledged: u64,
    /// The highest sequence that it has delivered.
    pub delivered: u64,
    /// The sequence up to which all orders count as acknowledged.
    pub acknowledged: u64,
}

impl ConsumerPosition {
    /// `true` if the stream holds orders that the consumer will never deliver: it counts them as delivered and
    /// acknowledged. Such orders are stranded.
    pub fn has_stranded_orders(&self) -> bool {
        self.orders > self.undelivered + self.unacknowledged
    }
}

impl QueueSnapshot {
    /// Reads the state of all queues.
    /// Fails also if the stream of all queues does not exist ([`Fault::Unavailable`]).
    pub async fn read(bus: &Bus) -> Result<Self, Fault> {
        let read_from = Some(Instant::now());
        let mut orders: HashMap<RunId, HashSet<String>> = HashMap::new();
        let mut counts: BTreeMap<Capability, u64> = BTreeMap::new();
        for subject in read_subjects(bus).await? {
            if let Some((capability, run)) = subject::parse_order_subject(&subject) {
                *counts.entry(capability).or_default() += 1;
                orders.entry(run).or_default().insert(subject);
            }
        }
        let mut consumers = BTreeMap::new();
        for (capability, count) in counts {
            let position = read_consumer(bus, &capability, count).await?;
            consumers.insert(capability, position);
        }
        Ok(Self { orders, consumers, read_from })
    }
}

/// The part of a stream's state that lists its subjects, a page at a time.
#[derive(Deserialize)]
struct SubjectPage {
    #[serde(default)]
    total: usize,
    state: Subjects,
}

#[derive(Deserialize)]
struct Subjects {
    /// The number of messages per subject; missing if there are none.
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

async fn read_subjects(bus: &Bus) -> Result<HashSet<String>, Fault> {
    let mut subjects = HashSet::new();
    loop {
        let request = json!({ "subjects_filter": subject::ALL_ORDERS, "offset": subjects.len() });
        let response: Response<SubjectPage> = request_with_timeout(
            bus.request_context()
                .request(format!("STREAM.INFO.{WORK}"), &request)
                .map(|it| it.map_err(other)),
        )
        .await?;
        let page = match response {
            Response::Ok(page) => page,
            Response::Err { error } => return Err(response_fault(THE_QUEUES, error)),
        };
        let before = subjects.len();
        subjects.extend(page.state.subjects.unwrap_or_default().into_keys());
        if subjects.len() == before || subjects.len() >= page.total {
            return Ok(subjects);
        }
    }
}

/// Returns how far the consumer of a queue with this number of orders is; `None` if it does not exist.
async fn read_consumer(
    bus: &Bus,
    capability: &Capability,
    orders: u64,
) -> Result<Option<ConsumerPosition>, Fault> {
    let request = format!("CONSUMER.INFO.{WORK}.{capability}");
    let response: Response<consumer::Info> =
        request_with_timeout(bus.request_context().request(request, &json!({})).map(|it| it.map_err(other)))
            .await?;
    match response {
        Response::Ok(info) => Ok(Some(ConsumerPosition {
            orders,
            undelivered: info.num_pending,
            unacknowledged: u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX),
            delivered: info.delivered.stream_sequence,
            acknowledged: info.ack_floor.stream_sequence,
        })),
        Response::Err { error } if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND => Ok(None),
        Response::Err { error } => Err(response_fault(THE_QUEUES, error)),
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Fault {
    fault_from_client_error(THE_QUEUES, error)
}

async fn request_with_timeout<T>(request: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let late = |_| Err(Fault::unavailable(THE_QUEUES, "no answer in time"));
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(late)
}

/// Removes this order if its queue will never deliver it, and returns `true` then: its sequence is one that the consumer
/// counts as acknowledged, or, if `is_overdue`, as delivered.
pub fn remove_if_stranded<'a>(
    bus: &'a Bus,
    subject: &'a str,
    is_overdue: bool,
) -> BoxFuture<'a, Result<bool, Fault>> {
    async move {
        let Some((capability, _)) = subject::parse_order_subject(subject) else { return Ok(false) };
        // The sequence first: an order that is acknowledged in between is gone, and its removal does nothing.
        let Some(sequence) = find_order(bus, subject).await? else { return Ok(false) };
        let Some(position) = read_consumer(bus, &capability, 0).await? else { return Ok(false) };
        let is_stranded = sequence <= position.acknowledged || (is_overdue && sequence <= position.delivered);
        if is_stranded {
            remove_order(bus, subject).await?;
        }
        Ok(is_stranded)
    }
    .boxed()
}

/// Returns the sequence of the order on this subject; `None` if there is none.
pub fn find_order<'a>(bus: &'a Bus, subject: &'a str) -> BoxFuture<'a, Result<Option<u64>, Fault>> {
    async move {
        let stream = bus.request_context().get_stream_no_info(WORK).await.or_fault(WORK)?;
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message.sequence)),
            Err(error) if matches!(error.kind(), stream::LastRawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => Err(fault_from_client_error(&format!("looking up the order {subject}"), error)),
        }
    }
    .boxed()
}

/// Removes the order on this subject, if there is one. It deletes the message by its sequence: if the exact subject
/// were purged, the server (2.15.1) would move the consumer past orders of other tasks that are in flight, and never
/// redeliver them.
pub fn remove_order<'a>(bus: &'a Bus, subject: &'a str) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        let Some(sequence) = find_order(bus, subject).await? else { return Ok(()) };
        let what = || format!("removing the order {subject}");
        // Without `no_erase` the server overwrites the message on the disk, which rewrites its whole block.
        let request = json!({ "seq": sequence, "no_erase": true });
        let response: Response<DeleteResponse> = bus
            .request_context()
            .request(format!("STREAM.MSG.DELETE.{WORK}"), &request)
            .await
            .or_fault_with(what)?;
        match response {
            Response::Ok(_) => Ok(()),
            // The order was acknowledged meanwhile.
            Response::Err { .. } if find_order(bus, subject).await? != Some(sequence) => Ok(()),
            Response::Err { error } => Err(response_fault(&what(), error)),
        }
    }
    .boxed()
}

/// The answer to a deletion, which says nothing more.
#[derive(Deserialize)]
struct DeleteResponse {}
