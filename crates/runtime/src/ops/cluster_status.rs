//! The state of the cluster as a whole, as `millrace metrics` exports it and `millrace status` shows it: processes, queues,
//! lanes, runs, storage. It only reads.
//!
//! | values | source |
//! |---|---|
//! | processes, slots, versions, last problems | the heartbeats |
//! | queues: pending, in progress, redelivered | the state of each capability's consumer |
//! | queues: age of the oldest order | the first message of the capability after the consumer's acknowledgement floor, by one direct get |
//! | owners of lanes | the leases |
//! | messages and bytes | the state of each stream |
//! | runs | the summaries that changed since the last read |
//! | storage | the state of the account |
//!
//! The oldest order is the first message of its queue that is still in the stream, because acknowledged orders are
//! removed. It is only read if an order is pending or in progress. Summaries are kept as long as their runs are archived, so only those that changed since the last read are read again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, DirectGetErrorKind, State};
use async_nats::jetstream::{ErrorCode, consumer};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use millrace_protocol::ids::{Capability, Lane, WorkerId};
use millrace_protocol::plan::EndReason;
use millrace_protocol::registry::{Heartbeat, RunSummary};
use millrace_protocol::result::CapabilityDescription;
use millrace_protocol::subject::{self, CRITIC, PLANNER};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error};
use crate::nats::bus::Bus;
use crate::nats::record::timestamp_from_nanoseconds;
use crate::nats::topology::streams::read_bucket_entries;
use crate::nats::topology::{self, LEASES, WORK, bucket_stream, lane_stream};
use crate::store::bucket::{BucketChange, BucketChanges};
use crate::work::registry::{self, ReceivedHeartbeat};

/// The maximum number of concurrent requests.
const MAX_REQUESTS: usize = 8;

/// The state of a cluster at one time.
pub struct ClusterStatus {
    /// The live processes, by role and id.
    pub processes: Vec<ReceivedHeartbeat>,
    /// The capabilities: the registered ones, and those of the processes.
    pub capabilities: Vec<CapabilityStatus>,
    pub lanes: Vec<LaneState>,
    /// The number of runs by status.
    pub runs: BTreeMap<String, u64>,
    pub storage: AccountStorage,
}

/// The state of a capability.
pub struct CapabilityStatus {
    pub name: Capability,
    /// Its description; `None` if it is not registered.
    pub description: Option<CapabilityDescription>,
    /// The slots of the processes that provide it.
    pub slots: CapabilitySlots,
    /// Its queue; `None` if it has none yet.
    pub queue: Option<QueueState>,
}

/// The slots of a capability in all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapabilitySlots {
    /// The number of live processes that provide it.
    pub workers: u32,
    /// Their slots.
    pub total: u32,
    /// The slots with work in flight.
    pub busy: u32,
}

pub struct LaneState {
    pub lane: Lane,
    /// The supervisor that owns it.
    pub owner: Option<WorkerId>,
    /// The number of messages that it holds.
    pub messages: u64,
    /// The number of messages that its owner has not read yet; `None` if the owner has not reported it.
    pub lag: Option<u64>,
    /// The number of live runs; `None` if the owner has not reported it.
    pub live_runs: Option<u32>,
}

/// The storage of the account. Both values count all replicas: the server sums up the storage of its servers, and rejects
/// writes at the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountStorage {
    /// The bytes in use.
    pub used_bytes: u64,
    /// The limit; `None` if there is none.
    pub limit_bytes: Option<u64>,
}

