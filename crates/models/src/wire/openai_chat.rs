//! OpenAI's Chat Completions API, as OpenAI and most other servers implement it. Other servers deviate: they only know
//! `max_tokens`, send no usage, omit ids or indices of calls, send arguments as objects, use one of three fields for the
//! reasoning or parts of the content, count the reasoning apart from the reply, or do not stream. All of that is supported.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::finish::parse_finish_reason;
use super::reply_builder::{ReplyBuilder, ToolCallFragment, json_to_text};
use super::{
    EventOutcome, ModelEndpoint, StreamParser, images_after_results, introduce_images, read_number_at,
    read_text_at, schema, tools_sorted_by_name,
};
use crate::model::{
    Delta, DeltaListener, FinishReason, Image, Message, ProviderState, Reply, Request, ToolCall,
};

/// The fields in which servers send reasoning and expect it back with calls. The first one is a list of items to be
/// appended; the others are text.
const REASONING_FIELDS: [&str; 3] = ["reasoning_details", "reasoning_content", "reasoning"];

/// The reply between results and a message of the user, where the provider demands one.
const RESULTS_READ: &str = "I have read the results.";

/// The type of the parts of the content in which Mistral sends reasoning and expects it back.
const THINKING_PART: &str = "thinking";

pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let settings = &endpoint.settings;
    let limit = if endpoint.is_openai_host() { "max_completion_tokens" } else { "max_tokens" };
    let mut body = json!({
        "model": endpoint.model,
        "messages": messages_to_json(endpoint, request),
        "stream": true,
        limit: endpoint.max_output_tokens(request),
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    let takes_options = !endpoint.dialect.rejects_stream_options;
    set("stream_options", takes_options.then(|| json!({"include_usage": true})));
    set("tools", tools_to_json(request));
    set("response_format", request.answer.as_ref().map(|answer| {
        let strict = if endpoint.dialect.is_local { None } else { schema::to_strict_schema(&answer.schema) };
        let own = || if endpoint.dialect.is_local { schema::to_grammar_schema(&answer.schema) } else { answer.schema.clone() };
        let (is_strict, schema) = (strict.is_some(), strict.unwrap_or_else(own));
        json!({"type": "json_schema", "json_schema": {"name": answer.name, "strict": is_strict, "schema": schema}})
    }));
    set("temperature", settings.temperature.map(Value::from));
    set("top_p", settings.top_p.map(Value::from));
    let effort = endpoint.reasoning_effort();
    let is_off = effort.is_some_and(|effort| matches!(effort, "none" | "off"));
    let has_switch = endpoint.dialect.has_thinking_switch;
    let switch = effort.filter(|_| has_switch).map(|_| if is_off { "disabled" } else { "enabled" });
    set("thinking", switch.map(|switch| json!({"type": switch})));
    set("reasoning_effort", effort.filter(|_| !(has_switch && is_off)).map(Value::from));
    body
}

fn tools_to_json(request: &Request) -> Option<Value> {
    let tool = |tool: &crate::model::ToolSpec| {
        json!({"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.schema,
        }})
    };
    (!request.tools.is_empty()).then(|| tools_sorted_by_name(request).into_iter().map(tool).collect())
}

fn messages_to_json(endpoint: &ModelEndpoint, request: &Request) -> Vec<Value> {
    let system =
        Some(json!({"role": "system", "content": request.system})).filter(|_| !request.system.is_empty());
    let messages = (0..request.messages.len()).flat_map(|at| messages_at(endpoint, &request.messages, at));
    let messages = system.into_iter().chain(messages);
    match endpoint.dialect.is_local || endpoint.is_mistral() {
        true => alternate_roles(messages, endpoint.is_mistral()),
        false => messages.collect(),
    }
}

/// Joins consecutive messages of the user, which the chat templates of many local models refuse. Those of Mistral's models also
/// refuse a message of the user after a result.
fn alternate_roles(messages: impl Iterator<Item = Value>, is_mistral: bool) -> Vec<Value> {
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
    match (one, other) {
        (Value::String(one), Value::String(other)) => Value::String(format!("{one}\n\n{other}")),
        (one, other) => [one, other].into_iter().flat_map(content_parts).collect(),
    }
}

fn content_parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        text @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            vec![json!({"type": "text", "text": text})]
        }
    }
}

