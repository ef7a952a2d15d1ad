//! The structured results of the tools.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::standards::events::RunEvent;

/// The result of `start_run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StartedRun {
    /// The id of the run.
    pub run: String,
}

/// The result of a command.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct CommandResult {
    /// The id of the run.
    pub run: String,
    /// `command_applied`, or `command_accepted` if the command is in the log and no supervisor has decided on it yet.
    #[serde(rename = "type")]
    pub outcome: String,
    /// The changes.
    #[serde(default)]
    pub summary: String,
}

/// The result of `answer_question`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct AnswerResult {
    /// The id of the question.
    pub id: String,
    /// `answered`, or `sent` if the answer is in the log and no supervisor has decided on it yet.
    pub outcome: String,
    /// The outcome in a sentence.
    pub message: String,
}

/// The result of `read_events`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventsResult {
    /// The events, oldest first.
    pub events: Vec<RunEvent>,
    /// The `after` of the next call.
    pub after: String,
    /// `true` if the run has ended and there are no further events.
    pub ended: bool,
}

/// A run in a list.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct ListedRun {
    /// The id of the run.
    pub run: String,
    /// Its state.
    pub state: String,
    /// The beginning of its objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// The number of its open questions.
    pub open_questions: u32,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
}

/// The result of `list_runs`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct RunsResult {
    /// The runs, newest first.
    pub runs: Vec<ListedRun>,
    /// The `cursor` of the next call; empty at the end.
    pub next: String,
}

/// A capability.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct CapabilityResult {
    /// The name, as tasks of a plan name it.
    pub name: String,
    /// The description for planners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The number of workers that have it.
    pub workers: u64,
    /// The parameters and the output, as JSON Schemas.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub interface: Value,
}

/// The result of `list_capabilities`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct CapabilitiesResult {
    /// The capabilities.
    pub capabilities: Vec<CapabilityResult>,
}

/// A file of a run.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct FileResult {
    /// The path.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The version, from 1.
    pub version: u64,
    /// The author.
    pub author: String,
}

/// The result of `list_files`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct FilesResult {
    /// The files.
    pub files: Vec<FileResult>,
}
