//! Amazon Bedrock's Converse API, which is the same for the models of all makers; only reasoning is requested differently. The
//! results of parallel calls are sent in one turn, with images after them. Signed reasoning returns unchanged in its position.

use serde_json::{Map, Value, json};

use super::anthropic;
use super::conversation::CallIdForm;
use super::conversation::{
    images_after_results, merge_turns, previously_called_tools, tools_to_json, turns_to_json,
};

use super::endpoint::{Framing, ModelEndpoint, WireApi};

use super::json::{items_of, json_to_text, read_number_at, read_text_at, set_field};

use super::reply::{
    MessagePart, Part, ReplyBuilder, parse_arguments_object, read_usage, restore_message_parts,
};

use crate::model::{Image, Message, Request};

pub(super) const API: WireApi = WireApi {
    framing: Framing::Frames,
    // A model's name may be an ARN.
    url: |endpoint, base| {
        let model = endpoint.model.replace(':', "%3A").replace('/', "%2F");
        format!("{base}/model/{model}/converse-stream")
    },
    embeddings_url: None,
    key_header: None,
    call_ids: CallIdForm::Word(64),
    structured: |_| (false, false),
    takes_pdf: |_| Some(false),
    build_request_body,
    read_event,
};

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

fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let messages = (0..request.messages.len()).map(|at| role_and_blocks(endpoint, &request.messages, at));
    let mut body = json!({"messages": turns_to_json(merge_turns(messages))});
    if !request.system.is_empty() {
        body["system"] = json!([{"text": request.system}]);
    }
    let tool = |name: &str, description: Option<&str>, schema: &Value| {
        let mut spec = json!({"name": name, "inputSchema": {"json": schema}});
        set_field(&mut spec, "description", description.filter(|text| !text.is_empty()));
        json!({ "toolSpec": spec })
    };
    let offered = tools_to_json(request, |it| tool(&it.name, Some(&it.description), &it.schema));
    let any = json!({"type": "object"});
    let called = previously_called_tools(request).into_iter().map(|it| tool(it, None, &any));
    let tools = offered.unwrap_or_else(|| called.collect());
    set_field(&mut body, "toolConfig", (tools != json!([])).then(|| json!({ "tools": tools })));
    set_inference_fields(endpoint, request, &mut body);
    body
}

