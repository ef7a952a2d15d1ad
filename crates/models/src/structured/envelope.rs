//! The envelope: tool calls or the answer as one JSON value that follows a schema: `{"action": TOOL, "arguments": {…}}`,
//! a list of these, or `{"action": "final", "answer": …}`. For models that support a schema but whose tool calls are
//! unreliable. The keys are in alphabetical order, which is the order in which a grammar makes the model generate them:
//! it decides on the action first.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::calls::{self, AvailableTools};
use super::json::{find_json_object, parse_json_values, strip_reasoning};
use crate::model::{AnswerSchema, FinishReason, Message, Reply, Request, ToolCall, ToolResult, ToolSpec};
use crate::wire::schema::to_grammar_schema;
use crate::wire::{CallIdForm, normalize_conversation, replace_unsent_images};

/// Maximum number of parallel calls. Without a limit in the grammar, a small model may generate calls endlessly.
const MAX_CALLS: usize = 8;
/// The reason for which images are left out: all messages are rewritten as text.
const NOT_SHOWN: &str = "it can't be shown together with tools and this form of answer";
/// The maximum length of an id of a call, which an envelope does not show.
const MAX_ID: usize = 64;

pub(super) fn rewrite_request_as_envelope(request: &Request) -> Request {
    let final_action = final_action_name(request);
    Request {
        system: format!("{}\n\n{}", request.system, format_action_instructions(request, final_action)),
        messages: rewrite_conversation(request, final_action),
        tools: Vec::new(),
        answer: Some(AnswerSchema {
            name: "action".to_owned(),
            schema: build_envelope_schema(request, final_action),
        }),
        max_output_tokens: request.max_output_tokens,
    }
}

pub(super) fn convert_envelope_reply(request: &Request, mut reply: Reply) -> Reply {
    if !reply.calls.is_empty() {
        return reply;
    }
    let final_action = final_action_name(request);
    match parse_action(&reply.text, request, final_action) {
        Some(ChosenAction::Calls(calls)) => {
            reply.finish = super::finish_of_text_calls(reply.finish, &reply.text);
            reply.calls = super::assign_call_ids(request, calls);
            reply.text = String::new();
        }
        Some(ChosenAction::Final(text)) => {
            if reply.finish == FinishReason::Length && !reply.text.ends_with(['}', ']']) {
                reply.finish = FinishReason::Stop;
            }
            reply.text = text;
        }
        None => {}
    }
    reply
}

/// Returns the action that gives the final answer; it has another name if a tool is called `final`.
fn final_action_name(request: &Request) -> &'static str {
    let is_taken = request.tools.iter().any(|tool| tool.name == "final");
    if is_taken { "final_answer" } else { "final" }
}

fn answer_schema_or_any(request: &Request) -> Value {
    match &request.answer {
        Some(answer) => answer.schema.clone(),
        None => json!({ "type": "string" }),
    }
}

fn format_action_instructions(request: &Request, final_action: &str) -> String {
    let mut text = String::from("Reply with one JSON value, in one of these forms.\n");
    if !request.tools.is_empty() {
        text.push_str("- To call a tool and see its result: {\"action\": TOOL, \"arguments\": {…}}\n");
        text.push_str("- To call several tools at once: [{\"action\": TOOL, \"arguments\": {…}}, …]\n");
    }
    let _ = writeln!(
        text,
        "- To answer, once you have what you need: {{\"action\": \"{final_action}\", \"answer\": …}}"
    );
    if !request.tools.is_empty() {
        text.push_str("Do not repeat a call whose result you already have.\n");
    }
    for ToolSpec { name, description, schema } in &request.tools {
        let _ = write!(text, "\nTOOL \"{name}\": {description}\nIts arguments: {}\n", schema);
    }
    let _ = write!(text, "\nThe answer: {}", answer_schema_or_any(request));
    text
}