impl ClusterStatus {
    /// Reads the state of the cluster.
    pub async fn read(bus: &Bus) -> Result<Self, Fault> {
        let mut processes = registry::read_received_heartbeats(bus).await?;
        processes.sort_by(|a, b| {
            (a.heartbeat.role.name(), &a.heartbeat.id).cmp(&(b.heartbeat.role.name(), &b.heartbeat.id))
        });
        let heartbeats: Vec<Heartbeat> = processes.iter().map(|process| process.heartbeat.clone()).collect();
        let names = known_capabilities(bus, &heartbeats).await?;
        let slots = slots_by_capability(&heartbeats, &names);
        let mut descriptions = registry::read_capabilities(bus).await?;
        let queues = read_queues(bus, names.clone()).await?;
        let mut queues: BTreeMap<Capability, QueueState> =
            queues.into_iter().map(|queue| (queue.capability.clone(), queue)).collect();
        let capabilities = names
            .into_iter()
            .map(|name| CapabilityStatus {
                description: descriptions.remove(&name),
                slots: slots.get(&name).copied().unwrap_or_default(),
                queue: queues.remove(&name),
                name,
            })
            .collect();
        let owners = LaneOwners::read(bus).await?;
        let lanes = bus.settings().lanes;
        let summaries = bucket_stream(topology::RUNS);
        let streams = (0..lanes).map(|lane| lane_stream(Lane(lane))).chain([summaries.clone()]);
        let streams = read_stream_states(bus, streams.collect()).await?;
        let mut runs = RunStatusTable::default();
        runs.read_changed_summaries(bus, streams.get(&summaries).map_or(0, |state| state.last_sequence))
            .await?;
        let lanes = (0..lanes).map(Lane).map(|lane| {
            let owner = owners.owner(lane).cloned();
            let reported = heartbeats.iter().filter(|heartbeat| Some(&heartbeat.id) == owner.as_ref());
            let reported = reported.flat_map(|heartbeat| &heartbeat.lanes).find(|one| one.lane == lane);
            LaneState {
                lane,
                messages: streams.get(&lane_stream(lane)).map_or(0, |state| state.messages),
                lag: reported.map(|lane| lane.lag),
                live_runs: reported.map(|lane| lane.runs),
                owner,
            }
        });
        let lanes = lanes.collect();
        let storage = read_account_storage(bus).await?;
        Ok(Self { processes, capabilities, lanes, runs: runs.counts(), storage })
    }
}

/// The owners of the lanes, by their leases.
pub struct LaneOwners(BTreeMap<String, WorkerId>);

impl LaneOwners {
    /// Reads the leases.
    pub async fn read(bus: &Bus) -> Result<Self, Fault> {
        let leases = read_bucket_entries(bus.client(), LEASES).await?.into_iter();
        let owner = |id: &[u8]| WorkerId::new(String::from_utf8_lossy(id)).ok();
        Ok(Self(leases.filter_map(|(key, id)| Some((key, owner(&id)?))).collect()))
    }

    /// Returns the supervisor that holds the lease of a lane.
    pub fn owner(&self, lane: Lane) -> Option<&WorkerId> {
        self.0.get(&crate::work::lane_lease::lease_key(lane))
    }
}

/// Returns the registered capabilities, those of the processes, `critic` and `planner`.
pub async fn known_capabilities(bus: &Bus, heartbeats: &[Heartbeat]) -> Result<BTreeSet<Capability>, Fault> {
    let mut names = registry::read_capability_names(bus).await?;
    names.extend([CRITIC, PLANNER].into_iter().filter_map(|name| Capability::new(name).ok()));
    names.extend(heartbeats.iter().flat_map(|heartbeat| &heartbeat.slots).map(|(name, _)| name.clone()));
    Ok(names)
}

/// Returns the slots of each of these capabilities and of those in the heartbeats.
#[must_use]
pub fn slots_by_capability(
    heartbeats: &[Heartbeat],
    capabilities: &BTreeSet<Capability>,
) -> BTreeMap<Capability, CapabilitySlots> {
    let none = capabilities.iter().map(|name| (name.clone(), CapabilitySlots::default()));
    let mut all: BTreeMap<Capability, CapabilitySlots> = none.collect();
    for heartbeat in heartbeats {
        for (capability, count) in &heartbeat.slots {
            let slots = all.entry(capability.clone()).or_default();
            slots.workers = slots.workers.saturating_add(1);
            slots.total = slots.total.saturating_add(*count);
            slots.busy = slots.busy.saturating_add(busy_slots(heartbeat, capability));
        }
    }
    all
}

/// Returns the busy slots of a capability in a process: those of its heartbeat, or all of them if it has one
/// capability.
#[must_use]
pub fn busy_slots(heartbeat: &Heartbeat, capability: &Capability) -> u32 {
    let reported = heartbeat.busy_with.iter().find(|(name, _)| name == capability);
    let all = if heartbeat.slots.len() == 1 && heartbeat.busy_with.is_empty() { heartbeat.busy } else { 0 };
    reported.map_or(all, |(_, busy)| *busy)
}

/// Reads the state of the queues of these capabilities, as far as they have one.
pub async fn read_queues(bus: &Bus, capabilities: BTreeSet<Capability>) -> Result<Vec<QueueState>, Fault> {
    let mut queues = Vec::new();
    for chunk in group_for_concurrent_requests(capabilities) {
        let mut requests: FuturesUnordered<_> =
            chunk.iter().map(|name| QueueState::read_queue_state(bus, name)).collect();
        while let Some(queue) = requests.next().await {
            queues.extend(queue?);
        }
    }
    Ok(queues)
}

