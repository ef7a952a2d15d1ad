//! OpenAI's chat completions, as OpenAI and most other servers speak them. Others differ in small ways: they know
//! `max_tokens` only, send no usage, leave out ids or places of calls, send arguments as objects, show their reasoning
//! in one of three fields, or answer in one piece. All of that is understood here.

use serde_json::{Map, Value, json};

use super::draft::{Draft, Piece, arguments_of, text_of};
use super::{Endpoint, Reading, Step, count, schema, sorted, text};
use crate::model::{Delta, Finish, Keepsake, Message, Reply, Request, ToolCall, Watch};

/// The fields in which servers show reasoning and want it again beside calls. The first is a list of items that come
/// one after the other, the others are text.
const REASONING: [&str; 3] = ["reasoning_details", "reasoning_content", "reasoning"];

/// The request's body.
pub(super) fn body(endpoint: &Endpoint, request: &Request) -> Value {
    let settings = &endpoint.settings;
    let limit = if endpoint.is_openai() { "max_completion_tokens" } else { "max_tokens" };
    let mut body = json!({
        "model": endpoint.model,
        "messages": messages(endpoint, request),
        "stream": true,
        "stream_options": {"include_usage": true},
        limit: endpoint.max_tokens(request),
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("tools", tools(request));
    set("response_format", request.answer.as_ref().map(|answer| {
        let strict = schema::strict(&answer.schema);
        let (is_strict, schema) = (strict.is_some(), strict.unwrap_or_else(|| answer.schema.clone()));
        json!({"type": "json_schema", "json_schema": {"name": answer.name, "strict": is_strict, "schema": schema}})
    }));
    set("temperature", settings.temperature.map(Value::from));
    set("top_p", settings.top_p.map(Value::from));
    set("reasoning_effort", endpoint.effort().map(Value::from));
    body
}

fn tools(request: &Request) -> Option<Value> {
    let tool = |tool: &crate::model::ToolSpec| {
        json!({"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.schema,
        }})
    };
    (!request.tools.is_empty()).then(|| sorted(request).into_iter().map(tool).collect())
}

fn messages(endpoint: &Endpoint, request: &Request) -> Vec<Value> {
    let system =
        Some(json!({"role": "system", "content": request.system})).filter(|_| !request.system.is_empty());
    system
        .into_iter()
        .chain(request.messages.iter().map(|message| self::message(endpoint, message)))
        .collect()
}

fn message(endpoint: &Endpoint, message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls, keepsake } => {
            let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
            let mut message = json!({"role": "assistant", "content": content});
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().map(call).collect();
            }
            let own = keepsake.as_ref().filter(|keepsake| keepsake.model == endpoint.full_name);
            for (name, value) in own.and_then(|keepsake| keepsake.items.as_object()).into_iter().flatten() {
                message[name.as_str()] = value.clone();
            }
            message
        }
        Message::Tool(result) => {
            json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text})
        }
    }
}

