//! Speed of reading and folding the decisions of a run, compared with reading all of its messages, and of folding decisions that are
//! in memory. Both speeds count all messages of the run.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::ensure;
use millrace_protocol::plan::{Decision, Plan, TaskState, apply_decision};
use millrace_runtime::log::read_run;

use crate::cluster::{BenchCluster, BenchOptions};
use crate::plans;
use crate::process::CpuSeconds;
use crate::report::{BaselineComparison, median, rate_per_second};
use crate::run::{LONG, decode_decisions, run_to_end};
use millrace_client as client;

/// Measures both with a run that is still in its lane.
pub async fn compare_folding_with_reading(
    options: &BenchOptions,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BaselineComparison> {
    let mut cluster = BenchCluster::start(&BenchOptions { linger: LONG, ..options.clone() }).await?;
    let run = run_to_end(&mut cluster, &plans::fan_out_submission(tasks, false)).await?.run;
    let lane = cluster.bus().lane_of_run(&run);
    let mut figures = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let plan = client::read_plan(cluster.bus(), &run).await?;
        let folding = began.elapsed();
        ensure!(
            plan.task_count_in_state(TaskState::Completed) == tasks,
            "run {run} folds to a different state"
        );
        let began = Instant::now();
        let messages = read_run(cluster.bus(), lane, &run, 1).await?.len();
        figures.push((rate_per_second(messages, folding), rate_per_second(messages, began.elapsed())));
    }
    let records = read_run(cluster.bus(), lane, &run, 1).await?;
    let decisions: Vec<Decision> =
        decode_decisions(&cluster, &records).await?.into_iter().map(|(_, decision)| decision).collect();
    cluster.stop_cluster().await;
    let figure = median(figures.iter().map(|(figure, _)| *figure));
    let baseline = median(figures.iter().map(|(_, baseline)| *baseline));
    let memory = InMemoryFolding::measure_folding_speed(&decisions, records.len());
    Ok(BaselineComparison {
        what: format!(
            "read the decisions of a run of {tasks} tasks and fold them; baseline: read all messages"
        ),
        unit: "messages/s",
        figure,
        bare: baseline,
        ratio: figure / baseline,
        rounds: figures,
        details: BTreeMap::from([
            ("messages", records.len() as f64),
            ("decisions", decisions.len() as f64),
            ("in_memory_messages_per_s", memory.messages),
            ("in_memory_events_per_s", memory.events),
        ]),
        processor_seconds: CpuSeconds::new(),
        bare_processor_seconds: CpuSeconds::new(),
    })
}

/// Folding speed of decisions in memory.
pub struct InMemoryFolding {
    /// Messages of the run per second: its decisions and the facts they answer.
    pub messages: f64,
    /// Events per second.
    pub events: f64,
}

impl InMemoryFolding {
    /// Folds the decisions of a run with this number of messages several times.
    pub fn measure_folding_speed(decisions: &[Decision], messages: usize) -> Self {
        const TIMES: usize = 5;
        let events: usize = decisions.iter().map(|decision| decision.events.len()).sum();
        let took = (0..TIMES).map(|_| {
            let began = Instant::now();
            let mut plan = Plan::default();
            decisions.iter().for_each(|decision| apply_decision(&mut plan, decision));
            let took = began.elapsed();
            drop(plan);
            took
        });
        let rates: Vec<(f64, f64)> =
            took.map(|took| (rate_per_second(messages, took), rate_per_second(events, took))).collect();
        Self {
            messages: median(rates.iter().map(|(messages, _)| *messages)),
            events: median(rates.iter().map(|(_, events)| *events)),
        }
    }
}
