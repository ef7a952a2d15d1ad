//! OpenAI's Responses API, which OpenAI recommends over Chat Completions because reasoning continues across turns.
//! Nothing is stored at OpenAI; the encrypted reasoning is part of the conversation.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::finish::parse_incomplete_reason;
use super::provider_state::{MessagePart, MessagePartOrder, restore_message_parts};
use super::reply_builder::{ReplyBuilder, ToolCallFragment, json_to_text};
use super::{
    EventOutcome, ModelEndpoint, StreamParser, read_number_at, read_text_at, schema, tools_sorted_by_name,
};
use crate::model::{Delta, DeltaListener, FinishReason, Image, Message, Reply, Request};

/// OpenAI's minimum for the limit.
const MIN_OUTPUT_TOKENS: u32 = 16;

pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let settings = &endpoint.settings;
    let mut body = json!({
        "model": endpoint.model,
        "input": request.messages.iter().flat_map(|message| message_to_input_items(endpoint, message)).collect::<Vec<_>>(),
        "max_output_tokens": endpoint.max_output_tokens(request).max(MIN_OUTPUT_TOKENS),
        "store": false,
        "stream": true,
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("instructions", Some(json!(request.system)).filter(|_| !request.system.is_empty()));
    set("tools", tools_to_json(request));
    set("text", request.answer.as_ref().map(|answer| {
        let strict = schema::to_strict_schema(&answer.schema);
        let (is_strict, schema) = (strict.is_some(), strict.unwrap_or_else(|| answer.schema.clone()));
        json!({"format": {"type": "json_schema", "name": answer.name, "strict": is_strict, "schema": schema}})
    }));
    set("include", is_reasoning_model(&endpoint.model).then(|| json!(["reasoning.encrypted_content"])));
    set("reasoning", endpoint.reasoning_effort().map(|effort| json!({ "effort": effort })));
    set("temperature", settings.temperature.map(Value::from));
    set("top_p", settings.top_p.map(Value::from));
    body
}

/// Returns `true` for reasoning models. Other models reject requests for reasoning.
fn is_reasoning_model(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model).trim_start_matches("ft:");
    !(["gpt-4", "gpt-3", "chatgpt"].iter().any(|old| name.starts_with(old)) || name.contains("-chat"))
}

/// Converts the tools. Without `strict: false` OpenAI would convert the schemas to its strict subset.
fn tools_to_json(request: &Request) -> Option<Value> {
    let tool = |tool: &crate::model::ToolSpec| {
        json!({"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema,
            "strict": false})
    };
    (!request.tools.is_empty()).then(|| tools_sorted_by_name(request).into_iter().map(tool).collect())
}

fn message_to_input_items(endpoint: &ModelEndpoint, message: &Message) -> Vec<Value> {
    match message {
        Message::User { text } => vec![json!({"role": "user", "content": text})],
        Message::Assistant { text, calls, provider_state } => {
            restore_message_parts(&endpoint.full_name, text, calls, provider_state.as_ref())
                .iter()
                .map(part_to_input_item)
                .collect()
        }
        Message::Tool(result) => {
            let output = match result.images.as_slice() {
                [] => json!(result.text),
                images => {
                    let text = json!({"type": "input_text", "text": result.text});
                    let image = |image: &Image| match image.is_pdf() {
                        true => {
                            json!({"type": "input_file", "filename": image.file_name(), "file_data": image.to_data_url()})
                        }
                        false => json!({"type": "input_image", "image_url": image.to_data_url()}),
                    };
                    [text].into_iter().chain(images.iter().map(image)).collect()
                }
            };
            vec![json!({"type": "function_call_output", "call_id": result.call_id, "output": output})]
        }
    }
}

fn part_to_input_item(part: &MessagePart<'_>) -> Value {
    match part {
        MessagePart::Opaque(input_item) => (*input_item).clone(),
        MessagePart::Text(text, None) => json!({"role": "assistant", "content": text}),
        MessagePart::Text(text, Some(phase)) => json!({"role": "assistant", "content": text, "phase": phase}),
        MessagePart::Call(call, _) => {
            json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
        }
    }
}

/// Parses a response. The reply is built from the complete items; the streamed pieces are for listeners, and for servers
/// that send nothing else.
pub(super) struct ResponsesParser {
    builder: ReplyBuilder,
    complete_items: BTreeMap<u64, Value>,
    model: String,
}

