//! The wires: each translates a [`Request`] into one provider's HTTP API and the streamed response back into a
//! [`Reply`]. A wire sends a request once: it does not retry, follows no redirects and knows no prices. What a provider
//! does not support is left out (see [`NativeOutputSupport`]); [`crate::structured`] compensates for that. API keys are used in
//! one request header and never appear in a text.
//!
//! ```text
//! mod        the request from end to end: conversation → body → http → events → parser → reply
//! ├─ conversation     the normal form of a conversation, from which each wire makes its messages
//! ├─ openai_chat, openai_responses, anthropic, gemini, bedrock, ollama     one API each
//! ├─ http             the HTTP request; the response is a stream of events or a single JSON value
//! ├─ events           parses bytes into events (SSE, NDJSON), with size limits
//! ├─ frames           parses bytes into the events of Amazon's binary streams
//! ├─ reply_builder    assembles a reply from streamed pieces
//! ├─ finish           maps the providers' finish reasons to ours
//! ├─ provider_state   opaque provider state and its position among text and calls
//! ├─ schema           the strict subset of JSON Schema
//! └─ error            maps provider errors to `ModelError`
//! ```

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::result::Usage;
use millrace_protocol::secrets::{SecretRedactor, redact_text};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use crate::image::{ImageSupport, MediaSupport, replace_unsent_images};
use crate::model::{DeltaListener, Image, Message, Model, ModelError, Reply, Request, ToolResult};
use crate::resilience::estimate_usage;
use crate::selection::ModelSettings;
use crate::vision::{sees_images, takes_pdf};

mod anthropic;
mod bedrock;
mod conversation;
mod error;
mod events;
mod finish;
mod frames;
mod gemini;
mod http;
mod ollama;
mod openai_chat;
mod openai_responses;
mod provider_state;
mod reply_builder;
pub mod schema;

pub(crate) use conversation::{CallIdForm, normalize_conversation};
use events::EventStream;
use http::{HttpSender, ResponseBody};

/// The supported HTTP APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireProtocol {
    /// OpenAI's Chat Completions API, which OpenRouter, LM Studio, vLLM, llama.cpp and most gateways implement too:
    /// `POST {base_url}/chat/completions`.
    OpenAiChat,
    /// OpenAI's Responses API: `POST {base_url}/responses`.
    OpenAiResponses,
    /// Anthropic's Messages API: `POST {base_url}/v1/messages`; `base_url` may already end with `/v1`.
    Anthropic,
    /// Ollama's own chat API: `POST {base_url}/api/chat`.
    Ollama,
    /// Google's Gemini API: `POST {base_url}/models/{model}:streamGenerateContent`.
    Gemini,
    /// Amazon Bedrock's Converse API, with a bearer token: `POST {base_url}/model/{model}/converse-stream`.
    Bedrock,
}

/// The ways in which a server differs from others with the same API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// It runs local models and enforces any schema by a grammar.
    pub is_local: bool,
    /// It is Google Cloud's Vertex AI, which has URLs and credentials of its own for the APIs of Google and Anthropic.
    pub is_vertex: bool,
    /// Chat Completions: it switches thinking with the field `thinking`, besides the effort.
    pub has_thinking_switch: bool,
    /// Chat Completions: it rejects `stream_options`.
    pub rejects_stream_options: bool,
    /// The value of the header `Accept`.
    pub accept: Option<&'static str>,
}

impl Dialect {
    /// No difference.
    pub const STANDARD: Self = Self {
        is_local: false,
        is_vertex: false,
        has_thinking_switch: false,
        rejects_stream_options: false,
        accept: None,
    };
}

/// One model at one address.
#[derive(Clone)]
pub struct ModelEndpoint {
    /// The API of the server.
    pub wire: WireProtocol,
    /// The differences from other servers of this API.
    pub dialect: Dialect,
    /// The URL, without the path that the wire appends.
    pub base_url: String,
    /// The API key, if any.
    pub key: Option<SecretString>,
    /// The provider's name of the model.
    pub model: String,
    /// The full name of the model, `provider:model`.
    pub full_name: String,
    /// The model's settings. `base_url`, `key_variable` and `structured` are already resolved and ignored here.
    pub settings: ModelSettings,
}

