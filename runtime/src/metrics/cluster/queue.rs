//! One queue as it stands.

use async_nats::jetstream::consumer;
use async_nats::jetstream::stream::DirectGetErrorKind;
use jiff::Timestamp;
use millrace_protocol::ids::Capability;
use millrace_protocol::subject;

use super::ask;
use crate::Fault;
use crate::bus::Bus;
use crate::record::timestamp;
use crate::topology::{WORK, fault};

/// A queue as it stands.
pub(super) struct Queue {
    pub capability: Capability,
    /// Orders that wait.
    pub pending: f64,
    /// Orders that are given out.
    pub in_hand: f64,
    /// Orders that were given out more than once.
    pub redelivered: f64,
    /// The age of the oldest order that is not done, in seconds; 0 if there is none.
    pub oldest: f64,
}

impl Queue {
    /// Reads how the queue of a capability stands; `None` if it has none yet.
    pub async fn read(bus: &Bus, capability: &Capability) -> Result<Option<Self>, Fault> {
        let question = format!("CONSUMER.INFO.{WORK}.{capability}");
        let Some(info) = ask::<consumer::Info>(bus, question).await? else { return Ok(None) };
        let oldest = match (info.num_pending, info.num_ack_pending) {
            (0, 0) => None,
            (_, _) => oldest(bus, capability, info.ack_floor.stream_sequence + 1).await?,
        };
        Ok(Some(Self {
            capability: capability.clone(),
            pending: info.num_pending as f64,
            in_hand: info.num_ack_pending as f64,
            redelivered: info.num_redelivered as f64,
            oldest: oldest.map_or(0.0, |at| Timestamp::now().duration_since(at).as_secs_f64().max(0.0)),
        }))
    }
}

/// When the first order of a capability from sequence `from` on was put in the stream; `None` if there is none.
async fn oldest(bus: &Bus, capability: &Capability, from: u64) -> Result<Option<Timestamp>, Fault> {
    let what = || format!("looking for the oldest order for {capability}");
    let stream = bus.control().get_stream_no_info(WORK).await.map_err(|error| fault(&what(), &error))?;
    match stream.direct_get_next_for_subject(subject::orders_for(capability), Some(from)).await {
        Ok(order) => Ok(Some(timestamp(order.time.unix_timestamp_nanos()))),
        Err(error) => match error.kind() {
            DirectGetErrorKind::NotFound => Ok(None),
            DirectGetErrorKind::InvalidSubject
            | DirectGetErrorKind::TimedOut
            | DirectGetErrorKind::Request
            | DirectGetErrorKind::ErrorResponse(_, _)
            | DirectGetErrorKind::Other => Err(fault(&what(), &error)),
        },
    }
}
