//! `ls` and `glob` list files, `grep` searches them for a text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::{FileSession, convert_files_error, refused_error};

use super::{Call, FileTool, Tool, ToolError, session};

use crate::files::permissions::{self, FileOperation};

use crate::files::{FileContent, FileEntry, FilePath, FilesError, is_below};

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
        folders.into_iter().map(|(path, files)| format!("{path} ({})", session::format_count(files, "file")));
    folders.chain(files).collect()
}

fn format_entry(entry: &FileEntry) -> String {
    let FileEntry { path, size, author, version } = entry;
    format!("{path} ({}, version {version} by {author})", session::format_count(*size, "byte"))
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

/// The maximum number of matches of one search.
const MAX_MATCHES: usize = 1_000;
/// The maximum number of characters of one search's result.
const MAX_CHARS: usize = 60_000;
/// The maximum number of characters of a line that are shown. Of a longer one, each match is shown by itself.
const MAX_LINE: usize = 500;
/// The number of characters before a match that are shown of a longer line.
const BEFORE_MATCH: usize = 100;
/// The time limit of one search.
const MAX_DURATION: Duration = Duration::from_secs(10);
/// The number of concurrent reads.
const READS: usize = 8;
/// The maximum length of the pattern, in characters.
const MAX_PATTERN: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrepArguments {
    /// The literal text to search for; not a regular expression.
    #[schemars(length(min = 1))]
    pattern: String,
    /// The folder or file to search; the whole workspace by default.
    path: Option<String>,
    /// Restricts the files by a pattern for their paths, such as **/*.md.
    glob: Option<String>,
    /// What to show; files_with_matches by default.
    #[serde(default)]
    output_mode: GrepOutputMode,
    /// The maximum number of matches (or files), 1 to 1000.
    #[schemars(range(min = 1, max = 1000))]
    max_count: Option<u32>,
    /// true to ignore case.
    #[serde(default)]
    ignore_case: bool,
}

/// The output of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OutputMode")]
#[serde(rename_all = "snake_case")]
enum GrepOutputMode {
    /// The paths of the files.
    #[default]
    FilesWithMatches,
    /// The lines with their numbers, below the path of each file.
    Content,
    /// The number of matching lines of each file.
    Count,
}

/// `grep{pattern, path?, glob?, output_mode?, max_count?, ignore_case?}`.
pub(super) fn grep_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Finds the lines of the workspace's files that contain a text, word for word. Shows the files, the \
                       lines, or their number; of a long line the parts around the matches, with their columns.";
    Arc::new(FileTool::new("grep", description, session, run_grep))
}

struct MatchingLinesOfFile {
    path: FilePath,
    lines: Vec<MatchingLine>,
}

/// A matching line, or a part of it with a match.
#[derive(Debug, PartialEq, Eq)]
struct MatchingLine {
    number: usize,
    /// The column of the match, in characters from 1; `None` if the whole line is shown.
    column: Option<usize>,
    text: String,
}

/// The state of a search.
#[derive(Default)]
struct GrepSearch {
    files: Vec<MatchingLinesOfFile>,
    /// The number of matching lines.
    count: usize,
    searched: usize,
    binary: usize,
    unreadable: Vec<String>,
    stopped: Option<&'static str>,
}

fn run_grep<'a>(
    session: &'a FileSession,
    arguments: GrepArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        validate_arguments(&arguments)?;
        let search = search_files(session, &arguments).await?;
        Ok(format_matches(&search, &arguments))
    }
    .boxed()
}

fn validate_arguments(arguments: &GrepArguments) -> Result<(), ToolError> {
    if arguments.pattern.chars().count() > MAX_PATTERN {
        return Err(refused_error(format!("Error: the pattern is longer than {MAX_PATTERN} characters")));
    }
    if arguments.pattern.contains('\n') {
        return Err(refused_error(
            "Error: the pattern has a line end, but lines are searched one by one; search for a part of one line",
        ));
    }
    Ok(())
}

