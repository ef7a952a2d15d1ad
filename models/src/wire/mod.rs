//! The wires: each translates [`Request`] into one provider's HTTP interface and its stream back into a [`Reply`]. A
//! wire asks once: it retries nothing, follows no redirect and knows no price. What it can't do by itself it leaves
//! out (see [`Native`]); the shape layer makes up for that. Keys come in here and go out in one request header, never
//! in a text.
//!
//! ```text
//! mod        what a wire is, and the call: body → post → events → reading → reply
//! ├─ openai_chat, openai_responses, anthropic, ollama     one provider's words each
//! ├─ long_tail   the providers of the crate `genai` (feature `genai`)
//! ├─ post        the request over HTTP: what comes back is an answer in events or in one piece
//! ├─ events      events out of bytes (SSE, NDJSON), with their limits
//! ├─ draft       a reply while it is being written
//! ├─ kept        what a provider wants to see again, in its place among text and calls
//! ├─ schema      the strict dialect of JSON Schema
//! ├─ fault       a provider's errors in our words
//! └─ secret      what must not be read in a text
//! ```

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use secrecy::SecretString;
use serde_json::{Map, Value};

use crate::choice::Settings;
use crate::model::{Model, ModelError, Reply, Request, Watch};

mod anthropic;
mod draft;
mod events;
mod fault;
mod kept;
#[cfg(feature = "genai")]
pub mod long_tail;
mod ollama;
mod openai_chat;
mod openai_responses;
mod post;
pub mod schema;
mod secret;

use events::Events;
use post::{Answer, Post};

/// The HTTP interfaces that are spoken here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's chat completions, as OpenAI, OpenRouter, LM Studio, vLLM, llama.cpp and most gateways speak them:
    /// `POST {base_url}/chat/completions`.
    OpenAiChat,
    /// OpenAI's responses: `POST {base_url}/responses`.
    OpenAiResponses,
    /// Anthropic's messages: `POST {base_url}/v1/messages`; a `base_url` that ends in `/v1` is understood too.
    Anthropic,
    /// Ollama's own chat: `POST {base_url}/api/chat`.
    Ollama,
}

/// One model behind one address.
#[derive(Clone)]
pub struct Endpoint {
    /// What is spoken there.
    pub wire: Wire,
    /// The address, with `http` or `https`, without the path that the wire adds.
    pub base_url: String,
    /// The key, where there is one.
    pub key: Option<SecretString>,
    /// The model as the provider knows it.
    pub model: String,
    /// The model as we know it, `provider:model`.
    pub full_name: String,
    /// How it is set. `base_url`, `key_variable` and `structured` have been dealt with and are not looked at.
    pub settings: Settings,
}

/// What a wire can do by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Native {
    /// Answers in the form of a JSON schema; where [`schema::strict`] gives one, the answer is sure to have it.
    pub structured: bool,
    /// Calls tools.
    pub tools: bool,
    /// Does both in one request.
    pub tools_with_structured: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets = secret::Secrets::of(self);
        f.debug_struct("Endpoint")
            .field("wire", &self.wire)
            .field("full_name", &self.full_name)
            .field("base_url", &secrets.hide(&self.base_url))
            .field("key", &self.key.as_ref().map(|_| "[hidden]"))
            .field("extra_headers", &self.settings.extra_headers.keys())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// What it can do by itself. OpenAI and Anthropic take a schema and tools in one request; servers of local models
    /// bind a reply either to a schema or to the form of a call.
    #[must_use]
    pub fn native(&self) -> Native {
        let (structured, both) = match self.wire {
            Wire::OpenAiChat => (true, self.is_openai()),
            Wire::OpenAiResponses => (true, true),
            Wire::Anthropic => {
                let structured = anthropic::takes_schemas(&self.model);
                (structured, structured)
            }
            Wire::Ollama => (true, false),
        };
        Native { structured, tools: true, tools_with_structured: both }
    }

    /// Whether it is OpenAI's own address, or Azure's, which no other server's habits apply to.
    fn is_openai(&self) -> bool {
        let host = reqwest::Url::parse(&self.base_url).ok().and_then(|url| url.host_str().map(str::to_owned));
        host.is_some_and(|host| ["openai.com", "openai.azure.com"].iter().any(|own| is_within(&host, own)))
    }

    /// The most tokens that a reply to a request may have.
    fn max_tokens(&self, request: &Request) -> u32 {
        self.settings
            .max_output_tokens
            .map_or(request.max_output_tokens, |own| own.min(request.max_output_tokens))
    }

    fn effort(&self) -> Option<&str> {
        self.settings.reasoning_effort.as_deref().map(str::trim).filter(|effort| !effort.is_empty())
    }
}

