//! The state of a reading: the mistakes that were found, the values that the next pass leaves out, and the reasons that values
//! can't be read, with our own wording in place of serde's.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use millrace_protocol::foreign_json::describe_number_type;
use serde::de::{self, Unexpected};

use crate::mistake::{
    MistakeCollector, Position, ValueMistake, YamlMistake, closest_name, did_you_mean_hint, join_with_or,
};
use crate::yaml::{YamlEntry, YamlNode, YamlValue, quote_truncated};

/// The mistakes that were found so far in a node, and the values in it that are left out.
pub(crate) struct Reading<'n> {
    pub root: &'n YamlNode,
    pub what: &'n str,
    /// The name of its field, if it is one.
    pub field: Option<&'n str>,
    pub mistakes: RefCell<MistakeCollector>,
    pub unreadable: RefCell<HashSet<*const YamlNode>>,
    pub placeholder: YamlNode,
    /// The required fields that get a placeholder, each with its map.
    pub placeholders: RefCell<HashSet<(*const YamlNode, &'static str)>>,
    /// The number of values that this pass has left out.
    pub left_out: Cell<usize>,
    /// `true` if this pass has found something new.
    pub has_news: Cell<bool>,
}

impl<'n> Reading<'n> {
    pub fn new(root: &'n YamlNode, what: &'n str) -> Self {
        Self {
            root,
            what,
            field: None,
            mistakes: RefCell::default(),
            unreadable: RefCell::default(),
            placeholder: YamlNode { position: root.position, value: YamlValue::Text("x".into()) },
            placeholders: RefCell::default(),
            left_out: Cell::new(0),
            has_news: Cell::new(false),
        }
    }

    pub fn leave_out(&self) {
        self.left_out.set(self.left_out.get() + 1);
    }

    pub fn is_unreadable(&self, node: &YamlNode) -> bool {
        self.unreadable.borrow().contains(&std::ptr::from_ref(node))
    }

    /// Leaves out a value that can't be read.
    pub fn leaves_out(&self, node: &YamlNode) -> bool {
        let is_left_out = self.is_unreadable(node);
        if is_left_out {
            self.leave_out();
        }
        is_left_out
    }

    pub fn add_mistake(&self, position: Position, text: String) {
        self.mistakes.borrow_mut().add(YamlMistake::at_position(position, text));
    }

    pub fn refuse_unknown_fields(&self, entries: &[YamlEntry], subject: Option<&str>, known: &[&str]) {
        let place = subject.map_or("here".into(), |subject| format!("in {subject}"));
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            self.leave_out();
            let hint = match did_you_mean_hint(&entry.key, known.iter().copied()) {
                hint if hint.is_empty() => {
                    let can = if place == "here" { "there can be" } else { "it can have" };
                    format!("; {can} {}", join_with_or(known))
                }
                hint => hint,
            };
            let key = quote_truncated(&entry.key);
            self.add_mistake(entry.position, format!("there is no field {key} {place}{hint}"));
        }
    }

    /// Requests a placeholder for a missing field of a map. The mistake is new unless its value can't be read or its name is
    /// misspelt.
    pub fn replace_missing_field(
        &self,
        node: &YamlNode,
        subject: Option<&str>,
        fields: &[&str],
        missing: &'static str,
    ) {
        if let YamlValue::Map(entries) = &node.value {
            let is_meant = |entry: &YamlEntry| {
                let key = entry.key.as_str();
                key == missing
                    || !fields.contains(&key) && closest_name(key, fields.iter().copied()) == Some(missing)
            };
            if !entries.iter().any(is_meant) {
                let text = match subject {
                    Some(subject) => format!("{subject} lacks the field {missing:?}"),
                    None => format!("the field {missing:?} is missing here"),
                };
                self.add_mistake(node.position, text);
            }
        }
        self.placeholders.borrow_mut().insert((std::ptr::from_ref(node), missing));
        self.has_news.set(true);
    }
}

/// The name of a described thing; `None` for the name of a type.
pub(crate) fn noun(name: &str) -> Option<&str> {
    (name.contains(' ') || !name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

pub(crate) fn with_article(what: &str) -> String {
    let is_vowel = what.starts_with(['a', 'e', 'i', 'o']) || what.starts_with("MCP");
    let article = if is_vowel { "an" } else { "a" };
    format!("{article} {what}")
}

/// The name with which a type asks for the same map several times.
pub(crate) const PARTS: &str = "$parts";

/// The value that a type expects.
#[derive(Debug)]
pub(crate) enum Expectation {
    /// Something whose name has a plural.
    Noun(String),
    /// One of these names.
    Names(&'static [&'static str]),
    /// One of several notations.
    Notations(&'static str),
}

/// The reason that a value can't be read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It must be something else: `must be …, not …`, or another sentence without its subject.
    Mismatch(Option<Position>, String),
    /// It breaks a rule.
    Rule(ValueMistake),
    /// The whole sentence.
    Sentence(Position, String),
    MissingField(&'static str),
    /// A mistake that was collected already.
    Collected,
    /// The answer to a probe: no mistake, but the expectation of a type.
    Expectation(Expectation),
}

impl Fault {
    pub fn at(self, position: Position) -> Self {
        let Self::Mismatch(None, text) = self else { return self };
        Self::Mismatch(Some(position), text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch(_, text) | Self::Sentence(_, text) => f.write_str(text),
            Self::Rule(mistake) => mistake.fmt(f),
            Self::MissingField(name) => write!(f, "the field {name:?} is missing here"),
            Self::Collected | Self::Expectation(_) => f.write_str("it has mistakes"),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        match text.strip_prefix("it ") {
            Some(rest) => Self::Mismatch(None, rest.to_owned()),
            None => Self::Rule(ValueMistake::from_text(&text)),
        }
    }

    fn invalid_type(actual: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected.to_string();
        let expected = translate_expectation(&expected);
        let hint = match (expected.as_ref(), actual) {
            (
                "text",
                Unexpected::Bool(_) | Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_),
            ) => " (put it in quotes)",
            _ => "",
        };
        Self::Mismatch(None, format!("must be {expected}{hint}, not {}", describe_unexpected(actual)))
    }

    fn invalid_value(actual: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid_type(actual, expected)
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        let hint = did_you_mean_hint(name, known.iter().copied());
        let text = quote_truncated(name);
        Self::Mismatch(None, format!("must be {}, not the text {text}{hint}", join_with_or(known)))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let hint = match did_you_mean_hint(name, known.iter().copied()) {
            hint if hint.is_empty() => format!("; there can be {}", join_with_or(known)),
            hint => hint,
        };
        Self::Rule(ValueMistake::sentence(format!("there is no field {} here{hint}", quote_truncated(name))))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::MissingField(name)
    }
}

/// Translates serde's expectation for people who do not know Rust.
pub(crate) fn translate_expectation(expected: &str) -> Cow<'_, str> {
    if let Some(number) = describe_number_type(expected) {
        return number.into();
    }
    let translated = match expected {
        "a string" | "path string" | "a task id" | "a capability name" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a map of names and values",
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
