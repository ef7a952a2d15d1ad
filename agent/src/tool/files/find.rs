//! `ls` and `glob`: which files there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{Session, failed, refused};
use super::{Call, FileTool, Tool, ToolError, show};
use crate::files::permissions::{self, Operation};
use crate::files::{Entry, FilePath, is_below};

/// The most lines of one listing.
const MAX_LISTED: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    /// The folder; all of the workspace if left out.
    path: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GlobArguments {
    /// The pattern, such as **/*.md: `*` stands for any part of a name, `**` for any folders, `?` for one character,
    /// `{a,b}` for either.
    pattern: String,
    /// The folder that the pattern begins in; all of the workspace if left out.
    path: Option<String>,
}

/// `ls{path?}`.
pub(super) fn ls(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description = "Lists what is in a folder of the workspace: its files with size, version and author, and its folders, \
                       which end in '/'.";
    Arc::new(FileTool::new("ls", description, session, list))
}

/// `glob{pattern, path?}`.
pub(super) fn glob(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description =
        "Finds the files of the workspace whose path fits a pattern, and gives their absolute paths.";
    Arc::new(FileTool::new("glob", description, session, matching))
}

fn list<'a>(
    session: &'a Session,
    arguments: ListArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let folder = Session::folder(arguments.path.as_deref())?;
        let entries = session.list(&folder).await?;
        if !entries.is_empty() {
            return Ok(bounded(folder_lines(&folder, &entries)));
        }
        // A path may be that of a file.
        if let Ok(path) = session.path(&folder, Operation::Read)
            && let Some(content) = session.files.read(&path).await.map_err(failed)?
        {
            return Ok(line(&content.entry));
        }
        Ok(format!("No files found in {folder}"))
    }
    .boxed()
}

/// A line for each file of the folder, and one for each folder in it.
fn folder_lines(folder: &str, entries: &[Entry]) -> Vec<String> {
    let above = folder.trim_end_matches('/').len() + 1;
    let (mut files, mut folders) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for entry in entries {
        match entry.path.as_str()[above..].find('/') {
            None => files.push(line(entry)),
            Some(end) => *folders.entry(&entry.path.as_str()[..=above + end]).or_default() += 1,
        }
    }
    let folders = folders.into_iter().map(|(path, files)| format!("{path} ({})", show::count(files, "file")));
    folders.chain(files).collect()
}

fn line(entry: &Entry) -> String {
    let Entry { path, size, author, version } = entry;
    format!("{path} ({}, version {version} by {author})", show::count(*size, "byte"))
}

fn bounded(mut lines: Vec<String>) -> String {
    let more = lines.len().saturating_sub(MAX_LISTED);
    lines.truncate(MAX_LISTED);
    if more > 0 {
        lines.push(format!("[and {more} more: name a folder, or a narrower pattern]"));
    }
    lines.join("\n")
}

fn matching<'a>(
    session: &'a Session,
    arguments: GlobArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let folder = Session::folder(arguments.path.as_deref())?;
        let fits = pattern(&arguments.pattern, &folder)?;
        let entries = session.list(&folder).await?;
        let found = entries.into_iter().filter(|entry| fits(&entry.path)).map(|entry| entry.path.to_string());
        let found: Vec<String> = found.collect();
        if found.is_empty() {
            return Ok(format!("No files found that fit {} in {folder}", arguments.pattern));
        }
        Ok(bounded(found))
    }
    .boxed()
}

/// Whether a path fits a pattern that begins in a folder, or, with a leading `/`, at the root.
pub(super) fn pattern(text: &str, folder: &str) -> Result<impl Fn(&FilePath) -> bool + use<>, ToolError> {
    if text.trim().is_empty() {
        return Err(refused("Error: the pattern is empty; `**` stands for all files"));
    }
    let is_whole = text.starts_with('/');
    let whole = if is_whole { text.to_owned() } else { format!("/{text}") };
    let glob = permissions::glob(&whole).map_err(|invalid| refused(format!("Error: {invalid}")))?;
    let matcher = glob.compile_matcher();
    let folder = folder.to_owned();
    Ok(move |path: &FilePath| {
        let at = if is_whole { 0 } else { folder.trim_end_matches('/').len() };
        is_below(path, &folder) && matcher.is_match(&path.as_str()[at..])
    })
}
