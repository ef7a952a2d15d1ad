//! The connection to the editor, for one session: sends updates, asks for permissions, reads and writes files through it. Nothing here
//! fails when the editor has ended: the run continues, and the next process reports it.

use std::path::Path;

use agent_client_protocol::schema::v1::{
    FileSystemCapabilities, PermissionOption, PermissionOptionId, ReadTextFileRequest,
    RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionNotification, SessionUpdate,
    ToolCallUpdate, WriteTextFileRequest,
};
use agent_client_protocol::{Client, ConnectionTo};

use super::updates::text_chunk;

#[derive(Debug, Clone)]
pub struct Editor {
    connection: ConnectionTo<Client>,
    session: SessionId,
    files: FileSystemCapabilities,
}

impl Editor {
    pub fn new(connection: ConnectionTo<Client>, session: SessionId, files: FileSystemCapabilities) -> Self {
        Self { connection, session, files }
    }

    pub fn send(&self, update: SessionUpdate) {
        let notification = SessionNotification::new(self.session.clone(), update);
        // It fails only if the connection has ended.
        let _ = self.connection.send_notification(notification);
    }

    pub fn send_all(&self, updates: Vec<SessionUpdate>) {
        updates.into_iter().for_each(|update| self.send(update));
    }

    /// Sends a text of the agent as a paragraph of its own.
    pub fn say(&self, text: &str) {
        self.send(SessionUpdate::AgentMessageChunk(text_chunk(&format!("{}\n\n", text.trim_end()))));
    }

    /// Asks the user, and returns the chosen option; `None` if the user chose none, or the editor is gone. The request is
    /// withdrawn if the future is dropped.
    pub async fn ask_permission(
        &self,
        call: ToolCallUpdate,
        options: Vec<PermissionOption>,
    ) -> Option<PermissionOptionId> {
        let request = RequestPermissionRequest::new(self.session.clone(), call, options);
        let response = self.connection.send_request(request).block_task().await;
        match response.ok()?.outcome {
            RequestPermissionOutcome::Selected(selected) => Some(selected.option_id),
            RequestPermissionOutcome::Cancelled => None,
            _ => None,
        }
    }

    /// Returns the text of a file as the editor has it, with changes that are not saved; `None` if the editor offers no files, or
    /// can't read this one.
    pub async fn read_text_file(&self, path: &Path) -> Option<String> {
        if !self.files.read_text_file {
            return None;
        }
        let request = ReadTextFileRequest::new(self.session.clone(), path);
        let response = self.connection.send_request(request).block_task().await;
        response.ok().map(|response| response.content)
    }

    pub fn can_write_files(&self) -> bool {
        self.files.write_text_file
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The editor's message.
    pub async fn write_text_file(&self, path: &Path, text: String) -> Result<(), String> {
        let request = WriteTextFileRequest::new(self.session.clone(), path, text);
        let response = self.connection.send_request(request).block_task().await;
        response.map(drop).map_err(|error| error.message)
    }
}
