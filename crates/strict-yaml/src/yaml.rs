//! Parses YAML to a tree of nodes with their positions. Documents that would grow without limit (nested aliases, deep
//! nesting) are rejected.

use std::fmt;
use std::time::Duration;

use millrace_protocol::time_text;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Location, Options, Spanned};

use crate::mistake::{FileDescription, Position, ValueMistake, YamlMistake};

/// Maximum nesting of lists and maps: that of a task's parameters, plus some levels around them.
const MAX_DEPTH: usize = 80;
/// The stack of the parser, which has its own thread: in a debug build each level takes tens of kilobytes.
const STACK_SIZE: usize = 32 * 1024 * 1024;
/// Maximum number of values in a file, including those of aliases.
const MAX_NODES: usize = 2_500_000;
/// Maximum number of values that all aliases expand to.
const MAX_ALIASED_VALUES: usize = 100_000;

/// The name with which a node asks for itself: it gets its fields.
pub(crate) const NODE: &str = "$node";

/// A value with its position.
#[derive(Debug, Clone, Serialize)]
pub struct YamlNode {
    pub position: Position,
    pub value: YamlValue,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
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
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct YamlEntry {
    /// The position of its key.
    pub position: Position,
    pub key: String,
    /// Its value.
    pub node: YamlNode,
}

impl YamlNode {
    /// Returns a field of a map.
    pub fn child(&self, name: &str) -> Option<&Self> {
        let YamlValue::Map(entries) = &self.value else { return None };
        entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// Returns the items of a list, or none.
    pub fn items(&self) -> &[Self] {
        if let YamlValue::List(items) = &self.value { items } else { &[] }
    }

    /// Returns the items of the list in a field, or none.
    pub fn items_of(&self, name: &str) -> &[Self] {
        self.child(name).map_or(&[], Self::items)
    }

    pub fn as_text(&self) -> Option<&str> {
        if let YamlValue::Text(text) = &self.value { Some(text) } else { None }
    }

    /// Returns the position of a part of it, or that of the last part on the way: names of fields and numbers of items, separated by
    /// `/`. After an `@`, it is that of the name of the field.
    pub fn position_of(&self, path: &str) -> Position {
        let (mut node, mut of_name) = (self, self.position);
        for part in path.trim_start_matches('@').split('/').filter(|part| !part.is_empty()) {
            let item = part.parse::<usize>().ok().and_then(|at| node.items().get(at));
            if let (None, YamlValue::Map(entries)) = (item, &node.value) {
                of_name =
                    entries.iter().find(|entry| entry.key == part).map_or(of_name, |entry| entry.position);
            }
            let Some(next) = item.or_else(|| node.child(part)) else { break };
            node = next;
        }
        if path.starts_with('@') { of_name } else { node.position }
    }

    /// The mistake that the value must be something else.
    pub fn mismatch(&self, expected: &str) -> ValueMistake {
        let hint = match &self.value {
            YamlValue::Flag(_) | YamlValue::Number(_) if expected == "text" => " (put it in quotes)",
            YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Nothing
            | YamlValue::Text(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => "",
        };
        ValueMistake::new(format!("it must be {expected}{hint}, not {}", self.describe_type_and_value()))
    }

    /// Parses a number or a text; `expected` describes a valid one.
    pub fn parse_scalar<T>(
        &self,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ValueMistake> {
        let parsed = match &self.value {
            YamlValue::Number(number) => parse(&number.to_string()),
            YamlValue::Text(text) => parse(text),
            YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::List(_) | YamlValue::Map(_) => None,
        };
        parsed.ok_or_else(|| self.mismatch(expected))
    }

    /// Returns a number of seconds, or a duration as text such as `90s`; it may be zero.
    pub fn to_duration(&self) -> Option<Duration> {
        match &self.value {
            YamlValue::Number(number) => time_text::duration_from_seconds(number.as_f64()?).ok(),
            YamlValue::Text(text) => time_text::parse_duration_or_zero(text).ok(),
            YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    /// Adds the position to a mistake that a type found in its value.
    pub fn locate_mistake(&self, mistake: ValueMistake) -> YamlMistake {
        let position = self.position_of(mistake.path().unwrap_or_default());
        YamlMistake::at_position(position, mistake.text)
    }

    /// Converts the node to JSON.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            YamlValue::Nothing => serde_json::Value::Null,
            YamlValue::Flag(flag) => (*flag).into(),
            YamlValue::Number(number) => number.clone().into(),
            YamlValue::Text(text) => text.as_str().into(),
            YamlValue::List(items) => items.iter().map(Self::to_json).collect(),
            YamlValue::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect()
            }
        }
    }

    /// Its form, as a name of a variant.
    pub(crate) fn form_name(&self) -> &'static str {
        match &self.value {
            YamlValue::Nothing => "nothing",
            YamlValue::Flag(_) => "flag",
            YamlValue::Number(_) => "number",
            YamlValue::Text(_) => "text",
            YamlValue::List(_) => "list",
            YamlValue::Map(_) => "map",
        }
    }

    pub(crate) fn describe_type_and_value(&self) -> String {
        match &self.value {
            YamlValue::Nothing => "nothing".into(),
            YamlValue::Flag(flag) => flag.to_string(),
            YamlValue::Number(number) => format!("the number {number}"),
            YamlValue::Text(text) => format!("the text {}", quote_truncated(text)),
            YamlValue::List(_) => "a list".into(),
            YamlValue::Map(_) => "a map".into(),
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = YamlNode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value of a YAML file")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, node: D) -> Result<YamlNode, D::Error> {
                #[derive(Deserialize)]
                struct NodeFields {
                    position: Position,
                    value: YamlValue,
                }
                let NodeFields { position, value } = NodeFields::deserialize(node)?;
                Ok(YamlNode { position, value })
            }
        }

        deserializer.deserialize_newtype_struct(NODE, NodeVisitor)
    }
}

/// Returns a text in quotes, truncated if it is long.
pub(crate) fn quote_truncated(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// Parses the single document of a file.
///
/// # Errors
/// The file is not UTF-8, not YAML, empty, has several documents, or exceeds a limit.
pub fn parse_yaml(bytes: &[u8], kind: FileDescription) -> Result<YamlNode, YamlMistake> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| not_utf8_error(bytes, error.valid_up_to(), kind))?;
    let read = || {
        let read = serde_saphyr::from_str_with_options::<ParsedNode>(text, parser_options());
        match read.map_err(|error| mistake_from_parser_error(error.without_snippet(), kind))?.0 {
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

/// A node as the parser yields it.
struct ParsedNode(YamlNode);

impl<'de> Deserialize<'de> for ParsedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value: ParsedValue(value), referenced, .. } = Spanned::deserialize(deserializer)?;
        Ok(Self(YamlNode { position: convert_position(referenced), value }))
    }
}

struct ParsedValue(YamlValue);

impl<'de> Deserialize<'de> for ParsedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Self)
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
        deserializer.deserialize_any(self)
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
        while let Some(ParsedNode(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlValue, A::Error> {
        let mut map = Vec::new();
        while let Some(ParsedNode(key)) = entries.next_key()? {
            let ParsedNode(node) = entries.next_value()?;
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
