//! OpenAI's Chat Completions API, as OpenAI and most other servers implement it. Other servers deviate: they only know
//! `max_tokens`, send no usage, omit ids or indices of calls, send arguments as objects, use one of three fields for the
//! reasoning or parts of the content, count the reasoning apart from the reply, or do not stream. All of that is supported.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::conversation::CallIdForm;
use super::conversation::{flat_messages, function_tool, tools_to_json};

use super::embeddings;
use super::endpoint::{Framing, ModelEndpoint, WireApi};

use super::json::{has_field, items_of, json_to_text, read_number_at, read_text_at, set_field};

use super::reply::{ReplyBuilder, read_usage};

use super::schema;
use crate::model::{FinishReason, Image, Message, Request, ToolCall};

pub(super) const API: WireApi = WireApi {
    framing: Framing::Sse,
    url: |_, base| format!("{base}/chat/completions"),
    embeddings_url: Some(embeddings::openai_url),
    key_header: None,
    call_ids: CallIdForm::Text(40),
    structured: |endpoint| (true, endpoint.is_openai_host()),
    takes_pdf: |endpoint| Some(endpoint.is_openai_host()),
    build_request_body,
    read_event,
};

/// The fields in which servers send reasoning and expect it back with calls. The first one is a list of items to be
/// appended; the others are text.
const REASONING_FIELDS: [&str; 3] = ["reasoning_details", "reasoning_content", "reasoning"];

/// The reply between results and a message of the user, where the provider demands one.
const RESULTS_READ: &str = "I have read the results.";

/// The type of the parts of the content in which Mistral sends reasoning and expects it back.
const THINKING_PART: &str = "thinking";

fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let dialect = endpoint.dialect;
    let limit = if endpoint.is_openai_host() { "max_completion_tokens" } else { "max_tokens" };
    let mut body = json!({
        "model": endpoint.model,
        "messages": messages_to_json(endpoint, request),
        "stream": true,
        limit: endpoint.max_output_tokens(request),
    });
    let options = (!dialect.rejects_stream_options).then(|| json!({"include_usage": true}));
    set_field(&mut body, "stream_options", options);
    set_field(&mut body, "tools", tools_to_json(request, function_tool));
    let format = request.answer.as_ref().map(|answer| {
        let (is_strict, schema) = match dialect.is_local {
            true => (false, schema::to_grammar_schema(&answer.schema)),
            false => schema::strict_or_original(&answer.schema),
        };
        json!({"type": "json_schema", "json_schema": {"name": answer.name, "strict": is_strict, "schema": schema}})
    });
    set_field(&mut body, "response_format", format);
    if request.first_token_probabilities {
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(endpoint.max_token_alternatives());
    }
    endpoint.set_sampling(&mut body, "top_p");
    let effort = endpoint.reasoning_effort();
    let is_off = effort.is_some() && endpoint.wanted_effort().is_none();
    let switch = effort.filter(|_| dialect.has_thinking_switch);
    let switch = switch.map(|_| json!({"type": if is_off { "disabled" } else { "enabled" }}));
    set_field(&mut body, "thinking", switch);
    set_field(&mut body, "reasoning_effort", effort.filter(|_| !(dialect.has_thinking_switch && is_off)));
    body
}

fn messages_to_json(endpoint: &ModelEndpoint, request: &Request) -> Vec<Value> {
    let messages = flat_messages(request, |message| message_to_json(endpoint, message), message_with_images);
    match endpoint.dialect.is_local || endpoint.is_mistral() {
        true => alternate_roles(messages, endpoint.is_mistral()),
        false => messages,
    }
}

/// Joins consecutive messages of the user, which the chat templates of many local models refuse. Those of Mistral's models also
/// refuse a message of the user after a result.
fn alternate_roles(messages: Vec<Value>, is_mistral: bool) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::new();
    for mut message in messages {
        let is_user = message["role"] == "user";
        match joined.last_mut() {
            Some(last) if is_user && last["role"] == "user" => {
                last["content"] = join_contents(last["content"].take(), message["content"].take());
                continue;
            }
            Some(last) if is_user && is_mistral && last["role"] == "tool" => {
                joined.push(json!({"role": "assistant", "content": RESULTS_READ}));
            }
            Some(_) | None => {}
        }
        joined.push(message);
    }
    joined
}

/// Joins two contents: texts to a text, and anything else to a list of parts.
fn join_contents(one: Value, other: Value) -> Value {
    let parts = |content| match content {
        Value::Array(parts) => parts,
        text @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            vec![json!({"type": "text", "text": text})]
        }
    };
    match (one, other) {
        (Value::String(one), Value::String(other)) => Value::String(format!("{one}\n\n{other}")),
        (one, other) => [one, other].into_iter().flat_map(parts).collect(),
    }
}

fn message_with_images(text: String, images: &[&Image]) -> Value {
    let part = |image: &&Image| match image.is_pdf() {
        true => {
            json!({"type": "file", "file": {"filename": image.file_name(), "file_data": image.to_data_url()}})
        }
        false => json!({"type": "image_url", "image_url": {"url": image.to_data_url()}}),
    };
    let text = json!({"type": "text", "text": text});
    let parts: Vec<Value> = [text].into_iter().chain(images.iter().map(part)).collect();
    json!({"role": "user", "content": parts})
}

