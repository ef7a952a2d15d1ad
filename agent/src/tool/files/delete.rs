//! `delete`: a file, or a folder with all that is in it.

use std::fmt::Write;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::change::made_before;
use super::session::{Known, Session, failed, refused};
use super::{Call, Effect, FileTool, Tool, ToolError, ToolResult, show};
use crate::files::permissions::Operation;
use crate::files::{Entry, Expected, FilePath};

/// The most files that are named at once.
const MAX_NAMED: usize = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteArguments {
    /// The path of a file, or of a folder, which goes with all that is in it.
    file_path: String,
}

/// `delete{file_path}`.
pub(super) fn delete(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description = "Deletes a file of the workspace, or a folder with all files in it. What you have not seen, or what \
                       others have changed since, is shown instead, and deleted by a second call. Versions that are \
                       gone stay in the history of the run.";
    let tool = FileTool::new("delete", description, session, run);
    Arc::new(FileTool { effect: Effect::Idempotent, remember, ..tool })
}

fn run<'a>(
    session: &'a Session,
    arguments: DeleteArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path = session.path(&arguments.file_path, Operation::Write)?;
        session.claim(&path, call)?;
        if session.files.read(&path).await.is_ok_and(|found| found.is_some()) {
            return delete_file(session, &path, call).await;
        }
        let all = session.files.list(path.as_str()).await.map_err(failed)?;
        if all.is_empty() {
            return nothing_there(session, &path, call).await;
        }
        delete_folder(session, &path, &all, call).await
    }
    .boxed()
}

async fn delete_file(session: &Session, path: &FilePath, call: &Call) -> Result<String, ToolError> {
    let expected = match session.known(path) {
        Some(Known::Version(version)) => Expected::Version(version),
        Some(Known::Absent) | None => Expected::Nothing,
    };
    let deleted = session.files.delete(path, expected, &call.key).await;
    deleted.map_err(|error| session.change_failed(path, error))?;
    session.learn(path, Known::Absent);
    Ok(format!("Deleted {path}"))
}

async fn nothing_there(session: &Session, path: &FilePath, call: &Call) -> Result<String, ToolError> {
    let mut is_done = made_before(session, path, call).await?.is_some();
    // Of a folder, the files were deleted one by one.
    for below in session.known_below(path) {
        is_done |= session.files.made(&below, &key_of(call, &below)).await.map_err(failed)?.is_some();
    }
    session.forget_below(path);
    if is_done { Ok(format!("Deleted {path}")) } else { Err(session.not_found(path).await) }
}

/// The key under which a file goes that is deleted with its folder.
fn key_of(call: &Call, path: &FilePath) -> String {
    format!("{}{path}", call.key)
}

async fn delete_folder(
    session: &Session,
    folder: &FilePath,
    all: &[Entry],
    call: &Call,
) -> Result<String, ToolError> {
    let may = |entry: &&Entry| {
        session
            .may(Operation::Read, &entry.path)
            .and_then(|()| session.may(Operation::Write, &entry.path))
            .is_ok()
    };
    if let Some(denied) = all.iter().find(|entry| !may(entry)) {
        // What may not be read is not named.
        let named = session
            .may(Operation::Read, &denied.path)
            .map_or(String::new(), |()| format!(": {}", denied.path));
        return Err(refused(format!(
            "Error: '{folder}' can't be deleted as a whole: something in it may not be changed by this capability{named}. \
             Delete the other files one by one"
        )));
    }
    let unseen: Vec<&Entry> = all
        .iter()
        .filter(|entry| session.known(&entry.path) != Some(Known::Version(entry.version)))
        .collect();
    if !unseen.is_empty() {
        return Err(refused(not_seen(session, folder, &unseen)));
    }
    for entry in all {
        let (path, expected) = (&entry.path, Expected::Version(entry.version));
        let deleted = session.files.delete(path, expected, &key_of(call, path)).await;
        deleted.map_err(|error| session.change_failed(path, error))?;
        session.learn(path, Known::Absent);
    }
    Ok(format!("Deleted {folder} with {}", show::count(all.len() as u64, "file")))
}

/// The refusal to delete what was not seen: it names it, and from here on it counts as seen.
fn not_seen(session: &Session, folder: &FilePath, unseen: &[&Entry]) -> String {
    let files = show::count(unseen.len() as u64, "file");
    let mut text = format!(
        "Error: '{folder}' holds {files} that you have not seen in this version; nothing was deleted. These count as seen \
         now: call delete again if all of it may go\n"
    );
    for entry in unseen.iter().take(MAX_NAMED) {
        session.learn(&entry.path, Known::Version(entry.version));
        let line = line(entry);
        writeln!(text, "{line}").expect("a string takes what is written to it");
    }
    if unseen.len() > MAX_NAMED {
        let more = unseen.len() - MAX_NAMED;
        writeln!(text, "and {more} more, which will be named the next time")
            .expect("a string takes what is written to it");
    }
    text
}

fn line(entry: &Entry) -> String {
    let Entry { path, size, author, version } = entry;
    format!("{path}\t{}, by {author}, version {version}", show::count(*size, "byte"))
}

/// Learns again what a recorded call has shown or deleted.
fn remember(session: &Session, arguments: &DeleteArguments, result: &ToolResult, call: &Call) {
    let Ok(path) = FilePath::new(&arguments.file_path) else { return };
    session.remember_change(&arguments.file_path, result, call);
    if !result.is_error {
        session.forget_below(&path);
        return;
    }
    if let Some(version) = show::version_in(&result.text) {
        return session.learn(&path, Known::Version(version));
    }
    if !result.text.starts_with(&format!("Error: '{path}' holds ")) {
        return;
    }
    for line in result.text.lines().skip(1) {
        let Some((named, rest)) = line.split_once('\t') else { continue };
        if let (Ok(path), Some(version)) = (FilePath::new(named), show::version_in(rest)) {
            session.learn(&path, Known::Version(version));
        }
    }
}
