//! Anthropic's Messages API. The stable prefix (tools, system prompt, the conversation so far) is marked for prompt
//! caching; the results of parallel calls are sent in one turn; signed thinking is returned unchanged in its position.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::finish::parse_finish_reason;
use super::provider_state::{MessagePart, MessagePartOrder, restore_message_parts};
use super::reply_builder::{ReplyBuilder, ToolCallFragment, parse_arguments_object};
use super::{
    EventOutcome, ModelEndpoint, StreamParser, read_number_at, read_text_at, schema, tools_sorted_by_name,
};
use crate::model::{Delta, DeltaListener, FinishReason, Image, Message, Reply, Request};

/// The version in a model's name: `claude-sonnet-4-5-20250929`, `claude-3-7-sonnet-latest`, also after a vendor prefix.
/// Names without a version are newer than all of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
struct ModelVersion(u32, u32);

impl ModelVersion {
    /// Returns `None` for models of other vendors that implement this API.
    fn from_model_name(model: &str) -> Option<Self> {
        let name = &model[model.find("claude")?..];
        let numbers = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| part.len() <= 2);
        let mut numbers = numbers.filter_map(|part| part.parse().ok());
        Some(numbers.next().map_or(Self(u32::MAX, 0), |major| Self(major, numbers.next().unwrap_or(0))))
    }
}

/// Returns `true` if a model supports a schema for its answer.
pub(super) fn supports_output_schemas(model: &str) -> bool {
    ModelVersion::from_model_name(model).is_some_and(|version| version >= ModelVersion(4, 5))
}

pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let mut body = json!({
        "max_tokens": endpoint.max_output_tokens(request).max(1),
        "messages": messages_to_json(endpoint, request),
        "stream": true,
    });
    // At Vertex AI the URL names the model, and the body the version.
    match endpoint.dialect.is_vertex {
        true => body["anthropic_version"] = json!("vertex-2023-10-16"),
        false => body["model"] = json!(endpoint.model),
    }
    let cache_control = json!({"type": "ephemeral"});
    let mut tools: Vec<Value> = tools_sorted_by_name(request)
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema}))
        .collect();
    if request.system.is_empty() {
        tools.last_mut().into_iter().for_each(|last| last["cache_control"] = cache_control.clone());
    } else {
        body["system"] = json!([{"type": "text", "text": request.system, "cache_control": cache_control}]);
    }
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools);
    } else {
        let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
        let called: Vec<Value> = previously_called_tools(request).into_iter().map(tool).collect();
        if !called.is_empty() {
            body["tools"] = Value::Array(called);
            body["tool_choice"] = json!({"type": "none"});
        }
    }
    let form = request.answer.as_ref().and_then(|answer| schema::to_strict_schema(&answer.schema));
    if let Some(schema) = form.filter(|_| supports_output_schemas(&endpoint.model)) {
        body["output_config"]["format"] = json!({"type": "json_schema", "schema": schema});
    }
    set_reasoning_fields(endpoint, &mut body);
    body
}

/// Returns the tools called earlier in a conversation. They must be declared even if it offers no tools any more: otherwise
/// the API rejects the calls.
pub(super) fn previously_called_tools(request: &Request) -> BTreeSet<&str> {
    let calls = request.messages.iter().flat_map(|message| match message {
        Message::Assistant { calls, .. } => calls.as_slice(),
        Message::User { .. } | Message::Tool(_) => &[],
    });
    calls.map(|call| call.name.as_str()).collect()
}

/// Sets thinking and sampling. Models from 4.6 on decide themselves how much they think; older ones get a token budget in
/// addition to the reply's tokens. A thinking model accepts no temperature, nor does any model from 4.7 on.
pub(super) fn set_reasoning_fields(endpoint: &ModelEndpoint, body: &mut Value) {
    let version = ModelVersion::from_model_name(&endpoint.model);
    let effort = endpoint.reasoning_effort().filter(|effort| !matches!(*effort, "none" | "off"));
    let thinks = match (effort, version) {
        (None, _) => false,
        (Some(_), Some(version)) if version < ModelVersion(3, 7) => false,
        (Some(effort), Some(version)) if version >= ModelVersion(4, 6) => {
            body["thinking"] = json!({"type": "adaptive"});
            body["output_config"]["effort"] = json!(if effort == "minimal" { "low" } else { effort });
            true
        }
        (Some(effort), Some(_) | None) => {
            let tokens = thinking_budget(effort);
            body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
            body["max_tokens"] = json!(read_number_at(body, "/max_tokens") + tokens);
            true
        }
    };
    let takes_sampling = !thinks && version.is_none_or(|version| version < ModelVersion(4, 7));
    let settings = [("temperature", endpoint.settings.temperature), ("top_p", endpoint.settings.top_p)];
    for (name, value) in settings.into_iter().filter(|_| takes_sampling) {
        value.into_iter().for_each(|value| body[name] = json!(value));
    }
}

