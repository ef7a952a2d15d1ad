//! The JSON Schema of a capability file that describes an agent, for editors and for generators of such files. Other crates
//! add the tools that they provide.

use serde_json::{Value, json};

use super::{AgentSpec, AnswerForm, CapabilityFields};
use crate::tool::schema_of;

/// The properties that all kinds of capabilities have.
#[must_use]
pub fn common_properties_schema() -> Value {
    schema_of::<CapabilityFields>()["properties"].take()
}

/// The JSON Schema of a review as written in files.
#[must_use]
pub fn review_schema() -> Value {
    common_properties_schema()["review"].take()
}

/// The schema of a file. `tools` are the names of all tools with the schemas of their settings, if any; `server` is the
/// schema of an MCP server.
#[must_use]
pub fn agent_file_schema(tools: &[(&str, Option<Value>)], server: &Value) -> Value {
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
    merge_json(&mut properties, json!({ "kind": { "const": "agent" } }));
    let mut own = schema_of::<AgentSpec>()["properties"].take();
    own["tools"]["items"] = json!({ "oneOf": entries });
    own["mcp"]["items"] = server.clone();
    merge_json(&mut properties, own);
    let with_prompts = AnswerForm::ALL.into_iter().filter(|form| form.has_built_in_prompts());
    let with_prompts: Vec<&str> = with_prompts.map(AnswerForm::name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": ["name", "description"],
        "anyOf": [
            { "required": ["instructions"] },
            { "required": ["answer"], "properties": { "answer": { "enum": with_prompts } } },
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

/// Adds the fields of one map to another.
pub fn merge_json(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
