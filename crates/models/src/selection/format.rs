//! Serialisation of selections: text, or a map of a name, settings and fallbacks. It checks the ranges of the settings
//! while reading, so that an error has the position of its field.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{MIN_WINDOW, ModelSelection, ModelSettings, ModelSpec};

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

pub(super) fn temperature<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "temperature", 0.0, 2.0)
}

pub(super) fn top_p<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "top_p", 0.0, 1.0)
}

pub(super) fn timeout<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    read_in_range(d, "timeout", 0.001, 86_400.0)
}

pub(super) fn idle_timeout<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
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

pub(super) fn context_window<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    let mistake = |window| format!("context_window is {window}; the least is {MIN_WINDOW} tokens");
    read_valid(d, |window| u64::from(*window) >= MIN_WINDOW, mistake)
}

pub(super) fn max_output_tokens<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
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
        assert_eq!(selection.models[0].settings.structured, super::super::StructuredMode::Envelope);
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
