//! The interface of all language models: requests, replies and errors. It knows no provider and no transport; each
//! provider module translates these types to its API and back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use millrace_protocol::result::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

pub use crate::image::{Image, ImageFormat};

/// Longer than any wait, and short enough to be added to a time.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

pub type ReplyResult = Result<Reply, ModelError>;
pub type ReplyFuture<'a> = BoxFuture<'a, ReplyResult>;

/// A language model, or a substitute for one. One value is shared by all agents of a process.
pub trait Model: Send + Sync {
    /// Returns the full name, `provider:model`.
    fn name(&self) -> &str;

    /// Returns the model that this one wraps, from which it differs only in its replies.
    fn inner(&self) -> Option<&dyn Model> {
        None
    }

    /// `true` if the replies come from a provider, so that a transient error is over when its outage is. The errors of
    /// scripts and recordings are part of them and never go away.
    fn has_provider(&self) -> bool {
        self.inner().is_some_and(|inner| inner.has_provider())
    }

    fn ability(&self) -> ModelAbility {
        self.inner().map_or(ModelAbility::Strong, |inner| inner.ability())
    }

    /// Its context window in tokens; `None` if it is not known.
    fn context_window(&self) -> Option<u64> {
        self.inner().and_then(|inner| inner.context_window())
    }

    /// The full name of this model or of a fallback whose cost can't be counted, because its price is not known; `None`
    /// if every cost is counted.
    fn uncounted_cost(&self) -> Option<&str> {
        self.inner().and_then(|inner| inner.uncounted_cost())
    }

    /// Returns how requests differ from the usual ones, because the model's server refuses parameters: a line for each model and change.
    fn adaptations(&self) -> Vec<String> {
        self.inner().map(|inner| inner.adaptations()).unwrap_or_default()
    }

    /// Answers one request. No state is kept between calls: everything the model needs is in `request`. `listener`
    /// receives the deltas while the reply is streamed; the returned reply is complete in any case.
    /// [`ModelError::is_transient`] tells if a retry can help.
    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a>;
}

/// The ability of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelAbility {
    /// It needs short prompts and small forms, and is unreliable with tools.
    Small,
    /// It follows long instructions and uses tools.
    #[default]
    Strong,
}

impl ModelAbility {
    pub const ALL: [Self; 2] = [Self::Small, Self::Strong];

    pub const fn is_small(self) -> bool {
        matches!(self, Self::Small)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Strong => "strong",
        }
    }
}

/// The caller of a request: receives the deltas of the reply while it is streamed.
pub trait DeltaListener: Send + Sync {
    fn on_delta(&self, delta: Delta<'_>);

    /// Returns the deadline of the caller's wait for a provider that is away; `None` if it does not wait itself.
    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        None
    }
}

impl DeltaListener for () {
    fn on_delta(&self, _: Delta<'_>) {}
}

/// The time until which a caller waits for a provider that is away. It begins with the first failure of a request, and
/// limits what the request waits for: its retries and the pauses of circuit breakers. A call in flight is never cut off.
#[derive(Debug)]
pub struct ProviderDeadline {
    timeout: Duration,
    outage: OnceLock<Outage>,
    tries_at_once: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Outage {
    began: Instant,
    deadline: Instant,
}

impl ProviderDeadline {
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, outage: OnceLock::new(), tries_at_once: AtomicBool::new(false) }
    }

    /// Lets the first request be sent although the provider asked to wait.
    pub fn trying_at_once(self) -> Self {
        Self { tries_at_once: AtomicBool::new(true), ..self }
    }

    /// Returns `true` the first time if the first request is to be sent at once.
    pub(crate) fn take_try_at_once(&self) -> bool {
        self.tries_at_once.swap(false, Ordering::Relaxed)
    }

    /// Counts a failure and returns the deadline; only the first one sets it.
    pub fn start(&self, now: Instant) -> Instant {
        self.start_after(Duration::ZERO, now)
    }

