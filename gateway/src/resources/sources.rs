//! The sources of a result: the text that its citations refer to, by line.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_agent::corpus::{Document, DocumentPlace, InputFile};
use millrace_client::read_task_result;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::result::{Quotation, Source, SourceKind, TaskResult};
use millrace_protocol::token::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use super::runs::require_deliverable;
use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, find_blob, json_response};

/// The number of lines if the client does not choose the last one.
const DEFAULT_LINES: usize = 400;
/// The maximum number of lines.
const MAX_LINES: usize = 5_000;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(read_source)).scoped(Scope::Read, routes!(read_task_source))
}

/// The text of a source.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SourceText {
    /// Lines of a source.
    SourceText {
        /// The source.
        source: Source,
        /// The passages of it that the result quotes.
        quotations: Vec<Quotation>,
        /// The number of its lines.
        line_count: usize,
        /// The number of the first line in `lines`, from 1.
        first_line: usize,
        /// The lines, without their ends.
        lines: Vec<String>,
        /// The page, slide, sheet or section of these lines, in formats that have any.
        place: Option<String>,
        /// The pages, slides, sheets or sections that begin in these lines.
        places: Vec<DocumentPlace>,
    },
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LineQuery {
    /// The first line, from 1.
    first: Option<usize>,
    /// The last line; by default 400 lines are returned, and at most 5000.
    last: Option<usize>,
}

/// Read the text of a source of the deliverable by line, as citations and quotations name it.
#[utoipa::path(
    get, path = "/runs/{run}/sources/{source}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("source" = String, Path, description = "The id of the source in the result, such as `S1`"), LineQuery),
    responses((status = 200, description = "The lines", body = ref("#/components/schemas/SourceText")))
)]
async fn read_source(
    gateway: Access,
    PathParts((run, source)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<LineQuery>,
) -> Result<Response, Problem> {
    let (run, _, result) = require_deliverable(&gateway, &run).await?;
    read_lines(&gateway, &run, &result, &source, &query).await
}

/// Read the text of a source of a task's result by line.
#[utoipa::path(
    get, path = "/runs/{run}/tasks/{task}/sources/{source}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), ("source" = String, Path, description = "The id of the source in the result, such as `S1`"), LineQuery),
    responses((status = 200, description = "The lines", body = ref("#/components/schemas/SourceText")))
)]
async fn read_task_source(
    gateway: Access,
    PathParts((run, task, source)): PathParts<(String, String, String)>,
    QueryParts(query): QueryParts<LineQuery>,
) -> Result<Response, Problem> {
    let unknown = || Problem::new(ProblemKind::TaskNotFound, format!("run {run} has no task {task:?}"));
    let (run_id, _) = gateway.find_run(&run).await?;
    let task_id = TaskId::new(&task).map_err(|_| unknown())?;
    let state = gateway.read_history(&run_id, None).await?;
    state.plan().task(&task_id).ok_or_else(unknown)?;
    let result = read_task_result(&gateway.bus, &run_id, state.plan(), &task_id).await?;
    let result = result.ok_or_else(|| {
        Problem::new(ProblemKind::SourceNotFound, format!("task {task} of run {run} has no result"))
    })?;
    read_lines(&gateway, &run_id, &result, &source, &query).await
}

async fn read_lines(
    gateway: &Gateway,
    run: &RunId,
    result: &TaskResult,
    id: &str,
    query: &LineQuery,
) -> Result<Response, Problem> {
    let missing = |why: String| Problem::new(ProblemKind::SourceNotFound, why);
    let source = result.sources.iter().find(|source| source.id == id).ok_or_else(|| {
        let all: Vec<&str> = result.sources.iter().map(|source| source.id.as_str()).collect();
        missing(format!("the result of run {run} has no source {id:?}; its sources: {}", all.join(", ")))
    })?;
    let document = read_document(gateway, source).await?;
    let count = document.line_count();
    let first = query.first.unwrap_or(1).max(1);
    let last = query.last.unwrap_or(first + DEFAULT_LINES - 1).min(count).min(first + MAX_LINES - 1);
    let lines = (first..=last).filter_map(|number| document.nth_line(number).map(str::to_owned));
    let text = SourceText::SourceText {
        quotations: result.quotations.iter().filter(|quotation| quotation.source == id).cloned().collect(),
        source: source.clone(),
        line_count: count,
        first_line: first,
        lines: lines.collect(),
        place: document.place_of_lines(first, last.max(first)),
        places: document.places_in_lines(first, last).to_vec(),
    };
    Ok(json_response(StatusCode::OK, &text))
}

/// Reads a source as the agents saw it. Its bytes are in the blob store under their SHA-256.
async fn read_document(gateway: &Gateway, source: &Source) -> Result<Document, Problem> {
    let missing = |why: &str| {
        let detail = format!("the text of source {} ({}) can't be shown: {why}", source.id, source.location);
        Problem::new(ProblemKind::SourceNotFound, detail)
    };
    let Some(sha256) = &source.sha256 else { return Err(missing("the result does not name its content")) };
    let bytes = find_blob(&gateway.bus, sha256).await?;
    let bytes = bytes.ok_or_else(|| missing("its content is no longer in the store"))?;
    match source.kind {
        SourceKind::Document => {
            let file = InputFile { path: source.location.clone(), bytes };
            let read = tokio::task::spawn_blocking(move || Document::read_file(&file)).await;
            let read = read.map_err(|error| missing(&error.to_string()))?;
            read.map_err(|reason| missing(&reason.to_string()))
        }
        SourceKind::Web | SourceKind::Code | SourceKind::Data | SourceKind::Other => {
            let text = String::from_utf8(bytes).map_err(|_| missing("it is no text"))?;
            Ok(Document::from_text(&source.location, &source.title, sha256, text))
        }
    }
}
