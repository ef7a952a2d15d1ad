//! Ollama's own chat API. Unlike its OpenAI-compatible API, it can set the context size, which otherwise has a default to
//! which Ollama silently truncates conversations. Tool calls arrive complete and without ids.

use serde_json::{Value, json};

use super::finish::parse_finish_reason;
use super::reply_builder::{ReplyBuilder, ToolCallFragment, json_to_text, parse_arguments_object};
use super::{
    EventOutcome, ModelEndpoint, StreamParser, find_tool_name, images_after_results, introduce_images,
    read_number_at, read_text_at, schema, tools_sorted_by_name,
};
use crate::image::image_tokens;
use crate::model::{Delta, DeltaListener, FinishReason, Message, Reply, Request};

/// Minimum and maximum context size. Sizes in between are powers of two, because every change makes Ollama reload the
/// model; the model's own limit applies anyway. `extra_body: {options: {num_ctx: …}}` takes precedence.
const CONTEXT_WINDOW_RANGE: (u64, u64) = (16_384, 131_072);

pub(super) fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let limit = endpoint.max_output_tokens(request);
    let mut body = json!({"model": endpoint.model, "messages": messages_to_json(request), "stream": true});
    let tools = tools_sorted_by_name(request).into_iter().map(|tool| {
        json!({"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.schema,
        }})
    });
    if !request.tools.is_empty() {
        body["tools"] = tools.collect();
    }
    if let Some(answer) = &request.answer {
        body["format"] = schema::to_grammar_schema(&answer.schema);
    }
    if let Some(effort) = endpoint.reasoning_effort() {
        body["think"] = think_option(effort, &endpoint.model);
    }
    // Images are not tokens of their text.
    let images = request.messages.iter().map(|message| match message {
        Message::Tool(result) => result.images.iter().map(|image| image.to_base64().len()).sum(),
        Message::User { .. } | Message::Assistant { .. } => 0,
    });
    let bytes = body.to_string().len().saturating_sub(images.sum::<usize>());
    let context = required_context_tokens(bytes + 3 * image_tokens(request), limit);
    body["options"] = json!({"num_ctx": context, "num_predict": limit});
    let settings = [("temperature", endpoint.settings.temperature), ("top_p", endpoint.settings.top_p)];
    for (name, value) in settings {
        value.into_iter().for_each(|value| body["options"][name] = json!(value));
    }
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

fn messages_to_json(request: &Request) -> Vec<Value> {
    let system =
        Some(json!({"role": "system", "content": request.system})).filter(|_| !request.system.is_empty());
    system.into_iter().chain((0..request.messages.len()).flat_map(|at| messages_at(request, at))).collect()
}

/// The message at a position, and one with the images of tool results after the last of them: models expect them from the user.
fn messages_at(request: &Request, at: usize) -> Vec<Value> {
    let message = message_to_json(request, &request.messages[at]);
    let images = match &request.messages[at] {
        Message::Tool(_) => images_after_results(&request.messages, at),
        Message::User { .. } | Message::Assistant { .. } => Vec::new(),
    };
    if images.is_empty() {
        return vec![message];
    }
    let content: Vec<String> = images.iter().map(|image| image.to_base64()).collect();
    vec![message, json!({"role": "user", "content": introduce_images(&images), "images": content})]
}

fn message_to_json(request: &Request, message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls, .. } => {
            let mut message = json!({"role": "assistant", "content": text});
            if !calls.is_empty() {
                let call = |call| parse_arguments_object(call);
                message["tool_calls"] = calls
                    .iter()
                    .map(|it| json!({"function": {"name": it.name, "arguments": call(it)}}))
                    .collect();
            }
            message
        }
        Message::Tool(result) => {
            json!({"role": "tool", "tool_name": find_tool_name(request, &result.call_id), "content": result.text})
        }
    }
}

/// Parses a response.
pub(super) struct OllamaParser {
    builder: ReplyBuilder,
    model: String,
}

impl OllamaParser {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { builder: ReplyBuilder::new(request), model }
    }
}

impl StreamParser for OllamaParser {
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value> {
        if event.get("error").is_some() {
            return Err(event.clone());
        }
        let message = &event["message"];
        let thought = read_text_at(message, "/thinking");
        if !thought.is_empty() {
            listener.on_delta(Delta::Reasoning(thought));
        }
        self.builder.push_text(read_text_at(message, "/content"), listener);
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            let arguments = json_to_text(&call["function"]["arguments"]);
            let (id, name) = (read_text_at(call, "/id"), read_text_at(call, "/function/name"));
            self.builder.push_call_fragment(
                &ToolCallFragment { index: None, id, name, arguments: &arguments },
                listener,
            );
        }
        if event["done"] != true {
            return Ok(EventOutcome::Continue);
        }
        self.builder.usage.input_tokens = read_number_at(event, "/prompt_eval_count");
        self.builder.usage.output_tokens = read_number_at(event, "/eval_count");
        let finish = parse_finish_reason(&self.model, read_text_at(event, "/done_reason"))?;
        self.builder.finish = finish.or(Some(FinishReason::Stop));
        Ok(EventOutcome::Complete)
    }

    fn is_complete(&self) -> bool {
        self.builder.finish.is_some()
    }

    fn into_reply(self: Box<Self>) -> Option<Reply> {
        self.builder.build()
    }
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
