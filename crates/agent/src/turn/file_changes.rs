//! Files that a program changed: they are recorded in the journal with their contents, and then written to where the
//! agent's files are stored. A worker that is lost in between has recorded them, and the next one writes the rest: each
//! write has the key of its call, so that none is made twice.
//!
//! The program's content of a file that someone else has changed since is stored next to that file.
//!
//! A program knows secrets of its worker, and may write them into a file. They are replaced before anything is stored; a file that is too
//! large for that is not stored.
//!
//! # Invariants
//!
//! - I150: The changes of a program are recorded before they are written, and written once, at any loss of the worker; a program
//!   without a recorded end is reported as unknown and never run again.
//!   (`crates/agent/tests/turn/programs.rs::attempt_with_state_and_a_program_is_resumed_after_any_step`,
//!   `worker/tests/program_files.rs::changes_of_a_lost_program_are_written_once`)
//! - I151: If a program and another writer change a file, both contents are kept, and the model reads both.
//!   (`crates/agent/tests/turn/programs.rs::conflicting_changes_lose_nothing`)

use std::sync::Arc;

use millrace_protocol::file::{MAX_FILE, WriteCondition};
use millrace_protocol::result::{Artifact, TaskError};
use millrace_protocol::secrets::{HIDDEN, contains_secret, redact_bytes, redact_text};
use millrace_protocol::wire::InlineOrStoredBytes;
use serde::{Deserialize, Serialize};

use super::Host;
use crate::files::{
    AgentFiles, FileChange, FileChanges, FileContent, FileDigest, FilePath, FilesError, StoredContent,
    sha256_hex,
};

/// The maximum length of a text that is recorded as it is, in bytes.
const MAX_TEXT: usize = 16 * 1024;
/// The maximum number of files that a result names.
const MAX_NAMED: usize = 40;

/// A change of an agent's files by a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactChange {
    /// A version that it made.
    Written(Artifact),
    Deleted(FilePath),
}

/// The changes of a program, as recorded before they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedChanges {
    changes: Vec<RecordedChange>,
    /// The changes that are not kept, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    exclusions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedChange {
    path: FilePath,
    /// The version that the program got; `None` if the program made the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<u64>,
    /// The new content; `None` if the program removed the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<RecordedContent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedContent {
    size: u64,
    sha256: String,
    bytes: RecordedBytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecordedBytes {
    Text(String),
    Bytes(InlineOrStoredBytes),
}

/// A failure to record changes or to write them. The attempt can continue later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileChangesError {
    /// The host can't continue.
    #[error("cannot use the journal: {}", .0.message)]
    Host(#[from] TaskError),
    /// The files can't be used now.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// The changes that were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenChanges {
    /// A description for the model; empty if nothing changed.
    pub text: String,
    /// The part of it about conflicts and unsaved changes; empty if there are none.
    pub warnings: String,
    /// The changed files.
    pub artifacts: Vec<ArtifactChange>,
}

impl RecordedChanges {
    /// Stores the contents of changes, one file at a time.
    pub async fn store_contents(found: &FileChanges, host: &mut dyn Host) -> Result<Self, FileChangesError> {
        let (mut changes, mut exclusions) =
            (Vec::with_capacity(found.changes.len()), found.exclusions.clone());
        for change in &found.changes {
            changes.extend(store_content(found, change, &mut exclusions, host).await?);
        }
        Ok(Self { changes, exclusions })
    }

    /// Writes the changes under the key of the call that made them. A repetition has no further effect.
    pub async fn write_back(
        &self,
        agent: &AgentFiles,
        key: &str,
        host: &mut dyn Host,
    ) -> Result<WrittenChanges, FileChangesError> {
        let mut report = ChangeReport::default();
        for change in &self.changes {
            match &change.content {
                None => change.delete(agent, key, &mut report).await?,
                Some(content) => change.write(content, agent, key, (&mut *host, &mut report)).await?,
            }
        }
        report.exclusions.extend(self.exclusions.iter().cloned());
        let warnings = format_lines(&[("Conflicts", &report.conflicts), ("Not saved", &report.exclusions)]);
        Ok(WrittenChanges { text: report.format_text(), warnings, artifacts: report.artifacts })
    }
}

