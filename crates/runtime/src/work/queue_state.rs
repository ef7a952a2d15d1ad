//! The state of all queues as the server reports it: which orders the stream holds, and how far each consumer is. Lane
//! owners compare it with their plans, because a queue can lose orders: an operator deletes messages or a consumer, a
//! server loses its newest writes, or a consumer counts orders as handled that nobody has acknowledged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{ErrorCode, stream};
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::subject;
use serde::Deserialize;
use serde_json::json;

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::error::{fault_from_client_error, response_fault};
use crate::nats::topology::WORK;

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

/// How far the consumer of a queue is.
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
    ///
    /// # Errors
    /// The server does not respond, or the stream of all queues does not exist ([`Fault::Unavailable`]).
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
        let stream = bus
            .request_context()
            .get_stream_no_info(WORK)
            .await
            .map_err(|error| fault_from_client_error(WORK, error))?;
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
            .map_err(|error| fault_from_client_error(&what(), error))?;
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
