//! `read_file`: lines of a file as they stand.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::session::{Known, Session, refused};
use super::{Call, FileTool, Tool, ToolError, show};
use crate::files::Content;
use crate::files::permissions::Operation;

/// The most characters of one reading.
pub const MAX_READ: usize = 79_000;
/// How many lines are read where nothing is said.
pub const DEFAULT_LIMIT: i64 = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    /// The file's path, such as /notes/plan.md.
    file_path: String,
    /// How many lines are passed over, from the beginning; 0 if left out.
    #[serde(default)]
    offset: i64,
    /// How many lines are read at most; 500 if left out.
    #[serde(default = "default_limit")]
    limit: i64,
}

fn default_limit() -> i64 {
    DEFAULT_LIMIT
}

/// `read_file{file_path, offset?, limit?}`.
pub(super) fn read_file(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description = "Reads lines of a file of the workspace. The first line of the result says which lines these are, of \
                       how many, the offset of the next ones if there are more, and the file's version; below it stands \
                       the text as it is, without line numbers. A file must have been read before it can be changed.";
    let tool = FileTool::new("read_file", description, session, run);
    Arc::new(FileTool {
        remember: |session, arguments: &ReadArguments, result, _| {
            session.remember(&arguments.file_path, &result.text);
        },
        ..tool
    })
}

fn run<'a>(
    session: &'a Session,
    arguments: ReadArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        let path = session.path(&arguments.file_path, Operation::Read)?;
        let content = session.find(&path).await?;
        let text = lines(&content, arguments.offset, arguments.limit)?;
        if show::version_in(&text).is_some() {
            session.learn(&path, Known::Version(content.entry.version));
        }
        Ok(text)
    }
    .boxed()
}

/// The lines that were asked for, below a line that says which they are.
fn lines(content: &Content, offset: i64, limit: i64) -> Result<String, ToolError> {
    let Some(text) = show::text(&content.bytes) else {
        return Err(refused(format!("Error: {}", show::binary(content))));
    };
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    let (total, version) = (all.len(), content.entry.version);
    if total == 0 {
        return Ok(format!(
            "@@ lines 0-0 of 0 | version {version} @@\nSystem reminder: File exists but has empty contents"
        ));
    }
    if limit <= 0 {
        let lines = show::count(total as u64, "line");
        return Ok(format!("no lines were read because `limit` was {limit}; the file has {lines}"));
    }
    let first = usize::try_from(offset.max(0)).unwrap_or(usize::MAX);
    if first >= total {
        let lines = show::count(total as u64, "line");
        return Err(refused(format!("Error: Line offset {offset} exceeds file length ({lines})")));
    }
    let wanted = first.saturating_add(usize::try_from(limit).unwrap_or(usize::MAX)).min(total);
    let (last, body, notice) = fill(&all, first, wanted);
    let next = if last < total { format!(" | next offset {last}") } else { String::new() };
    let clamped = if offset < 0 {
        format!("(`offset` was {offset}; it was read from the beginning)\n")
    } else {
        String::new()
    };
    Ok(format!(
        "@@ lines {}-{last} of {total}{next} | version {version} @@\n{clamped}{body}{notice}",
        first + 1
    ))
}

/// As many whole lines as fit: up to which one, their text, and what is to be said of those that did not fit. A line
/// that is too long by itself is cut.
fn fill(all: &[&str], first: usize, wanted: usize) -> (usize, String, String) {
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
            format!("\n[cut at {MAX_READ} characters, behind a whole line; go on with offset {last}]");
        return (last, body.trim_end_matches('\n').to_owned(), notice);
    }
    let length = show::count(all[first].chars().count() as u64, "character");
    let cut: String = all[first].chars().take(MAX_READ).collect();
    let notice = format!(
        "\n[line {} has {length}, of which the first {MAX_READ} are shown; grep finds words in the rest]",
        first + 1
    );
    (first + 1, cut, notice)
}
