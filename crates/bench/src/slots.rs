//! Utilization of worker slots: tasks with a delay, each reviewed, on several workers. A slot is busy from the claim of an
//! attempt to its outcome; the time between an outcome and the next claim is the overhead of the cluster.
//!
//! Parked attempts: the memory of a supervisor for each, the slots that they hold, and the time to wake all of them with one event.
//! The tasks first wait for a gate, so that all are parked at once.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millrace_client::submit_run;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, JournalKey, RunCommand};
use millrace_protocol::registry::{ProcessRole, RunSummary};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::publish_message;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::work::registry;

use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::report::{BoundedFigure, median};
use crate::run::{LONG, measure_run, run_timeout, wait_for_summary};
use crate::speed::warm_up_cluster;
use crate::takeover::SUPERVISOR;
use crate::{plans, process};

/// Duration of a task.
const DELAY: Duration = Duration::from_millis(50);
/// Number of workers.
const WORKERS: u32 = 4;
/// Slots per worker.
const SLOTS: u32 = 5;
/// Minimum utilization of the slots.
const BUSY: f64 = 0.95;

/// Returns the utilization of the slots between the first claim and the last outcome.
pub async fn measure_slot_use(
    options: &BenchOptions,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BoundedFigure> {
    let options = BenchOptions { workers: WORKERS, slots: SLOTS, ..options.clone() };
    let mut cluster = BenchCluster::start(&options).await?;
    warm_up_cluster(&mut cluster, tasks, true).await?;
    let mut shares = Vec::new();
    for _ in 0..rounds {
        let measured =
            measure_run(&mut cluster, &plans::reviewed_submission_with_delay(tasks, DELAY)).await?;
        shares.push(slot_utilization(&measured.records, WORKERS * SLOTS));
    }
    cluster.stop_cluster().await;
    Ok(BoundedFigure::with_minimum(
        "utilization of 20 slots on 4 workers: tasks of 50 ms, each reviewed",
        "",
        median(shares),
        BUSY,
    ))
}

/// Returns the utilization of `slots` slots from the first claim to the last outcome.
fn slot_utilization(records: &[StreamRecord], slots: u32) -> f64 {
    let mut claimed: HashMap<Topic, Timestamp> = HashMap::new();
    let mut worked = 0.0;
    let (mut first, mut last) = (None, None);
    for record in records {
        let Some((_, _, topic @ Topic::Journal(JournalKey::Task(..)))) =
            subject::parse_lane_subject(&record.subject)
        else {
            continue;
        };
        match wire::decode_message::<JournalEntry>(&record.payload, record.encoding) {
            Ok(JournalEntry::Claimed { .. }) => {
                first.get_or_insert(record.time);
                claimed.insert(topic, record.time);
            }
            Ok(JournalEntry::Outcome { .. }) => {
                last = Some(record.time);
                if let Some(since) = claimed.remove(&topic) {
                    worked += record.time.duration_since(since).as_secs_f64();
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    let span = first
        .zip(last)
        .map_or(0.0, |(first, last): (Timestamp, Timestamp)| last.duration_since(first).as_secs_f64());
    worked / (span * f64::from(slots)).max(1e-9)
}

/// The event that ends the gate, and the one for which the attempts are parked.
const EVENTS: [&str; 2] = ["open", "go"];

/// Measures all figures, with `tasks` parked attempts.
pub async fn measure_parking(
    options: &BenchOptions,
    tasks: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let options = BenchOptions { linger: LONG, ..options.clone() };
    let mut cluster = BenchCluster::start(&options).await?;
    let idle = process::read_resident_memory(cluster.pid(SUPERVISOR)?);
    let run = submit_run(cluster.bus(), &plans::gated_submission(tasks, EVENTS)).await?;
    let waiting = |summary: &RunSummary, count: u32| summary.waiting == count;
    wait_for_summary(&mut cluster, &run, tasks, "wait for its gate", |summary| waiting(summary, 1)).await?;
    signal_event(&cluster, &run, EVENTS[0]).await?;
    wait_for_summary(&mut cluster, &run, tasks, "be parked", |summary| waiting(summary, tasks)).await?;
    let parked = process::read_resident_memory(cluster.pid(SUPERVISOR)?);
    let busy = read_busy_slots(&cluster).await?;
    let began = Instant::now();
    signal_event(&cluster, &run, EVENTS[1]).await?;
    wait_for_summary(&mut cluster, &run, tasks, "end", |summary| summary.end.is_some()).await?;
    let woken = began.elapsed().as_secs_f64();
    cluster.stop_cluster().await;
    let each = idle.zip(parked).map(|(before, after)| after.saturating_sub(before) as f64 / f64::from(tasks));
    Ok(BTreeMap::from([
        (
            "parked_memory",
            BoundedFigure::with_maximum(
                "memory of a supervisor per parked attempt, its task included",
                "bytes",
                each,
                2_048.0,
            ),
        ),
        (
            "parked_slots",
            BoundedFigure::with_maximum("slots that parked attempts hold", "slots", f64::from(busy), 0.0),
        ),
        (
            "parked_wake",
            BoundedFigure::with_minimum(
                "parked attempts woken by one event and finished",
                "attempts/s",
                f64::from(tasks) / woken.max(1e-9),
                2_000.0,
            ),
        ),
    ]))
}

pub async fn signal_event(cluster: &BenchCluster, run: &RunId, name: &str) -> anyhow::Result<()> {
    let (bus, id) = (cluster.bus(), format!("signal-{run}-{name}"));
    let control = CommandAction::Signal { name: name.to_owned(), data: String::new() };
    let command = RunCommand { id: id.clone(), by: "bench".into(), control };
    publish_message(bus, bus.lane_of_run(run), run, &Topic::Control, &command, &id).await?;
    Ok(())
}

/// Returns the number of slots that are busy, as soon as the workers report none, or after the longest wait.
async fn read_busy_slots(cluster: &BenchCluster) -> anyhow::Result<u32> {
    let began = Instant::now();
    loop {
        let beats = registry::read_heartbeats(cluster.bus()).await?;
        let workers = beats.iter().filter(|beat| beat.role == ProcessRole::Worker);
        let busy: u32 = workers.map(|beat| beat.busy).sum();
        if busy == 0 || began.elapsed() > run_timeout(0) {
            return Ok(busy);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