/// Reads the state of these streams, by name. A stream that does not exist, as in an older cluster, is left out.
pub async fn read_stream_states(bus: &Bus, names: Vec<String>) -> Result<BTreeMap<String, State>, Fault> {
    let mut states = BTreeMap::new();
    for chunk in group_for_concurrent_requests(names) {
        let mut requests: FuturesUnordered<_> = chunk.iter().map(|name| stream_state(bus, name)).collect();
        while let Some(state) = requests.next().await {
            states.extend(state?);
        }
    }
    Ok(states)
}

pub async fn read_account_storage(bus: &Bus) -> Result<AccountStorage, Fault> {
    let account = bus.request_context().query_account().await;
    let account = account.or_fault("reading the state of the account")?;
    let limit = account.limits.max_storage.and_then(|limit| u64::try_from(limit).ok());
    Ok(AccountStorage { used_bytes: account.storage, limit_bytes: limit.filter(|limit| *limit > 0) })
}

/// Returns the name and state of a stream; `None` if it does not exist.
async fn stream_state(bus: &Bus, name: &str) -> Result<Option<(String, State)>, Fault> {
    let info = request_state::<stream::Info>(bus, format!("STREAM.INFO.{name}")).await?;
    Ok(info.map(|info| (name.to_owned(), info.state)))
}

/// Sends a request of the JetStream API for the state of something; `None` if it does not exist.
async fn request_state<T: DeserializeOwned>(bus: &Bus, subject: String) -> Result<Option<T>, Fault> {
    let what = || format!("requesting {subject}");
    let response = bus.request_context().request::<_, _, Response<T>>(subject.clone(), &json!({})).await;
    match response.or_fault_with(what)? {
        Response::Ok(info) => Ok(Some(info)),
        Response::Err { error } => match error.error_code() {
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND => Ok(None),
            _ => Err(Fault::unavailable(what(), error)),
        },
    }
}

/// Splits items into chunks of [`MAX_REQUESTS`].
fn group_for_concurrent_requests<T>(items: impl IntoIterator<Item = T>) -> Vec<Vec<T>> {
    let mut chunks: Vec<Vec<T>> = Vec::new();
    for item in items {
        match chunks.last_mut() {
            Some(last) if last.len() < MAX_REQUESTS => last.push(item),
            Some(_) | None => chunks.push(vec![item]),
        }
    }
    chunks
}

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
    let stream = bus.request_context().get_stream_no_info(WORK).await.or_fault_with(what)?;
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

/// The statuses of a live run.
const LIVE: [&str; 3] = ["running", "paused", "winding_down"];
/// The reasons for which a run ends.
const END_REASONS: [EndReason; 8] = [
    EndReason::Completed,
    EndReason::CompletedPartial,
    EndReason::Failed,
    EndReason::Cancelled,
    EndReason::NoProgress,
    EndReason::PlannerUnavailable,
    EndReason::BudgetExhausted,
    EndReason::MaxSteps,
];

/// The status of each run, as of the last read.
pub struct RunStatusTable {
    /// By the id of the run.
    statuses: BTreeMap<String, String>,
    changes: BucketChanges<RunSummary>,
}

impl Default for RunStatusTable {
    fn default() -> Self {
        Self { statuses: BTreeMap::new(), changes: registry::follow_summaries(0) }
    }
}

impl RunStatusTable {
    /// Reads the summaries that changed. `last` is the last sequence of the bucket.
    pub async fn read_changed_summaries(&mut self, bus: &Bus, last: u64) -> Result<(), Fault> {
        if last < self.changes.seen() {
            // The bucket was created again: the cluster was restored from a backup.
            *self = Self::default();
        }
        while let Some(changes) = self.changes.next_page(bus).await? {
            for change in changes {
                match change {
                    BucketChange::Set(entry) => {
                        self.statuses.insert(entry.key, run_status_label(&entry.value));
                    }
                    BucketChange::Removed(run) => drop(self.statuses.remove(&run)),
                }
            }
        }
        Ok(())
    }

    /// Returns the number of runs per status, including statuses without runs.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let all = LIVE.map(str::to_owned).into_iter().chain(END_REASONS.map(|end| end.to_string()));
        let mut counts: BTreeMap<String, u64> = all.map(|status| (status, 0)).collect();
        for status in self.statuses.values() {
            *counts.entry(status.clone()).or_default() += 1;
        }
        counts
    }
}

/// Returns the status of a run: why it ended, or the status of a live run.
fn run_status_label(summary: &RunSummary) -> String {
    let [running, paused, winding_down] = LIVE;
    match summary.end {
        Some(end) => end.to_string(),
        None if summary.is_paused => paused.to_owned(),
        None if summary.winding_down.is_some() => winding_down.to_owned(),
        None => running.to_owned(),
    }
}
