//! The expectations of types, for the texts of mistakes: a type is deserialised from a probe, and the error is the answer.

use std::cell::RefCell;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Expected, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::mistake::join_with_or;
use crate::reading::{Expectation, Fault, PARTS, noun, translate_expectation};
use crate::yaml::NODE;

/// The forms of nodes: an enum with these variants is read by the form, and its name is the expectation.
pub(crate) fn are_forms(variants: &[&str]) -> bool {
    variants.iter().all(|variant| ["flag", "number", "text", "list", "map"].contains(variant))
}

impl Expectation {
    /// The expectation that the name of a type states.
    pub fn of<'de, T: Deserialize<'de>>() -> Option<Self> {
        Self::of_result(T::deserialize(Probe))
    }

    fn of_result<T>(probed: Result<T, Fault>) -> Option<Self> {
        if let Err(Fault::Expectation(expectation)) = probed { Some(expectation) } else { None }
    }

    fn of_scalar(expected: &dyn Expected) -> Fault {
        let expected = match expected.to_string().as_str() {
            "path string" => "path".to_owned(),
            expected => translate_expectation(expected).into_owned(),
        };
        let without_article = expected.strip_prefix("a ").or_else(|| expected.strip_prefix("an "));
        Fault::Expectation(Self::Noun(without_article.unwrap_or(&expected).to_owned()))
    }

    /// Returns the text of a list of it.
    fn list(&self) -> String {
        match self {
            Self::Noun(noun) => format!("a list of {}", plural(noun)),
            Self::Names(names) => format!("a list of {}", join_with_or(names)),
            Self::Notations(text) => format!("a list, each item {text}"),
        }
    }

    fn plural(&self) -> Option<String> {
        if let Self::Noun(noun) = self { Some(plural(noun)) } else { None }
    }
}

/// Describes the list that a visitor expects.
pub(crate) fn expected_list<'de, V: Visitor<'de>>(visitor: V) -> String {
    let item = Expectation::of_result(visitor.visit_seq(Probe));
    item.map_or_else(|| "a list".into(), |item| item.list())
}

/// Describes the map that a visitor expects.
pub(crate) fn expected_map<'de, V: Visitor<'de>>(visitor: V) -> String {
    let keys = RefCell::new(None);
    let value = Expectation::of_result(visitor.visit_map(MapProbe(&keys)));
    match (keys.into_inner(), value.and_then(|value| value.plural())) {
        (Some(keys), Some(values)) => format!("a map from {keys} to {values}"),
        _ => "a map of names and values".into(),
    }
}

/// Returns the plural of a noun, such as `changes of the phase` or `askable capabilities`.
fn plural(noun: &str) -> String {
    let (head, rest) = noun.split_at(noun.find(" of ").unwrap_or(noun.len()));
    match head.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u'])) {
        Some(stem) => format!("{stem}ies{rest}"),
        None => format!("{head}s{rest}"),
    }
}

/// Returns the noun of a struct: its name if it describes a thing, or else the words of the name of the type.
fn noun_of_type(name: &str) -> String {
    let mut words = String::new();
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    noun(name).map_or(words, str::to_owned)
}

struct Probe;

impl<'de> Deserializer<'de> for Probe {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fault> {
        Err(Fault::Collected)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        Err(Expectation::of_scalar(&visitor))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        Err(Expectation::of_scalar(&visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match noun(name) {
            Some(NODE) => Err(Fault::Collected),
            Some(name) => Err(Fault::Expectation(Expectation::Noun(name.to_owned()))),
            None => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == PARTS { visitor.visit_seq(self) } else { Err(Fault::Collected) }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Fault> {
        Err(Fault::Expectation(Expectation::Noun(noun_of_type(name))))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Fault> {
        let are_forms = are_forms(variants);
        let expectation = if are_forms { Expectation::Notations(name) } else { Expectation::Names(variants) };
        Err(Fault::Expectation(expectation))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf option unit unit_struct seq tuple map
        identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for Probe {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        seed.deserialize(Self).map(Some)
    }
}

/// A map with one entry, whose key is any name.
struct MapProbe<'a>(&'a RefCell<Option<String>>);

impl<'de> MapAccess<'de> for MapProbe<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        seed.deserialize(KeyProbe(self.0)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(Probe)
    }
}

struct KeyProbe<'a>(&'a RefCell<Option<String>>);

impl<'de> Deserializer<'de> for KeyProbe<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let expected: &dyn Expected = &visitor;
        let name = expected.to_string();
        let name = name.strip_prefix("a ").filter(|name| *name != "string").unwrap_or("name");
        *self.0.borrow_mut() = Some(plural(name));
        visitor.visit_str("x")
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
