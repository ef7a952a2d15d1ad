//! A run is over: its queues are emptied, everybody is told, and it moves from the lane into the archive. Each step
//! is safe to repeat, and whoever owns the lane next begins again at the first.

use std::time::Duration;

use millrace_protocol::registry::RunSummary;
use millrace_runtime::{Bus, Fault, archive, log, queue, registry};
use tracing::{debug, info, warn};

/// How long a step that failed waits before it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Closes a run that ended with the decision of sequence `end`. The summary is written at once; the archive after `linger`, so that those who watch can see the end
/// in the lane. Returns when the lane holds nothing more of the run.
pub async fn close(bus: &Bus, mut summary: RunSummary, end: u64, linger: Duration) {
    clear(bus, &summary).await;
    until_done("summary", &summary, || registry::summarise(bus, &summary)).await;
    tokio::time::sleep(linger).await;
    let archived = || archive::write(bus, summary.lane, &summary.run, end);
    let through = until_done("archive", &summary, archived).await;
    // An order that was on its way when the run ended would find no journal once the lane is empty, and be done again.
    clear(bus, &summary).await;
    summary.archived = true;
    until_done("summary", &summary, || registry::summarise(bus, &summary)).await;
    until_done("purge", &summary, || log::purge_run(bus, summary.lane, &summary.run, through)).await;
    info!(run = %summary.run, "archived");
}

async fn clear(bus: &Bus, summary: &RunSummary) {
    if let Err(fault) = queue::clear(bus, &summary.run).await {
        warn!(run = %summary.run, %fault, "the queues could not be cleared of a run that is over");
    }
}

async fn until_done<T, F>(what: &str, summary: &RunSummary, step: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Fault>>,
{
    loop {
        match step().await {
            Ok(done) => return done,
            Err(fault) => debug!(run = %summary.run, what, %fault, "closing a run: trying again"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}
