//! The tool with which an agent asks a person. The call parks the attempt: it holds no worker until somebody answers.

use std::sync::Arc;

use millrace_protocol::question::MAX_QUESTION_TEXT;
use millrace_protocol::wait::WaitCondition;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Tool, ToolError, tool_from_function};
use crate::approval::input_question;

/// The largest number of proposed answers.
const MAX_OPTIONS: usize = 20;
/// The maximum length of a proposed answer, in bytes.
const MAX_OPTION: usize = 500;

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
    let refuse = |text: String| Err(ToolError::Refused(text));
    let question = question.trim();
    if question.is_empty() || question.len() > MAX_QUESTION_TEXT {
        return refuse(format!("a question has 1 to {MAX_QUESTION_TEXT} bytes"));
    }
    if options.len() > MAX_OPTIONS || options.iter().any(|option| option.len() > MAX_OPTION) {
        return refuse(format!("at most {MAX_OPTIONS} options of {MAX_OPTION} bytes each are possible"));
    }
    let schema = schema.map(Value::Object);
    if let Some(schema) = &schema {
        if let Err(error) = jsonschema::validator_for(schema) {
            return refuse(format!("\"schema\" is not a valid JSON Schema: {error}"));
        }
        if schema.to_string().len() > MAX_QUESTION_TEXT {
            return refuse(format!("the schema is longer than {MAX_QUESTION_TEXT} bytes"));
        }
    }
    let question = input_question(question, options, schema.as_ref());
    Err(ToolError::Waits(WaitCondition::Answer(Box::new(question))))
}
