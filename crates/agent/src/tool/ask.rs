//! The tool with which an agent asks a person. The call parks the attempt: it holds no worker until somebody answers.

use std::sync::Arc;

use millrace_protocol::wait::WaitCondition;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Tool, ToolError, tool_from_function};
use crate::approval::{check_input, input_question};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AskUser")]
#[serde(deny_unknown_fields)]
struct AskUserArguments {
    /// The question, understandable without this conversation.
    #[schemars(length(min = 1, max = 16000))]
    question: String,
    /// Proposed answers; the person may give another.
    #[serde(default)]
    #[schemars(length(max = 20))]
    options: Vec<String>,
    /// The JSON Schema of the answer; any text by default.
    schema: Option<serde_json::Map<String, Value>>,
}

/// `ask_user{question, options?, schema?}`: asks a person and continues with the answer.
#[must_use]
pub fn ask_user_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "ask_user",
        "Asks a person a question and returns the answer. It may take long; nothing is used up meanwhile. Ask only what you can \
         not find out yourself, all questions at once in one message.",
        |arguments: AskUserArguments, _| async move { ask_user(arguments) },
    )
}

fn ask_user(arguments: AskUserArguments) -> Result<String, ToolError> {
    let AskUserArguments { question, options, schema } = arguments;
    let (question, schema) = (question.trim(), schema.map(Value::Object));
    check_input(question, &options, schema.as_ref()).map_err(ToolError::Refused)?;
    let question = input_question(question, options, schema.as_ref());
    Err(ToolError::Waits(WaitCondition::Answer(Box::new(question))))
}
