//! Anthropic's Messages API. The stable prefix (tools, system prompt, the conversation so far) is marked for prompt
//! caching; the results of parallel calls are sent in one turn; signed thinking is returned unchanged in its position.

use serde_json::{Value, json};

use super::conversation::CallIdForm;
use super::conversation::{merge_turns, previously_called_tools, tools_to_json, turns_to_json};

use super::endpoint::{Framing, ModelEndpoint, WireApi};

use super::json::{items_of, read_number_at, read_text_at, set_field};

use super::reply::{
    MessagePart, Part, ReplyBuilder, parse_arguments_object, read_usage, restore_message_parts,
};

use super::schema;
use crate::model::{Image, Message, Request};

pub(super) const API: WireApi = WireApi {
    framing: Framing::Sse,
    url: |endpoint, base| match endpoint.dialect.is_vertex {
        true => format!("{base}/publishers/anthropic/models/{}:streamRawPredict", endpoint.model),
        false => format!("{}/v1/messages", base.trim_end_matches("/v1")),
    },
    embeddings_url: None,
    key_header: Some("x-api-key"),
    call_ids: CallIdForm::Word(64),
    structured: |endpoint| [supports_output_schemas(&endpoint.model); 2].into(),
    takes_pdf: |_| Some(true),
    build_request_body,
    read_event,
};

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

fn supports_output_schemas(model: &str) -> bool {
    ModelVersion::from_model_name(model).is_some_and(|version| version >= ModelVersion(4, 5))
}

fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
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
    let mut tools = tools_to_json(
        request,
        |tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema}),
    );
    if request.system.is_empty() {
        let last = tools.as_mut().and_then(Value::as_array_mut).and_then(|tools| tools.last_mut());
        last.into_iter().for_each(|last| last["cache_control"] = cache_control.clone());
    } else {
        body["system"] = json!([{"type": "text", "text": request.system, "cache_control": cache_control}]);
    }
    let called = previously_called_tools(request);
    if tools.is_none() && !called.is_empty() {
        let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
        tools = Some(called.into_iter().map(tool).collect());
        body["tool_choice"] = json!({"type": "none"});
    }
    set_field(&mut body, "tools", tools);
    let form = request.answer.as_ref().and_then(|answer| schema::to_strict_schema(&answer.schema));
    if let Some(schema) = form.filter(|_| supports_output_schemas(&endpoint.model)) {
        body["output_config"]["format"] = json!({"type": "json_schema", "schema": schema});
    }
    set_reasoning_fields(endpoint, &mut body);
    body
}

/// Sets thinking and sampling. Models from 4.6 on decide themselves how much they think; older ones get a token budget in
/// addition to the reply's tokens. A thinking model accepts no temperature, nor does any model from 4.7 on.
pub(super) fn set_reasoning_fields(endpoint: &ModelEndpoint, body: &mut Value) {
    let version = ModelVersion::from_model_name(&endpoint.model);
    let thinks = match (endpoint.wanted_effort(), version) {
        (None, _) => false,
        (Some(_), Some(version)) if version < ModelVersion(3, 7) => false,
        (Some(effort), Some(version)) if version >= ModelVersion(4, 6) => {
            body["thinking"] = json!({"type": "adaptive"});
            body["output_config"]["effort"] = json!(if effort == "minimal" { "low" } else { effort });
            true
        }
        (Some(effort), Some(_) | None) => {
            let tokens = match effort {
                "minimal" | "low" => 2_048,
                "medium" => 8_192,
                "high" => 16_384,
                _ => 32_768,
            };
            body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
            body["max_tokens"] = json!(read_number_at(body, "/max_tokens") + tokens);
            true
        }
    };
    if !thinks && version.is_none_or(|version| version < ModelVersion(4, 7)) {
        endpoint.set_sampling(body, "top_p");
    }
}

/// Converts the conversation to turns. The last two user turns are marked for caching: the last one for this request, the one
/// before to find the cache entry of the previous request.
fn messages_to_json(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let messages = request.messages.iter().map(|message| role_and_content_blocks(endpoint, message));
    let mut turns = merge_turns(messages);
    for (_, blocks) in turns.iter_mut().rev().filter(|(role, _)| *role == "user").take(2) {
        blocks.last_mut().into_iter().for_each(|last| last["cache_control"] = json!({"type": "ephemeral"}));
    }
    turns_to_json(turns)
}

