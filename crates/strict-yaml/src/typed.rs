//! Deserialises a node to any type that supports serde. The type's serde attributes define what is allowed; the wording of
//! the mistakes is ours, and all of them are found, each at its own position.
//!
//! A value that can't be read is left out, and the node is read again, until nothing new is found. A required field that is
//! missing or can't be read gets a placeholder instead, so that the mistakes behind it are found, too. A rule between fields
//! is checked only where all fields could be read.
//!
//! The name of a struct (`#[serde(rename = "task")]`) is that of the described thing; a field that it does not have is a
//! mistake. An enum whose variants are `Flag`, `Number`, `Text`, `List` or `Map`, in lower case, is read by the form of the
//! node, and its name is the expectation.

use std::cell::RefCell;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use crate::mistake::{MistakeCollector, Position, YamlMistake, YamlMistakes, join_with_or};
use crate::probe::{are_forms, expected_list, expected_map};
use crate::reading::{Fault, PARTS, Reading, noun, with_article};
use crate::yaml::{NODE, YamlEntry, YamlNode, YamlValue};

/// Deserialises a node; `what` is the name of the described thing.
pub fn deserialize_node<T: DeserializeOwned>(node: &YamlNode, what: &str) -> Result<T, YamlMistakes> {
    Reading::new(node, what).finish()
}

/// Deserialises the node of a field.
pub fn deserialize_field<T: DeserializeOwned>(node: &YamlNode, name: &str) -> Result<T, YamlMistakes> {
    Reading { field: Some(name), ..Reading::new(node, name) }.finish()
}

/// Deserialises a node and collects its mistakes. A value that has any lacks the parts that can't be read; there is none if a
/// required part can't be read.
pub fn collect_node<T: DeserializeOwned>(
    node: &YamlNode,
    what: &str,
    mistakes: &mut MistakeCollector,
) -> Option<T> {
    let reading = Reading::new(node, what);
    let value = reading.read();
    mistakes.append(reading.mistakes.into_inner());
    value
}

/// The maximum number of times that a node is read. Each finds at least one mistake.
const MAX_PASSES: usize = 100;

impl Reading<'_> {
    fn finish<T: DeserializeOwned>(self) -> Result<T, YamlMistakes> {
        let value = self.read();
        self.mistakes.into_inner().finish()?;
        Ok(value.expect("a value that can't be read is a mistake"))
    }

    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let mut value = None;
        for _ in 0..MAX_PASSES {
            self.left_out.set(0);
            self.has_news.set(false);
            value = NodeDeserializer::new(self.root, self.field, self).read_with(PhantomData::<T>).ok();
            if !self.has_news.get() || self.is_unreadable(self.root) {
                break;
            }
        }
        if value.is_none() && self.mistakes.borrow().is_empty() {
            self.add_mistake(self.root.position, format!("this {} does not fit", self.what));
        }
        value
    }
}

/// The name and the fields of a map that is read to several structs.
#[derive(Default)]
struct WholeFields {
    name: &'static str,
    fields: Vec<&'static str>,
}

/// A node, the field that it belongs to, and the reading.
#[derive(Clone, Copy)]
struct NodeDeserializer<'a> {
    node: &'a YamlNode,
    field: Option<&'a str>,
    /// The fields of all types of which this one is a part.
    whole: Option<&'a RefCell<WholeFields>>,
    /// `true` for a field of a described thing.
    is_strict: bool,
    /// `true` for an item of the list in the field.
    is_item: bool,
    reading: &'a Reading<'a>,
}

impl<'n> NodeDeserializer<'n> {
    fn new(node: &'n YamlNode, field: Option<&'n str>, reading: &'n Reading<'n>) -> Self {
        Self { node, field, whole: None, is_strict: false, is_item: false, reading }
    }