/// Stores the content of a change; `None` if it is not kept. `exclusions` gets what is not kept of it.
async fn store_content(
    found: &FileChanges,
    change: &FileChange,
    exclusions: &mut Vec<String>,
    host: &mut dyn Host,
) -> Result<Option<RecordedChange>, FileChangesError> {
    let (path, base) = (change.path.clone(), change.base);
    if contains_secret(path.as_str().as_bytes()) {
        let name = redact_text(path.as_str());
        exclusions.push(format!("{name} has a secret of the worker in its name: give it another one"));
        return Ok(None);
    }
    let Some(digest) = &change.content else {
        return Ok(Some(RecordedChange { path, base, content: None }));
    };
    let gone = || {
        let text = format!("{path} disappeared from the working folder after the program had ended");
        FileChangesError::from(FilesError::Unavailable(text))
    };
    if digest.size > MAX_FILE {
        if found.folder.contains_secret(&path).await? {
            exclusions.push(format!(
                "{path} contains a secret of the worker, such as the value of a variable, which can be replaced in files of up to \
                 {MAX_FILE} bytes: write it without the secret"
            ));
            return Ok(None);
        }
        let file = found.folder.open_file(&path).await?.ok_or_else(gone)?;
        let blob = host.store_file(Arc::new(file)).await?;
        let (size, sha256) = (blob.size, blob.sha256.clone());
        let bytes = RecordedBytes::Bytes(InlineOrStoredBytes::Stored(blob));
        let content = Some(RecordedContent { size, sha256, bytes });
        return Ok(Some(RecordedChange { path, base, content }));
    }
    let bytes = crate::files::Files::read(&found.folder, &path).await?.ok_or_else(gone)?.bytes;
    let FileDigest { mut size, mut sha256 } = digest.clone();
    let bytes = match contains_secret(&bytes) {
        false => bytes,
        true => {
            exclusions.push(format!("a secret of the worker in {path}, which has {HIDDEN} in its place"));
            let redacted = redact_bytes(bytes);
            (size, sha256) = (redacted.len() as u64, sha256_hex(&redacted));
            redacted
        }
    };
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if text.len() <= MAX_TEXT => RecordedBytes::Text(text),
        Ok(text) => RecordedBytes::Bytes(host.store_value(text.into_bytes()).await?),
        Err(error) => RecordedBytes::Bytes(host.store_value(error.into_bytes()).await?),
    };
    let content = RecordedContent { size, sha256, bytes };
    Ok(Some(RecordedChange { path, base, content: Some(content) }))
}

/// The outcome of the changes.
#[derive(Default)]
struct ChangeReport {
    written: Vec<String>,
    conflicts: Vec<String>,
    exclusions: Vec<String>,
    artifacts: Vec<ArtifactChange>,
}

impl ChangeReport {
    fn add_written(&mut self, done: &str, path: &FilePath, version: u64, content: &RecordedContent) {
        let (bytes, sha256) = (content.size, content.sha256.clone());
        self.written.push(format!("{done} {path} (version {version}, {bytes} bytes)"));
        self.artifacts.push(ArtifactChange::Written(Artifact { path: path.clone(), version, bytes, sha256 }));
    }

    fn format_text(&self) -> String {
        let Self { written, conflicts, exclusions, .. } = self;
        format_lines(&[("Files", written), ("Conflicts", conflicts), ("Not saved", exclusions)])
    }
}

/// Formats each list as a line in brackets; empty lists are left out.
fn format_lines(lists: &[(&str, &Vec<String>)]) -> String {
    let format_list = |(name, items): &(&str, &Vec<String>)| {
        let more = items.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let named: Vec<&str> = items.iter().take(MAX_NAMED).map(String::as_str).collect();
        format!("[{name}: {}{more}]", named.join("; "))
    };
    let lines = lists.iter().filter(|(_, items)| !items.is_empty()).map(format_list);
    lines.collect::<Vec<_>>().join("\n")
}

impl RecordedChange {
    fn condition(&self) -> WriteCondition {
        self.base.map_or(WriteCondition::Absent, WriteCondition::Version)
    }

    async fn delete(
        &self,
        agent: &AgentFiles,
        key: &str,
        report: &mut ChangeReport,
    ) -> Result<(), FileChangesError> {
        let path = &self.path;
        match agent.files.delete(path, self.condition(), key).await {
            Ok(()) => {
                report.written.push(format!("deleted {path}"));
                report.artifacts.push(ArtifactChange::Deleted(path.clone()));
            }
            Err(FilesError::Stale { current: Some(current), .. }) => {
                report.conflicts.push(format!("{} was not deleted: {}", path, describe_current(&current)))
            }
            Err(error @ FilesError::Unavailable(_)) => return Err(error.into()),
            // It is gone already, or it can't be deleted.
            Err(FilesError::Stale { current: None, .. }) => {}
            Err(error) => report.exclusions.push(error.to_string()),
        }
        Ok(())
    }

