//! The usage of models and tools: of one run, and of many. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{Plan, UsageBreakdown};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{RunState, Time, tagged};

const MAX_POINTS: usize = 500;

/// The usage of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "run_spend")]
#[schemars(transform = tagged("run_spend"))]
pub struct RunSpend<'a> {
    /// The run.
    run: &'a RunId,
    /// The usage by role, capability and model.
    spend: &'a UsageBreakdown,
    /// The usage by task.
    tasks: Vec<TaskSpend<'a>>,
    /// The total after each decision that changed it; of a long run, a selection.
    series: &'a [SpendPoint],
}

/// The usage of a task.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TaskSpend<'a> {
    /// The task.
    task: &'a TaskId,
    /// Its capability.
    capability: &'a Capability,
    /// The number of its attempts.
    attempts: usize,
    /// Its usage, reviews included; without that of the tasks that it delegated.
    usage: Usage,
}

/// The usage of a run up to a decision.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SpendPoint {
    /// The sequence of the decision.
    sequence: u64,
    /// The time of the decision.
    #[schemars(with = "Time")]
    at: Timestamp,
    /// The usage so far.
    usage: Usage,
}

/// Collects the usage of a run over time.
#[derive(Debug, Default)]
pub struct SpendSeries {
    points: Vec<SpendPoint>,
    total: Usage,
}

impl SpendSeries {
    pub fn add_total(&mut self, sequence: u64, at: Timestamp, usage: Usage) {
        if usage == self.total {
            return;
        }
        self.total = usage;
        self.points.push(SpendPoint { sequence, at, usage });
        if self.points.len() > 2 * MAX_POINTS {
            self.halve();
        }
    }

    /// Drops every second point, but neither the first nor the last.
    fn halve(&mut self) {
        let (mut at, last) = (0, self.points.len() - 1);
        self.points.retain(|_| {
            at += 1;
            at % 2 == 1 || at == last + 1
        });
    }

    #[must_use]
    pub fn finish(mut self) -> Vec<SpendPoint> {
        if self.points.len() > MAX_POINTS {
            self.halve();
        }
        self.points
    }
}

impl<'a> RunSpend<'a> {
    pub fn new(run: &'a RunId, plan: &'a Plan, series: &'a [SpendPoint]) -> Self {
        let tasks = plan.tasks().iter().map(|task| TaskSpend {
            task: &task.spec.id,
            capability: &task.spec.capability,
            attempts: task.attempts.len(),
            usage: task.total_usage(),
        });
        Self { run, spend: &plan.budget.spend, tasks: tasks.collect(), series }
    }
}

/// The groups into which the usage of many runs is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpendGroup {
    /// By capability, `planner` and `critic` among them.
    Capability,
    Model,
    /// By the value of this label; runs without it are in the group with the empty name.
    Label(String),
    /// By the day, in UTC, on which a run started.
    Day,
    /// By the state of the run.
    State,
}

/// The usage of many runs.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "spend")]
#[schemars(transform = tagged("spend"))]
pub struct SpendReport {
    /// The number of runs.
    runs: u64,
    /// Their usage.
    usage: Usage,
    /// The usage by group, the most expensive first; days in their order.
    groups: Vec<SpendLine>,
}

/// The usage of a group.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct SpendLine {
    /// The name of the group.
    name: String,
    /// The number of runs in it.
    runs: u64,
    /// Their usage.
    usage: Usage,
}

/// Adds up the usage of many runs.
#[derive(Debug)]
pub struct SpendTable {
    group: SpendGroup,
    runs: u64,
    usage: Usage,
    groups: BTreeMap<String, SpendLine>,
}

impl SpendTable {
    #[must_use]
    pub fn new(group: SpendGroup) -> Self {
        Self { group, runs: 0, usage: Usage::default(), groups: BTreeMap::new() }
    }

    pub fn add_run(&mut self, summary: &RunSummary) {
        self.runs += 1;
        self.usage.add(summary.usage);
        let spend = summary.spend.iter();
        let parts: Vec<(String, Usage)> = match &self.group {
            SpendGroup::Capability => spend
                .flat_map(|spend| &spend.by_capability)
                .map(|(name, usage)| (name.to_string(), *usage))
                .collect(),
            SpendGroup::Model => spend.flat_map(|spend| spend.by_model.clone()).collect(),
            SpendGroup::Label(name) => {
                vec![(summary.labels.get(name).cloned().unwrap_or_default(), summary.usage)]
            }
            SpendGroup::Day => vec![(summary.started.strftime("%Y-%m-%d").to_string(), summary.usage)],
            SpendGroup::State => vec![(RunState::of_summary(Some(summary)).name().to_owned(), summary.usage)],
        };
        for (name, usage) in parts {
            let line = || SpendLine { name: name.clone(), runs: 0, usage: Usage::default() };
            let line = self.groups.entry(name.clone()).or_insert_with(line);
            line.runs += 1;
            line.usage.add(usage);
        }
    }

    #[must_use]
    pub fn finish(self) -> SpendReport {
        let mut groups: Vec<SpendLine> = self.groups.into_values().collect();
        if self.group != SpendGroup::Day {
            groups
                .sort_by_key(|group| std::cmp::Reverse((group.usage.cost_micros, group.usage.input_tokens)));
        }
        SpendReport { runs: self.runs, usage: self.usage, groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_series_keep_their_first_and_last_points() {
        let mut series = SpendSeries::default();
        for number in 1..=5_000_u64 {
            let usage = Usage { input_tokens: number, ..Usage::default() };
            series.add_total(number, Timestamp::UNIX_EPOCH, usage);
            series.add_total(number, Timestamp::UNIX_EPOCH, usage);
        }
        let points = series.finish();
        assert!(points.len() <= MAX_POINTS + 1, "{}", points.len());
        let ends = (points.first().map(|point| point.sequence), points.last().map(|point| point.sequence));
        assert_eq!(ends, (Some(1), Some(5_000)));
        assert!(points.is_sorted_by(|a, b| a.sequence < b.sequence));
    }
}