    /// Reads a value that is left out if it can't be read.
    fn read_with<'de, S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        let before = self.reading.left_out.get();
        seed.deserialize(self).map_err(|fault| self.collect(fault, before))
    }

    /// Collects a fault. One in a value of which something was left out is a consequence of that.
    fn collect(self, fault: Fault, left_out_before: usize) -> Fault {
        let Self { node, field, reading, .. } = self;
        if let Fault::Collected = fault {
            return fault;
        }
        if reading.left_out.get() == left_out_before {
            let (position, text) = match fault {
                Fault::Mismatch(position, text) => {
                    let text = match field {
                        Some(field) => format!("{field:?} {text}"),
                        None => format!("this {} does not fit: it {text}", reading.what),
                    };
                    (position.unwrap_or(node.position), text)
                }
                Fault::Rule(mistake) => {
                    let begins_with_field = |field| mistake.text.starts_with(&format!("{field:?}"));
                    let is_sentence = mistake.path().is_some() || field.is_some_and(begins_with_field);
                    let YamlMistake { position, text } = node.locate_mistake(mistake);
                    match field {
                        _ if is_sentence => (position, text),
                        Some(field) => (position, format!("{field:?}: {text}")),
                        None => (position, format!("this {} does not fit: {text}", reading.what)),
                    }
                }
                Fault::Sentence(position, text) => (position, text),
                Fault::MissingField(_) | Fault::Collected | Fault::Expectation(_) => {
                    (node.position, fault.to_string())
                }
            };
            reading.add_mistake(position, text);
        }
        reading.unreadable.borrow_mut().insert(std::ptr::from_ref(node));
        reading.has_news.set(true);
        Fault::Collected
    }

    fn map_access<'a>(
        &'a self,
        entries: &'a [YamlEntry],
        fields: Option<&'static [&'static str]>,
    ) -> MapEntryAccess<'a> {
        let reading = self.reading;
        let placeholders = reading.placeholders.borrow();
        let of_this =
            |field: &&&'static str| placeholders.contains(&(std::ptr::from_ref(self.node), **field));
        let placeholders = fields.into_iter().flatten().filter(of_this).copied().collect();
        let entries = entries.iter();
        MapEntryAccess { entries, fields, placeholders, current: None, is_strict: false, reading }
    }

    /// The subject of a sentence about the thing that the node describes, in a file of this name or as a struct: with the article
    /// `a`, or `this`.
    fn subject(&self, own: &'static str, is_this: bool) -> Option<String> {
        let name = if std::ptr::eq(self.node, self.reading.root) { self.reading.what } else { own };
        match (noun(name), self.field) {
            (Some(name), _) if is_this => Some(format!("this {name}")),
            (Some(name), _) => Some(with_article(name)),
            (None, Some(field)) if self.is_item => Some(format!("an item of {field:?}")),
            (None, field) => field.map(|field| format!("{field:?}")),
        }
    }

    /// The mistake that a node is no map with these fields.
    fn no_map(&self, name: &'static str, fields: &[&str]) -> Fault {
        let expected = format!("a map with the fields {}", join_with_or(fields));
        match self.subject(name, false) {
            Some(subject) => {
                let actual = self.node.describe_type_and_value();
                Fault::Sentence(self.node.position, format!("{subject} must be {expected}, not {actual}"))
            }
            None => self.mismatch(&expected),
        }
    }

    fn mismatch(&self, expected: &str) -> Fault {
        let actual = self.node.describe_type_and_value();
        Fault::Mismatch(Some(self.node.position), format!("must be {expected}, not {actual}"))
    }
}

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Self { node, field, reading, .. } = self;
        let read = match &node.value {
            YamlValue::Nothing => visitor.visit_unit(),
            YamlValue::Flag(flag) => visitor.visit_bool(*flag),
            YamlValue::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (None, Some(number), _) => visitor.visit_i64(number),
                (None, None, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
            },
            YamlValue::Text(text) => visitor.visit_str(text),
            YamlValue::List(items) => visitor.visit_seq(ListAccess { items: items.iter(), field, reading }),
            YamlValue::Map(entries) => visitor.visit_map(self.map_access(entries, None)),
        };
        read.map_err(|fault| fault.at(node.position))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            // The fields of described things are absent or have a value.
            YamlValue::Nothing if !self.is_strict => visitor.visit_none(),
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == NODE {
            let node = serde_json::to_value(self.node).map_err(de::Error::custom)?;
            return visitor.visit_newtype_struct(node).map_err(de::Error::custom);
        }
        visitor.visit_newtype_struct(self).map_err(|fault| fault.at(self.node.position))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if let YamlValue::List(_) = self.node.value {
            return self.deserialize_any(visitor);
        }
        Err(self.mismatch(&expected_list(visitor)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if let YamlValue::Map(_) = self.node.value {
            return self.deserialize_any(visitor);
        }
        Err(self.mismatch(&expected_map(visitor)))
    }

    /// Reads the same map to several structs.
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name != PARTS {
            return self.deserialize_any(visitor);
        }
        let whole = RefCell::default();
        let part = NodeDeserializer { whole: Some(&whole), ..self };
        let read = visitor.visit_seq(PartAccess { part, left: len });
        let WholeFields { name, fields } = whole.take();
        let YamlValue::Map(entries) = &self.node.value else { return Err(self.no_map(name, &fields)) };
        self.reading.refuse_unknown_fields(entries, self.subject(name, false).as_deref(), &fields);
        read
    }

    /// A struct must be a map of named fields, not a list of values.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Self { node, whole, reading, .. } = self;
        if let Some(whole) = whole {
            let mut whole = whole.borrow_mut();
            whole.name = name;
            whole.fields.extend(fields);
        }
        let YamlValue::Map(entries) = &node.value else { return Err(self.no_map(name, fields)) };
        if whole.is_none() {
            reading.refuse_unknown_fields(entries, self.subject(name, false).as_deref(), fields);
        }
        let is_strict = noun(name).is_some();
        let access = MapEntryAccess { is_strict, ..self.map_access(entries, Some(fields)) };
        match visitor.visit_map(access) {
            Err(Fault::MissingField(missing)) => {
                let subject = self.subject(name, true);
                reading.replace_missing_field(node, subject.as_deref(), fields, missing);
                Err(Fault::Collected)
            }
            read => read.map_err(|fault| fault.at(node.position)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Self { node, field, reading, .. } = self;
        let access = |name, position, content| VariantNameAndContent { name, position, content, reading };
        if are_forms(variants) {
            let form = node.form_name();
            return match variants.contains(&form) {
                true => visitor.visit_enum(access(form, node.position, Some((node, field)))),
                false => Err(self.mismatch(name)),
            };
        }
        let read = match &node.value {
            YamlValue::Text(text) => visitor.visit_enum(access(text, node.position, None)),
            YamlValue::Map(entries) if entries.len() == 1 && variants.contains(&entries[0].key.as_str()) => {
                let YamlEntry { key, node, position } = &entries[0];
                visitor.visit_enum(access(key, *position, Some((node, Some(key)))))
            }
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => Err(self.mismatch(&join_with_or(variants))),
        };
        read.map_err(|fault| fault.at(node.position))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        identifier ignored_any
    }
}

