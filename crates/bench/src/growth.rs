//! Scaling with plan and lane size: time per task, memory of a supervisor, folding speed, and the time until a new owner of
//! a full lane makes its first decision. Memory by the state of the tasks is measured in a cluster of its own for each state, since
//! memory that a process once had is not all returned.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use async_nats::jetstream;
use millrace_client::submit_run;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{Decision, Submission, TaskState};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::nats::topology::lane_stream;

use super::slots::signal_event;
use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::replay::InMemoryFolding;
use crate::report::{BoundedFigure, median};
use crate::run::{LONG, decode_decisions, measure_run, run_timeout, wait_for_summary};
use crate::speed::start_warm_cluster;
use crate::takeover::{LEASE, LaneTakeover, SUPERVISOR};
use crate::{plans, process};

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
            BoundedFigure::with_maximum("duration with ten times the tasks", "times", median(times), 11.0),
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
    let takeover = LaneTakeover::kill_owner(&cluster).await?;
    let taken = takeover.await_owner(&mut cluster).await?;
    let decided = takeover.await_decision(&cluster, &run, taken).await?;
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

/// The maximum for a task in any state: 220 MB for 100,000 tasks.
const MAX_BYTES: f64 = 2_200.0;
/// The events of the plans. A run that waits for an event stays in its state until the event is signalled.
const EVENTS: [&str; 2] = ["open", "go"];
/// The time in which a process returns memory that it needed only for the change to the measured state.
const SETTLING: Duration = Duration::from_secs(3);

/// Measures the memory of a supervisor per pending, running, waiting and completed task, with `tasks` tasks in that state.
pub async fn measure_task_memory(
    options: &BenchOptions,
    tasks: u32,
) -> anyhow::Result<BTreeMap<&'static str, BoundedFigure>> {
    let options = BenchOptions { linger: LONG, slots: options.slots.max(tasks + 1), ..options.clone() };
    let figure = |what, bytes| BoundedFigure::with_maximum(what, "bytes", bytes, MAX_BYTES);
    let gated = plans::gated_submission(tasks, EVENTS);
    let has = |state: TaskState| move |it: &RunSummary| it.counts.get(state as usize) == Some(&tasks);
    let pending = measure_state(&options, &gated, &[], has(TaskState::Pending)).await?;
    let waiting = measure_state(&options, &gated, &EVENTS[..1], |it| it.waiting == tasks).await?;
    let running = plans::long_submission(tasks);
    let running = measure_state(&options, &running, &[], has(TaskState::Running)).await?;
    let completed = plans::fan_out_submission_with_event(tasks, EVENTS[1]);
    let completed = measure_state(&options, &completed, &[], has(TaskState::Completed)).await?;
    Ok(BTreeMap::from([
        ("memory_pending", figure("memory of a supervisor per pending task", pending)),
        ("memory_running", figure("memory of a supervisor per running task", running)),
        ("memory_waiting", figure("memory of a supervisor per waiting task", waiting)),
        ("memory_completed", figure("memory of a supervisor per completed task of a live run", completed)),
    ]))
}

/// Returns the memory per task, in bytes, that a supervisor needs for a run after these events in the state that `is_reached` tells.
async fn measure_state(
    options: &BenchOptions,
    submission: &Submission,
    events: &[&str],
    is_reached: impl Fn(&RunSummary) -> bool,
) -> anyhow::Result<Option<f64>> {
    let tasks = u32::try_from(submission.tasks.len())?;
    let mut cluster = BenchCluster::start(options).await?;
    let idle = process::read_resident_memory(cluster.pid(SUPERVISOR)?);
    let run: RunId = submit_run(cluster.bus(), submission).await?;
    for event in events {
        wait_for_summary(&mut cluster, &run, tasks, "wait for its gate", |it| it.waiting == 1).await?;
        signal_event(&cluster, &run, event).await?;
    }
    wait_for_summary(&mut cluster, &run, tasks, "reach the measured state", is_reached).await?;
    let settled = read_settled_memory(cluster.pid(SUPERVISOR)?).await;
    cluster.stop_cluster().await;
    let each = |(before, after): (u64, u64)| after.saturating_sub(before) as f64 / f64::from(tasks);
    Ok(idle.zip(settled).map(each))
}

/// Returns the least memory of a process within the time in which it settles.
async fn read_settled_memory(pid: u32) -> Option<u64> {
    let began = Instant::now();
    let mut least = process::read_resident_memory(pid)?;
    while began.elapsed() < SETTLING {
        tokio::time::sleep(POLL_INTERVAL).await;
        least = least.min(process::read_resident_memory(pid)?);
    }
    Some(least)
}
