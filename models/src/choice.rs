//! Which model is meant, and how it is set. Plain data: it is read from capability files and command lines and opens
//! nothing.
//!
//! In a capability file a choice is a text, or a map where something is set:
//!
//! ```yaml
//! model: openai:gpt-6-sol, anthropic:claude-sonnet-5-5
//! ---
//! model:
//!   name: openai:gpt-6-sol
//!   temperature: 0.2
//!   fallback: [anthropic:claude-sonnet-5-5, {name: "ollama:qwen3:8b", timeout: 120}]
//! ```

mod form;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A model and those that stand in for it, in their order. As text: full names (`provider:model`) with commas between.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The models; never empty.
    pub models: Vec<Chosen>,
}

/// One model of a choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// Its full name, `provider:model`; a name without a provider is OpenAI's.
    pub name: String,
    /// How it is set.
    pub settings: Settings,
}

/// How a model is set. What is left out is the provider's default.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The provider's address, instead of its own or of that in the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment variable that holds the key, instead of the provider's usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_variable: Option<String>,
    /// 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "form::temperature")]
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "form::top_p")]
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// The most tokens of a reply, where it is less than what the agent asks for.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "form::max_output_tokens")]
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u32>,
    /// How hard a reasoning model thinks, in the provider's words (`low`, `medium`, `high` …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// How structured answers are asked for.
    #[serde(skip_serializing_if = "Structured::is_auto")]
    pub structured: Structured,
    /// How long one request may take, in seconds, its stream included; 600 if left out, a day at most.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "form::timeout")]
    #[schemars(range(min = 0.001, max = 86_400))]
    pub timeout: Option<f64>,
    /// How long a stream that has begun may give nothing at all before it counts as broken, in seconds; 120 if left out,
    /// a day at most.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "form::idle_timeout")]
    #[schemars(range(min = 0.001, max = 86_400))]
    pub idle_timeout: Option<f64>,
    /// More fields of the request's body; they win over ours.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra_body: Map<String, Value>,
    /// More headers of the request. Keys do not belong here: name their variable in `key_variable`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_headers: BTreeMap<String, String>,
}

/// How a structured answer is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Structured {
    /// As the provider can do it best. OpenAI and Anthropic: by their schema where the form can be strict, else by a
    /// tool. OpenRouter and the long tail: by a tool. Ollama, LM Studio and openai-compatible: by schema, in an envelope
    /// where there are tools too.
    #[default]
    Auto,
    /// By the provider's own strict JSON schema.
    Native,
    /// By the call of a tool that takes the answer.
    Tool,
    /// By a JSON schema that allows either a call or the answer.
    Envelope,
    /// By asking for it in words.
    Prompt,
}

impl Structured {
    /// Whether it is left to the provider's default.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Of what may hold a key although it should not, headers and fields of the body, the names alone are shown.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("key_variable", &self.key_variable)
            .field("temperature", &self.temperature)
            .field("top_p", &self.top_p)
            .field("max_output_tokens", &self.max_output_tokens)
            .field("reasoning_effort", &self.reasoning_effort)
            .field("structured", &self.structured)
            .field("timeout", &self.timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("extra_body", &self.extra_body.keys())
            .field("extra_headers", &self.extra_headers.keys())
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// How long one request may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        span(self.timeout, 600)
    }

    /// How long a stream may give nothing.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        span(self.idle_timeout, 120)
    }
}

fn span(seconds: Option<f64>, default: u64) -> Duration {
    let span = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.unwrap_or(Duration::from_secs(default))
}

impl Choice {
    /// The choice that a text names: `provider:model`, and after commas those that stand in for it.
    ///
    /// # Errors
    /// A name between the commas is empty.
    pub fn parse(text: &str) -> Result<Self, EmptyName> {
        let chosen = |name: &str| match name.trim() {
            "" => Err(EmptyName { text: text.chars().take(80).collect() }),
            name => Ok(Chosen { name: name.to_owned(), settings: Settings::default() }),
        };
        Ok(Self { models: text.split(',').map(chosen).collect::<Result<_, _>>()? })
    }
}

/// The names, with commas between; how the models are set is not told.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.models.iter().map(|chosen| chosen.name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

/// A choice with a model that has no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no model: write provider:model, and others that stand in for it behind commas")]
pub struct EmptyName {
    /// The text, cut to 80 characters.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_choice_holds_no_key() {
        let text = r#"{"name": "openai:x", "base_url": "https://user:url-secret-1@example.com/v1",
            "extra_body": {"api_key": "body-secret-1"}, "extra_headers": {"Authorization": "Bearer header-secret-1"}}"#;
        let choice: Choice = serde_json::from_str(text).unwrap();
        let shown = format!("{choice} {choice:?} {choice:#?}");
        assert!(shown.contains("Authorization") && !shown.contains("secret-1"), "{shown}");
    }
}
