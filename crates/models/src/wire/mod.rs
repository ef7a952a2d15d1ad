//! The wires: each translates a [`crate::Request`] into one provider's HTTP API and the streamed response back into a
//! [`crate::Reply`]. A wire sends a request once: it does not retry, follows no redirects and knows no prices. What a provider
//! does not support is left out (see [`OutputSupport`]); [`crate::structured`] compensates for that. If a provider refuses a
//! parameter, which only the model's server knows, the request is sent once more without it (see [`crate::negotiation`]). API keys
//! are used in one request header and never appear in a text.
//!
//! ```text
//! mod        the model behind an endpoint: conversation → body → http → events → reply
//! ├─ openai_chat, openai_responses, anthropic, gemini, bedrock, ollama     one API each: a row of functions (`WireApi`)
//! ├─ embeddings       requests for embeddings, which are no conversation
//! ├─ endpoint         one model at one address
//! ├─ conversation     the normal form of a conversation, from which each wire makes its messages
//! ├─ turns            what the messages of several APIs have in common
//! ├─ media            the text in place of images that can't be sent
//! ├─ http             the HTTP request; the response is a stream of events or a single JSON value
//! ├─ events, frames   parse bytes into events (SSE, NDJSON, Amazon's binary streams), with size limits
//! ├─ reply            assembles a reply from streamed pieces, with opaque provider state in its position
//! ├─ finish           maps the providers' finish reasons to ours
//! ├─ schema           the strict subset of JSON Schema
//! └─ error            maps provider errors to `ModelError`
//! ```

use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::result::Usage;
use millrace_protocol::secrets::redact_text;
use serde_json::{Map, Value};

use crate::families::{sees_images, takes_pdf};

use crate::image::Image;
use crate::limits::estimate_usage;
use crate::model::{
    DeltaListener, FinishReason, Model, ModelError, Remedy, Reply, ReplyFuture, ReplyResult, Request,
};
use crate::negotiation::{
    Adaptation, MAX_TOKENS, Negotiation, PROBABILITIES, RESPONSE_FORMAT, Reading, Refusal, TOOLS, adapt_body,
    parameter_of_field, read_refusal, remove_limit, retain_conversation,
};

mod anthropic;
mod bedrock;
mod conversation;
mod embeddings;
mod endpoint;
mod error;
mod events;
mod gemini;
mod http;
mod json;
mod ollama;
mod openai_chat;
mod openai_responses;
mod reply;
pub mod schema;

pub(crate) use conversation::replace_unsent_images;
pub(crate) use conversation::{CallIdForm, normalize_conversation};
use endpoint::WireApi;
pub use endpoint::{Dialect, ModelEndpoint, OutputSupport, WireProtocol};
use error::Failure;
use events::{EventStream, StreamError};
use http::{HttpSender, ResponseBody};
use reply::ReplyBuilder;

impl WireProtocol {
    const fn api(self) -> &'static WireApi {
        match self {
            Self::OpenAiChat => &openai_chat::API,
            Self::OpenAiResponses => &openai_responses::API,
            Self::Anthropic => &anthropic::API,
            Self::Ollama => &ollama::API,
            Self::Gemini => &gemini::API,
            Self::Bedrock => &bedrock::API,
        }
    }
}

impl WireProtocol {
    /// `true` if the API has embeddings.
    pub(crate) fn has_embeddings(self) -> bool {
        self.api().embeddings_url.is_some()
    }
}

impl ModelEndpoint {
    /// Returns what the endpoint supports natively. OpenAI and Anthropic accept a schema and tools in one request; servers
    /// of local models constrain a reply either to a schema or to a tool call.
    pub fn output_support(&self) -> OutputSupport {
        let (structured, tools_with_structured) = (self.wire.api().structured)(self);
        OutputSupport { tools: true, structured, tools_with_structured, grammar: self.dialect.is_local }
    }

