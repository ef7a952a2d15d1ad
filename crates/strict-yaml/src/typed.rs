//! Deserialises a node to any type that supports serde, with the position of every mismatch. The type's serde attributes
//! define what is allowed; the wording of the errors is ours.

use std::borrow::Cow;
use std::fmt;

use millrace_protocol::foreign_json::describe_number_type;
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::fields::quote_truncated;
use crate::mistake::{Position, YamlMistake, did_you_mean_hint, join_with_or};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

/// Deserialises a node; `what` is the name of the described thing, for errors.
///
/// # Errors
/// The first mismatch, at its own position.
pub fn deserialize_node<T: DeserializeOwned>(node: &YamlNode, what: &str) -> Result<T, YamlMistake> {
    T::deserialize(NodeDeserializer { node }).map_err(|fault| {
        let text = match fault.field {
            None => format!("this {what} does not fit: {}", fault.text),
            Some(_) => fault.text,
        };
        YamlMistake::at_position(fault.position.unwrap_or(node.position), text)
    })
}

/// A mismatch, with the position of the innermost node being read.
#[derive(Debug)]
struct TypeMismatch {
    position: Option<Position>,
    /// Set once the name of the field is part of the text.
    field: Option<()>,
    text: String,
}

impl TypeMismatch {
    fn new(text: String) -> Self {
        Self { position: None, field: None, text }
    }

    fn with_position(mut self, position: Position) -> Self {
        self.position.get_or_insert(position);
        self
    }

    /// Adds the name of the field, unless that of an inner field is present.
    fn within_field(mut self, name: &str) -> Self {
        if self.field.replace(()).is_none() {
            self.text = format!("{name:?}: {}", self.text);
        }
        self
    }
}

impl fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for TypeMismatch {}

impl de::Error for TypeMismatch {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(text.to_string())
    }

    fn invalid_type(actual: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!(
            "it must be {}, not {}",
            translate_expectation(&expected.to_string()),
            describe_unexpected(actual)
        ))
    }

    fn invalid_value(actual: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid_type(actual, expected)
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        let hint = did_you_mean_hint(name, known.iter().copied());
        Self::new(format!("it must be {}, not the text {}{hint}", join_with_or(known), quote_truncated(name)))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let hint = match did_you_mean_hint(name, known.iter().copied()) {
            hint if hint.is_empty() => format!("; there can be {}", join_with_or(known)),
            hint => hint,
        };
        Self {
            field: Some(()),
            ..Self::new(format!("there is no field {} here{hint}", quote_truncated(name)))
        }
    }

    fn missing_field(name: &'static str) -> Self {
        Self { field: Some(()), ..Self::new(format!("the field {name:?} is missing here")) }
    }
}

/// Translates serde's expectation for people who do not know Rust.
fn translate_expectation(expected: &str) -> Cow<'_, str> {
    if let Some(number) = describe_number_type(expected) {
        return number.into();
    }
    let translated = match expected {
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "unit" => "nothing",
        other if other.starts_with("struct ") => "a map of fields",
        other => other,
    };
    translated.into()
}

fn describe_unexpected(actual: Unexpected<'_>) -> String {
    match actual {
        Unexpected::Str(text) => format!("the text {}", quote_truncated(text)),
        Unexpected::Bool(flag) => flag.to_string(),
        Unexpected::Unsigned(number) => format!("the number {number}"),
        Unexpected::Signed(number) => format!("the number {number}"),
        Unexpected::Float(number) => format!("the number {number}"),
        Unexpected::Unit | Unexpected::Option => "nothing".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a map".into(),
        other @ (Unexpected::Char(_)
        | Unexpected::Bytes(_)
        | Unexpected::NewtypeStruct
        | Unexpected::Enum
        | Unexpected::UnitVariant
        | Unexpected::NewtypeVariant
        | Unexpected::TupleVariant
        | Unexpected::StructVariant
        | Unexpected::Other(_)) => other.to_string(),
    }
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'a> {
    node: &'a YamlNode,
}

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = TypeMismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        let read = match &self.node.value {
            YamlValue::Nothing => visitor.visit_unit(),
            YamlValue::Flag(flag) => visitor.visit_bool(*flag),
            YamlValue::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (None, Some(number), _) => visitor.visit_i64(number),
                (None, None, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
            },
            YamlValue::Text(text) => visitor.visit_str(text),
            YamlValue::List(items) => visitor.visit_seq(ListAccess { items: items.iter() }),
            YamlValue::Map(entries) => {
                visitor.visit_map(MapEntryAccess { entries: entries.iter(), current: None })
            }
        };
        read.map_err(|mismatch| mismatch.with_position(self.node.position))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        match &self.node.value {
            YamlValue::Nothing => visitor.visit_none(),
            YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeMismatch> {
        visitor.visit_newtype_struct(self).map_err(|mismatch| mismatch.with_position(self.node.position))
    }

    /// A struct must be a map of named fields, not a list of values.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeMismatch> {
        match &self.node.value {
            YamlValue::List(_) => Err(TypeMismatch::new("it must be a map of fields, not a list".into())),
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::Map(_) => self.deserialize_any(visitor),
        }
        .map_err(|mismatch| mismatch.with_position(self.node.position))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeMismatch> {
        let position = self.node.position;
        let read = match &self.node.value {
            YamlValue::Text(text) => {
                visitor.visit_enum(VariantNameAndContent { name: text, position, content: None })
            }
            YamlValue::Map(entries) if entries.len() == 1 => {
                let YamlEntry { key, node, position } = &entries[0];
                visitor.visit_enum(VariantNameAndContent {
                    name: key,
                    position: *position,
                    content: Some(node),
                })
            }
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => {
                let _ = name;
                let actual = self.node.describe_type_and_value();
                Err(TypeMismatch::new(format!("it must be {}, not {actual}", join_with_or(variants))))
            }
        };
        read.map_err(|mismatch| mismatch.with_position(position))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct ListAccess<'a> {
    items: std::slice::Iter<'a, YamlNode>,
}

impl<'de> SeqAccess<'de> for ListAccess<'_> {
    type Error = TypeMismatch;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, TypeMismatch> {
        self.items.next().map(|node| seed.deserialize(NodeDeserializer { node })).transpose()
    }
}

