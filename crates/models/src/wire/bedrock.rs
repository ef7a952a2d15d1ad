//! Amazon Bedrock's Converse API, which is the same for the models of all makers; only reasoning is requested differently. The
//! results of parallel calls are sent in one turn, with images after them. Signed reasoning returns unchanged in its position.

use serde_json::{Map, Value, json};

use super::finish::parse_finish_reason;
use super::provider_state::{MessagePart, MessagePartOrder, restore_message_parts};
use super::reply_builder::{ReplyBuilder, ToolCallFragment, json_to_text, parse_arguments_object};
use super::{
    EventOutcome, ModelEndpoint, StreamParser, anthropic, images_after_results, introduce_images,
    read_number_at, read_text_at, tools_sorted_by_name,
};
use crate::model::{Delta, DeltaListener, FinishReason, Image, Message, Reply, Request};

/// The makers whose models have settings of their own, by a part of the model's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    Anthropic,
    Amazon,
    OpenAi,
    Other,
}

impl Maker {
    /// Names are `maker.model`, or `region.maker.model`.
    fn of_model(model: &str) -> Self {
        let has_maker = |maker: &str| model.split('.').any(|part| part == maker);
        match model {
            _ if has_maker("anthropic") => Self::Anthropic,
            _ if has_maker("amazon") => Self::Amazon,
            _ if has_maker("openai") => Self::OpenAi,
            _ => Self::Other,
        }
    }
}

pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let mut body = json!({"messages": turns_to_json(endpoint, request)});
    if !request.system.is_empty() {
        body["system"] = json!([{"text": request.system}]);
    }
    let tool = |name: &str, description: Option<&str>, schema: &Value| {
        let mut spec = json!({"name": name, "inputSchema": {"json": schema}});
        description.into_iter().for_each(|text| spec["description"] = json!(text));
        json!({ "toolSpec": spec })
    };
    let mut tools: Vec<Value> = tools_sorted_by_name(request)
        .into_iter()
        .map(|it| tool(&it.name, Some(&*it.description).filter(|text| !text.is_empty()), &it.schema))
        .collect();
    if tools.is_empty() {
        let any = json!({"type": "object"});
        tools = anthropic::previously_called_tools(request).iter().map(|it| tool(it, None, &any)).collect();
    }
    if !tools.is_empty() {
        body["toolConfig"] = json!({ "tools": tools });
    }
    set_inference_fields(endpoint, request, &mut body);
    body
}

/// Sets sampling, the length of the reply and reasoning. Amazon's models accept no limits with the highest effort.
fn set_inference_fields(endpoint: &ModelEndpoint, request: &Request, body: &mut Value) {
    let (maker, settings) = (Maker::of_model(&endpoint.model), &endpoint.settings);
    let effort = endpoint.reasoning_effort().filter(|effort| !matches!(*effort, "none" | "off"));
    let mut fields = json!({"max_tokens": endpoint.max_output_tokens(request).max(1)});
    match maker {
        Maker::Anthropic => anthropic::set_reasoning_fields(endpoint, &mut fields),
        Maker::Amazon | Maker::OpenAi | Maker::Other => {
            for (name, value) in [("temperature", settings.temperature), ("top_p", settings.top_p)] {
                value.into_iter().for_each(|value| fields[name] = json!(value));
            }
        }
    }
    let mut limits = Map::new();
    for (theirs, ours) in [("maxTokens", "max_tokens"), ("temperature", "temperature"), ("topP", "top_p")] {
        let value = fields.as_object_mut().and_then(|fields| fields.remove(ours));
        value.into_iter().for_each(|value| drop(limits.insert(theirs.to_owned(), value)));
    }
    match (maker, effort) {
        (Maker::Amazon, Some(effort)) => {
            let level = match effort {
                "minimal" | "low" => "low",
                "medium" => "medium",
                _ => "high",
            };
            if level == "high" {
                limits.clear();
            }
            let config = json!({"type": "enabled", "maxReasoningEffort": level});
            fields["inferenceConfig"] = json!({ "reasoningConfig": config });
        }
        (Maker::OpenAi, Some(effort)) => fields["reasoning"] = json!({ "effort": effort }),
        (Maker::Anthropic | Maker::Other, _) | (_, None) => {}
    }
    if !limits.is_empty() {
        body["inferenceConfig"] = Value::Object(limits);
    }
    if fields.as_object().is_some_and(|fields| !fields.is_empty()) {
        body["additionalModelRequestFields"] = fields;
    }
}