    /// Returns why an image or a PDF file can't be sent: as the settings say, or by the name of the model. Only the APIs of Anthropic,
    /// OpenAI and Gemini take PDF files by default; other servers with the same protocols refuse them.
    fn media_refusal(&self) -> impl Fn(&Image) -> Option<&'static str> {
        let sees_images = self.settings.images.unwrap_or_else(|| sees_images(&self.model));
        let takes_pdf = (self.wire.api().takes_pdf)(self).is_some_and(|by_default| {
            self.settings.pdf.unwrap_or_else(|| by_default && sees_images && takes_pdf(&self.model))
        });
        move |image| match image.is_pdf() {
            true => (!takes_pdf).then_some("this model cannot see its pages"),
            false => (!sees_images).then_some("this model cannot see images"),
        }
    }

    fn call_id_form(&self) -> CallIdForm {
        let passes_ids_on = matches!(self.wire, WireProtocol::OpenAiChat | WireProtocol::Bedrock);
        if passes_ids_on && self.is_mistral() {
            CallIdForm::NineAlphanumeric
        } else {
            self.wire.api().call_ids
        }
    }
}

/// Creates the model behind an endpoint. It adapts its requests to the parameters that the server takes.
pub fn create_http_model(endpoint: ModelEndpoint, negotiation: Arc<Negotiation>) -> Arc<dyn Model> {
    let api = endpoint.wire.api();
    let sender = HttpSender::new(&endpoint, api);
    Arc::new(HttpModel { sender, api, endpoint, negotiation })
}

struct HttpModel {
    endpoint: ModelEndpoint,
    api: &'static WireApi,
    sender: HttpSender,
    negotiation: Arc<Negotiation>,
}

impl Model for HttpModel {
    fn name(&self) -> &str {
        &self.endpoint.full_name
    }

    fn adaptations(&self) -> Vec<String> {
        let adaptations = self.negotiation.adaptations();
        adaptations.iter().map(|adaptation| format!("{}: {adaptation}", self.name())).collect()
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        let patience = self.endpoint.settings.timeout();
        let reply_future = tokio::time::timeout(patience, self.request_reply(request, listener));
        reply_future.map(move |reply| reply.unwrap_or(Err(ModelError::Timeout { after: patience }))).boxed()
    }
}

/// The most changes of one request: each of them is sent.
const MAX_ADAPTATIONS: usize = 6;

impl HttpModel {
    /// Sends a request, and sends it again without the parameters that the server refuses. A refused request costs nothing.
    async fn request_reply(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        if request.embeddings {
            return self.request_embeddings(request).await;
        }
        let normal = normalize_conversation(request, self.endpoint.call_id_form());
        let sent = &*replace_unsent_images(&normal, self.endpoint.media_refusal());
        let mut refused_names = Vec::new();
        let mut refusal = String::new();
        for _ in 0..MAX_ADAPTATIONS {
            let body = self.build_body(sent);
            let builder = ReplyBuilder::new(request, &self.endpoint.full_name, listener);
            let failure = match self.send_and_read(sent, &body, builder).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            refusal = self.adapt(failure, sent, &body, &mut refused_names)?;
            if self.build_body(sent) == body {
                break;
            }
        }
        Err(ModelError::bad_request(refusal))
    }

    async fn send_and_read(
        &self,
        request: &Request,
        body: &Value,
        mut builder: ReplyBuilder<'_>,
    ) -> Result<Reply, Failure> {
        match self.sender.send_request(body.to_string().into_bytes()).await? {
            ResponseBody::EventStream(events) => self.read_event_stream(events, &mut builder).await?,
            ResponseBody::Json(value) => self.read_event(&value, &mut builder)?,
        }
        let mut reply = builder.build().ok_or_else(|| ModelError::Truncated {
            message: "the stream ended without a finish reason".to_owned(),
        })?;
        // Some servers report no usage. Budgets must hold with them, too.
        if reply.usage.input_tokens == 0 && reply.usage.output_tokens == 0 {
            let cost_micros = reply.usage.cost_micros;
            reply.usage = Usage { cost_micros, ..estimate_usage(request, &reply.text, &reply.calls) };
        }
        Ok(reply)
    }

    async fn request_embeddings(&self, request: &Request) -> ReplyResult {
        let Some(sender) = HttpSender::for_embeddings(&self.endpoint, self.api) else {
            let message = format!("the API of {} has no embeddings", self.name());
            return Err(ModelError::bad_request(message));
        };
        let mut body = embeddings::build_request_body(&self.endpoint.model, request);
        merge_fields(&mut body, &self.endpoint.settings.extra_body);
        match sender.send_request(body.to_string().into_bytes()).await.map_err(|failure| failure.error)? {
            ResponseBody::Json(value) if value.get("error").is_some() => {
                Err(error::model_error_from_body(&value, &sender.redactor))
            }
            ResponseBody::Json(value) => {
                embeddings::read_reply(&value, request).map_err(|message| ModelError::Protocol { message })
            }
            ResponseBody::EventStream(_) => Err(ModelError::Protocol {
                message: "the response to a request for embeddings is a stream of events".to_owned(),
            }),
        }
    }

