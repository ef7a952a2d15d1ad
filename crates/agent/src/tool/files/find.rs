//! `ls` and `glob`: list files.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{FileSession, convert_files_error, refused_error};
use super::{Call, FileTool, Tool, ToolError, show};
use crate::files::permissions::{self, FileOperation};
use crate::files::{FileEntry, FilePath, is_below};

/// The maximum number of lines of one listing.
const MAX_LISTED: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ListArguments")]
#[serde(deny_unknown_fields)]
pub(super) struct LsArguments {
    /// The folder; the whole workspace by default.
    path: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GlobArguments {
    /// The pattern, such as **/*.md: `*` matches any part of a name, `**` any folders, `?` one character, `{a,b}` either.
    pattern: String,
    /// The folder to which the pattern is relative; the whole workspace by default.
    path: Option<String>,
}

/// `ls{path?}`.
pub(super) fn ls_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Lists a folder of the workspace: its files with size, version and author, and its folders, which end \
                       in '/'.";
    Arc::new(FileTool::new("ls", description, session, list_folder))
}

/// `glob{pattern, path?}`.
pub(super) fn glob_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description =
        "Finds the files of the workspace whose path matches a pattern, and returns their absolute paths.";
    Arc::new(FileTool::new("glob", description, session, list_matching_files))
}

fn list_folder<'a>(
    session: &'a FileSession,
    arguments: LsArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let folder = FileSession::parse_folder(arguments.path.as_deref())?;
        let entries = session.list_permitted_files(&folder).await?;
        if !entries.is_empty() {
            return Ok(join_lines_up_to_limit(format_folder_lines(&folder, &entries)));
        }
        // The path may be that of a file.
        if let Ok(path) = session.parse_permitted_path(&folder, FileOperation::Read, false)
            && let Some(content) = session.files.read(&path).await.map_err(convert_files_error)?
        {
            return Ok(format_entry(&content.entry));
        }
        Ok(format!("No files found in {folder}"))
    }
    .boxed()
}

/// A line for each file of the folder, and one for each of its folders.
fn format_folder_lines(folder: &str, entries: &[FileEntry]) -> Vec<String> {
    let above = folder.trim_end_matches('/').len() + 1;
    let (mut files, mut folders) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for entry in entries {
        match entry.path.as_str()[above..].find('/') {
            None => files.push(format_entry(entry)),
            Some(end) => *folders.entry(&entry.path.as_str()[..=above + end]).or_default() += 1,
        }
    }
    let folders =
        folders.into_iter().map(|(path, files)| format!("{path} ({})", show::format_count(files, "file")));
    folders.chain(files).collect()
}

fn format_entry(entry: &FileEntry) -> String {
    let FileEntry { path, size, author, version } = entry;
    format!("{path} ({}, version {version} by {author})", show::format_count(*size, "byte"))
}

fn join_lines_up_to_limit(mut lines: Vec<String>) -> String {
    let more = lines.len().saturating_sub(MAX_LISTED);
    lines.truncate(MAX_LISTED);
    if more > 0 {
        lines.push(format!("[and {more} more: name a folder, or a narrower pattern]"));
    }
    lines.join("\n")
}

fn list_matching_files<'a>(
    session: &'a FileSession,
    arguments: GlobArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let folder = FileSession::parse_folder(arguments.path.as_deref())?;
        let fits = compile_path_pattern(&arguments.pattern, &folder)?;
        let entries = session.list_permitted_files(&folder).await?;
        let paths = entries.into_iter().filter(|entry| fits(&entry.path)).map(|entry| entry.path.to_string());
        let paths: Vec<String> = paths.collect();
        if paths.is_empty() {
            return Ok(format!("No files found that match {} in {folder}", arguments.pattern));
        }
        Ok(join_lines_up_to_limit(paths))
    }
    .boxed()
}

/// Returns a matcher for paths; the pattern is relative to a folder or, with a leading `/`, to the root.
pub(super) fn compile_path_pattern(
    text: &str,
    folder: &str,
) -> Result<impl Fn(&FilePath) -> bool + use<>, ToolError> {
    if text.trim().is_empty() {
        return Err(refused_error("Error: the pattern is empty; `**` matches all files"));
    }
    let is_whole = text.starts_with('/');
    let whole = if is_whole { text.to_owned() } else { format!("/{text}") };
    let glob =
        permissions::parse_glob(&whole).map_err(|invalid| refused_error(format!("Error: {invalid}")))?;
    let matcher = glob.compile_matcher();
    let folder = folder.to_owned();
    Ok(move |path: &FilePath| {
        let at = if is_whole { 0 } else { folder.trim_end_matches('/').len() };
        is_below(path, &folder) && matcher.is_match(&path.as_str()[at..])
    })
}
