//! Deletes many runs, and reads the retention of a cluster.

use futures::{StreamExt, TryStreamExt};
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{RetentionRule, SweepRecord, SweepSettings};
use millrace_runtime::store::retention::{
    DeletionError, DeletionRequest, list_deletions, list_rules, read_sweep_record, read_sweep_settings,
    request_deletion,
};
use millrace_runtime::{Bus, Fault};

/// The number of requests that are written at the same time.
const CONCURRENT_REQUESTS: usize = 64;

#[derive(Debug)]
pub struct RetentionOverview {
    pub rules: Vec<(String, RetentionRule)>,
    pub settings: SweepSettings,
    /// The number of deletions in progress.
    pub pending: usize,
    pub last_sweep: Option<SweepRecord>,
}

pub async fn read_retention(bus: &Bus) -> Result<RetentionOverview, Fault> {
    let deletions = list_deletions(bus).await?;
    Ok(RetentionOverview {
        rules: list_rules(bus).await?,
        settings: read_sweep_settings(bus).await?,
        pending: deletions.iter().filter(|entry| entry.value.state.is_pending()).count(),
        last_sweep: read_sweep_record(bus).await?,
    })
}

/// Requests the deletion of runs. Returns those whose deletion is in progress now; runs that continue meanwhile, or that somebody
/// else has deleted, are left out.
pub async fn request_deletions(bus: &Bus, runs: Vec<RunId>, by: &str) -> Result<Vec<RunId>, Fault> {
    let requests = futures::stream::iter(runs).map(|run| request_one(bus, run, by));
    requests
        .buffered(CONCURRENT_REQUESTS)
        .try_filter_map(|run| std::future::ready(Ok(run)))
        .try_collect()
        .await
}

async fn request_one(bus: &Bus, run: RunId, by: &str) -> Result<Option<RunId>, Fault> {
    match request_deletion(bus, &run, by).await {
        Ok(DeletionRequest::Recorded | DeletionRequest::Pending) => Ok(Some(run)),
        Ok(DeletionRequest::Deleted) | Err(DeletionError::NotFound(_) | DeletionError::Live(_)) => Ok(None),
        Err(DeletionError::Fault(fault)) => Err(fault),
    }
}
