//! Deletes runs, one or by age and labels, and keeps the rules by which supervisors do so.

use std::collections::HashSet;
use std::time::Duration;

use axum::http::StatusCode;
use millrace_client::administration::read_retention;
use millrace_protocol::ids::RunId;
use millrace_protocol::labels::LabelSelector;
use millrace_protocol::plan::EndReason;
use millrace_protocol::retention::{MIN_BLOB_GRACE, PruneSelection, SweepSettings};
use millrace_protocol::token::Scope;
use millrace_runtime::clock::{format_duration, parse_duration};
use millrace_runtime::store::retention::{
    DeletionError, DeletionRequest, forecast_prune, select_runs, wait_for_deletion,
};
use millrace_views::{CommandOutcome, PruneJson, RetentionJson, RunDeletionJson};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Json, Path, Query};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::{json_response, reply};

/// The wait in seconds for a supervisor to delete a run, if the client does not choose one.
const DEFAULT_WAIT: u64 = 10;
/// The longest such wait in seconds.
const MAX_WAIT: u64 = 300;

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Admin, routes!(delete_run))
        .scoped(Scope::Admin, routes!(prune_runs))
        .scoped(Scope::Read, routes!(read_rules))
        .scoped(Scope::Admin, routes!(put_rule, delete_rule))
        .scoped(Scope::Admin, routes!(put_settings))
        .scoped(Scope::Admin, routes!(sweep))
}

impl From<DeletionError> for Problem {
    fn from(error: DeletionError) -> Self {
        match error {
            DeletionError::NotFound(_) => Self::new(ProblemKind::RunNotFound, error),
            DeletionError::Live(_) => Self::new(ProblemKind::RunNotEnded, error),
            DeletionError::Fault(fault) => fault.into(),
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct DeleteQuery {
    /// The longest wait in seconds for a supervisor to delete the run, 10 by default and at most 300; 0 does not wait.
    wait: Option<u64>,
}

/// Delete a run that has ended, with its events, results and files.
#[utoipa::path(
    delete, path = "/runs/{run}", tag = "runs",
    params(("run" = String, Path, description = "The run"), DeleteQuery),
    responses(
        (status = 200, description = "The run is deleted. Blobs that nothing else refers to are removed later", body = ref("#/components/schemas/RunDeletionJson")),
        (status = 202, description = "The run will be deleted", body = ref("#/components/schemas/RunDeletionJson"))
    )
)]
async fn delete_run(gateway: Access, Path(run): Path<String>, Query(query): Query<DeleteQuery>) -> ApiResult {
    let unknown = || Problem::new(ProblemKind::RunNotFound, format!("there is no run {run:?}"));
    let run = RunId::new(&run).map_err(|_| unknown())?;
    let wait = Duration::from_secs(query.wait.unwrap_or(DEFAULT_WAIT).min(MAX_WAIT));
    let deleted = match gateway.administrator().delete_run(&run).await? {
        DeletionRequest::Deleted => true,
        DeletionRequest::Recorded | DeletionRequest::Pending => {
            wait_for_deletion(&gateway.bus, &run, wait).await?
        }
    };
    let status = if deleted { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(json_response(status, &RunDeletionJson { run: &run, deleted }))
}

/// The runs to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneBody {
    /// Only runs that ended longer ago than this duration, such as `30d` or `12h`.
    older_than: String,
    /// Only runs with all these labels: `NAME=VALUE`, or `NAME` for any value.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    labels: Vec<LabelSelector>,
    /// Only runs that ended for one of these reasons; all if empty.
    #[serde(default)]
    states: Vec<EndReason>,
    /// `true` deletes nothing and returns what would be deleted.
    #[serde(default)]
    dry_run: bool,
}

fn parse_age(text: &str) -> Result<Duration, Problem> {
    parse_duration(text).map_err(|error| Problem::invalid(format!("older_than: {error}")))
}

/// Delete all runs that ended some time ago.
#[utoipa::path(
    post, path = "/runs/prune", tag = "runs",
    request_body = ref("#/components/schemas/PruneBody"),
    responses(
        (status = 202, description = "These runs will be deleted", body = ref("#/components/schemas/PruneJson")),
        (status = 200, description = "These runs would be deleted", body = ref("#/components/schemas/PruneJson"))
    )
)]
async fn prune_runs(gateway: Access, Json(body): Json<PruneBody>) -> ApiResult {
    let PruneBody { older_than, labels, states, dry_run } = body;
    let selection = PruneSelection { older_than: parse_age(&older_than)?, labels, states };
    if dry_run {
        let selected = select_runs(&gateway.bus, &selection).await?;
        let runs: Vec<RunId> = selected.into_iter().map(|summary| summary.run).collect();
        let all: HashSet<RunId> = runs.iter().cloned().collect();
        let forecast = Some(forecast_prune(&gateway.bus, &all).await?);
        return reply(&PruneJson { runs, dry_run, forecast });
    }
    let runs = gateway.administrator().prune_runs(&selection).await?;
    Ok(json_response(StatusCode::ACCEPTED, &PruneJson { runs, dry_run, forecast: None }))
}

