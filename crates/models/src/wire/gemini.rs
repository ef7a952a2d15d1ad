//! Google's Gemini API, at Google and at Vertex AI. The signatures of thoughts return to the provider with the text or the
//! call that they came with: newer models reject calls without. Results of parallel calls are one turn.

use serde_json::{Value, json};

use super::finish::parse_finish_reason;
use super::provider_state::{MessagePart, MessagePartOrder, restore_message_parts};
use super::reply_builder::{
    ReplyBuilder, ToolCallFragment, is_generated_call_id, json_to_text, parse_arguments_object,
};
use super::{
    EventOutcome, ModelEndpoint, StreamParser, find_tool_name, images_after_results, introduce_images,
    read_number_at, read_text_at, schema, tools_sorted_by_name,
};
use crate::model::{Delta, DeltaListener, Message, ProviderState, Reply, Request, ToolCall, ToolResult};

/// The signature that newer models accept for a call of another model
/// (<https://ai.google.dev/gemini-api/docs/thought-signatures>).
const FOREIGN_CALL_SIGNATURE: &str = "skip_thought_signature_validator";

/// Families of models, and the first generation of each that has levels of thinking and verifies signatures.
const FAMILIES_WITH_LEVELS: [(&str, u32); 2] = [("gemini-", 3), ("gemma-", 4)];

pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let settings = &endpoint.settings;
    let mut config = json!({
        "maxOutputTokens": endpoint.max_output_tokens(request),
        "thinkingConfig": thinking_config(endpoint),
    });
    for (name, value) in [("temperature", settings.temperature), ("topP", settings.top_p)] {
        value.into_iter().for_each(|value| config[name] = json!(value));
    }
    if let Some(answer) = &request.answer {
        let schema = schema::to_strict_schema(&answer.schema).unwrap_or_else(|| answer.schema.clone());
        config["responseMimeType"] = json!("application/json");
        config["responseJsonSchema"] = schema;
    }
    let mut body = json!({"contents": turns_to_json(endpoint, request), "generationConfig": config});
    if !request.system.is_empty() {
        body["systemInstruction"] = json!({"parts": [{"text": request.system}]});
    }
    if !request.tools.is_empty() {
        let tool = |tool: &crate::model::ToolSpec| json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema});
        let tools: Vec<Value> = tools_sorted_by_name(request).into_iter().map(tool).collect();
        body["tools"] = json!([{ "functionDeclarations": tools }]);
    }
    body
}

/// Requests the thoughts and sets their amount: newer models have levels, older ones a budget in tokens.
fn thinking_config(endpoint: &ModelEndpoint) -> Value {
    let mut config = json!({"includeThoughts": true});
    let amount = match endpoint.reasoning_effort() {
        Some("minimal") => Some(("MINIMAL", 1_000)),
        Some("low") => Some(("LOW", 1_000)),
        Some("medium") => Some(("MEDIUM", 8_000)),
        Some("high" | "xhigh" | "max") => Some(("HIGH", 24_000)),
        Some(_) | None => None,
    };
    match amount {
        Some((level, _)) if has_thinking_levels(&endpoint.model) => config["thinkingLevel"] = json!(level),
        Some((_, budget)) => config["thinkingBudget"] = json!(budget),
        None => {}
    }
    config
}

fn has_thinking_levels(model: &str) -> bool {
    FAMILIES_WITH_LEVELS.iter().any(|(family, from)| {
        let generation = model.split_once(family).map_or("", |(_, rest)| rest);
        let digits = generation.find(|c: char| !c.is_ascii_digit()).unwrap_or(generation.len());
        generation[..digits].parse::<u32>().is_ok_and(|generation| generation >= *from)
    })
}

fn turns_to_json(endpoint: &ModelEndpoint, request: &Request) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::new();
    let user = |parts: Vec<Value>| json!({"role": "user", "parts": parts});
    let mut results: Vec<Value> = Vec::new();
    for (at, message) in request.messages.iter().enumerate() {
        match message {
            Message::User { text } => turns.push(user(vec![json!({ "text": text })])),
            Message::Assistant { text, calls, provider_state } => {
                let parts = assistant_parts(endpoint, text, calls, provider_state.as_ref());
                if !parts.is_empty() {
                    turns.push(json!({"role": "model", "parts": parts}));
                }
            }
            Message::Tool(result) => {
                results.push(function_response(request, result));
                if !matches!(request.messages.get(at + 1), Some(Message::Tool(_))) {
                    turns.push(user(std::mem::take(&mut results)));
                }
                let images = images_after_results(&request.messages, at);
                if !images.is_empty() {
                    let text = json!({"text": introduce_images(&images)});
                    let image = images.iter().map(|image| {
                        json!({"inlineData": {"mimeType": image.format.media_type(), "data": image.to_base64()}})
                    });
                    turns.push(user([text].into_iter().chain(image).collect()));
                }
            }
        }
    }
    turns
}

fn assistant_parts(
    endpoint: &ModelEndpoint,
    text: &str,
    calls: &[ToolCall],
    provider_state: Option<&ProviderState>,
) -> Vec<Value> {
    let parts = restore_message_parts(&endpoint.full_name, text, calls, provider_state);
    let mut needs_signature = has_thinking_levels(&endpoint.model);
    let part_to_json = |part: &MessagePart<'_>| {
        let (mut json, signature) = match part {
            MessagePart::Opaque(item) => return (*item).clone(),
            MessagePart::Text(text, signature) => (json!({ "text": text }), *signature),
            MessagePart::Call(call, signature) => {
                // The first call of a turn needs a signature, and the others have none.
                let foreign = needs_signature.then_some(FOREIGN_CALL_SIGNATURE);
                needs_signature = false;
                (function_call(call), signature.or(foreign))
            }
        };
        signature.into_iter().for_each(|signature| json["thoughtSignature"] = json!(signature));
        json
    };
    parts.iter().map(part_to_json).collect()
}

