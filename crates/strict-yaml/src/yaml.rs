//! Parses YAML to a tree of nodes with their positions. Documents that would grow without limit (nested aliases, deep
//! nesting) are rejected.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Location, Options, Spanned};

use crate::mistake::{FileDescription, Position, YamlMistake};

/// Maximum nesting of lists and maps: that of a task's parameters, plus some levels around them.
const MAX_DEPTH: usize = 80;
/// The stack of the parser, which has its own thread: in a debug build each level takes tens of kilobytes.
const STACK_SIZE: usize = 32 * 1024 * 1024;
/// Maximum number of values in a file, including those of aliases.
const MAX_NODES: usize = 2_500_000;
/// Maximum number of values that all aliases expand to.
const MAX_ALIASED_VALUES: usize = 100_000;

/// A value with its position.
#[derive(Debug, Clone)]
pub struct YamlNode {
    pub position: Position,
    pub value: YamlValue,
}

#[derive(Debug, Clone)]
pub enum YamlValue {
    /// No value: `null`, `~`, or empty.
    Nothing,
    /// `true` or `false`.
    Flag(bool),
    Number(Number),
    Text(String),
    List(Vec<YamlNode>),
    /// A map, in the order of the file.
    Map(Vec<YamlEntry>),
}

/// An entry of a map.
#[derive(Debug, Clone)]
pub struct YamlEntry {
    /// The position of its key.
    pub position: Position,
    pub key: String,
    /// Its value.
    pub node: YamlNode,
}

/// Parses the single document of a file.
///
/// # Errors
/// The file is not UTF-8, not YAML, empty, has several documents, or exceeds a limit.
pub fn parse_yaml(bytes: &[u8], kind: FileDescription) -> Result<YamlNode, YamlMistake> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| not_utf8_error(bytes, error.valid_up_to(), kind))?;
    let read = || {
        let read = serde_saphyr::from_str_with_options::<YamlNode>(text, parser_options());
        match read.map_err(|error| mistake_from_parser_error(error.without_snippet(), kind))? {
            YamlNode { value: YamlValue::Nothing, position } => {
                Err(YamlMistake::at_position(position, empty_file_message(kind)))
            }
            node => Ok(node),
        }
    };
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().stack_size(STACK_SIZE).spawn_scoped(scope, read);
        let read = reader
            .map_err(|error| invalid_yaml_error(&format!("cannot start the parser thread: {error}")))?;
        read.join().unwrap_or_else(|_| Err(invalid_yaml_error("the parser panicked")))
    })
}

/// Returns the message for a file without a value.
fn empty_file_message(FileDescription { name, holds }: FileDescription) -> String {
    format!("there is nothing in the file; a {name} has {holds}")
}

fn invalid_yaml_error(why: &str) -> YamlMistake {
    YamlMistake::at_position(Position { line: 1, column: 1 }, format!("invalid YAML: {why}"))
}

fn parser_options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_VALUES,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
    }
}

fn not_utf8_error(bytes: &[u8], at: usize, kind: FileDescription) -> YamlMistake {
    let before = String::from_utf8_lossy(&bytes[..at]);
    let line = before.matches('\n').count() as u64 + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() as u64 + 1;
    let text = format!("the byte {:#04x} is not UTF-8; a {} file must be UTF-8 text", bytes[at], kind.name);
    YamlMistake::at_position(Position { line, column }, text)
}

fn mistake_from_parser_error(error: &Error, kind: FileDescription) -> YamlMistake {
    YamlMistake::at_position(
        error.location().map_or(Position { line: 1, column: 1 }, convert_position),
        parser_error_message(error, kind),
    )
}

/// Returns the message for an error, with our own wording for common errors.
#[expect(clippy::wildcard_enum_match_arm, reason = "for all other errors the library's wording is used")]
fn parser_error_message(error: &Error, kind: FileDescription) -> String {
    match error {
        Error::Eof { .. } => empty_file_message(kind),
        Error::MultipleDocuments { .. } => {
            format!("a second document begins here; a {} file must have only one", kind.name)
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the field {key:?} occurs twice; remove one of them")
        }
        Error::MergeKeyNotAllowed { .. } => {
            "the merge key << is not allowed here; write the fields out".to_owned()
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => too_many_aliases_message(kind),
        Error::RecursiveReferencesRequireWeakTypes { .. } => "this alias is part of its own value".to_owned(),
        Error::AliasError { error, .. } => parser_error_message(error.without_snippet(), kind),
        Error::Budget { breach, .. } => limit_exceeded_message(breach),
        other => library_message_without_position(&other.to_string()),
    }
}

fn too_many_aliases_message(kind: FileDescription) -> String {
    format!("aliases expand to more than {MAX_ALIASED_VALUES} values; write the {} without them", kind.name)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the other limits are internal to the library")]
fn limit_exceeded_message(breach: &serde_saphyr::budget::BudgetBreach) -> String {
    use serde_saphyr::budget::BudgetBreach;
    match breach {
        BudgetBreach::Depth { .. } => format!("lists and maps are nested more than {MAX_DEPTH} deep here"),
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            format!("the file has more than {MAX_NODES} values")
        }
        other => format!("the file exceeds a limit of the YAML parser ({other:?})"),
    }
}

/// Returns the library's wording without the position, which is added separately.
fn library_message_without_position(text: &str) -> String {
    let text = text.split_once(" at line ").map_or(text, |(text, _)| text);
    format!("invalid YAML: {text}")
}

fn convert_position(location: Location) -> Position {
    Position { line: location.line(), column: location.column() }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<YamlValue>::deserialize(deserializer)?;
        Ok(Self { position: convert_position(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Nothing)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlValue, D::Error> {
        YamlValue::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(number.into()))
    }

    fn visit_i128<E: serde::de::Error>(self, number: i128) -> Result<YamlValue, E> {
        Number::from_i128(number).map(YamlValue::Number).ok_or_else(|| E::custom("the number is too large"))
    }

    fn visit_u128<E: serde::de::Error>(self, number: u128) -> Result<YamlValue, E> {
        Number::from_u128(number).map(YamlValue::Number).ok_or_else(|| E::custom("the number is too large"))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<YamlValue, E> {
        Number::from_f64(number).map(YamlValue::Number).ok_or_else(|| E::custom("the number is not finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlValue, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<YamlNode>()? {
            let node = entries.next_value()?;
            map.push(YamlEntry { position: key.position, key: convert_key_to_text(key.value)?, node });
        }
        Ok(YamlValue::Map(map))
    }
}

/// Returns the text of a key. Keys that look like another type (`5:`, `true:`) are used as text.
fn convert_key_to_text<E: serde::de::Error>(key: YamlValue) -> Result<String, E> {
    match key {
        YamlValue::Text(text) => Ok(text),
        YamlValue::Number(number) => Ok(number.to_string()),
        YamlValue::Flag(flag) => Ok(flag.to_string()),
        YamlValue::Nothing | YamlValue::List(_) | YamlValue::Map(_) => {
            Err(E::custom("the key of a field must be text"))
        }
    }
}
