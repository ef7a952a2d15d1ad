//! The tools of an agent as its machine sees them: the spec of each for the model, and the validation of calls. It owns the
//! error messages for invalid calls. It can't run a tool.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::arguments::parse_arguments_object;
use super::{InnerTool, ToolSpec};
use crate::model::ToolCall;
use millrace_protocol::schema::{CompiledSchema, convert_unambiguous_values, find_nearest_name};

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
        let hint =
            find_nearest_name(name, names.iter().copied()).map(|near| format!("did you mean '{near}'? "));
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        let name: String = name.chars().take(100).collect();
        format!("there is no tool '{name}'; {}the tools are: {names}", hint.unwrap_or_default())
    }
}

fn format_schema(schema: &Value) -> String {
    let text = schema.to_string();
    if text.chars().count() <= MAX_SCHEMA { text } else { "an object as in its description".into() }
}
