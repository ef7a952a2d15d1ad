//! What the programs of an attempt have in common that work on a copy of the agent's files: the notes in their results, and the
//! errors of the copy.

use std::fmt::Write;

use millrace_agent::files::{FileChanges, FilesError};
use millrace_agent::tool::ToolError;

/// Adds to a result what was not saved of the changes that a program (`who`) made, and what it did not get. Returns the changes to
/// write back.
pub(crate) fn note_changes(
    text: &mut String,
    who: &str,
    changes: Result<FileChanges, FilesError>,
    omissions: &[String],
) -> Option<Box<FileChanges>> {
    if let Err(error) = &changes {
        let _ = write!(text, "\n[Not saved: the changes of {who}, since {error}]");
    }
    if !omissions.is_empty() {
        let _ = write!(text, "\n[Not in the working folder: {}]", omissions.join("; "));
    }
    changes.ok().filter(|changes| !changes.is_empty()).map(Box::new)
}

/// Returns the error of a call whose files can't be laid out for `who`.
pub(crate) fn files_error(who: &str, error: FilesError) -> ToolError {
    match error {
        FilesError::Unavailable(why) => ToolError::Unavailable(why),
        FilesError::Stale { .. }
        | FilesError::Denied(_)
        | FilesError::TooLarge { .. }
        | FilesError::Broken(_) => ToolError::Failed {
            message: format!("the files of {who} can't be used: {error}"),
            detail: error.to_string(),
        },
    }
}
