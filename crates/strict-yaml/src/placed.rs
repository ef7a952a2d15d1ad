//! Values with their positions, and nodes as fields of types.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;

use crate::mistake::Position;
use crate::yaml::YamlNode;

/// The names with which a type asks the deserializer of nodes for more than the value. It hands that over beside serde, whose
/// values have no place for it.
pub(crate) const PLACED: &str = "$placed";
pub(crate) const NODE: &str = "$node";
pub(crate) const PARTS: &str = "$parts";

thread_local! {
    static POSITION: Cell<Option<Position>> = const { Cell::new(None) };
    static HANDED_OVER: RefCell<Option<YamlNode>> = const { RefCell::new(None) };
}

pub(crate) fn hand_over_position(position: Position) {
    POSITION.set(Some(position));
}

pub(crate) fn hand_over_node(node: YamlNode) {
    HANDED_OVER.set(Some(node));
}

/// A value with its position in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed<T> {
    pub value: T,
    pub position: Position,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Placed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(PLACED, PlacedVisitor(PhantomData))
    }
}

struct PlacedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PlacedVisitor<T> {
    type Value = Placed<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Placed<T>, D::Error> {
        let position = POSITION.take().unwrap_or(Position { line: 1, column: 1 });
        Ok(Placed { value: T::deserialize(deserializer)?, position })
    }
}

impl<T: JsonSchema> JsonSchema for Placed<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(NODE, NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a YAML file")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, _: D) -> Result<YamlNode, D::Error> {
        HANDED_OVER.take().ok_or_else(|| D::Error::custom("a value of a YAML file can't come from elsewhere"))
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
        let first = parts.next_element()?.ok_or_else(missing)?;
        Ok(Parts(first, parts.next_element()?.ok_or_else(missing)?))
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
