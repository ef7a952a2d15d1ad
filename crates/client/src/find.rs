//! Lists runs, and finds the run that a user names.

use std::collections::BTreeSet;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::log::{has_submission, list_submitted_runs};
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};

use crate::read_plan;

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("there are no runs yet")]
    NoRuns,
    /// The text is empty, which would match every run.
    #[error("the run id is empty; give a run id, a unique prefix of one, or `latest`")]
    Empty,
    /// No run id begins with this text.
    #[error("no run {0:?}; `millrace list` shows all runs")]
    NotFound(String),
    /// Several run ids begin with this text.
    #[error("{text:?} matches runs {first} and {second}; give more of the id")]
    Ambiguous { text: String, first: RunId, second: RunId },
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Returns all runs with their summaries, oldest first. A run that no supervisor has summarized yet, as after a
/// restore, is folded here; a run that has not started has no summary.
pub async fn list_runs(bus: &Bus) -> Result<Vec<(RunId, Option<RunSummary>)>, Fault> {
    let summaries = registry::read_run_summaries(bus).await?.into_iter();
    let mut runs: Vec<_> = summaries.map(|summary| (summary.run.clone(), Some(summary))).collect();
    let summarized: BTreeSet<RunId> = runs.iter().map(|(run, _)| run.clone()).collect();
    for run in list_submitted_runs(bus).await?.into_iter().filter(|run| !summarized.contains(run)) {
        let summary = RunSummary::from_plan(
            &run,
            bus.lane_of_run(&run),
            &read_plan(bus, &run).await?,
            Timestamp::now(),
        );
        runs.push((run, summary));
    }
    runs.sort_by_key(|(_, summary)| summary.as_ref().map_or(Timestamp::MAX, |summary| summary.started));
    Ok(runs)
}

/// Like [`list_runs`], with the unfinished runs as of their last decisions.
pub async fn list_runs_from_log(bus: &Bus) -> Result<Vec<(RunId, Option<RunSummary>)>, Fault> {
    let mut runs = list_runs(bus).await?;
    for (run, summary) in &mut runs {
        if summary.as_ref().is_some_and(|summary| summary.end.is_none()) {
            let plan = read_plan(bus, run).await?;
            let current = RunSummary::from_plan(run, bus.lane_of_run(run), &plan, Timestamp::now());
            *summary = current.or(summary.take());
        }
    }
    Ok(runs)
}

/// Finds the run that `text` names: a full id, a unique prefix of one, or `latest` for the newest run.
pub async fn find_run(bus: &Bus, text: &str) -> Result<RunId, FindError> {
    if text.trim().is_empty() {
        return Err(FindError::Empty);
    }
    if text == "latest" {
        let newest = registry::read_run_summaries(bus).await?.pop();
        return find_newest_run(bus, newest.map(|summary| summary.run)).await;
    }
    if let Ok(run) = RunId::new(text)
        && (registry::read_summary(bus, &run).await?.is_some()
            || has_submission(bus, bus.lane_of_run(&run), &run).await?
            || archive::is_archived(bus, &run).await?)
    {
        return Ok(run);
    }
    let runs = registry::read_run_summaries(bus).await?;
    let all: BTreeSet<RunId> = list_submitted_runs(bus)
        .await?
        .into_iter()
        .chain(runs.into_iter().map(|summary| summary.run))
        .collect();
    let mut matches = all.iter().filter(|run| run.as_str().starts_with(text));
    match (matches.next(), matches.next()) {
        (Some(run), None) => Ok(run.clone()),
        (Some(first), Some(second)) => {
            let (first, second) = (first.clone(), second.clone());
            Err(FindError::Ambiguous { text: text.to_owned(), first, second })
        }
        (None, _) => Err(FindError::NotFound(text.to_owned())),
    }
}

/// Returns the newest run. A run that was submitted a moment ago has no summary yet; ids begin with their time.
async fn find_newest_run(bus: &Bus, summarized: Option<RunId>) -> Result<RunId, FindError> {
    list_submitted_runs(bus).await?.into_iter().chain(summarized).max().ok_or(FindError::NoRuns)
}