    /// Learns from a refusal how to change the request, and returns its message. Fails if there is nothing to learn, or if another form
    /// of the request is needed.
    fn adapt(
        &self,
        failure: Failure,
        request: &Request,
        body: &Value,
        refused_names: &mut Vec<String>,
    ) -> Result<String, ModelError> {
        let Failure { error, answer } = failure;
        let (Some(answer), ModelError::BadRequest { message, .. } | ModelError::Overloaded { message, .. }) =
            (answer, &error)
        else {
            return Err(error);
        };
        let refusal = Refusal {
            status: answer.status,
            parameter: &answer.parameter,
            codes: &answer.codes,
            message: &answer.message,
        };
        let has_two_names = self.endpoint.wire == WireProtocol::OpenAiChat;
        let reading = read_refusal(refusal, body, has_two_names.then_some(refused_names.as_slice()));
        let is_bad_request = matches!(error, ModelError::BadRequest { .. });
        let least = |is_lasting| match is_bad_request && self.has_lesser_form(request, body) {
            true => Remedy::LeastRequest { is_lasting },
            false => Remedy::None,
        };
        match reading {
            Reading::Parameter { name, adaptation } => {
                let is_renamed = matches!(adaptation, Adaptation::Rename { .. });
                let setting = self.endpoint.setting_of_parameter(&name).filter(|_| !is_renamed);
                if let Some(setting) = setting {
                    return Err(ModelError::UnsupportedSetting { setting, message: message.clone() });
                }
                if name == MAX_TOKENS {
                    let fields = body.as_object().into_iter().flat_map(Map::keys);
                    refused_names
                        .extend(fields.filter(|field| parameter_of_field(field) == MAX_TOKENS).cloned());
                }
                self.negotiation.learn(adaptation, message);
                match name == TOOLS || name == RESPONSE_FORMAT {
                    true => {
                        Err(ModelError::BadRequest { message: message.clone(), remedy: Remedy::OtherForm })
                    }
                    false => Ok(message.clone()),
                }
            }
            Reading::PartOfConversation if is_bad_request => {
                Err(ModelError::BadRequest { message: message.clone(), remedy: least(false) })
            }
            Reading::Unknown if is_bad_request => {
                Err(ModelError::BadRequest { message: message.clone(), remedy: least(true) })
            }
            Reading::PartOfConversation | Reading::Unknown | Reading::Final => Err(error),
        }
    }

    /// `true` if a request can be sent with less than it was.
    fn has_lesser_form(&self, request: &Request, body: &Value) -> bool {
        let least = Request { is_least: true, tools: Vec::new(), answer: None, ..request.clone() };
        !request.is_least && self.build_body(&least) != *body
    }

    /// Builds the body of a request by the API, adapts it to the server, and adds the fields of the settings.
    fn build_body(&self, request: &Request) -> Value {
        let Self { endpoint, negotiation, .. } = self;
        let rejects_probabilities = request.is_least || negotiation.omits(PROBABILITIES);
        let mut body = match request.first_token_probabilities && rejects_probabilities {
            true => {
                let without = Request { first_token_probabilities: false, ..request.clone() };
                (self.api.build_request_body)(endpoint, &without)
            }
            false => (self.api.build_request_body)(endpoint, request),
        };
        // Anthropic's API demands the limit.
        let is_kept = |parameter: &str| {
            (parameter == MAX_TOKENS && endpoint.wire == WireProtocol::Anthropic)
                || endpoint.setting_of_parameter(parameter).is_some()
        };
        adapt_body(&mut body, &negotiation.adaptations(), is_kept);
        if request.is_least {
            retain_conversation(&mut body, is_kept);
        }
        let mut added = endpoint.settings.extra_body.iter();
        if added.any(|(field, value)| !value.is_null() && parameter_of_field(field) == MAX_TOKENS) {
            remove_limit(&mut body);
        }
        merge_fields(&mut body, &endpoint.settings.extra_body);
        body
    }

