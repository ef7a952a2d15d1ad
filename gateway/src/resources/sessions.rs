//! `/sessions` and `/sessions/{session}`: the sessions of all runs, and the runs of one.

use std::cmp::Reverse;

use jiff::Timestamp;
use millrace_protocol::ids::SessionId;
use millrace_protocol::token::Scope;
use millrace_runtime::work::queue_place::PlacesInQueue;
use millrace_views::{RunListLine, SessionLine, SessionRuns, SessionTable, sort_runs_of_session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Path, Query};
use crate::listed_run::ListedRun;
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::run_filter::RunFilter;
use crate::state::reply;

/// The number of sessions in a list if the client does not choose one.
const DEFAULT_LIMIT: usize = 50;
/// The maximum number of sessions in a list, and of runs of a session.
const MAX_LIMIT: usize = 1_000;

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
    /// The `cursor` of the next part; empty at the end.
    pub next: String,
}

/// The position of a session in the list: its last change, newest first, and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SessionPosition {
    updated: Reverse<Timestamp>,
    session: SessionId,
}

impl SessionPosition {
    fn of(line: &SessionLine) -> Self {
        Self { updated: Reverse(line.updated_at.timestamp()), session: line.session.clone() }
    }

    /// Returns the position as an opaque text.
    fn to_cursor(&self) -> String {
        let text = format!("{} {}", self.updated.0.as_nanosecond(), self.session);
        data_encoding::BASE64URL_NOPAD.encode(text.as_bytes())
    }

    fn parse(cursor: &str) -> Option<Self> {
        let text = String::from_utf8(data_encoding::BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?).ok()?;
        let (updated, session) = text.split_once(' ')?;
        let updated = Timestamp::from_nanosecond(updated.parse().ok()?).ok()?;
        Some(Self { updated: Reverse(updated), session: SessionId::new(session).ok()? })
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// The number of sessions, 50 by default and at most 1000.
    limit: Option<usize>,
    /// The `next` of the part before. Sessions that have changed since are not in later parts.
    cursor: Option<String>,
}

/// List sessions by their last changes, newest first.
#[utoipa::path(
    get, path = "/sessions", tag = "runs", params(ListQuery),
    responses((status = 200, description = "A part of the list", body = ref("#/components/schemas/SessionList")))
)]
async fn list_sessions(gateway: Access, Query(query): Query<ListQuery>) -> ApiResult {
    let limit = match query.limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => limit,
        other => {
            let detail = format!("limit={other}: a list has 1 to {MAX_LIMIT} sessions");
            return Err(Problem::invalid(detail));
        }
    };
    let after = query.cursor.filter(|cursor| !cursor.is_empty()).map(|cursor| {
        SessionPosition::parse(&cursor).ok_or_else(|| {
            let detail = "cursor: it is not one that a list has returned";
            Problem::invalid(detail)
        })
    });
    let after = after.transpose()?;
    let mut table = SessionTable::default();
    gateway.runs.visit_runs_of_sessions(&gateway.bus, |run| table.add_run(&run.summary)).await?;
    let all = table.into_lines();
    let total = all.len();
    let is_later = |line: &SessionLine| after.as_ref().is_none_or(|after| SessionPosition::of(line) > *after);
    let mut later = all.into_iter().filter(is_later);
    let sessions: Vec<SessionLine> = later.by_ref().take(limit).collect();
    let has_more = later.next().is_some();
    let next = sessions.last().filter(|_| has_more).map(|last| SessionPosition::of(last).to_cursor());
    let next = next.unwrap_or_default();
    reply(&SessionList { sessions, total, next })
}

/// Read a session: its totals, and its runs in their order.
#[utoipa::path(
    get, path = "/sessions/{session}", tag = "runs",
    params(("session" = String, Path, description = "The session")),
    responses((status = 200, description = "The session", body = ref("#/components/schemas/SessionRuns")))
)]
async fn read_session(gateway: Access, Path(name): Path<String>) -> ApiResult {
    let not_found =
        || Problem::new(ProblemKind::SessionNotFound, format!("no run belongs to session {name:?}"));
    let session = SessionId::new(name.as_str()).map_err(|_| not_found())?;
    let filter = RunFilter { session: Some(session), ..RunFilter::default() };
    let mut table = SessionTable::default();
    gateway.runs.visit_runs(&gateway.bus, &filter, |run| table.add_run(&run.summary)).await?;
    let line = table.into_lines().into_iter().next().ok_or_else(not_found)?;
    let page = gateway.runs.list_runs(&gateway.bus, &filter, None, MAX_LIMIT).await?;
    // Runs without a summary were submitted last.
    let (mut summaries, mut submitted) = (Vec::new(), Vec::new());
    for run in &page.runs {
        match run {
            ListedRun::Started(started) => summaries.push(&started.summary),
            ListedRun::Submitted(_) => submitted.push(run.line(&PlacesInQueue::new())),
        }
    }
    sort_runs_of_session(&mut summaries);
    let started = summaries.into_iter().map(|summary| RunListLine::new(&summary.run, Some(summary)));
    let runs = started.chain(submitted.into_iter().rev()).collect();
    reply(&SessionRuns { session: line, runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_back_and_have_the_order_of_the_list() {
        let position = |second, name| SessionPosition {
            updated: Reverse(Timestamp::from_second(second).unwrap()),
            session: SessionId::new(name).unwrap(),
        };
        let newest = position(9, "b");
        assert_eq!(SessionPosition::parse(&newest.to_cursor()), Some(newest.clone()));
        assert!(newest < position(8, "a") && position(8, "a") < position(8, "b"));
        for wrong in ["", "x", &data_encoding::BASE64URL_NOPAD.encode(b"1 a/b")] {
            assert_eq!(SessionPosition::parse(wrong), None, "{wrong}");
        }
    }
}
