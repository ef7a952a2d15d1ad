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

use secrecy::SecretString;

use crate::choice::Settings;
use crate::model::Model;

pub mod schema;

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
        f.debug_struct("Endpoint").field("full_name", &self.full_name).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// What it can do by itself.
    #[must_use]
    pub fn native(&self) -> Native {
        Native { structured: true, tools: true, tools_with_structured: self.wire == Wire::OpenAiResponses }
    }
}

/// A model that is asked over its wire.
#[must_use]
pub fn connect(endpoint: Endpoint) -> Arc<dyn Model> {
    unreachable!("{endpoint:?} is not connected yet")
}
