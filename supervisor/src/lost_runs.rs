//! Finds runs that are live according to their summaries and whose submission is not in the log. Either the archive holds them,
//! and the server has lost the newest version of the summary, or a damaged store has lost them. Their summaries are updated, or
//! every list would show these runs as running for ever.
//!
//! # Invariants
//!
//! - I100: A run in the archive is never reported as lost: if a server has an older summary of an archived run, or a rest of it
//!   in the lane, the summary is updated and the rest is removed.
//!   (`tests/tests/supervision.rs::archived_run_survives_an_older_summary_and_a_rest_in_its_lane`)

use std::collections::HashSet;
use std::sync::Arc;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::{RunSummary, SUBMISSION_IS_MISSING};
use millrace_runtime::store::archive::is_archived;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault, clock, log};
use tokio::sync::Mutex;
use tracing::{error, info};

use crate::reader::{ArchivedRun, fold_run_with_archive};

/// The runs that were live when this process connected to its server. A server loses messages only when it starts, so they
/// are read once for each server.
#[derive(Debug, Default)]
pub struct LiveRunIndex(Mutex<Option<(String, Arc<Vec<RunId>>)>>);

impl LiveRunIndex {
    /// Returns the ids of the runs.
    async fn read(&self, bus: &Bus) -> Result<Arc<Vec<RunId>>, Fault> {
        let server = bus.connected_server().unwrap_or_default();
        let mut index = self.0.lock().await;
        if let Some((_, runs)) = index.as_ref().filter(|(of, _)| *of == server) {
            return Ok(Arc::clone(runs));
        }
        let live = registry::read_run_summaries(bus).await?.into_iter().filter(is_in_lane);
        let runs = Arc::new(live.map(|summary| summary.run).collect());
        *index = Some((server, Arc::clone(&runs)));
        Ok(runs)
    }
}

/// `true` if a run with this summary should be in its lane, or is missing there.
fn is_in_lane(summary: &RunSummary) -> bool {
    !summary.archived && summary.log_damage.as_deref().is_none_or(|damage| damage == SUBMISSION_IS_MISSING)
}

/// Updates the summaries of the runs that a lane does not hold any more: those in the archive are marked as archived, and the
/// others are reported as lost. `known` are the runs that the lane holds.
pub async fn report_lost_runs(
    bus: &Bus,
    lane: Lane,
    index: &LiveRunIndex,
    known: &HashSet<RunId>,
) -> Result<(), Fault> {
    let runs = index.read(bus).await?;
    for run in runs.iter().filter(|run| bus.lane_of_run(run) == lane && !known.contains(*run)) {
        // It may have been archived meanwhile, or submitted again.
        let summary = registry::read_summary(bus, run).await?.filter(is_in_lane);
        let Some(summary) = summary else { continue };
        if log::has_submission(bus, lane, run).await? {
            continue;
        }
        let archived = match fold_run_with_archive(bus, lane, run).await {
            Ok(archived) => archived,
            Err(fault) if fault.is_transient() && is_archived(bus, run).await? => return Err(fault),
            Err(_) => ArchivedRun::None,
        };
        match archived {
            ArchivedRun::Reopened(_) => {}
            ArchivedRun::Ended { folded, .. } if folded.plan.run.end.is_some() => {
                let Some(current) = folded.summary(run, lane, clock::now()) else { continue };
                info!(%run, %lane, "the run is in the archive; its summary is updated");
                registry::write_summary(bus, &RunSummary { archived: true, ..current }).await?;
            }
            ArchivedRun::Ended { .. } | ArchivedRun::None => {
                if summary.log_damage.is_none() {
                    report_damage(bus, summary, SUBMISSION_IS_MISSING.into()).await?;
                }
            }
        }
    }
    Ok(())
}

/// Writes the damage of a run's log into its summary.
pub async fn report_damage(bus: &Bus, summary: RunSummary, damage: String) -> Result<(), Fault> {
    error!(run = %summary.run, lane = %summary.lane, damage, "the log of this run is damaged; it cannot continue");
    let summary = RunSummary { log_damage: Some(damage), updated: clock::now(), ..summary };
    registry::write_summary(bus, &summary).await
}
