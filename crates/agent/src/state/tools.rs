//! The tools over an agent's state. The machine answers their calls: see [`super::AgentState::run_tool`].

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::reference::without_references;
use super::{StateField, StateOperation, StateRules, state_tool_name};
use crate::model::ToolSpec;
use crate::tool::{Call, InnerTool, Output, Tool, ToolError};

struct StateTool(ToolSpec);

/// Creates the tools over the fields that an agent may read or write. Their schemas are those before any reference to the state is
/// resolved: [`super::AgentState::resolve_tool_spec`] returns the current ones.
#[must_use]
pub fn create_state_tools(rules: &StateRules) -> Vec<Arc<dyn Tool>> {
    let tools = rules.fields.iter().flat_map(|(name, field)| {
        field.operations().map(move |operation| -> Arc<dyn Tool> {
            let field = StateField { schema: without_references(&field.schema), ..field.clone() };
            Arc::new(StateTool(describe_tool(name, &field, operation)))
        })
    });
    tools.collect()
}

pub(super) fn describe_tool(name: &str, field: &StateField, operation: StateOperation) -> ToolSpec {
    let (description, value) = match operation {
        StateOperation::Get => (format!("Returns the value of {name}"), None),
        StateOperation::Set => (format!("Sets the value of {name}"), Some(field.schema.clone())),
        StateOperation::Append => {
            let items = field.schema.get("items").cloned().unwrap_or_else(|| json!({}));
            (format!("Adds an item to the list {name}"), Some(items))
        }
    };
    let description = match field.description.as_str() {
        "" => format!("{description}."),
        text => format!("{description}: {text}"),
    };
    let schema = match value {
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(value) => json!({
            "type": "object",
            "properties": {"value": value},
            "required": ["value"],
            "additionalProperties": false,
        }),
    };
    ToolSpec {
        name: state_tool_name(operation, name),
        description: description.into(),
        schema: schema.into(),
    }
}

impl Tool for StateTool {
    fn spec(&self) -> ToolSpec {
        self.0.clone()
    }

    fn inner(&self) -> Option<InnerTool> {
        Some(InnerTool::State)
    }

    fn call<'a>(&'a self, _: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let text = format!("{} works only inside an agent's conversation", self.0.name);
        Box::pin(futures::future::ready(Err(ToolError::Refused(text))))
    }
}
