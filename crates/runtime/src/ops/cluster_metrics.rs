//! Metrics of the cluster as a whole: its queues, lanes, streams, runs and processes. One process exports them for all,
//! to avoid double counting. It only reads ([`cluster_status`](super::cluster_status)), and reads everything again every few
//! seconds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::{Heartbeat, ProcessRole};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::topology::{self, bucket_stream, lane_stream};
use crate::ops::cluster_status::{
    CapabilitySlots, LaneOwners, QueueState, RunStatusTable, known_capabilities, read_account_storage,
    read_queues, read_stream_states, slots_by_capability,
};
use crate::ops::health::{Health, LastEventTime};
use crate::ops::metrics::Gauge;
use crate::ops::metrics::names::{
    CAPABILITY_BUSY, CAPABILITY_SLOTS, GaugeDefinition, LANE_MESSAGES, LANE_OWNED, PROCESSES, QUEUE_IN_HAND,
    QUEUE_OLDEST, QUEUE_PENDING, QUEUE_REDELIVERED, RUNS, STORE_LIMIT, STORE_USED, STREAM_BYTES, WORKERS,
};
use crate::work::registry;

const READ_INTERVAL: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum age of values; older ones are not exported.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Measures the cluster until `shutdown`, and adds a check to `health`.
pub async fn measure_cluster(bus: Bus, health: Health, shutdown: CancellationToken) {
    let last_read = Arc::new(LastEventTime::default());
    let checked = last_read.clone();
    health.add_readiness_check("figures", move || match checked.age() {
        None => Err("not read yet".into()),
        Some(age) if age > MAX_AGE => Err(format!("not read for {} s", age.as_secs())),
        Some(_) => Ok(()),
    });
    let mut metrics = ClusterMetrics::default();
    let mut rounds = tokio::time::interval(READ_INTERVAL);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    info!(lanes = bus.settings().lanes, "measuring the cluster");
    loop {
        health.record_loop_iteration();
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let reading = tokio::time::timeout(READ_TIMEOUT, Box::pin(metrics.read(&bus)));
        // A stopping process does not wait for an unreachable server.
        let Some(result) = shutdown.run_until_cancelled(reading).await else { return };
        match result {
            Ok(Ok(())) => last_read.set_now(),
            Ok(Err(fault)) => warn!(%fault, "reading the cluster's metrics failed; retrying"),
            Err(_) => warn!(timeout = ?READ_TIMEOUT, "reading the cluster's metrics timed out; retrying"),
        }
        if last_read.age().is_some_and(|age| age > MAX_AGE) {
            metrics.families.clear();
        }
    }
}

/// The values of the last read.
#[derive(Default)]
struct ClusterMetrics {
    families: HashMap<&'static str, BTreeMap<Vec<String>, Gauge>>,
    runs: RunStatusTable,
}

impl ClusterMetrics {
    /// Replaces all series of a gauge.
    fn set_gauge_series<const N: usize>(
        &mut self,
        definition: GaugeDefinition,
        series: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        let family = self.families.entry(definition.0.name).or_default();
        let mut current = BTreeMap::new();
        for (labels, value) in series {
            let gauge = family
                .remove(labels.as_slice())
                .unwrap_or_else(|| definition.with_labels(&labels.each_ref().map(String::as_str)));
            gauge.set(value);
            current.insert(labels.to_vec(), gauge);
        }
        *family = current;
    }

    async fn read(&mut self, bus: &Bus) -> Result<(), Fault> {
        let heartbeats = registry::read_heartbeats(bus).await?;
        let capabilities = known_capabilities(bus, &heartbeats).await?;
        self.set_process_counts(&heartbeats);
        self.set_slot_gauges(&heartbeats, &capabilities);
        self.set_queue_gauges(&read_queues(bus, capabilities).await?);
        let owners = LaneOwners::read(bus).await?;
        self.set_gauge_series(
            LANE_OWNED,
            (0..bus.settings().lanes)
                .map(|lane| ([lane.to_string()], if owners.owner(Lane(lane)).is_some() { 1.0 } else { 0.0 })),
        );
        let summaries = self.read_streams(bus).await?;
        self.runs.read_changed_summaries(bus, summaries).await?;
        let counts = self.runs.counts();
        self.set_gauge_series(RUNS, counts.into_iter().map(|(status, count)| ([status], count as f64)));
        self.set_storage_gauges(bus).await
    }

    fn set_process_counts(&mut self, heartbeats: &[Heartbeat]) {
        let count =
            |role: ProcessRole| heartbeats.iter().filter(|heartbeat| heartbeat.role == role).count() as f64;
        let roles = [ProcessRole::Supervisor, ProcessRole::Worker, ProcessRole::Critic, ProcessRole::Gateway];
        self.set_gauge_series(PROCESSES, roles.map(|role| ([role.name().to_owned()], count(role))));
    }

    /// A capability without a live process has the value 0.
    fn set_slot_gauges(&mut self, heartbeats: &[Heartbeat], capabilities: &BTreeSet<Capability>) {
        let all = slots_by_capability(heartbeats, capabilities);
        for (gauge, value) in [
            (WORKERS, (|slots| slots.workers) as fn(&CapabilitySlots) -> u32),
            (CAPABILITY_SLOTS, |slots| slots.total),
            (CAPABILITY_BUSY, |slots| slots.busy),
        ] {
            self.set_gauge_series(
                gauge,
                all.iter().map(|(capability, slots)| ([capability.to_string()], f64::from(value(slots)))),
            );
        }
    }

    fn set_queue_gauges(&mut self, queues: &[QueueState]) {
        for (gauge, value) in [
            (QUEUE_PENDING, (|queue| queue.pending as f64) as fn(&QueueState) -> f64),
            (QUEUE_IN_HAND, |queue| queue.in_progress as f64),
            (QUEUE_REDELIVERED, |queue| queue.redelivered as f64),
            (QUEUE_OLDEST, |queue| queue.oldest_age().as_secs_f64()),
        ] {
            self.set_gauge_series(
                gauge,
                queues.iter().map(|queue| ([queue.capability.to_string()], value(queue))),
            );
        }
    }

    /// Reads the state of all streams. Returns the last sequence of the bucket of summaries.
    async fn read_streams(&mut self, bus: &Bus) -> Result<u64, Fault> {
        let states = read_stream_states(bus, topology::cluster_stream_names(bus.settings().lanes)).await?;
        self.set_gauge_series(
            STREAM_BYTES,
            states.iter().map(|(name, state)| ([name.clone()], state.bytes as f64)),
        );
        let lanes = (0..bus.settings().lanes).filter_map(|lane| {
            let state = states.get(&lane_stream(Lane(lane)))?;
            Some(([lane.to_string()], state.messages as f64))
        });
        self.set_gauge_series(LANE_MESSAGES, lanes);
        Ok(states.get(&bucket_stream(topology::RUNS)).map_or(0, |state| state.last_sequence))
    }

    async fn set_storage_gauges(&mut self, bus: &Bus) -> Result<(), Fault> {
        let storage = read_account_storage(bus).await?;
        self.set_gauge_series(STORE_USED, [([], storage.used_bytes as f64)]);
        self.set_gauge_series(STORE_LIMIT, storage.limit_bytes.map(|limit| ([], limit as f64)));
        Ok(())
    }
}
