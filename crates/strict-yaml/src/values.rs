//! Values of files in the notations that people write, with their JSON Schemas.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use millrace_protocol::time_text;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, IntoDeserializer, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::mistake::{ValueMistake, join_with_or};
use crate::reading::{Expectation, PARTS};
use crate::yaml::{YamlNode, YamlValue};

/// Deserialises a value from another notation: `#[serde(deserialize_with = "from_form::<_, Form, _>")]`.
pub fn from_form<'de, D, F, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    F: Deserialize<'de>,
    T: TryFrom<F, Error: fmt::Display>,
{
    T::try_from(F::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Reads a text that must be valid; `expected` describes a valid one.
pub fn checked_text<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &str,
    is_valid: impl FnOnce(&str) -> bool,
) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match is_valid(&text) {
        true => Ok(text),
        false => Err(D::Error::invalid_value(Unexpected::Str(&text), &expected)),
    }
}

/// Reads a list, or a single text in its place.
pub fn one_or_many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct ItemsVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ItemsVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let Some(Expectation::Names(names)) = Expectation::of::<T>() else {
                return f.write_str("text or a list of texts");
            };
            write!(f, "{}, or a list of these", join_with_or(names))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            T::deserialize(text.into_deserializer()).map(|item| vec![item])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(items))
        }
    }

    deserializer.deserialize_any(ItemsVisitor(PhantomData))
}

/// Reads a command: a program and its arguments.
pub fn command_words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "word")]
    struct Word(String);
    Ok(Vec::<Word>::deserialize(deserializer)?.into_iter().map(|Word(text)| text).collect())
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "YamlNode")]
pub struct Whole<const MIN: u32, const MAX: u32>(pub u32);

impl<const MIN: u32, const MAX: u32> From<Whole<MIN, MAX>> for u32 {
    fn from(number: Whole<MIN, MAX>) -> Self {
        number.0
    }
}

impl<const MIN: u32, const MAX: u32> TryFrom<YamlNode> for Whole<MIN, MAX> {
    type Error = ValueMistake;

    fn try_from(node: YamlNode) -> Result<Self, ValueMistake> {
        let number = if let YamlValue::Number(number) = &node.value { number.as_u64() } else { None };
        let number = number.and_then(|number| u32::try_from(number).ok());
        let expected = match MAX {
            u32::MAX => format!("a whole number, {MIN} or more"),
            _ => format!("a whole number from {MIN} to {MAX}"),
        };
        let valid = number.filter(|number| (MIN..=MAX).contains(number)).map(Self);
        valid.ok_or_else(|| node.mismatch(&expected))
    }
}

impl<const MIN: u32, const MAX: u32> JsonSchema for Whole<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Whole".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match MAX {
            u32::MAX => json_schema!({ "type": "integer", "minimum": MIN }),
            _ => json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX }),
        }
    }
}

/// A duration, which may be zero: a number of seconds, or text such as `90s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "YamlNode")]
pub struct FileDuration(pub Duration);

impl TryFrom<YamlNode> for FileDuration {
    type Error = ValueMistake;

    fn try_from(node: YamlNode) -> Result<Self, ValueMistake> {
        let days = time_text::MAX_DURATION.as_secs() / 86_400;
        let text = r#"a duration: seconds as a number, or text such as "90s", "1h 30m" or "30d""#;
        let duration = node.to_duration().map(Self);
        duration.ok_or_else(|| node.mismatch(&format!("{text}, at most {days} days")))
    }
}

impl JsonSchema for FileDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["number", "string"] })
    }
}

/// Two structs whose fields are together those of one map.
#[derive(Debug, Clone, Default)]
pub struct Parts<A, B>(pub A, pub B);

impl<'de, A: Deserialize<'de>, B: Deserialize<'de>> Deserialize<'de> for Parts<A, B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple_struct(PARTS, 2, PartsVisitor(PhantomData))
    }
}

struct PartsVisitor<A, B>(PhantomData<(A, B)>);

impl<'de, A: Deserialize<'de>, B: Deserialize<'de>> Visitor<'de> for PartsVisitor<A, B> {
    type Value = Parts<A, B>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of fields")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut parts: S) -> Result<Parts<A, B>, S::Error> {
        let missing = || S::Error::custom("a part is missing");
        // The mistakes of both are found at once.
        let (first, second) = (parts.next_element(), parts.next_element());
        Ok(Parts(first?.ok_or_else(missing)?, second?.ok_or_else(missing)?))
    }
}

impl<A: JsonSchema, B: JsonSchema> JsonSchema for Parts<A, B> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{}And{}", A::schema_name(), B::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (mut first, mut second) = (A::json_schema(generator), B::json_schema(generator));
        for keyword in ["properties", "required"] {
            match (first.get_mut(keyword), second.remove(keyword)) {
                (Some(Value::Object(first)), Some(Value::Object(second))) => first.extend(second),
                (Some(Value::Array(first)), Some(Value::Array(second))) => first.extend(second),
                (None, Some(second)) => drop(first.insert(keyword.into(), second)),
                _ => {}
            }
        }
        first
    }
}

/// Tidies the derived schema of a struct in a file: without the width of numbers, without `null` and empty defaults, and with names
/// in one list. `#[schemars(transform = tidy_schema)]`.
pub fn tidy_schema(schema: &mut Schema) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(|fields| fields.values_mut()) {
        tidy_field(field);
    }
}

fn tidy_field(field: &mut Value) {
    let is_empty = match &field["default"] {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => true,
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    };
    if is_empty {
        remove_keyword(field, "default");
    }
    let format = field["format"].as_str().unwrap_or_default();
    if format.starts_with("uint") || format == "double" {
        if field["minimum"] == json!(0) {
            remove_keyword(field, "minimum");
        }
        remove_keyword(field, "format");
    }
    if let Some(types) = field.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            field["type"] = only.clone();
        }
    }
    if let Some(forms) = field.get_mut("anyOf").and_then(Value::as_array_mut) {
        forms.retain(|form| form["type"] != "null");
        if let [Value::Object(only)] = forms.as_mut_slice() {
            let only = std::mem::take(only);
            remove_keyword(field, "anyOf");
            for (keyword, value) in only {
                field.as_object_mut().map(|field| field.entry(keyword).or_insert(value));
            }
        }
    }
    let names = field["oneOf"].as_array().map(|forms| forms.iter().map(|form| form.get("const").cloned()));
    if let Some(names) = names.and_then(|names| names.collect::<Option<Vec<Value>>>()) {
        remove_keyword(field, "oneOf");
        remove_keyword(field, "type");
        field["enum"] = names.into();
    }
}

/// Removes the defaults of fields: `#[schemars(transform = without_defaults)]`.
pub fn without_defaults(schema: &mut Schema) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    fields
        .into_iter()
        .flat_map(|fields| fields.values_mut())
        .for_each(|field| remove_keyword(field, "default"));
}

fn remove_keyword(schema: &mut Value, keyword: &str) {
    schema.as_object_mut().and_then(|schema| schema.shift_remove(keyword));
}

/// Lets exactly one of several forms hold: `#[schemars(untagged, transform = one_of)]`.
pub fn one_of(schema: &mut Schema) {
    if let Some(forms) = schema.remove("anyOf") {
        schema.insert("oneOf".into(), forms);
    }
}