/// Converts the conversation to turns. Consecutive messages of the same role are merged, because roles must alternate.
fn turns_to_json(endpoint: &ModelEndpoint, request: &Request) -> Vec<Value> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for at in 0..request.messages.len() {
        let (role, blocks) = role_and_content_blocks(endpoint, &request.messages, at);
        match turns.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, existing)) if *last == role => existing.extend(blocks),
            Some(_) | None => turns.push((role, blocks)),
        }
    }
    turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn role_and_content_blocks(
    endpoint: &ModelEndpoint,
    messages: &[Message],
    at: usize,
) -> (&'static str, Vec<Value>) {
    match &messages[at] {
        Message::User { text } => ("user", text_block(text).into_iter().collect()),
        Message::Assistant { text, calls, provider_state } => {
            let parts = restore_message_parts(&endpoint.full_name, text, calls, provider_state.as_ref());
            ("assistant", parts.iter().filter_map(part_to_block).collect())
        }
        Message::Tool(result) => {
            let content: Vec<Value> = text_block(&result.text).into_iter().collect();
            let mut block = json!({"toolUseId": result.call_id, "content": content});
            // Models of other makers reject the status.
            if result.is_error && matches!(Maker::of_model(&endpoint.model), Maker::Anthropic | Maker::Amazon)
            {
                block["status"] = json!("error");
            }
            let images = images_after_results(messages, at);
            let text = (!images.is_empty()).then(|| json!({"text": introduce_images(&images)}));
            let images = images.into_iter().enumerate().map(|(number, image)| image_block(number, image));
            ("user", [json!({ "toolResult": block })].into_iter().chain(text).chain(images).collect())
        }
    }
}

fn part_to_block(part: &MessagePart<'_>) -> Option<Value> {
    match part {
        MessagePart::Opaque(item) => Some((*item).clone()),
        MessagePart::Text(text, _) => text_block(text),
        MessagePart::Call(call, _) => {
            let input = parse_arguments_object(call);
            Some(json!({"toolUse": {"toolUseId": call.id, "name": call.name, "input": input}}))
        }
    }
}

/// Returns a text block; `None` for blank text, which the API rejects.
fn text_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({ "text": text }))
}

/// Converts an image or a PDF file. The name of a file must be unique in its message and may have few characters.
fn image_block(number: usize, image: &Image) -> Value {
    let source = json!({"bytes": image.to_base64()});
    let format = image.format.media_type().rsplit('/').next();
    if !image.is_pdf() {
        return json!({"image": {"format": format, "source": source}});
    }
    let name = image.file_name();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let stem: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    json!({"document": {"format": format, "name": format!("{stem}-{}", number + 1), "source": source}})
}

/// Parses a response.
pub(super) struct BedrockParser {
    builder: ReplyBuilder,
    model: String,
    blocks: Vec<StreamedBlock>,
}

/// A content block that is being streamed.
struct StreamedBlock {
    place: u64,
    content: StreamedContent,
}

enum StreamedContent {
    Text(usize),
    Call,
    Reasoning { text: String, signature: String, redacted: String },
}

