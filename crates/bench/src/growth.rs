//! Scaling with plan and lane size: time per task, memory of a supervisor, folding speed, and the time until a new owner of
//! a full lane makes its first decision.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use async_nats::jetstream::{self, kv};
use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Decision;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::read_topic;
use millrace_runtime::nats::topology::{LEASES, lane_stream};
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::replay::InMemoryFolding;
use crate::report::{BoundedFigure, median};
use crate::run::{LONG, decode_decisions, measure_run, run_timeout, wait_for_summary};
use crate::speed::start_warm_cluster;
use crate::{plans, process};
use millrace_client::submit_run;

/// Name of the supervisor process.
const SUPERVISOR: &str = "supervisor-1";
/// Lane lease of the killed supervisor; not part of the measured time.
const LEASE: Duration = Duration::from_secs(1);
/// Minimum duration of the run whose owner is killed: long enough for the next owner to take over.
const LASTING: Duration = Duration::from_secs(6);

/// Measures all figures, with plans of `tasks` tasks and of a tenth of that.
pub async fn measure_growth(
    options: &BenchOptions,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let mut growth = measure_plan_growth(options, tasks, rounds).await?;
    let takeover = measure_takeover(options, tasks).await?;
    let what = "takeover of a lane with a message per task: from lease to first decision";
    growth.insert("takeover", BoundedFigure::with_maximum(what, "s", takeover, 3.0));
    Ok(growth)
}

async fn measure_plan_growth(
    options: &BenchOptions,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let mut cluster = start_warm_cluster(options, tasks, false).await?;
    let (small, large) =
        (plans::fan_out_submission(tasks / 10, false), plans::fan_out_submission(tasks, false));
    let (mut times, mut folds) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let small = measure_run(&mut cluster, &small).await?;
        let large = measure_run(&mut cluster, &large).await?;
        times.push(large.took.as_secs_f64() / small.took.as_secs_f64());
        let decisions = decode_decisions(&cluster, &large.records).await?;
        let decisions: Vec<Decision> = decisions.into_iter().map(|(_, decision)| decision).collect();
        folds.push(InMemoryFolding::measure_folding_speed(&decisions, large.records.len()).messages);
    }
    let memory = process::read_peak_memory(cluster.pid(SUPERVISOR)?).map(|bytes| bytes as f64 / 1e6);
    cluster.stop_cluster().await;
    let what = "peak memory of a supervisor with all these tasks live";
    Ok(BTreeMap::from([
        (
            "ten_times_the_tasks",
            BoundedFigure::with_maximum("duration with ten times the tasks", "times", median(times), 12.0),
        ),
        (
            "fold_in_memory",
            BoundedFigure::with_minimum(
                "messages of a run folded in memory",
                "messages/s",
                median(folds),
                500_000.0,
            ),
        ),
        ("supervisor_memory", BoundedFigure::with_maximum(what, "MB", memory, 400.0)),
    ]))
}

/// Kills the owner of a lane that has a message per task, and measures from the moment the next owner has the lease to its
/// first decision. The run must then complete.
async fn measure_takeover(options: &BenchOptions, tasks: u32) -> anyhow::Result<f64> {
    let options = BenchOptions { linger: LONG, lane_lease: Some(LEASE), ..options.clone() };
    let mut cluster = BenchCluster::start(&options).await?;
    let plan = plans::fan_out_submission_with_delay(tasks, LASTING);
    let run = submit_run(cluster.bus(), &plan).await?;
    await_messages(&cluster, tasks).await?;
    let leases = jetstream::new(cluster.bus().client().clone()).get_key_value(LEASES).await?;
    let old = read_lease_holder(&leases).await?.ok_or_else(|| anyhow!("lane 0 has no owner"))?.1;
    let pid = i32::try_from(cluster.pid(SUPERVISOR)?).ok().and_then(Pid::from_raw);
    kill_process(pid.ok_or_else(|| anyhow!("{SUPERVISOR} has no process id"))?, Signal::KILL)?;
    cluster.await_restart(SUPERVISOR).await?;
    let taken = await_new_holder(&leases, &old).await?;
    let decided = await_decision(&cluster, &run, &old, taken).await?;
    wait_for_summary(&mut cluster, &run, tasks, "end", |summary| summary.end.is_some()).await?;
    cluster.stop_cluster().await;
    Ok(decided.duration_since(taken).as_secs_f64())
}

async fn await_messages(cluster: &BenchCluster, count: u32) -> anyhow::Result<()> {
    let context = jetstream::new(cluster.bus().client().clone());
    let began = Instant::now();
    loop {
        let messages = context.get_stream(lane_stream(Lane(0))).await?.cached_info().state.messages;
        if messages >= u64::from(count) {
            return Ok(());
        }
        if began.elapsed() > run_timeout(count) {
            bail!("the lane has only {messages} of {count} messages");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the owner of lane 0 and the time of its last lease renewal.
async fn read_lease_holder(leases: &kv::Store) -> anyhow::Result<Option<(Timestamp, String)>> {
    let entry = leases.entry("lane-0").await.context("reading the lease of lane 0")?;
    let Some(entry) = entry.filter(|entry| entry.operation == kv::Operation::Put) else { return Ok(None) };
    let since = Timestamp::from_nanosecond(entry.created.unix_timestamp_nanos())?;
    Ok(Some((since, String::from_utf8_lossy(&entry.value).into_owned())))
}

async fn await_new_holder(leases: &kv::Store, old: &str) -> anyhow::Result<Timestamp> {
    let began = Instant::now();
    while began.elapsed() < run_timeout(0) {
        if let Some((since, who)) = read_lease_holder(leases).await?
            && who != old
        {
            return Ok(since);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!("no process took over the lane of {old}")
}

/// Returns the time of the first decision by an owner other than `old`, at `after` or later.
async fn await_decision(
    cluster: &BenchCluster,
    run: &RunId,
    old: &str,
    after: Timestamp,
) -> anyhow::Result<Timestamp> {
    let (bus, began) = (cluster.bus(), Instant::now());
    while began.elapsed() < run_timeout(0) {
        let records = read_topic(bus, bus.lane_of_run(run), run, &Topic::Plan).await?;
        let late: Vec<_> = records.into_iter().filter(|record| record.time >= after).collect();
        let by_another = |(_, decision): &(Timestamp, Decision)| decision.by.as_str() != old;
        if let Some((at, _)) = decode_decisions(cluster, &late).await?.into_iter().find(by_another) {
            return Ok(at);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!("the new owner of the lane has made no decision within {} s", run_timeout(0).as_secs())
}
