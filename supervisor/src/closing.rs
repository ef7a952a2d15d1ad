//! Closes a run that has ended: empties its queues, writes its summary, and moves it from the lane into the archive.
//! Every step is idempotent; after a takeover the new owner repeats all of them.

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
    /// `false` if all its work has ended with an outcome in the log, so that no process has to be stopped at once.
    pub has_open_work: bool,
    /// The number of its messages that its owner has read; a hint that saves the server a search.
    pub messages: usize,
    /// The time that it stays in its lane.
    pub linger: Duration,
}

/// Closes a run that has ended. The summary is written at once, the archive after a while, so that clients that watch the
/// lane see the end. Returns when the lane holds no message of the run.
pub async fn close_ended_run(bus: &Bus, mut summary: RunSummary, ended: EndedRun) {
    if ended.has_open_work {
        withdraw_orders_of_run(bus, &summary).await;
    }
    retry_until_done("summary", &summary, || write_unless_archived(bus, &summary)).await;
    tokio::time::sleep(ended.linger).await;
    let archive = || archive::archive_run(bus, summary.lane, &summary.run, ended.end, ended.messages);
    let span = retry_until_done("archive", &summary, archive).await;
    // An order that was in flight when the run ended would find no journal in an empty lane, and be done again.
    withdraw_orders_of_run(bus, &summary).await;
    summary.archived = true;
    summary.archived_span = (span.last > 0).then_some((span.first, span.last));
    retry_until_done("summary", &summary, || mark_as_archived(bus, &summary)).await;
    retry_until_done("purge", &summary, || log::purge_run(bus, summary.lane, &summary.run, span.last)).await;
    info!(run = %summary.run, "run archived");
}

/// Writes the summary of an ended run, unless another owner of its lane has archived the run: the mark must stay.
async fn write_unless_archived(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    let stored = registry::read_summary(bus, &summary.run).await?;
    let is_archived = stored.is_some_and(|stored| stored.archived && stored.end == summary.end);
    if is_archived { Ok(()) } else { registry::write_summary(bus, summary).await }
}

/// Writes the summary of an archived run. If another owner of its lane has archived it, its span stays.
async fn mark_as_archived(bus: &Bus, summary: &RunSummary) -> Result<(), Fault> {
    if summary.archived_span.is_none() {
        let stored = registry::read_summary(bus, &summary.run).await?;
        if stored.is_some_and(|stored| stored.archived && stored.end == summary.end) {
            return Ok(());
        }
    }
    registry::write_summary(bus, summary).await
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
