//! Structured output and tool calls for any model. Depending on what the model supports, a request is rewritten before it
//! is sent and its reply is converted back. Pure functions on requests and replies. Nothing is retried here; the caller
//! validates the answer against its schema.
//!
//! ```text
//! request ─▶ choose the output mode ─▶ rewritten request ─▶ wire
//! reply   ◀─ tool calls and answer   ◀─────────────────────── wire
//! ```
//! | output mode | tool calls | answer |
//! |---|---|---|
//! | [`StructuredMode::Auto`] | the provider's | plain text |
//! | [`StructuredMode::Native`] | the provider's | the provider's JSON schema |
//! | [`StructuredMode::Tool`] | the provider's | the arguments of an additional tool |
//! | [`StructuredMode::Envelope`] | `{"action": TOOL, "arguments": …}` | `{"action": "final", "answer": …}`, both with a JSON schema if supported |
//! | [`StructuredMode::Prompt`] | the provider's | requested by an instruction in the prompt |
//!
//! Earlier parts of a rewritten request never depend on the newest messages, so that the provider can cache the prefix.
//!
//! The envelope: tool calls or the answer as one JSON value that follows a schema: `{"action": TOOL, "arguments": {…}}`,
//! a list of these, or `{"action": "final", "answer": …}`. For models that support a schema but whose tool calls are
//! unreliable. The keys are in alphabetical order, which is the order in which a grammar makes the model generate them:
//! it decides on the action first.

pub mod calls;

use std::borrow::Cow;
use std::fmt::Write;

use calls::AvailableTools;
use calls::{find_json_object, parse_json_values, strip_reasoning};
use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use serde_json::{Map, Value, json};

use crate::model::{
    AnswerSchema, Delta, FinishReason, Message, Reply, Request, ToolCall, ToolResult, ToolSpec,
};

use crate::selection::StructuredMode;
use crate::wire::schema::{strict_answer_to_original, to_grammar_schema, to_strict_schema};

use crate::wire::{CallIdForm, OutputSupport, normalize_conversation, replace_unsent_images};

/// The name of the tool that takes the answer. It has two underscores, which no agent tool has.
const ANSWER_TOOL_NAME: &str = "final__answer";

/// Returns the requested mode if the model supports it, or the best supported one; [`StructuredMode::Auto`] if the answer is plain text.
pub fn choose_mode(request: &Request, requested: StructuredMode, support: OutputSupport) -> StructuredMode {
    let has_tools = !request.tools.is_empty();
    if has_tools && !support.tools {
        return StructuredMode::Envelope;
    }
    let Some(answer) = &request.answer else { return StructuredMode::Auto };
    let requested = if requested == StructuredMode::Native && !support.structured {
        StructuredMode::Tool
    } else {
        requested
    };
    let requested =
        if requested == StructuredMode::Tool && !support.tools { StructuredMode::Auto } else { requested };
    match requested {
        StructuredMode::Auto => {
            let is_enforceable =
                support.structured && (support.grammar || to_strict_schema(&answer.schema).is_some());
            if is_enforceable && (!has_tools || support.tools_with_structured) {
                StructuredMode::Native
            } else if has_tools && support.grammar && support.structured {
                StructuredMode::Envelope
            } else if support.tools {
                StructuredMode::Tool
            } else {
                StructuredMode::Prompt
            }
        }
        mode @ (StructuredMode::Native
        | StructuredMode::Tool
        | StructuredMode::Envelope
        | StructuredMode::Prompt) => mode,
    }
}

pub fn rewrite_request_for_mode(mode: StructuredMode, request: &Request) -> Cow<'_, Request> {
    match mode {
        StructuredMode::Auto | StructuredMode::Native => Cow::Borrowed(request),
        StructuredMode::Tool => Cow::Owned(add_answer_tool(request)),
        StructuredMode::Envelope => Cow::Owned(rewrite_request_as_envelope(request)),
        StructuredMode::Prompt => Cow::Owned(add_schema_to_prompt(request)),
    }
}

pub fn convert_reply_for_mode(mode: StructuredMode, request: &Request, reply: Reply) -> Reply {
    let reply = match mode {
        StructuredMode::Auto | StructuredMode::Native | StructuredMode::Prompt => {
            extract_text_calls(request, reply)
        }
        StructuredMode::Tool => {
            convert_answer_tool_call(extract_text_calls(&add_answer_tool(request), reply))
        }
        StructuredMode::Envelope => convert_envelope_reply(request, reply),
    };
    normalize_answer_text(request, reply)
}

