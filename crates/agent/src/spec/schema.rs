//! The JSON Schema of a capability file that describes an agent, for editors and for generators of such files. Other crates
//! add the tools that they provide.

use millrace_models::ModelAbility;
use millrace_protocol::result::MAX_VERSION;
use serde_json::{Value, json};

use super::{AnswerForm, HostFolder, review_schema};
use crate::approval::ApprovalRule;

/// The properties that all kinds of capabilities have.
#[must_use]
pub fn common_properties_schema() -> Value {
    json!({
        "name": {
            "description": "Its name: letters, digits, '-' and '_'.",
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        },
        "description": {
            "description": "A description of its purpose, for planners and people.",
            "type": "string",
            "pattern": "\\S",
        },
        "version": {
            "description": "Its version. Every attempt names it, beside the SHA-256 of this file.",
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_VERSION,
        },
        "concurrency": {
            "description": "The number of attempts that a worker runs concurrently.",
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
        },
        "input": { "description": "The JSON Schema of a task's parameters.", "type": "object" },
        "output": { "description": "The JSON Schema of a result's data.", "type": "object" },
        "review": review_schema(),
    })
}

/// The schema of a file. `tools` are the names of all tools with the schemas of their settings, if any; `server` is the
/// schema of an MCP server, `permissions` that of the file rules.
#[must_use]
pub fn agent_file_schema(tools: &[(&str, Option<Value>)], server: &Value, permissions: &Value) -> Value {
    let names: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
    let set = tools.iter().map(|(name, settings)| {
        json!({
            "type": "object",
            "properties": { *name: settings_schema(settings.as_ref()) },
            "required": [name],
            "additionalProperties": false,
        })
    });
    let entries: Vec<Value> = [json!({ "enum": names })].into_iter().chain(set).collect();
    let mut properties = common_properties_schema();
    let more = json!({
        "kind": { "const": "agent" },
        "instructions": {
            "description": "The agent's instructions: a Jinja template over run.id, run.objective, task.id, \
                            task.objective, task.feedback, task.final, parameters, documents.count, documents.paths, \
                            documents.passed_over, today, state and phase.",
            "type": "string",
            "pattern": "\\S",
        },
        "model": {
            "description": "Its model: provider:model or tier:NAME, optionally followed by comma-separated fallbacks, or a map with \
                            settings.",
            "type": ["string", "object"],
        },
        "prompts": {
            "description": "The variant of its prompts and of the form of its answers: for small models or for strong \
                            ones; by default that of its model.",
            "enum": ModelAbility::ALL.map(ModelAbility::name),
        },
        "tools": { "description": "The tools it gets.", "type": "array", "items": { "oneOf": entries } },
        "agents": super::agents::agents_schema(),
        "mcp": { "description": "The MCP servers whose tools it gets.", "type": "array", "items": server },
        "files": folder_schema(),
        "permissions": permissions,
        "approve": approvals_schema(),
        "limits": crate::tool::schema_of::<crate::turn::Limits>(),
        "answer": { "description": "The form of its answer.", "enum": AnswerForm::ALL.map(AnswerForm::name) },
        "context": super::context::context_schema(),
        "memory": super::memory::memory_schema(),
        "hooks": super::hooks::hooks_schema(),
        "skills": super::skills::skills_schema(),
        "revise": {
            "description": "The conversation in which a rejected result is revised: a new one with the rejected result, the \
                            verdict and the notes (the default), or that of the rejected attempt.",
            "enum": ["new_conversation", "same_conversation"],
        },
        "results": {
            "description": "The tasks whose results it may list and read: those on which its task depends, directly or \
                            through others (the default), or all tasks of the run.",
            "enum": ["dependencies", "run"],
        },
        "consult": { "description": "true if other agents may ask it short questions.", "type": "boolean" },
    });
    merge_json(&mut properties, more);
    merge_json(&mut properties, super::state_schema::state_schemas());
    json!({
        "type": "object",
        "properties": properties,
        "required": ["name", "description"],
        "anyOf": [
            { "required": ["instructions"] },
            { "required": ["answer"], "properties": { "answer": { "enum": forms_with_prompts() } } },
        ],
        "additionalProperties": false,
    })
}

/// The schema of a tool's settings with its condition, or of its condition alone.
fn settings_schema(settings: Option<&Value>) -> Value {
    let condition = json!({
        "description": "The tool is available where this expression over state.FIELD, phase, skills.read and skills.tools holds.",
        "type": "string",
        "minLength": 1,
    });
    let Some(settings) = settings else {
        return json!({
            "type": "object",
            "properties": { "when": condition },
            "required": ["when"],
            "additionalProperties": false,
        });
    };
    let mut settings = settings.clone();
    settings["properties"]["when"] = condition;
    settings
}

fn approvals_schema() -> Value {
    let mut schema = crate::tool::schema_of::<Vec<ApprovalRule>>();
    schema["description"] = "Its calls that need a person's approval before they run.".into();
    schema
}

fn folder_schema() -> Value {
    let mut schema = crate::tool::schema_of::<HostFolder>();
    schema["description"] = "A folder of the host among its files.".into();
    schema
}

/// The names of the forms of answers whose agents need no instructions.
fn forms_with_prompts() -> Vec<&'static str> {
    AnswerForm::ALL.into_iter().filter(|form| form.has_built_in_prompts()).map(AnswerForm::name).collect()
}

/// Adds the fields of one map to another.
pub fn merge_json(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