    /// Sets the deadline, unless it is set, if the outage has lasted for `waited` already. Returns the deadline.
    pub fn start_after(&self, waited: Duration, now: Instant) -> Instant {
        let left = self.timeout.saturating_sub(waited).min(MAX_TIMEOUT);
        self.outage.get_or_init(|| Outage { began: now, deadline: now + left }).deadline
    }

    /// Returns the time since the deadline was set; zero before.
    pub fn elapsed(&self, now: Instant) -> Duration {
        self.outage.get().map_or(Duration::ZERO, |outage| now.saturating_duration_since(outage.began))
    }

    pub fn has_passed(&self, now: Instant) -> bool {
        self.outage.get().is_some_and(|outage| now >= outage.deadline)
    }
}

/// A part of a streamed reply, or a change in the state of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    Text(&'a str),
    Reasoning(&'a str),
    Call(&'a str),
    /// All previous deltas are void: the request is retried.
    Restart,
    Waiting(&'a str),
    Sending,
    /// The request is sent, with this estimated number of tokens.
    Sent(u64),
    /// More output that is not shown, such as the envelope of an answer.
    Hidden,
}

/// A request to a model: the whole conversation so far, and the allowed forms of a reply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub system: String,
    /// The conversation, oldest first. Every tool call in it is followed by its result.
    pub messages: Vec<Message>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    /// The schema of the final answer; `None` means plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerSchema>,
    pub max_output_tokens: u32,
    /// Requests the alternatives of the first token of the reply's text, with their probabilities.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_token_probabilities: bool,
    /// Sends the conversation without any optional parameter, except those that a person set.
    #[serde(skip)]
    pub is_least: bool,
    /// Requests the embedding of each message in place of a reply to the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embeddings: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    User {
        text: String,
    },
    Assistant {
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCall>,
        /// State that the provider expects back with the next request.
        #[serde(rename = "keepsake", default, skip_serializing_if = "Option::is_none")]
        provider_state: Option<ProviderState>,
    },
    Tool(ToolResult),
}

impl Message {
    pub fn text(&self) -> &str {
        match self {
            Self::User { text } | Self::Assistant { text, .. } => text,
            Self::Tool(result) => &result.text,
        }
    }

    pub fn calls(&self) -> &[ToolCall] {
        if let Self::Assistant { calls, .. } = self { calls } else { &[] }
    }

    pub fn result(&self) -> Option<&ToolResult> {
        if let Self::Tool(result) = self { Some(result) } else { None }
    }
}

impl Request {
    /// Builds the request for the embeddings of texts.
    pub fn for_embeddings<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let messages = texts.into_iter().map(|text| Message::User { text: text.to_owned() });
        Self { messages: messages.collect(), embeddings: true, ..Self::default() }
    }

    pub fn tool_of_call(&self, id: &str) -> Option<&str> {
        let mut calls = self.messages.iter().rev().flat_map(Message::calls);
        calls.find(|call| call.id == id).map(|call| call.name.as_str())
    }
}

/// Opaque state that a provider returns with a reply and expects back with the conversation, such as signed reasoning.
/// Only the wire that created it reads it; all others leave it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    /// The full name of the model that returned it.
    pub model: String,
    pub items: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id the model gave this call; its result has the same id.
    pub id: String,
    pub name: String,
    /// The arguments as the model wrote them: JSON text, if the model made no mistake.
    pub arguments: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    pub call_id: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// The images that belong to the text. A model that sees none gets their descriptions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
}

