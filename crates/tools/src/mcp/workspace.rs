//! MCP servers that work on an agent's files: each attempt has a server process of its own in a working folder of its own. Before a
//! call the agent's files are laid out there, and what the call changed is handed over with its result, to be written back. The
//! calls of an attempt to one server run one after the other, so that each change has one origin.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{AgentFiles, WorkingCopy};
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::connection::Connection;
use super::settings::McpServer;
use super::tool::McpTool;
use crate::execute::Launcher;
use crate::working_folder::{files_error, note_changes};

const DESCRIPTION: &str = "It works on the files of the workspace, relative to its working folder: /data/a.csv is data/a.csv \
there. Files that it creates, changes or deletes are created, changed or deleted in the workspace.";

pub(super) struct AttemptServer {
    server: McpServer,
    launcher: Option<Launcher>,
    connect_timeout: Duration,
    started: Mutex<Option<StartedServer>>,
}

/// A started server with its working folder, which is removed after the server has been disconnected.
struct StartedServer {
    connection: Arc<Connection>,
    copy: WorkingCopy,
    folder: TempDir,
}

impl AttemptServer {
    pub(super) fn new(server: &McpServer, launcher: Option<Launcher>, connect_timeout: Duration) -> Self {
        Self { server: server.clone(), launcher, connect_timeout, started: Mutex::new(None) }
    }

    fn start(&self, files: &AgentFiles) -> std::io::Result<StartedServer> {
        let folder = create_folder()?;
        let settings = self.server.files.clone().unwrap_or_default();
        let copy = WorkingCopy::open(files.clone(), settings, folder.path())?;
        let server = self.server.in_folder(folder.path());
        let connection = Connection::new(server, self.launcher.clone(), self.connect_timeout);
        Ok(StartedServer { connection: Arc::new(connection), copy, folder })
    }
}

pub(super) fn create_folder() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("millrace-mcp-").tempdir()
}

pub(super) struct WorkspaceMcpTool {
    pub tool: McpTool,
    pub server: Arc<AttemptServer>,
    /// The files of the attempt; `None` if it has none.
    pub files: Option<AgentFiles>,
}

impl WorkspaceMcpTool {
    async fn call_on_files(&self, arguments: Value, call: &Call) -> Result<Output, ToolError> {
        let Some(files) = &self.files else {
            return Err(folder_error(&self.tool, "the agent has no files"));
        };
        let mut started = self.server.started.lock().await;
        if started.is_none() {
            let server = self.server.start(files);
            *started = Some(server.map_err(|error| folder_error(&self.tool, &error.to_string()))?);
        }
        let Some(StartedServer { connection, copy, folder }) = started.as_mut() else {
            return Err(folder_error(&self.tool, "there is no working folder"));
        };
        let omissions = copy.update_folder().await;
        let name = self.tool.spec().name;
        let omissions = omissions.map_err(|error| files_error(&name, error))?;
        let result = self.tool.call_on(connection, arguments, call).await;
        let changes = copy.find_changes(call.is_approved).await;
        let mut output = result?;
        // The server knows its files by their places on this machine.
        output.text = output.text.replace(&folder.path().display().to_string(), "");
        output.changes = note_changes(&mut output.text, &name, changes, &omissions);
        Ok(output)
    }
}

impl Tool for WorkspaceMcpTool {
    fn spec(&self) -> ToolSpec {
        let spec = self.tool.spec();
        ToolSpec { description: format!("{} {DESCRIPTION}", spec.description).into(), ..spec }
    }

    fn effect(&self) -> Effect {
        self.tool.effect()
    }

    fn for_attempt(&self, files: &AgentFiles) -> Option<Arc<dyn Tool>> {
        let (tool, server) = (self.tool.clone(), self.server.clone());
        Some(Arc::new(Self { tool, server, files: Some(files.clone()) }))
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.call_on_files(arguments, call).boxed()
    }
}

fn folder_error(tool: &McpTool, detail: &str) -> ToolError {
    let message = format!("{} could not be called: it has no working folder", tool.spec().name);
    ToolError::Failed { message, detail: detail.to_owned() }
}