fn thinking_budget(effort: &str) -> u64 {
    match effort {
        "minimal" | "low" => 2_048,
        "medium" => 8_192,
        "high" => 16_384,
        _ => 32_768,
    }
}

/// Converts the conversation to turns. Consecutive messages of the same role are merged, because the results of parallel
/// calls must be in one turn. The last two user turns are marked for caching: the last one for this request, the one
/// before to find the cache entry of the previous request.
fn messages_to_json(endpoint: &ModelEndpoint, request: &Request) -> Vec<Value> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in &request.messages {
        let (role, blocks) = role_and_content_blocks(endpoint, message);
        match turns.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, existing)) if *last == role => existing.extend(blocks),
            Some(_) | None => turns.push((role, blocks)),
        }
    }
    for (_, blocks) in turns.iter_mut().rev().filter(|(role, _)| *role == "user").take(2) {
        blocks.last_mut().into_iter().for_each(|last| last["cache_control"] = json!({"type": "ephemeral"}));
    }
    turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn role_and_content_blocks(endpoint: &ModelEndpoint, message: &Message) -> (&'static str, Vec<Value>) {
    match message {
        Message::User { text } => ("user", text_content_block(text).into_iter().collect()),
        Message::Assistant { text, calls, provider_state } => {
            let parts = restore_message_parts(&endpoint.full_name, text, calls, provider_state.as_ref());
            ("assistant", parts.iter().filter_map(part_to_content_block).collect())
        }
        Message::Tool(result) => {
            let mut block = json!({"type": "tool_result", "tool_use_id": result.call_id});
            let text = text_content_block(&result.text).into_iter();
            let content: Vec<Value> = text.chain(result.images.iter().map(image_content_block)).collect();
            if !content.is_empty() {
                block["content"] = Value::Array(content);
            }
            if result.is_error {
                block["is_error"] = json!(true);
            }
            ("user", vec![block])
        }
    }
}

fn part_to_content_block(part: &MessagePart<'_>) -> Option<Value> {
    match part {
        MessagePart::Opaque(item) => Some((*item).clone()),
        MessagePart::Text(text, _) => text_content_block(text),
        MessagePart::Call(call, _) => {
            let input = parse_arguments_object(call);
            Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}))
        }
    }
}

/// Returns a text block; `None` for blank text, which the API rejects.
fn text_content_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

fn image_content_block(image: &Image) -> Value {
    let (media_type, data) = (image.format.media_type(), image.to_base64());
    let source = json!({"type": "base64", "media_type": media_type, "data": data});
    match image.is_pdf() {
        true => json!({"type": "document", "source": source, "title": image.name}),
        false => json!({"type": "image", "source": source}),
    }
}

/// Parses a response.
pub(super) struct AnthropicParser {
    builder: ReplyBuilder,
    model: String,
    blocks: Vec<StreamedBlock>,
    usage: Map<String, Value>,
}

/// A content block that is being streamed.
struct StreamedBlock {
    place: u64,
    head: Value,
    text: String,
}

