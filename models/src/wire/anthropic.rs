//! Anthropic's messages. The prefix that stays (tools, instructions, the conversation so far) is marked for its cache;
//! results of calls made at once go back in one turn; signed thinking goes back unchanged and in its place.

use serde_json::{Map, Value, json};

use super::draft::{Draft, Piece, arguments_of};
use super::kept::{Part, Places, parts};
use super::{Endpoint, Reading, Step, count, schema, sorted, text};
use crate::model::{Delta, Finish, Message, Reply, Request, Watch};

/// What can be told of a model by its name: `claude-sonnet-4-5-20250929`, `claude-3-7-sonnet-latest`, also behind the
/// name of a vendor. Names without a number are newer than all of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
struct Version(u32, u32);

impl Version {
    /// `None` for models that are not Anthropic's but speak its wire.
    fn of(model: &str) -> Option<Self> {
        let name = &model[model.find("claude")?..];
        let numbers = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| part.len() <= 2);
        let mut numbers = numbers.filter_map(|part| part.parse().ok());
        Some(numbers.next().map_or(Self(u32::MAX, 0), |major| Self(major, numbers.next().unwrap_or(0))))
    }
}

/// Whether a model takes a schema for its answer.
pub(super) fn takes_schemas(model: &str) -> bool {
    Version::of(model).is_some_and(|version| version >= Version(4, 5))
}

/// The request's body.
pub(super) fn body(endpoint: &Endpoint, request: &Request) -> Value {
    let mut body = json!({
        "model": endpoint.model,
        "max_tokens": endpoint.max_tokens(request).max(1),
        "messages": messages(endpoint, request),
        "stream": true,
    });
    let cached = json!({"type": "ephemeral"});
    let mut tools: Vec<Value> = sorted(request)
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema}))
        .collect();
    if request.system.is_empty() {
        tools.last_mut().into_iter().for_each(|last| last["cache_control"] = cached.clone());
    } else {
        body["system"] = json!([{"type": "text", "text": request.system, "cache_control": cached}]);
    }
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools);
    } else if let Some(tools) = past_tools(request) {
        body["tools"] = tools;
        body["tool_choice"] = json!({"type": "none"});
    }
    let form = request.answer.as_ref().and_then(|answer| schema::strict(&answer.schema));
    if let Some(schema) = form.filter(|_| takes_schemas(&endpoint.model)) {
        body["output_config"]["format"] = json!({"type": "json_schema", "schema": schema});
    }
    think(endpoint, &mut body);
    body
}

/// The tools that were called in a conversation which may call none any more: calls without their tools are refused.
fn past_tools(request: &Request) -> Option<Value> {
    let calls = request.messages.iter().flat_map(|message| match message {
        Message::Assistant { calls, .. } => calls.as_slice(),
        Message::User { .. } | Message::Tool(_) => &[],
    });
    let names: std::collections::BTreeSet<&str> = calls.map(|call| call.name.as_str()).collect();
    let tool = |name: &&str| json!({"name": name, "input_schema": {"type": "object"}});
    (!names.is_empty()).then(|| names.iter().map(tool).collect())
}

/// How hard it thinks, and with how much chance. Models from 4.6 on decide by themselves how much they think, older
/// ones get a number of tokens, which comes on top of those of the reply. A model that thinks takes no temperature,
/// nor does any from 4.7 on.
fn think(endpoint: &Endpoint, body: &mut Value) {
    let version = Version::of(&endpoint.model);
    let effort = endpoint.effort().filter(|effort| !matches!(*effort, "none" | "off"));
    let thinks = match (effort, version) {
        (None, _) => false,
        (Some(_), Some(version)) if version < Version(3, 7) => false,
        (Some(effort), Some(version)) if version >= Version(4, 6) => {
            body["thinking"] = json!({"type": "adaptive"});
            body["output_config"]["effort"] = json!(if effort == "minimal" { "low" } else { effort });
            true
        }
        (Some(effort), Some(_) | None) => {
            let tokens = budget(effort);
            body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
            body["max_tokens"] = json!(count(body, "/max_tokens") + tokens);
            true
        }
    };
    let sampled = !thinks && version.is_none_or(|version| version < Version(4, 7));
    let settings = [("temperature", endpoint.settings.temperature), ("top_p", endpoint.settings.top_p)];
    for (name, value) in settings.into_iter().filter(|_| sampled) {
        value.into_iter().for_each(|value| body[name] = json!(value));
    }
}

