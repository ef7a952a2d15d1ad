//! OpenAI's responses, which its documentation recommends over chat completions: reasoning goes on from turn to turn.
//! Nothing is stored at OpenAI; the reasoning comes encrypted and goes back with the conversation.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::draft::{Draft, Piece, text_of};
use super::kept::{Part, Places, parts};
use super::{Endpoint, Reading, Step, count, schema, sorted, text};
use crate::model::{Delta, Finish, Message, Reply, Request, Watch};

/// OpenAI refuses a smaller limit.
const LEAST_TOKENS: u32 = 16;

/// The request's body.
pub(super) fn body(endpoint: &Endpoint, request: &Request) -> Value {
    let settings = &endpoint.settings;
    let mut body = json!({
        "model": endpoint.model,
        "input": request.messages.iter().flat_map(|message| items(endpoint, message)).collect::<Vec<_>>(),
        "max_output_tokens": endpoint.max_tokens(request).max(LEAST_TOKENS),
        "store": false,
        "stream": true,
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("instructions", Some(json!(request.system)).filter(|_| !request.system.is_empty()));
    set("tools", tools(request));
    set("text", request.answer.as_ref().map(|answer| {
        let strict = schema::strict(&answer.schema);
        let (is_strict, schema) = (strict.is_some(), strict.unwrap_or_else(|| answer.schema.clone()));
        json!({"format": {"type": "json_schema", "name": answer.name, "strict": is_strict, "schema": schema}})
    }));
    set("include", reasons(&endpoint.model).then(|| json!(["reasoning.encrypted_content"])));
    set("reasoning", endpoint.effort().map(|effort| json!({ "effort": effort })));
    set("temperature", settings.temperature.map(Value::from));
    set("top_p", settings.top_p.map(Value::from));
    body
}

/// Whether a model reasons. Those that don't refuse to be asked for their reasoning.
fn reasons(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model).trim_start_matches("ft:");
    !(["gpt-4", "gpt-3", "chatgpt"].iter().any(|old| name.starts_with(old)) || name.contains("-chat"))
}

/// Without `strict`, OpenAI would bend the schemas into its strict dialect by itself.
fn tools(request: &Request) -> Option<Value> {
    let tool = |tool: &crate::model::ToolSpec| {
        json!({"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema,
            "strict": false})
    };
    (!request.tools.is_empty()).then(|| sorted(request).into_iter().map(tool).collect())
}

fn items(endpoint: &Endpoint, message: &Message) -> Vec<Value> {
    match message {
        Message::User { text } => vec![json!({"role": "user", "content": text})],
        Message::Assistant { text, calls, keepsake } => {
            parts(&endpoint.full_name, text, calls, keepsake.as_ref()).iter().map(item).collect()
        }
        Message::Tool(result) => {
            vec![json!({"type": "function_call_output", "call_id": result.call_id, "output": result.text})]
        }
    }
}

fn item(part: &Part<'_>) -> Value {
    match part {
        Part::Kept(item) => (*item).clone(),
        Part::Text(text, None) => json!({"role": "assistant", "content": text}),
        Part::Text(text, Some(phase)) => json!({"role": "assistant", "content": text, "phase": phase}),
        Part::Call(call) => {
            json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
        }
    }
}

/// A reply while it is being read. Its items are put together anew from what came whole; the draft is what came in
/// pieces, for those who look on and for servers that send pieces only.
pub(super) struct Stream {
    draft: Draft,
    whole: BTreeMap<u64, Value>,
    model: String,
}

impl Stream {
    pub(super) fn new(request: &Request, model: String) -> Self {
        Self { draft: Draft::new(request), whole: BTreeMap::new(), model }
    }

    fn added(&mut self, event: &Value, watch: &dyn Watch) {
        if event["item"]["type"] == "function_call" {
            self.piece(event, &event["item"], "", watch);
        }
    }

    fn piece(&mut self, event: &Value, item: &Value, arguments: &str, watch: &dyn Watch) {
        let (id, name) = (text(item, "/call_id"), text(item, "/name"));
        self.draft.call(&Piece { place: event["output_index"].as_u64(), id, name, arguments }, watch);
    }

    fn ended(&mut self, response: &Value, finish: Finish, watch: &dyn Watch) {
        self.draft.finish = Some(finish);
        let usage = &response["usage"];
        let ours = &mut self.draft.usage;
        ours.input_tokens = count(usage, "/input_tokens");
        ours.output_tokens = count(usage, "/output_tokens");
        ours.cached_tokens = count(usage, "/input_tokens_details/cached_tokens");
        ours.cache_write_tokens = count(usage, "/input_tokens_details/cache_write_tokens");
        ours.reasoning_tokens = count(usage, "/output_tokens_details/reasoning_tokens");
        let output = response["output"].as_array().filter(|output| !output.is_empty());
        if let Some(output) = output {
            self.whole = (0..).zip(output.iter().cloned()).collect();
        }
        if self.draft.text.is_empty() && !self.whole.is_empty() {
            let told: String = self.whole.values().map(words).collect();
            self.draft.say(&told, watch);
        }
    }

    /// The items that came whole as a draft of their own, with the places of what is to be kept.
    fn put_together(&mut self) -> Places {
        let mut places = Places::default();
        let mut draft = self.draft.anew();
        if !self.whole.values().any(|item| item["type"] == "message") {
            // A reply that was cut short in its words: the item never came whole.
            draft.text = std::mem::take(&mut self.draft.text);
        }
        for (place, item) in &self.whole {
            match text(item, "/type") {
                "reasoning" => places.kept(item.clone()),
                "message" => {
                    let said = words(item);
                    places.text(said.len(), item["phase"].as_str());
                    draft.text.push_str(&said);
                    if refuses(item) {
                        draft.finish = Some(Finish::ContentFilter);
                    }
                }
                "function_call" => {
                    places.call();
                    let (id, name) = (text(item, "/call_id"), text(item, "/name"));
                    let arguments = text_of(&item["arguments"]);
                    draft.call(&Piece { place: Some(*place), id, name, arguments: &arguments }, &());
                }
                _ => {}
            }
        }
        self.draft = draft;
        places
    }
}

/// The words of a message, those of a refusal too.
fn words(item: &Value) -> String {
    let parts = item["content"].as_array().map_or(&[][..], Vec::as_slice);
    parts.iter().flat_map(|part| [text(part, "/text"), text(part, "/refusal")]).collect()
}

fn refuses(item: &Value) -> bool {
    item["content"].as_array().is_some_and(|parts| parts.iter().any(|part| part["type"] == "refusal"))
}

fn incomplete(response: &Value) -> Finish {
    if text(response, "/incomplete_details/reason") == "content_filter" {
        Finish::ContentFilter
    } else {
        Finish::Length
    }
}

impl Reading for Stream {
    fn take(&mut self, event: &Value, watch: &dyn Watch) -> Result<Step, Value> {
        let response = event.get("response").unwrap_or(event);
        match text(event, "/type") {
            "response.output_item.added" => self.added(event, watch),
            "response.output_text.delta" | "response.refusal.delta" => {
                self.draft.say(text(event, "/delta"), watch)
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                watch.delta(Delta::Reasoning(text(event, "/delta")));
            }
            "response.function_call_arguments.delta" => {
                self.piece(event, &Value::Null, text(event, "/delta"), watch)
            }
            "response.function_call_arguments.done" => {
                self.draft.whole_arguments(count(event, "/output_index"), text(event, "/arguments"));
            }
            "response.output_item.done" => {
                self.whole.insert(count(event, "/output_index"), event["item"].clone());
            }
            "response.completed" | "response.done" => {
                self.ended(response, Finish::Stop, watch);
                return Ok(Step::Over);
            }
            "response.incomplete" => {
                self.ended(response, incomplete(response), watch);
                return Ok(Step::Over);
            }
            "response.failed" | "response.cancelled" | "error" => return Err(response.clone()),
            _ => return self.in_one_piece(event, watch),
        }
        Ok(Step::More)
    }

    fn is_whole(&self) -> bool {
        self.draft.finish.is_some()
    }

    fn reply(mut self: Box<Self>) -> Option<Reply> {
        let finish = self.draft.finish?;
        let places = if self.whole.is_empty() { Places::default() } else { self.put_together() };
        let mut reply = self.draft.reply()?;
        // A reply that was cut short may end within an item that must not be sent again.
        reply.keepsake =
            Some(places).filter(|_| finish == Finish::Stop).and_then(|it| it.keepsake(&self.model));
        Some(reply)
    }
}

impl Stream {
    /// An answer that came without a stream is a response; other events are none of ours.
    fn in_one_piece(&mut self, event: &Value, watch: &dyn Watch) -> Result<Step, Value> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            return Err(event.clone());
        }
        let finish = match text(event, "/status") {
            "completed" => Finish::Stop,
            "incomplete" => incomplete(event),
            _ => return Ok(Step::More),
        };
        self.ended(event, finish, watch);
        Ok(Step::Over)
    }
}
