//! `/runs` and `/runs/{run}`: lists and reads runs and their tasks, waits for their ends, and returns their results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use jiff::Timestamp;
use millrace_client::read_task_result;
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::plan::TaskState;
use millrace_protocol::result::TaskResult;
use millrace_protocol::token::Scope;
use millrace_runtime::work::queue_place::PlacesInQueue;
use millrace_views::report_markdown;
use millrace_views::{RunListLine, RunResult, TaskList, waiting_work_of_plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use super::submission::read_submission;
use crate::access::{Access, ApiRoutes};
use crate::extract::{Path, Query};
use crate::history::RunState;
use crate::listed_run::{ListedRun, RunPosition};
use crate::pages::html_page_of_markdown;
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::run_filter::{RunFilter, parse_waits};
use crate::state::{Gateway, parse_run, reply, resume_command, versioned_json_response};
use crate::waiting::await_end;

/// The number of runs in a list if the client does not choose one.
const DEFAULT_LIMIT: usize = 50;
/// The maximum number of runs in a list.
const MAX_LIMIT: usize = 1_000;
/// The longest wait in seconds.
const MAX_WAIT: u64 = 300;
/// The wait in seconds if the client does not choose one.
const DEFAULT_WAIT: u64 = 30;

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(list_runs))
        .scoped(Scope::Read, routes!(read_run))
        .scoped(Scope::Read, routes!(wait_for_run))
        .scoped(Scope::Read, routes!(read_result))
        .scoped(Scope::Read, routes!(read_report))
        .scoped(Scope::Read, routes!(list_tasks))
        .scoped(Scope::Read, routes!(read_task))
}

/// A part of the list of runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunList<'a> {
    /// The runs by the times of their submissions, newest first. A run keeps its place while it starts and ends.
    pub runs: Vec<RunListLine<'a>>,
    /// The `cursor` of the next part; empty at the end.
    pub next: String,
}

#[derive(Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Only runs in these states, separated by commas, such as `running,paused`.
    pub state: Option<String>,
    /// Only live runs that wait for one of these, separated by commas, such as `question,provider`.
    pub waiting: Option<String>,
    /// Only runs with these labels, separated by commas: `NAME=VALUE`, or `NAME` for any value.
    pub label: Option<String>,
    /// Only runs of this session.
    #[param(value_type = Option<String>)]
    pub session: Option<SessionId>,
    /// Only runs that started at this time or later: a time, or a duration before now such as `2h`. Of a run that has not started, the
    /// time of its submission counts.
    pub since: Option<String>,
    /// Only runs that started before this time: a time, or a duration before now.
    pub until: Option<String>,
    /// Only runs whose id or objective contains this text, in any case.
    pub text: Option<String>,
    /// The number of runs, 50 by default and at most 1000.
    pub limit: Option<usize>,
    /// The `next` of the part before.
    pub cursor: Option<String>,
}

/// List runs, newest first.
#[utoipa::path(
    get, path = "/runs", tag = "runs", params(ListQuery),
    responses((status = 200, description = "A part of the list", body = ref("#/components/schemas/RunList")))
)]
pub async fn list_runs(gateway: Access, Query(query): Query<ListQuery>) -> ApiResult {
    let filter = RunFilter::parse(
        (query.state.as_deref(), query.label.as_deref(), query.text.as_deref()),
        (query.since.as_deref(), query.until.as_deref()),
    )?;
    let waits = parse_waits(query.waiting.as_deref())?;
    let filter = RunFilter { session: query.session, waits, ..filter };
    let limit = match query.limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => limit,
        other => {
            let detail = format!("limit={other}: a list has 1 to {MAX_LIMIT} runs");
            return Err(Problem::invalid(detail));
        }
    };
    let after = query.cursor.as_deref().filter(|cursor| !cursor.is_empty()).map(str::parse::<RunPosition>);
    let after = after.transpose().map_err(Problem::invalid)?;
    let page = gateway.runs.list_runs(&gateway.bus, &filter, after, limit).await?;
    let waiting = page.runs.iter().filter_map(ListedRun::waiting_work).collect();
    let places = gateway.places.read(&gateway.bus, waiting).await?;
    let runs = page.runs.iter().map(|run| run.line(&places)).collect();
    let next = page.next.as_ref().map(RunPosition::to_cursor).unwrap_or_default();
    reply(&RunList { runs, next })
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ReadQuery {
    /// The state as of this sequence of the log: the `sequence` of an event or of a reply to a write.
    at: Option<u64>,
}

/// Read a run: its state, tasks, attempts, usage and result.
#[utoipa::path(
    get, path = "/runs/{run}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ReadQuery),
    responses(
        (status = 200, description = "The run; its ETag is the sequence of its last decision", body = ref("#/components/schemas/RunResult")),
        (status = 304, description = "The run has not changed since the version in If-None-Match")
    )
)]
pub async fn read_run(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let state = gateway.read_history(&run, query.at).await?;
    let version = format!("\"{}\"", state.sequence());
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|one| one.trim() == version)) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, version)]).into_response());
    }
    render_run(&gateway, &run, &state, query.at).await
}

