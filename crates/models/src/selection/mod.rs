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
//!
//! Serialisation of selections: text, or a map of a name, settings and fallbacks. It checks the ranges of the settings
//! while reading, so that an error has the position of its field.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
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
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "temperature")]
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// Nucleus sampling, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "top_p")]
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// The maximum number of tokens of a reply, if lower than the agent's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "max_output_tokens")]
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u32>,
    /// The context window in tokens, if it is not the known one of the model.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "context_window")]
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
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "timeout")]
    #[schemars(range(min = 0.001, max = 86_400))]
    pub timeout: Option<f64>,
    /// Timeout in seconds for a stream that has begun and then sends nothing; default 120, at most a day.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "idle_timeout")]
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

const NAME_FIELD: &str = "name";
const FALLBACK_FIELD: &str = "fallback";

impl Serialize for ModelSelection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let default = ModelSettings::default();
        let Some((first, fallback)) =
            self.models.split_first().filter(|_| self.models.iter().any(|spec| spec.settings != default))
        else {
            return serializer.collect_str(self);
        };
        let settings = serde_json::to_value(&first.settings).map_err(serde::ser::Error::custom)?;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(NAME_FIELD, &first.name)?;
        for (key, value) in settings.as_object().into_iter().flatten() {
            map.serialize_entry(key, value)?;
        }
        if !fallback.is_empty() {
            map.serialize_entry(FALLBACK_FIELD, fallback)?;
        }
        map.end()
    }
}

impl Serialize for ModelSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ModelSelection { models: vec![self.clone()] }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ModelSelection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SelectionVisitor)
    }
}

impl<'de> Deserialize<'de> for ModelSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let selection = deserializer.deserialize_any(SelectionVisitor)?;
        match <[Self; 1]>::try_from(selection.models) {
            Ok([spec]) => Ok(spec),
            Err(_) => Err(D::Error::custom("only one model is allowed here; write its fallbacks as a list")),
        }
    }
}

struct SelectionVisitor;

impl<'de> Visitor<'de> for SelectionVisitor {
    type Value = ModelSelection;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model as text (provider:model, fallbacks separated by commas) or as a map with a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ModelSelection, E> {
        ModelSelection::parse(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ModelSelection, A::Error> {
        let (mut name, mut fallback) = (None, Vec::<ModelSpec>::new());
        let rest = RemainingEntries { map, name: &mut name, fallback: &mut fallback };
        let settings = ModelSettings::deserialize(MapAccessDeserializer::new(rest))?;
        let name: String = name.ok_or_else(|| A::Error::missing_field(NAME_FIELD))?;
        let mut models = ModelSelection::parse(&name).map_err(A::Error::custom)?.models;
        if models.len() > 1 {
            return Err(A::Error::custom("'name' must contain one model; its fallbacks go into 'fallback'"));
        }
        models[0].settings = settings;
        models.append(&mut fallback);
        Ok(ModelSelection { models })
    }
}

/// The entries of a map that belong to the settings, without the name and the fallbacks. The settings are read from the
/// map itself, so that errors keep their positions.
struct RemainingEntries<'a, A> {
    map: A,
    name: &'a mut Option<String>,
    fallback: &'a mut Vec<ModelSpec>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for RemainingEntries<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            match key.as_str() {
                NAME_FIELD => *self.name = Some(self.map.next_value()?),
                FALLBACK_FIELD => *self.fallback = self.map.next_value()?,
                key => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

impl JsonSchema for ModelSelection {
    fn schema_name() -> Cow<'static, str> {
        "Choice".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut map = model_spec_map_schema(generator);
        map["properties"][FALLBACK_FIELD] = serde_json::json!({
            "description": "Its fallbacks, in order.",
            "type": "array",
            "items": ModelSpec::json_schema(generator),
        });
        text_or_map_schema("A model as provider:model; fallbacks are separated by commas.", map)
    }
}

impl JsonSchema for ModelSpec {
    fn schema_name() -> Cow<'static, str> {
        "Chosen".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = model_spec_map_schema(generator);
        text_or_map_schema("A model as provider:model.", map)
    }
}

fn model_spec_map_schema(generator: &mut SchemaGenerator) -> Value {
    let mut map = ModelSettings::json_schema(generator).to_value();
    map["properties"][NAME_FIELD] = serde_json::json!({
        "description": "Its full name, provider:model; a name without a provider is OpenAI's.",
        "type": "string",
        "minLength": 1,
    });
    map["required"] = serde_json::json!([NAME_FIELD]);
    map["description"] = "A model with its settings.".into();
    map
}

