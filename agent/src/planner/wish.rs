//! What a planner can ask for, in the words of its tools and of its answer. Plain data: what it means for the plan is said
//! beside this file.

use millrace_protocol::plan::OnFailedDependency;
use millrace_protocol::result::Parameters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A task that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskWish {
    /// A short name of its own, such as research-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What is to be done, in words that can be understood without the other tasks.
    #[schemars(length(min = 1))]
    pub objective: String,
    /// Who does it: one of the capabilities.
    pub capability: String,
    /// The ids of the tasks whose results it needs. Empty: it begins at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Up to three sentences that a critic can check in its result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// Named values, where the capability takes any.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "named_values")]
    pub parameters: Parameters,
    /// When a task it depends on fails: ask (you are asked, the default), skip (it goes on without) or cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy")]
    pub on_failed_dependency: Option<OnFailedDependency>,
    /// true for the one task whose result is the deliverable.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

/// What changes in a task that waits; what is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchWish {
    /// The id of the task.
    pub task: String,
    /// What is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// Who does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// The ids of all tasks whose results it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// What its result must do, all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub criteria: Option<Vec<String>>,
    /// Named values that are set; a null takes one away.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "named_values")]
    pub parameters: Parameters,
    /// When a task it depends on fails: ask, skip or cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy")]
    pub on_failed_dependency: Option<OnFailedDependency>,
}

/// A task that is to run once more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryWish {
    /// The id of a task that failed, was cancelled, waits to try again, or is completed.
    pub task: String,
    /// What the next attempt must do differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
}

/// A task that is not wanted any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelWish {
    /// The id of the task.
    pub task: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn named_values(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object" })
}

fn policy(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["ask", "skip", "cancel"] })
}

/// A schema as short as it can be without telling a model less: what may be left out is not to be null, and objects have
/// no names of their own.
pub(super) fn slim(schema: &mut Value) {
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
            fields.values_mut().for_each(slim);
        }
        Value::Array(items) => items.iter_mut().for_each(slim),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// One change that is wanted, wherever it is from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Wish {
    Add(Vec<TaskWish>),
    Patch(PatchWish),
    Retry(RetryWish),
    Cancel(CancelWish),
    Final(String),
    Finish(String),
    GiveUp(String),
}

impl Wish {
    /// What it is, for whoever is told that it can't be had.
    pub fn label(&self) -> String {
        match self {
            Self::Add(_) => "the new tasks".into(),
            Self::Patch(patch) => format!("the change of '{}'", patch.task),
            Self::Retry(retry) => format!("the retry of '{}'", retry.task),
            Self::Cancel(cancel) => format!("the cancelling of '{}'", cancel.task),
            Self::Final(task) => format!("making '{task}' final"),
            Self::Finish(_) => "the end".into(),
            Self::GiveUp(_) => "giving up".into(),
        }
    }
}