/// A tool as the model sees it. A conversation has a copy in each request, so that copies share the texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: Arc<str>,
    /// The JSON Schema of its arguments, an object, without references.
    pub schema: Arc<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerSchema {
    pub name: String,
    /// Its JSON Schema, an object, without references.
    pub schema: Value,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The text; with an [`AnswerSchema`] and no calls, the answer as JSON.
    #[serde(default)]
    pub text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// The tokens used. `model_calls` and `tool_calls` are counted by the caller and stay 0 here.
    #[serde(default)]
    pub usage: Usage,
    pub finish: FinishReason,
    /// The full name of the model that answered, if it was a fallback rather than the requested model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// State that the provider expects back with the next request.
    #[serde(rename = "keepsake", default, skip_serializing_if = "Option::is_none")]
    pub provider_state: Option<ProviderState>,
    /// The alternatives of the first token of the text that is not blank, if the request asks for them and the server has
    /// them; the most probable one comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first_token: Vec<TokenProbability>,
    /// The embedding of each message, if the request asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vectors: Vec<Vec<f32>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenProbability {
    /// The token as the server writes it, with the white space before it.
    pub token: String,
    /// From 0 to 1. The probabilities of the listed alternatives need not add up to 1.
    pub probability: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    #[default]
    Stop,
    ToolCalls,
    /// `max_output_tokens` was reached: the reply is cut off, and neither its text nor its calls are complete.
    Length,
    ContentFilter,
}

impl FinishReason {
    pub fn is_cut_off(self) -> bool {
        matches!(self, Self::Length | Self::ContentFilter)
    }
}

/// The error of a request to a model. The messages quote the provider where possible and never contain an API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModelError {
    /// The account's limit on requests or tokens is reached; the provider may have requested a wait.
    #[error("rate limited by the model's provider{}: {message}", format_retry_after(.retry_after))]
    RateLimited { retry_after: Option<Duration>, message: String },
    #[error("the model's provider is overloaded{}: {message}", format_retry_after(.retry_after))]
    Overloaded {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<Duration>,
        message: String,
    },
    #[error("the conversation is too long for the model: {message}")]
    ContextOverflow { message: String },
    /// The API key is missing, wrong, or not allowed to use the model.
    #[error("the model's provider rejected the API key: {message}")]
    Authentication { message: String },
    /// The account has no credit or quota left; the API key is good.
    #[error("the account at the model's provider has no quota or credit left: {message}")]
    Quota { message: String },
    /// A content filter rejected the request or the reply: the provider's, or a hook of the worker.
    #[error("blocked by a content filter or a hook: {message}")]
    ContentFilter { message: String },
    /// The reply ended too early, is broken, or is no reply at all, such as the page of a gateway.
    #[error("the model's reply was truncated or broken: {message}")]
    Truncated { message: String },
    #[error("the model's provider rejected the request: {message}")]
    BadRequest {
        message: String,
        #[serde(skip)]
        remedy: Remedy,
    },
    /// The provider refused a setting that a person asked for.
    #[error(
        "the model does not support the setting `{setting}`, which was asked for (remove it from the model's settings): {message}"
    )]
    UnsupportedSetting { setting: String, message: String },
    /// The provider's response is well-formed but not a reply of its API, so that a retry gets the same.
    #[error("unexpected response from the model's provider: {message}")]
    Protocol { message: String },
    #[error("the model did not reply within {after:?}")]
    Timeout { after: Duration },
    /// The request was not sent, because the requests before it failed; `retry_after` is when requests are sent again, if that is known.
    #[error("requests to the model are paused: {message}")]
    Paused { retry_after: Option<Duration>, message: String },
    #[error("the model's provider can't be reached: {message}")]
    Connection { message: String },
}

/// The other form in which a refused request may be accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Remedy {
    #[default]
    None,
    /// The form that is chosen now: the refusal taught what the server does not take.
    OtherForm,
    /// The least request. If `is_lasting`, the server may refuse all requests that are sent in full.
    LeastRequest { is_lasting: bool },
}

/// Formats a wait in whole seconds, rounded up.
pub(crate) fn format_seconds(wait: Duration) -> String {
    format!("{:.0} s", wait.as_secs_f64().ceil())
}

fn format_retry_after(wait: &Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!(" (try again in {})", format_seconds(wait)))
}

