//! The files of a run, its sources by line, and large values by the SHA-256 of their content.

use axum::http::HeaderMap;
use futures::FutureExt;
use jiff::Timestamp;
use millrace_agent::corpus::{self, Document, DocumentPlace, InputFile};
use millrace_agent::files::FilePath;
use millrace_client::{read_document_list, read_task_result};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Plan;
use millrace_protocol::result::{Quotation, Source, SourceKind, TaskResult};
use millrace_protocol::token::Scope;
use millrace_runtime::store::archive::read_run_from_log_or_archive;
use millrace_runtime::store::workspace::{FileStream, RunWorkspace};
use millrace_runtime::{Bus, Fault};
use millrace_views::FileJson;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::content::{Content, ContentInfo, respond_with_content};
use crate::extract::{Path, Query};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::resources::runs::require_deliverable;
use crate::state::{Gateway, find_blob, reply};

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(list_files))
        .scoped(Scope::Read, routes!(read_file))
        .scoped(Scope::Read, routes!(read_source))
        .scoped(Scope::Read, routes!(read_task_source))
        .scoped(Scope::Read, routes!(read_blob))
}

/// Files, or versions of a file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileList<'a> {
    /// The files, or the versions of one, oldest first.
    pub files: Vec<FileJson<'a>>,
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FolderQuery {
    /// Only files in this folder.
    folder: Option<String>,
    /// The files as of this sequence of the run's log.
    at: Option<u64>,
}

/// List the files of a run.
#[utoipa::path(
    get, path = "/runs/{run}/files", tag = "runs",
    params(("run" = String, Path, description = "The run"), FolderQuery),
    responses((status = 200, description = "The files", body = ref("#/components/schemas/FileList")))
)]
pub async fn list_files(
    gateway: Access,
    Path(run): Path<String>,
    Query(query): Query<FolderQuery>,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let folder = query.folder.as_deref().map(parse_path).transpose()?;
    let workspace = RunWorkspace::new(&gateway.bus, &run);
    let entries = match query.at {
        None => workspace.list_files(folder.as_ref()).await?,
        Some(at) => {
            workspace.list_files_at(folder.as_ref(), time_of_sequence(&gateway, &run, at).await?).await?
        }
    };
    let files = entries.iter().map(|entry| FileJson::new(entry, None)).collect();
    reply(&FileList { files })
}

/// Returns the time of the message of a run at a sequence, or of the last one before it. Files have no place in the log, so that
/// the server's times order them among its messages.
async fn time_of_sequence(gateway: &Gateway, run: &RunId, at: u64) -> Result<Timestamp, Problem> {
    let lane = gateway.bus.lane_of_run(run);
    let records = read_run_from_log_or_archive(&gateway.bus, lane, run).await?;
    let last = records.iter().take_while(|record| record.sequence <= at).last();
    last.map(|record| record.time).ok_or_else(|| {
        let detail = format!("at={at} is before the first message of run {run}");
        Problem::invalid(detail)
    })
}

fn parse_path(path: &str) -> Result<FilePath, Problem> {
    path.parse().map_err(|error| Problem::new(ProblemKind::FileNotFound, format!("{path:?}: {error}")))
}

#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FileQuery {
    /// This version of the file instead of the newest.
    version: Option<u64>,
    /// The version of the file as of this sequence of the run's log.
    at: Option<u64>,
    /// `true` lists the versions of the file instead.
    #[serde(default)]
    versions: bool,
}

