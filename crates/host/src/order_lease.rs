//! The lease on one order that this process has pulled from a queue: reading the order, renewing the lease,
//! acknowledging the order, and giving it back.
//!
//! Detects stale orders, whose decision is not in the log. After a power loss, a server may have an order and not the decision
//! behind it. The inputs, objective or limits of such an order may be wrong, and its sequences may refer to other messages.
//!
//! Only orders that were in the queues when this process connected to its server are checked: a supervisor that publishes
//! later has read the log that this server has.
//!
//! # Invariants
//!
//! - I75: After a power loss a run continues from the remaining messages of each stream, or reports what is missing: an order
//!   whose decision was lost is discarded, no task reads another message in place of an input, and queues that lost their newest
//!   orders deliver all orders of the plans.
//!   (`tests/tests/queues/power_loss.rs::run_continues_after_a_power_loss_or_says_why_not`,
//!   `tests/tests/queues/power_loss.rs::orders_are_delivered_after_the_queues_have_lost_their_end`,
//!   `tests/tests/queues/power_loss.rs::order_of_a_lost_decision_is_discarded`,
//!   `worker/tests/worker.rs::an_input_that_another_message_has_replaced_is_not_read`)

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream;
use async_nats::jetstream::response::Response;
use bytes::Bytes;
use millrace_protocol::ids::{Capability, Lane, RunId};
use millrace_protocol::plan::Decision;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::{DecisionId, Order};
use millrace_runtime::fault::response_fault;
use millrace_runtime::log::read_message;
use millrace_runtime::nats::record::{
    DeliveryPath, Provenance, StreamRecord, encoding_from_headers, timestamp_from_nanoseconds,
};
use millrace_runtime::nats::topology::WORK;
use millrace_runtime::{Bus, Fault};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;
use tracing::debug;

/// The longest wait for the confirmation that an order was removed.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(2);

/// The lease on an order that this process has pulled. It expires unless it is renewed.
pub(crate) struct OrderLease {
    bus: Bus,
    message: Message,
    delivery: Option<OrderDelivery>,
}

/// The delivery of an order, as the server reports it.
#[derive(Clone, Copy)]
struct OrderDelivery {
    /// The sequence of the order in its stream.
    sequence: u64,
    /// The number of deliveries, this one included.
    deliveries: i64,
    /// When the order was published.
    published: jiff::Timestamp,
}

impl OrderDelivery {
    /// Reads the address for acknowledgements; `None` if it is not that of a JetStream consumer.
    fn of(bus: &Bus, message: &Message) -> Option<Self> {
        let message = jetstream::Message { message: message.clone(), context: bus.request_context().clone() };
        let info = message.info().ok()?;
        Some(Self {
            sequence: info.stream_sequence,
            deliveries: info.delivered,
            published: timestamp_from_nanoseconds(info.published.unix_timestamp_nanos()),
        })
    }
}

impl OrderLease {
    pub fn new(bus: Bus, message: Message) -> Self {
        let delivery = OrderDelivery::of(&bus, &message);
        Self { bus, message, delivery }
    }

    /// Decodes the order.
    ///
    /// # Errors
    /// The order is invalid or forged, or its body can't be read.
    pub async fn decode_order(&self) -> Result<Order, Fault> {
        let record = StreamRecord {
            sequence: 0,
            subject: self.message.subject.clone(),
            payload: self.message.payload.clone(),
            encoding: encoding_from_headers(self.message.headers.as_ref()),
            time: jiff::Timestamp::UNIX_EPOCH,
            is_deletion: false,
            provenance: Provenance::from_headers(self.message.headers.as_ref(), DeliveryPath::AsStored),
        };
        let order = self.bus.decode_record::<Order>(&record).await?;
        check_order_address(&self.bus, &order, self.subject())?;
        Ok(order)
    }

    /// Returns the subject of the order.
    pub fn subject(&self) -> &str {
        &self.message.subject
    }