/// The native features of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeOutputSupport {
    /// Answers that follow a JSON schema; guaranteed to if [`schema::to_strict_schema`] supports the schema.
    pub structured: bool,
    /// Tool calls.
    pub tools: bool,
    /// Both in one request.
    pub tools_with_structured: bool,
}

impl fmt::Debug for ModelEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redactor = self.secrets();
        f.debug_struct("Endpoint")
            .field("wire", &self.wire)
            .field("full_name", &self.full_name)
            .field("base_url", &redactor.redact(&self.base_url))
            .field("key", &self.key.as_ref().map(|_| "[hidden]"))
            .field("extra_headers", &self.settings.extra_headers.keys())
            .finish_non_exhaustive()
    }
}

impl ModelEndpoint {
    /// Returns its secrets: the API key, the values of headers, and the credentials in the URL.
    fn secrets(&self) -> SecretRedactor {
        let mut secrets = SecretRedactor::default();
        self.key.iter().for_each(|key| secrets.add(key.expose_secret()));
        self.settings.extra_headers.iter().for_each(|(name, value)| secrets.add_header(name, value));
        secrets.add_url(&self.base_url);
        secrets
    }

    /// Returns what the endpoint supports natively. OpenAI and Anthropic accept a schema and tools in one request; servers
    /// of local models constrain a reply either to a schema or to a tool call.
    #[must_use]
    pub fn native_output_support(&self) -> NativeOutputSupport {
        let (structured, both) = match self.wire {
            WireProtocol::OpenAiChat => (true, self.is_openai_host()),
            WireProtocol::OpenAiResponses => (true, true),
            WireProtocol::Anthropic => {
                let structured = anthropic::supports_output_schemas(&self.model);
                (structured, structured)
            }
            WireProtocol::Ollama | WireProtocol::Gemini => (true, false),
            WireProtocol::Bedrock => (false, false),
        };
        NativeOutputSupport { structured, tools: true, tools_with_structured: both }
    }

    /// Returns `true` for OpenAI's own address or Azure's; other servers differ from them in some ways.
    fn is_openai_host(&self) -> bool {
        let host = reqwest::Url::parse(&self.base_url).ok().and_then(|url| url.host_str().map(str::to_owned));
        host.is_some_and(|host| ["openai.com", "openai.azure.com"].iter().any(|own| is_in_domain(&host, own)))
    }

    /// Returns the maximum number of tokens for the reply.
    fn max_output_tokens(&self, request: &Request) -> u32 {
        self.settings
            .max_output_tokens
            .map_or(request.max_output_tokens, |own| own.min(request.max_output_tokens))
    }

    /// The way in which the model gets images: as its settings say, or the table.
    fn image_support(&self) -> ImageSupport {
        match self.settings.images.unwrap_or_else(|| sees_images(&self.model)) {
            true => ImageSupport::Native,
            false => ImageSupport::None,
        }
    }

    /// The way in which the model gets images and PDF files. Only the APIs of Anthropic, OpenAI and Gemini take PDF files by default;
    /// other servers with the same protocols refuse them, unless the settings say otherwise.
    fn media_support(&self) -> MediaSupport {
        let images = self.image_support();
        let by_default = || {
            let by_protocol = match self.wire {
                WireProtocol::Anthropic | WireProtocol::Gemini => true,
                WireProtocol::OpenAiChat | WireProtocol::OpenAiResponses => self.is_openai_host(),
                WireProtocol::Ollama | WireProtocol::Bedrock => false,
            };
            by_protocol && images == ImageSupport::Native && takes_pdf(&self.model)
        };
        let is_possible = self.wire != WireProtocol::Ollama;
        MediaSupport { images, takes_pdf: is_possible && self.settings.pdf.unwrap_or_else(by_default) }
    }

