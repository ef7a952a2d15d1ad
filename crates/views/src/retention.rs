//! Deletion of runs: rules, settings, and deletions in progress.

use millrace_client::administration::RetentionOverview;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::EndReason;
use millrace_protocol::retention::{PruneForecast, RetentionRule, SweepRecord, SweepReport};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Time, tagged};

/// The retention of a cluster.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "retention")]
#[schemars(transform = tagged("retention"))]
pub struct RetentionJson {
    /// The rules.
    pub rules: Vec<RetentionRuleJson>,
    /// The time for which a blob to which nothing refers stays in the store.
    pub blob_grace_ms: u64,
    /// The number of runs whose deletion is in progress.
    pub deletions_in_progress: u64,
    /// The last sweep of blobs; `null` if there was none.
    pub last_sweep: Option<SweepJson>,
}

impl From<RetentionOverview> for RetentionJson {
    fn from(RetentionOverview { rules, settings, pending, last_sweep }: RetentionOverview) -> Self {
        let rules = rules.into_iter().map(|(name, rule)| RetentionRuleJson::new(name, &rule));
        Self {
            rules: rules.collect(),
            blob_grace_ms: settings.blob_grace_ms,
            deletions_in_progress: pending as u64,
            last_sweep: last_sweep.map(SweepJson::from),
        }
    }
}

/// A rule: runs that it selects are deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RetentionRuleJson {
    /// Its name.
    pub name: String,
    /// The time after their end for which runs are kept.
    pub older_than_ms: u64,
    /// Only runs with all these labels.
    pub labels: Vec<String>,
    /// Only runs that ended for one of these reasons; all if empty.
    pub states: Vec<EndReason>,
    /// Its author.
    pub by: String,
}

impl RetentionRuleJson {
    #[must_use]
    pub fn new(name: String, rule: &RetentionRule) -> Self {
        Self {
            name,
            older_than_ms: u64::try_from(rule.selection.older_than.as_millis()).unwrap_or(u64::MAX),
            labels: rule.selection.labels.iter().map(ToString::to_string).collect(),
            states: rule.selection.states.clone(),
            by: rule.by.clone(),
        }
    }
}

/// A sweep of blobs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepJson {
    /// When it began.
    pub began: Time,
    /// When it ended.
    pub ended: Time,
    /// Its outcome.
    #[serde(flatten)]
    pub report: SweepReport,
}

impl From<SweepRecord> for SweepJson {
    fn from(SweepRecord { began, ended, report }: SweepRecord) -> Self {
        Self { began: began.into(), ended: ended.into(), report }
    }
}

/// The deletion of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "run_deletion")]
#[schemars(transform = tagged("run_deletion"))]
pub struct RunDeletionJson<'a> {
    /// The run.
    pub run: &'a RunId,
    /// `true` if the run is gone; `false` if a supervisor still has to remove it.
    pub deleted: bool,
}

/// A selection of runs that are deleted, or that would be.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "prune")]
#[schemars(transform = tagged("prune"))]
pub struct PruneJson {
    /// The runs, oldest first.
    pub runs: Vec<RunId>,
    /// `true` if nothing was deleted.
    pub dry_run: bool,
    /// The storage that the deletion frees; of a dry run only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<PruneForecast>,
}