/// Returns the places of the work of a run that waits for a worker; of an earlier state there are none.
async fn read_places(
    gateway: &Gateway,
    run: &RunId,
    state: &RunState,
    at: Option<u64>,
) -> Result<PlacesInQueue, Problem> {
    let waiting = if at.is_none() { waiting_work_of_plan(run, state.plan()) } else { Vec::new() };
    Ok(gateway.places.read(&gateway.bus, waiting).await?)
}

/// Returns a run as `millrace show --json` prints it, as of a sequence of its lane if there is one.
async fn render_run(gateway: &Gateway, run: &RunId, state: &RunState, at: Option<u64>) -> ApiResult {
    let deliverable = read_deliverable(gateway, run, state).await?;
    let now = state.plan().run.end.as_ref().map_or_else(Timestamp::now, |end| end.at);
    let resume_with = resume_command(run, state.plan());
    let places = read_places(gateway, run, state, at).await?;
    let result = RunResult::new(run, &state.history, deliverable.as_ref(), now, resume_with);
    let submission = match state.plan().run.start {
        Some(_) => None,
        None => read_submission(gateway, run, at).await?,
    };
    let result = match &submission {
        Some(submission) => result.of_submission(submission),
        None => result,
    };
    let result = result.with_places(&state.history, &places);
    Ok(versioned_json_response(&result, state.sequence()))
}

/// Reads the result of the deliverable's task; `None` if the run has not ended or has none.
async fn read_deliverable(
    gateway: &Gateway,
    run: &RunId,
    state: &RunState,
) -> Result<Option<TaskResult>, Problem> {
    let deliverable = state.plan().run.end.as_ref().and_then(|end| end.deliverable.as_ref());
    match deliverable {
        Some((task, _)) => Ok(read_task_result(&gateway.bus, run, state.plan(), task).await?),
        None => Ok(None),
    }
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    /// The longest wait in seconds, 30 by default and at most 300.
    pub timeout: Option<u64>,
}

/// Wait for the end of a run.
#[utoipa::path(
    get, path = "/runs/{run}/wait", tag = "runs",
    params(("run" = String, Path, description = "The run"), WaitQuery),
    responses(
        (status = 200, description = "The run has ended", body = ref("#/components/schemas/RunResult")),
        (status = 202, description = "The run has not ended in time; this is its state so far", body = ref("#/components/schemas/RunResult"))
    )
)]
pub async fn wait_for_run(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<WaitQuery>,
) -> ApiResult {
    let run = parse_run(&run)?;
    let timeout = Duration::from_secs(query.timeout.unwrap_or(DEFAULT_WAIT).min(MAX_WAIT));
    let ended = tokio::select! {
        outcome = tokio::time::timeout(timeout, await_end(&gateway, &run)) => outcome.ok().transpose()?,
        () = gateway.shutdown.cancelled() => None,
    };
    let state = match ended {
        Some(state) => state,
        None => {
            gateway.find_run(run.as_str()).await?;
            gateway.read_history(&run, None).await?
        }
    };
    let mut response = render_run(&gateway, &run, &state, None).await?;
    // Also a run that ended at the very last moment.
    if state.plan().run.end.is_none() {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

/// Reads the deliverable of a run that has ended.
pub async fn require_deliverable(
    gateway: &Gateway,
    run: &str,
) -> Result<(RunId, Arc<RunState>, TaskResult), Problem> {
    let (run, _) = gateway.find_run(run).await?;
    let state = gateway.read_history(&run, None).await?;
    if state.plan().run.end.is_none() {
        let detail = format!("run {run} has not ended; wait for it with /runs/{run}/wait");
        return Err(Problem::new(ProblemKind::RunNotEnded, detail));
    }
    match read_deliverable(gateway, &run, &state).await? {
        Some(result) => Ok((run, state, result)),
        None => {
            let detail =
                format!("run {run} ended without a deliverable; /runs/{run} has its end and its errors");
            Err(Problem::new(ProblemKind::NoDeliverable, detail))
        }
    }
}

/// Read the result of a run: the deliverable with its sources.
#[utoipa::path(
    get, path = "/runs/{run}/result", tag = "runs",
    params(("run" = String, Path, description = "The run")),
    responses((status = 200, description = "The result of the deliverable's task", body = ref("#/components/schemas/TaskResult")))
)]
async fn read_result(gateway: Access, Path(run): Path<String>) -> ApiResult {
    let (_, state, result) = require_deliverable(&gateway, &run).await?;
    Ok(versioned_json_response(&result, state.sequence()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportType {
    Markdown,
    Html,
    Json,
}

/// Read the report of a run as Markdown, HTML or JSON.
#[utoipa::path(
    get, path = "/runs/{run}/report", tag = "runs",
    params(("run" = String, Path, description = "The run")),
    responses((status = 200, description = "The report, as the header Accept asks for", content(
        (String = "text/markdown"), (String = "text/html"), (ref("#/components/schemas/TaskResult") = "application/json")
    )))
)]
pub async fn read_report(gateway: Access, Path(run): Path<String>, headers: HeaderMap) -> ApiResult {
    let report_type = choose_report_type(&headers)?;
    let (_, state, result) = require_deliverable(&gateway, &run).await?;
    let plan = state.plan();
    let markdown = || {
        let end = plan.run.end.as_ref();
        end.map(|end| report_markdown(&result, end, plan.planning.fallback.is_some())).unwrap_or_default()
    };
    let mut response = match report_type {
        ReportType::Json => return Ok(versioned_json_response(&result, state.sequence())),
        ReportType::Markdown => {
            ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], markdown()).into_response()
        }
        ReportType::Html => html_page_of_markdown(&markdown()),
    };
    if let Ok(version) = HeaderValue::from_str(&format!("\"{}\"", state.sequence())) {
        response.headers_mut().insert(header::ETAG, version);
    }
    Ok(response)
}

