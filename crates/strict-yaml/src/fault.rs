//! The reasons that values can't be read, with our own wording in place of serde's.

use std::borrow::Cow;
use std::fmt;

use millrace_protocol::foreign_json::describe_number_type;
use serde::de::{self, Unexpected};

use crate::mistake::{Position, ValueMistake, did_you_mean_hint, join_with_or};
use crate::yaml::quote_truncated;

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
            Self::Collected => f.write_str("it has mistakes"),
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
fn translate_expectation(expected: &str) -> Cow<'_, str> {
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
