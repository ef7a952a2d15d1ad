//! Which models to use, with their settings. Plain data, parsed from capability files and command lines.
//!
//! In a capability file a selection is text, or a map if there are settings:
//!
//! ```yaml
//! model: openai:gpt-6-sol, anthropic:claude-sonnet-5-5
//! ---
//! model:
//!   name: openai:gpt-6-sol
//!   temperature: 0.2
//!   fallback: [anthropic:claude-sonnet-5-5, {name: "ollama:qwen3:8b", timeout: 120}]
//! ```

mod format;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A model and its fallbacks, in order. As text: full names (`provider:model`) separated by commas.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSelection {
    /// The models; never empty.
    pub models: Vec<ModelSpec>,
}

/// The smallest context window that can be set: less does not hold a task with its answer.
pub const MIN_WINDOW: u64 = 2_048;

const TIER_PREFIX: &str = "tier:";

#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Its full name, `provider:model`; a name without a provider is OpenAI's. `tier:NAME` stands for the models that the run or the
    /// process names for a tier.
    pub name: String,
    pub settings: ModelSettings,
}

/// The settings of a model. Each one defaults to the provider's default.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Settings")]
pub struct ModelSettings {
    /// The provider's address; overrides its default and the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment variable that holds the API key, instead of the provider's usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_variable: Option<String>,
    /// The sampling temperature, 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "format::temperature")]
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// Nucleus sampling, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "format::top_p")]
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// The maximum number of tokens of a reply, if lower than the agent's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "format::max_output_tokens")]
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u32>,
    /// The context window in tokens, if it is not the known one of the model.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "format::context_window")]
    #[schemars(range(min = 2048))]
    pub context_window: Option<u32>,
    /// `true` if it sees images, `false` if not; by default as known for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
    /// `true` if it takes PDF files, `false` if not; by default as known for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdf: Option<bool>,
    /// The reasoning effort, in the provider's terms (`low`, `medium`, `high` …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// The way to request structured output.
    #[serde(skip_serializing_if = "StructuredMode::is_auto")]
    pub structured: StructuredMode,
    /// Timeout of one request in seconds, including its stream; default 600, at most a day.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "format::timeout")]
    #[schemars(range(min = 0.001, max = 86_400))]
    pub timeout: Option<f64>,
    /// Timeout in seconds for a stream that has begun and then sends nothing; default 120, at most a day.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "format::idle_timeout")]
    #[schemars(range(min = 0.001, max = 86_400))]
    pub idle_timeout: Option<f64>,
    /// Additional fields of the request body; they override ours.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra_body: Map<String, Value>,
    /// Additional request headers. API keys do not belong here: name their variable in `key_variable`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_headers: BTreeMap<String, String>,
}

/// How to request structured output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Structured")]
pub enum StructuredMode {
    /// The best way for the provider. OpenAI and Anthropic: the provider's JSON schema if the schema can be strict, else
    /// a tool. Gemini: the same without tools, else a tool. All other hosted providers: a tool. Ollama, LM Studio and openai-compatible: the provider's JSON
    /// schema, as an envelope if there are tools too.
    #[default]
    Auto,
    /// The provider's own strict JSON schema.
    Native,
    /// A tool that takes the answer as its arguments.
    Tool,
    /// A JSON schema that allows either tool calls or the answer.
    Envelope,
    /// An instruction in the prompt.
    Prompt,
}

impl StructuredMode {
    /// Returns `true` for the provider's default.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Headers and body fields are shown by name only: they may contain an API key although they should not.
impl fmt::Debug for ModelSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (base_url, extra_body, extra_headers) = (None, Map::new(), BTreeMap::new());
        let shown = Self { base_url, extra_body, extra_headers, ..self.clone() };
        f.debug_struct("ModelSettings")
            .field("settings", &serde_json::to_string(&shown).unwrap_or_default())
            .field("extra_body", &self.extra_body.keys())
            .field("extra_headers", &self.extra_headers.keys())
            .finish_non_exhaustive()
    }
}