impl BedrockParser {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { builder: ReplyBuilder::new(request), model, blocks: Vec::new() }
    }

    /// Returns the block at a place, which may begin without an event of its own.
    fn block_at(&mut self, place: u64, new: StreamedContent) -> &mut StreamedContent {
        let at = self.blocks.iter().position(|block| block.place == place).unwrap_or_else(|| {
            self.blocks.push(StreamedBlock { place, content: new });
            self.blocks.len() - 1
        });
        &mut self.blocks[at].content
    }

    fn start_call(&mut self, place: u64, call: &Value, arguments: &str, listener: &dyn DeltaListener) {
        self.block_at(place, StreamedContent::Call);
        let (id, name) = (read_text_at(call, "/toolUseId"), read_text_at(call, "/name"));
        self.builder
            .push_call_fragment(&ToolCallFragment { index: Some(place), id, name, arguments }, listener);
    }

    fn handle_text(&mut self, place: u64, text: &str, listener: &dyn DeltaListener) {
        if let StreamedContent::Text(bytes) = self.block_at(place, StreamedContent::Text(0)) {
            *bytes += text.len();
            self.builder.push_text(text, listener);
        }
    }

    /// Appends to reasoning. A complete response has its text and signature one level deeper.
    fn handle_reasoning(&mut self, place: u64, reasoning: &Value, listener: &dyn DeltaListener) {
        let read = |name: &str| {
            let text = read_text_at(reasoning, name);
            if text.is_empty() { read_text_at(&reasoning["reasoningText"], name) } else { text }
        };
        let new = String::new;
        let block = StreamedContent::Reasoning { text: new(), signature: new(), redacted: new() };
        if let StreamedContent::Reasoning { text, signature, redacted } = self.block_at(place, block) {
            text.push_str(read("/text"));
            signature.push_str(read("/signature"));
            redacted.push_str(read("/redactedContent"));
        }
        if !read("/text").is_empty() {
            listener.on_delta(Delta::Reasoning(read("/text")));
        }
    }

    fn handle_delta(&mut self, place: u64, delta: &Value, listener: &dyn DeltaListener) {
        if let Some(text) = delta["text"].as_str() {
            self.handle_text(place, text, listener);
        } else if delta["toolUse"].is_object() {
            let arguments = read_text_at(delta, "/toolUse/input");
            self.start_call(place, &Value::Null, arguments, listener);
        } else if delta["reasoningContent"].is_object() {
            self.handle_reasoning(place, &delta["reasoningContent"], listener);
        }
    }

    /// Reads a response that was not streamed.
    fn read_whole_message(&mut self, message: &Value, listener: &dyn DeltaListener) {
        let content = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        for (place, block) in (0..).zip(content) {
            let call = &block["toolUse"];
            match call.is_object() {
                true => self.start_call(place, call, &json_to_text(&call["input"]), listener),
                false => self.handle_delta(place, block, listener),
            }
        }
    }

    /// Records usage; tokens read from a cache and written to it are counted apart from the rest.
    fn record_usage(&mut self, usage: &Value) {
        let ours = &mut self.builder.usage;
        ours.cached_tokens = read_number_at(usage, "/cacheReadInputTokens");
        ours.cache_write_tokens = read_number_at(usage, "/cacheWriteInputTokens");
        let all_cached = ours.cached_tokens.saturating_add(ours.cache_write_tokens);
        ours.input_tokens = read_number_at(usage, "/inputTokens").saturating_add(all_cached);
        ours.output_tokens = read_number_at(usage, "/outputTokens");
    }

    fn record_part_order(&self) -> MessagePartOrder {
        let mut order = MessagePartOrder::default();
        for block in &self.blocks {
            match &block.content {
                StreamedContent::Text(bytes) => order.add_text(*bytes, None),
                StreamedContent::Call => order.add_call(None),
                StreamedContent::Reasoning { redacted, .. } if !redacted.is_empty() => {
                    order.add_opaque_item(json!({"reasoningContent": {"redactedContent": redacted}}));
                }
                // Reasoning without a signature cannot return.
                StreamedContent::Reasoning { signature, .. } if signature.is_empty() => {}
                StreamedContent::Reasoning { text, signature, .. } => {
                    let text = json!({"text": text, "signature": signature});
                    order.add_opaque_item(json!({"reasoningContent": {"reasoningText": text}}));
                }
            }
        }
        order
    }
}

impl StreamParser for BedrockParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        // A refused request has only a message.
        if ["error", "message"].iter().any(|name| event.get(*name).is_some()) {
            return Err(event.clone());
        }
        let start = &event["contentBlockStart"];
        if start["start"]["toolUse"].is_object() {
            let place = read_number_at(start, "/contentBlockIndex");
            self.start_call(place, &start["start"]["toolUse"], "", listener);
        }
        let delta = &event["contentBlockDelta"];
        self.handle_delta(read_number_at(delta, "/contentBlockIndex"), &delta["delta"], listener);
        self.read_whole_message(&event["output"]["message"], listener);
        for end in [&event["messageStop"], event] {
            let finish = parse_finish_reason(&self.model, read_text_at(end, "/stopReason"))?;
            self.builder.finish = finish.or(self.builder.finish);
        }
        match [&event["metadata"]["usage"], &event["usage"]].into_iter().find(|usage| usage.is_object()) {
            Some(usage) => {
                self.record_usage(usage);
                Ok(EventOutcome::Complete)
            }
            None => Ok(EventOutcome::Continue),
        }
    }

    fn is_complete(&self) -> bool {
        self.builder.finish.is_some()
    }

    fn into_reply(self: Box<Self>) -> Option<Reply> {
        let order = self.record_part_order();
        let mut reply = self.builder.build()?;
        // Truncated reasoning has no signature.
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
    fn makers_are_read_from_names() {
        for (model, maker) in [
            ("anthropic.claude-sonnet-4-5-20250929-v1:0", Maker::Anthropic),
            ("us.anthropic.claude-haiku-4-5-20251001-v1:0", Maker::Anthropic),
            ("apac.amazon.nova-lite-v1:0", Maker::Amazon),
            ("openai.gpt-oss-120b-1:0", Maker::OpenAi),
            ("meta.llama3-1-70b-instruct-v1:0", Maker::Other),
        ] {
            assert_eq!(Maker::of_model(model), maker, "{model}");
        }
    }
}
