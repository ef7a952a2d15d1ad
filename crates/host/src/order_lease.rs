//! The lease on one order that this process has pulled from a queue: reading the order, renewing the lease,
//! acknowledging the order, and giving it back.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::{self, response::Response};
use bytes::Bytes;
use millrace_protocol::ids::Capability;
use millrace_protocol::subject;
use millrace_protocol::work::Order;
use serde::Deserialize;
use serde_json::json;
use tracing::debug;

use millrace_runtime::nats::record::{
    DeliveryPath, Provenance, StreamRecord, encoding_from_headers, timestamp_from_nanoseconds,
};
use millrace_runtime::nats::topology::WORK;
use millrace_runtime::{Bus, Fault};

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
