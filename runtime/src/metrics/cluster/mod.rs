//! The cluster as a whole: its queues, lanes, streams, runs and processes, as one process measures them for all. It only
//! reads, and all of it is read anew every few seconds; a page shows what was read last.
//!
//! | figures | read from |
//! |---|---|
//! | queues: waiting, in hand, given out again | the state of each capability's consumer |
//! | queues: age of the oldest order | the first message of the capability behind the consumer's acknowledgements, by one direct read |
//! | workers, slots, processes | the signs of life |
//! | lanes owned | the leases |
//! | messages and bytes | the state of each stream |
//! | runs | the summaries, those that have changed since they were read last |
//! | the store | the state of the account |
//!
//! The oldest order is the first message of its queue that is still in the stream: the queue forgets an order when it is
//! done, so that nothing lies before the first that is not. Where nothing waits and nothing is in hand nobody is asked.

mod queue;
mod runs;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, State};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::{Beat, Role};
use millrace_protocol::subject::{CRITIC, PLANNER};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Level;
use super::names::{
    CAPABILITY_BUSY, CAPABILITY_SLOTS, Gauge, LANE_MESSAGES, LANE_OWNED, PROCESSES, QUEUE_IN_HAND,
    QUEUE_OLDEST, QUEUE_PENDING, QUEUE_REDELIVERED, RUNS, STORE_LIMIT, STORE_USED, STREAM_BYTES, WORKERS,
};
use crate::bus::Bus;
use crate::health::{Health, Moment};
use crate::lease::entries;
use crate::topology::{self, LEASES, bucket_stream, fault, lane_stream};
use crate::{Fault, registry};
use queue::Queue;
use runs::Runs;

/// How often everything is read.
const ROUND: Duration = Duration::from_secs(5);
/// How long one reading may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long figures are good for: older ones are on no page.
const GOOD_FOR: Duration = Duration::from_secs(30);
/// How many questions are under way at once.
const AT_ONCE: usize = 8;

/// Measures the cluster until `shutdown`. `health` shows whether that works.
pub async fn measure(bus: Bus, health: Health, shutdown: CancellationToken) {
    let read = Arc::new(Moment::default());
    let good = read.clone();
    health.add("figures", move || match good.age() {
        None => Err("not read yet".into()),
        Some(age) if age > GOOD_FOR => Err(format!("not read for {} s", age.as_secs())),
        Some(_) => Ok(()),
    });
    let mut figures = Figures::default();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    info!(lanes = bus.settings().lanes, "measuring the cluster");
    loop {
        health.beat();
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let reading = tokio::time::timeout(PATIENCE, Box::pin(figures.read(&bus)));
        // A server that is away is not waited for at the end.
        let Some(ended) = shutdown.run_until_cancelled(reading).await else { return };
        match ended {
            Ok(Ok(())) => read.now(),
            Ok(Err(fault)) => warn!(%fault, "the cluster could not be measured; trying again"),
            Err(_) => warn!(after = ?PATIENCE, "the cluster could not be measured in time; trying again"),
        }
        if read.age().is_some_and(|age| age > GOOD_FOR) {
            figures.families.clear();
        }
    }
}

/// All figures as they were read last.
#[derive(Default)]
struct Figures {
    families: HashMap<&'static str, BTreeMap<Vec<String>, Level>>,
    runs: Runs,
}

impl Figures {
    /// What a gauge shows from now on: these series and no other.
    fn show<const N: usize>(&mut self, gauge: Gauge, series: impl IntoIterator<Item = ([String; N], f64)>) {
        let family = self.families.entry(gauge.0.name).or_default();
        let mut shown = BTreeMap::new();
        for (labels, value) in series {
            let level = family
                .remove(labels.as_slice())
                .unwrap_or_else(|| gauge.level(&labels.each_ref().map(String::as_str)));
            level.set(value);
            shown.insert(labels.to_vec(), level);
        }
        *family = shown;
    }

    async fn read(&mut self, bus: &Bus) -> Result<(), Fault> {
        let beats = registry::beats(bus).await?;
        let mut capabilities = registry::capability_names(bus).await?;
        capabilities.extend([CRITIC, PLANNER].into_iter().filter_map(|name| Capability::new(name).ok()));
        capabilities.extend(beats.iter().flat_map(|beat| &beat.slots).map(|(name, _)| name.clone()));
        self.show_processes(&beats);
        self.show_workers(&beats, &capabilities);
        self.read_queues(bus, capabilities).await?;
        self.read_leases(bus).await?;
        let streams = self.read_streams(bus).await?;
        let summaries = streams.get(&bucket_stream(topology::RUNS)).map_or(0, |state| state.last_sequence);
        self.runs.read(bus, summaries).await?;
        let counted = self.runs.count();
        self.show(RUNS, counted);
        self.read_account(bus).await
    }

    fn show_processes(&mut self, beats: &[Beat]) {
        let count = |role: Role| beats.iter().filter(|beat| beat.role == role).count() as f64;
        let roles = [Role::Supervisor, Role::Worker, Role::Critic];
        self.show(PROCESSES, roles.map(|role| ([role.name().to_owned()], count(role))));
    }

