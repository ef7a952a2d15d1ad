//! How many runs stand how. Summaries are kept for as long as their runs are in the archive, so that only those are
//! read that have changed since the last time.

use std::collections::BTreeMap;

use millrace_protocol::plan::EndReason;
use millrace_protocol::registry::RunSummary;

use crate::bus::Bus;
use crate::direct::Pages;
use crate::{Fault, topology};

/// How a run that is under way stands.
const UNDER_WAY: [&str; 3] = ["running", "paused", "winding_down"];
/// How a run can have ended.
const ENDS: [EndReason; 8] = [
    EndReason::Completed,
    EndReason::CompletedPartial,
    EndReason::Failed,
    EndReason::Cancelled,
    EndReason::NoProgress,
    EndReason::PlannerUnavailable,
    EndReason::BudgetExhausted,
    EndReason::MaxSteps,
];

/// The runs by how they stand, as they were read last.
#[derive(Default)]
pub(super) struct Runs {
    statuses: BTreeMap<String, String>,
    /// The sequence of the last summary that was read.
    through: u64,
}

impl Runs {
    /// Reads what has changed, where the bucket's last sequence is `last`.
    pub async fn read(&mut self, bus: &Bus, last: u64) -> Result<(), Fault> {
        if last < self.through {
            // It is another bucket than it was: everything was put back from a copy.
            *self = Self::default();
        }
        let prefix = format!("$KV.{}.", topology::RUNS);
        let stream = topology::bucket_stream(topology::RUNS);
        let mut pages = Pages::new(bus.client(), stream, format!("{prefix}>"), self.through + 1);
        loop {
            let records = pages.next().await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                self.through = record.sequence;
                let Some(run) = record.subject.strip_prefix(&prefix) else { continue };
                match serde_json::from_slice::<RunSummary>(&record.payload) {
                    Ok(summary) if !record.is_deletion => {
                        self.statuses.insert(run.to_owned(), status(&summary));
                    }
                    Ok(_) | Err(_) => drop(self.statuses.remove(run)),
                }
            }
        }
    }

    /// How many runs there are of each status, those of none included.
    pub fn count(&self) -> Vec<([String; 1], f64)> {
        let all = UNDER_WAY.map(str::to_owned).into_iter().chain(ENDS.map(|end| end.to_string()));
        let mut counts: BTreeMap<String, f64> = all.map(|status| (status, 0.0)).collect();
        for status in self.statuses.values() {
            *counts.entry(status.clone()).or_default() += 1.0;
        }
        counts.into_iter().map(|(status, count)| ([status], count)).collect()
    }
}

fn status(summary: &RunSummary) -> String {
    let [running, paused, winding_down] = UNDER_WAY;
    match summary.end {
        Some(end) => end.to_string(),
        None if summary.is_paused => paused.to_owned(),
        None if summary.winding_down.is_some() => winding_down.to_owned(),
        None => running.to_owned(),
    }
}