fn message_to_json(endpoint: &ModelEndpoint, message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls, provider_state } => {
            let content = if text.trim().is_empty() { Value::Null } else { json!(text) };
            let mut message = json!({"role": "assistant", "content": content});
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().map(tool_call_to_json).collect();
            }
            let state = provider_state.as_ref().filter(|state| state.model == endpoint.full_name);
            for (name, value) in state.and_then(|state| state.items.as_object()).into_iter().flatten() {
                match name == THINKING_PART {
                    true => message["content"] = content_with_thinking(value, text),
                    false => message[name.as_str()] = value.clone(),
                }
            }
            message
        }
        Message::Tool(result) => {
            json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text})
        }
    }
}

fn content_with_thinking(thinking: &Value, text: &str) -> Value {
    let part = |text: &Value| json!({"type": "text", "text": text});
    let thinking = json!({"type": THINKING_PART, THINKING_PART: [part(thinking)]});
    let text = (!text.is_empty()).then(|| part(&json!(text)));
    [thinking].into_iter().chain(text).collect()
}

fn tool_call_to_json(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

fn read_event(event: &Value, reply: &mut ReplyBuilder<'_>) -> Result<(), Value> {
    let choice = &event["choices"][0];
    if [event, choice].into_iter().any(|part| has_field(part, "error")) {
        return Err(if event.get("error").is_some() { event.clone() } else { choice.clone() });
    }
    if let Some(delta) = ["delta", "message"].iter().map(|part| &choice[*part]).find(|part| part.is_object())
    {
        read_delta(delta, &choice["logprobs"]["content"], reply);
    }
    if reply.finish != Some(FinishReason::ContentFilter) {
        reply.set_finish(read_text_at(choice, "/finish_reason"))?;
    }
    // Groq has its own field for streams.
    let usages = [&event["usage"], &event["x_groq"]["usage"]];
    if let Some(usage) = usages.into_iter().find(|usage| usage.is_object()) {
        record_usage(usage, reply);
    }
    Ok(())
}

fn read_delta(delta: &Value, tokens: &Value, reply: &mut ReplyBuilder<'_>) {
    read_reasoning(delta, reply);
    let text = join_text_parts(&delta["content"]);
    reply.read_first_token(&text, tokens);
    reply.push_text(&text);
    if let Some(refusal) = delta["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
        reply.push_text(refusal);
        reply.finish = Some(FinishReason::ContentFilter);
    }
    // The older form of a call.
    if let Some(function) = delta.get("function_call").filter(|function| function.is_object()) {
        let arguments = json_to_text(&function["arguments"]);
        reply.push_call(Some(0), "", read_text_at(function, "/name"), &arguments);
    }
    for call in items_of(&delta["tool_calls"]) {
        // Some servers send the function's fields without the enclosing object.
        let function = call.get("function").unwrap_or(call);
        let (id, name) = (read_text_at(call, "/id"), read_text_at(function, "/name"));
        reply.push_call(call["index"].as_u64(), id, name, &json_to_text(&function["arguments"]));
    }
}

fn read_reasoning(delta: &Value, reply: &mut ReplyBuilder<'_>) {
    let [list, texts @ ..] = REASONING_FIELDS;
    let details = items_of(&delta[list]);
    if !details.is_empty() {
        reply.details.get_or_insert((list, Vec::new())).1.extend_from_slice(details);
    }
    let (name, words) = texts
        .iter()
        .find_map(|name| Some((*name, Cow::from(delta[*name].as_str()?))))
        .unwrap_or_else(|| (THINKING_PART, join_thinking_parts(&delta["content"]).into()));
    if !words.is_empty() {
        reply.reasoning.get_or_insert((name, String::new())).1.push_str(&words);
        reply.push_reasoning(&words);
    }
}

fn join_text_parts(content: &Value) -> String {
    match content.as_array() {
        Some(parts) => parts.iter().map(|part| read_text_at(part, "/text")).collect(),
        None => read_text_at(content, "").to_owned(),
    }
}

fn join_thinking_parts(content: &Value) -> String {
    let thinking = items_of(content).iter().filter(|part| part["type"] == THINKING_PART);
    thinking.map(|part| join_text_parts(&part[THINKING_PART])).collect()
}

fn record_usage(usage: &Value, reply: &mut ReplyBuilder<'_>) {
    let details =
        ["cached_tokens", "cache_write_tokens"].map(|name| format!("/prompt_tokens_details/{name}"));
    let parts = [&*details[0], &details[1], "/completion_tokens_details/reasoning_tokens"];
    let ours = &mut reply.usage;
    *ours = read_usage(usage, &["/prompt_tokens"], &["/completion_tokens"], parts);
    ours.cached_tokens = ours.cached_tokens.max(read_number_at(usage, "/prompt_cache_hit_tokens"));
    // xAI counts the reasoning apart from the reply.
    let with_reasoning = ours.output_tokens.saturating_add(ours.reasoning_tokens);
    if read_number_at(usage, "/total_tokens") == ours.input_tokens.saturating_add(with_reasoning) {
        ours.output_tokens = with_reasoning;
    }
    ours.cost_micros = usage["cost"].as_f64().map_or(0, dollars_to_micros);
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped; no reply costs 2^64 micros"
)]
fn dollars_to_micros(dollars: f64) -> u64 {
    (dollars * 1e6).round().max(0.0) as u64
}
