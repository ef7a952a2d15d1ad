//! A node as a value of any type that serde can read, with the place of whatever does not fit. The type says by its
//! own attributes what is allowed; the words of the mistakes are ours.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::fields::short;
use crate::mistake::{Mistake, Place, any_of, did_you_mean};
use crate::yaml::{Entry, Node, Value};

/// A node as a type; `what` it describes, for the words of a mistake.
///
/// # Errors
/// The first thing in it that does not fit, at its own place.
pub fn typed<T: DeserializeOwned>(node: &Node, what: &str) -> Result<T, Mistake> {
    T::deserialize(Reader { node }).map_err(|fault| {
        let text = match fault.field {
            None => format!("this {what} does not fit: {}", fault.text),
            Some(_) => fault.text,
        };
        Mistake::at(fault.place.unwrap_or(node.place), text)
    })
}

/// What does not fit; the place is that of the innermost node that was being read.
#[derive(Debug)]
struct Misfit {
    place: Option<Place>,
    /// The field it is in, once that is known.
    field: Option<()>,
    text: String,
}

impl Misfit {
    fn new(text: String) -> Self {
        Self { place: None, field: None, text }
    }

    fn at(mut self, place: Place) -> Self {
        self.place.get_or_insert(place);
        self
    }

    /// Names the field, where no inner one was named.
    fn within(mut self, name: &str) -> Self {
        if self.field.replace(()).is_none() {
            self.text = format!("{name:?}: {}", self.text);
        }
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(text.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("it must be {}, not {}", plain(&expected.to_string()), words(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        let hint = did_you_mean(name, known.iter().copied());
        Self::new(format!("it must be {}, not the text {}{hint}", any_of(known), short(name)))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let hint = match did_you_mean(name, known.iter().copied()) {
            hint if hint.is_empty() => format!("; there can be {}", any_of(known)),
            hint => hint,
        };
        Self { field: Some(()), ..Self::new(format!("there is no field {} here{hint}", short(name))) }
    }

    fn missing_field(name: &'static str) -> Self {
        Self { field: Some(()), ..Self::new(format!("the field {name:?} is missing here")) }
    }
}

/// What serde expects, in words for people who know no Rust.
fn plain(expected: &str) -> &str {
    match expected {
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "unit" => "nothing",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        other if other.starts_with("struct ") => "a map of fields",
        other => other,
    }
}

fn words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("the text {}", short(text)),
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
struct Reader<'a> {
    node: &'a Node,
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let read = match &self.node.value {
            Value::Nothing => visitor.visit_unit(),
            Value::Flag(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (None, Some(number), _) => visitor.visit_i64(number),
                (None, None, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
            },
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(List { items: items.iter() }),
            Value::Map(entries) => visitor.visit_map(Map { entries: entries.iter(), open: None }),
        };
        read.map_err(|misfit| misfit.at(self.node.place))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.node.value {
            Value::Nothing => visitor.visit_none(),
            Value::Flag(_) | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                visitor.visit_some(self)
            }
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self).map_err(|misfit| misfit.at(self.node.place))
    }

    /// Fields have names: a list of values is no form of a struct here.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.node.value {
            Value::List(_) => Err(Misfit::new("it must be a map of fields, not a list".into())),
            Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                self.deserialize_any(visitor)
            }
        }
        .map_err(|misfit| misfit.at(self.node.place))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let place = self.node.place;
        let read = match &self.node.value {
            Value::Text(text) => visitor.visit_enum(Variant { name: text, place, content: None }),
            Value::Map(entries) if entries.len() == 1 => {
                let Entry { key, node, place } = &entries[0];
                visitor.visit_enum(Variant { name: key, place: *place, content: Some(node) })
            }
            Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => {
                let _ = name;
                let found = self.node.found();
                Err(Misfit::new(format!("it must be {}, not {found}", any_of(variants))))
            }
        };
        read.map_err(|misfit| misfit.at(place))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct List<'a> {
    items: std::slice::Iter<'a, Node>,
}

impl<'de> SeqAccess<'de> for List<'_> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        self.items.next().map(|node| seed.deserialize(Reader { node })).transpose()
    }
}

struct Map<'a> {
    entries: std::slice::Iter<'a, Entry>,
    open: Option<&'a Entry>,
}

impl<'de> MapAccess<'de> for Map<'_> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        self.open = self.entries.next();
        let Some(entry) = self.open else { return Ok(None) };
        let key: StrDeserializer<'_, Misfit> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|misfit| misfit.at(entry.place))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Misfit> {
        let Some(entry) = self.open else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        seed.deserialize(Reader { node: &entry.node }).map_err(|misfit| misfit.within(&entry.key))
    }
}

struct Variant<'a> {
    name: &'a str,
    place: Place,
    content: Option<&'a Node>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Misfit;
    type Variant = Content<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Content<'a>), Misfit> {
        let name: StrDeserializer<'_, Misfit> = self.name.into_deserializer();
        let variant = seed.deserialize(name).map_err(|misfit| misfit.at(self.place))?;
        Ok((variant, Content { name: self.name, node: self.content }))
    }
}

struct Content<'a> {
    name: &'a str,
    node: Option<&'a Node>,
}

impl<'a> Content<'a> {
    fn node(&self) -> Result<Reader<'a>, Misfit> {
        let missing = || Misfit::new(format!("{:?} needs a value: write {}: …", self.name, self.name));
        self.node.map(|node| Reader { node }).ok_or_else(missing)
    }
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        match self.node {
            None => Ok(()),
            Some(node) => {
                Err(Misfit::new(format!("{:?} stands alone, without a value", self.name)).at(node.place))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Misfit> {
        seed.deserialize(self.node()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Misfit> {
        self.node()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.node()?.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::{Kind, read};

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Server {
        name: String,
        #[serde(default)]
        port: Option<u16>,
        #[serde(default)]
        mode: Mode,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        #[serde(default)]
        weights: Vec<f64>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        #[default]
        Plain,
        Careful {
            tries: u32,
        },
    }

    fn reading(text: &str) -> Result<Server, String> {
        let node = read(text.as_bytes(), Kind { name: "server", holds: "a name" }).unwrap();
        typed(&node, "server").map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn what_fits_is_read() {
        let text = "name: a\nport: 80\nmode: {careful: {tries: 3}}\nheaders: {x: y}\nweights: [1, 0.5]\n";
        let read = reading(text).unwrap();
        assert_eq!(
            (read.port, read.mode, read.weights),
            (Some(80), Mode::Careful { tries: 3 }, vec![1.0, 0.5])
        );
        assert_eq!(reading("name: a\nport: ~\nmode: plain\n").unwrap().port, None);
    }

    #[test]
    fn what_does_not_fit_is_told_at_its_own_place() {
        for (text, told) in [
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
            assert_eq!(reading(text).unwrap_err(), told, "{text}");
        }
    }
}
