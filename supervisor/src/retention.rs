//! Deletes runs on request and by the rules of the cluster, and sweeps blobs that nothing refers to. The owner of lane 0 does
//! this; if it dies, the next one continues from the records (`millrace_runtime::store::retention`).

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_protocol::retention::{PruneSelection, SweepRecord};
use millrace_runtime::store::retention::{
    self, DeletionError, DeletionFeed, DeletionRequest, RECORD_AGE, SweepOptions,
};
use millrace_runtime::{Bus, Fault, clock};
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// The interval at which requests are looked for if nothing announces them.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which deletions that had to wait are tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The interval at which rules are applied. Each reads the summaries of all runs.
const RULE_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The interval at which a sweep is considered, and records expire.
const SWEEP_CHECK: Duration = Duration::from_secs(60);
/// The shortest interval between two sweeps that nobody has requested: each reads the store.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The interval of sweeps while nothing is deleted: uploads that were never submitted go too.
const IDLE_SWEEP_INTERVAL: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The number of runs that are deleted at the same time.
const CONCURRENT_REMOVALS: usize = 8;
/// The number of runs that are deleted before new requests are read.
const BATCH: usize = 64;
/// The pause between two looks at requests for sweeps and changes of rules.
const REQUEST_CHECK: Duration = Duration::from_secs(2);

/// Carries deletions out, applies rules, and sweeps, for ever.
pub(crate) async fn keep_retention(bus: Bus) {
    tokio::join!(remove_requested_runs(&bus), apply_rules(&bus), sweep_when_due(&bus));
}

/// Carries deletions out as they are requested, the newest first: a person may be waiting for it behind a thousand that a rule has
/// requested.
async fn remove_requested_runs(bus: &Bus) {
    let mut feed = DeletionFeed::open(bus).await;
    let (mut requested, mut unfinished) = (Vec::new(), Vec::new());
    loop {
        match feed.read_new(bus).await {
            Ok(runs) => requested.extend(runs),
            Err(fault) => debug!(%fault, "failed to read requests to delete runs; retrying"),
        }
        if requested.is_empty() {
            requested.append(&mut unfinished);
        }
        let batch = requested.split_off(requested.len().saturating_sub(BATCH));
        unfinished.extend(remove_runs(bus, batch).await);
        if requested.is_empty() {
            let pause = if unfinished.is_empty() { POLL_INTERVAL } else { RETRY_INTERVAL };
            feed.wait_for_request(pause).await;
        }
    }
}

/// Deletes runs; returns those whose deletion must be continued.
async fn remove_runs(bus: &Bus, runs: Vec<RunId>) -> Vec<RunId> {
    let removals = futures::stream::iter(runs).map(|run| remove_run(bus, run));
    removals.buffer_unordered(CONCURRENT_REMOVALS).filter_map(std::future::ready).collect().await
}

/// Deletes a run; returns it if its deletion must be continued.
async fn remove_run(bus: &Bus, run: RunId) -> Option<RunId> {
    match retention::remove_requested_run(bus, &run).await {
        Ok(true) => None,
        Ok(false) => Some(run),
        Err(fault) => {
            debug!(%run, %fault, "failed to delete a run; retrying");
            Some(run)
        }
    }
}

/// Requests the deletion of the runs that the rules select.
async fn apply_rules(bus: &Bus) {
    let mut known = None;
    let mut due = Instant::now();
    loop {
        match retention::list_rules(bus).await {
            Ok(rules) => {
                if known.as_ref() != Some(&rules) || Instant::now() >= due {
                    for (name, rule) in &rules {
                        let by = format!("retention rule {name}");
                        if let Err(fault) = request_selected(bus, &rule.selection, &by).await {
                            debug!(name, %fault, "failed to apply a retention rule; retrying");
                        }
                    }
                    due = Instant::now() + RULE_INTERVAL;
                    known = Some(rules);
                }
            }
            Err(fault) => debug!(%fault, "failed to read the retention rules; retrying"),
        }
        tokio::time::sleep(REQUEST_CHECK).await;
    }
}

async fn request_selected(bus: &Bus, selection: &PruneSelection, by: &str) -> Result<(), Fault> {
    let mut requested = 0_u32;
    // A rule takes nobody the choice to resume a run; that ends a week after the run.
    let is_over = |summary: &RunSummary| summary.archived || !summary.is_resumable;
    for summary in retention::select_runs(bus, selection).await?.into_iter().filter(is_over) {
        match retention::request_deletion(bus, &summary.run, by).await {
            Ok(DeletionRequest::Recorded) => requested += 1,
            Ok(DeletionRequest::Pending | DeletionRequest::Deleted) => {}
            Err(DeletionError::Fault(fault)) => return Err(fault),
            Err(error) => {
                debug!(run = %summary.run, %error, "a retention rule selected a run that can't be deleted")
            }
        }
    }
    if requested > 0 {
        info!(by, runs = requested, "a retention rule deletes runs");
    }
    Ok(())
}

/// Sweeps blobs and expires records when that is due.
async fn sweep_when_due(bus: &Bus) {
    let mut checked: Option<Instant> = None;
    loop {
        let is_check_due = checked.is_none_or(|checked| checked.elapsed() >= SWEEP_CHECK);
        match is_sweep_due(bus, is_check_due).await {
            Ok(true) => {
                if let Err(fault) = sweep(bus).await {
                    warn!(%fault, "the sweep of blobs failed; trying again later");
                    tokio::time::sleep(SWEEP_CHECK).await;
                }
            }
            Ok(false) => {}
            Err(fault) => debug!(%fault, "failed to look for a due sweep; retrying"),
        }
        if is_check_due {
            checked = Some(Instant::now());
            if let Err(fault) = retention::expire_records(bus, RECORD_AGE).await {
                debug!(%fault, "failed to remove expired records of deletions; retrying");
            }
        }
        tokio::time::sleep(REQUEST_CHECK).await;
    }
}

/// `true` if a sweep was requested; or, if `is_check_due`, if runs were deleted since the last one, or it was long ago.
async fn is_sweep_due(bus: &Bus, is_check_due: bool) -> Result<bool, Fault> {
    let last = retention::read_sweep_record(bus).await?.map(|record| record.began);
    if retention::was_sweep_requested_since(bus, last.unwrap_or(Timestamp::UNIX_EPOCH)).await? {
        return Ok(true);
    }
    if !is_check_due {
        return Ok(false);
    }
    let age = last.map(|last| clock::now().duration_since(last).unsigned_abs());
    if age.is_some_and(|age| age < SWEEP_INTERVAL) {
        return Ok(false);
    }
    if age.is_some_and(|age| age >= IDLE_SWEEP_INTERVAL) {
        return Ok(true);
    }
    // Blobs of runs that were deleted before the last sweep may have been too young then.
    let grace = retention::read_sweep_settings(bus).await?.blob_grace();
    let swept = last.and_then(|last| last.checked_sub(grace).ok());
    let deletions = retention::list_deletions(bus).await?;
    Ok(deletions.iter().any(|entry| swept.is_none_or(|swept| entry.at > swept)))
}

async fn sweep(bus: &Bus) -> Result<(), Fault> {
    let began = clock::now();
    let grace = retention::read_sweep_settings(bus).await?.blob_grace();
    let Some(report) = retention::sweep_blobs(bus, SweepOptions { grace, is_paced: true }).await? else {
        return Ok(());
    };
    info!(
        blobs = report.blobs,
        referenced = report.referenced,
        removed = report.removed,
        bytes = report.removed_bytes,
        "swept blobs"
    );
    retention::write_sweep_record(bus, &SweepRecord { began, ended: clock::now(), report }).await
}