fn text_or_map_schema(description: &str, map: Value) -> Schema {
    json_schema!({
        "description": "The model to use.",
        "anyOf": [{ "type": "string", "minLength": 1, "description": description }, map],
    })
}

fn temperature<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "temperature", 0.0, 2.0)
}

fn top_p<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "top_p", 0.0, 1.0)
}

fn timeout<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "timeout", 0.001, 86_400.0)
}

fn idle_timeout<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "idle_timeout", 0.001, 86_400.0)
}

fn read_in_range<'de, D: Deserializer<'de>>(
    d: D,
    name: &str,
    least: f64,
    most: f64,
) -> Result<Option<f64>, D::Error> {
    let mistake = |number| format!("{name} is {number}; it must be from {least} to {most}");
    read_valid(d, |number| (least..=most).contains(number), mistake)
}

fn context_window<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    let mistake = |window| format!("context_window is {window}; the least is {MIN_WINDOW} tokens");
    read_valid(d, |window| u64::from(*window) >= MIN_WINDOW, mistake)
}

fn max_output_tokens<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    read_valid(d, |number| *number > 0, |_| "max_output_tokens is 0; a reply needs at least 1".to_owned())
}

fn read_valid<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    d: D,
    is_valid: impl Fn(&T) -> bool,
    mistake: impl Fn(T) -> String,
) -> Result<Option<T>, D::Error> {
    match Option::<T>::deserialize(d)? {
        Some(value) if !is_valid(&value) => Err(D::Error::custom(mistake(value))),
        value => Ok(value),
    }
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

    fn parse_yaml_selection(text: &str) -> Result<ModelSelection, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_selection_as_text_or_map_round_trips() {
        let texts = [
            r#""openai:gpt-6-sol""#,
            r#""openai:gpt-6-sol, ollama:qwen3:8b""#,
            r#"{"name":"openai:gpt-6-sol","temperature":0.2}"#,
            r#"{"name":"a:b","fallback":["c:d",{"name":"e:f","timeout":5.0}]}"#,
        ];
        for text in texts {
            let selection: ModelSelection = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&selection).unwrap(), text);
            assert_eq!(parse_yaml_selection(text).unwrap(), selection);
        }
        let text =
            "name: openai-compatible:q@http://127.0.0.1:1/v1\nstructured: envelope\nfallback: ['a:b']\n";
        let selection = parse_yaml_selection(text).unwrap();
        assert_eq!(selection.to_string(), "openai-compatible:q@http://127.0.0.1:1/v1, a:b");
        assert_eq!(selection.models[0].settings.structured, StructuredMode::Envelope);
    }

    #[test]
    fn errors_name_the_field_they_are_in() {
        let cases = [
            ("name: a:b\ntemprature: 1\n", "unknown field `temprature`"),
            ("name: a:b\ntemperature: 3\n", "temperature is 3; it must be from 0 to 2"),
            ("name: a:b\nmax_output_tokens: 0\n", "max_output_tokens is 0"),
            ("name: a:b\ntimeout: -1\n", "timeout is -1"),
            ("temperature: 1\n", "missing field `name`"),
            ("name: 'a:b, c:d'\n", "go into 'fallback'"),
            ("name: a:b\nfallback: ['a:b,c:d']\n", "only one model is allowed here"),
            ("'openai:x, '", "names no model"),
            ("[a, b]", "a model as text"),
            ("''", "names no model"),
        ];
        for (text, expected) in cases {
            let mistake = parse_yaml_selection(text).unwrap_err();
            assert!(mistake.contains(expected), "{text:?}: {mistake}");
        }
        let mistake = parse_yaml_selection("name: a:b\ntop_p: 0.5\ntemperature: 3\n").unwrap_err();
        assert!(mistake.contains("line 3"), "{mistake}");
    }

    #[test]
    fn the_schema_allows_both_forms() {
        let schema = schemars::schema_for!(ModelSelection).to_value();
        assert_eq!(schema["anyOf"][0]["type"], "string");
        let map = &schema["anyOf"][1];
        assert_eq!(map["additionalProperties"], false);
        assert_eq!(map["required"], serde_json::json!(["name"]));
        for field in ["name", "fallback", "temperature", "extra_body"] {
            assert!(map["properties"][field].is_object(), "{field}");
        }
    }
}
