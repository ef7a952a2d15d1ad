//! The files of the run that a program works on: they are laid out in a temporary folder before it starts. What it changed is
//! recorded with its output under `files.<n>`, after `n` waits, and then written to the workspace.

use std::path::Path;

use millrace_agent::files::{AgentFiles, FilesError, ProgramFiles, WorkingCopy};
use millrace_agent::sources::OrderInputError;
use millrace_agent::turn::{ArtifactChange, FileChangesError, Host as _, RecordedChanges};
use millrace_protocol::result::{Artifact, ErrorKind, TaskError};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::Attempt;

/// The name of the step that records the changes of a program after this number of waits.
pub(super) fn step_name(waited: u32) -> String {
    format!("files.{waited}")
}

/// The step that records the output of a program and the files that it changed, before they are written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FilesStep {
    output: String,
    changes: RecordedChanges,
}

/// The files that a program changed in the workspace.
#[derive(Debug, Default)]
pub(super) struct WrittenFiles {
    /// The files that it made or changed.
    pub artifacts: Vec<Artifact>,
    /// The conflicts and the changes that are not kept, for the reader of the result.
    pub warnings: String,
}

/// The working folder of a program. It is removed on drop.
pub(super) struct ProgramFolder {
    folder: TempDir,
    copy: WorkingCopy,
}

impl ProgramFolder {
    /// Creates a folder with the files of the run.
    pub async fn update_folder(
        attempt: &mut Attempt<'_>,
        settings: &ProgramFiles,
    ) -> Result<Self, TaskError> {
        let unusable = |error: std::io::Error| {
            TaskError::new(ErrorKind::Tool, format!("can't create a working folder for the program: {error}"))
        };
        let folder = tempfile::Builder::new().prefix("millrace-command-").tempdir().map_err(unusable)?;
        let files = AgentFiles::unrestricted(attempt.files());
        let mut copy = WorkingCopy::open(files, settings.clone(), folder.path()).map_err(unusable)?;
        let omissions = copy.update_folder().await.map_err(|error| convert_files_error(attempt, error))?;
        if !omissions.is_empty() {
            attempt.record_note(format!("not in the working folder: {}", omissions.join("; "))).await?;
        }
        Ok(Self { folder, copy })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Records the output of the program and what it changed.
    ///
    /// # Errors
    /// The folder can't be read; or as for a step.
    pub async fn record_changes(
        &mut self,
        attempt: &mut Attempt<'_>,
        waited: u32,
        output: &[u8],
    ) -> Result<FilesStep, TaskError> {
        let found = self.copy.find_changes(false).await;
        let found = found.map_err(|error| convert_files_error(attempt, error))?;
        let changes = RecordedChanges::store_contents(&found, attempt.host).await;
        let changes = changes.map_err(|error| convert_changes_error(attempt, error))?;
        let step = FilesStep { output: String::from_utf8_lossy(output).into_owned(), changes };
        let value = serde_json::to_value(&step).expect("changes hold only texts, numbers and bytes");
        attempt.host.record(&step_name(waited), &value).await?;
        Ok(step)
    }
}

impl FilesStep {
    /// Writes the changes under the key of the work. Returns the output of the program and the changed files.
    ///
    /// # Errors
    /// The workspace can't be used now.
    pub async fn write_back(
        self,
        attempt: &mut Attempt<'_>,
        key: &str,
    ) -> Result<(Vec<u8>, WrittenFiles), TaskError> {
        let files = AgentFiles::unrestricted(attempt.files());
        let written = self.changes.write_back(&files, key, attempt.host).await;
        let written = written.map_err(|error| convert_changes_error(attempt, error))?;
        if !written.text.is_empty() {
            attempt.record_note(written.text).await?;
        }
        let artifacts = written.artifacts.into_iter().filter_map(|change| match change {
            ArtifactChange::Written(artifact) => Some(artifact),
            ArtifactChange::Deleted(_) => None,
        });
        let files = WrittenFiles { artifacts: artifacts.collect(), warnings: written.warnings };
        Ok((self.output.into_bytes(), files))
    }
}

/// Converts the error of the workspace: if it is unavailable, the attempt is released and continues later.
fn convert_files_error(attempt: &mut Attempt<'_>, error: FilesError) -> TaskError {
    match error {
        FilesError::Unavailable(why) => {
            attempt.host.end_with_session_error(OrderInputError::Unavailable(why))
        }
        FilesError::Stale { .. }
        | FilesError::Denied(_)
        | FilesError::TooLarge { .. }
        | FilesError::Broken(_) => {
            TaskError::new(ErrorKind::Tool, format!("the files of the program can't be used: {error}"))
        }
    }
}

fn convert_changes_error(attempt: &mut Attempt<'_>, error: FileChangesError) -> TaskError {
    match error {
        FileChangesError::Files(error) => convert_files_error(attempt, error),
        // The attempt keeps the cause and decides its outcome.
        FileChangesError::Host(_) => TaskError::new(ErrorKind::Other, error.to_string()),
    }
}