async fn search_files(session: &FileSession, arguments: &GrepArguments) -> Result<GrepSearch, ToolError> {
    let folder = FileSession::parse_folder(arguments.path.as_deref())?;
    let mut paths: Vec<FilePath> =
        session.list_permitted_files(&folder).await?.into_iter().map(|entry| entry.path).collect();
    if paths.is_empty() && folder != "/" {
        let path =
            session.parse_permitted_path(&folder, crate::files::permissions::FileOperation::Read, false)?;
        paths.push(session.read_existing_file(&path).await?.entry.path);
    } else if let Some(glob) = &arguments.glob {
        let fits = super::find::compile_path_pattern(glob, &folder)?;
        paths.retain(fits);
    }
    let (started, most) = (Instant::now(), max_matches(arguments));
    let mut search = GrepSearch::default();
    // Each read is boxed: the compiler can't prove that a stream of closures over borrowed paths is `Send`.
    let reads: Vec<_> = paths.iter().map(|path| session.files.read(path)).collect();
    let mut reads = futures::stream::iter(reads).buffered(READS).zip(futures::stream::iter(&paths));
    while let Some((read, path)) = reads.next().await {
        search.add_file(path, read, arguments)?;
        let enough = match arguments.output_mode {
            GrepOutputMode::FilesWithMatches | GrepOutputMode::Count => search.files.len() >= most,
            GrepOutputMode::Content => search.count >= most,
        };
        if enough {
            search.stopped = Some("there may be more matches: the requested number was reached");
            break;
        }
        if started.elapsed() > MAX_DURATION {
            search.stopped = Some("the search took too long and skipped some files; name a folder or a glob");
            break;
        }
    }
    Ok(search)
}

fn max_matches(arguments: &GrepArguments) -> usize {
    arguments.max_count.map_or(MAX_MATCHES, |most| most as usize).clamp(1, MAX_MATCHES)
}

impl GrepSearch {
    fn add_file(
        &mut self,
        path: &FilePath,
        read: Result<Option<FileContent>, FilesError>,
        arguments: &GrepArguments,
    ) -> Result<(), ToolError> {
        let content = match read {
            Ok(Some(content)) => content,
            // Deleted since it was listed.
            Ok(None) => return Ok(()),
            Err(FilesError::Unavailable(why)) => return Err(ToolError::Unavailable(why)),
            Err(
                error @ (FilesError::Stale { .. }
                | FilesError::Denied(_)
                | FilesError::TooLarge { .. }
                | FilesError::Broken(_)),
            ) => {
                self.unreadable.push(error.to_string());
                return Ok(());
            }
        };
        self.searched += 1;
        let Some(text) = session::decode_text(&content.bytes) else {
            self.binary += 1;
            return Ok(());
        };
        let lines = find_matching_lines(text, arguments);
        if !lines.is_empty() {
            self.count += lines.len();
            self.files.push(MatchingLinesOfFile { path: path.clone(), lines });
        }
        Ok(())
    }
}

fn find_matching_lines(text: &str, arguments: &GrepArguments) -> Vec<MatchingLine> {
    let pattern = fold_case(&arguments.pattern, arguments);
    let matching =
        text.lines().enumerate().filter(|(_, line)| fold_case(line, arguments).contains(&*pattern));
    let named = |(at, _): (usize, &str)| MatchingLine { number: at + 1, column: None, text: String::new() };
    match arguments.output_mode {
        GrepOutputMode::FilesWithMatches => matching.take(1).map(named).collect(),
        GrepOutputMode::Count => matching.map(named).collect(),
        GrepOutputMode::Content => {
            let most = max_matches(arguments);
            let shown = matching.flat_map(|(at, line)| match is_long(line) {
                false => vec![MatchingLine { number: at + 1, column: None, text: line.to_owned() }],
                true => find_parts_with_matches(at + 1, line, &pattern, arguments),
            });
            shown.take(most).collect()
        }
    }
}

fn is_long(line: &str) -> bool {
    line.len() > MAX_LINE && line.chars().count() > MAX_LINE
}

fn fold_case<'a>(text: &'a str, arguments: &GrepArguments) -> Cow<'a, str> {
    if arguments.ignore_case { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) }
}

