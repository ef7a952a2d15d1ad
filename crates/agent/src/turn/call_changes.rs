//! The files that the call of a turn changed: the name of their step, and writing them with the result of the call.

use std::collections::BTreeMap;

use super::calls::ToolCallRunner;
use super::record::{FileChangesStep, ToolCallRecord};
use super::{DriveError, FileChangesError, Journal, ValidatedToolCall, WrittenChanges};

/// The changes of files that are recorded and perhaps not written yet, by the index of their call.
pub(super) type PendingChanges = BTreeMap<usize, FileChangesStep>;

impl ToolCallRunner<'_> {
    /// The step that records the files that a call changed, before they are written.
    pub(super) fn changes_step(&self, index: usize, call: &ValidatedToolCall) -> String {
        format!("files.{}.{index}.{}", self.number, call.tool)
    }

    /// Writes the files that a call changed, and adds what became of them to its result.
    pub(super) async fn write_changes(
        &self,
        call: &ValidatedToolCall,
        index: usize,
        step: FileChangesStep,
        journal: &mut dyn Journal,
    ) -> Result<ToolCallRecord, DriveError> {
        let FileChangesStep { call: mut record, changes } = step;
        let Some(files) = self.agent_files else {
            record.result.text.push_str("\n[Not saved: there is no workspace here]");
            return Ok(record);
        };
        let key = self.attempt.call_key(self.number, index);
        let written = changes.write_back(files, &key, journal).await;
        let WrittenChanges { text, artifacts, .. } =
            written.map_err(|error| file_changes_error(call, error))?;
        record.result.text.push_str(&format!("\n{text}"));
        Ok(ToolCallRecord { artifacts, ..record })
    }
}

/// The error of a call whose files can't be written now: the attempt is released, and continues with writing them.
pub(super) fn file_changes_error(call: &ValidatedToolCall, error: FileChangesError) -> DriveError {
    match error {
        FileChangesError::Journal(error) => error.into(),
        FileChangesError::Files(error) => {
            DriveError::Tool { tool: call.tool.clone(), reason: error.to_string() }
        }
    }
}