fn role_and_content_blocks(endpoint: &ModelEndpoint, message: &Message) -> (&'static str, Vec<Value>) {
    match message {
        Message::User { text } => ("user", text_block(text).into_iter().collect()),
        Message::Assistant { text, calls, provider_state } => {
            let parts = restore_message_parts(&endpoint.full_name, text, calls, provider_state.as_ref());
            ("assistant", parts.iter().filter_map(part_to_block).collect())
        }
        Message::Tool(result) => {
            let mut block = json!({"type": "tool_result", "tool_use_id": result.call_id});
            let text = text_block(&result.text).into_iter();
            let content: Vec<Value> = text.chain(result.images.iter().map(image_block)).collect();
            set_field(&mut block, "content", Some(content).filter(|content| !content.is_empty()));
            set_field(&mut block, "is_error", result.is_error.then_some(true));
            ("user", vec![block])
        }
    }
}

fn part_to_block(part: &MessagePart<'_>) -> Option<Value> {
    match part {
        MessagePart::Opaque(item) => Some((*item).clone()),
        MessagePart::Text(text, _) => text_block(text),
        MessagePart::Call(call, _) => {
            let input = parse_arguments_object(call);
            Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}))
        }
    }
}

/// Returns a text block; `None` for blank text, which the API rejects.
fn text_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

fn image_block(image: &Image) -> Value {
    let (media_type, data) = (image.format.media_type(), image.to_base64());
    let source = json!({"type": "base64", "media_type": media_type, "data": data});
    match image.is_pdf() {
        true => json!({"type": "document", "source": source, "title": image.name}),
        false => json!({"type": "image", "source": source}),
    }
}

fn read_event(event: &Value, reply: &mut ReplyBuilder<'_>) -> Result<(), Value> {
    let place = read_number_at(event, "/index");
    match read_text_at(event, "/type") {
        "message_start" => record_usage(&event["message"]["usage"], reply),
        "content_block_start" => start_block(place, &event["content_block"], reply),
        "content_block_delta" => read_delta(place, &event["delta"], reply),
        "message_delta" => {
            record_usage(&event["usage"], reply);
            reply.set_finish(read_text_at(event, "/delta/stop_reason"))?;
        }
        "message_stop" => reply.is_ended = true,
        // A response that was not streamed.
        "message" => {
            for (place, block) in (0..).zip(items_of(&event["content"])) {
                start_block(place, block, reply);
            }
            record_usage(&event["usage"], reply);
            reply.is_ended = true;
            reply.set_finish(read_text_at(event, "/stop_reason"))?;
        }
        kind if kind == "error" || event.get("error").is_some() => return Err(event.clone()),
        _ => {}
    }
    Ok(())
}

fn start_block(place: u64, block: &Value, reply: &mut ReplyBuilder<'_>) {
    match read_text_at(block, "/type") {
        "text" => reply.push_text_at(place, read_text_at(block, "/text")),
        "tool_use" => {
            let input = block["input"].as_object().filter(|input| !input.is_empty());
            let arguments = input.map_or_else(String::new, |input| json!(input).to_string());
            reply.push_call_at(place, read_text_at(block, "/id"), read_text_at(block, "/name"), &arguments);
        }
        "thinking" | "redacted_thinking" => {
            reply.part_at(place, Part::Opaque(block.clone()));
        }
        _ => {}
    }
}

fn read_delta(place: u64, delta: &Value, reply: &mut ReplyBuilder<'_>) {
    let text = |pointer: &str| read_text_at(delta, pointer);
    match text("/type") {
        "text_delta" => reply.push_text_at(place, text("/text")),
        "thinking_delta" => {
            reply.append_to_item(place, "", "thinking", text("/thinking"));
            reply.push_reasoning(text("/thinking"));
        }
        "signature_delta" => reply.append_to_item(place, "", "signature", text("/signature")),
        "input_json_delta" => reply.push_call(Some(place), "", "", text("/partial_json")),
        _ => {}
    }
}

/// Records usage, which is sent at the start and at the end; later counts are totals.
fn record_usage(usage: &Value, reply: &mut ReplyBuilder<'_>) {
    let reported = usage.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    reported.for_each(|(name, value)| drop(reply.usage_fields.insert(name.clone(), value.clone())));
    let [cached, written] = ["/cache_read_input_tokens", "/cache_creation_input_tokens"];
    let parts = [cached, written, "/output_tokens_details/thinking_tokens"];
    let all = Value::Object(reply.usage_fields.clone());
    reply.usage = read_usage(&all, &["/input_tokens", cached, written], &["/output_tokens"], parts);
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
