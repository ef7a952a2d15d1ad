//! OpenAI's Responses API, which OpenAI recommends over Chat Completions because reasoning continues across turns.
//! Nothing is stored at OpenAI; the encrypted reasoning is part of the conversation.

use serde_json::{Value, json};

use super::conversation::CallIdForm;
use super::conversation::tools_to_json;
use super::embeddings;
use super::endpoint::{Framing, ModelEndpoint, WireApi};

use super::json::{has_field, items_of, json_to_text, read_text_at, set_field};

use super::reply::parse_incomplete_reason;
use super::reply::{MessagePart, Part, ReplyBuilder, read_usage, restore_message_parts};

use super::schema;
use crate::model::{FinishReason, Image, Message, Request};

pub(super) const API: WireApi = WireApi {
    framing: Framing::Sse,
    url: |_, base| format!("{base}/responses"),
    embeddings_url: Some(embeddings::openai_url),
    key_header: None,
    call_ids: CallIdForm::Text(64),
    structured: |_| (true, true),
    takes_pdf: |endpoint| Some(endpoint.is_openai_host()),
    build_request_body,
    read_event,
};

/// OpenAI's minimum for the limit.
const MIN_OUTPUT_TOKENS: u32 = 16;

fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let items = request.messages.iter().flat_map(|message| message_to_input_items(endpoint, message));
    let mut body = json!({
        "model": endpoint.model,
        "input": items.collect::<Vec<_>>(),
        "max_output_tokens": endpoint.max_output_tokens(request).max(MIN_OUTPUT_TOKENS),
        "store": false,
        "stream": true,
    });
    set_field(&mut body, "instructions", Some(&*request.system).filter(|system| !system.is_empty()));
    // Without `strict: false` OpenAI would convert the schemas to its strict subset.
    let tools = tools_to_json(request, |tool| {
        json!({"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema,
            "strict": false})
    });
    set_field(&mut body, "tools", tools);
    let format = request.answer.as_ref().map(|answer| {
        let (is_strict, schema) = schema::strict_or_original(&answer.schema);
        json!({"format": {"type": "json_schema", "name": answer.name, "strict": is_strict, "schema": schema}})
    });
    set_field(&mut body, "text", format);
    let is_reasoning = is_reasoning_model(&endpoint.model);
    let include = [
        is_reasoning.then_some("reasoning.encrypted_content"),
        request.first_token_probabilities.then_some("message.output_text.logprobs"),
    ];
    let include: Vec<&str> = include.into_iter().flatten().collect();
    set_field(&mut body, "include", (!include.is_empty()).then_some(include));
    let alternatives = request.first_token_probabilities.then(|| endpoint.max_token_alternatives());
    set_field(&mut body, "top_logprobs", alternatives);
    set_field(&mut body, "reasoning", endpoint.reasoning_effort().map(|effort| json!({ "effort": effort })));
    endpoint.set_sampling(&mut body, "top_p");
    body
}

fn is_reasoning_model(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model).trim_start_matches("ft:");
    !(["gpt-4", "gpt-3", "chatgpt"].iter().any(|old| name.starts_with(old)) || name.contains("-chat"))
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
                    [text].into_iter().chain(images.iter().map(image_to_input)).collect()
                }
            };
            vec![json!({"type": "function_call_output", "call_id": result.call_id, "output": output})]
        }
    }
}

fn image_to_input(image: &Image) -> Value {
    let data = image.to_data_url();
    match image.is_pdf() {
        true => json!({"type": "input_file", "filename": image.file_name(), "file_data": data}),
        false => json!({"type": "input_image", "image_url": data}),
    }
}

fn part_to_input_item(part: &MessagePart<'_>) -> Value {
    match part {
        MessagePart::Opaque(item) => (*item).clone(),
        MessagePart::Text(text, phase) => {
            let mut item = json!({"role": "assistant", "content": text});
            set_field(&mut item, "phase", *phase);
            item
        }
        MessagePart::Call(call, _) => {
            json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
        }
    }
}

/// Reads an event. The reply is built from the complete items at its end; the streamed pieces are for listeners, and for servers that
/// send nothing else.
fn read_event(event: &Value, reply: &mut ReplyBuilder<'_>) -> Result<(), Value> {
    let kind = read_text_at(event, "/type");
    if read_piece(kind, event, reply) {
        return Ok(());
    }
    let response = event.get("response").unwrap_or(event);
    let finish = match kind {
        "response.completed" | "response.done" if response["incomplete_details"].is_null() => {
            FinishReason::Stop
        }
        "response.completed" | "response.done" | "response.incomplete" => {
            parse_incomplete_reason(reply.model, response)?
        }
        "response.failed" | "response.cancelled" | "error" => return Err(response.clone()),
        _ if has_field(event, "error") => return Err(event.clone()),
        // A response that was not streamed; other events are ignored.
        _ => match read_text_at(event, "/status") {
            "completed" => FinishReason::Stop,
            "incomplete" => parse_incomplete_reason(reply.model, event)?,
            _ => return Ok(()),
        },
    };
    complete_reply(response, finish, reply);
    reply.is_ended = true;
    Ok(())
}