/// Chooses the media type of a report: the accepted one with the greatest weight, Markdown by default.
fn choose_report_type(headers: &HeaderMap) -> Result<ReportType, Problem> {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let mut best: Option<(f32, ReportType)> = None;
    for range in accepted.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let report_type = match parts.next().unwrap_or_default() {
            "text/markdown" | "text/plain" | "*/*" | "text/*" => ReportType::Markdown,
            "text/html" | "application/xhtml+xml" => ReportType::Html,
            "application/json" | "application/*" => ReportType::Json,
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if weight > 0.0 && best.is_none_or(|(other, _)| weight > other) {
            best = Some((weight, report_type));
        }
    }
    best.map(|(_, report_type)| report_type).ok_or_else(|| {
        let detail = format!("Accept: {accepted}; a report is text/markdown, text/html or application/json");
        Problem::new(ProblemKind::NotAcceptable, detail)
    })
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TaskQuery {
    /// Only tasks in these states, separated by commas, such as `running,waiting`.
    state: Option<String>,
    /// The tasks as of this sequence.
    at: Option<u64>,
}

/// List the tasks of a run with their attempts.
#[utoipa::path(
    get, path = "/runs/{run}/tasks", tag = "runs",
    params(("run" = String, Path, description = "The run"), TaskQuery),
    responses((status = 200, description = "The tasks; the ETag is the sequence of the run's last decision", body = ref("#/components/schemas/TaskList")))
)]
async fn list_tasks(gateway: Access, Path(run): Path<String>, Query(query): Query<TaskQuery>) -> ApiResult {
    let states = parse_states(query.state.as_deref())?;
    let (run, _) = gateway.find_run(&run).await?;
    let state = gateway.read_history(&run, query.at).await?;
    let is_wanted =
        |task: &millrace_protocol::plan::Task| states.is_empty() || states.contains(&task.state());
    let places = read_places(&gateway, &run, &state, query.at).await?;
    let tasks = TaskList::new(&run, (state.plan(), state.sequence()), is_wanted);
    let tasks = tasks.with_places(state.plan(), &places);
    Ok(versioned_json_response(&tasks, state.sequence()))
}

fn parse_states(text: Option<&str>) -> Result<BTreeSet<TaskState>, Problem> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let find = |name: &str| {
        TaskState::ALL.into_iter().find(|state| state.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = TaskState::ALL.iter().map(|state| state.as_str()).collect();
            let detail = format!("state={name:?} is no state of a task; valid: {}", known.join(", "));
            Problem::invalid(detail)
        })
    };
    names.map(find).collect()
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct OneTaskQuery {
    /// The task as of this sequence.
    at: Option<u64>,
}

/// Read one task of a run with its attempts.
#[utoipa::path(
    get, path = "/runs/{run}/tasks/{task}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), OneTaskQuery),
    responses((status = 200, description = "A list with this task", body = ref("#/components/schemas/TaskList")))
)]
async fn read_task(
    gateway: Access,
    Path((run, id)): Path<(String, String)>,
    Query(query): Query<OneTaskQuery>,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let state = gateway.read_history(&run, query.at).await?;
    if !state.plan().tasks().iter().any(|task| task.spec.id.as_str() == id) {
        return Err(Problem::new(ProblemKind::TaskNotFound, format!("run {run} has no task {id:?}")));
    }
    let places = read_places(&gateway, &run, &state, query.at).await?;
    let tasks = TaskList::new(&run, (state.plan(), state.sequence()), |task| task.spec.id.as_str() == id);
    let tasks = tasks.with_places(state.plan(), &places);
    Ok(versioned_json_response(&tasks, state.sequence()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: Option<&str>) -> Option<ReportType> {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(header::ACCEPT, accept.parse().unwrap());
        }
        choose_report_type(&headers).ok()
    }

    #[test]
    fn accepted_media_type_with_the_greatest_weight_is_chosen() {
        assert_eq!(chosen(None), Some(ReportType::Markdown));
        assert_eq!(chosen(Some("*/*")), Some(ReportType::Markdown));
        assert_eq!(chosen(Some("text/html,application/xhtml+xml,*/*;q=0.8")), Some(ReportType::Html));
        assert_eq!(chosen(Some("text/html;q=0.5, application/json")), Some(ReportType::Json));
        assert_eq!(chosen(Some("image/png")), None);
        assert_eq!(chosen(Some("text/html;q=0")), None);
    }
}
