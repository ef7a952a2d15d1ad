//! `/sessions` and `/sessions/{session}`: the sessions of all runs, and the runs of one.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_protocol::ids::SessionId;
use millrace_protocol::token::Scope;
use millrace_views::{RunListLine, SessionLine, SessionRuns, SessionTable, sort_runs_of_session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::run_index::IndexedRun;
use crate::state::json_response;

/// The number of sessions in a list if the client does not choose one.
const DEFAULT_LIMIT: usize = 50;
/// The maximum number of sessions in a list, and of runs of a session.
const MAX_LIMIT: usize = 1_000;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(list_sessions)).scoped(Scope::Read, routes!(read_session))
}

/// A part of the list of sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionList {
    /// The sessions, by their last changes, newest first.
    pub sessions: Vec<SessionLine>,
    /// The number of all sessions.
    pub total: usize,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// The number of sessions, 50 by default and at most 1000.
    limit: Option<usize>,
    /// The number of newer sessions to leave out.
    offset: Option<usize>,
}

/// List sessions by their last changes, newest first.
#[utoipa::path(
    get, path = "/sessions", tag = "runs", params(ListQuery),
    responses((status = 200, description = "A part of the list", body = ref("#/components/schemas/SessionList")))
)]
async fn list_sessions(
    gateway: Access,
    QueryParts(query): QueryParts<ListQuery>,
) -> Result<Response, Problem> {
    let limit = match query.limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => limit,
        other => {
            let detail = format!("limit={other}: a list has 1 to {MAX_LIMIT} sessions");
            return Err(Problem::new(ProblemKind::InvalidRequest, detail));
        }
    };
    let mut table = SessionTable::default();
    gateway.runs.visit_runs(&gateway.bus, |run| table.add_run(&run.summary)).await?;
    let all = table.into_lines();
    let total = all.len();
    let sessions = all.into_iter().skip(query.offset.unwrap_or(0)).take(limit).collect();
    Ok(json_response(StatusCode::OK, &SessionList { sessions, total }))
}

/// Read a session: its totals, and its runs in their order.
#[utoipa::path(
    get, path = "/sessions/{session}", tag = "runs",
    params(("session" = String, Path, description = "The session")),
    responses((status = 200, description = "The session", body = ref("#/components/schemas/SessionRuns")))
)]
async fn read_session(gateway: Access, PathParts(name): PathParts<String>) -> Result<Response, Problem> {
    let not_found =
        || Problem::new(ProblemKind::SessionNotFound, format!("no run belongs to session {name:?}"));
    let session = SessionId::new(name.as_str()).map_err(|_| not_found())?;
    let is_of_session = |run: &IndexedRun| run.summary.session.as_ref() == Some(&session);
    let mut table = SessionTable::default();
    let visit = |run: &IndexedRun| {
        if is_of_session(run) {
            table.add_run(&run.summary);
        }
    };
    gateway.runs.visit_runs(&gateway.bus, visit).await?;
    let line = table.into_lines().into_iter().next().ok_or_else(not_found)?;
    let page = gateway.runs.list_runs(&gateway.bus, None, MAX_LIMIT, is_of_session).await?;
    let mut summaries: Vec<_> = page.runs.iter().map(|run| &run.summary).collect();
    sort_runs_of_session(&mut summaries);
    let runs = summaries.into_iter().map(|summary| RunListLine::new(&summary.run, Some(summary))).collect();
    Ok(json_response(StatusCode::OK, &SessionRuns { session: line, runs }))
}