struct PartAccess<'a> {
    part: NodeDeserializer<'a>,
    left: usize,
}

impl<'de> SeqAccess<'de> for PartAccess<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(self.part).map(Some)
    }
}

struct ListAccess<'a> {
    items: std::slice::Iter<'a, YamlNode>,
    field: Option<&'a str>,
    reading: &'a Reading<'a>,
}

impl<'de> SeqAccess<'de> for ListAccess<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Self { items, field, reading } = self;
        let node = items.find(|node| !reading.leaves_out(node));
        let item = |node| NodeDeserializer { is_item: true, ..NodeDeserializer::new(node, *field, reading) };
        node.map(|node| item(node).read_with(seed)).transpose()
    }
}

/// The entries of a map; of a struct those that it knows, and then placeholders.
struct MapEntryAccess<'a> {
    entries: std::slice::Iter<'a, YamlEntry>,
    fields: Option<&'static [&'static str]>,
    placeholders: Vec<&'static str>,
    current: Option<&'a YamlEntry>,
    /// `true` for the fields of a described thing.
    is_strict: bool,
    reading: &'a Reading<'a>,
}

impl<'de> MapAccess<'de> for MapEntryAccess<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Self { reading, fields, .. } = *self;
        let is_known = |key: &str| fields.is_none_or(|fields| fields.contains(&key));
        self.current = self.entries.find(|entry| is_known(&entry.key) && !reading.leaves_out(&entry.node));
        let Some(YamlEntry { key, node, position }) = self.current else {
            let placeholder = self.placeholders.last();
            return placeholder.map(|field| seed.deserialize(StrDeserializer::new(field))).transpose();
        };
        seed.deserialize(StrDeserializer::new(key)).map(Some).map_err(|fault: Fault| {
            let fault = if let Fault::Rule(mistake) = fault {
                Fault::Sentence(*position, mistake.text)
            } else {
                fault.at(*position)
            };
            NodeDeserializer::new(node, Some(key), reading).collect(fault, reading.left_out.get())
        })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let reading = self.reading;
        if let Some(YamlEntry { key, node, .. }) = self.current {
            let is_strict = self.is_strict;
            let place = NodeDeserializer { is_strict, ..NodeDeserializer::new(node, Some(key), reading) };
            return place.read_with(seed);
        }
        self.placeholders.pop();
        reading.leave_out();
        seed.deserialize(NodeDeserializer::new(&reading.placeholder, None, reading))
    }
}

