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

pub mod calls;
mod envelope;
pub mod json;

use std::borrow::Cow;

use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use serde_json::Value;

use crate::model::{Delta, FinishReason, Reply, Request, ToolCall, ToolSpec};
use crate::selection::StructuredMode;
use crate::wire::OutputSupport;
use crate::wire::schema::{strict_answer_to_original, to_strict_schema};

/// The name of the tool that takes the answer. It has two underscores, which no agent tool has.
const ANSWER_TOOL_NAME: &str = "final__answer";

/// Returns the requested mode if the model supports it, or the best supported one; [`StructuredMode::Auto`] if the answer is plain text.
pub fn choose_mode(request: &Request, requested: StructuredMode, support: OutputSupport) -> StructuredMode {
    let Some(answer) = &request.answer else { return StructuredMode::Auto };
    let has_tools = !request.tools.is_empty();
    match requested {
        StructuredMode::Auto => {
            let is_enforceable =
                support.structured && (support.grammar || to_strict_schema(&answer.schema).is_some());
            if is_enforceable && (!has_tools || support.tools_with_structured) {
                StructuredMode::Native
            } else if has_tools && support.grammar && support.structured {
                StructuredMode::Envelope
            } else {
                StructuredMode::Tool
            }
        }
        StructuredMode::Native if !support.structured => StructuredMode::Tool,
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
        StructuredMode::Envelope => Cow::Owned(envelope::rewrite_request_as_envelope(request)),
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
        StructuredMode::Envelope => envelope::convert_envelope_reply(request, reply),
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
            let object = json::find_json_object(&reply.text);
            let is_whole = object.is_some_and(|object| was_cut_after_answer(&reply.text, object));
            if reply.finish == FinishReason::Length && is_whole {
                reply.finish = FinishReason::Stop;
            }
            let text =
                mend_json_text(object.unwrap_or_else(|| json::strip_reasoning(&reply.text)).to_owned());
            reply.text = remove_optional_nulls(&answer.schema, &text).unwrap_or(text);
        }
        Some(_) | None => {
            if let Cow::Owned(text) = json::strip_leading_reasoning(&reply.text) {
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
        }
    }

    fn output_support(structured: bool, tools_with_structured: bool, grammar: bool) -> OutputSupport {
        OutputSupport { structured, tools_with_structured, grammar }
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
