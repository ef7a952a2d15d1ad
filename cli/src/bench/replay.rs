//! How fast a run is read back and folded, beside reading its messages alone; and how fast it folds once its decisions
//! are in memory.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::ensure;
use millrace_protocol::plan::{Decision, Plan, TaskState, apply_decision};
use millrace_runtime::log::read_run;

use super::ground::{Ground, Wishes};
use super::plans;
use super::process::Seconds;
use super::report::{Comparison, median, rate};
use super::run::{LONG, decisions, end};
use crate::client;

/// Measures both on a run that is still in its lane.
pub async fn replay(wishes: &Wishes, tasks: u32, rounds: u32) -> anyhow::Result<Comparison> {
    let mut ground = Ground::start(&Wishes { linger: LONG, ..wishes.clone() }).await?;
    let run = end(&mut ground, &plans::fan_out(tasks, false)).await?.run;
    let lane = ground.bus().lane(&run);
    let mut figures = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let plan = client::story(ground.bus(), &run).await?.plan;
        let folding = began.elapsed();
        ensure!(plan.count(TaskState::Completed) == tasks, "run {run} folds to another state than it had");
        let began = Instant::now();
        let messages = read_run(ground.bus(), lane, &run, 1).await?.len();
        figures.push((rate(messages, folding), rate(messages, began.elapsed())));
    }
    let records = read_run(ground.bus(), lane, &run, 1).await?;
    let decisions: Vec<Decision> =
        decisions(&ground, &records).await?.into_iter().map(|(_, decision)| decision).collect();
    ground.stop().await;
    let figure = median(figures.iter().map(|(figure, _)| *figure));
    let bare = median(figures.iter().map(|(_, bare)| *bare));
    let memory = InMemory::measure(&decisions, records.len());
    Ok(Comparison {
        what: format!("a run of {tasks} tasks read from its lane and folded; bare: only read"),
        unit: "messages/s",
        figure,
        bare,
        ratio: figure / bare,
        rounds: figures,
        details: BTreeMap::from([
            ("messages", records.len() as f64),
            ("decisions", decisions.len() as f64),
            ("in_memory_messages_per_s", memory.messages),
            ("in_memory_events_per_s", memory.events),
        ]),
        processor_seconds: Seconds::new(),
        bare_processor_seconds: Seconds::new(),
    })
}

/// How fast decisions that are in memory fold.
pub struct InMemory {
    /// Messages of the run by the second: its decisions, and the facts that they answer.
    pub messages: f64,
    /// Events by the second.
    pub events: f64,
}

impl InMemory {
    /// Folds the decisions of a run of so many messages, several times.
    pub fn measure(decisions: &[Decision], messages: usize) -> Self {
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
        let rates: Vec<(f64, f64)> = took.map(|took| (rate(messages, took), rate(events, took))).collect();
        Self {
            messages: median(rates.iter().map(|(messages, _)| *messages)),
            events: median(rates.iter().map(|(_, events)| *events)),
        }
    }
}