impl ModelError {
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::BadRequest { message: message.into(), remedy: Remedy::None }
    }

    pub fn error_kind_name(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "rate_limited",
            Self::Overloaded { .. } => "overloaded",
            Self::ContextOverflow { .. } => "context_overflow",
            Self::Authentication { .. } => "authentication",
            Self::Quota { .. } => "no_quota",
            Self::ContentFilter { .. } => "content_filter",
            Self::Truncated { .. } => "truncated",
            Self::BadRequest { .. } => "bad_request",
            Self::UnsupportedSetting { .. } => "unsupported_setting",
            Self::Protocol { .. } => "protocol",
            Self::Timeout { .. } => "timeout",
            Self::Paused { .. } => "paused",
            Self::Connection { .. } => "connection",
        }
    }

    pub fn is_transient(&self) -> bool {
        use ModelError::{Connection, Overloaded, Paused, RateLimited, Timeout, Truncated};
        matches!(
            self,
            RateLimited { .. }
                | Overloaded { .. }
                | Truncated { .. }
                | Timeout { .. }
                | Paused { .. }
                | Connection { .. }
        )
    }

    /// Returns `true` if the provider refuses all requests of this account to this model, until a person has mended it: a
    /// wrong key, no credit, no such model.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Authentication { .. } | Self::Quota { .. })
            || matches!(self, Self::BadRequest { message, .. } if says_model_not_found(message))
    }

    /// Returns the form in which the request may be accepted, if it was refused.
    pub(crate) fn remedy(&self) -> Option<Remedy> {
        if let Self::BadRequest { remedy, .. } = self { Some(*remedy) } else { None }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        let (Self::RateLimited { retry_after, .. }
        | Self::Overloaded { retry_after, .. }
        | Self::Paused { retry_after, .. }) = self
        else {
            return None;
        };
        *retry_after
    }
}

/// Returns `true` if a provider's error message says that the model does not exist.
fn says_model_not_found(message: &str) -> bool {
    let message = message.to_lowercase();
    let code = ["model_not_found", "not a valid model id", "no models loaded", "failed to load model"];
    let failed = ["does not exist", "not found", "not_found", "no such", "is not available", "not supported"];
    code.iter().any(|words| message.contains(words))
        || (message.contains("model") && failed.iter().any(|words| message.contains(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limits_are_transient_and_missing_keys_are_not() {
        let wait = Some(Duration::from_secs(2));
        let limited = ModelError::RateLimited { retry_after: wait, message: "slow down".into() };
        assert!(limited.is_transient());
        assert_eq!(limited.to_string(), "rate limited by the model's provider (try again in 2 s): slow down");
        assert!(!ModelError::Authentication { message: "no key".into() }.is_transient());
    }

    #[test]
    fn a_conversation_survives_serialisation() {
        let call = ToolCall { id: "c1".into(), name: "think".into(), arguments: "{broken".into() };
        let result =
            ToolResult { call_id: "c1".into(), text: "no".into(), is_error: true, images: Vec::new() };
        let state = ProviderState { model: "a:b".into(), items: serde_json::json!([1]) };
        let messages = vec![
            Message::User { text: "hello".into() },
            Message::Assistant { text: String::new(), calls: vec![call], provider_state: Some(state) },
            Message::Tool(result),
        ];
        let text = serde_json::to_string(&messages).unwrap();
        assert!(text.contains(r#""keepsake":{"model":"a:b""#), "the serialised name is unchanged: {text}");
        assert_eq!(serde_json::from_str::<Vec<Message>>(&text).unwrap(), messages);
    }

    /// Recorded requests and replies of releases without probabilities stay equal.
    #[test]
    fn probabilities_are_absent_where_nobody_asks_for_them() {
        let request = serde_json::to_value(Request::default()).unwrap();
        let reply = serde_json::to_value(Reply::default()).unwrap();
        assert!(request.get("first_token_probabilities").is_none() && reply.get("first_token").is_none());
        assert_eq!(serde_json::from_value::<Request>(request).unwrap(), Request::default());
        let asking = Request { first_token_probabilities: true, ..Request::default() };
        let read: Request = serde_json::from_value(serde_json::to_value(&asking).unwrap()).unwrap();
        assert_eq!(read, asking);
    }
}