/// Finds tool calls that a small model wrote as text. Only text that names an offered tool counts.
fn extract_text_calls(request: &Request, mut reply: Reply) -> Reply {
    if !reply.calls.is_empty() || request.tools.is_empty() {
        return reply;
    }
    if let Some((prose, calls)) =
        calls::find_calls_in_text(&reply.text, &calls::AvailableTools::from_request(request))
    {
        reply.finish = finish_of_text_calls(reply.finish, &reply.text);
        reply.calls = assign_call_ids(request, calls);
        reply.text = prose;
    }
    reply
}

/// The finish reason of a reply whose text is calls. If the reply was cut off after the last of them, it is complete.
fn finish_of_text_calls(finish: FinishReason, text: &str) -> FinishReason {
    match finish {
        FinishReason::Length if text.ends_with(['}', ']']) => FinishReason::Length,
        FinishReason::ContentFilter => FinishReason::ContentFilter,
        FinishReason::Length | FinishReason::Stop | FinishReason::ToolCalls => FinishReason::ToolCalls,
    }
}

/// Returns `true` if a reply that was cut off has its whole answer: the cut was in the white space, the closing mark or the
/// remark after it. An answer that ends with the reply may have been closed by the server.
fn was_cut_after_answer(text: &str, answer: &str) -> bool {
    let rest = text.rsplit_once(answer).map_or("", |(_, rest)| rest);
    !rest.is_empty() && !rest.contains(['{', '}', '[', ']'])
}

/// Gives ids to calls. An id is derived from the call's position in the conversation, so that replaying the conversation
/// yields the same ids.
fn assign_call_ids(request: &Request, mut calls: Vec<ToolCall>) -> Vec<ToolCall> {
    let before = request.messages.iter().map(|message| message.calls().len()).sum::<usize>();
    calls.iter_mut().zip(before + 1..).for_each(|(call, at)| call.id = format!("call_{at}"));
    calls
}

/// Removes text around an answer, halves of characters in it, reasoning tags, and the nulls that stand for omitted optional properties.
fn normalize_answer_text(request: &Request, mut reply: Reply) -> Reply {
    for call in &mut reply.calls {
        let tool = request.tools.iter().find(|tool| tool.name == call.name);
        if let Some(plain) = tool.and_then(|tool| remove_optional_nulls(&tool.schema, &call.arguments)) {
            call.arguments = plain;
        }
    }
    match &request.answer {
        Some(answer) if reply.calls.is_empty() => {
            let object = calls::find_json_object(&reply.text);
            let is_whole = object.is_some_and(|object| was_cut_after_answer(&reply.text, object));
            if reply.finish == FinishReason::Length && is_whole {
                reply.finish = FinishReason::Stop;
            }
            let text =
                mend_json_text(object.unwrap_or_else(|| calls::strip_reasoning(&reply.text)).to_owned());
            reply.text = remove_optional_nulls(&answer.schema, &text).unwrap_or(text);
        }
        Some(_) | None => {
            if let Cow::Owned(text) = calls::strip_leading_reasoning(&reply.text) {
                reply.text = text;
            }
        }
    }
    reply
}

fn remove_optional_nulls(schema: &Value, text: &str) -> Option<String> {
    if !text.contains("null") {
        return None;
    }
    let value: Value = parse_foreign_json(text).ok()?;
    let plain = strict_answer_to_original(schema, value.clone());
    (plain != value).then(|| plain.to_string())
}

/// Returns `true` for the deltas that callers do not see: the text of an envelope, and the tool call that is the answer.
pub(crate) fn is_hidden(mode: StructuredMode, delta: Delta<'_>) -> bool {
    match delta {
        Delta::Text(_) => mode == StructuredMode::Envelope,
        Delta::Call(name) => mode == StructuredMode::Tool && name == ANSWER_TOOL_NAME,
        Delta::Reasoning(_)
        | Delta::Restart
        | Delta::Waiting(_)
        | Delta::Sending
        | Delta::Sent(_)
        | Delta::Hidden => false,
    }
}

fn add_answer_tool(request: &Request) -> Request {
    let mut rewritten = request.clone();
    if let Some(answer) = rewritten.answer.take() {
        rewritten.system = format!(
            "{}\n\nWhen you are done, call `{ANSWER_TOOL_NAME}` once with your whole answer. Do not write the answer as text.",
            rewritten.system
        );
        rewritten.tools.push(ToolSpec {
            name: ANSWER_TOOL_NAME.to_owned(),
            description: format!("Submit your final answer ({}). This ends the task.", answer.name).into(),
            schema: answer.schema.into(),
        });
    }
    rewritten
}