    /// Processes events until the reply is complete. If the stream breaks after the finish reason, the reply is still
    /// used: only token counts may be missing, and a retry would cost all tokens again.
    async fn read_event_stream(
        &self,
        mut events: EventStream,
        builder: &mut ReplyBuilder<'_>,
    ) -> Result<(), Failure> {
        let mut seen = 0;
        while let Some(event) = events.next().await {
            let data = match event {
                Ok(data) => data,
                Err(StreamError::Disconnected(_) | StreamError::IdleTimeout(_))
                    if builder.finish.is_some() =>
                {
                    return Ok(());
                }
                Err(error) => return Err(self.sender.broken_stream_error(&error, seen).into()),
            };
            if data.trim() == "[DONE]" {
                // Some servers with Chat Completions send the end marker but no finish reason.
                if self.endpoint.wire == WireProtocol::OpenAiChat {
                    builder.finish.get_or_insert(FinishReason::Stop);
                }
                break;
            }
            seen += 1;
            let data = redact_text(&data);
            let value = parse_foreign_json(data.as_bytes())
                .map_err(|error| self.sender.invalid_event_error(&data, &error))?;
            let read = self.read_event(&value, builder);
            // After the first event, an error is no refusal of the request.
            read.map_err(|failure| Failure { answer: failure.answer.filter(|_| seen == 1), ..failure })?;
            if builder.is_ended {
                break;
            }
        }
        // The little data that may follow a reply is read, so that the connection can be reused. Waiting longer would cost more than a
        // new connection.
        let rest = events.take(16).for_each(|_| std::future::ready(()));
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), rest).await;
        Ok(())
    }

    fn read_event(&self, event: &Value, builder: &mut ReplyBuilder<'_>) -> Result<(), Failure> {
        (self.api.read_event)(event, builder).map_err(|error| Failure {
            answer: Some(error::ProviderError::from_json(None, &error)),
            error: error::model_error_from_body(&error, &self.sender.redactor),
        })
    }
}

/// Merges the `extra_body` setting into a request body. The setting takes precedence; null removes a field.
fn merge_fields(body: &mut Value, extra: &Map<String, Value>) {
    let Value::Object(fields) = body else { return };
    for (name, value) in extra {
        match (fields.get_mut(name), value) {
            (_, Value::Null) => drop(fields.remove(name)),
            (Some(within @ Value::Object(_)), Value::Object(more)) => merge_fields(within, more),
            (Some(_) | None, _) => drop(fields.insert(name.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSettings;
    use serde_json::json;

    #[test]
    fn extra_body_overrides_fields_and_null_removes_them() {
        let mut all = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": 3});
        let extra = json!({"a": 2, "b": {"d": 3, "f": 4}, "e": null, "g": [1]});
        merge_fields(&mut all, extra.as_object().unwrap());
        assert_eq!(all, json!({"a": 2, "b": {"c": 1, "d": 3, "f": 4}, "g": [1]}));
    }

    #[test]
    fn native_support_depends_on_the_address_and_the_model() {
        let native_support = |wire, base_url: &str, model: &str| {
            let (key, settings) = (None, ModelSettings::default());
            let full_name = format!("p:{model}");
            let (base_url, model, dialect) = (base_url.into(), model.into(), Dialect::STANDARD);
            let endpoint = ModelEndpoint {
                wire,
                dialect,
                base_url,
                key,
                model,
                full_name,
                settings,
                default_temperature: None,
            };
            endpoint.output_support()
        };
        let all =
            OutputSupport { tools: true, structured: true, tools_with_structured: true, grammar: false };
        let either = OutputSupport { tools_with_structured: false, ..all };
        let neither = OutputSupport { structured: false, ..either };
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
            ..Request::default()
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
                default_temperature: None,
            };
            let body = (openai_chat::API.build_request_body)(&endpoint, &request);
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
            default_temperature: None,
        };
        let shown = format!("{endpoint:?} {endpoint:#?}");
        assert!(!shown.contains("secret-1"), "{shown}");
    }
}

#[cfg(test)]
#[path = "malformed_event_tests.rs"]
mod malformed_event_tests;