    /// A capability that nobody serves is shown with nobody.
    fn show_workers(&mut self, beats: &[Beat], capabilities: &BTreeSet<Capability>) {
        let none: BTreeMap<&Capability, f64> = capabilities.iter().map(|name| (name, 0.0)).collect();
        let (mut workers, mut slots, mut busy) = (none.clone(), none.clone(), none);
        for beat in beats {
            for (capability, count) in &beat.slots {
                *workers.entry(capability).or_default() += 1.0;
                *slots.entry(capability).or_default() += f64::from(*count);
                *busy.entry(capability).or_default() += f64::from(busy_with(beat, capability));
            }
        }
        for (gauge, sums) in [(WORKERS, workers), (CAPABILITY_SLOTS, slots), (CAPABILITY_BUSY, busy)] {
            self.show(gauge, sums.into_iter().map(|(capability, sum)| ([capability.to_string()], sum)));
        }
    }

    async fn read_queues(&mut self, bus: &Bus, capabilities: BTreeSet<Capability>) -> Result<(), Fault> {
        let mut queues = Vec::new();
        for some in chunks(capabilities) {
            let mut asked: FuturesUnordered<_> = some.iter().map(|name| Queue::read(bus, name)).collect();
            while let Some(queue) = asked.next().await {
                queues.extend(queue?);
            }
        }
        for (gauge, figure) in [
            (QUEUE_PENDING, (|queue| queue.pending) as fn(&Queue) -> f64),
            (QUEUE_IN_HAND, |queue| queue.in_hand),
            (QUEUE_REDELIVERED, |queue| queue.redelivered),
            (QUEUE_OLDEST, |queue| queue.oldest),
        ] {
            self.show(gauge, queues.iter().map(|queue| ([queue.capability.to_string()], figure(queue))));
        }
        Ok(())
    }

    async fn read_leases(&mut self, bus: &Bus) -> Result<(), Fault> {
        let owned: BTreeSet<String> = entries(bus, LEASES).await?.into_iter().map(|(key, _)| key).collect();
        let is_owned = |lane: u16| if owned.contains(&format!("lane-{lane}")) { 1.0 } else { 0.0 };
        self.show(LANE_OWNED, (0..bus.settings().lanes).map(|lane| ([lane.to_string()], is_owned(lane))));
        Ok(())
    }

    async fn read_streams(&mut self, bus: &Bus) -> Result<BTreeMap<String, State>, Fault> {
        let mut states = BTreeMap::new();
        for some in chunks(topology::streams(bus.settings().lanes)) {
            let mut asked: FuturesUnordered<_> = some.iter().map(|name| stream(bus, name)).collect();
            while let Some(answer) = asked.next().await {
                states.extend(answer?);
            }
        }
        self.show(STREAM_BYTES, states.iter().map(|(name, state)| ([name.clone()], state.bytes as f64)));
        let lanes = (0..bus.settings().lanes).filter_map(|lane| {
            let state = states.get(&lane_stream(Lane(lane)))?;
            Some(([lane.to_string()], state.messages as f64))
        });
        self.show(LANE_MESSAGES, lanes);
        Ok(states)
    }

    async fn read_account(&mut self, bus: &Bus) -> Result<(), Fault> {
        let account = bus.control().query_account().await;
        let account = account.map_err(|error| fault("asking for the account", &error))?;
        self.show(STORE_USED, [([], account.storage as f64)]);
        // All copies count on both sides: the server sums up what each of its servers keeps, and refuses at the limit.
        let limit = account.limits.max_storage.filter(|&limit| limit > 0);
        self.show(STORE_LIMIT, limit.map(|limit| ([], limit as f64)));
        Ok(())
    }
}

/// How much of a capability a process has in hand: as it says, or all, if it serves nothing else.
fn busy_with(beat: &Beat, capability: &Capability) -> u32 {
    let said = beat.busy_with.iter().find(|(name, _)| name == capability);
    let all = if beat.slots.len() == 1 && beat.busy_with.is_empty() { beat.busy } else { 0 };
    said.map_or(all, |(_, busy)| *busy)
}

/// A stream by its name and as it stands; `None` if it is not there: an older cluster may lack one.
async fn stream(bus: &Bus, name: &str) -> Result<Option<(String, State)>, Fault> {
    let info = ask::<stream::Info>(bus, format!("STREAM.INFO.{name}")).await?;
    Ok(info.map(|info| (name.to_owned(), info.state)))
}

/// Asks the server how something stands; `None` if there is no such thing.
async fn ask<T: DeserializeOwned>(bus: &Bus, question: String) -> Result<Option<T>, Fault> {
    let what = || format!("asking for {question}");
    let answer = bus.control().request::<_, _, Response<T>>(question.clone(), &json!({})).await;
    match answer.map_err(|error| fault(&what(), &error))? {
        Response::Ok(info) => Ok(Some(info)),
        Response::Err { error } => match error.error_code() {
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND => Ok(None),
            _ => Err(Fault::unavailable(what(), error)),
        },
    }
}

fn chunks<T>(all: impl IntoIterator<Item = T>) -> Vec<Vec<T>> {
    let mut chunks: Vec<Vec<T>> = Vec::new();
    for one in all {
        match chunks.last_mut() {
            Some(last) if last.len() < AT_ONCE => last.push(one),
            Some(_) | None => chunks.push(vec![one]),
        }
    }
    chunks
}
