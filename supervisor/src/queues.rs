//! Creates a queue for every registered capability, even while no worker provides it: workers find their queues, and
//! autoscalers can watch queues that have no worker yet. Every supervisor does it, idempotently. No lane waits for
//! it. A second task reads the state of the queues for the lane owners of this process.
//!
//! The lane manager refreshes the snapshot of the capability registry and of the workers' slots; lane owners and the
//! queue task watch it.
//!
//! # Invariants
//!
//! - I50: Workers scale from zero with a burst and back to zero, and nothing is lost.
//!   (`tests/tests/scaling.rs::workers_scale_up_and_down_with_a_burst_and_lose_nothing`)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::admission::CurrentCaps;
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::plan::{CapabilityRegistry, WorkerSign};
use millrace_runtime::store::admission;
use millrace_runtime::work::queue::{self, QueueSnapshot};
use millrace_runtime::work::registry::{self, ReceivedHeartbeat};
use millrace_runtime::{Bus, Fault};
use tokio::sync::watch;
use tracing::{debug, warn};

/// The interval at which all queues are checked, even without a change: an operator may have deleted one.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The interval at which the state of the queues is read. Two reads in a row must find a difference to the plans before
/// it is repaired.
const AUDIT_INTERVAL: Duration = Duration::from_secs(2);
/// The pause after a failure.
const RETRY: Duration = Duration::from_millis(500);

/// Creates the queue of each capability as soon as it is registered, until the sender of snapshots is gone.
pub async fn maintain_queues(bus: Bus, mut cluster: watch::Receiver<Arc<CapabilitySnapshot>>) {
    let mut existing = None;
    loop {
        cluster.mark_unchanged();
        if let Err(fault) = create_missing_queues(&bus, &mut existing).await {
            debug!(%fault, "failed to create queues; retrying");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        match tokio::time::timeout(CHECK_INTERVAL, cluster.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => existing = None,
        }
    }
}

/// Reads the state of all queues at an interval, and passes it to the lane owners of this process, which compare it with
/// their plans. Creates the stream and the consumers that are missing.
pub async fn read_queue_states(bus: Bus, states: watch::Sender<Arc<QueueSnapshot>>) {
    loop {
        let started = tokio::time::Instant::now();
        if states.receiver_count() > 0 {
            match QueueSnapshot::read(&bus).await {
                Ok(state) => {
                    create_lost_consumers(&bus, &state).await;
                    states.send_replace(Arc::new(state));
                }
                Err(fault) => {
                    debug!(%fault, "failed to read the state of the queues; retrying");
                    create_lost_stream(&bus).await;
                }
            }
        }
        // The read of very long queues must not keep the server busy.
        tokio::time::sleep((started.elapsed() * 20).max(AUDIT_INTERVAL)).await;
    }
}

/// Creates the consumers that should deliver the orders in the stream and do not exist.
async fn create_lost_consumers(bus: &Bus, state: &QueueSnapshot) {
    for (capability, _) in state.consumers.iter().filter(|(_, position)| position.is_none()) {
        match queue::create_lost_queue(bus, capability).await {
            Ok(true) => warn!(%capability, "the queue had lost its consumer; created it again"),
            Ok(false) => {}
            Err(fault) => debug!(%capability, %fault, "failed to create a consumer; retrying"),
        }
    }
}

/// Creates the stream of all queues if it does not exist.
async fn create_lost_stream(bus: &Bus) {
    if let Err(fault) = queue::ensure_queues(bus, &BTreeSet::new()).await {
        debug!(%fault, "failed to create the stream of the queues; retrying");
    }
}

/// Creates the queues that are not in `existing`; all of them, and their stream, if that is `None`.
async fn create_missing_queues(bus: &Bus, existing: &mut Option<BTreeSet<Capability>>) -> Result<(), Fault> {
    let names = registry::read_capability_names(bus).await?;
    let before = existing.clone().unwrap_or_default();
    let missing: BTreeSet<Capability> = names.difference(&before).cloned().collect();
    if existing.is_none() || !missing.is_empty() {
        queue::ensure_queues(bus, &missing).await?;
    }
    *existing = Some(names);
    Ok(())
}

/// The capabilities of the cluster and the slots of its workers.
#[derive(Debug, Default, PartialEq)]
pub struct CapabilitySnapshot {
    /// The registered capabilities and the parameters that they take.
    pub cluster: CapabilityRegistry,
    /// The number of slots that live workers have for each capability.
    pub slots: BTreeMap<Capability, usize>,
    /// The caps on the number of runs.
    pub caps: CurrentCaps,
    /// The live workers and critics.
    pub processes: BTreeSet<WorkerId>,
}

impl CapabilitySnapshot {
    /// Reads the registry and the heartbeats, which are returned as signs of life too.
    pub async fn read(bus: &Bus) -> Result<(Self, Vec<WorkerSign>), Fault> {
        let mut cluster =
            CapabilityRegistry::from_descriptions(registry::read_capabilities(bus).await?.values());
        let mut slots = BTreeMap::new();
        let mut processes = BTreeSet::new();
        let mut signs = Vec::new();
        for ReceivedHeartbeat { heartbeat, at } in registry::read_received_heartbeats(bus).await? {
            for (capability, count) in heartbeat.slots {
                *slots.entry(capability).or_default() += usize::try_from(count).unwrap_or(usize::MAX);
            }
            processes.insert(heartbeat.id.clone());
            signs.push(WorkerSign { worker: heartbeat.id, received: at, suspended: heartbeat.suspended });
        }
        slots.iter().for_each(|(capability, slots)| cluster.set_slots(capability, *slots));
        let caps = admission::read_caps(bus).await?;
        Ok((Self { cluster, slots, caps, processes }, signs))
    }
}