/// Read a file of a run, or list its versions.
///
/// The content is streamed; the header `Range` selects a part of it. A damaged content breaks off before its end.
#[utoipa::path(
    get, path = "/runs/{run}/files/{*path}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("path" = String, Path, description = "The file; its slashes are part of the path"), FileQuery),
    responses(
        (status = 200, description = "The content; its ETag is the version. With `versions` the list", content(
            (String = "application/octet-stream"), (ref("#/components/schemas/FileList") = "application/json")
        )),
        (status = 206, description = "The requested range of it", content_type = "application/octet-stream", body = String)
    )
)]
pub async fn read_file(
    gateway: Access,
    Path((run, path)): Path<(String, String)>,
    Query(query): Query<FileQuery>,
    request: HeaderMap,
) -> ApiResult {
    let (run, _) = gateway.find_run(&run).await?;
    let path = parse_path(&path)?;
    let workspace = RunWorkspace::new(&gateway.bus, &run);
    let unknown = |what: String| Problem::new(ProblemKind::FileNotFound, what);
    if query.versions {
        let entries = workspace.list_versions(&path).await?;
        if entries.is_empty() {
            return Err(unknown(format!("run {run} has no file {path}")));
        }
        let files = entries.iter().map(|entry| FileJson::new(entry, None)).collect();
        return reply(&FileList { files });
    }
    let version = match (query.version, query.at) {
        (None, Some(at)) => {
            let time = time_of_sequence(&gateway, &run, at).await?;
            let versions = workspace.list_versions(&path).await?.into_iter();
            let last = versions.take_while(|version| version.time <= time).last();
            match last.filter(|version| !version.is_deletion) {
                Some(version) => Some(version.version),
                None => return Err(unknown(format!("run {run} has no file {path} at {at}"))),
            }
        }
        (version, _) => version,
    };
    let Some(file) = workspace.open_file(&path, version).await? else {
        let version = query.version.map(|version| format!(" of version {version}")).unwrap_or_default();
        return Err(unknown(format!("run {run} has no file {path}{version}")));
    };
    let (size, version) = (file.entry.size, file.entry.version);
    let info = ContentInfo { size, etag: version.to_string(), cache_control: None };
    let gone = unknown(format!("run {run} has no file {path} of version {version}"));
    let open = || {
        async move {
            let file = workspace.open_file(&path, Some(version)).await?;
            file.map(FileStream::into_stream).ok_or(gone)
        }
        .boxed()
    };
    respond_with_content(&request, info, file.into_stream(), open).await
}

/// The number of lines if the client does not choose the last one.
const DEFAULT_LINES: usize = 400;
/// The maximum number of lines.
const MAX_LINES: usize = 5_000;

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
    params(("run" = String, Path, description = "The run"), ("source" = String, Path, description = "The id of the source in the result, such as `S1`, or the path of a document with which a statement was compared"), LineQuery),
    responses((status = 200, description = "The lines", body = ref("#/components/schemas/SourceText")))
)]
async fn read_source(
    gateway: Access,
    Path((run, source)): Path<(String, String)>,
    Query(query): Query<LineQuery>,
) -> ApiResult {
    let (run, state, result) = require_deliverable(&gateway, &run).await?;
    let source = find_source(&gateway, &run, state.plan(), &result, &source).await?;
    read_lines(&gateway, &result, source, &query).await
}

/// Read the text of a source of a task's result by line.
#[utoipa::path(
    get, path = "/runs/{run}/tasks/{task}/sources/{source}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), ("source" = String, Path, description = "The id of the source in the result, such as `S1`, or the path of a document with which a statement was compared"), LineQuery),
    responses((status = 200, description = "The lines", body = ref("#/components/schemas/SourceText")))
)]
async fn read_task_source(
    gateway: Access,
    Path((run, task, source)): Path<(String, String, String)>,
    Query(query): Query<LineQuery>,
) -> ApiResult {
    let unknown = || Problem::new(ProblemKind::TaskNotFound, format!("run {run} has no task {task:?}"));
    let (run_id, _) = gateway.find_run(&run).await?;
    let task_id = TaskId::new(&task).map_err(|_| unknown())?;
    let state = gateway.read_history(&run_id, None).await?;
    state.plan().task(&task_id).ok_or_else(unknown)?;
    let result = read_task_result(&gateway.bus, &run_id, state.plan(), &task_id).await?;
    let result = result.ok_or_else(|| {
        Problem::new(ProblemKind::SourceNotFound, format!("task {task} of run {run} has no result"))
    })?;
    let source = find_source(&gateway, &run_id, state.plan(), &result, &source).await?;
    read_lines(&gateway, &result, source, &query).await
}