impl ResponsesParser {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { builder: ReplyBuilder::new(request), complete_items: BTreeMap::new(), model }
    }

    fn handle_item_added(&mut self, event: &Value, listener: &dyn DeltaListener) {
        if event["item"]["type"] == "function_call" {
            self.push_tool_call_fragment(event, &event["item"], "", listener);
        }
    }

    fn push_tool_call_fragment(
        &mut self,
        event: &Value,
        input_item: &Value,
        arguments: &str,
        listener: &dyn DeltaListener,
    ) {
        let (id, name) = (read_text_at(input_item, "/call_id"), read_text_at(input_item, "/name"));
        self.builder.push_call_fragment(
            &ToolCallFragment { index: event["output_index"].as_u64(), id, name, arguments },
            listener,
        );
    }

    fn complete_response(&mut self, response: &Value, finish: FinishReason, listener: &dyn DeltaListener) {
        self.builder.finish = Some(finish);
        let usage = &response["usage"];
        let ours = &mut self.builder.usage;
        ours.input_tokens = read_number_at(usage, "/input_tokens");
        ours.output_tokens = read_number_at(usage, "/output_tokens");
        ours.cached_tokens = read_number_at(usage, "/input_tokens_details/cached_tokens");
        ours.cache_write_tokens = read_number_at(usage, "/input_tokens_details/cache_write_tokens");
        ours.reasoning_tokens = read_number_at(usage, "/output_tokens_details/reasoning_tokens");
        let output = response["output"].as_array().filter(|output| !output.is_empty());
        if let Some(output) = output {
            self.complete_items = (0..).zip(output.iter().cloned()).collect();
        }
        if self.builder.text.is_empty() && !self.complete_items.is_empty() {
            let text: String = self.complete_items.values().map(message_item_text).collect();
            self.builder.push_text(&text, listener);
        }
    }

    /// Builds the reply from the complete items, and records the order of its parts.
    fn rebuild_reply_in_item_order(&mut self) -> MessagePartOrder {
        let mut order = MessagePartOrder::default();
        let mut builder = self.builder.copy_without_content();
        if !self.complete_items.values().any(|input_item| input_item["type"] == "message") {
            // Truncated in the middle of the text: the item was never completed.
            builder.text = std::mem::take(&mut self.builder.text);
        }
        for (place, input_item) in &self.complete_items {
            match read_text_at(input_item, "/type") {
                "reasoning" => order.add_opaque_item(input_item.clone()),
                "message" => {
                    let text = message_item_text(input_item);
                    order.add_text(text.len(), input_item["phase"].as_str());
                    builder.text.push_str(&text);
                    if has_refusal(input_item) {
                        builder.finish = Some(FinishReason::ContentFilter);
                    }
                }
                "function_call" => {
                    order.add_call(None);
                    let (id, name) =
                        (read_text_at(input_item, "/call_id"), read_text_at(input_item, "/name"));
                    let arguments = json_to_text(&input_item["arguments"]);
                    builder.push_call_fragment(
                        &ToolCallFragment { index: Some(*place), id, name, arguments: &arguments },
                        &(),
                    );
                }
                _ => {}
            }
        }
        self.builder = builder;
        order
    }
}

/// Returns the text of a message, including a refusal.
fn message_item_text(input_item: &Value) -> String {
    let parts = input_item["content"].as_array().map_or(&[][..], Vec::as_slice);
    parts.iter().flat_map(|part| [read_text_at(part, "/text"), read_text_at(part, "/refusal")]).collect()
}

fn has_refusal(input_item: &Value) -> bool {
    input_item["content"].as_array().is_some_and(|parts| parts.iter().any(|part| part["type"] == "refusal"))
}

impl StreamParser for ResponsesParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        let response = event.get("response").unwrap_or(event);
        match read_text_at(event, "/type") {
            "response.output_item.added" => self.handle_item_added(event, listener),
            "response.output_text.delta" | "response.refusal.delta" => {
                self.builder.push_text(read_text_at(event, "/delta"), listener)
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                listener.on_delta(Delta::Reasoning(read_text_at(event, "/delta")));
            }
            "response.function_call_arguments.delta" => {
                self.push_tool_call_fragment(event, &Value::Null, read_text_at(event, "/delta"), listener)
            }
            "response.function_call_arguments.done" => {
                self.builder.set_call_arguments(
                    read_number_at(event, "/output_index"),
                    read_text_at(event, "/arguments"),
                );
            }
            "response.output_item.done" => {
                self.complete_items.insert(read_number_at(event, "/output_index"), event["item"].clone());
            }
            "response.completed" | "response.done" if response["incomplete_details"].is_null() => {
                self.complete_response(response, FinishReason::Stop, listener);
                return Ok(EventOutcome::Complete);
            }
            "response.completed" | "response.done" | "response.incomplete" => {
                let finish = parse_incomplete_reason(&self.model, response)?;
                self.complete_response(response, finish, listener);
                return Ok(EventOutcome::Complete);
            }
            "response.failed" | "response.cancelled" | "error" => return Err(response.clone()),
            _ => return self.read_whole_response(event, listener),
        }
        Ok(EventOutcome::Continue)
    }

    fn is_complete(&self) -> bool {
        self.builder.finish.is_some()
    }

    fn into_reply(mut self: Box<Self>) -> Option<Reply> {
        let finish = self.builder.finish?;
        let order = if self.complete_items.is_empty() {
            MessagePartOrder::default()
        } else {
            self.rebuild_reply_in_item_order()
        };
        let mut reply = self.builder.build()?;
        // A truncated reply may end with an incomplete item, which must not be sent back.
        reply.provider_state = Some(order)
            .filter(|_| finish == FinishReason::Stop)
            .and_then(|it| it.into_provider_state(&self.model));
        Some(reply)
    }
}

impl ResponsesParser {
    /// Reads a response that was not streamed; other events are ignored.
    fn read_whole_response(
        &mut self,
        event: &Value,
        listener: &dyn DeltaListener,
    ) -> Result<EventOutcome, Value> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            return Err(event.clone());
        }
        let finish = match read_text_at(event, "/status") {
            "completed" => FinishReason::Stop,
            "incomplete" => parse_incomplete_reason(&self.model, event)?,
            _ => return Ok(EventOutcome::Continue),
        };
        self.complete_response(event, finish, listener);
        Ok(EventOutcome::Complete)
    }
}
