//! The JSON Schema of a capability file that describes an agent, for editors and for whoever writes such files by
//! program. Tools that are not of this crate are added by whoever brings them.

use serde_json::{Value, json};

use super::{AnswerForm, review_schema};

/// The properties that capabilities of every kind have.
#[must_use]
pub fn common() -> Value {
    json!({
        "name": {
            "description": "Its name: letters, digits, '-' and '_'.",
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        },
        "description": {
            "description": "What it does, for planners and people.",
            "type": "string",
            "pattern": "\\S",
        },
        "concurrency": {
            "description": "How many attempts a worker has in hand at once.",
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
        },
        "input": { "description": "The JSON Schema of a task's parameters.", "type": "object" },
        "output": { "description": "The JSON Schema of a result's data.", "type": "object" },
        "review": review_schema(),
    })
}

/// The schema of a file. `tools` are the names of all tools with the schemas of their settings, where they have some;
/// `server` is the schema of an MCP server, `permissions` that of the rules for files.
#[must_use]
pub fn schema(tools: &[(&str, Option<Value>)], server: &Value, permissions: &Value) -> Value {
    let names: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
    let set = tools.iter().filter_map(|(name, settings)| {
        let settings = settings.as_ref()?;
        Some(json!({
            "type": "object",
            "properties": { *name: settings },
            "required": [name],
            "additionalProperties": false,
        }))
    });
    let entries: Vec<Value> = [json!({ "enum": names })].into_iter().chain(set).collect();
    let mut properties = common();
    let more = json!({
        "kind": { "const": "agent" },
        "instructions": {
            "description": "What the agent is told: a Jinja template over run.id, run.objective, task.id, \
                            task.objective, task.feedback, task.final, parameters, documents.count, documents.paths, \
                            documents.passed_over and today.",
            "type": "string",
            "pattern": "\\S",
        },
        "model": {
            "description": "Its model: provider:model, others that stand in for it behind commas, or a map with \
                            settings.",
            "type": ["string", "object"],
        },
        "tools": { "description": "The tools it gets.", "type": "array", "items": { "oneOf": entries } },
        "mcp": { "description": "The MCP servers whose tools it gets.", "type": "array", "items": server },
        "permissions": permissions,
        "limits": crate::tool::schema_of::<crate::turn::Limits>(),
        "answer": { "description": "How it answers.", "enum": AnswerForm::ALL.map(AnswerForm::name) },
        "consult": { "description": "Whether other agents may ask it short questions.", "type": "boolean" },
    });
    merge(&mut properties, more);
    json!({
        "type": "object",
        "properties": properties,
        "required": ["name", "description", "instructions"],
        "additionalProperties": false,
    })
}

/// Adds the fields of one map to another.
pub fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
