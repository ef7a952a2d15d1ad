//! The number of runs per status. Summaries are kept as long as their runs are archived, so only those that changed
//! since the last read are read again.

use std::collections::BTreeMap;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::EndReason;
use millrace_protocol::registry::RunSummary;

use crate::Fault;
use crate::nats::bus::Bus;
use crate::work::summary_changes::{SummaryChange, SummaryChanges};

/// The statuses of a live run.
const LIVE: [&str; 3] = ["running", "paused", "winding_down"];
/// The reasons for which a run ends.
const END_REASONS: [EndReason; 8] = [
    EndReason::Completed,
    EndReason::CompletedPartial,
    EndReason::Failed,
    EndReason::Cancelled,
    EndReason::NoProgress,
    EndReason::PlannerUnavailable,
    EndReason::BudgetExhausted,
    EndReason::MaxSteps,
];

/// The status of each run, as of the last read.
pub struct RunStatusTable {
    statuses: BTreeMap<RunId, String>,
    changes: SummaryChanges,
}

impl Default for RunStatusTable {
    fn default() -> Self {
        Self { statuses: BTreeMap::new(), changes: SummaryChanges::after(0) }
    }
}

impl RunStatusTable {
    /// Reads the summaries that changed. `last` is the last sequence of the bucket.
    pub async fn read_changed_summaries(&mut self, bus: &Bus, last: u64) -> Result<(), Fault> {
        if last < self.changes.seen() {
            // The bucket was created again: the cluster was restored from a backup.
            *self = Self::default();
        }
        while let Some(changes) = self.changes.next_page(bus).await? {
            for change in changes {
                match change {
                    SummaryChange::Written { summary, .. } => {
                        let status = run_status_label(&summary);
                        self.statuses.insert(summary.run, status);
                    }
                    SummaryChange::Removed(run) => drop(self.statuses.remove(&run)),
                }
            }
        }
        Ok(())
    }

    /// Returns the number of runs per status, including statuses without runs.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let all = LIVE.map(str::to_owned).into_iter().chain(END_REASONS.map(|end| end.to_string()));
        let mut counts: BTreeMap<String, u64> = all.map(|status| (status, 0)).collect();
        for status in self.statuses.values() {
            *counts.entry(status.clone()).or_default() += 1;
        }
        counts
    }
}

/// Returns the status of a run: why it ended, or the status of a live run.
fn run_status_label(summary: &RunSummary) -> String {
    let [running, paused, winding_down] = LIVE;
    match summary.end {
        Some(end) => end.to_string(),
        None if summary.is_paused => paused.to_owned(),
        None if summary.winding_down.is_some() => winding_down.to_owned(),
        None => running.to_owned(),
    }
}