/// Extracts the answer. An answer next to other calls does not count: it was given before their results. The provider
/// state is dropped because it refers to a tool call that the conversation does not contain.
fn convert_answer_tool_call(mut reply: Reply) -> Reply {
    let (mut answers, calls): (Vec<ToolCall>, Vec<ToolCall>) =
        std::mem::take(&mut reply.calls).into_iter().partition(|call| call.name == ANSWER_TOOL_NAME);
    reply.calls = calls;
    if answers.is_empty() {
        return reply;
    }
    reply.provider_state = None;
    if reply.calls.is_empty() {
        reply.text = answers.swap_remove(0).arguments;
        reply.finish =
            if reply.finish == FinishReason::ToolCalls { FinishReason::Stop } else { reply.finish };
    }
    reply
}

fn add_schema_to_prompt(request: &Request) -> Request {
    let mut rewritten = request.clone();
    if let Some(answer) = rewritten.answer.take() {
        rewritten.system = format!(
            "{}\n\nWhen you are done, answer with one JSON object and nothing else: no text around it, no code \
             fence. It must match this JSON Schema:\n{}",
            rewritten.system, answer.schema
        );
    }
    rewritten
}

/// Maximum number of parallel calls. Without a limit in the grammar, a small model may generate calls endlessly.
const MAX_CALLS: usize = 8;
/// The reason for which images are left out: all messages are rewritten as text.
const NOT_SHOWN: &str = "it can't be shown together with tools and this form of answer";
/// The maximum length of an id of a call, which an envelope does not show.
const MAX_ID: usize = 64;

fn rewrite_request_as_envelope(request: &Request) -> Request {
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
        first_token_probabilities: request.first_token_probabilities,
        is_least: request.is_least,
        embeddings: request.embeddings,
    }
}

fn convert_envelope_reply(request: &Request, mut reply: Reply) -> Reply {
    if !reply.calls.is_empty() {
        return reply;
    }
    let final_action = final_action_name(request);
    match parse_action(&reply.text, request, final_action) {
        Some(ChosenAction::Calls(calls)) => {
            reply.finish = finish_of_text_calls(reply.finish, &reply.text);
            reply.calls = assign_call_ids(request, calls);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{AnswerSchema, ToolSpec};

    fn build_request(tools: bool, answer: Option<serde_json::Value>) -> Request {
        let tool = || ToolSpec {
            name: "t".into(),
            description: "".into(),
            schema: json!({"type": "object"}).into(),
        };
        Request {
            system: String::new(),
            messages: Vec::new(),
            tools: tools.then(tool).into_iter().collect(),
            answer: answer.map(|schema| AnswerSchema { name: "a".into(), schema }),
            max_output_tokens: 1,
            ..Request::default()
        }
    }

    fn output_support(structured: bool, tools_with_structured: bool, grammar: bool) -> OutputSupport {
        OutputSupport { tools: true, structured, tools_with_structured, grammar }
    }

    #[test]
    fn the_best_supported_mode_is_chosen() {
        let closed = || Some(json!({"type": "object", "properties": {"x": {"type": "string"}}}));
        let open = || Some(json!({"type": "object", "additionalProperties": {"type": "string"}}));
        let (hosted, both, local) = (
            output_support(true, false, false),
            output_support(true, true, false),
            output_support(true, false, true),
        );
        let nothing = output_support(false, false, false);
        let auto = StructuredMode::Auto;
        use StructuredMode::{Envelope, Native, Prompt, Tool};
        let cases = [
            ("text", build_request(false, None), auto, hosted, auto),
            ("text with tools", build_request(true, None), auto, local, auto),
            ("answer", build_request(false, closed()), auto, hosted, Native),
            ("answer that can't be strict", build_request(false, open()), auto, hosted, Tool),
            ("the same, by grammar", build_request(false, open()), auto, local, Native),
            ("both, in one request", build_request(true, closed()), auto, both, Native),
            ("both, not in one request", build_request(true, closed()), auto, hosted, Tool),
            ("both, not strict", build_request(true, open()), auto, both, Tool),
            ("both, small model", build_request(true, closed()), auto, local, Envelope),
            ("answer, no schemas", build_request(false, closed()), auto, nothing, Tool),
            ("both, no schemas", build_request(true, closed()), auto, nothing, Tool),
            ("requested native", build_request(true, closed()), Native, local, Native),
            ("wanted native, has none", build_request(false, closed()), Native, nothing, Tool),
            ("requested tool", build_request(false, closed()), Tool, local, Tool),
            ("wanted envelope", build_request(false, closed()), Envelope, both, Envelope),
            ("requested prompt", build_request(true, closed()), Prompt, both, Prompt),
            ("requested prompt, no answer", build_request(true, None), Prompt, both, auto),
        ];
        for (case, request, requested, support, mode) in cases {
            assert_eq!(choose_mode(&request, requested, support), mode, "{case}");
        }
    }
}
