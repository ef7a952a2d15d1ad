//! The memory that a supervisor needs for each task, by the state of the tasks. Each state has a cluster of its own, since memory
//! that a process once had is not all returned.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Submission, TaskState};
use millrace_protocol::registry::RunSummary;

use crate::cluster::{BenchCluster, BenchOptions, POLL_INTERVAL};
use crate::parked::signal_event;
use crate::report::BoundedFigure;
use crate::run::{LONG, wait_for_summary};
use crate::takeover::SUPERVISOR;
use crate::{plans, process};
use millrace_client::submit_run;

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