    /// The ids of calls that the server accepts.
    fn call_id_form(&self) -> CallIdForm {
        match self.wire {
            WireProtocol::OpenAiChat | WireProtocol::Bedrock if self.is_mistral() => {
                CallIdForm::NineAlphanumeric
            }
            WireProtocol::OpenAiChat => CallIdForm::Text(40),
            WireProtocol::OpenAiResponses | WireProtocol::Gemini | WireProtocol::Ollama => {
                CallIdForm::Text(64)
            }
            WireProtocol::Anthropic | WireProtocol::Bedrock => CallIdForm::Word(64),
        }
    }

    /// Returns `true` for models of Mistral, whichever server runs them.
    fn is_mistral(&self) -> bool {
        conversation::is_mistral(&self.full_name)
    }

    fn reasoning_effort(&self) -> Option<&str> {
        self.settings.reasoning_effort.as_deref().map(str::trim).filter(|effort| !effort.is_empty())
    }
}

fn is_in_domain(host: &str, domain: &str) -> bool {
    host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the model behind an endpoint.
#[must_use]
pub fn create_http_model(endpoint: ModelEndpoint) -> Arc<dyn Model> {
    Arc::new(HttpModel { sender: HttpSender::new(&endpoint), endpoint })
}

/// Parses the response of one provider.
trait StreamParser: Send {
    /// Processes one event, or a complete response that was not streamed.
    ///
    /// # Errors
    /// The event is an error; returned in the provider's format.
    fn handle_event(&mut self, event: &Value, listener: &dyn DeltaListener) -> Result<EventOutcome, Value>;

    /// Processes the end marker `[DONE]`.
    fn on_done_marker(&mut self) {}

    /// Returns `true` once the provider has sent the finish reason.
    fn is_complete(&self) -> bool;

    /// Returns the reply; `None` if the provider never sent a finish reason.
    fn into_reply(self: Box<Self>) -> Option<Reply>;
}

/// Tells if further events are expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventOutcome {
    Continue,
    Complete,
}

/// A model reached over HTTP.
struct HttpModel {
    endpoint: ModelEndpoint,
    sender: HttpSender,
}

impl Model for HttpModel {
    fn name(&self) -> &str {
        &self.endpoint.full_name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let patience = self.endpoint.settings.timeout();
        let reply_future = tokio::time::timeout(patience, self.request_reply(request, listener));
        reply_future.map(move |reply| reply.unwrap_or(Err(ModelError::Timeout { after: patience }))).boxed()
    }
}

impl HttpModel {
    async fn request_reply(
        &self,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let mut parser = self.create_stream_parser(request);
        let normal = normalize_conversation(request, self.endpoint.call_id_form());
        let request = &*replace_unsent_images(&normal, self.endpoint.media_support());
        let body = merge_extra_body(self.build_request_body(request), &self.endpoint.settings.extra_body);
        match self.sender.send_request(body.to_string().into_bytes()).await? {
            ResponseBody::EventStream(events) => {
                self.read_event_stream(events, parser.as_mut(), listener).await?
            }
            ResponseBody::Json(value) => self.handle_event(&value, parser.as_mut(), listener).map(drop)?,
        }
        let mut reply = parser.into_reply().ok_or_else(|| ModelError::Truncated {
            message: "the stream ended without a finish reason".to_owned(),
        })?;
        // Some servers report no usage. Budgets must hold with them, too.
        if reply.usage.input_tokens == 0 && reply.usage.output_tokens == 0 {
            let cost_micros = reply.usage.cost_micros;
            reply.usage = Usage { cost_micros, ..estimate_usage(request, &reply.text, &reply.calls) };
        }
        Ok(reply)
    }

    fn build_request_body(&self, request: &Request) -> Value {
        match self.endpoint.wire {
            WireProtocol::OpenAiChat => openai_chat::build_request_body(&self.endpoint, request),
            WireProtocol::OpenAiResponses => openai_responses::build_request_body(&self.endpoint, request),
            WireProtocol::Anthropic => anthropic::build_request_body(&self.endpoint, request),
            WireProtocol::Ollama => ollama::build_request_body(&self.endpoint, request),
            WireProtocol::Gemini => gemini::build_request_body(&self.endpoint, request),
            WireProtocol::Bedrock => bedrock::build_request_body(&self.endpoint, request),
        }
    }

