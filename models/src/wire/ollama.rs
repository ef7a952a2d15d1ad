//! Ollama's own chat. Against its OpenAI-compatible one it can set the size of the context, which Ollama otherwise
//! takes from its defaults and cuts conversations to without a word. Calls come whole and without ids.

use serde_json::{Value, json};

use super::draft::{Draft, Piece, arguments_of, text_of};
use super::{Endpoint, Reading, Step, count, sorted, text};
use crate::model::{Delta, Finish, Message, Reply, Request, Watch};

/// The smallest and the largest context that is asked for. Between them it doubles, since every change makes Ollama
/// load the model again; the model's own limit holds in any case. `extra_body: {options: {num_ctx: …}}` wins.
const CONTEXT: (u64, u64) = (16_384, 131_072);

/// The request's body.
pub(super) fn body(endpoint: &Endpoint, request: &Request) -> Value {
    let limit = endpoint.max_tokens(request);
    let mut body = json!({"model": endpoint.model, "messages": messages(request), "stream": true});
    let tools = sorted(request).into_iter().map(|tool| {
        json!({"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.schema,
        }})
    });
    if !request.tools.is_empty() {
        body["tools"] = tools.collect();
    }
    if let Some(answer) = &request.answer {
        body["format"] = answer.schema.clone();
    }
    if let Some(effort) = endpoint.effort() {
        body["think"] = thinks(effort, &endpoint.model);
    }
    let context = context(body.to_string().len(), limit);
    body["options"] = json!({"num_ctx": context, "num_predict": limit});
    let settings = [("temperature", endpoint.settings.temperature), ("top_p", endpoint.settings.top_p)];
    for (name, value) in settings {
        value.into_iter().for_each(|value| body["options"][name] = json!(value));
    }
    body
}

/// gpt-oss knows how hard, all others only whether.
fn thinks(effort: &str, model: &str) -> Value {
    match effort {
        "none" | "off" | "false" => json!(false),
        _ if model.contains("gpt-oss") => json!(effort),
        _ => json!(true),
    }
}

/// A context that holds a body of so many bytes, at three to a token, and the reply.
fn context(bytes: usize, reply: u32) -> u64 {
    let needed = bytes as u64 / 3 + u64::from(reply);
    needed.next_power_of_two().clamp(CONTEXT.0, CONTEXT.1)
}

fn messages(request: &Request) -> Vec<Value> {
    let system =
        Some(json!({"role": "system", "content": request.system})).filter(|_| !request.system.is_empty());
    system.into_iter().chain(request.messages.iter().map(|message| self::message(request, message))).collect()
}

fn message(request: &Request, message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls, .. } => {
            let mut message = json!({"role": "assistant", "content": text});
            if !calls.is_empty() {
                let call = |call| arguments_of(call);
                message["tool_calls"] = calls
                    .iter()
                    .map(|it| json!({"function": {"name": it.name, "arguments": call(it)}}))
                    .collect();
            }
            message
        }
        Message::Tool(result) => {
            json!({"role": "tool", "tool_name": tool_of(request, &result.call_id), "content": result.text})
        }
    }
}

/// The tool that a result comes from: Ollama knows results by it.
fn tool_of<'a>(request: &'a Request, call_id: &str) -> &'a str {
    let calls = request.messages.iter().rev().filter_map(|message| match message {
        Message::Assistant { calls, .. } => calls.iter().find(|call| call.id == call_id),
        Message::User { .. } | Message::Tool(_) => None,
    });
    calls.map(|call| call.name.as_str()).next().unwrap_or_default()
}

/// A reply while it is being read.
pub(super) struct Stream {
    draft: Draft,
}

impl Stream {
    pub(super) fn new(request: &Request) -> Self {
        Self { draft: Draft::new(request) }
    }
}

impl Reading for Stream {
    fn take(&mut self, event: &Value, watch: &dyn Watch) -> Result<Step, Value> {
        if event.get("error").is_some() {
            return Err(event.clone());
        }
        let message = &event["message"];
        let thought = text(message, "/thinking");
        if !thought.is_empty() {
            watch.delta(Delta::Reasoning(thought));
        }
        self.draft.say(text(message, "/content"), watch);
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            let arguments = text_of(&call["function"]["arguments"]);
            let (id, name) = (text(call, "/id"), text(call, "/function/name"));
            self.draft.call(&Piece { place: None, id, name, arguments: &arguments }, watch);
        }
        if event["done"] != true {
            return Ok(Step::More);
        }
        self.draft.usage.input_tokens = count(event, "/prompt_eval_count");
        self.draft.usage.output_tokens = count(event, "/eval_count");
        let cut = text(event, "/done_reason") == "length";
        self.draft.finish = Some(if cut { Finish::Length } else { Finish::Stop });
        Ok(Step::Over)
    }

    fn is_whole(&self) -> bool {
        self.draft.finish.is_some()
    }

    fn reply(self: Box<Self>) -> Option<Reply> {
        self.draft.reply()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_grows_in_steps() {
        assert_eq!(context(100, 1_000), 16_384);
        assert_eq!(context(60_000, 8_000), 32_768);
        assert_eq!(context(10_000_000, 8_000), 131_072);
    }

    #[test]
    fn thinking_is_a_switch_for_most_models() {
        assert_eq!(thinks("high", "qwen3:4b"), json!(true));
        assert_eq!(thinks("none", "qwen3:4b"), json!(false));
        assert_eq!(thinks("low", "gpt-oss:20b"), json!("low"));
    }
}
