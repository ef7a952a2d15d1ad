//! Ollama's own chat API. Unlike its OpenAI-compatible API, it can set the context size, which otherwise has a default to
//! which Ollama silently truncates conversations. Tool calls arrive complete and without ids.

use serde_json::{Value, json};

use super::conversation::CallIdForm;
use super::conversation::{flat_messages, function_tool, tools_to_json};

use super::embeddings;
use super::endpoint::{Framing, ModelEndpoint, WireApi};

use super::json::{items_of, json_to_text, read_text_at, set_field};

use super::reply::{ReplyBuilder, parse_arguments_object, read_usage};

use super::schema;
use crate::limits::image_tokens;
use crate::model::{FinishReason, Image, Message, Request, ToolCall};

pub(super) const API: WireApi = WireApi {
    framing: Framing::JsonLines,
    url: |_, base| format!("{}/api/chat", embeddings::ollama_root(base)),
    embeddings_url: Some(embeddings::ollama_url),
    key_header: None,
    call_ids: CallIdForm::Text(64),
    structured: |_| (true, false),
    takes_pdf: |_| None,
    build_request_body,
    read_event,
};

/// Minimum and maximum context size. Sizes in between are powers of two, because every change makes Ollama reload the
/// model; the model's own limit applies anyway. `extra_body: {options: {num_ctx: …}}` takes precedence.
const CONTEXT_WINDOW_RANGE: (u64, u64) = (16_384, 131_072);

fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let limit = endpoint.max_output_tokens(request);
    let messages = flat_messages(request, |message| message_to_json(request, message), message_with_images);
    let mut body = json!({"model": endpoint.model, "messages": messages, "stream": true});
    set_field(&mut body, "tools", tools_to_json(request, function_tool));
    let format = request.answer.as_ref().map(|answer| schema::to_grammar_schema(&answer.schema));
    set_field(&mut body, "format", format);
    if request.first_token_probabilities {
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(endpoint.max_token_alternatives());
    }
    let think = endpoint.reasoning_effort().map(|effort| think_option(effort, &endpoint.model));
    set_field(&mut body, "think", think);
    // Images are not tokens of their text.
    let images = request.messages.iter().filter_map(Message::result).flat_map(|result| &result.images);
    let images = images.map(|image| image.to_base64().len());
    let bytes = body.to_string().len().saturating_sub(images.sum::<usize>());
    let context = required_context_tokens(bytes + 3 * image_tokens(request), limit);
    body["options"] = json!({"num_ctx": context, "num_predict": limit});
    endpoint.set_sampling(&mut body["options"], "top_p");
    body
}

/// Returns the `think` setting: gpt-oss has levels, all other models only on and off.
fn think_option(effort: &str, model: &str) -> Value {
    match effort {
        "none" | "off" | "false" => json!(false),
        _ if model.contains("gpt-oss") => json!(effort),
        _ => json!(true),
    }
}

/// Returns a context size for a body of `bytes` bytes, at three bytes per token, and the reply.
fn required_context_tokens(bytes: usize, reply: u32) -> u64 {
    let needed = bytes as u64 / 3 + u64::from(reply);
    needed.next_power_of_two().clamp(CONTEXT_WINDOW_RANGE.0, CONTEXT_WINDOW_RANGE.1)
}

fn message_with_images(text: String, images: &[&Image]) -> Value {
    let images: Vec<String> = images.iter().map(|image| image.to_base64()).collect();
    json!({"role": "user", "content": text, "images": images})
}

fn message_to_json(request: &Request, message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls, .. } => {
            let call = |call: &ToolCall| json!({"function": {"name": call.name, "arguments": parse_arguments_object(call)}});
            let calls: Vec<Value> = calls.iter().map(call).collect();
            let mut message = json!({"role": "assistant", "content": text});
            set_field(&mut message, "tool_calls", Some(calls).filter(|calls| !calls.is_empty()));
            message
        }
        Message::Tool(result) => {
            json!({"role": "tool", "tool_name": request.tool_of_call(&result.call_id).unwrap_or_default(), "content": result.text})
        }
    }
}

fn read_event(event: &Value, reply: &mut ReplyBuilder<'_>) -> Result<(), Value> {
    if event.get("error").is_some() {
        return Err(event.clone());
    }
    let message = &event["message"];
    reply.push_reasoning(read_text_at(message, "/thinking"));
    let text = read_text_at(message, "/content");
    reply.read_first_token(text, &event["logprobs"]);
    reply.push_text(text);
    for call in items_of(&message["tool_calls"]) {
        let (id, name) = (read_text_at(call, "/id"), read_text_at(call, "/function/name"));
        reply.push_call(None, id, name, &json_to_text(&call["function"]["arguments"]));
    }
    if event["done"] != true {
        return Ok(());
    }
    reply.usage = read_usage(event, &["/prompt_eval_count"], &["/eval_count"], [""; 3]);
    reply.set_finish(read_text_at(event, "/done_reason"))?;
    reply.finish.get_or_insert(FinishReason::Stop);
    reply.is_ended = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_grows_in_steps() {
        assert_eq!(required_context_tokens(100, 1_000), 16_384);
        assert_eq!(required_context_tokens(60_000, 8_000), 32_768);
        assert_eq!(required_context_tokens(10_000_000, 8_000), 131_072);
    }

    #[test]
    fn thinking_is_a_switch_for_most_models() {
        assert_eq!(think_option("high", "qwen3:4b"), json!(true));
        assert_eq!(think_option("none", "qwen3:4b"), json!(false));
        assert_eq!(think_option("low", "gpt-oss:20b"), json!("low"));
    }
}
