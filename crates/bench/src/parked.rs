//! Parked attempts: the memory of a supervisor for each, the slots that they hold, and the time to wake all of them with one event.
//! The tasks first wait for a gate, so that all are parked at once.

use std::collections::BTreeMap;
use std::time::Instant;

use millrace_client::submit_run;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, RunCommand};
use millrace_protocol::registry::{ProcessRole, RunSummary};
use millrace_protocol::subject::Topic;
use millrace_runtime::log::publish_message;
use millrace_runtime::work::registry;

use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::report::BoundedFigure;
use crate::run::{LONG, run_timeout, wait_for_summary};
use crate::takeover::SUPERVISOR;
use crate::{plans, process};

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