/// Sets sampling, the length of the reply and reasoning. Amazon's models accept no limits with the highest effort.
fn set_inference_fields(endpoint: &ModelEndpoint, request: &Request, body: &mut Value) {
    let maker = Maker::of_model(&endpoint.model);
    let mut fields = json!({"max_tokens": endpoint.max_output_tokens(request).max(1)});
    match maker {
        Maker::Anthropic => anthropic::set_reasoning_fields(endpoint, &mut fields),
        Maker::Amazon | Maker::OpenAi | Maker::Other => endpoint.set_sampling(&mut fields, "top_p"),
    }
    let mut limits = Map::new();
    for (theirs, ours) in [("maxTokens", "max_tokens"), ("temperature", "temperature"), ("topP", "top_p")] {
        let value = fields.as_object_mut().and_then(|fields| fields.remove(ours));
        value.into_iter().for_each(|value| drop(limits.insert(theirs.to_owned(), value)));
    }
    match (maker, endpoint.wanted_effort()) {
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
    set_field(body, "inferenceConfig", Some(limits).filter(|limits| !limits.is_empty()));
    set_field(body, "additionalModelRequestFields", Some(fields).filter(|fields| *fields != json!({})));
}

fn role_and_blocks(endpoint: &ModelEndpoint, messages: &[Message], at: usize) -> (&'static str, Vec<Value>) {
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
            let takes_status = matches!(Maker::of_model(&endpoint.model), Maker::Anthropic | Maker::Amazon);
            set_field(&mut block, "status", (result.is_error && takes_status).then_some("error"));
            let (text, images) = images_after_results(messages, at).unzip();
            let text = text.map(|text| json!({ "text": text }));
            let images = images.into_iter().flatten().enumerate();
            let images = images.map(|(number, image)| image_block(number, image));
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

fn read_event(event: &Value, reply: &mut ReplyBuilder<'_>) -> Result<(), Value> {
    // A refused request has only a message.
    if ["error", "message"].iter().any(|name| event.get(*name).is_some()) {
        return Err(event.clone());
    }
    let start = &event["contentBlockStart"];
    if start["start"]["toolUse"].is_object() {
        push_call(read_number_at(start, "/contentBlockIndex"), &start["start"]["toolUse"], "", reply);
    }
    let delta = &event["contentBlockDelta"];
    read_delta(read_number_at(delta, "/contentBlockIndex"), &delta["delta"], reply);
    // A response that was not streamed.
    for (place, block) in (0..).zip(items_of(&event["output"]["message"]["content"])) {
        let call = &block["toolUse"];
        match call.is_object() {
            true => push_call(place, call, &json_to_text(&call["input"]), reply),
            false => read_delta(place, block, reply),
        }
    }
    for end in [&event["messageStop"], event] {
        reply.set_finish(read_text_at(end, "/stopReason"))?;
    }
    if reply.finish.is_some() {
        // Reasoning without a signature cannot return.
        let unsigned = json!("");
        reply.parts.retain(|(_, part)| match part {
            Part::Opaque(item) => item.pointer(SIGNED_TEXT).is_none_or(|text| text["signature"] != unsigned),
            Part::Text { .. } | Part::Call { .. } => true,
        });
    }
    let usages = [&event["metadata"]["usage"], &event["usage"]];
    if let Some(usage) = usages.into_iter().find(|usage| usage.is_object()) {
        // Tokens read from a cache and written to it are counted apart from the rest.
        let [cached, written] = ["/cacheReadInputTokens", "/cacheWriteInputTokens"];
        let input = ["/inputTokens", cached, written];
        reply.usage = read_usage(usage, &input, &["/outputTokens"], [cached, written, ""]);
        reply.is_ended = true;
    }
    Ok(())
}

fn push_call(place: u64, call: &Value, arguments: &str, reply: &mut ReplyBuilder<'_>) {
    reply.push_call_at(place, read_text_at(call, "/toolUseId"), read_text_at(call, "/name"), arguments);
}

fn read_delta(place: u64, delta: &Value, reply: &mut ReplyBuilder<'_>) {
    if let Some(text) = delta["text"].as_str() {
        reply.push_text_at(place, text);
    } else if delta["toolUse"].is_object() {
        push_call(place, &Value::Null, read_text_at(delta, "/toolUse/input"), reply);
    } else if delta["reasoningContent"].is_object() {
        read_reasoning(place, &delta["reasoningContent"], reply);
    }
}

const SIGNED_TEXT: &str = "/reasoningContent/reasoningText";

/// Appends to reasoning. A complete response has its text and signature one level deeper.
fn read_reasoning(place: u64, reasoning: &Value, reply: &mut ReplyBuilder<'_>) {
    let redacted = read_text_at(reasoning, "/redactedContent");
    if !redacted.is_empty() {
        reply.part_at(place, Part::Opaque(json!({"reasoningContent": {"redactedContent": ""}})));
        return reply.append_to_item(place, "/reasoningContent", "redactedContent", redacted);
    }
    let item = json!({"reasoningContent": {"reasoningText": {"text": "", "signature": ""}}});
    reply.part_at(place, Part::Opaque(item));
    for source in [reasoning, &reasoning["reasoningText"]] {
        let text = read_text_at(source, "/text");
        reply.append_to_item(place, SIGNED_TEXT, "text", text);
        reply.append_to_item(place, SIGNED_TEXT, "signature", read_text_at(source, "/signature"));
        reply.push_reasoning(text);
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