impl ModelSettings {
    pub fn timeout(&self) -> Duration {
        duration_or_default(self.timeout, 600)
    }

    /// Returns the timeout of a stream that sends nothing.
    pub fn idle_timeout(&self) -> Duration {
        duration_or_default(self.idle_timeout, 120)
    }
}

fn duration_or_default(seconds: Option<f64>, default: u64) -> Duration {
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.unwrap_or(Duration::from_secs(default))
}

impl ModelSpec {
    pub fn tier(&self) -> Option<&str> {
        self.name.strip_prefix(TIER_PREFIX).map(str::trim)
    }
}

impl ModelSelection {
    /// Replaces each tier by its models, which get the settings of the tier where they have none of their own. A tier without
    /// models stays.
    pub fn replace_tiers(&self, models_of_tier: &dyn Fn(&str) -> Option<Self>) -> Self {
        let mut models: Vec<ModelSpec> = Vec::new();
        for spec in &self.models {
            let of_tier = spec.tier().and_then(models_of_tier);
            let of_tier =
                of_tier.map_or_else(|| vec![spec.clone()], |tier| tier.with_settings(&spec.settings));
            let is_new = |own: &ModelSpec| models.iter().all(|earlier| earlier.name != own.name);
            let added: Vec<ModelSpec> = of_tier.into_iter().filter(is_new).collect();
            models.extend(added);
        }
        Self { models }
    }

    fn with_settings(self, settings: &ModelSettings) -> Vec<ModelSpec> {
        let default = ModelSettings::default();
        let own = |spec: ModelSpec| match spec.settings == default {
            true => ModelSpec { settings: settings.clone(), ..spec },
            false => spec,
        };
        self.models.into_iter().map(own).collect()
    }

    pub fn has_tier(&self) -> bool {
        self.models.iter().any(|spec| spec.tier().is_some())
    }

    /// Parses a selection: `provider:model`, followed by fallbacks separated by commas.
    pub fn parse(text: &str) -> Result<Self, EmptyModelName> {
        let spec = |name: &str| match name.trim() {
            "" => Err(EmptyModelName { text: text.chars().take(80).collect() }),
            name => Ok(ModelSpec { name: name.to_owned(), settings: ModelSettings::default() }),
        };
        Ok(Self { models: text.split(',').map(spec).collect::<Result<_, _>>()? })
    }
}

/// The names, separated by commas, without settings.
impl fmt::Display for ModelSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.models.iter().map(|spec| spec.name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no model: write provider:model, optionally followed by fallbacks separated by commas"
)]
pub struct EmptyModelName {
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_replaced_by_their_models_with_the_settings_of_the_tier() {
        let selection: ModelSelection = serde_json::from_str(
            r#"{"name": "tier:fast", "temperature": 0.5, "fallback": ["openai:b", "tier:none"]}"#,
        )
        .unwrap();
        let of_tier =
            |tier: &str| (tier == "fast").then(|| ModelSelection::parse("openai:a, openai:b").unwrap());
        let replaced = selection.replace_tiers(&of_tier);
        let models: Vec<_> =
            replaced.models.iter().map(|spec| (spec.name.as_str(), spec.settings.temperature)).collect();
        assert_eq!(models, [("openai:a", Some(0.5)), ("openai:b", Some(0.5)), ("tier:none", None)]);
        assert!(selection.has_tier() && replaced.has_tier());
        assert!(!of_tier("fast").unwrap().has_tier());
    }

    #[test]
    fn a_displayed_selection_contains_no_key() {
        let text = r#"{"name": "openai:x", "base_url": "https://user:url-secret-1@example.com/v1",
            "extra_body": {"api_key": "body-secret-1"}, "extra_headers": {"Authorization": "Bearer header-secret-1"}}"#;
        let selection: ModelSelection = serde_json::from_str(text).unwrap();
        let shown = format!("{selection} {selection:?} {selection:#?}");
        assert!(shown.contains("Authorization") && !shown.contains("secret-1"), "{shown}");
    }
}