/// Finds a source of a result by its id, or a document of the run by its path if lines of it decided a statement.
async fn find_source(
    gateway: &Gateway,
    run: &RunId,
    plan: &Plan,
    result: &TaskResult,
    id: &str,
) -> Result<Source, Problem> {
    if let Some(source) = result.sources.iter().find(|source| source.id == id) {
        return Ok(source.clone());
    }
    let is_compared = result.statements.iter().flat_map(|one| &one.lines).any(|lines| lines.source == id);
    let documents = plan.run.start.as_ref().and_then(|start| start.documents.as_ref());
    let documents = match documents.filter(|_| is_compared) {
        Some(set) => read_document_list(&gateway.bus, set).await?,
        None => Vec::new(),
    };
    let document = documents.into_iter().find(|document| document.path == id).ok_or_else(|| {
        let all: Vec<&str> = result.sources.iter().map(|source| source.id.as_str()).collect();
        let detail = format!("the result of run {run} has no source {id:?}; its sources: {}", all.join(", "));
        Problem::new(ProblemKind::SourceNotFound, detail)
    })?;
    let (id, title, location) = (document.path.clone(), document.path.clone(), document.path);
    let (kind, sha256) = (SourceKind::Document, Some(document.sha256));
    Ok(Source { id, kind, title, location, sha256, accessed_at: None })
}

async fn read_lines(gateway: &Gateway, result: &TaskResult, source: Source, query: &LineQuery) -> ApiResult {
    let document = read_document(gateway, &source).await?;
    let count = document.line_count();
    let first = query.first.unwrap_or(1).max(1);
    let last = query.last.unwrap_or(first + DEFAULT_LINES - 1).min(count).min(first + MAX_LINES - 1);
    let lines = (first..=last).filter_map(|number| document.nth_line(number).map(str::to_owned));
    let text = SourceText::SourceText {
        quotations: result.quotations.iter().filter(|one| one.source == source.id).cloned().collect(),
        source,
        line_count: count,
        first_line: first,
        lines: lines.collect(),
        place: document.place_of_lines(first, last.max(first)),
        places: document.places_in_lines(first, last).to_vec(),
    };
    reply(&text)
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
            let read = tokio::task::spawn_blocking(move || corpus::read_document(&file)).await;
            let read = read.map_err(|error| missing(&error.to_string()))?;
            read.map_err(|reason| missing(&reason.to_string()))
        }
        SourceKind::Web | SourceKind::Code | SourceKind::Data | SourceKind::Other => {
            let text = String::from_utf8(bytes).map_err(|_| missing("it is no text"))?;
            Ok(Document::from_text(&source.location, &source.title, sha256, text))
        }
    }
}

/// Read a blob.
///
/// The content is streamed; the header `Range` selects a part of it. A damaged content breaks off before its end.
#[utoipa::path(
    get, path = "/blobs/{sha256}", tag = "blobs",
    params(("sha256" = String, Path, description = "The SHA-256 of its content in hexadecimal")),
    responses(
        (status = 200, description = "The content, which never changes", content_type = "application/octet-stream", body = String),
        (status = 206, description = "The requested range of it", content_type = "application/octet-stream", body = String)
    )
)]
async fn read_blob(gateway: Access, Path(sha256): Path<String>, request: HeaderMap) -> ApiResult {
    let (blob, content) = open_blob(gateway.bus.clone(), sha256.clone()).await?;
    let cache_control = Some("private, max-age=31536000, immutable");
    let info = ContentInfo { size: blob, etag: sha256.clone(), cache_control };
    let bus = gateway.bus.clone();
    let open = || async move { Ok(open_blob(bus, sha256).await?.1) }.boxed();
    respond_with_content(&request, info, content, open).await
}

/// Returns the size of a blob and its content.
async fn open_blob(bus: Bus, sha256: String) -> Result<(u64, Content), Problem> {
    match bus.blobs().open_blob(&sha256, None).await {
        Ok(blob) => Ok((blob.size(), blob.into_stream())),
        Err(Fault::Missing { .. }) => {
            Err(Problem::new(ProblemKind::BlobNotFound, format!("there is no blob {sha256:?}")))
        }
        Err(fault) => Err(fault.into()),
    }
}
