//! The files of a run.

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures::FutureExt;
use jiff::Timestamp;
use millrace_agent::files::FilePath;
use millrace_protocol::ids::RunId;
use millrace_protocol::token::Scope;
use millrace_runtime::store::archive::read_run_from_log_or_archive;
use millrace_runtime::store::workspace::{FileStream, RunWorkspace};
use millrace_views::FileJson;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::content::{ContentInfo, respond_with_content};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, json_response};

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(list_files)).scoped(Scope::Read, routes!(read_file))
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
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<FolderQuery>,
) -> Result<Response, Problem> {
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
    Ok(json_response(StatusCode::OK, &FileList { files }))
}

/// Returns the time of the message of a run at a sequence, or of the last one before it. Files have no place in the log, so that
/// the server's times order them among its messages.
async fn time_of_sequence(gateway: &Gateway, run: &RunId, at: u64) -> Result<Timestamp, Problem> {
    let lane = gateway.bus.lane_of_run(run);
    let records = read_run_from_log_or_archive(&gateway.bus, lane, run).await?;
    let last = records.iter().take_while(|record| record.sequence <= at).last();
    last.map(|record| record.time).ok_or_else(|| {
        let detail = format!("at={at} is before the first message of run {run}");
        Problem::new(ProblemKind::InvalidRequest, detail)
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
    PathParts((run, path)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<FileQuery>,
    request: HeaderMap,
) -> Result<Response, Problem> {
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
        return Ok(json_response(StatusCode::OK, &FileList { files }));
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