/// The message at a position, and one with the images of tool results after the last of them: a result can only have text.
fn messages_at(endpoint: &ModelEndpoint, messages: &[Message], at: usize) -> Vec<Value> {
    let message = message_to_json(endpoint, &messages[at]);
    let images = match &messages[at] {
        Message::Tool(_) => images_after_results(messages, at),
        Message::User { .. } | Message::Assistant { .. } => Vec::new(),
    };
    if images.is_empty() {
        return vec![message];
    }
    let text = json!({"type": "text", "text": introduce_images(&images)});
    let part = |image: &&Image| match image.is_pdf() {
        true => {
            json!({"type": "file", "file": {"filename": image.file_name(), "file_data": image.to_data_url()}})
        }
        false => json!({"type": "image_url", "image_url": {"url": image.to_data_url()}}),
    };
    let parts: Vec<Value> = [text].into_iter().chain(images.iter().map(part)).collect();
    vec![message, json!({"role": "user", "content": parts})]
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
            let state =
                provider_state.as_ref().filter(|provider_state| provider_state.model == endpoint.full_name);
            for (name, value) in
                state.and_then(|provider_state| provider_state.items.as_object()).into_iter().flatten()
            {
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

/// Parses a response.
pub(super) struct ChatCompletionsParser {
    builder: ReplyBuilder,
    model: String,
    details: Vec<Value>,
    reasoning: Option<(&'static str, String)>,
}

impl ChatCompletionsParser {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { builder: ReplyBuilder::new(request), model, details: Vec::new(), reasoning: None }
    }

    fn handle_delta(&mut self, delta: &Value, listener: &dyn DeltaListener) {
        self.handle_reasoning_delta(delta, listener);
        self.builder.push_text(&join_text_parts(&delta["content"]), listener);
        if let Some(refusal) = delta["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
            self.builder.push_text(refusal, listener);
            self.builder.finish = Some(FinishReason::ContentFilter);
        }
        let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            self.handle_tool_call_delta(call, listener);
        }
    }

    fn handle_tool_call_delta(&mut self, call: &Value, listener: &dyn DeltaListener) {
        // Some servers send the function's fields without the enclosing object.
        let function = call.get("function").unwrap_or(call);
        let arguments = json_to_text(&function["arguments"]);
        let (id, name) = (read_text_at(call, "/id"), read_text_at(function, "/name"));
        self.builder.push_call_fragment(
            &ToolCallFragment { index: call["index"].as_u64(), id, name, arguments: &arguments },
            listener,
        );
    }

    fn handle_reasoning_delta(&mut self, delta: &Value, listener: &dyn DeltaListener) {
        let details = delta[REASONING_FIELDS[0]].as_array().map_or(&[][..], Vec::as_slice);
        self.details.extend_from_slice(details);
        let field = |name: &&'static str| Some((*name, Cow::from(delta[*name].as_str()?)));
        let reasoning = REASONING_FIELDS[1..].iter().find_map(field);
        let reasoning = reasoning.unwrap_or_else(|| (THINKING_PART, join_thinking_parts(&delta["content"])));
        let (name, words) = reasoning;
        if !words.is_empty() {
            self.reasoning.get_or_insert((name, String::new())).1.push_str(&words);
            listener.on_delta(Delta::Reasoning(&words));
        }
    }

    fn record_usage(&mut self, usage: &Value) {
        let ours = &mut self.builder.usage;
        ours.input_tokens = read_number_at(usage, "/prompt_tokens");
        ours.output_tokens = read_number_at(usage, "/completion_tokens");
        let cached = read_number_at(usage, "/prompt_tokens_details/cached_tokens");
        ours.cached_tokens = cached.max(read_number_at(usage, "/prompt_cache_hit_tokens"));
        ours.cache_write_tokens = read_number_at(usage, "/prompt_tokens_details/cache_write_tokens");
        ours.reasoning_tokens = read_number_at(usage, "/completion_tokens_details/reasoning_tokens");
        // xAI counts the reasoning apart from the reply.
        let with_reasoning = ours.output_tokens.saturating_add(ours.reasoning_tokens);
        if read_number_at(usage, "/total_tokens") == ours.input_tokens.saturating_add(with_reasoning) {
            ours.output_tokens = with_reasoning;
        }
        ours.cost_micros = usage["cost"].as_f64().map_or(0, dollars_to_micros);
    }

    fn take_provider_state(&mut self, reply: &Reply) -> Option<ProviderState> {
        let items = match self.reasoning.take() {
            _ if !self.details.is_empty() => json!({REASONING_FIELDS[0]: std::mem::take(&mut self.details)}),
            Some((name, words)) if !reply.calls.is_empty() => json!({name: words}),
            Some(_) | None => return None,
        };
        Some(ProviderState { model: self.model.clone(), items })
    }
}

/// Returns text, or the joined texts of a list of parts.
fn join_text_parts(content: &Value) -> String {
    match content.as_array() {
        Some(parts) => parts.iter().map(|part| read_text_at(part, "/text")).collect(),
        None => read_text_at(content, "").to_owned(),
    }
}

fn join_thinking_parts(content: &Value) -> Cow<'static, str> {
    let parts = content.as_array().map_or(&[][..], Vec::as_slice);
    let thinking = parts.iter().filter(|part| part["type"] == THINKING_PART);
    thinking.map(|part| join_text_parts(&part[THINKING_PART])).collect::<String>().into()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped; no reply costs 2^64 micros"
)]
fn dollars_to_micros(dollars: f64) -> u64 {
    (dollars * 1e6).round().max(0.0) as u64
}

impl StreamParser for ChatCompletionsParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        let choice = &event["choices"][0];
        let has_failed =
            [event, choice].into_iter().any(|part| part.get("error").is_some_and(|error| !error.is_null()));
        if has_failed {
            return Err(if event.get("error").is_some() { event.clone() } else { choice.clone() });
        }
        for part in ["delta", "message"] {
            if choice[part].is_object() {
                self.handle_delta(&choice[part], listener);
                break;
            }
        }
        if self.builder.finish != Some(FinishReason::ContentFilter) {
            let finish = parse_finish_reason(&self.model, read_text_at(choice, "/finish_reason"))?;
            self.builder.finish = finish.or(self.builder.finish);
        }
        // Groq has its own field for streams.
        let usages = [&event["usage"], &event["x_groq"]["usage"]];
        if let Some(usage) = usages.into_iter().find(|usage| usage.is_object()) {
            self.record_usage(usage);
        }
        Ok(EventOutcome::Continue)
    }

    fn on_done_marker(&mut self) {
        // Some servers send the end marker but no finish reason.
        self.builder.finish.get_or_insert(FinishReason::Stop);
    }

    fn is_complete(&self) -> bool {
        self.builder.finish.is_some()
    }

    fn into_reply(mut self: Box<Self>) -> Option<Reply> {
        let mut reply = std::mem::take(&mut self.builder).build()?;
        reply.provider_state = self.take_provider_state(&reply);
        Some(reply)
    }
}