fn budget(effort: &str) -> u64 {
    match effort {
        "minimal" | "low" => 2_048,
        "medium" => 8_192,
        "high" => 16_384,
        _ => 32_768,
    }
}

/// The turns: those of one side one after the other are one turn, since results of calls made at once must come
/// together. The last two turns of the user's are marked for the cache: the one for this request, the other to find
/// what the last request left there.
fn messages(endpoint: &Endpoint, request: &Request) -> Vec<Value> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in &request.messages {
        let (role, blocks) = blocks(endpoint, message);
        match turns.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, held)) if *last == role => held.extend(blocks),
            Some(_) | None => turns.push((role, blocks)),
        }
    }
    for (_, blocks) in turns.iter_mut().rev().filter(|(role, _)| *role == "user").take(2) {
        blocks.last_mut().into_iter().for_each(|last| last["cache_control"] = json!({"type": "ephemeral"}));
    }
    turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn blocks(endpoint: &Endpoint, message: &Message) -> (&'static str, Vec<Value>) {
    match message {
        Message::User { text } => ("user", said(text).into_iter().collect()),
        Message::Assistant { text, calls, keepsake } => {
            let parts = parts(&endpoint.full_name, text, calls, keepsake.as_ref());
            ("assistant", parts.iter().filter_map(block).collect())
        }
        Message::Tool(result) => {
            let mut block = json!({"type": "tool_result", "tool_use_id": id(&result.call_id)});
            said(&result.text).into_iter().for_each(|text| block["content"] = json!([text]));
            if result.is_error {
                block["is_error"] = json!(true);
            }
            ("user", vec![block])
        }
    }
}

fn block(part: &Part<'_>) -> Option<Value> {
    match part {
        Part::Kept(item) => Some((*item).clone()),
        Part::Text(text, _) => said(text),
        Part::Call(call) => {
            let input = arguments_of(call);
            Some(json!({"type": "tool_use", "id": id(&call.id), "name": call.name, "input": input}))
        }
    }
}

/// Blocks without a word are refused.
fn said(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

/// An id with the letters that Anthropic allows: those of other providers may have more.
fn id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect()
}

/// A reply while it is being read.
pub(super) struct Stream {
    draft: Draft,
    model: String,
    blocks: Vec<Block>,
    usage: Map<String, Value>,
}

/// A block while it is being read.
struct Block {
    place: u64,
    head: Value,
    text: String,
}

