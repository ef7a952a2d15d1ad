//! `read_file`: reads lines of a file.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{FileSession, KnownFileState, refused_error};

use super::{Call, FileTool, Tool, ToolError, session};

use crate::corpus::{BinaryContent, read_binary_content};

use crate::files::FileContent;
use crate::files::permissions::FileOperation;
use crate::tool::Image;

/// The maximum number of characters of one read.
pub const MAX_READ: usize = 79_000;
/// The default number of lines.
pub const DEFAULT_LIMIT: i64 = 500;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ReadArguments")]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFileArguments {
    /// The file's path, such as /notes/plan.md.
    file_path: String,
    /// The number of lines to skip from the beginning; 0 by default.
    #[serde(default)]
    offset: i64,
    /// The maximum number of lines; 500 by default.
    #[serde(default = "default_line_limit")]
    limit: i64,
    /// The column of the first of these lines to begin with, in characters from 1; for lines too long for one result.
    #[serde(default = "first_column")]
    column: i64,
}

fn default_line_limit() -> i64 {
    DEFAULT_LIMIT
}

fn first_column() -> i64 {
    1
}

/// `read_file{file_path, offset?, limit?, column?}`.
pub(super) fn read_file_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Reads lines of a file of the workspace. The first line of the result states which lines these are, of \
                       how many, the offset (and column) of the next ones if there are more, and the file's version; the text follows \
                       as it is, without line numbers. A file must have been read before it can be changed.";
    let tool = FileTool::new("read_file", description, session, read_requested_file);
    Arc::new(FileTool {
        operations: &[FileOperation::Read],
        remember: |session, arguments: &ReadFileArguments, result, _| {
            session.restore_known_version(&arguments.file_path, &result.text);
        },
        ..tool
    })
}

fn read_requested_file<'a>(
    session: &'a FileSession,
    arguments: ReadFileArguments,
    call: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path =
            session.parse_permitted_path(&arguments.file_path, FileOperation::Read, call.is_approved)?;
        let content = session.read_existing_file(&path).await?;
        if session::decode_text(&content.bytes).is_none()
            && let Ok(image) = Image::from_bytes(path.as_str(), &content.bytes)
        {
            let version = content.entry.version;
            session.set_known_state(&path, KnownFileState::Version(version));
            let text = format!("@@ {} | version {version} @@", image.describe());
            session.add_image(&call.key, image);
            return Ok(text);
        }
        let content = match session::decode_text(&content.bytes) {
            Some(_) => content,
            None => {
                let (content, pages) = extract_content(content).await?;
                let pages = pages.filter(|_| arguments.offset <= 0 && arguments.limit > 0);
                if let Some(pages) = pages {
                    let version = content.entry.version;
                    let has_text = !content.bytes.is_empty();
                    let text =
                        format!("@@ {}: its pages have no text | version {version} @@", pages.describe());
                    session.add_image(&call.key, pages);
                    if !has_text {
                        session.set_known_state(&path, KnownFileState::Version(version));
                        return Ok(text);
                    }
                }
                content
            }
        };
        let text = format_requested_lines(&content, &arguments)?;
        if session::parse_version(&text).is_some() {
            session.set_known_state(&path, KnownFileState::Version(content.entry.version));
        }
        Ok(text)
    }
    .boxed()
}

/// Returns the text of a document in a binary format in place of its bytes, and its pages as models see them.
async fn extract_content(content: FileContent) -> Result<(FileContent, Option<Image>), ToolError> {
    let refusal =
        |why: &str| refused_error(format!("Error: {}{why}", session::describe_binary_file(&content)));
    let (path, bytes) = (content.entry.path.clone(), content.bytes.clone());
    let extracted = tokio::task::spawn_blocking(move || read_binary_content(path.as_str(), &bytes)).await;
    match extracted {
        Ok(Some(Ok(BinaryContent { text, pages }))) => {
            Ok((FileContent { bytes: text.into_bytes(), ..content }, pages))
        }
        Ok(Some(Err(reason))) => Err(refusal(&format!("; {reason}"))),
        Ok(None) => Err(refusal("")),
        Err(panic) => Err(refusal(&format!("; its parser failed: {panic}"))),
    }
}