/// Read the retention rules, the settings, and the last sweep of blobs.
#[utoipa::path(
    get, path = "/retention", tag = "retention",
    responses((status = 200, description = "The retention of the cluster", body = ref("#/components/schemas/RetentionJson")))
)]
async fn read_rules(gateway: Access) -> ApiResult {
    let overview = read_retention(&gateway.bus).await?;
    reply(&RetentionJson::from(overview))
}

/// A retention rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionRuleBody {
    /// Runs are deleted when they ended longer ago than this duration, such as `30d`.
    older_than: String,
    /// Only runs with all these labels: `NAME=VALUE`, or `NAME` for any value.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    labels: Vec<LabelSelector>,
    /// Only runs that ended for one of these reasons; all if empty.
    #[serde(default)]
    states: Vec<EndReason>,
}

fn parse_rule_name(text: &str) -> Result<RunId, Problem> {
    // A rule has a name like a run.
    RunId::new(text).map_err(|error| {
        Problem::invalid(format!("the name of a rule is one like that of a run: {}", error.reason))
    })
}

/// Set a retention rule: supervisors delete the runs that it selects.
#[utoipa::path(
    put, path = "/retention/rules/{rule}", tag = "retention",
    params(("rule" = String, Path, description = "The name of the rule")),
    request_body = ref("#/components/schemas/RetentionRuleBody"),
    responses((status = 200, description = "The rule was set", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn put_rule(
    gateway: Access,
    Path(rule): Path<String>,
    Json(body): Json<RetentionRuleBody>,
) -> ApiResult {
    let name = parse_rule_name(&rule)?;
    let RetentionRuleBody { older_than, labels, states } = body;
    let selection = PruneSelection { older_than: parse_age(&older_than)?, labels, states };
    gateway.administrator().set_retention_rule(&name, selection).await?;
    reply(&CommandOutcome::RetentionRuleSet { name: name.as_str() })
}

/// Remove a retention rule.
#[utoipa::path(
    delete, path = "/retention/rules/{rule}", tag = "retention",
    params(("rule" = String, Path, description = "The name of the rule")),
    responses((status = 200, description = "The rule was removed", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn delete_rule(gateway: Access, Path(rule): Path<String>) -> ApiResult {
    let name = parse_rule_name(&rule)?;
    if !gateway.administrator().remove_retention_rule(&name).await? {
        let detail = format!("there is no retention rule {name}");
        return Err(Problem::new(ProblemKind::RetentionRuleNotFound, detail));
    }
    reply(&CommandOutcome::RetentionRuleRemoved { name: name.as_str() })
}

/// The settings of sweeps.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionSettingsBody {
    /// The duration for which a blob to which nothing refers stays in the store, at least `1h`.
    blob_grace: String,
}

/// Change how long blobs to which nothing refers stay in the store.
#[utoipa::path(
    put, path = "/retention/settings", tag = "retention",
    request_body = ref("#/components/schemas/RetentionSettingsBody"),
    responses((status = 200, description = "The settings were changed", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn put_settings(
    gateway: Access,
    Json(RetentionSettingsBody { blob_grace }): Json<RetentionSettingsBody>,
) -> ApiResult {
    let invalid = |error: String| Problem::invalid(format!("blob_grace: {error}"));
    let grace = parse_duration(&blob_grace).map_err(invalid)?;
    if grace < MIN_BLOB_GRACE {
        return Err(invalid(format!(
            "{blob_grace:?} is too short; use at least {}",
            format_duration(MIN_BLOB_GRACE)
        )));
    }
    let settings = SweepSettings::with_blob_grace(grace);
    gateway.administrator().set_sweep_settings(&settings).await?;
    reply(&CommandOutcome::BlobGraceSet { blob_grace_ms: settings.blob_grace_ms })
}

/// Sweep blobs now instead of within the next hours.
#[utoipa::path(
    post, path = "/retention/sweep", tag = "retention",
    responses((status = 202, description = "A supervisor sweeps as soon as it can; GET /retention has the outcome", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn sweep(gateway: Access) -> ApiResult {
    gateway.administrator().request_sweep().await?;
    Ok(json_response(StatusCode::ACCEPTED, &CommandOutcome::SweepRequested))
}
