//! A lane full of runs in which everything waits: the time in which it is taken over, the memory of its owner, and the time in
//! which one of the runs wakes. Signals that are sent while the lane has no owner show when the takeover is complete.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use millrace_client::submit_run;
use millrace_protocol::ids::RunId;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::log::read_topic;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::work::registry;

use super::slots::signal_event;
use crate::cluster::{BenchCluster, BenchOptions};
use crate::report::{BoundedFigure, median};
use crate::run::{measure_run, run_timeout, wait_for_summary};
use crate::takeover::{LEASE, LaneTakeover, SUPERVISOR};
use crate::{plans, process};

/// Size of the journal of each run.
const JOURNAL_BYTES: u32 = 100_000;
/// The event for which the runs wait.
const EVENT: &str = "go";
/// Number of runs that are submitted at the same time.
const SUBMISSIONS: usize = 64;
/// Number of runs to which a signal is sent while the lane has no owner, and of those that are woken one by one.
const SIGNALLED: usize = 20;
/// Number of tasks of the chain whose hop is measured.
const CHAIN: u32 = 200;
/// Time that a run stays in its lane after its end, so that its messages can be read there.
const LINGER: Duration = Duration::from_secs(15);
/// Polling interval for the number of waiting runs: each poll reads all summaries.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Measures all figures, with `count` waiting runs.
pub async fn measure_waiting_runs(
    options: &BenchOptions,
    count: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let options = BenchOptions { lane_lease: Some(LEASE), linger: LINGER, ..options.clone() };
    let mut cluster = BenchCluster::start(&options).await?;
    let idle = process::read_resident_memory(cluster.pid(SUPERVISOR)?).unwrap_or_default();
    let runs = submit_waiting_runs(&cluster, count).await?;
    await_waiting_runs(&mut cluster, count).await?;
    let (early, late) = runs.split_at(runs.len() / 2);
    let takeover = LaneTakeover::kill_owner(&cluster).await?;
    let signalled = spread(early, SIGNALLED);
    for run in &signalled {
        signal_event(&cluster, run, EVENT).await?;
    }
    let taken = takeover.await_owner(&mut cluster).await?;
    let mut decided = taken;
    for run in &signalled {
        decided = decided.max(takeover.await_decision(&cluster, run, taken).await?);
    }
    let memory = process::read_resident_memory(cluster.pid(SUPERVISOR)?);
    let peak = process::read_peak_memory(cluster.pid(SUPERVISOR)?);
    let wakes = measure_wake_ups(&mut cluster, &spread(late, SIGNALLED)).await?;
    let hop = measure_hop(&mut cluster).await?;
    cluster.stop_cluster().await;
    let per_run = |bytes: u64| bytes.saturating_sub(idle) as f64 / f64::from(count);
    let takeover = decided.duration_since(taken).as_secs_f64();
    let wakes = [wakes.to_claim, wakes.to_end].map(|seconds| seconds / hop.max(1e-9));
    Ok(figures(takeover, [memory.map(per_run), peak.map(per_run)], wakes))
}

fn figures(
    takeover: f64,
    [memory, peak]: [Option<f64>; 2],
    [to_claim, to_end]: [f64; 2],
) -> BTreeMap<&'static str, BoundedFigure> {
    BTreeMap::from([
        (
            "waiting_takeover",
            BoundedFigure::with_maximum(
                "takeover of a lane of waiting runs: from lease to the last decision on what was sent meanwhile",
                "s",
                takeover,
                3.0,
            ),
        ),
        (
            "waiting_memory",
            BoundedFigure::with_maximum(
                "memory of the owner per waiting run, beyond that of an idle one",
                "bytes",
                memory,
                40_000.0,
            ),
        ),
        (
            "waiting_peak_memory",
            BoundedFigure::with_maximum("the same at its peak, during the takeover", "bytes", peak, 40_000.0),
        ),
        (
            "waiting_wake",
            BoundedFigure::with_maximum(
                "from a signal to the claim of the attempt that it wakes (p50)",
                "hops",
                to_claim,
                2.0,
            ),
        ),
        (
            "waiting_end",
            BoundedFigure::with_maximum(
                "from a signal to the end of the run that it wakes, whose journal is read first (p50)",
                "hops",
                to_end,
                4.0,
            ),
        ),
    ])
}