/// The requested lines, below a header line.
fn format_requested_lines(content: &FileContent, arguments: &ReadFileArguments) -> Result<String, ToolError> {
    let ReadFileArguments { offset, limit, column, .. } = *arguments;
    let Some(text) = session::decode_text(&content.bytes) else {
        return Err(refused_error(format!("Error: {}", session::describe_binary_file(content))));
    };
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    let (total, version) = (all.len(), content.entry.version);
    if total == 0 {
        return Ok(format!(
            "@@ lines 0-0 of 0 | version {version} @@\nSystem reminder: File exists but has empty contents"
        ));
    }
    if limit <= 0 {
        let lines = session::format_count(total as u64, "line");
        return Ok(format!("no lines were read because `limit` was {limit}; the file has {lines}"));
    }
    let first = usize::try_from(offset.max(0)).unwrap_or(usize::MAX);
    if first >= total {
        let lines = session::format_count(total as u64, "line");
        return Err(refused_error(format!("Error: Line offset {offset} exceeds file length ({lines})")));
    }
    let column = usize::try_from(column.max(1)).unwrap_or(usize::MAX);
    let Some((begin, _)) = all[first].char_indices().nth(column - 1) else {
        let length = session::format_count(count_characters(all[first]) as u64, "character");
        return Err(refused_error(format!(
            "Error: Column {column} is past the end of line {} ({length})",
            first + 1
        )));
    };
    let wanted = first.saturating_add(usize::try_from(limit).unwrap_or(usize::MAX)).min(total);
    let lines = [&all[first][begin..]].into_iter().chain(all[first + 1..wanted].iter().copied());
    let FittingLines { count, body, cut_at } = take_fitting_lines(lines);
    let last = first + count.max(1);
    let from = if column > 1 { format!(" from column {column}") } else { String::new() };
    let (next, notice) = match cut_at {
        Some(shown) => describe_cut_line(all[first], first, column, shown),
        None if last < wanted => {
            let notice =
                format!("\n[cut at {MAX_READ} characters, after a whole line; continue with offset {last}]");
            (format!(" | next offset {last}"), notice)
        }
        None if last < total => (format!(" | next offset {last}"), String::new()),
        None => (String::new(), String::new()),
    };
    let body = if notice.is_empty() { body.as_str() } else { body.trim_end_matches('\n') };
    let clamped = match offset < 0 {
        true => format!("(`offset` was {offset}; read from the beginning)\n"),
        false => String::new(),
    };
    Ok(format!(
        "@@ lines {}-{last} of {total}{from}{next} | version {version} @@\n{clamped}{body}{notice}",
        first + 1
    ))
}

/// The next place to read, and the notice about a line of which only `shown` characters from `column` on fit.
fn describe_cut_line(line: &str, first: usize, column: usize, shown: usize) -> (String, String) {
    let next = column + shown;
    let length = session::format_count(count_characters(line) as u64, "character");
    let part = match column {
        1 => format!("the first {shown} are shown"),
        column => format!("columns {column} to {} are shown", next - 1),
    };
    let notice = format!(
        "\n[line {} has {length}, {part}; continue with offset {first} and column {next}, or find words with grep]",
        first + 1
    );
    (format!(" | next offset {first}, column {next}"), notice)
}

/// The number of characters of a line, without its end.
fn count_characters(line: &str) -> usize {
    line.trim_end_matches(['\n', '\r']).chars().count()
}

/// The lines that fit into one result.
struct FittingLines {
    /// The number of whole lines.
    count: usize,
    body: String,
    /// The number of characters that are shown of the first line, if it is too long by itself.
    cut_at: Option<usize>,
}

/// Takes as many whole lines as fit. A first line that is too long by itself is cut.
fn take_fitting_lines<'a>(lines: impl Iterator<Item = &'a str>) -> FittingLines {
    let (mut body, mut size, mut count) = (String::new(), 0, 0);
    for line in lines {
        let length = line.chars().count();
        if size + length > MAX_READ {
            if count == 0 {
                body.extend(line.chars().take(MAX_READ));
                return FittingLines { count, body, cut_at: Some(MAX_READ) };
            }
            break;
        }
        body.push_str(line);
        (size, count) = (size + length, count + 1);
    }
    FittingLines { count, body, cut_at: None }
}
