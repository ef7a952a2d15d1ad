//! `write_file`: a whole file, new or in place of what was there.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{Known, Session, failed};
use super::{Call, Effect, FileTool, Tool, ToolError};
use crate::files::FilePath;
use crate::files::permissions::Operation;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    /// The file's path, such as /notes/plan.md. Folders need not exist.
    file_path: String,
    /// The whole content.
    content: String,
}

/// `write_file{file_path, content}`.
pub(super) fn write_file(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description = "Writes a whole file of the workspace: creates it, or replaces what was there. A file that exists \
                       must have been read before; to change a part of one, use edit_file.";
    let tool = FileTool::new("write_file", description, session, run);
    Arc::new(FileTool {
        effect: Effect::Idempotent,
        remember: |session, arguments: &WriteArguments, result, call| {
            session.remember_change(&arguments.file_path, result, call);
            session.remember(&arguments.file_path, &result.text);
        },
        ..tool
    })
}

fn run<'a>(
    session: &'a Session,
    arguments: WriteArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path = session.path(&arguments.file_path, Operation::Write)?;
        session.claim(&path, call)?;
        let was_there = matches!(session.known(&path), Some(Known::Version(_)));
        let version = put(session, &path, arguments.content.into_bytes(), call).await?;
        let done = if was_there { "Updated" } else { "Created" };
        Ok(format!("{done} file {path} (version {version})"))
    }
    .boxed()
}

/// Writes a file in place of the version that the agent knows, and knows the new one.
pub(super) async fn put(
    session: &Session,
    path: &FilePath,
    bytes: Vec<u8>,
    call: &Call,
) -> Result<u64, ToolError> {
    let written = session.files.write(path, bytes, session.expected(path), &call.key).await;
    let version = written.map_err(|error| session.change_failed(path, error))?;
    session.learn(path, Known::Version(version));
    Ok(version)
}

/// The version that this very call has made before, as by a worker that was lost over it; known from here on.
pub(super) async fn made_before(
    session: &Session,
    path: &FilePath,
    call: &Call,
) -> Result<Option<u64>, ToolError> {
    let made = session.files.made(path, &call.key).await.map_err(failed)?;
    if let Some(version) = made {
        session.learn(path, Known::Version(version));
    }
    Ok(made)
}
