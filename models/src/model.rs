//! The interface that every language model sits behind: what is asked, what comes back, and how it can fail. It
//! owns no provider and no transport; a provider translates these words into its own and back.

use std::time::Duration;

use futures::future::BoxFuture;
use millrace_protocol::result::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A language model, or what stands in for one. One value is shared by all agents of a process.
pub trait Model: Send + Sync {
    /// Its full name, `provider:model`.
    fn name(&self) -> &str;

    /// Answers one request. The call holds no state between requests: all that counts is in `request`. What comes of
    /// it while it is being written is told to `watch`; the reply that is returned is whole all the same.
    ///
    /// # Errors
    /// The provider failed or refused; [`ModelError::is_transient`] says whether asking again can help.
    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>>;
}

/// Whoever looks on while a reply is being written.
pub trait Watch: Send + Sync {
    /// The next piece.
    fn delta(&self, delta: Delta<'_>);
}

/// Nobody looks on.
impl Watch for () {
    fn delta(&self, _: Delta<'_>) {}
}

/// A piece of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    /// The next words of the text.
    Text(&'a str),
    /// The next words of the reasoning, where the provider shows it.
    Reasoning(&'a str),
    /// A tool call has begun.
    Call(&'a str),
    /// What came so far does not count: the request is made again.
    Restart,
    /// The request has to wait before it can be made, for this reason.
    Waiting(&'a str),
    /// The wait is over: the request is being made.
    Asking,
}

/// One question to a model: the whole conversation so far and what it may answer with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The instructions that stand above the conversation.
    pub system: String,
    /// The conversation, oldest first. Every tool call in it is followed by its result.
    pub messages: Vec<Message>,
    /// The tools that may be called; none means that the model must answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    /// The form of the final answer; `None` asks for plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerSchema>,
    /// The most tokens the reply may have.
    pub max_output_tokens: u32,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What the agent was told from outside.
    User {
        /// The words.
        text: String,
    },
    /// What the model said.
    Assistant {
        /// The words; may be empty beside calls.
        text: String,
        /// The tools it called, in its order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCall>,
        /// What its provider wants to see again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keepsake: Option<Keepsake>,
    },
    /// What a tool gave back.
    Tool(ToolResult),
}

/// What a provider gives along with a reply and wants back with the conversation, such as signed reasoning. Only the
/// wire that wrote it reads it; any other leaves it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keepsake {
    /// The full name of the model that it came from.
    pub model: String,
    /// The provider's own items.
    pub items: Value,
}

/// A tool call as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The model's name for this call; its result carries the same.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them: JSON text, if it did well.
    pub arguments: String,
}

/// What a tool call gave back to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call it belongs to.
    pub call_id: String,
    /// What the model reads.
    pub text: String,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Its name: letters, digits and `_`.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its arguments, an object, without references.
    pub schema: Value,
}

/// The form of a final answer (structured output).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerSchema {
    /// What the answer is called, such as `verdict`.
    pub name: String,
    /// Its JSON Schema, an object, without references.
    pub schema: Value,
}

/// What a model answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The words; with an [`AnswerSchema`] and no calls, the answer as JSON text.
    #[serde(default)]
    pub text: String,
    /// The tools it wants called, all at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// The tokens it took. `model_calls` and `tool_calls` are counted by whoever asks and stay 0 here.
    #[serde(default)]
    pub usage: Usage,
    /// Why it stopped.
    pub finish: Finish,
    /// The full name of the model that answered, where it is not the one that was asked: one of its fallbacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the provider wants to see again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepsake: Option<Keepsake>,
}

/// Why a model stopped writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was done.
    #[default]
    Stop,
    /// It waits for the results of its calls.
    ToolCalls,
    /// It reached `max_output_tokens`: the text is cut off.
    Length,
    /// The provider's filter cut it off.
    ContentFilter,
}

/// Why a model gave no reply. The texts name the provider's own words where there are any, never a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModelError {
    /// Too many requests or tokens for the account.
    #[error("the model's provider limits the rate{}: {message}", after(.retry_after))]
    RateLimited {
        /// How long the provider asks to wait.
        retry_after: Option<Duration>,
        /// The provider's words.
        message: String,
    },
    /// The provider has no room at the moment.
    #[error("the model's provider is overloaded: {message}")]
    Overloaded {
        /// The provider's words.
        message: String,
    },
    /// The conversation is too long for the model.
    #[error("the conversation is too long for the model: {message}")]
    ContextOverflow {
        /// The provider's words.
        message: String,
    },
    /// The key is missing, wrong, or not allowed to use the model.
    #[error("the model's provider refuses the key: {message}")]
    Authentication {
        /// The provider's words.
        message: String,
    },
    /// The provider refused the content.
    #[error("the model's provider refuses the content: {message}")]
    ContentFilter {
        /// The provider's words.
        message: String,
    },
    /// The reply broke off before its end.
    #[error("the model's reply broke off: {message}")]
    Truncated {
        /// Where it broke off.
        message: String,
    },
    /// The provider says that the request is wrong, or that there is no such model.
    #[error("the model's provider refuses the request: {message}")]
    BadRequest {
        /// The provider's words.
        message: String,
    },
    /// The provider answered with something that is not a reply.
    #[error("the model's provider answered with something unexpected: {message}")]
    Protocol {
        /// What came instead.
        message: String,
    },
    /// Nothing came in time.
    #[error("the model did not answer within {after:?}")]
    Timeout {
        /// How long was waited.
        after: Duration,
    },
    /// The provider can't be reached.
    #[error("the model's provider can't be reached: {message}")]
    Connection {
        /// The transport's words.
        message: String,
    },
}

fn after(wait: &Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!(" (try again in {wait:?})"))
}

impl ModelError {
    /// Its kind in a word, as it is recorded and counted.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "rate_limited",
            Self::Overloaded { .. } => "overloaded",
            Self::ContextOverflow { .. } => "context_overflow",
            Self::Authentication { .. } => "authentication",
            Self::ContentFilter { .. } => "content_filter",
            Self::Truncated { .. } => "truncated",
            Self::BadRequest { .. } => "bad_request",
            Self::Protocol { .. } => "protocol",
            Self::Timeout { .. } => "timeout",
            Self::Connection { .. } => "connection",
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::Truncated { .. }
            | Self::Timeout { .. }
            | Self::Connection { .. } => true,
            Self::ContextOverflow { .. }
            | Self::Authentication { .. }
            | Self::ContentFilter { .. }
            | Self::BadRequest { .. }
            | Self::Protocol { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_pass_by_themselves_are_told_from_those_that_do_not() {
        let wait = Some(Duration::from_secs(2));
        let limited = ModelError::RateLimited { retry_after: wait, message: "slow down".into() };
        assert!(limited.is_transient());
        assert_eq!(limited.to_string(), "the model's provider limits the rate (try again in 2s): slow down");
        assert!(!ModelError::Authentication { message: "no key".into() }.is_transient());
    }

    #[test]
    fn a_conversation_survives_serialisation() {
        let call = ToolCall { id: "c1".into(), name: "think".into(), arguments: "{broken".into() };
        let result = ToolResult { call_id: "c1".into(), text: "no".into(), is_error: true };
        let messages = vec![
            Message::User { text: "hello".into() },
            Message::Assistant { text: String::new(), calls: vec![call], keepsake: None },
            Message::Tool(result),
        ];
        let text = serde_json::to_string(&messages).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Message>>(&text).unwrap(), messages);
    }
}
