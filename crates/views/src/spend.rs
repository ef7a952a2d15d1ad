//! The usage of models and tools: of one run, and of many. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::labels::Labels;
use millrace_protocol::plan::{Plan, UsageBreakdown};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Time, tagged};

/// The maximum number of points of a series.
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
    /// Adds the usage after a decision.
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
    /// Returns the usage of a run.
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
    groups: BTreeMap<String, (u64, Usage)>,
}

impl SpendTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new(group: SpendGroup) -> Self {
        Self { group, runs: 0, usage: Usage::default(), groups: BTreeMap::new() }
    }

    pub fn add_run(&mut self, summary: &RunSummary) {
        self.runs += 1;
        self.usage.add(summary.usage);
        match &self.group {
            SpendGroup::Capability => {
                let spend = summary.spend.iter().flat_map(|spend| &spend.by_capability);
                add_parts(&mut self.groups, spend.map(|(name, usage)| (name.as_str(), *usage)));
            }
            SpendGroup::Model => {
                let spend = summary.spend.iter().flat_map(|spend| &spend.by_model);
                add_parts(&mut self.groups, spend.map(|(name, usage)| (name.as_str(), *usage)));
            }
            SpendGroup::Label(name) => {
                let value = label_value(&summary.labels, name).to_owned();
                self.add_to(value, summary.usage);
            }
            SpendGroup::Day => {
                let day = summary.started.strftime("%Y-%m-%d").to_string();
                self.add_to(day, summary.usage);
            }
            SpendGroup::State => {
                let state = crate::RunState::of_summary(Some(summary)).name().to_owned();
                self.add_to(state, summary.usage);
            }
        }
    }

    fn add_to(&mut self, name: String, usage: Usage) {
        let (runs, total) = self.groups.entry(name).or_default();
        *runs += 1;
        total.add(usage);
    }

    #[must_use]
    pub fn finish(self) -> SpendReport {
        let groups = self.groups.into_iter();
        let mut groups: Vec<SpendLine> =
            groups.map(|(name, (runs, usage))| SpendLine { name, runs, usage }).collect();
        if self.group != SpendGroup::Day {
            groups
                .sort_by_key(|group| std::cmp::Reverse((group.usage.cost_micros, group.usage.input_tokens)));
        }
        SpendReport { runs: self.runs, usage: self.usage, groups }
    }
}

fn add_parts<'a>(groups: &mut BTreeMap<String, (u64, Usage)>, parts: impl Iterator<Item = (&'a str, Usage)>) {
    for (name, usage) in parts {
        if !groups.contains_key(name) {
            groups.insert(name.to_owned(), (0, Usage::default()));
        }
        if let Some((runs, total)) = groups.get_mut(name) {
            *runs += 1;
            total.add(usage);
        }
    }
}

fn label_value<'a>(labels: &'a Labels, name: &str) -> &'a str {
    labels.get(name).map_or("", String::as_str)
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
