//! A snapshot of the capability registry and of the workers' slots. The lane manager refreshes it; lane owners and the
//! queue task watch it.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::admission::CurrentCaps;
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::plan::{CapabilityRegistry, WorkerSign};
use millrace_runtime::store::admission;
use millrace_runtime::work::registry::{self, ReceivedHeartbeat};
use millrace_runtime::{Bus, Fault};

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