    fn create_stream_parser(&self, request: &Request) -> Box<dyn StreamParser> {
        let name = self.endpoint.full_name.clone();
        match self.endpoint.wire {
            WireProtocol::OpenAiChat => Box::new(openai_chat::ChatCompletionsParser::new(request, name)),
            WireProtocol::OpenAiResponses => Box::new(openai_responses::ResponsesParser::new(request, name)),
            WireProtocol::Anthropic => Box::new(anthropic::AnthropicParser::new(request, name)),
            WireProtocol::Ollama => Box::new(ollama::OllamaParser::new(request, name)),
            WireProtocol::Gemini => Box::new(gemini::GeminiParser::new(request, name)),
            WireProtocol::Bedrock => Box::new(bedrock::BedrockParser::new(request, name)),
        }
    }

    /// Processes events until the reply is complete. If the stream breaks after the finish reason, the reply is still
    /// used: only token counts may be missing, and a retry would cost all tokens again.
    async fn read_event_stream(
        &self,
        mut events: EventStream,
        parser: &mut dyn StreamParser,
        listener: &dyn DeltaListener,
    ) -> Result<(), ModelError> {
        let mut seen = 0;
        while let Some(event) = events.next().await {
            let data = match event {
                Ok(data) => data,
                Err(events::StreamError::Disconnected(_) | events::StreamError::IdleTimeout(_))
                    if parser.is_complete() =>
                {
                    return Ok(());
                }
                Err(error) => return Err(self.sender.model_error_from_stream_error(&error, seen)),
            };
            if data.trim() == "[DONE]" {
                parser.on_done_marker();
                break;
            }
            seen += 1;
            let data = redact_text(&data);
            let value = parse_foreign_json(data.as_bytes())
                .map_err(|error| self.sender.invalid_event_error(&data, &error))?;
            if self.handle_event(&value, parser, listener)? == EventOutcome::Complete {
                break;
            }
        }
        read_remaining_events(events).await;
        Ok(())
    }

    fn handle_event(
        &self,
        value: &Value,
        parser: &mut dyn StreamParser,
        listener: &dyn DeltaListener,
    ) -> Result<EventOutcome, ModelError> {
        parser
            .handle_event(value, listener)
            .map_err(|error| error::model_error_from_body(&error, &self.sender.redactor))
    }
}

/// Reads the little data that may follow a reply, so that the connection can be reused.
async fn read_remaining_events(events: EventStream) {
    let rest = events.take(16).for_each(|_| std::future::ready(()));
    // Waiting longer would cost more than a new connection.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(50), rest).await;
}

/// Merges the `extra_body` setting into a request body. The setting takes precedence; null removes a field.
fn merge_extra_body(mut body: Value, extra: &Map<String, Value>) -> Value {
    if let Value::Object(fields) = &mut body {
        merge_json_fields(fields, extra);
    }
    body
}

fn merge_json_fields(fields: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (name, value) in extra {
        match (fields.get_mut(name), value) {
            (_, Value::Null) => drop(fields.remove(name)),
            (Some(Value::Object(within)), Value::Object(more)) => merge_json_fields(within, more),
            (Some(_) | None, _) => drop(fields.insert(name.clone(), value.clone())),
        }
    }
}

/// Returns the tools sorted by name, so that the providers' prompt caches work independently of the original order.
fn tools_sorted_by_name(request: &Request) -> Vec<&crate::model::ToolSpec> {
    let mut tools: Vec<_> = request.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    tools
}

/// The images of consecutive tool results, oldest first, from the message at `at` back: for APIs whose tool results are text, which get
/// them in a message of the user after the last of these results. Empty if another result follows.
fn images_after_results(messages: &[Message], at: usize) -> Vec<&Image> {
    if matches!(messages.get(at + 1), Some(Message::Tool(_))) {
        return Vec::new();
    }
    let results = messages[..=at].iter().rev().map_while(|message| match message {
        Message::Tool(result) => Some(result),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    let results: Vec<&ToolResult> = results.collect();
    results.into_iter().rev().flat_map(|result| &result.images).collect()
}

/// Returns the name of a result's tool, for APIs that need it besides or in place of the call's id.
fn find_tool_name<'a>(request: &'a Request, call_id: &str) -> &'a str {
    let calls = request.messages.iter().rev().filter_map(|message| match message {
        Message::Assistant { calls, .. } => calls.iter().find(|call| call.id == call_id),
        Message::User { .. } | Message::Tool(_) => None,
    });
    calls.map(|call| call.name.as_str()).next().unwrap_or_default()
}

