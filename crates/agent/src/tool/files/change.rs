//! `write_file`: writes a whole file, new or replacing an old one. `delete`: deletes a file, or a folder with all its files.

use std::fmt::Write;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Artifact;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{FileSession, KnownFileState, convert_files_error, refused_error};

use super::{Call, Effect, FileTool, Tool, ToolError, ToolResult, session};

use crate::files::permissions::FileOperation;
use crate::files::{FileEntry, FilePath, WriteCondition, sha256_hex};

use crate::turn::ArtifactChange;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "WriteArguments")]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFileArguments {
    /// The file's path, such as /notes/plan.md. Folders are created as needed.
    file_path: String,
    /// The complete content.
    content: String,
}

/// `write_file{file_path, content}`.
pub(super) fn write_file_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Writes a whole file of the workspace: creates it, or replaces it. An existing file must have been \
                       read before; to change a part of one, use edit_file.";
    let tool = FileTool::new("write_file", description, session, write_requested_file);
    Arc::new(FileTool {
        effect: Effect::Idempotent,
        operations: &[FileOperation::Write],
        remember: |session, arguments: &WriteFileArguments, result, call| {
            session.restore_change(&arguments.file_path, result, call);
            session.restore_known_version(&arguments.file_path, &result.text);
        },
        ..tool
    })
}

fn write_requested_file<'a>(
    session: &'a FileSession,
    arguments: WriteFileArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path =
            session.parse_permitted_path(&arguments.file_path, FileOperation::Write, call.is_approved)?;
        session.claim_path_for_call(&path, call)?;
        let existed = matches!(session.known_state(&path), Some(KnownFileState::Version(_)));
        let version = replace_known_version(session, &path, arguments.content.into_bytes(), call).await?;
        let done = if existed { "Updated" } else { "Created" };
        Ok(format!("{done} file {path} (version {version})"))
    }
    .boxed()
}

/// Replaces the version of a file that the agent knows, and remembers the new one.
pub(super) async fn replace_known_version(
    session: &FileSession,
    path: &FilePath,
    bytes: Vec<u8>,
    call: &Call,
) -> Result<u64, ToolError> {
    let artifact = build_artifact(path, &bytes);
    let written = session.files.write(path, bytes, session.write_condition(path), &call.key).await;
    let version = written.map_err(|error| session.change_failed_error(path, error))?;
    session.add_artifact(&call.key, ArtifactChange::Written(Artifact { version, ..artifact }));
    session.set_known_state(path, KnownFileState::Version(version));
    Ok(version)
}

/// A file with this content, as a result names it; its version is not known yet.
pub(super) fn build_artifact(path: &FilePath, bytes: &[u8]) -> Artifact {
    Artifact { path: path.clone(), version: 0, bytes: bytes.len() as u64, sha256: sha256_hex(bytes) }
}

/// The version that an earlier run of this very call made, for instance on a lost worker; remembered from here on.
pub(super) async fn find_version_of_repeated_call(
    session: &FileSession,
    path: &FilePath,
    call: &Call,
) -> Result<Option<u64>, ToolError> {
    let made = session.files.find_version_by_key(path, &call.key).await.map_err(convert_files_error)?;
    if let Some(version) = made {
        session.set_known_state(path, KnownFileState::Version(version));
    }
    Ok(made)
}

/// The maximum number of files listed at once.
const MAX_NAMED: usize = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteArguments {
    /// The path of a file, or of a folder, which is deleted with all its files.
    file_path: String,
}

/// `delete{file_path}`.
pub(super) fn delete_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Deletes a file of the workspace, or a folder with all its files. Files that you have not seen, or \
                       that others have changed since, are listed instead; a second call then deletes them. Deleted \
                       versions stay in the history of the run.";
    let tool = FileTool::new("delete", description, session, delete_path);
    Arc::new(FileTool {
        effect: Effect::Idempotent,
        operations: &[FileOperation::Write],
        remember: restore_known_state,
        ..tool
    })
}

fn delete_path<'a>(
    session: &'a FileSession,
    arguments: DeleteArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path =
            session.parse_permitted_path(&arguments.file_path, FileOperation::Write, call.is_approved)?;
        session.claim_path_for_call(&path, call)?;
        if session.files.read(&path).await.is_ok_and(|content| content.is_some()) {
            return delete_file(session, &path, call).await;
        }
        let all = session.files.list(path.as_str()).await.map_err(convert_files_error)?;
        if all.is_empty() {
            return report_missing_path(session, &path, call).await;
        }
        delete_folder(session, &path, &all, call).await
    }
    .boxed()
}

async fn delete_file(session: &FileSession, path: &FilePath, call: &Call) -> Result<String, ToolError> {
    let expected = match session.known_state(path) {
        Some(KnownFileState::Version(version)) => WriteCondition::Version(version),
        Some(KnownFileState::Absent) | None => WriteCondition::Absent,
    };
    let deleted = session.files.delete(path, expected, &call.key).await;
    deleted.map_err(|error| session.change_failed_error(path, error))?;
    session.set_known_state(path, KnownFileState::Absent);
    session.add_artifact(&call.key, ArtifactChange::Deleted(path.clone()));
    Ok(format!("Deleted {path}"))
}

