//! The journals of a run as transcripts: what its agents, critics and planner did.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use millrace_client::{Journals, TaskUpdate, read_task};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::token::Scope;
use millrace_views::history::RunHistory;
use millrace_views::journal::{TranscriptEntry, read_entry};
use millrace_views::{PlannerTranscript, TaskTranscript};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, json_response};

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(read_task_transcript))
        .scoped(Scope::Read, routes!(read_planner_transcript))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TranscriptQuery {
    /// Only this attempt at the task, or this turn of the planner.
    attempt: Option<u32>,
    /// The transcript as of this sequence.
    at: Option<u64>,
}

/// Read what the agents of a task did: model calls, tool results and reviews, with their texts.
#[utoipa::path(
    get, path = "/runs/{run}/tasks/{task}/transcript", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), TranscriptQuery),
    responses((status = 200, description = "The transcript", body = ref("#/components/schemas/TaskTranscript")))
)]
async fn read_task_transcript(
    gateway: Access,
    PathParts((run, task)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<TranscriptQuery>,
) -> Result<Response, Problem> {
    let unknown = || Problem::new(ProblemKind::TaskNotFound, format!("run {run} has no task {task:?}"));
    let (run_id, _) = gateway.find_run(&run).await?;
    let task_id = TaskId::new(&task).map_err(|_| unknown())?;
    let (history, entries) =
        read_journals(&gateway, &run_id, &Journals::Task(task_id.clone()), (query.attempt, query.at)).await?;
    let plan = &history.plan;
    let task = plan.task(&task_id).ok_or_else(unknown)?;
    let transcript = TaskTranscript::new(&run_id, (plan, task), query.attempt, &entries, Timestamp::now());
    Ok(json_response(StatusCode::OK, &transcript))
}

/// Read what the planner of a run did.
#[utoipa::path(
    get, path = "/runs/{run}/planner/transcript", tag = "runs",
    params(("run" = String, Path, description = "The run"), TranscriptQuery),
    responses((status = 200, description = "The transcript", body = ref("#/components/schemas/PlannerTranscript")))
)]
async fn read_planner_transcript(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<TranscriptQuery>,
) -> Result<Response, Problem> {
    let (run, _) = gateway.find_run(&run).await?;
    let (history, entries) =
        read_journals(&gateway, &run, &Journals::Planner, (query.attempt, query.at)).await?;
    let transcript = PlannerTranscript::new(&run, &history, query.attempt, &entries);
    Ok(json_response(StatusCode::OK, &transcript))
}

/// Reads the history of a run and the entries of journals; `only` selects one attempt or turn.
async fn read_journals(
    gateway: &Gateway,
    run: &RunId,
    journals: &Journals,
    (only, at): (Option<u32>, Option<u64>),
) -> Result<(RunHistory, Vec<TranscriptEntry>), Problem> {
    let (mut history, mut entries) = (RunHistory::default(), Vec::new());
    for update in read_task(&gateway.bus, run, journals).await? {
        if at.is_some_and(|at| update.sequence() > at) {
            break;
        }
        match update {
            TaskUpdate::Decision { sequence: _, decision } => history.add_decision(&decision),
            TaskUpdate::Entry(entry) => {
                let entry = read_entry(&gateway.bus, *entry).await?;
                if only.is_none_or(|only| entry.journal.number() == only) {
                    entries.push(entry);
                }
            }
        }
    }
    Ok((history, entries))
}
