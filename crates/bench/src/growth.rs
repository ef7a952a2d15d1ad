//! Scaling with plan and lane size: time per task, memory of a supervisor, folding speed, and the time until a new owner of
//! a full lane makes its first decision.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use async_nats::jetstream;
use millrace_protocol::ids::Lane;
use millrace_protocol::plan::Decision;
use millrace_runtime::nats::topology::lane_stream;

use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::replay::InMemoryFolding;
use crate::report::{BoundedFigure, median};
use crate::run::{LONG, decode_decisions, measure_run, run_timeout, wait_for_summary};
use crate::speed::start_warm_cluster;
use crate::takeover::{LEASE, LaneTakeover, SUPERVISOR};
use crate::{plans, process};
use millrace_client::submit_run;

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
