//! `read_file`: reads lines of a file.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{FileSession, KnownFileState, refused_error};
use super::{Call, FileTool, Tool, ToolError, show};
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
}

fn default_line_limit() -> i64 {
    DEFAULT_LIMIT
}

/// `read_file{file_path, offset?, limit?}`.
pub(super) fn read_file_tool(session: &Arc<FileSession>) -> Arc<dyn Tool> {
    let description = "Reads lines of a file of the workspace. The first line of the result states which lines these are, of \
                       how many, the offset of the next ones if there are more, and the file's version; the text follows \
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
        if show::decode_text(&content.bytes).is_none()
            && let Ok(image) = Image::from_bytes(path.as_str(), &content.bytes)
        {
            let version = content.entry.version;
            session.set_known_state(&path, KnownFileState::Version(version));
            let text = format!("@@ {} | version {version} @@", image.describe());
            session.add_image(&call.key, image);
            return Ok(text);
        }
        let content = match show::decode_text(&content.bytes) {
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
        let text = format_requested_lines(&content, arguments.offset, arguments.limit)?;
        if show::parse_version(&text).is_some() {
            session.set_known_state(&path, KnownFileState::Version(content.entry.version));
        }
        Ok(text)
    }
    .boxed()
}

/// Returns the text of a document in a binary format in place of its bytes, and its pages as models see them.
async fn extract_content(content: FileContent) -> Result<(FileContent, Option<Image>), ToolError> {
    let refusal = |why: &str| refused_error(format!("Error: {}{why}", show::describe_binary_file(&content)));
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
fn format_requested_lines(content: &FileContent, offset: i64, limit: i64) -> Result<String, ToolError> {
    let Some(text) = show::decode_text(&content.bytes) else {
        return Err(refused_error(format!("Error: {}", show::describe_binary_file(content))));
    };
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    let (total, version) = (all.len(), content.entry.version);
    if total == 0 {
        return Ok(format!(
            "@@ lines 0-0 of 0 | version {version} @@\nSystem reminder: File exists but has empty contents"
        ));
    }
    if limit <= 0 {
        let lines = show::format_count(total as u64, "line");
        return Ok(format!("no lines were read because `limit` was {limit}; the file has {lines}"));
    }
    let first = usize::try_from(offset.max(0)).unwrap_or(usize::MAX);
    if first >= total {
        let lines = show::format_count(total as u64, "line");
        return Err(refused_error(format!("Error: Line offset {offset} exceeds file length ({lines})")));
    }
    let wanted = first.saturating_add(usize::try_from(limit).unwrap_or(usize::MAX)).min(total);
    let (last, body, notice) = take_fitting_lines(&all, first, wanted);
    let next = if last < total { format!(" | next offset {last}") } else { String::new() };
    let clamped = if offset < 0 {
        format!("(`offset` was {offset}; read from the beginning)\n")
    } else {
        String::new()
    };
    Ok(format!(
        "@@ lines {}-{last} of {total}{next} | version {version} @@\n{clamped}{body}{notice}",
        first + 1
    ))
}

/// Takes as many whole lines as fit: returns the number of the last one, the text, and a notice about omitted ones. A line
/// that is too long by itself is cut.
fn take_fitting_lines(all: &[&str], first: usize, wanted: usize) -> (usize, String, String) {
    let (mut body, mut size, mut last) = (String::new(), 0, first);
    for line in &all[first..wanted] {
        let length = line.chars().count();
        if size + length > MAX_READ {
            break;
        }
        body.push_str(line);
        size += length;
        last += 1;
    }
    if last == wanted {
        return (last, body, String::new());
    }
    if last > first {
        let notice =
            format!("\n[cut at {MAX_READ} characters, after a whole line; continue with offset {last}]");
        return (last, body.trim_end_matches('\n').to_owned(), notice);
    }
    let length = show::format_count(all[first].chars().count() as u64, "character");
    let cut: String = all[first].chars().take(MAX_READ).collect();
    let notice = format!(
        "\n[line {} has {length}, the first {MAX_READ} are shown; grep finds words in the rest]",
        first + 1
    );
    (first + 1, cut, notice)
}