    /// `true` if the order belongs to the queue of this capability. After a power loss the server uses sequences a second time,
    /// and a consumer redelivers whatever has the sequence of an order that it had delivered before: this may be an order of
    /// another queue.
    pub fn is_of_queue(&self, capability: &Capability) -> bool {
        self.subject().split('.').nth(1) == Some(capability.as_str())
    }

    /// Returns the sequence of the order in its stream; 0 if the server does not name it.
    pub fn sequence(&self) -> u64 {
        self.delivery.map_or(0, |delivery| delivery.sequence)
    }

    /// `true` if the queue has delivered the order before.
    pub fn is_redelivery(&self) -> bool {
        self.delivery.is_some_and(|delivery| delivery.deliveries > 1)
    }

    /// Acknowledges the order, which removes it from the queue. Does not wait for the server: if the acknowledgement is
    /// lost, the order is redelivered, and the journal shows that it is done.
    pub async fn acknowledge_order(&self) {
        self.send_ack(Bytes::from_static(b"+ACK")).await;
    }

    /// Like [`Self::acknowledge_order`], and waits until the order is removed, but not for long: an order that is removed later
    /// may take the place of the next one, which is then published again.
    pub async fn acknowledge_and_confirm(&self) {
        let Some(reply) = self.message.reply.clone() else { return };
        let confirmed = self.bus.client().request(reply, Bytes::from_static(b"+ACK"));
        match tokio::time::timeout(CONFIRMATION_TIMEOUT, confirmed).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                debug!(subject = self.subject(), %error, "an acknowledgement was not confirmed")
            }
            Err(_) => debug!(subject = self.subject(), "an acknowledgement was not confirmed in time"),
        }
    }

    pub async fn renew_lease(&self) {
        self.send_ack(Bytes::from_static(b"+WPI")).await;
    }

    /// Returns `true` if the order is no longer in the queue: it was withdrawn, or another process has acknowledged it.
    /// A queue that was created after the order was published does not count.
    pub async fn is_order_gone(&self) -> Result<bool, Fault> {
        let what = || format!("checking the queue for {}", self.subject());
        let no_delivery = || Fault::unavailable(what(), "it was not delivered by a JetStream consumer");
        let published = self.delivery.ok_or_else(no_delivery)?.published;
        let request = json!({ "subjects_filter": self.subject() });
        let response: Response<QueueStreamInfo> = self
            .bus
            .request_context()
            .request(format!("STREAM.INFO.{WORK}"), &request)
            .await
            .map_err(|error| Fault::unavailable(what(), error))?;
        match response {
            Response::Ok(state) => Ok(state.created <= published && !state.contains_subject(self.subject())),
            Response::Err { error } => Err(Fault::unavailable(what(), error)),
        }
    }

    /// Returns the order to the queue, which redelivers it after a delay.
    pub async fn release_order(&self, delay: Duration) {
        let kind = if delay.is_zero() {
            Bytes::from_static(b"-NAK")
        } else {
            format!(r#"-NAK {{"delay":{}}}"#, delay.as_nanos()).into()
        };
        self.send_ack(kind).await;
    }

    async fn send_ack(&self, kind: Bytes) {
        let Some(reply) = self.message.reply.clone() else { return };
        if let Err(error) = self.bus.client().publish(reply, kind).await {
            debug!(subject = self.subject(), %error, "sending an acknowledgement failed");
        }
    }
}

/// The state of the stream of all queues, as far as it is needed.
#[derive(Deserialize)]
struct QueueStreamInfo {
    created: jiff::Timestamp,
    state: SubjectMessageCounts,
}

