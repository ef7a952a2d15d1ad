//! The usage of models and tools: of one run, and of all runs by group.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_protocol::plan::Decision;
use millrace_protocol::token::Scope;
use millrace_runtime::store::archive;
use millrace_views::history::RunHistory;
use millrace_views::{RunSpend, SpendGroup, SpendSeries, SpendTable};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::run_filter::RunFilter;
use crate::state::json_response;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(read_spend)).scoped(Scope::Read, routes!(read_run_spend))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct SpendQuery {
    /// `capability` (default), `model`, `day` (of the start, in UTC), `state`, or `label:NAME`.
    group: Option<String>,
    /// Only runs in these states, separated by commas.
    state: Option<String>,
    /// Only runs with these labels, separated by commas: `NAME=VALUE`, or `NAME` for any value.
    label: Option<String>,
    /// Only runs that started at this time or later: a time, or a duration before now such as `30d`.
    since: Option<String>,
    /// Only runs that started before this time: a time, or a duration before now.
    until: Option<String>,
}

fn parse_group(text: Option<&str>) -> Result<SpendGroup, Problem> {
    match text.unwrap_or("capability") {
        "capability" => Ok(SpendGroup::Capability),
        "model" => Ok(SpendGroup::Model),
        "day" => Ok(SpendGroup::Day),
        "state" => Ok(SpendGroup::State),
        other => match other.strip_prefix("label:") {
            Some(name) if !name.is_empty() => Ok(SpendGroup::Label(name.to_owned())),
            Some(_) | None => {
                let detail =
                    format!("group={other:?} is no group; valid: capability, model, day, state, label:NAME");
                Err(Problem::new(ProblemKind::InvalidRequest, detail))
            }
        },
    }
}

/// Read the usage of all runs by capability, model, label, day or state.
#[utoipa::path(
    get, path = "/spend", tag = "cluster", params(SpendQuery),
    responses((status = 200, description = "The usage", body = ref("#/components/schemas/SpendReport")))
)]
async fn read_spend(gateway: Access, QueryParts(query): QueryParts<SpendQuery>) -> Result<Response, Problem> {
    let group = parse_group(query.group.as_deref())?;
    let filter = RunFilter::parse(
        (query.state.as_deref(), query.label.as_deref(), None),
        (query.since.as_deref(), query.until.as_deref()),
    )?;
    let mut table = SpendTable::new(group);
    gateway.runs.visit_runs(&gateway.bus, &filter, |run| table.add_run(&run.summary)).await?;
    Ok(json_response(StatusCode::OK, &table.finish()))
}

/// Read the usage of a run by role, capability, model and task, and over time.
#[utoipa::path(
    get, path = "/runs/{run}/spend", tag = "runs",
    params(("run" = String, Path, description = "The run")),
    responses((status = 200, description = "The usage", body = ref("#/components/schemas/RunSpend")))
)]
async fn read_run_spend(gateway: Access, PathParts(run): PathParts<String>) -> Result<Response, Problem> {
    let (run, _) = gateway.find_run(&run).await?;
    let (mut history, mut series) = (RunHistory::default(), SpendSeries::default());
    let lane = gateway.bus.lane_of_run(&run);
    for record in archive::read_decisions_from_log_or_archive(&gateway.bus, lane, &run).await? {
        if record.is_decision() {
            let decision: Decision = gateway.bus.decode_record(&record).await?;
            history.add_decision(&decision);
            series.add_total(record.sequence, decision.at, history.plan.budget.spend.total);
        }
    }
    let points = series.finish();
    Ok(json_response(StatusCode::OK, &RunSpend::new(&run, &history.plan, &points)))
}