/// Returns the parts of a long line around its matches. A match within the part of an earlier one has none of its own.
fn find_parts_with_matches(
    number: usize,
    line: &str,
    pattern: &str,
    arguments: &GrepArguments,
) -> Vec<MatchingLine> {
    let folded = fold_case(line, arguments);
    let mut place =
        LinePlace { rest: line.chars(), column: 1, folded: 0, ignore_case: arguments.ignore_case };
    let (mut parts, mut from) = (Vec::new(), 0);
    while let Some(at) = folded.get(from..).and_then(|rest| rest.find(pattern)).map(|at| from + at) {
        place.advance_while(|place| place.folded < at);
        let (byte, column) = (line.len() - place.rest.as_str().len(), place.column);
        let start =
            line[..byte].char_indices().rev().take(BEFORE_MATCH).last().map_or(byte, |(start, _)| start);
        let length: usize = line[start..].chars().take(MAX_LINE).map(char::len_utf8).sum();
        let end = start + length;
        let before = if start > 0 { "…" } else { "" };
        let after = if end < line.len() { "…" } else { "" };
        let text = format!("{before}{}{after}", &line[start..end]);
        parts.push(MatchingLine { number, column: Some(column), text });
        if parts.len() == MAX_MATCHES {
            break;
        }
        place.advance_while(|place| line.len() - place.rest.as_str().len() < end);
        from = place.folded.max(at + pattern.len());
    }
    parts
}

/// A place in a line: in the line itself, in characters, and in its folded form.
struct LinePlace<'a> {
    rest: std::str::Chars<'a>,
    column: usize,
    folded: usize,
    ignore_case: bool,
}

impl LinePlace<'_> {
    fn advance_while(&mut self, is_before: impl Fn(&Self) -> bool) {
        while is_before(self)
            && let Some(c) = self.rest.next()
        {
            self.column += 1;
            self.folded += match self.ignore_case {
                true => c.to_lowercase().map(char::len_utf8).sum(),
                false => c.len_utf8(),
            };
        }
    }
}

fn format_matches(search: &GrepSearch, arguments: &GrepArguments) -> String {
    let mut text = String::new();
    let mut left = max_matches(arguments);
    for MatchingLinesOfFile { path, lines } in &search.files {
        match arguments.output_mode {
            GrepOutputMode::FilesWithMatches => writeln!(text, "{path}"),
            GrepOutputMode::Count => writeln!(text, "{path}: {}", lines.len()),
            GrepOutputMode::Content => writeln!(text, "{path}:"),
        }
        .expect("writing to a String can't fail");
        let shown = match arguments.output_mode {
            GrepOutputMode::FilesWithMatches | GrepOutputMode::Count => 0,
            GrepOutputMode::Content => lines.len().min(left),
        };
        left -= shown;
        for MatchingLine { number, column, text: line } in &lines[..shown] {
            if text.len() > MAX_CHARS {
                break;
            }
            let column = column.map(|column| format!(", column {column}")).unwrap_or_default();
            writeln!(text, "  {number}{column}: {line}").expect("writing to a String can't fail");
        }
        if text.len() > MAX_CHARS {
            text += "[cut here: the result is too long; search for a rarer text, or in fewer files]\n";
            break;
        }
    }
    if search.files.is_empty() {
        let files = session::format_count(search.searched as u64, "file");
        text = format!(
            "No matches found for '{}' in {files}{}\n",
            arguments.pattern,
            hint_at_literal_search(&arguments.pattern)
        );
    }
    text + &format_notes(search)
}

/// The hint for a text without matches that looks like a regular expression.
fn hint_at_literal_search(pattern: &str) -> &'static str {
    let marks = [".*", ".+", "\\d", "\\w", "\\s", "\\b", "\\.", "[^", "(?", "|", "[a-z", "[0-9"];
    let anchored = pattern.starts_with('^') || pattern.ends_with('$');
    if anchored || marks.iter().any(|mark| pattern.contains(mark)) {
        ". The pattern is literal text, not a regular expression: search for a plain piece of the text, with one call \
         for each alternative"
    } else {
        ""
    }
}

fn format_notes(search: &GrepSearch) -> String {
    let mut notes = Vec::new();
    if search.binary > 0 {
        notes.push(format!("{} without text skipped", session::format_count(search.binary as u64, "file")));
    }
    if let Some(first) = search.unreadable.first() {
        let files = session::format_count(search.unreadable.len() as u64, "file");
        notes.push(format!("{files} could not be read: {first}"));
    }
    notes.extend(search.stopped.map(str::to_owned));
    notes.iter().map(|note| format!("[{note}]\n")).collect()
}
