//! The tools of an agent as its machine sees them: the spec of each for the model, and the validation of calls. It owns the
//! error messages for invalid calls. It can't run a tool.
//!
//! Parses JSON written by a model. It owns the few repairs that can mean only one thing: an empty text for an empty
//! object, a fenced block, JSON inside a JSON string, trailing commas. Anything else that is broken stays broken.

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_models::tool_names::{NamedTool, resolve_tool_name};
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::schema::{CompiledSchema, convert_unambiguous_values, find_nearest_name};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{InnerTool, ToolSpec};

use crate::model::ToolCall;

/// The maximum number of characters of a schema in an error message.
const MAX_SCHEMA: usize = 2_000;

/// The specs of an agent's tools, by name. Clones share it, and each schema is compiled once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolSpecs(Arc<[CompiledTool]>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CompiledTool {
    #[serde(flatten)]
    spec: ToolSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inner: Option<InnerTool>,
    /// `true` if the model is not shown it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_hidden: bool,
    #[serde(skip)]
    compiled: CompiledSchema,
}

pub(crate) struct ValidatedCall {
    pub arguments: Value,
    pub inner: Option<InnerTool>,
}

impl Default for ToolSpecs {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl ToolSpecs {
    pub(super) fn new(tools: impl Iterator<Item = (ToolSpec, Option<InnerTool>)>) -> Self {
        let tools = tools.map(|(spec, inner)| CompiledTool {
            spec,
            inner,
            is_hidden: false,
            compiled: CompiledSchema::default(),
        });
        Self(tools.collect())
    }

    /// Hides the tools of these names: the model is not shown them, but a call of one is valid.
    pub fn with_hidden_tools(&self, names: &BTreeSet<&str>) -> Self {
        let hidden = |tool: &CompiledTool| CompiledTool {
            is_hidden: tool.is_hidden || names.contains(tool.spec.name.as_str()),
            ..tool.clone()
        };
        Self(self.0.iter().map(hidden).collect())
    }

    /// The specs that the model is shown, by name.
    pub fn iter(&self) -> impl Iterator<Item = &ToolSpec> {
        self.0.iter().filter(|tool| !tool.is_hidden).map(|tool| &tool.spec)
    }

    /// `true` if there is a tool of this name.
    pub fn has_tool(&self, name: &str) -> bool {
        self.find_tool(name).is_some()
    }

    /// The inner tool of this name, if there is one.
    pub(crate) fn find_inner_tool(&self, name: &str) -> Option<InnerTool> {
        self.find_tool(name).and_then(|tool| tool.inner)
    }

    /// Parses and validates a call.
    pub(crate) fn validate_call(&self, call: &ToolCall) -> Result<ValidatedCall, String> {
        let name = &call.name;
        let tool = self.find_tool(name).ok_or_else(|| self.unknown_tool_error(name))?;
        let schema = &tool.spec.schema;
        let mut arguments = parse_arguments_object(&call.arguments).map_err(|mistake| {
            format!("the arguments of {name} {mistake}; expected: {}", format_schema(schema))
        })?;
        convert_unambiguous_values(schema, &mut arguments);
        tool.compiled.check_value(schema, &arguments).map_err(|mistakes| {
            let mistakes = mistakes.trim_end_matches('.');
            format!("the arguments of {name} do not fit: {mistakes}. Correct them and call it again.")
        })?;
        Ok(ValidatedCall { arguments, inner: tool.inner })
    }

    fn find_tool(&self, name: &str) -> Option<&CompiledTool> {
        self.0.iter().find(|tool| tool.spec.name == name)
    }

    fn unknown_tool_error(&self, name: &str) -> String {
        let names: Vec<&str> = self.iter().map(|spec| spec.name.as_str()).collect();
        let near = match resolve_tool_name(name, &names) {
            NamedTool::One(near) => vec![near],
            NamedTool::Several(near) => near,
            NamedTool::None => find_nearest_name(name, names.iter().copied()).into_iter().collect(),
        };
        let near: Vec<String> = near.into_iter().map(|near| format!("'{near}'")).collect();
        let hint = (!near.is_empty()).then(|| format!("did you mean {}? ", near.join(" or ")));
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        let name: String = name.chars().take(100).collect();
        format!("there is no tool '{name}'; {}the tools are: {names}", hint.unwrap_or_default())
    }
}

fn format_schema(schema: &Value) -> String {
    let text = schema.to_string();
    if text.chars().count() <= MAX_SCHEMA { text } else { "an object as in its description".into() }
}

/// Parses a text as a JSON value.
pub(crate) fn parse_lenient_json(text: &str) -> Result<Value, serde_json::Error> {
    let text = text.trim();
    let mistake = match parse_foreign_json(text) {
        Ok(value) => return Ok(value),
        Err(mistake) => mistake,
    };
    let inner = strip_code_fence(text);
    let repaired = parse_foreign_json(inner).or_else(|_| parse_foreign_json(remove_trailing_commas(inner)));
    repaired.map_err(|_| mistake)
}

/// Parses a call's arguments as an object.
pub(crate) fn parse_arguments_object(text: &str) -> Result<Value, String> {
    // Some providers send an empty text, or null, for a call without arguments.
    if matches!(text.trim(), "" | "null") {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value = match parse_lenient_json(text) {
        Err(mistake) => return Err(format!("are not JSON: {mistake}")),
        Ok(Value::String(inner)) => parse_lenient_json(&inner).unwrap_or(Value::String(inner)),
        Ok(value) => value,
    };
    if value.is_object() { Ok(value) } else { Err("are not one JSON object".to_owned()) }
}

fn strip_code_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else {
        return text;
    };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}

/// Removes commas before a closing bracket, except inside strings.
fn remove_trailing_commas(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        let closes = || text[at + 1..].trim_start().starts_with(['}', ']']);
        if c != ',' || in_string || !closes() {
            result.push(c);
        }
        (in_string, escaped) = match (c, in_string, escaped) {
            ('"', true, false) => (false, false),
            ('\\', true, false) => (true, true),
            ('"', false, _) => (true, false),
            (_, within, _) => (within, false),
        };
    }
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unambiguous_mistakes_in_arguments_are_repaired() {
        let table = [
            (r#"{"at": "sky"}"#, Ok(json!({"at": "sky"}))),
            ("", Ok(json!({}))),
            (" null\n", Ok(json!({}))),
            (r#""{\"at\": \"sky\"}""#, Ok(json!({"at": "sky"}))),
            ("```json\n{\"at\": \"sky\"}\n```", Ok(json!({"at": "sky"}))),
            ("```\n{\"at\": \"sky\",}\n```", Ok(json!({"at": "sky"}))),
            (
                r#"{"at": [1, 2, ], "b": "x,}", "c": "\",]" ,}"#,
                Ok(json!({"at": [1, 2], "b": "x,}", "c": "\",]"})),
            ),
            (r#"{"at": "sky""#, Err("are not JSON: EOF while parsing an object at line 1 column 12")),
            (r#"{"at": "sky"} {"at": "sea"}"#, Err("are not JSON: trailing characters at line 1 column 15")),
            (r"{'at': 'sky'}", Err("are not JSON: key must be a string at line 1 column 2")),
            ("sky", Err("are not JSON: expected value at line 1 column 1")),
            (r#""sky""#, Err("are not one JSON object")),
            ("[1]", Err("are not one JSON object")),
            ("7", Err("are not one JSON object")),
        ];
        for (text, expected) in table {
            assert_eq!(parse_arguments_object(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
