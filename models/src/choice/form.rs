//! How a choice is written down: as a text, or as a map of its name, its settings and those that stand in for it. It
//! owns the forms and the ranges of the settings, so that a mistake is told at the field that holds it.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Choice, Chosen, Settings};

const NAME: &str = "name";
const FALLBACK: &str = "fallback";

impl Serialize for Choice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.models.split_first() {
            Some((first, fallback)) if self.models.iter().any(is_set) => write(first, fallback, serializer),
            _ => serializer.collect_str(self),
        }
    }
}

impl Serialize for Chosen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if is_set(self) { write(self, &[], serializer) } else { serializer.serialize_str(&self.name) }
    }
}

fn is_set(chosen: &Chosen) -> bool {
    chosen.settings != Settings::default()
}

fn write<S: Serializer>(first: &Chosen, fallback: &[Chosen], serializer: S) -> Result<S::Ok, S::Error> {
    let settings = serde_json::to_value(&first.settings).map_err(serde::ser::Error::custom)?;
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry(NAME, &first.name)?;
    for (key, value) in settings.as_object().into_iter().flatten() {
        map.serialize_entry(key, value)?;
    }
    if !fallback.is_empty() {
        map.serialize_entry(FALLBACK, fallback)?;
    }
    map.end()
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChoiceVisitor)
    }
}

impl<'de> Deserialize<'de> for Chosen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let choice = deserializer.deserialize_any(ChoiceVisitor)?;
        match <[Self; 1]>::try_from(choice.models) {
            Ok([chosen]) => Ok(chosen),
            Err(_) => Err(D::Error::custom("one model is named here; those that stand in for it are a list")),
        }
    }
}

struct ChoiceVisitor;

impl<'de> Visitor<'de> for ChoiceVisitor {
    type Value = Choice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model as text (provider:model, others behind commas) or as a map with a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Choice, E> {
        Choice::parse(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Choice, A::Error> {
        let (mut name, mut fallback) = (None, Vec::<Chosen>::new());
        let rest = Rest { map, name: &mut name, fallback: &mut fallback };
        let settings = Settings::deserialize(MapAccessDeserializer::new(rest))?;
        let name: String = name.ok_or_else(|| A::Error::missing_field(NAME))?;
        let mut models = Choice::parse(&name).map_err(A::Error::custom)?.models;
        if models.len() > 1 {
            return Err(A::Error::custom(
                "'name' names one model; those that stand in for it go into 'fallback'",
            ));
        }
        models[0].settings = settings;
        models.append(&mut fallback);
        Ok(Choice { models })
    }
}

/// What is left of a map for the settings, once the name and the fallback are taken out. The settings read their
/// fields from the map itself, so that a mistake keeps its place.
struct Rest<'a, A> {
    map: A,
    name: &'a mut Option<String>,
    fallback: &'a mut Vec<Chosen>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Rest<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            match key.as_str() {
                NAME => *self.name = Some(self.map.next_value()?),
                FALLBACK => *self.fallback = self.map.next_value()?,
                key => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

impl JsonSchema for Choice {
    fn schema_name() -> Cow<'static, str> {
        "Choice".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut map = chosen_map(generator);
        map["properties"][FALLBACK] = serde_json::json!({
            "description": "The models that stand in for it, in their order.",
            "type": "array",
            "items": Chosen::json_schema(generator),
        });
        either("A model as provider:model; those that stand in for it behind commas.", map)
    }
}

impl JsonSchema for Chosen {
    fn schema_name() -> Cow<'static, str> {
        "Chosen".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = chosen_map(generator);
        either("A model as provider:model.", map)
    }
}

fn chosen_map(generator: &mut SchemaGenerator) -> Value {
    let mut map = Settings::json_schema(generator).to_value();
    map["properties"][NAME] = serde_json::json!({
        "description": "Its full name, provider:model; a name without a provider is OpenAI's.",
        "type": "string",
        "minLength": 1,
    });
    map["required"] = serde_json::json!([NAME]);
    map["description"] = "A model and how it is set.".into();
    map
}

