//! Closes a run that has ended: empties its queues, writes its summary, and moves it from the lane into the archive.
//! Every step is idempotent; after a takeover the new owner repeats all of them.
//!
//! # Invariants
//!
//! - I21: An ended run leaves its lane empty, and the archive answers for it.
//!   (`tests/tests/supervision.rs::archived_run_leaves_its_lane_and_stays_readable`)
//! - I57: A run leaves its lane only when the archive holds all of it.
//!   (`crates/runtime/tests/archive.rs::lane_takes_precedence_over_forged_summaries_and_archives`,
//!   `tests/tests/access.rs::forged_archive_summary_does_not_remove_a_live_run`)

use std::time::Duration;

use millrace_protocol::registry::RunSummary;
use millrace_runtime::store::archive;
use millrace_runtime::work::{queue, registry};
use millrace_runtime::{Bus, Fault, log};
use tracing::{debug, info, warn};

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
    retry_until_done("summary", &summary, || write_unless_archived(bus, &summary)).await;
    tokio::time::sleep(ended.linger).await;
    let archive = || archive::archive_run(bus, summary.lane, &summary.run, ended.end, ended.messages);
    let span = retry_until_done("archive", &summary, archive).await;
    // A command is not removed without a decision. One that arrives after this check has a later sequence than the archive,
    // so the purge keeps it.
    let reopens = || async {
        Ok(span.last_command > ended.answered
            && archive::has_reopening_command(bus, summary.lane, &summary.run, ended.answered).await?)
    };
    if retry_until_done("commands", &summary, reopens).await {
        return ClosedRun::Reopening;
    }
    // An order that was in flight when the run ended would find no journal in an empty lane, and be done again.
    withdraw_orders_of_run(bus, &summary).await;
    summary.archived = true;
    summary.archived_span = (span.last > 0).then_some((span.first, span.last));
    retry_until_done("summary", &summary, || mark_as_archived(bus, &summary)).await;
    retry_until_done("purge", &summary, || log::purge_run(bus, summary.lane, &summary.run, span.last)).await;
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

/// Repeats a step until it succeeds.
async fn retry_until_done<T, F>(what: &str, summary: &RunSummary, step: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Fault>>,
{
    loop {
        match step().await {
            Ok(done) => return done,
            Err(fault) => debug!(run = %summary.run, what, %fault, "failed to close a run; retrying"),
        }
        tokio::time::sleep(RETRY).await;
    }
}
