//! What the file tools of one agent share: the files, what may be done with them, and which versions the agent knows.
//! It decides what is stale, and puts the errors of files into words for the model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::show;
use crate::files::permissions::{Denied, Operation, Rules};
use crate::files::{Content, Entry, Expected, FilePath, Files, FilesError, is_below, nearest};
use crate::tool::{Call, ToolError, ToolResult};

/// How the refusal of a second change of a path in one message begins.
const PARALLEL: &str = "Error: parallel file mutations to the same path are not allowed";

/// What the agent knows of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// There is no file.
    Absent,
    /// This version of it.
    Version(u64),
}

/// The files of one agent.
pub(super) struct Session {
    pub files: Arc<dyn Files>,
    rules: Rules,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    known: BTreeMap<FilePath, Known>,
    /// The changes of the latest turn that had any: where, and the keys of their calls.
    turn: u64,
    changes: Vec<(String, String)>,
}

impl Seen {
    /// What was changed in an earlier turn is no matter any more.
    fn begin(&mut self, turn: u64) {
        if self.turn != turn {
            self.turn = turn;
            self.changes.clear();
        }
    }
}

impl Session {
    pub fn new(files: Arc<dyn Files>, rules: Rules) -> Self {
        Self { files, rules, seen: Mutex::default() }
    }

    /// The path that a text names, if the operation may be done there.
    pub fn path(&self, text: &str, operation: Operation) -> Result<FilePath, ToolError> {
        let path = FilePath::new(text).map_err(|invalid| refused(invalid.to_string()))?;
        self.may(operation, &path).map_err(|denied| refused(denied.to_string()))?;
        Ok(path)
    }

    /// The folder that a text names: `/` or a path without a trailing `/`.
    pub fn folder(text: Option<&str>) -> Result<String, ToolError> {
        match text.map_or("", |text| text.strip_prefix("./").unwrap_or(text).trim_end_matches('/')) {
            "" | "." => Ok("/".to_owned()),
            path => FilePath::new(path).map(String::from).map_err(|invalid| refused(invalid.to_string())),
        }
    }

    pub fn may(&self, operation: Operation, path: &FilePath) -> Result<(), Denied> {
        self.rules.check(operation, path)
    }

    /// The files below a folder that the agent may read, by path.
    pub async fn list(&self, folder: &str) -> Result<Vec<Entry>, ToolError> {
        let mut entries = self.files.list(folder).await.map_err(failed)?;
        entries.retain(|entry| self.may(Operation::Read, &entry.path).is_ok());
        Ok(entries)
    }

    /// A file; a refusal that names its nearest if there is none.
    pub async fn find(&self, path: &FilePath) -> Result<Content, ToolError> {
        match self.files.read(path).await.map_err(failed)? {
            Some(content) => Ok(content),
            None => Err(self.not_found(path).await),
        }
    }

    /// What the model is told where there is no file.
    pub async fn not_found(&self, path: &FilePath) -> ToolError {
        let entries = self.list("/").await.unwrap_or_default();
        if entries.iter().any(|entry| is_below(&entry.path, path.as_str())) {
            return refused(format!("Error: '{path}' is a folder; `ls` shows what is in it"));
        }
        let near = nearest(path.as_str(), entries.iter().map(|entry| entry.path.as_str()));
        let hint = if near.is_empty() {
            "`ls` and `glob` show the files that there are".to_owned()
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        refused(format!("Error: File '{path}' not found; {hint}"))
    }

    pub fn known(&self, path: &FilePath) -> Option<Known> {
        self.seen().known.get(path).copied()
    }

    pub fn learn(&self, path: &FilePath, known: Known) {
        self.seen().known.insert(path.clone(), known);
    }

    /// The files below a folder that were seen.
    pub fn known_below(&self, folder: &FilePath) -> Vec<FilePath> {
        self.seen().known.keys().filter(|known| is_below(known, folder.as_str())).cloned().collect()
    }

    /// Knows that a path, and all that was below it, is gone.
    pub fn forget_below(&self, path: &FilePath) {
        let mut seen = self.seen();
        seen.known.retain(|known, _| !is_below(known, path.as_str()));
        seen.known.insert(path.clone(), Known::Absent);
    }

    /// What a writer expects who knows this much.
    pub fn expected(&self, path: &FilePath) -> Expected {
        match self.known(path) {
            Some(Known::Version(version)) => Expected::Version(version),
            Some(Known::Absent) | None => Expected::Nothing,
        }
    }

    /// Says that a call is about to change a path. Of two calls of one message that change the same path, or a folder and
    /// something in it, the second is refused: which of them would come first, nobody could say.
    pub fn claim(&self, path: &FilePath, call: &Call) -> Result<(), ToolError> {
        let mut seen = self.seen();
        seen.begin(call.turn);
        let overlaps = |other: &str| {
            other == path.as_str() || is_below(path, other) || other.starts_with(&format!("{path}/"))
        };
        if seen.changes.iter().any(|(other, key)| *key != call.key && overlaps(other)) {
            return Err(refused(format!(
                "{PARALLEL}: another call of this message changes {path}. See what came of that one first, then make this change if it is still needed"
            )));
        }
        seen.changes.push((path.to_string(), call.key.clone()));
        Ok(())
    }

    /// Knows of a recorded call that it was the one of its message to change a path.
    pub fn remember_change(&self, path: &str, result: &ToolResult, call: &Call) {
        // One that was refused because of another is not the first.
        let was_second = result.is_error && result.text.starts_with(PARALLEL);
        if let (Ok(path), false) = (FilePath::new(path), was_second) {
            // The recorded calls of a message don't meet each other.
            let _ = self.claim(&path, call);
        }
    }

    /// What the model is told whose change would have lost another's; from here on it knows what there is.
    pub fn stale(&self, path: &FilePath, current: Option<&Content>) -> ToolError {
        let knew = self.known(path);
        let Some(content) = current else {
            self.learn(path, Known::Absent);
            return refused(format!(
                "Error: {path} was deleted since you read it; nothing was changed. To make it anew, call write_file \
                 again"
            ));
        };
        self.learn(path, Known::Version(content.entry.version));
        refused(show::conflict(content, knew.is_some()))
    }

    /// The words for an error of a change.
    pub fn change_failed(&self, path: &FilePath, error: FilesError) -> ToolError {
        match error {
            FilesError::Stale { current, .. } => self.stale(path, current.as_deref()),
            FilesError::Denied(_)
            | FilesError::TooLarge { .. }
            | FilesError::Broken(_)
            | FilesError::Unavailable(_) => failed(error),
        }
    }

    /// Learns from the first line of a recorded result which version of a file the model knows.
    pub fn remember(&self, path: &str, text: &str) {
        if let Ok(path) = FilePath::new(path)
            && let Some(version) = show::version_in(text)
        {
            self.learn(&path, Known::Version(version));
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn refused(text: impl Into<String>) -> ToolError {
    ToolError::Refused(text.into())
}

/// The words for an error of the files.
pub(super) fn failed(error: FilesError) -> ToolError {
    match error {
        FilesError::Unavailable(why) => ToolError::Unavailable(why),
        FilesError::Stale { .. }
        | FilesError::Denied(_)
        | FilesError::TooLarge { .. }
        | FilesError::Broken(_) => refused(format!("Error: {error}")),
    }
}