impl AnthropicParser {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { builder: ReplyBuilder::new(request), model, blocks: Vec::new(), usage: Map::new() }
    }

    fn start_block(&mut self, place: u64, block: &Value, listener: &dyn DeltaListener) {
        let mut text = String::new();
        match super::read_text_at(block, "/type") {
            "text" => {
                super::read_text_at(block, "/text").clone_into(&mut text);
                self.builder.push_text(&text, listener);
            }
            "tool_use" => {
                let input = block["input"].as_object().filter(|input| !input.is_empty());
                let arguments = input.map_or_else(String::new, |input| json!(input).to_string());
                let (id, name) = (super::read_text_at(block, "/id"), super::read_text_at(block, "/name"));
                self.builder.push_call_fragment(
                    &ToolCallFragment { index: Some(place), id, name, arguments: &arguments },
                    listener,
                );
            }
            _ => {}
        }
        self.blocks.push(StreamedBlock { place, head: block.clone(), text });
    }

    fn handle_block_delta(&mut self, place: u64, delta: &Value, listener: &dyn DeltaListener) {
        let Some(block) = self.blocks.iter_mut().find(|block| block.place == place) else { return };
        match super::read_text_at(delta, "/type") {
            "text_delta" => {
                block.text.push_str(super::read_text_at(delta, "/text"));
                self.builder.push_text(super::read_text_at(delta, "/text"), listener);
            }
            "thinking_delta" => {
                append_to_text_field(&mut block.head, "thinking", super::read_text_at(delta, "/thinking"));
                listener.on_delta(Delta::Reasoning(super::read_text_at(delta, "/thinking")));
            }
            "signature_delta" => {
                append_to_text_field(&mut block.head, "signature", super::read_text_at(delta, "/signature"))
            }
            "input_json_delta" => {
                let arguments = super::read_text_at(delta, "/partial_json");
                self.builder.push_call_fragment(
                    &ToolCallFragment { index: Some(place), id: "", name: "", arguments },
                    listener,
                );
            }
            _ => {}
        }
    }

    /// Records usage, which is sent at the start and at the end; later counts are totals.
    fn record_usage(&mut self, usage: &Value) {
        let reported = usage.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        reported.for_each(|(name, value)| drop(self.usage.insert(name.clone(), value.clone())));
        let all = Value::Object(self.usage.clone());
        let ours = &mut self.builder.usage;
        ours.cached_tokens = read_number_at(&all, "/cache_read_input_tokens");
        ours.cache_write_tokens = read_number_at(&all, "/cache_creation_input_tokens");
        let all_cached = ours.cached_tokens.saturating_add(ours.cache_write_tokens);
        ours.input_tokens = read_number_at(&all, "/input_tokens").saturating_add(all_cached);
        ours.output_tokens = read_number_at(&all, "/output_tokens");
        ours.reasoning_tokens = read_number_at(&all, "/output_tokens_details/thinking_tokens");
    }

    fn set_finish_reason(&mut self, reason: &str) -> Result<(), Value> {
        self.builder.finish = parse_finish_reason(&self.model, reason)?.or(self.builder.finish);
        Ok(())
    }

    fn record_part_order(&self) -> MessagePartOrder {
        let mut order = MessagePartOrder::default();
        for block in &self.blocks {
            match super::read_text_at(&block.head, "/type") {
                "text" => order.add_text(block.text.len(), None),
                "tool_use" => order.add_call(None),
                "thinking" | "redacted_thinking" => order.add_opaque_item(block.head.clone()),
                _ => {}
            }
        }
        order
    }

    /// Reads a response that was not streamed.
    fn read_whole_message(
        &mut self,
        message: &Value,
        listener: &dyn DeltaListener,
    ) -> Result<EventOutcome, Value> {
        let content = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        for (place, block) in (0..).zip(content) {
            self.start_block(place, block, listener);
        }
        self.record_usage(&message["usage"]);
        self.set_finish_reason(read_text_at(message, "/stop_reason")).map(|()| EventOutcome::Complete)
    }
}

fn append_to_text_field(block: &mut Value, name: &str, words: &str) {
    let existing = read_text_at(block, &format!("/{name}")).to_owned();
    if let Some(block) = block.as_object_mut() {
        block.insert(name.to_owned(), json!(existing + words));
    }
}

impl StreamParser for AnthropicParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        let place = read_number_at(event, "/index");
        match read_text_at(event, "/type") {
            "message_start" => self.record_usage(&event["message"]["usage"]),
            "content_block_start" => self.start_block(place, &event["content_block"], listener),
            "content_block_delta" => self.handle_block_delta(place, &event["delta"], listener),
            "message_delta" => {
                self.record_usage(&event["usage"]);
                self.set_finish_reason(read_text_at(event, "/delta/stop_reason"))?;
            }
            "message_stop" => return Ok(EventOutcome::Complete),
            "message" => return self.read_whole_message(event, listener),
            "error" => return Err(event.clone()),
            _ if event.get("error").is_some() => return Err(event.clone()),
            _ => {}
        }
        Ok(EventOutcome::Continue)
    }

    fn is_complete(&self) -> bool {
        self.builder.finish.is_some()
    }

    fn into_reply(self: Box<Self>) -> Option<Reply> {
        let order = self.record_part_order();
        let mut reply = self.builder.build()?;
        // Truncated thinking has no signature.
        let is_complete = matches!(reply.finish, FinishReason::Stop | FinishReason::ToolCalls);
        reply.provider_state =
            Some(order).filter(|_| is_complete).and_then(|order| order.into_provider_state(&self.model));
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        let cases = [
            ("claude-3-5-haiku-20241022", Some(ModelVersion(3, 5))),
            ("claude-3-7-sonnet-latest", Some(ModelVersion(3, 7))),
            ("claude-opus-4-20250514", Some(ModelVersion(4, 0))),
            ("claude-opus-4-1-20250805", Some(ModelVersion(4, 1))),
            ("anthropic/claude-sonnet-4.6", Some(ModelVersion(4, 6))),
            ("us.anthropic.claude-haiku-4-5-20251001-v1:0", Some(ModelVersion(4, 5))),
            ("claude-sonnet-5", Some(ModelVersion(5, 0))),
            ("claude-mythos-preview", Some(ModelVersion(u32::MAX, 0))),
            ("deepseek-chat", None),
        ];
        for (name, version) in cases {
            assert_eq!(ModelVersion::from_model_name(name), version, "{name}");
        }
    }
}
