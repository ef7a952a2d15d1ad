//! `execute` for the attempts of agents that have files: each attempt has a working folder of its own, in which the agent's
//! files are laid out before a command runs. What the command changed is handed over with its result, to be written back.
//! The commands of an attempt run one after the other, so that each change has one origin.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{AgentFiles, WorkingCopy};
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec, read_arguments};
use serde_json::Value;
use tokio::sync::Mutex;

use super::ExecuteTool;
use super::tool::{Arguments, MeasuredFolder};
use crate::working_folder::{files_error, note_changes};

/// The program, as notes and errors name it.
const COMMAND: &str = "the command";
const DESCRIPTION: &str = "The files of the workspace are in the working folder: /data/a.csv is data/a.csv there. Files that \
the command creates, changes or deletes there are created, changed or deleted in the workspace when it ends, except names \
that begin with a dot, node_modules and __pycache__.";

/// The tool `execute` of a capability. Each attempt with files gets its own tool from it.
pub struct WorkspaceExecuteTool(Arc<ExecuteTool>);

struct AttemptExecuteTool {
    executor: Arc<ExecuteTool>,
    files: AgentFiles,
    place: Mutex<Option<AttemptFolder>>,
}

/// The working folder of an attempt, with the copy of the agent's files in it.
struct AttemptFolder {
    copy: WorkingCopy,
    folder: MeasuredFolder,
}

impl WorkspaceExecuteTool {
    pub fn new(executor: ExecuteTool) -> Self {
        Self(Arc::new(executor))
    }
}

impl Tool for WorkspaceExecuteTool {
    fn spec(&self) -> ToolSpec {
        self.0.spec()
    }

    fn effect(&self) -> Effect {
        self.0.effect()
    }

    fn for_attempt(&self, files: &AgentFiles) -> Option<Arc<dyn Tool>> {
        // Commands in a folder of the machine work on the files of that folder.
        self.0.settings().folder.is_none().then(|| -> Arc<dyn Tool> {
            let (executor, files) = (self.0.clone(), files.clone());
            Arc::new(AttemptExecuteTool { executor, files, place: Mutex::new(None) })
        })
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.0.call(arguments, call)
    }
}

impl Tool for AttemptExecuteTool {
    fn spec(&self) -> ToolSpec {
        let spec = self.executor.spec();
        ToolSpec { description: format!("{} {DESCRIPTION}", spec.description).into(), ..spec }
    }

    fn effect(&self) -> Effect {
        self.executor.effect()
    }

    fn names_its_changes(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move { self.run_command(read_arguments("execute", arguments)?, call).await }.boxed()
    }
}

impl AttemptExecuteTool {
    async fn run_command(&self, arguments: Arguments, call: &Call) -> Result<Output, ToolError> {
        let mut place = self.place.lock().await;
        if place.is_none() {
            *place = Some(self.open_folder().await?);
        }
        let Some(AttemptFolder { copy, folder }) = place.as_mut() else {
            return Err(folder_error("there is no working folder"));
        };
        let omissions = copy.update_folder().await.map_err(|error| files_error(COMMAND, error))?;
        let hint = path_hint(&arguments.command, copy);
        let mut text = self.executor.run_tool_call(arguments, folder, call).await?;
        let changes = copy.find_changes(call.is_approved).await;
        let changes = note_changes(&mut text, COMMAND, changes, &omissions);
        if text.contains("[Command failed") {
            text.extend(hint);
        }
        Ok(Output { changes, ..text.into() })
    }

    async fn open_folder(&self) -> Result<AttemptFolder, ToolError> {
        let folder = self.executor.create_folder().await.map_err(|error| folder_error(&error.to_string()))?;
        let settings = self.executor.settings().files.clone().unwrap_or_default();
        let copy = WorkingCopy::open(self.files.clone(), settings, folder.path())
            .map_err(|error| folder_error(&error.to_string()))?;
        Ok(AttemptFolder { copy, folder })
    }
}

/// Returns a hint for a command that names a file as the file tools do, from the root on.
fn path_hint(command: &str, copy: &WorkingCopy) -> Option<String> {
    let is_named = |path: &str| {
        command.match_indices(path).any(|(at, _)| {
            let before = command[..at].chars().next_back();
            before.is_none_or(|c| c.is_whitespace() || matches!(c, '"' | '\'' | '=' | '>' | '<'))
        })
    };
    let path = copy.paths().find(|path| is_named(path.as_str()))?.as_str();
    let relative = path.trim_start_matches('/');
    Some(format!("\n[In commands the file {path} is {relative}, below the working folder]"))
}

fn folder_error(detail: &str) -> ToolError {
    ToolError::Failed { message: "the command could not be run".into(), detail: detail.to_owned() }
}