fn either(description: &str, map: Value) -> Schema {
    json_schema!({
        "description": "Which model is used.",
        "anyOf": [{ "type": "string", "minLength": 1, "description": description }, map],
    })
}

pub(super) fn temperature<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    within(deserializer, "temperature", 0.0, 2.0)
}

pub(super) fn top_p<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    within(deserializer, "top_p", 0.0, 1.0)
}

pub(super) fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    within(deserializer, "timeout", 0.001, 86_400.0)
}

pub(super) fn idle_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    within(deserializer, "idle_timeout", 0.001, 86_400.0)
}

fn within<'de, D: Deserializer<'de>>(
    d: D,
    field: &str,
    least: f64,
    most: f64,
) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(d)? {
        Some(number) if !(least..=most).contains(&number) => {
            Err(D::Error::custom(format!("{field} is {number}; it goes from {least} to {most}")))
        }
        number => Ok(number),
    }
}

pub(super) fn max_output_tokens<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    match Option::<u32>::deserialize(d)? {
        Some(0) => Err(D::Error::custom("max_output_tokens is 0; a reply needs at least 1")),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> Result<Choice, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_choice_is_a_text_or_a_map_and_comes_back_as_it_was() {
        let texts = [
            r#""openai:gpt-6-sol""#,
            r#""openai:gpt-6-sol, ollama:qwen3:8b""#,
            r#"{"name":"openai:gpt-6-sol","temperature":0.2}"#,
            r#"{"name":"a:b","fallback":["c:d",{"name":"e:f","timeout":5.0}]}"#,
        ];
        for text in texts {
            let choice: Choice = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&choice).unwrap(), text);
            assert_eq!(yaml(text).unwrap(), choice);
        }
        let text =
            "name: openai-compatible:q@http://127.0.0.1:1/v1\nstructured: envelope\nfallback: ['a:b']\n";
        let choice = yaml(text).unwrap();
        assert_eq!(choice.to_string(), "openai-compatible:q@http://127.0.0.1:1/v1, a:b");
        assert_eq!(choice.models[0].settings.structured, super::super::Structured::Envelope);
    }

    #[test]
    fn a_mistake_is_told_with_the_field_that_holds_it() {
        let cases = [
            ("name: a:b\ntemprature: 1\n", "unknown field `temprature`"),
            ("name: a:b\ntemperature: 3\n", "temperature is 3; it goes from 0 to 2"),
            ("name: a:b\nmax_output_tokens: 0\n", "max_output_tokens is 0"),
            ("name: a:b\ntimeout: -1\n", "timeout is -1"),
            ("temperature: 1\n", "missing field `name`"),
            ("name: 'a:b, c:d'\n", "go into 'fallback'"),
            ("name: a:b\nfallback: ['a:b,c:d']\n", "one model is named here"),
            ("'openai:x, '", "names no model"),
            ("[a, b]", "a model as text"),
            ("''", "names no model"),
        ];
        for (text, told) in cases {
            let mistake = yaml(text).unwrap_err();
            assert!(mistake.contains(told), "{text:?} told: {mistake}");
        }
        let mistake = yaml("name: a:b\ntop_p: 0.5\ntemperature: 3\n").unwrap_err();
        assert!(mistake.contains("line 3"), "{mistake}");
    }

    #[test]
    fn the_schema_knows_both_forms() {
        let schema = schemars::schema_for!(Choice).to_value();
        assert_eq!(schema["anyOf"][0]["type"], "string");
        let map = &schema["anyOf"][1];
        assert_eq!(map["additionalProperties"], false);
        assert_eq!(map["required"], serde_json::json!(["name"]));
        for field in ["name", "fallback", "temperature", "extra_body"] {
            assert!(map["properties"][field].is_object(), "{field}");
        }
    }
}
