//! Closes a run that has ended: empties its queues, writes its summary, and moves it from the lane into the archive.
//! Every step is idempotent; after a takeover the new owner repeats all of them.
//!
//! Also finds runs that are live according to their summaries and whose submission is not in the log. Either the archive holds them,
//! and the server has lost the newest version of the summary, or a damaged store has lost them. Their summaries are updated, or
//! every list would show these runs as running for ever.
//!
//! # Invariants
//!
//! - I21: An ended run leaves its lane empty, and the archive answers for it.
//!   (`tests/tests/supervision.rs::archived_run_leaves_its_lane_and_stays_readable`)
//! - I57: A run leaves its lane only when the archive holds all of it.
//!   (`crates/runtime/tests/archive.rs::lane_takes_precedence_over_forged_summaries_and_archives`,
//!   `tests/tests/access.rs::forged_archive_summary_does_not_remove_a_live_run`)
//! - I100: A run in the archive is never reported as lost: if a server has an older summary of an archived run, or a rest of it
//!   in the lane, the summary is updated and the rest is removed.
//!   (`tests/tests/supervision.rs::archived_run_survives_an_older_summary_and_a_rest_in_its_lane`)

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::{RunSummary, SUBMISSION_IS_MISSING};
use millrace_runtime::store::archive::{self, is_archived};
use millrace_runtime::work::{queue, registry};
use millrace_runtime::{Bus, Fault, clock, log};
use tokio::sync::Mutex;
use tracing::{debug, error, info, warn};

use crate::reader::fold::{ArchivedRun, fold_run_with_archive};

/// The pause before a failed step is retried.
const RETRY: Duration = Duration::from_secs(1);

/// The end of a run, as its owner sees it.
#[derive(Debug, Clone, Copy)]
pub struct EndedRun {
    /// The sequence of the decision that ended it.
    pub end: u64,
    /// The sequence up to which decisions have answered all facts.
    pub answered: u64,
    /// `false` if all its work has ended with an outcome in the log, so that no process has to be stopped at once.
    pub has_open_work: bool,
    /// The number of its messages that its owner has read; a hint that saves the server a search.
    pub messages: usize,
    /// The time that it stays in its lane.
    pub linger: Duration,
}

/// The outcome of closing a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedRun {
    /// It is in the archive up to this sequence, and its lane holds nothing of it up to there.
    Archived {
        /// The sequence; 0 if another owner of the lane has archived it.
        through: u64,
    },
    /// A command arrived that no decision has answered and that may reopen the run: its lane still holds it.
    Reopening,
}

/// Closes a run that has ended. The summary is written at once, the archive after a while, so that clients that watch the
/// lane see the end.
pub async fn close_ended_run(bus: &Bus, mut summary: RunSummary, ended: EndedRun) -> ClosedRun {
    if ended.has_open_work {
        withdraw_orders_of_run(bus, &summary).await;
    }
    retry_until_done("writing the summary", &summary.run, || write_unless_archived(bus, &summary)).await;
    tokio::time::sleep(ended.linger).await;
    let archive = || archive::archive_run(bus, summary.lane, &summary.run, ended.end, ended.messages);
    let span = retry_until_done("archiving", &summary.run, archive).await;
    // A command is not removed without a decision. One that arrives after this check has a later sequence than the archive,
    // so the purge keeps it.
    let reopens = || async {
        Ok(span.last_command > ended.answered
            && archive::has_reopening_command(bus, summary.lane, &summary.run, ended.answered).await?)
    };
    if retry_until_done("reading commands", &summary.run, reopens).await {
        return ClosedRun::Reopening;
    }
    // An order that was in flight when the run ended would find no journal in an empty lane, and be done again.
    withdraw_orders_of_run(bus, &summary).await;
    summary.archived = true;
    summary.archived_span = (span.last > 0).then_some((span.first, span.last));
    retry_until_done("writing the summary", &summary.run, || mark_as_archived(bus, &summary)).await;
    retry_until_done("removing messages", &summary.run, || {
        log::purge_run(bus, summary.lane, &summary.run, span.last)
    })
    .await;
    info!(run = %summary.run, "run archived");
    ClosedRun::Archived { through: span.last }
}

/// Writes the summary of an ended run, unless another owner of its lane has archived the run: the mark must stay.
async fn write_unless_archived(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    let write = |stored: Option<&RunSummary>| {
        let is_archived = stored.is_some_and(|stored| stored.archived && stored.end == summary.end);
        !is_archived && !is_superseded(summary, stored)
    };
    registry::write_summary_if(bus, summary, write).await
}

/// Writes the summary of an archived run. If another owner of its lane has archived it, its span stays, and so does the summary of a
/// run that was reopened since.
async fn mark_as_archived(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    let write = |stored: Option<&RunSummary>| match summary.archived_span {
        Some(_) => archived_through(stored) < archived_through(Some(summary)),
        None => {
            archived_through(stored) == 0
                && !stored.is_some_and(|stored| stored.archived && stored.end == summary.end)
        }
    };
    registry::write_summary_if(bus, summary, write).await
}

/// `true` if the stored summary of a run is of a larger part of its log: an owner that was suspended writes over no newer state.
pub fn is_superseded(summary: &RunSummary, stored: Option<&RunSummary>) -> bool {
    archived_through(stored) > archived_through(Some(summary))
}

fn archived_through(summary: Option<&RunSummary>) -> u64 {
    summary.and_then(|summary| summary.archived_span).map_or(0, |(_, last)| last)
}

async fn withdraw_orders_of_run(bus: &Bus, summary: &RunSummary) {
    if let Err(fault) = queue::withdraw_orders_of_run(bus, &summary.run).await {
        warn!(run = %summary.run, %fault, "failed to clear the queues of an ended run");
    }
}

/// Repeats a step of a run until it succeeds.
pub(crate) async fn retry_until_done<T, F>(what: &str, run: &RunId, step: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Fault>>,
{
    loop {
        match step().await {
            Ok(done) => return done,
            Err(fault) => debug!(%run, what, %fault, "a step failed; retrying"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

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
