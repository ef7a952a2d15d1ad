//! The number of runs per status. Summaries are kept as long as their runs are archived, so only those that changed
//! since the last read are read again.

use std::collections::BTreeMap;

use millrace_protocol::plan::EndReason;
use millrace_protocol::registry::RunSummary;

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use crate::nats::topology;

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
#[derive(Default)]
pub struct RunStatusTable {
    statuses: BTreeMap<String, String>,
    /// The sequence of the last summary that was read.
    last_read: u64,
}

impl RunStatusTable {
    /// Reads the summaries that changed. `last` is the last sequence of the bucket.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn read_changed_summaries(&mut self, bus: &Bus, last: u64) -> Result<(), Fault> {
        if last < self.last_read {
            // The bucket was created again: the cluster was restored from a backup.
            *self = Self::default();
        }
        let prefix = format!("$KV.{}.", topology::RUNS);
        let stream = topology::bucket_stream(topology::RUNS);
        let mut pages = PagedReader::new(bus.client(), stream, ALL_SUBJECTS.into(), self.last_read + 1);
        loop {
            let records = pages.next_page().await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                self.last_read = record.sequence;
                let Some(run) = record.subject.strip_prefix(&prefix) else { continue };
                match serde_json::from_slice::<RunSummary>(&record.payload) {
                    Ok(summary) if !record.is_deletion => {
                        self.statuses.insert(run.to_owned(), run_status_label(&summary));
                    }
                    Ok(_) | Err(_) => drop(self.statuses.remove(run)),
                }
            }
        }
    }

    /// Returns the number of runs per status, including statuses without runs.
    #[must_use]
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