impl Stream {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { draft: Draft::new(request), model, blocks: Vec::new(), usage: Map::new() }
    }

    fn begin(&mut self, place: u64, block: &Value, watch: &dyn Watch) {
        let mut text = String::new();
        match super::text(block, "/type") {
            "text" => {
                super::text(block, "/text").clone_into(&mut text);
                self.draft.say(&text, watch);
            }
            "tool_use" => {
                let input = block["input"].as_object().filter(|input| !input.is_empty());
                let arguments = input.map_or_else(String::new, |input| json!(input).to_string());
                let (id, name) = (super::text(block, "/id"), super::text(block, "/name"));
                self.draft.call(&Piece { place: Some(place), id, name, arguments: &arguments }, watch);
            }
            _ => {}
        }
        self.blocks.push(Block { place, head: block.clone(), text });
    }

    fn delta(&mut self, place: u64, delta: &Value, watch: &dyn Watch) {
        let Some(block) = self.blocks.iter_mut().find(|block| block.place == place) else { return };
        match super::text(delta, "/type") {
            "text_delta" => {
                block.text.push_str(super::text(delta, "/text"));
                self.draft.say(super::text(delta, "/text"), watch);
            }
            "thinking_delta" => {
                append(&mut block.head, "thinking", super::text(delta, "/thinking"));
                watch.delta(Delta::Reasoning(super::text(delta, "/thinking")));
            }
            "signature_delta" => append(&mut block.head, "signature", super::text(delta, "/signature")),
            "input_json_delta" => {
                let arguments = super::text(delta, "/partial_json");
                self.draft.call(&Piece { place: Some(place), id: "", name: "", arguments }, watch);
            }
            _ => {}
        }
    }

    /// Counts come at the start and at the end; the later ones are sums.
    fn used(&mut self, usage: &Value) {
        let told = usage.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        told.for_each(|(name, value)| drop(self.usage.insert(name.clone(), value.clone())));
        let all = Value::Object(self.usage.clone());
        let ours = &mut self.draft.usage;
        ours.cached_tokens = count(&all, "/cache_read_input_tokens");
        ours.cache_write_tokens = count(&all, "/cache_creation_input_tokens");
        let all_cached = ours.cached_tokens.saturating_add(ours.cache_write_tokens);
        ours.input_tokens = count(&all, "/input_tokens").saturating_add(all_cached);
        ours.output_tokens = count(&all, "/output_tokens");
        ours.reasoning_tokens = count(&all, "/output_tokens_details/thinking_tokens");
    }

    /// Why it stopped. That the model's window was full on the way is an error as if it had been full at the start.
    fn stopped(&mut self, reason: &str) -> Result<(), Value> {
        self.draft.finish = match reason {
            "" => self.draft.finish,
            "max_tokens" => Some(Finish::Length),
            "tool_use" => Some(Finish::ToolCalls),
            "refusal" => Some(Finish::ContentFilter),
            "model_context_window_exceeded" => {
                let message = "the reply reached the end of the model's context window";
                return Err(json!({"error": {"type": "context_window_exceeded", "message": message}}));
            }
            _ => Some(Finish::Stop),
        };
        Ok(())
    }

    fn places(&self) -> Places {
        let mut places = Places::default();
        for block in &self.blocks {
            match super::text(&block.head, "/type") {
                "text" => places.text(block.text.len(), None),
                "tool_use" => places.call(),
                "thinking" | "redacted_thinking" => places.kept(block.head.clone()),
                _ => {}
            }
        }
        places
    }

    /// An answer that came without a stream.
    fn in_one_piece(&mut self, message: &Value, watch: &dyn Watch) -> Result<Step, Value> {
        let content = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        for (place, block) in (0..).zip(content) {
            self.begin(place, block, watch);
        }
        self.used(&message["usage"]);
        self.stopped(text(message, "/stop_reason")).map(|()| Step::Over)
    }
}

fn append(block: &mut Value, name: &str, words: &str) {
    let held = text(block, &format!("/{name}")).to_owned();
    if let Some(block) = block.as_object_mut() {
        block.insert(name.to_owned(), json!(held + words));
    }
}

impl Reading for Stream {
    fn take(&mut self, event: &Value, watch: &dyn Watch) -> Result<Step, Value> {
        let place = count(event, "/index");
        match text(event, "/type") {
            "message_start" => self.used(&event["message"]["usage"]),
            "content_block_start" => self.begin(place, &event["content_block"], watch),
            "content_block_delta" => self.delta(place, &event["delta"], watch),
            "message_delta" => {
                self.used(&event["usage"]);
                self.stopped(text(event, "/delta/stop_reason"))?;
            }
            "message_stop" => return Ok(Step::Over),
            "message" => return self.in_one_piece(event, watch),
            "error" => return Err(event.clone()),
            _ if event.get("error").is_some() => return Err(event.clone()),
            _ => {}
        }
        Ok(Step::More)
    }

    fn is_whole(&self) -> bool {
        self.draft.finish.is_some()
    }

    fn reply(self: Box<Self>) -> Option<Reply> {
        let places = self.places();
        let mut reply = self.draft.reply()?;
        // Thinking that was cut off has no signature.
        let is_whole = matches!(reply.finish, Finish::Stop | Finish::ToolCalls);
        reply.keepsake = Some(places).filter(|_| is_whole).and_then(|places| places.keepsake(&self.model));
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        let cases = [
            ("claude-3-5-haiku-20241022", Some(Version(3, 5))),
            ("claude-3-7-sonnet-latest", Some(Version(3, 7))),
            ("claude-opus-4-20250514", Some(Version(4, 0))),
            ("claude-opus-4-1-20250805", Some(Version(4, 1))),
            ("anthropic/claude-sonnet-4.6", Some(Version(4, 6))),
            ("us.anthropic.claude-haiku-4-5-20251001-v1:0", Some(Version(4, 5))),
            ("claude-sonnet-5", Some(Version(5, 0))),
            ("claude-mythos-preview", Some(Version(u32::MAX, 0))),
            ("deepseek-chat", None),
        ];
        for (name, version) in cases {
            assert_eq!(Version::of(name), version, "{name}");
        }
    }
}
