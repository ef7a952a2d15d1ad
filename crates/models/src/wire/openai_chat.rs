//! OpenAI's Chat Completions API, as OpenAI and most other servers implement it. Other servers deviate: they only know
//! `max_tokens`, send no usage, omit ids or indices of calls, send arguments as objects, use one of three fields for the
//! reasoning, or do not stream. All of that is supported.

use serde_json::{Map, Value, json};

use super::reply_builder::{ReplyBuilder, ToolCallFragment, json_to_text, parse_arguments_object};
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

/// Returns the request body.
pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let settings = &endpoint.settings;
    let limit = if endpoint.is_openai_host() { "max_completion_tokens" } else { "max_tokens" };
    let mut body = json!({
        "model": endpoint.model,
        "messages": messages_to_json(endpoint, request),
        "stream": true,
        "stream_options": {"include_usage": true},
        limit: endpoint.max_output_tokens(request),
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("tools", tools_to_json(request));
    set("response_format", request.answer.as_ref().map(|answer| {
        let strict = if endpoint.is_local { None } else { schema::to_strict_schema(&answer.schema) };
        let own = || if endpoint.is_local { schema::to_grammar_schema(&answer.schema) } else { answer.schema.clone() };
        let (is_strict, schema) = (strict.is_some(), strict.unwrap_or_else(own));
        json!({"type": "json_schema", "json_schema": {"name": answer.name, "strict": is_strict, "schema": schema}})
    }));
    set("temperature", settings.temperature.map(Value::from));
    set("top_p", settings.top_p.map(Value::from));
    set("reasoning_effort", endpoint.reasoning_effort().map(Value::from));
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
    system
        .into_iter()
        .chain((0..request.messages.len()).flat_map(|at| messages_at(endpoint, &request.messages, at)))
        .collect()
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
            let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
            let mut message = json!({"role": "assistant", "content": content});
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().map(tool_call_to_json).collect();
            }
            let state =
                provider_state.as_ref().filter(|provider_state| provider_state.model == endpoint.full_name);
            for (name, value) in
                state.and_then(|provider_state| provider_state.items.as_object()).into_iter().flatten()
            {
                message[name.as_str()] = value.clone();
            }
            message
        }
        Message::Tool(result) => {
            json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text})
        }
    }
}

/// Converts a call. Arguments other than an object are wrapped, because chat templates of local models fail on them.
fn tool_call_to_json(call: &ToolCall) -> Value {
    let is_object = serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok();
    let arguments = if is_object { call.arguments.clone() } else { parse_arguments_object(call).to_string() };
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
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
        let reasoning_field =
            REASONING_FIELDS[1..].iter().find_map(|name| Some((*name, delta[*name].as_str()?)));
        if let Some((name, words)) = reasoning_field.filter(|(_, words)| !words.is_empty()) {
            self.reasoning.get_or_insert((name, String::new())).1.push_str(words);
            listener.on_delta(Delta::Reasoning(words));
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

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped; no reply costs 2^64 micros"
)]
fn dollars_to_micros(dollars: f64) -> u64 {
    (dollars * 1e6).round().max(0.0) as u64
}

fn parse_finish_reason(reason: &str) -> Option<FinishReason> {
    match reason {
        "" | "null" => None,
        "length" | "max_tokens" | "model_length" => Some(FinishReason::Length),
        "content_filter" | "safety" => Some(FinishReason::ContentFilter),
        "tool_calls" | "function_call" => Some(FinishReason::ToolCalls),
        _ => Some(FinishReason::Stop),
    }
}

impl StreamParser for ChatCompletionsParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        let choice = &event["choices"][0];
        let has_failed =
            [event, choice].into_iter().any(|part| part.get("error").is_some_and(|error| !error.is_null()));
        if has_failed || choice["finish_reason"] == "error" {
            return Err(if event.get("error").is_some() { event.clone() } else { choice.clone() });
        }
        for part in ["delta", "message"] {
            if choice[part].is_object() {
                self.handle_delta(&choice[part], listener);
                break;
            }
        }
        if self.builder.finish != Some(FinishReason::ContentFilter) {
            self.builder.finish =
                parse_finish_reason(read_text_at(choice, "/finish_reason")).or(self.builder.finish);
        }
        if event["usage"].is_object() {
            self.record_usage(&event["usage"]);
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