fn function_call(call: &ToolCall) -> Value {
    let mut json = json!({"name": call.name, "args": parse_arguments_object(call)});
    set_call_id(&mut json, &call.id);
    json!({ "functionCall": json })
}

fn function_response(request: &Request, result: &ToolResult) -> Value {
    let key = if result.is_error { "error" } else { "output" };
    let mut json = json!({"name": find_tool_name(request, &result.call_id), "response": {key: result.text}});
    set_call_id(&mut json, &result.call_id);
    json!({ "functionResponse": json })
}

/// Sets the id of a call or its result. Models that send no ids accept none.
fn set_call_id(json: &mut Value, id: &str) {
    if !is_generated_call_id(id) {
        json["id"] = json!(id);
    }
}

/// Parses a response.
pub(super) struct GeminiParser {
    builder: ReplyBuilder,
    model: String,
    parts: Vec<StreamedPart>,
    calls: u64,
}

/// A part of the reply, with its signature.
enum StreamedPart {
    Text {
        bytes: usize,
        signature: Option<String>,
    },
    Call {
        signature: Option<String>,
    },
    /// A signature without text or call.
    Signature(String),
}

impl GeminiParser {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { builder: ReplyBuilder::new(request), model, parts: Vec::new(), calls: 0 }
    }

    fn handle_part(&mut self, part: &Value, listener: &dyn DeltaListener) {
        let signature = part["thoughtSignature"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let call = &part["functionCall"];
        let text = read_text_at(part, "/text");
        if call.is_object() {
            let (id, name) = (read_text_at(call, "/id"), read_text_at(call, "/name"));
            let arguments = json_to_text(&call["args"]);
            let index = Some(self.calls);
            self.builder
                .push_call_fragment(&ToolCallFragment { index, id, name, arguments: &arguments }, listener);
            self.calls += 1;
            self.parts.push(StreamedPart::Call { signature });
        } else if part["thought"] == true {
            listener.on_delta(Delta::Reasoning(text));
            self.parts.extend(signature.map(StreamedPart::Signature));
        } else if text.is_empty() {
            self.parts.extend(signature.map(StreamedPart::Signature));
        } else {
            self.builder.push_text(text, listener);
            match (self.parts.last_mut(), signature) {
                (Some(StreamedPart::Text { bytes, signature: None }), None) => *bytes += text.len(),
                (_, signature) => self.parts.push(StreamedPart::Text { bytes: text.len(), signature }),
            }
        }
    }

    /// Records usage. Thoughts and the prompts of the provider's own tools are counted apart from the rest.
    fn record_usage(&mut self, usage: &Value) {
        let ours = &mut self.builder.usage;
        let tools = read_number_at(usage, "/toolUsePromptTokenCount");
        ours.input_tokens = read_number_at(usage, "/promptTokenCount").saturating_add(tools);
        ours.cached_tokens = read_number_at(usage, "/cachedContentTokenCount");
        ours.reasoning_tokens = read_number_at(usage, "/thoughtsTokenCount");
        ours.output_tokens =
            read_number_at(usage, "/candidatesTokenCount").saturating_add(ours.reasoning_tokens);
    }

    fn record_part_order(&self) -> MessagePartOrder {
        let mut order = MessagePartOrder::default();
        for part in &self.parts {
            match part {
                StreamedPart::Text { bytes, signature } => order.add_text(*bytes, signature.as_deref()),
                StreamedPart::Call { signature } => order.add_call(signature.as_deref()),
                StreamedPart::Signature(signature) => {
                    order.add_opaque_item(json!({"text": "", "thoughtSignature": signature}));
                }
            }
        }
        order
    }
}

impl StreamParser for GeminiParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            return Err(event.clone());
        }
        if let Some(reason) = event.pointer("/promptFeedback/blockReason").and_then(Value::as_str) {
            let message = format!("the provider refused the prompt: {reason}");
            return Err(json!({"error": {"code": "content_filter", "message": message}}));
        }
        let candidate = &event["candidates"][0];
        let parts = candidate["content"]["parts"].as_array().map_or(&[][..], Vec::as_slice);
        for part in parts {
            self.handle_part(part, listener);
        }
        let finish = parse_finish_reason(&self.model, read_text_at(candidate, "/finishReason"))?;
        self.builder.finish = finish.or(self.builder.finish);
        if event["usageMetadata"].is_object() {
            self.record_usage(&event["usageMetadata"]);
        }
        Ok(EventOutcome::Continue)
    }

    fn is_complete(&self) -> bool {
        self.builder.finish.is_some()
    }

    fn into_reply(self: Box<Self>) -> Option<Reply> {
        let order = self.record_part_order();
        let mut reply = self.builder.build()?;
        reply.provider_state = order.into_provider_state(&self.model);
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_generations_have_levels_of_thinking() {
        for (model, expected) in [
            ("gemini-3-pro-preview", true),
            ("gemini-3.8-flash", true),
            ("gemini-4-argon", true),
            ("gemma-4-26b-a4b-it", true),
            ("gemini-2.5-pro", false),
            ("gemini-flash-latest", false),
            ("gemma-3-27b-it", false),
        ] {
            assert_eq!(has_thinking_levels(model), expected, "{model}");
        }
    }
}