struct MapEntryAccess<'a> {
    entries: std::slice::Iter<'a, YamlEntry>,
    current: Option<&'a YamlEntry>,
}

impl<'de> MapAccess<'de> for MapEntryAccess<'_> {
    type Error = TypeMismatch;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeMismatch> {
        self.current = self.entries.next();
        let Some(entry) = self.current else { return Ok(None) };
        let key: StrDeserializer<'_, TypeMismatch> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|mismatch| mismatch.with_position(entry.position))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, TypeMismatch> {
        let Some(entry) = self.current else {
            return Err(de::Error::custom("a value was requested before its key"));
        };
        seed.deserialize(NodeDeserializer { node: &entry.node })
            .map_err(|mismatch| mismatch.within_field(&entry.key))
    }
}

struct VariantNameAndContent<'a> {
    name: &'a str,
    position: Position,
    content: Option<&'a YamlNode>,
}

impl<'de, 'a> EnumAccess<'de> for VariantNameAndContent<'a> {
    type Error = TypeMismatch;
    type Variant = VariantContent<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, VariantContent<'a>), TypeMismatch> {
        let name: StrDeserializer<'_, TypeMismatch> = self.name.into_deserializer();
        let variant = seed.deserialize(name).map_err(|mismatch| mismatch.with_position(self.position))?;
        Ok((variant, VariantContent { name: self.name, node: self.content }))
    }
}

struct VariantContent<'a> {
    name: &'a str,
    node: Option<&'a YamlNode>,
}

impl<'a> VariantContent<'a> {
    fn require_value(&self) -> Result<NodeDeserializer<'a>, TypeMismatch> {
        let missing = || TypeMismatch::new(format!("{:?} needs a value: write {}: …", self.name, self.name));
        self.node.map(|node| NodeDeserializer { node }).ok_or_else(missing)
    }
}

impl<'de> VariantAccess<'de> for VariantContent<'_> {
    type Error = TypeMismatch;

    fn unit_variant(self) -> Result<(), TypeMismatch> {
        match self.node {
            None => Ok(()),
            Some(node) => {
                Err(TypeMismatch::new(format!("{:?} must have no value", self.name))
                    .with_position(node.position))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, TypeMismatch> {
        seed.deserialize(self.require_value()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, TypeMismatch> {
        self.require_value()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeMismatch> {
        self.require_value()?.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::{FileDescription, parse_yaml};

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SampleServer {
        name: String,
        #[serde(default)]
        port: Option<u16>,
        #[serde(default)]
        mode: SampleMode,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        #[serde(default)]
        weights: Vec<f64>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum SampleMode {
        #[default]
        Plain,
        Careful {
            tries: u32,
        },
    }

    fn deserialize_server(text: &str) -> Result<SampleServer, String> {
        let node = parse_yaml(text.as_bytes(), FileDescription { name: "server", holds: "a name" }).unwrap();
        deserialize_node(&node, "server").map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn valid_values_are_deserialised() {
        let text = "name: a\nport: 80\nmode: {careful: {tries: 3}}\nheaders: {x: y}\nweights: [1, 0.5]\n";
        let read = deserialize_server(text).unwrap();
        assert_eq!(
            (read.port, read.mode, read.weights),
            (Some(80), SampleMode::Careful { tries: 3 }, vec![1.0, 0.5])
        );
        assert_eq!(deserialize_server("name: a\nport: ~\nmode: plain\n").unwrap().port, None);
    }

    #[test]
    fn mismatches_are_reported_at_their_position() {
        for (text, expected) in [
            ("port: 80\n", "1:1: the field \"name\" is missing here"),
            ("name: a\nprot: 80\n", "2:1: there is no field \"prot\" here; did you mean \"port\"?"),
            (
                "name: a\nxxxxxxxx: 80\n",
                "2:1: there is no field \"xxxxxxxx\" here; there can be name, port, mode, headers or weights",
            ),
            ("name: 7\n", "1:7: \"name\": it must be text, not the number 7"),
            (
                "name: a\nport: 99999\n",
                "2:7: \"port\": it must be a whole number from 0 to 65535, not the number 99999",
            ),
            (
                "name: a\nmode: carefull\n",
                "2:7: \"mode\": it must be plain or careful, not the text \"carefull\"; did you mean \"careful\"?",
            ),
            ("name: a\nmode: careful\n", "2:7: \"mode\": \"careful\" needs a value: write careful: …"),
            (
                "name: a\nmode: {careful: {tries: -1}}\n",
                "2:25: \"tries\": it must be a whole number of 0 or more, not the number -1",
            ),
            ("name: a\nmode: 3\n", "2:7: \"mode\": it must be plain or careful, not the number 3"),
            ("name: a\nheaders: {x: 3}\n", "2:14: \"x\": it must be text, not the number 3"),
            (
                "name: a\nweights:\n  - 1\n  - two\n",
                "4:5: \"weights\": it must be a number, not the text \"two\"",
            ),
            ("[1]\n", "1:1: this server does not fit: it must be a map of fields, not a list"),
        ] {
            assert_eq!(deserialize_server(text).unwrap_err(), expected, "{text}");
        }
    }
}