async fn report_missing_path(
    session: &FileSession,
    path: &FilePath,
    call: &Call,
) -> Result<String, ToolError> {
    let mut is_done = find_version_of_repeated_call(session, path, call).await?.is_some();
    // Files of a folder are deleted one by one.
    for below in session.list_known_files_below(path) {
        let key = idempotency_key(call, &below);
        let deletion = session.files.find_version_by_key(&below, &key).await.map_err(convert_files_error)?;
        if deletion.is_some() {
            is_done = true;
            session.add_artifact(&call.key, ArtifactChange::Deleted(below));
        }
    }
    session.forget_files_below(path);
    if !is_done {
        return Err(session.not_found_error(path).await);
    }
    session.add_artifact(&call.key, ArtifactChange::Deleted(path.clone()));
    Ok(format!("Deleted {path}"))
}

/// The key for deleting a file together with its folder.
fn idempotency_key(call: &Call, path: &FilePath) -> String {
    format!("{}{path}", call.key)
}

async fn delete_folder(
    session: &FileSession,
    folder: &FilePath,
    all: &[FileEntry],
    call: &Call,
) -> Result<String, ToolError> {
    let may = |entry: &&FileEntry| {
        session
            .check_permission(FileOperation::Read, &entry.path)
            .and_then(|()| session.check_permission(FileOperation::Write, &entry.path))
            .is_ok()
    };
    if let Some(denied) = all.iter().find(|entry| !may(entry)) {
        // The path of an unreadable file is not revealed.
        let named = session
            .check_permission(FileOperation::Read, &denied.path)
            .map_or(String::new(), |()| format!(": {}", denied.path));
        return Err(refused_error(format!(
            "Error: '{folder}' can't be deleted as a whole: this capability may not change something in it{named}. Delete \
             the other files one by one"
        )));
    }
    let unseen: Vec<&FileEntry> = all
        .iter()
        .filter(|entry| session.known_state(&entry.path) != Some(KnownFileState::Version(entry.version)))
        .collect();
    if !unseen.is_empty() {
        return Err(refused_error(unseen_files_error(session, folder, &unseen)));
    }
    for entry in all {
        let (path, expected) = (&entry.path, WriteCondition::Version(entry.version));
        let deleted = session.files.delete(path, expected, &idempotency_key(call, path)).await;
        deleted.map_err(|error| session.change_failed_error(path, error))?;
        session.set_known_state(path, KnownFileState::Absent);
        session.add_artifact(&call.key, ArtifactChange::Deleted(path.clone()));
    }
    Ok(format!("Deleted {folder} with {}", session::format_count(all.len() as u64, "file")))
}

/// The refusal to delete unseen files: it lists them, and from then on they count as seen.
fn unseen_files_error(session: &FileSession, folder: &FilePath, unseen: &[&FileEntry]) -> String {
    let files = session::format_count(unseen.len() as u64, "file");
    let mut text = format!(
        "Error: '{folder}' holds {files} that you have not seen in this version; nothing was deleted. These count as seen \
         now: call delete again if all of them may be deleted\n"
    );
    for entry in unseen.iter().take(MAX_NAMED) {
        session.set_known_state(&entry.path, KnownFileState::Version(entry.version));
        let line = format_entry(entry);
        writeln!(text, "{line}").expect("writing to a String can't fail");
    }
    if unseen.len() > MAX_NAMED {
        let more = unseen.len() - MAX_NAMED;
        writeln!(text, "and {more} more, which will be listed next time")
            .expect("writing to a String can't fail");
    }
    text
}

fn format_entry(entry: &FileEntry) -> String {
    let FileEntry { path, size, author, version } = entry;
    format!("{path}\t{}, by {author}, version {version}", session::format_count(*size, "byte"))
}

/// Restores what a recorded call has shown or deleted.
fn restore_known_state(session: &FileSession, arguments: &DeleteArguments, result: &ToolResult, call: &Call) {
    let Ok(path) = FilePath::new(&arguments.file_path) else { return };
    session.restore_change(&arguments.file_path, result, call);
    if !result.is_error {
        session.forget_files_below(&path);
        return;
    }
    if let Some(version) = session::parse_version(&result.text) {
        return session.set_known_state(&path, KnownFileState::Version(version));
    }
    if !result.text.starts_with(&format!("Error: '{path}' holds ")) {
        return;
    }
    for line in result.text.lines().skip(1) {
        let Some((named, rest)) = line.split_once('\t') else { continue };
        if let (Ok(path), Some(version)) = (FilePath::new(named), session::parse_version(rest)) {
            session.set_known_state(&path, KnownFileState::Version(version));
        }
    }
}