fn build_envelope_schema(request: &Request, final_action: &str) -> Value {
    let action = |name: &str, key: &str, value: Value| {
        json!({
            "type": "object",
            "properties": { "action": { "const": name }, key: value },
            "required": ["action", key],
            "additionalProperties": false,
        })
    };
    let calls: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| action(&tool.name, "arguments", to_grammar_schema(&tool.schema)))
        .collect();
    let answer = action(final_action, "answer", to_grammar_schema(&answer_schema_or_any(request)));
    if calls.is_empty() {
        return answer;
    }
    let several = json!({
        "type": "array",
        "items": { "oneOf": calls },
        "minItems": 2,
        "maxItems": MAX_CALLS,
    });
    json!({ "oneOf": calls.into_iter().chain([several, answer]).collect::<Vec<_>>() })
}

/// Writes the conversation in its normal form as envelopes. Tool results become user messages; consecutive ones are merged, because some chat
/// templates require alternating roles.
fn rewrite_conversation(request: &Request, final_action: &str) -> Vec<Message> {
    let normal = normalize_conversation(request, CallIdForm::Text(MAX_ID));
    let request = &*replace_unsent_images(&normal, |_| Some(NOT_SHOWN));
    let mut messages: Vec<Message> = Vec::new();
    for (at, message) in request.messages.iter().enumerate() {
        let text = match message {
            Message::User { text } => text.clone(),
            Message::Tool(result) => {
                let text = format_tool_result(request, result);
                let is_followed = matches!(request.messages.get(at + 1), Some(Message::Tool(_)));
                match is_followed || result.is_error {
                    true => text,
                    false => format!("{text}\n\n{}", format_result_reminder(final_action)),
                }
            }
            Message::Assistant { text, calls, .. } => {
                let text = format_assistant_action(text, calls, final_action);
                messages.push(Message::Assistant { text, calls: Vec::new(), provider_state: None });
                continue;
            }
        };
        match messages.last_mut() {
            Some(Message::User { text: before }) => {
                before.push_str("\n\n");
                before.push_str(&text);
            }
            Some(Message::Assistant { .. } | Message::Tool(_)) | None => {
                messages.push(Message::User { text })
            }
        }
    }
    messages
}

/// Returns the reminder after the results of a turn: without it the smallest models repeat the same call. After an error it
/// is left out: a model that was told to correct a call would answer instead.
fn format_result_reminder(final_action: &str) -> String {
    format!("If this is enough, answer now with the action \"{final_action}\".")
}

fn format_tool_result(request: &Request, result: &ToolResult) -> String {
    let name = request.tool_of_call(&result.call_id).unwrap_or("the tool");
    let what = if result.is_error { "Error" } else { "Result" };
    format!("{what} of {name}:\n{}", result.text)
}

fn format_assistant_action(text: &str, calls: &[ToolCall], final_action: &str) -> String {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let call_json = |call: &ToolCall| json!({ "action": call.name, "arguments": value(&call.arguments) });
    match calls {
        [] => json!({ "action": final_action, "answer": value(text) }).to_string(),
        [call] => call_json(call).to_string(),
        calls => Value::from(calls.iter().map(call_json).collect::<Vec<_>>()).to_string(),
    }
}

enum ChosenAction {
    Calls(Vec<ToolCall>),
    Final(String),
}

/// Parses a reply that need not follow the schema. An object without an action is the answer itself.
fn parse_action(text: &str, request: &Request, final_action: &str) -> Option<ChosenAction> {
    let tools = AvailableTools::from_tools_only(request);
    let text = strip_reasoning(text);
    let values = parse_json_values(text).or_else(|| parse_json_values(find_json_object(text)?))?;
    if let Some(calls) = calls::calls_from_json_values(&values, &tools) {
        return Some(ChosenAction::Calls(calls));
    }
    match values.as_slice() {
        [Value::Object(object)] => extract_final_answer(object, final_action).map(ChosenAction::Final),
        [Value::Array(items)] => {
            let calls: Vec<Value> =
                items.iter().filter(|item| item["action"] != final_action).cloned().collect();
            calls::calls_from_json_values(&calls, &tools).map(ChosenAction::Calls)
        }
        _ => None,
    }
}

fn extract_final_answer(object: &Map<String, Value>, final_action: &str) -> Option<String> {
    let action = object.get("action").and_then(Value::as_str)?;
    let answer = object.get("answer").filter(|_| action == final_action || action == "final")?;
    Some(answer.as_str().map_or_else(|| answer.to_string(), str::to_owned))
}