/// A call as the model wrote it, unless it is no object: the templates of local models fail on others.
fn call(call: &ToolCall) -> Value {
    let is_object = serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok();
    let arguments = if is_object { call.arguments.clone() } else { arguments_of(call).to_string() };
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

/// A reply while it is being read.
pub(super) struct Stream {
    draft: Draft,
    model: String,
    details: Vec<Value>,
    reasoning: Option<(&'static str, String)>,
}

impl Stream {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { draft: Draft::new(request), model, details: Vec::new(), reasoning: None }
    }

    fn delta(&mut self, delta: &Value, watch: &dyn Watch) {
        self.reasoned(delta, watch);
        self.draft.say(&content(&delta["content"]), watch);
        if let Some(refusal) = delta["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
            self.draft.say(refusal, watch);
            self.draft.finish = Some(Finish::ContentFilter);
        }
        let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            self.call(call, watch);
        }
    }

    fn call(&mut self, call: &Value, watch: &dyn Watch) {
        // Some send the function's fields without the object around them.
        let function = call.get("function").unwrap_or(call);
        let arguments = text_of(&function["arguments"]);
        let (id, name) = (text(call, "/id"), text(function, "/name"));
        self.draft.call(&Piece { place: call["index"].as_u64(), id, name, arguments: &arguments }, watch);
    }

    fn reasoned(&mut self, delta: &Value, watch: &dyn Watch) {
        let details = delta[REASONING[0]].as_array().map_or(&[][..], Vec::as_slice);
        self.details.extend_from_slice(details);
        let said = REASONING[1..].iter().find_map(|name| Some((*name, delta[*name].as_str()?)));
        if let Some((name, words)) = said.filter(|(_, words)| !words.is_empty()) {
            self.reasoning.get_or_insert((name, String::new())).1.push_str(words);
            watch.delta(Delta::Reasoning(words));
        }
    }

    fn used(&mut self, usage: &Value) {
        let ours = &mut self.draft.usage;
        ours.input_tokens = count(usage, "/prompt_tokens");
        ours.output_tokens = count(usage, "/completion_tokens");
        let cached = count(usage, "/prompt_tokens_details/cached_tokens");
        ours.cached_tokens = cached.max(count(usage, "/prompt_cache_hit_tokens"));
        ours.cache_write_tokens = count(usage, "/prompt_tokens_details/cache_write_tokens");
        ours.reasoning_tokens = count(usage, "/completion_tokens_details/reasoning_tokens");
        ours.cost_micros = usage["cost"].as_f64().map_or(0, micros);
    }

    fn keepsake(&mut self, reply: &Reply) -> Option<Keepsake> {
        let items = match self.reasoning.take() {
            _ if !self.details.is_empty() => json!({REASONING[0]: std::mem::take(&mut self.details)}),
            Some((name, words)) if !reply.calls.is_empty() => json!({name: words}),
            Some(_) | None => return None,
        };
        Some(Keepsake { model: self.model.clone(), items })
    }
}

/// Text, or the texts of a list of parts.
fn content(content: &Value) -> String {
    match content.as_array() {
        Some(parts) => parts.iter().map(|part| text(part, "/text")).collect(),
        None => text(content, "").to_owned(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped; no reply costs 2^64 micros"
)]
fn micros(dollars: f64) -> u64 {
    (dollars * 1e6).round().max(0.0) as u64
}

fn finish(reason: &str) -> Option<Finish> {
    match reason {
        "" | "null" => None,
        "length" | "max_tokens" | "model_length" => Some(Finish::Length),
        "content_filter" | "safety" => Some(Finish::ContentFilter),
        "tool_calls" | "function_call" => Some(Finish::ToolCalls),
        _ => Some(Finish::Stop),
    }
}

impl Reading for Stream {
    fn take(&mut self, event: &Value, watch: &dyn Watch) -> Result<Step, Value> {
        let choice = &event["choices"][0];
        let failed =
            [event, choice].into_iter().any(|part| part.get("error").is_some_and(|error| !error.is_null()));
        if failed || choice["finish_reason"] == "error" {
            return Err(if event.get("error").is_some() { event.clone() } else { choice.clone() });
        }
        for part in ["delta", "message"] {
            if choice[part].is_object() {
                self.delta(&choice[part], watch);
                break;
            }
        }
        if self.draft.finish != Some(Finish::ContentFilter) {
            self.draft.finish = finish(text(choice, "/finish_reason")).or(self.draft.finish);
        }
        if event["usage"].is_object() {
            self.used(&event["usage"]);
        }
        Ok(Step::More)
    }

    fn done(&mut self) {
        // Some never say why they stopped, only that they have.
        self.draft.finish.get_or_insert(Finish::Stop);
    }

    fn is_whole(&self) -> bool {
        self.draft.finish.is_some()
    }

    fn reply(mut self: Box<Self>) -> Option<Reply> {
        let mut reply = std::mem::take(&mut self.draft).reply()?;
        reply.keepsake = self.keepsake(&reply);
        Some(reply)
    }
}