/// Reads a piece of a reply; `false` if the event is of another kind.
fn read_piece(kind: &str, event: &Value, reply: &mut ReplyBuilder<'_>) -> bool {
    let (index, item, delta) =
        (event["output_index"].as_u64(), &event["item"], read_text_at(event, "/delta"));
    match kind {
        "response.output_item.added" if item["type"] == "function_call" => {
            reply.push_call(index, read_text_at(item, "/call_id"), read_text_at(item, "/name"), "");
        }
        "response.output_item.added" => {}
        "response.output_text.delta" | "response.refusal.delta" => {
            reply.read_first_token(delta, &event["logprobs"]);
            reply.push_text(delta);
        }
        "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
            reply.push_reasoning(delta);
        }
        "response.function_call_arguments.delta" => reply.push_call(index, "", "", delta),
        "response.function_call_arguments.done" => {
            reply.set_call_arguments(index.unwrap_or(0), read_text_at(event, "/arguments"));
        }
        "response.output_item.done" => {
            *reply.part_at(index.unwrap_or(0), Part::Opaque(Value::Null)) = Part::Opaque(item.clone());
        }
        _ => return false,
    }
    true
}

/// Completes the reply from its items: those of the response, or else those that were streamed.
fn complete_reply(response: &Value, finish: FinishReason, reply: &mut ReplyBuilder<'_>) {
    reply.finish = Some(finish);
    // The items of a refusal are complete.
    reply.keeps_items_of_cut_reply = finish == FinishReason::Stop;
    let [cached, written] =
        ["cached_tokens", "cache_write_tokens"].map(|name| format!("/input_tokens_details/{name}"));
    let parts = [&*cached, &written, "/output_tokens_details/reasoning_tokens"];
    reply.usage = read_usage(&response["usage"], &["/input_tokens"], &["/output_tokens"], parts);
    let mut items = std::mem::take(&mut reply.parts);
    items.sort_by_key(|(place, _)| *place);
    let output = items_of(&response["output"]);
    if !output.is_empty() {
        items = (0..).zip(output.iter().cloned().map(Part::Opaque)).collect();
    }
    let items = items.iter().filter_map(|(place, part)| match part {
        Part::Opaque(item) => Some((*place, read_text_at(item, "/type"), item)),
        Part::Text { .. } | Part::Call { .. } => None,
    });
    let items: Vec<(u64, &str, &Value)> = items.collect();
    if items.is_empty() {
        return;
    }
    let messages = items.iter().filter(|(_, kind, _)| *kind == "message");
    let text: String = messages.clone().map(|(_, _, item)| message_text(item)).collect();
    if reply.text.is_empty() {
        let mut parts = messages.clone().flat_map(|(_, _, item)| items_of(&item["content"]));
        let tokens = parts.find(|part| !read_text_at(part, "/text").trim().is_empty());
        reply.read_first_token(&text, tokens.map_or(&Value::Null, |part| &part["logprobs"]));
        reply.push_text(&text);
    }
    // If it was truncated in the middle of the text, the item was never completed.
    if messages.count() > 0 {
        reply.text = text;
    }
    for (_, kind, item) in &items {
        reply.parts.extend(match *kind {
            "reasoning" => Some((0, Part::Opaque((*item).clone()))),
            "message" => {
                let tag = item["phase"].as_str().map(str::to_owned);
                Some((0, Part::Text { bytes: message_text(item).len(), tag }))
            }
            "function_call" => Some((0, Part::Call { tag: None })),
            _ => None,
        });
        if *kind == "message" && items_of(&item["content"]).iter().any(|part| part["type"] == "refusal") {
            reply.finish = Some(FinishReason::ContentFilter);
        }
    }
    reply.replace_calls(items.iter().filter(|(_, kind, _)| *kind == "function_call").map(
        |(place, _, item)| {
            let [id, name] = ["/call_id", "/name"].map(|field| read_text_at(item, field));
            (*place, id, name, json_to_text(&item["arguments"]))
        },
    ));
}

fn message_text(item: &Value) -> String {
    let parts = items_of(&item["content"]).iter();
    parts.flat_map(|part| [read_text_at(part, "/text"), read_text_at(part, "/refusal")]).collect()
}
