//! The changes that a planner can request through its tools and its answer. Plain data; `normalize` and `apply` give it
//! meaning.

use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::OnFailedDependency;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A requested task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// A short id, such as research-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The work, understandable without the other tasks.
    #[schemars(length(min = 1))]
    pub objective: String,
    /// The capability that does it.
    pub capability: String,
    /// The ids of the tasks whose results it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Up to three sentences that a critic can check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// Named values, if the capability takes any.
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    #[schemars(schema_with = "parameters_schema")]
    pub parameters: TaskParameters,
    /// If a dependency fails: ask you (the default), skip it, or cancel this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy_schema")]
    pub on_failed_dependency: Option<OnFailedDependency>,
    /// true for the one task whose result is the deliverable.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

/// Changes of a waiting task; omitted fields stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchRequest {
    /// The id of the task.
    pub task: String,
    /// The work to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The capability that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// All of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// All of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub criteria: Option<Vec<String>>,
    /// Named values to set; null removes one.
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    #[schemars(schema_with = "parameters_schema")]
    pub parameters: TaskParameters,
    /// As for a new task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy_schema")]
    pub on_failed_dependency: Option<OnFailedDependency>,
}

/// A task to run again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// The id of a task that has ended or waits for a retry.
    pub task: String,
    /// Instructions for the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
}

/// A task that is no longer needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// The id of the task.
    pub task: String,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn parameters_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object" })
}

fn policy_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["ask", "skip", "cancel"] })
}

/// Shortens a schema without removing information for a model: optional fields need not be nullable, and objects need no
/// titles.
pub(super) fn shorten_schema(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("title");
            if let Some(Value::Array(kinds)) = fields.get_mut("type")
                && kinds.len() == 2
            {
                kinds.retain(|kind| kind != "null");
                let kind = kinds.pop().unwrap_or_default();
                fields.insert("type".into(), kind);
            }
            if fields.contains_key("properties") {
                fields.remove("description");
            }
            fields.values_mut().for_each(shorten_schema);
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// One requested change, from a tool or an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ChangeRequest {
    Add(Vec<TaskRequest>),
    Patch(PatchRequest),
    Retry(RetryRequest),
    Cancel(CancelRequest),
    Final(String),
    Finish(String),
    GiveUp(String),
}

impl ChangeRequest {
    /// Names the change in reports of mistakes.
    pub fn describe_change(&self) -> String {
        match self {
            Self::Add(_) => "the new tasks".into(),
            Self::Patch(patch) => format!("the change of '{}'", patch.task),
            Self::Retry(retry) => format!("the retry of '{}'", retry.task),
            Self::Cancel(cancel) => format!("the cancellation of '{}'", cancel.task),
            Self::Final(task) => format!("marking '{task}' final"),
            Self::Finish(_) => "finishing".into(),
            Self::GiveUp(_) => "giving up".into(),
        }
    }
}