    async fn write(
        &self,
        content: &RecordedContent,
        agent: &AgentFiles,
        key: &str,
        (host, report): (&mut dyn Host, &mut ChangeReport),
    ) -> Result<(), FileChangesError> {
        let path = &self.path;
        match content.write_to(path, self.condition(), agent, key, host).await? {
            Ok(version) => {
                let done = if self.base.is_some() { "changed" } else { "created" };
                report.add_written(done, path, version, content);
            }
            Err(FilesError::Stale { current, .. }) => {
                let copy = self.write_beside(content, agent, key, (host, report)).await?;
                let current = current
                    .map_or_else(|| "it was deleted since".to_owned(), |current| describe_current(&current));
                report.conflicts.push(format!("{path} was not changed: {current}; {copy}"));
            }
            Err(error @ FilesError::Unavailable(_)) => return Err(error.into()),
            Err(error) => report.exclusions.push(error.to_string()),
        }
        Ok(())
    }

    /// Stores the program's content next to a file that someone else has changed. Returns its place.
    async fn write_beside(
        &self,
        content: &RecordedContent,
        agent: &AgentFiles,
        key: &str,
        (host, report): (&mut dyn Host, &mut ChangeReport),
    ) -> Result<String, FileChangesError> {
        let lost = |why: String| format!("the program's content could not be stored: {why}");
        let path = match conflict_path(&self.path, key) {
            Ok(path) => path,
            Err(why) => return Ok(lost(why)),
        };
        match content.write_to(&path, WriteCondition::Always, agent, key, host).await? {
            Ok(version) => {
                report.add_written("created", &path, version, content);
                Ok(format!("the program's content is in {path}"))
            }
            Err(error @ FilesError::Unavailable(_)) => Err(error.into()),
            Err(error) => Ok(lost(error.to_string())),
        }
    }
}

impl RecordedContent {
    /// Writes it to a file. The inner error is that of the file.
    async fn write_to(
        &self,
        path: &FilePath,
        expected: WriteCondition,
        agent: &AgentFiles,
        key: &str,
        host: &mut dyn Host,
    ) -> Result<Result<u64, FilesError>, TaskError> {
        let bytes = match &self.bytes {
            RecordedBytes::Text(text) => text.clone().into_bytes(),
            RecordedBytes::Bytes(InlineOrStoredBytes::Stored(blob)) => {
                let stored = StoredContent { blob: blob.clone(), content: host.open_stored(blob).await? };
                return Ok(agent.files.write_stored(path, stored, expected, key).await);
            }
            RecordedBytes::Bytes(stored @ InlineOrStoredBytes::Inline(_)) => host.load_value(stored).await?,
        };
        Ok(agent.files.write(path, bytes, expected, key).await)
    }
}

fn describe_current(current: &FileContent) -> String {
    let entry = &current.entry;
    format!("{} has changed it since; its version is {}", entry.author, entry.version)
}

/// The path of what a program wrote for a file that someone else has changed: `/a/report.conflict-<call>.md`.
fn conflict_path(path: &FilePath, key: &str) -> Result<FilePath, String> {
    let call: String = key
        .split_once('/')
        .map_or(key, |(_, call)| call)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '.' })
        .collect();
    let text = path.as_str();
    let name_at = text.rfind('/').map_or(0, |at| at + 1);
    let end_at = text[name_at..].rfind('.').filter(|at| *at > 0).map_or(text.len(), |at| name_at + at);
    let (stem, end) = text.split_at(end_at);
    FilePath::new(&format!("{stem}.conflict-{call}{end}")).map_err(|invalid| invalid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflicting_version_is_stored_beside_the_file() {
        let beside =
            |path: &str| conflict_path(&FilePath::new(path).unwrap(), "run/draft/2/3.0").unwrap().to_string();
        assert_eq!(beside("/a/report.md"), "/a/report.conflict-draft.2.3.0.md");
        assert_eq!(beside("/a.b/report"), "/a.b/report.conflict-draft.2.3.0");
        assert_eq!(beside("/.env"), "/.env.conflict-draft.2.3.0");
        assert!(conflict_path(&FilePath::new(&"x".repeat(500)).unwrap(), "run/draft/2/3.0").is_err());
    }

    #[test]
    fn a_report_names_a_bounded_number_of_files() {
        let written = (0..50).map(|at| format!("created /{at}")).collect();
        let report =
            ChangeReport { written, exclusions: vec!["/x is denied".into()], ..ChangeReport::default() };
        let text = report.format_text();
        assert!(text.starts_with("[Files: created /0; created /1;"), "{text}");
        assert!(text.ends_with("created /39; and 10 more]\n[Not saved: /x is denied]"), "{text}");
        assert_eq!(ChangeReport::default().format_text(), "");
    }
}