fn is_within(host: &str, domain: &str) -> bool {
    host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// A model that is asked over its wire.
#[must_use]
pub fn connect(endpoint: Endpoint) -> Arc<dyn Model> {
    Arc::new(Connected { post: Post::new(&endpoint), endpoint })
}

/// One provider's stream while it is being read.
trait Reading: Send {
    /// Takes one event, or the whole of an answer that came in one piece.
    ///
    /// # Errors
    /// The event tells an error: the provider's words.
    fn take(&mut self, event: &Value, watch: &dyn Watch) -> Result<Step, Value>;

    /// The stream says that it is over by `[DONE]`.
    fn done(&mut self) {}

    /// Whether the provider has said why it stopped.
    fn is_whole(&self) -> bool;

    /// The reply; `None` where the provider never said that it is whole.
    fn reply(self: Box<Self>) -> Option<Reply>;
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    More,
    Over,
}

/// A model behind an address.
struct Connected {
    endpoint: Endpoint,
    post: Post,
}

impl Model for Connected {
    fn name(&self) -> &str {
        &self.endpoint.full_name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let patience = self.endpoint.settings.timeout();
        let asked = tokio::time::timeout(patience, self.ask(request, watch));
        asked.map(move |reply| reply.unwrap_or(Err(ModelError::Timeout { after: patience }))).boxed()
    }
}

impl Connected {
    async fn ask(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        let body = merged(self.body(request), &self.endpoint.settings.extra_body);
        let mut reading = self.reading(request);
        match self.post.send(body.to_string().into_bytes()).await? {
            Answer::Events(events) => self.follow(events, reading.as_mut(), watch).await?,
            Answer::Whole(value) => self.take(&value, reading.as_mut(), watch).map(drop)?,
        }
        reading.reply().ok_or_else(|| ModelError::Truncated {
            message: "the stream ended before the provider said that the reply is whole".to_owned(),
        })
    }

    fn body(&self, request: &Request) -> Value {
        match self.endpoint.wire {
            Wire::OpenAiChat => openai_chat::body(&self.endpoint, request),
            Wire::OpenAiResponses => openai_responses::body(&self.endpoint, request),
            Wire::Anthropic => anthropic::body(&self.endpoint, request),
            Wire::Ollama => ollama::body(&self.endpoint, request),
        }
    }

    fn reading(&self, request: &Request) -> Box<dyn Reading> {
        let name = self.endpoint.full_name.clone();
        match self.endpoint.wire {
            Wire::OpenAiChat => Box::new(openai_chat::Stream::new(request, name)),
            Wire::OpenAiResponses => Box::new(openai_responses::Stream::new(request, name)),
            Wire::Anthropic => Box::new(anthropic::Stream::new(request, name)),
            Wire::Ollama => Box::new(ollama::Stream::new(request)),
        }
    }

    /// Reads until the provider says that it is over. A stream that breaks after the reply was whole has done its
    /// work: what is lost is at most a count of tokens, and asking again would cost all of them.
    async fn follow(
        &self,
        mut events: Events,
        reading: &mut dyn Reading,
        watch: &dyn Watch,
    ) -> Result<(), ModelError> {
        let mut seen = 0;
        while let Some(event) = events.next().await {
            let data = match event {
                Ok(data) => data,
                Err(events::Broken::Cut(_) | events::Broken::Silent(_)) if reading.is_whole() => {
                    return Ok(());
                }
                Err(broken) => return Err(self.post.broken(&broken, seen)),
            };
            if data.trim() == "[DONE]" {
                reading.done();
                break;
            }
            seen += 1;
            let value = serde_json::from_str(&data).map_err(|error| self.post.unreadable(&data, &error))?;
            if self.take(&value, reading, watch)? == Step::Over {
                break;
            }
        }
        drain(events).await;
        Ok(())
    }

    fn take(&self, value: &Value, reading: &mut dyn Reading, watch: &dyn Watch) -> Result<Step, ModelError> {
        reading.take(value, watch).map_err(|told| fault::of_value(&told, &self.post.secrets))
    }
}

/// Reads what little may follow the end of a reply, so that the connection can be used again.
async fn drain(events: Events) {
    let rest = events.take(16).for_each(|_| std::future::ready(()));
    // Not worth more than a new connection would take.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(50), rest).await;
}

/// The body with the fields of the settings, which win; objects are merged, null takes a field out.
fn merged(mut body: Value, extra: &Map<String, Value>) -> Value {
    if let Value::Object(fields) = &mut body {
        merge(fields, extra);
    }
    body
}

fn merge(fields: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (name, value) in extra {
        match (fields.get_mut(name), value) {
            (_, Value::Null) => drop(fields.remove(name)),
            (Some(Value::Object(within)), Value::Object(more)) => merge(within, more),
            (Some(_) | None, _) => drop(fields.insert(name.clone(), value.clone())),
        }
    }
}

/// The tools in an order that does not depend on who put them together, so that providers find them in their caches.
fn sorted(request: &Request) -> Vec<&crate::model::ToolSpec> {
    let mut tools: Vec<_> = request.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    tools
}

/// A number of an event; what is none counts as 0.
fn count(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// A text of an event; what is none counts as empty.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_the_settings_win_and_null_takes_a_field_out() {
        let body = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": 3});
        let extra = json!({"a": 2, "b": {"d": 3, "f": 4}, "e": null, "g": [1]});
        let all = merged(body, extra.as_object().unwrap());
        assert_eq!(all, json!({"a": 2, "b": {"c": 1, "d": 3, "f": 4}, "g": [1]}));
    }

    #[test]
    fn what_a_wire_can_do_by_itself_depends_on_the_address_and_the_model() {
        let native = |wire, base_url: &str, model: &str| {
            let (key, settings) = (None, Settings::default());
            let full_name = format!("p:{model}");
            Endpoint { wire, base_url: base_url.into(), key, model: model.into(), full_name, settings }
                .native()
        };
        let all = Native { structured: true, tools: true, tools_with_structured: true };
        let either = Native { tools_with_structured: false, ..all };
        let neither = Native { structured: false, ..either };
        assert_eq!(native(Wire::OpenAiChat, "https://api.openai.com/v1", "gpt-5"), all);
        assert_eq!(native(Wire::OpenAiChat, "https://x.openai.azure.com/openai/v1", "gpt-5"), all);
        assert_eq!(native(Wire::OpenAiChat, "https://notopenai.com/v1", "gpt-5"), either);
        assert_eq!(native(Wire::OpenAiResponses, "http://localhost:1/v1", "gpt-5"), all);
        assert_eq!(native(Wire::Anthropic, "https://api.anthropic.com", "claude-sonnet-4-5"), all);
        assert_eq!(native(Wire::Anthropic, "https://api.anthropic.com", "claude-sonnet-4-20250514"), neither);
        assert_eq!(native(Wire::Ollama, "http://localhost:11434", "qwen3"), either);
    }

    #[test]
    fn only_openai_s_own_addresses_are_told_the_newer_limit() {
        let request = Request {
            system: String::new(),
            messages: Vec::new(),
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 7,
        };
        for (base_url, name, other) in [
            ("https://api.openai.com/v1", "max_completion_tokens", "max_tokens"),
            ("http://localhost:1234/v1", "max_tokens", "max_completion_tokens"),
        ] {
            let endpoint = Endpoint {
                wire: Wire::OpenAiChat,
                base_url: base_url.into(),
                key: None,
                model: "m".into(),
                full_name: "p:m".into(),
                settings: Settings::default(),
            };
            let body = openai_chat::body(&endpoint, &request);
            assert_eq!((&body[name], body.get(other)), (&json!(7), None));
        }
    }

    #[test]
    fn what_is_shown_of_an_endpoint_holds_no_key() {
        let mut settings = Settings::default();
        settings.extra_headers.insert("Authorization".into(), "Bearer header-secret-1".into());
        let endpoint = Endpoint {
            wire: Wire::OpenAiChat,
            base_url: "https://user:url-secret-1@example.com/v1".into(),
            key: Some("key-secret-1".into()),
            model: "m".into(),
            full_name: "p:m".into(),
            settings,
        };
        let shown = format!("{endpoint:?} {endpoint:#?}");
        assert!(!shown.contains("secret-1"), "{shown}");
    }
}

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile_tests;
