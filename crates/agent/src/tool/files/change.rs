//! `write_file`: writes a whole file, new or replacing an old one.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Artifact;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{FileSession, KnownFileState, convert_files_error};
use super::{Call, Effect, FileTool, Tool, ToolError};
use crate::files::permissions::FileOperation;
use crate::files::{FilePath, sha256_hex};
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