async fn submit_waiting_runs(cluster: &BenchCluster, count: u32) -> anyhow::Result<Vec<RunId>> {
    let submission = plans::waiting_submission(JOURNAL_BYTES, EVENT);
    let submissions = (0..count).map(|_| submit_run(cluster.bus(), &submission));
    Ok(futures::stream::iter(submissions).buffer_unordered(SUBMISSIONS).try_collect().await?)
}

/// Waits until this number of runs wait.
async fn await_waiting_runs(cluster: &mut BenchCluster, count: u32) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        cluster.fail_if_process_ended()?;
        let summaries = registry::read_run_summaries(cluster.bus()).await?;
        let waiting = summaries.iter().filter(|summary| summary.waiting == 1).count();
        if waiting == count as usize {
            return Ok(());
        }
        if began.elapsed() > run_timeout(5 * count) {
            bail!("only {waiting} of {count} runs wait");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns at most `count` of the runs, evenly spread.
fn spread(runs: &[RunId], count: usize) -> Vec<RunId> {
    runs.iter().step_by(runs.len().div_ceil(count).max(1)).cloned().collect()
}

/// The median times of wake-ups from the signal on, in milliseconds.
struct WakeUpTimes {
    /// Until a worker has claimed the attempt.
    to_claim: f64,
    /// Until the last decision of the run.
    to_end: f64,
}

async fn measure_wake_ups(cluster: &mut BenchCluster, runs: &[RunId]) -> anyhow::Result<WakeUpTimes> {
    let (mut claims, mut ends) = (Vec::new(), Vec::new());
    let (journal, any) = (Topic::journal_of_work(&plans::waiting_work()), |_: &StreamRecord| true);
    for run in runs {
        signal_event(cluster, run, EVENT).await?;
        wait_for_summary(cluster, run, 1, "end", |summary| summary.end.is_some()).await?;
        let signalled = last_message_time(cluster, run, &Topic::Control, any).await?;
        let claimed = last_message_time(cluster, run, &journal, is_claim).await?;
        let ended = last_message_time(cluster, run, &Topic::Plan, any).await?;
        claims.push(claimed.duration_since(signalled).as_secs_f64() * 1e3);
        ends.push(ended.duration_since(signalled).as_secs_f64() * 1e3);
    }
    Ok(WakeUpTimes { to_claim: median(claims), to_end: median(ends) })
}

fn is_claim(record: &StreamRecord) -> bool {
    let entry = wire::decode_message::<JournalEntry>(&record.payload, record.encoding);
    matches!(entry, Ok(JournalEntry::Claimed { .. }))
}

/// Returns the time of the last message of a topic that fulfils a condition.
async fn last_message_time(
    cluster: &BenchCluster,
    run: &RunId,
    topic: &Topic,
    is_wanted: impl Fn(&StreamRecord) -> bool,
) -> anyhow::Result<Timestamp> {
    let bus = cluster.bus();
    let records = read_topic(bus, bus.lane_of_run(run), run, topic).await?;
    let last = records.iter().rfind(|record| is_wanted(record));
    last.map(|record| record.time).with_context(|| format!("run {run} has no such message in {topic}"))
}

/// Returns the hop of a chain in milliseconds.
async fn measure_hop(cluster: &mut BenchCluster) -> anyhow::Result<f64> {
    let chain = measure_run(cluster, &plans::chain_submission(CHAIN)).await?;
    Ok(median(chain.hops.iter().map(|hop| hop.as_secs_f64() * 1e3)))
}
