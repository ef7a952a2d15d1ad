//! The places of waiting work in the queues, for persons who ask why nothing happens. It only reads.
//!
//! A place is the number of orders of the same capability that were published before and that no worker has taken. An order that its
//! lane owner holds back, because the run has its share of the queue, comes after all that are in the queue.

use std::collections::{BTreeMap, HashMap, HashSet};

use futures::StreamExt;
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject::{order_subject, order_subjects_of_capability};

use super::registry;
use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::direct_get::{count_subjects_before, read_last_of_subject};
use crate::nats::topology::WORK;
use crate::ops::cluster_status::{CapabilitySlots, QueueState, read_queues, slots_by_capability};

/// The maximum number of places that one read finds: each costs requests to the server. The others have slots, but no place.
const MAX_PLACES: usize = 100;
/// The maximum number of concurrent requests.
const MAX_REQUESTS: usize = 8;

/// Work that waits for a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaitingWork {
    pub run: RunId,
    /// The capability in whose queue it is.
    pub capability: Capability,
    pub work: Work,
}

impl WaitingWork {
    fn subject(&self) -> String {
        order_subject(&self.run, &self.capability, &self.work)
    }
}

/// The place of waiting work in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceInQueue {
    /// The number of orders before it; `None` if it was not counted.
    pub behind: Option<u64>,
    /// The slots of its capability in all processes.
    pub slots: CapabilitySlots,
}

/// The places of waiting work, by the work.
pub type PlacesInQueue = HashMap<WaitingWork, PlaceInQueue>;

/// Reads the places of waiting work.
pub async fn read_places(bus: &Bus, waiting: Vec<WaitingWork>) -> Result<PlacesInQueue, Fault> {
    if waiting.is_empty() {
        return Ok(PlacesInQueue::new());
    }
    let capabilities = waiting.iter().map(|one| one.capability.clone()).collect();
    let heartbeats = registry::read_received_heartbeats(bus).await?;
    let heartbeats: Vec<_> = heartbeats.into_iter().map(|received| received.heartbeat).collect();
    let slots = slots_by_capability(&heartbeats, &capabilities);
    let queues = read_queues(bus, capabilities).await?.into_iter();
    let queues: BTreeMap<Capability, QueueState> =
        queues.map(|queue| (queue.capability.clone(), queue)).collect();
    let counted: HashSet<WaitingWork> = waiting.iter().take(MAX_PLACES).cloned().collect();
    let places = futures::stream::iter(waiting).map(async |one| {
        let queue = queues.get(&one.capability);
        let behind = match queue {
            Some(queue) if counted.contains(&one) => count_orders_before(bus, &one, queue).await?,
            Some(_) | None => None,
        };
        let mut slots = slots.get(&one.capability).copied().unwrap_or_default();
        // Heartbeats are seconds old.
        let taken = queue.map_or(0, |queue| u32::try_from(queue.in_progress).unwrap_or(u32::MAX));
        slots.busy = slots.busy.max(taken.min(slots.total));
        Ok((one, PlaceInQueue { behind, slots }))
    });
    let places: Vec<Result<(WaitingWork, PlaceInQueue), Fault>> =
        places.buffer_unordered(MAX_REQUESTS).collect().await;
    places.into_iter().collect()
}

async fn count_orders_before(
    bus: &Bus,
    waiting: &WaitingWork,
    queue: &QueueState,
) -> Result<Option<u64>, Fault> {
    let order = read_last_of_subject(bus.client(), WORK, &waiting.subject()).await?;
    let Some(order) = order else { return Ok(Some(queue.pending)) };
    let filter = order_subjects_of_capability(&waiting.capability);
    let before = count_subjects_before(bus.client(), WORK, &filter, order.sequence).await?;
    // Those in progress are in the stream until they are acknowledged.
    Ok(before.map(|before| before.saturating_sub(queue.in_progress)))
}
