//! YAML as a tree whose nodes know their places. It knows no file in particular; documents that would grow without end
//! (aliases of aliases, nests in nests) are refused.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Location, Options, Spanned};

use crate::mistake::{Kind, Mistake, Place};

/// How deep lists and maps may be nested: what a task's parameters may be, and some for what is around them.
const MAX_DEPTH: usize = 80;
/// The stack that the reader gets, on a thread of its own: in a debug build a level takes it tens of kilobytes.
const STACK: usize = 32 * 1024 * 1024;
/// The most values of a file, aliases followed.
const MAX_NODES: usize = 2_500_000;
/// The most values that aliases may stand for together.
const MAX_ALIASED: usize = 100_000;

/// A value with its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it is.
    pub place: Place,
    /// What it is.
    pub value: Value,
}

/// A value.
#[derive(Debug, Clone)]
pub enum Value {
    /// Nothing: `null`, `~`, or an empty place.
    Nothing,
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the file.
    Map(Vec<Entry>),
}

/// An entry of a map.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The place of its key.
    pub place: Place,
    /// Its key.
    pub key: String,
    /// Its value.
    pub node: Node,
}

/// Reads the one document of a file of a kind.
///
/// # Errors
/// It is not UTF-8, no YAML, empty, more than one document, or beyond the limits.
pub fn read(bytes: &[u8], kind: Kind) -> Result<Node, Mistake> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to(), kind))?;
    let read = || {
        let read = serde_saphyr::from_str_with_options::<Node>(text, options());
        match read.map_err(|error| mistake(error.without_snippet(), kind))? {
            Node { value: Value::Nothing, place } => Err(Mistake::at(place, nothing(kind))),
            node => Ok(node),
        }
    };
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, read);
        let read = reader.map_err(|error| unread(&format!("there is no thread for it: {error}")))?;
        read.join().unwrap_or_else(|_| Err(unread("its reader broke")))
    })
}

/// What is said of a file with no value in it.
fn nothing(Kind { name, holds }: Kind) -> String {
    format!("there is nothing in the file; a {name} has {holds}")
}

fn unread(why: &str) -> Mistake {
    Mistake::at(Place { line: 1, column: 1 }, format!("this can't be read as YAML: {why}"))
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
    }
}

fn not_utf8(bytes: &[u8], at: usize, kind: Kind) -> Mistake {
    let before = String::from_utf8_lossy(&bytes[..at]);
    let line = before.matches('\n').count() as u64 + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() as u64 + 1;
    let text = format!("the byte {:#04x} is no UTF-8; a {} file must be UTF-8 text", bytes[at], kind.name);
    Mistake::at(Place { line, column }, text)
}

fn mistake(error: &Error, kind: Kind) -> Mistake {
    Mistake::at(error.location().map_or(Place { line: 1, column: 1 }, place), words(error, kind))
}

/// What is wrong, in terms of our own where there are some.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "what is not named here is told in the reader's own words"
)]
fn words(error: &Error, kind: Kind) -> String {
    match error {
        Error::Eof { .. } => nothing(kind),
        Error::MultipleDocuments { .. } => {
            format!("a second document begins here; a {} file has one", kind.name)
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the field {key:?} is there twice; leave one of them away")
        }
        Error::MergeKeyNotAllowed { .. } => {
            "the merge key << is not allowed here; write the fields out".to_owned()
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => too_many_aliased(kind),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "this alias is a part of what it stands for".to_owned()
        }
        Error::AliasError { error, .. } => words(error.without_snippet(), kind),
        Error::Budget { breach, .. } => beyond(breach),
        other => bare(&other.to_string()),
    }
}

fn too_many_aliased(kind: Kind) -> String {
    format!("aliases stand for more than {MAX_ALIASED} values; write the {} without them", kind.name)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the other limits are the reader's own")]
fn beyond(breach: &serde_saphyr::budget::BudgetBreach) -> String {
    use serde_saphyr::budget::BudgetBreach;
    match breach {
        BudgetBreach::Depth { .. } => format!("lists and maps are nested more than {MAX_DEPTH} deep here"),
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            format!("the file has more than {MAX_NODES} values")
        }
        other => format!("the file goes beyond a limit of the YAML reader ({other:?})"),
    }
}

/// The reader's own words, without the places in them: one is told before them.
fn bare(text: &str) -> String {
    let text = text.split_once(" at line ").map_or(text, |(text, _)| text);
    format!("this can't be read as YAML: {text}")
}

fn place(location: Location) -> Place {
    Place { line: location.line(), column: location.column() }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { place: place(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i128<E: serde::de::Error>(self, number: i128) -> Result<Value, E> {
        Number::from_i128(number).map(Value::Number).ok_or_else(|| E::custom("the number is too large"))
    }

    fn visit_u128<E: serde::de::Error>(self, number: u128) -> Result<Value, E> {
        Number::from_u128(number).map(Value::Number).ok_or_else(|| E::custom("the number is too large"))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("the number is not finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Node>()? {
            let node = entries.next_value()?;
            map.push(Entry { place: key.place, key: key_text(key.value)?, node });
        }
        Ok(Value::Map(map))
    }
}

/// Keys are texts; what a plain key looks like besides (`5:`, `true:`) is its text all the same.
fn key_text<E: serde::de::Error>(key: Value) -> Result<String, E> {
    match key {
        Value::Text(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Flag(flag) => Ok(flag.to_string()),
        Value::Nothing | Value::List(_) | Value::Map(_) => Err(E::custom("the key of a field must be text")),
    }
}
