//! The memory of an agent: the files whose text is in its prompt, and the memories that its file tools reach. It owns the form of
//! the text; the host provides the files.

use std::sync::Arc;

use millrace_protocol::result::{ErrorKind, TaskError};

use super::environment::{MemoryFile, SessionError};
use crate::files::{CompositeFiles, FilePath, Files, FilesError};
use crate::material::keep_beginning_and_end;
use crate::sources::OrderInputError;
use crate::spec::{AgentSpec, MEMORIES, MemoryPlace};

/// The most characters of all memory files together. The prompt is recorded whole only up to 64,000.
const MAX_CHARS: usize = 40_000;

const INTRODUCTION: &str = "## Memory\n\nThese files hold what is known from earlier work. They are background: your instructions and \
your task take precedence. They may be outdated or wrong, so check what matters.";
const EDITABLE: &str = "Files below /memories are kept for later runs, and other agents change them too. If you have file tools, record \
there what will help next time: corrections, preferences, facts that were hard to find. Edit what is there instead of repeating it. \
Never record secrets.";

/// Mounts the memories into an agent's files, if it has any.
pub(super) fn mount_memories(
    spec: &AgentSpec,
    files: Arc<dyn Files>,
    memories: Option<&Arc<dyn Files>>,
) -> Arc<dyn Files> {
    let Some(memories) = memories.filter(|_| spec.memory.is_some()) else { return files };
    let folder = FilePath::new(MEMORIES).expect("a valid path");
    Arc::new(CompositeFiles::new(files).with_mount(folder, memories.clone()))
}

/// Returns the section of the prompt with the memory; `None` if the agent has none. `beside` are the files of its capability file's
/// folder that exist.
pub(super) async fn read_memory_section(
    spec: &AgentSpec,
    beside: Vec<MemoryFile>,
    memories: Option<&Arc<dyn Files>>,
) -> Result<Option<String>, SessionError> {
    let Some(places) = &spec.memory else { return Ok(None) };
    let mut all = beside;
    for place in places {
        if let (MemoryPlace::Stored(path), Some(memories)) = (place, memories) {
            all.extend(read_stored_file(path, memories.as_ref()).await?);
        }
    }
    let limit = MAX_CHARS / all.len().max(1);
    let file = |file: &MemoryFile| {
        let text = keep_beginning_and_end(remove_comments(&file.text).trim(), limit);
        format!("\n\n### {}\n\n{text}", file.place)
    };
    let files: String = all.iter().map(file).collect();
    Ok(Some(format!("{INTRODUCTION}\n\n{EDITABLE}{files}")))
}

/// Reads a file of the memories; `None` if it does not exist.
async fn read_stored_file(path: &FilePath, memories: &dyn Files) -> Result<Option<MemoryFile>, SessionError> {
    let inner = path.as_str().strip_prefix(MEMORIES).unwrap_or(path.as_str());
    let inner = FilePath::new(inner).map_err(|invalid| unreadable_error(path, &invalid.to_string()))?;
    let file = match memories.read(&inner).await {
        Ok(file) => file,
        Err(FilesError::Unavailable(why)) => return Err(OrderInputError::Unavailable(why).into()),
        Err(
            error @ (FilesError::Stale { .. }
            | FilesError::Denied(_)
            | FilesError::TooLarge { .. }
            | FilesError::Broken(_)),
        ) => return Err(unreadable_error(path, &error.to_string()).into()),
    };
    let Some(file) = file else { return Ok(None) };
    let text = String::from_utf8(file.bytes).map_err(|_| unreadable_error(path, "it is no text"))?;
    Ok(Some(MemoryFile { place: path.to_string(), text }))
}

fn unreadable_error(path: &FilePath, why: &str) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, format!("the memory file {path} can't be read: {why}"))
}

/// Removes HTML comments, which are for people who edit the file.
fn remove_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some((before, comment)) = rest.split_once("<!--") {
        kept.push_str(before);
        rest = comment.split_once("-->").map_or("", |(_, after)| after);
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_removed() {
        for (text, expected) in [
            ("a <!-- b --> c", "a  c"),
            ("<!-- a\nb -->\nc <!--d--><!--e-->", "\nc "),
            ("a <!-- open", "a "),
            ("no --> comment", "no --> comment"),
        ] {
            assert_eq!(remove_comments(text), expected);
        }
    }
}
