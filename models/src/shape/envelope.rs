//! Calls and answers as one JSON value that a schema holds the model to: `{"action": TOOL, "arguments": {…}}`, a list
//! of these, or `{"action": "final", "answer": …}`. For models that can be held to a schema but not trusted with
//! tools. The keys are in alphabetical order, which is the order in which a grammar makes the model write them: what
//! it does comes before how.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::calls::{self, Known};
use super::json::{object_in, values, without_thoughts};
use super::prompt::compact;
use crate::model::{AnswerSchema, Finish, Message, Reply, Request, ToolCall, ToolResult, ToolSpec};

/// How many calls may be made at once. A grammar without a limit lets a small model write for ever.
const MAX_CALLS: usize = 8;

pub(super) fn asked(request: &Request) -> Request {
    let last = last_action(request);
    Request {
        system: format!("{}\n\n{}", request.system, manual(request, last)),
        messages: conversation(request, last),
        tools: Vec::new(),
        answer: Some(AnswerSchema { name: "action".to_owned(), schema: schema(request, last) }),
        max_output_tokens: request.max_output_tokens,
    }
}

pub(super) fn answered(request: &Request, mut reply: Reply) -> Reply {
    if !reply.calls.is_empty() {
        return reply;
    }
    let last = last_action(request);
    match read(&reply.text, request, last) {
        Some(Action::Calls(calls)) => {
            reply.calls = super::called(request, calls);
            reply.text = String::new();
            reply.finish = Finish::ToolCalls;
        }
        Some(Action::Final(text)) => reply.text = text,
        None => {}
    }
    reply
}

/// The action that ends the work. A tool may bear its name; then it has another.
fn last_action(request: &Request) -> &'static str {
    let taken = request.tools.iter().any(|tool| tool.name == "final");
    if taken { "final_answer" } else { "final" }
}

fn answer_schema(request: &Request) -> Value {
    match &request.answer {
        Some(answer) => answer.schema.clone(),
        None => json!({ "type": "string" }),
    }
}

fn manual(request: &Request, last: &str) -> String {
    let mut text = String::from("Reply with one JSON value, in one of these forms.\n");
    if !request.tools.is_empty() {
        text.push_str("- To call a tool and see its result: {\"action\": TOOL, \"arguments\": {…}}\n");
        text.push_str("- To call several tools at once: [{\"action\": TOOL, \"arguments\": {…}}, …]\n");
    }
    let _ =
        writeln!(text, "- To answer, once you have what you need: {{\"action\": \"{last}\", \"answer\": …}}");
    if !request.tools.is_empty() {
        text.push_str("Never repeat a call whose result you have seen.\n");
    }
    for ToolSpec { name, description, schema } in &request.tools {
        let _ = write!(text, "\nTOOL \"{name}\": {description}\nIts arguments: {}\n", compact(schema));
    }
    let _ = write!(text, "\nThe answer: {}", compact(&answer_schema(request)));
    text
}

fn schema(request: &Request, last: &str) -> Value {
    let action = |name: &str, key: &str, value: Value| {
        json!({
            "type": "object",
            "properties": { "action": { "const": name }, key: value },
            "required": ["action", key],
            "additionalProperties": false,
        })
    };
    let calls: Vec<Value> =
        request.tools.iter().map(|tool| action(&tool.name, "arguments", for_grammar(&tool.schema))).collect();
    let answer = action(last, "answer", for_grammar(&answer_schema(request)));
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

/// Leaves out of a schema what grammars are not made for: llama.cpp refuses patterns that are not anchored and
/// `items: false`.
fn for_grammar(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            Value::Object(map.iter().filter(|(key, value)| keeps(key, value)).map(plain).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(for_grammar).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

fn keeps(key: &str, value: &Value) -> bool {
    match key {
        "$schema" => false,
        "items" => *value != Value::Bool(false),
        "pattern" => !value.is_string() || anchored(value),
        _ => true,
    }
}

fn anchored(pattern: &Value) -> bool {
    pattern.as_str().is_some_and(|pattern| pattern.starts_with('^') && pattern.ends_with('$'))
}

fn plain((key, value): (&String, &Value)) -> (String, Value) {
    let literal = matches!(key.as_str(), "const" | "enum" | "default" | "examples");
    (key.clone(), if literal { value.clone() } else { for_grammar(value) })
}

/// The conversation in envelopes. Results become messages of the user; neighbours become one message, since some chat
/// templates want the roles to take turns.
fn conversation(request: &Request, last: &str) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    for (at, message) in request.messages.iter().enumerate() {
        let text = match message {
            Message::User { text } => text.clone(),
            Message::Tool(result) => {
                let text = result_text(&request.messages, result);
                let more = matches!(request.messages.get(at + 1), Some(Message::Tool(_)));
                if more { text } else { format!("{text}\n\n{}", afterwards(last)) }
            }
            Message::Assistant { text, calls, .. } => {
                let text = assistant_text(text, calls, last);
                messages.push(Message::Assistant { text, calls: Vec::new(), keepsake: None });
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

/// What stands behind the results of a turn: without it the smallest models make the same call again.
fn afterwards(last: &str) -> String {
    format!("If this is enough, answer now with the action \"{last}\".")
}

fn result_text(messages: &[Message], result: &ToolResult) -> String {
    let calls = messages.iter().flat_map(|message| match message {
        Message::Assistant { calls, .. } => calls.as_slice(),
        Message::User { .. } | Message::Tool(_) => &[],
    });
    let name =
        calls.rev().find(|call| call.id == result.call_id).map_or("the tool", |call| call.name.as_str());
    let what = if result.is_error { "Error" } else { "Result" };
    format!("{what} of {name}:\n{}", result.text)
}

fn assistant_text(text: &str, calls: &[ToolCall], last: &str) -> String {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let one = |call: &ToolCall| json!({ "action": call.name, "arguments": value(&call.arguments) });
    match calls {
        [] => json!({ "action": last, "answer": value(text) }).to_string(),
        [call] => one(call).to_string(),
        calls => Value::from(calls.iter().map(one).collect::<Vec<_>>()).to_string(),
    }
}

enum Action {
    Calls(Vec<calls::Written>),
    Final(String),
}

/// What a model that need not have been held to the schema meant. An object without an action is the bare answer.
fn read(text: &str, request: &Request, last: &str) -> Option<Action> {
    let known = Known::without_answer(request);
    let text = without_thoughts(text);
    let found = values(text).or_else(|| values(object_in(text)?))?;
    if let Some(calls) = calls::all(&found, &known) {
        return Some(Action::Calls(calls));
    }
    match found.as_slice() {
        [Value::Object(object)] => ended(object, last).map(Action::Final),
        [Value::Array(items)] => {
            let calls: Vec<Value> = items.iter().filter(|item| item["action"] != last).cloned().collect();
            calls::all(&calls, &known).map(Action::Calls)
        }
        _ => None,
    }
}

fn ended(object: &Map<String, Value>, last: &str) -> Option<String> {
    let action = object.get("action").and_then(Value::as_str)?;
    let answer = object.get("answer").filter(|_| action == last || action == "final")?;
    Some(answer.as_str().map_or_else(|| answer.to_string(), str::to_owned))
}