#[derive(Deserialize)]
struct SubjectMessageCounts {
    /// The number of messages per subject; missing if there are none.
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

impl QueueStreamInfo {
    fn contains_subject(&self, subject: &str) -> bool {
        self.state.subjects.as_ref().is_some_and(|subjects| subjects.contains_key(subject))
    }
}

/// Checks that an order belongs to its subject and its lane.
fn check_order_address(bus: &Bus, order: &Order, subject: &str) -> Result<(), Fault> {
    let invalid = |why: String| Fault::InvalidMessage {
        subject: subject.to_owned(),
        sequence: 0,
        error: millrace_protocol::wire::DecodeError::Unreadable { what: "the order".into(), why },
    };
    let expected = subject::order_subject(&order.run, &order.capability, &order.work());
    if expected != subject {
        return Err(invalid(format!("its subject must be {expected}")));
    }
    if order.lane != bus.lane_of_run(&order.run) {
        let why = format!("run {} is in lane {}, not {}", order.run, bus.lane_of_run(&order.run), order.lane);
        return Err(invalid(why));
    }
    Ok(())
}

/// The maximum number of decisions that are remembered; beyond it they are read again.
const MAX_REMEMBERED: usize = 10_000;

/// Checks whether orders are stale.
#[derive(Default)]
pub(crate) struct OrderCheck(Mutex<ServerOrders>);

/// The orders of the server to which this process is connected.
#[derive(Default)]
struct ServerOrders {
    /// The id of the server; a restarted server has another one.
    server: String,
    /// The last sequence in the queues when the first order after the connection arrived.
    last_old_sequence: u64,
    /// Decisions that were found in the log.
    found: HashSet<(Lane, RunId, DecisionId)>,
}

impl OrderCheck {
    /// Returns `true` if the log does not contain the decision that this order names. `sequence` is the sequence of the order
    /// in its stream.
    pub async fn is_stale(&self, bus: &Bus, order: &Order, sequence: u64) -> Result<bool, Fault> {
        let Some(decided) = order.decided else { return Ok(false) };
        let mut orders = self.0.lock().await;
        let server = bus.client().server_info().server_id;
        if orders.server != server {
            let last_old_sequence = read_last_sequence(bus).await?;
            *orders = ServerOrders { server, last_old_sequence, found: HashSet::new() };
        }
        let key = (order.lane, order.run.clone(), decided);
        if sequence > orders.last_old_sequence || orders.found.contains(&key) {
            return Ok(false);
        }
        let is_in_log = has_decision(bus, order.lane, &order.run, decided).await?;
        if is_in_log && orders.found.len() < MAX_REMEMBERED {
            orders.found.insert(key);
        }
        Ok(!is_in_log)
    }
}

/// The state of the stream of all queues, as far as it is needed.
#[derive(Deserialize)]
struct StreamInfo {
    state: StreamPosition,
}

#[derive(Deserialize)]
struct StreamPosition {
    last_seq: u64,
}

async fn read_last_sequence(bus: &Bus) -> Result<u64, Fault> {
    const WHAT: &str = "reading the state of the queues";
    let response: Response<StreamInfo> = bus
        .request_context()
        .request(format!("STREAM.INFO.{WORK}"), &json!({}))
        .await
        .map_err(|error| Fault::unavailable(WHAT, error))?;
    match response {
        Response::Ok(info) => Ok(info.state.last_seq),
        Response::Err { error } => Err(response_fault(WHAT, error)),
    }
}

/// `true` if the log contains this decision of the run. A decision that this program can't decode counts as contained.
async fn has_decision(bus: &Bus, lane: Lane, run: &RunId, id: DecisionId) -> Result<bool, Fault> {
    let Some(record) = read_message(bus, lane, id.sequence).await? else { return Ok(false) };
    if record.is_forged() || *record.subject != subject::topic_subject(lane, run, &Topic::Plan) {
        return Ok(false);
    }
    match bus.decode_record::<Decision>(&record).await {
        Ok(decision) => Ok(decision.at == id.at),
        Err(fault) if fault.is_transient() => Err(fault),
        Err(_) => Ok(true),
    }
}