/// The text before images that are sent after the tool results that they belong to.
fn introduce_images(images: &[&Image]) -> String {
    let names: Vec<String> = images.iter().map(|image| image.describe()).collect();
    let kind = if images.iter().any(|image| image.is_pdf()) { "images and files" } else { "images" };
    format!("The {kind} of the tool results above, in this order: {}", names.join("; "))
}

/// Returns the number at a JSON pointer, or 0.
fn read_number_at(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the text at a JSON pointer, or an empty one.
fn read_text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn extra_body_overrides_fields_and_null_removes_them() {
        let body = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": 3});
        let extra = json!({"a": 2, "b": {"d": 3, "f": 4}, "e": null, "g": [1]});
        let all = merge_extra_body(body, extra.as_object().unwrap());
        assert_eq!(all, json!({"a": 2, "b": {"c": 1, "d": 3, "f": 4}, "g": [1]}));
    }

    #[test]
    fn native_support_depends_on_the_address_and_the_model() {
        let native_support = |wire, base_url: &str, model: &str| {
            let (key, settings) = (None, ModelSettings::default());
            let full_name = format!("p:{model}");
            let (base_url, model, dialect) = (base_url.into(), model.into(), Dialect::STANDARD);
            ModelEndpoint { wire, dialect, base_url, key, model, full_name, settings }.native_output_support()
        };
        let all = NativeOutputSupport { structured: true, tools: true, tools_with_structured: true };
        let either = NativeOutputSupport { tools_with_structured: false, ..all };
        let neither = NativeOutputSupport { structured: false, ..either };
        assert_eq!(native_support(WireProtocol::OpenAiChat, "https://api.openai.com/v1", "gpt-5"), all);
        assert_eq!(
            native_support(WireProtocol::OpenAiChat, "https://x.openai.azure.com/openai/v1", "gpt-5"),
            all
        );
        assert_eq!(native_support(WireProtocol::OpenAiChat, "https://notopenai.com/v1", "gpt-5"), either);
        assert_eq!(native_support(WireProtocol::OpenAiResponses, "http://localhost:1/v1", "gpt-5"), all);
        assert_eq!(
            native_support(WireProtocol::Anthropic, "https://api.anthropic.com", "claude-sonnet-4-5"),
            all
        );
        assert_eq!(
            native_support(WireProtocol::Anthropic, "https://api.anthropic.com", "claude-sonnet-4-20250514"),
            neither
        );
        assert_eq!(native_support(WireProtocol::Ollama, "http://localhost:11434", "qwen3"), either);
        assert_eq!(native_support(WireProtocol::Gemini, "http://localhost:1", "gemini-2.5-pro"), either);
        assert_eq!(native_support(WireProtocol::Bedrock, "http://localhost:1", "amazon.nova"), neither);
    }

    #[test]
    fn only_openai_itself_gets_max_completion_tokens() {
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
            let endpoint = ModelEndpoint {
                wire: WireProtocol::OpenAiChat,
                dialect: Dialect::STANDARD,
                base_url: base_url.into(),
                key: None,
                model: "m".into(),
                full_name: "p:m".into(),
                settings: ModelSettings::default(),
            };
            let body = openai_chat::build_request_body(&endpoint, &request);
            assert_eq!((&body[name], body.get(other)), (&json!(7), None));
        }
    }

    #[test]
    fn a_displayed_endpoint_contains_no_key() {
        let mut settings = ModelSettings::default();
        settings.extra_headers.insert("Authorization".into(), "Bearer header-secret-1".into());
        let endpoint = ModelEndpoint {
            wire: WireProtocol::OpenAiChat,
            dialect: Dialect::STANDARD,
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
#[path = "malformed_event_tests.rs"]
mod malformed_event_tests;
