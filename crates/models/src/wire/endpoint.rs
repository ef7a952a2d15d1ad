//! One model at one address, and the interface of the wires: each is a [`WireApi`] with functions for requests and events.

use std::fmt;

use millrace_protocol::secrets::SecretRedactor;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use super::conversation::CallIdForm;
use super::json::set_field;
use super::reply::ReplyBuilder;
use crate::model::Request;
use crate::negotiation::{MAX_TOKENS, RESPONSE_FORMAT, TOOLS, parameter_of_field};
use crate::selection::{ModelSettings, StructuredMode};

/// The number of alternatives of a token that OpenAI, Gemini and servers of local models return at most, and the number that
/// all other hosted providers accept.
const TOKEN_ALTERNATIVES: [u32; 2] = [20, 5];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireProtocol {
    /// OpenAI's Chat Completions API, which OpenRouter, LM Studio, vLLM, llama.cpp and most gateways implement too.
    OpenAiChat,
    OpenAiResponses,
    Anthropic,
    Ollama,
    Gemini,
    /// Amazon Bedrock's Converse API, with a bearer token.
    Bedrock,
}

/// One API: everything that differs between the wires.
pub(super) struct WireApi {
    pub(super) framing: Framing,
    /// Returns the URL of requests; the second argument is the base URL without a slash at its end.
    pub(super) url: fn(&ModelEndpoint, &str) -> String,
    /// Returns the URL of requests for embeddings, from the base URL without a slash at its end; `None` if the API has none.
    pub(super) embeddings_url: Option<fn(&str) -> String>,
    /// The header with the key, if it is no bearer token.
    pub(super) key_header: Option<&'static str>,
    pub(super) call_ids: CallIdForm,
    /// Returns `true` if a model answers by a schema, and `true` if it does so in a request with tools.
    pub(super) structured: fn(&ModelEndpoint) -> (bool, bool),
    /// Returns `true` if PDF files can be sent, by default to models that see images; `None` if never.
    pub(super) takes_pdf: fn(&ModelEndpoint) -> Option<bool>,
    pub(super) build_request_body: fn(&ModelEndpoint, &Request) -> Value,
    /// Processes one event, or a complete response that was not streamed. An error is returned in the provider's format.
    pub(super) read_event: fn(&Value, &mut ReplyBuilder<'_>) -> Result<(), Value>,
}

/// The way in which events are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Sse,
    JsonLines,
    Frames,
}

/// The ways in which a server differs from others with the same API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// It runs small local models, whose native tool calls are unreliable, and enforces any schema by a grammar.
    pub is_local: bool,
    /// It is Google Cloud's Vertex AI, which has URLs and credentials of its own for the APIs of Google and Anthropic.
    pub is_vertex: bool,
    /// Chat Completions: it switches thinking with the field `thinking`, besides the effort.
    pub has_thinking_switch: bool,
    pub rejects_stream_options: bool,
    pub accept: Option<&'static str>,
}

impl Dialect {
    pub const STANDARD: Self = Self {
        is_local: false,
        is_vertex: false,
        has_thinking_switch: false,
        rejects_stream_options: false,
        accept: None,
    };
}

#[derive(Clone)]
pub struct ModelEndpoint {
    pub wire: WireProtocol,
    pub dialect: Dialect,
    /// The URL, without the path that the wire appends.
    pub base_url: String,
    pub key: Option<SecretString>,
    pub model: String,
    /// The full name of the model, `provider:model`.
    pub full_name: String,
    /// The model's settings, as a person gave them. `base_url` and `key_variable` are already resolved and ignored here.
    pub settings: ModelSettings,
    /// The temperature if the settings have none.
    pub default_temperature: Option<f64>,
}

/// The support of a model for answers that follow a JSON schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSupport {
    /// It takes tools.
    pub tools: bool,
    /// It takes schemas; the form is guaranteed if [`super::schema::to_strict_schema`] supports the schema.
    pub structured: bool,
    /// It takes a schema and tools in one request.
    pub tools_with_structured: bool,
    /// The server enforces any schema by a grammar and runs small models, whose native tool calls are unreliable.
    pub grammar: bool,
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
    pub(super) fn secrets(&self) -> SecretRedactor {
        let mut secrets = SecretRedactor::default();
        self.key.iter().for_each(|key| secrets.add(key.expose_secret()));
        self.settings.extra_headers.iter().for_each(|(name, value)| secrets.add_header(name, value));
        secrets.add_url(&self.base_url);
        secrets
    }

    /// Returns `true` for OpenAI's own address or Azure's; other servers differ from them in some ways.
    pub(super) fn is_openai_host(&self) -> bool {
        let host = reqwest::Url::parse(&self.base_url).ok().and_then(|url| url.host_str().map(str::to_owned));
        host.is_some_and(|host| ["openai.com", "openai.azure.com"].iter().any(|own| is_in_domain(&host, own)))
    }

    pub(super) fn max_output_tokens(&self, request: &Request) -> u32 {
        self.settings.max_output_tokens.unwrap_or(u32::MAX).min(request.max_output_tokens)
    }

    /// Returns the number of alternatives of a token to ask for.
    pub(super) fn max_token_alternatives(&self) -> u32 {
        let [most, common] = TOKEN_ALTERNATIVES;
        let is_hosted_chat =
            self.wire == WireProtocol::OpenAiChat && !self.dialect.is_local && !self.is_openai_host();
        if is_hosted_chat { common } else { most }
    }

    pub(super) fn is_mistral(&self) -> bool {
        super::conversation::is_mistral(&self.full_name)
    }

    pub(super) fn reasoning_effort(&self) -> Option<&str> {
        self.settings.reasoning_effort.as_deref().map(str::trim).filter(|effort| !effort.is_empty())
    }

    /// Returns the effort, unless the model shall not think.
    pub(super) fn wanted_effort(&self) -> Option<&str> {
        self.reasoning_effort().filter(|effort| !matches!(*effort, "none" | "off"))
    }

    /// Sets the temperature and nucleus sampling, whose name differs.
    pub(super) fn set_sampling(&self, body: &mut Value, top_p: &str) {
        set_field(body, "temperature", self.settings.temperature.or(self.default_temperature));
        set_field(body, top_p, self.settings.top_p);
    }

    /// Returns the setting of a person that is sent as a parameter.
    pub(super) fn setting_of_parameter(&self, parameter: &str) -> Option<String> {
        let settings = &self.settings;
        let own = match parameter {
            "temperature" => settings.temperature.map(|_| "temperature"),
            "top_p" => settings.top_p.map(|_| "top_p"),
            MAX_TOKENS => settings.max_output_tokens.map(|_| "max_output_tokens"),
            "reasoning_effort" => self.reasoning_effort().map(|_| "reasoning_effort"),
            TOOLS => (settings.structured == StructuredMode::Tool).then_some("structured"),
            RESPONSE_FORMAT => (settings.structured == StructuredMode::Native).then_some("structured"),
            _ => None,
        };
        let inner = settings.extra_body.values().filter_map(Value::as_object).flat_map(Map::keys);
        let mut added = settings.extra_body.keys().chain(inner);
        let added = added.find(|field| parameter_of_field(field) == parameter);
        own.map(str::to_owned).or_else(|| added.map(|field| format!("extra_body.{field}")))
    }
}

fn is_in_domain(host: &str, domain: &str) -> bool {
    host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}