struct VariantNameAndContent<'a> {
    name: &'a str,
    position: Position,
    content: Option<(&'a YamlNode, Option<&'a str>)>,
    reading: &'a Reading<'a>,
}

impl<'de, 'a> EnumAccess<'de> for VariantNameAndContent<'a> {
    type Error = Fault;
    type Variant = VariantContent<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, VariantContent<'a>), Fault> {
        let Self { name, position, content, reading } = self;
        let variant =
            seed.deserialize(StrDeserializer::new(name)).map_err(|fault: Fault| fault.at(position))?;
        let content = content.map(|(node, field)| NodeDeserializer::new(node, field, reading));
        Ok((variant, VariantContent { name, content }))
    }
}

struct VariantContent<'a> {
    name: &'a str,
    content: Option<NodeDeserializer<'a>>,
}

impl<'a> VariantContent<'a> {
    fn require_value(self) -> Result<NodeDeserializer<'a>, Fault> {
        let missing = || de::Error::custom(format!("{:?} needs a value: write {}: …", self.name, self.name));
        self.content.ok_or_else(missing)
    }
}

impl<'de> VariantAccess<'de> for VariantContent<'_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.content {
            None => Ok(()),
            Some(content) => {
                let text = format!("{:?} must have no value", self.name);
                Err(Fault::Sentence(content.node.position, text))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.require_value()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.require_value()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
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
            ("port: 80\n", "1:1: this server lacks the field \"name\""),
            ("name: a\nprot: 80\n", "2:1: there is no field \"prot\" in a server; did you mean \"port\"?"),
            (
                "name: a\nxxxxxxxx: 80\n",
                "2:1: there is no field \"xxxxxxxx\" in a server; it can have name, port, mode, headers or weights",
            ),
            ("name: 7\n", "1:7: \"name\" must be text (put it in quotes), not the number 7"),
            (
                "name: a\nport: 99999\n",
                "2:7: \"port\" must be a whole number from 0 to 65535, not the number 99999",
            ),
            (
                "name: a\nmode: carefull\n",
                "2:7: \"mode\" must be plain or careful, not the text \"carefull\"; did you mean \"careful\"?",
            ),
            ("name: a\nmode: careful\n", "2:7: \"mode\": \"careful\" needs a value: write careful: …"),
            (
                "name: a\nmode: {careful: {tries: -1}}\n",
                "2:25: \"tries\" must be a whole number of 0 or more, not the number -1",
            ),
            ("name: a\nmode: 3\n", "2:7: \"mode\" must be plain or careful, not the number 3"),
            ("name: a\nheaders: {x: 3}\n", "2:14: \"x\" must be text (put it in quotes), not the number 3"),
            (
                "name: a\nweights:\n  - 1\n  - two\n",
                "4:5: \"weights\" must be a number, not the text \"two\"",
            ),
            (
                "[1]\n",
                "1:1: a server must be a map with the fields name, port, mode, headers or weights, not a list",
            ),
        ] {
            assert_eq!(deserialize_server(text).unwrap_err(), expected, "{text}");
        }
    }
}
