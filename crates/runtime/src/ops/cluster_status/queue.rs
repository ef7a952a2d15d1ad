//! The state of one queue.

use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::jetstream::stream::DirectGetErrorKind;
use jiff::Timestamp;
use millrace_protocol::ids::Capability;
use millrace_protocol::subject;

use super::request_state;
use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::error::fault_from_client_error;
use crate::nats::record::timestamp_from_nanoseconds;
use crate::nats::topology::WORK;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueState {
    pub capability: Capability,
    /// Pending orders.
    pub pending: u64,
    /// Delivered orders that are not acknowledged.
    pub in_progress: u64,
    /// Orders that were delivered more than once and are not acknowledged.
    pub redelivered: u64,
    /// When the oldest order was stored; `None` if there is none.
    pub oldest_at: Option<Timestamp>,
}

impl QueueState {
    /// The age of the oldest order; zero if there is none.
    pub fn oldest_age(&self) -> Duration {
        let age = self.oldest_at.map(|at| Timestamp::now().duration_since(at));
        age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
    }

    /// Reads the state of a capability's queue; `None` if it has none yet.
    pub(super) async fn read_queue_state(bus: &Bus, capability: &Capability) -> Result<Option<Self>, Fault> {
        let subject = format!("CONSUMER.INFO.{WORK}.{capability}");
        let Some(info) = request_state::<consumer::Info>(bus, subject).await? else { return Ok(None) };
        let oldest = match (info.num_pending, info.num_ack_pending) {
            (0, 0) => None,
            (_, _) => oldest_order_time(bus, capability, info.ack_floor.stream_sequence + 1).await?,
        };
        Ok(Some(Self {
            capability: capability.clone(),
            pending: info.num_pending,
            in_progress: info.num_ack_pending as u64,
            redelivered: info.num_redelivered as u64,
            oldest_at: oldest,
        }))
    }
}

/// Returns when the first order of a capability from sequence `from` on was stored; `None` if there is none.
async fn oldest_order_time(
    bus: &Bus,
    capability: &Capability,
    from: u64,
) -> Result<Option<Timestamp>, Fault> {
    let what = || format!("reading the oldest order of {capability}");
    let stream = bus
        .request_context()
        .get_stream_no_info(WORK)
        .await
        .map_err(|error| fault_from_client_error(&what(), error))?;
    match stream
        .direct_get_next_for_subject(subject::order_subjects_of_capability(capability), Some(from))
        .await
    {
        Ok(order) => Ok(Some(timestamp_from_nanoseconds(order.time.unix_timestamp_nanos()))),
        Err(error) => match error.kind() {
            DirectGetErrorKind::NotFound => Ok(None),
            DirectGetErrorKind::InvalidSubject
            | DirectGetErrorKind::TimedOut
            | DirectGetErrorKind::Request
            | DirectGetErrorKind::ErrorResponse(_, _)
            | DirectGetErrorKind::Other => Err(fault_from_client_error(&what(), error)),
        },
    }
}
