//! Access to the nodes of a file field by field, with errors that name the expected and the actual value.

use std::time::Duration;

use millrace_protocol::time_text;

use crate::mistake::{
    MistakeCollector, Position, YamlMistake, did_you_mean_hint, did_you_mean_text, join_with_or,
};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

/// The fields of a map, none of them unknown.
pub struct MappingFields<'a> {
    what: &'static str,
    position: Position,
    entries: &'a [YamlEntry],
    /// The mistakes of the unknown fields.
    unknown: Vec<YamlMistake>,
}

impl<'a> MappingFields<'a> {
    /// Reads a node as a map with known fields only; `what` is the name of the described thing.
    ///
    /// # Errors
    /// The node is not a map, or has an unknown field.
    pub fn from_node(node: &'a YamlNode, what: &'static str, known: &[&str]) -> Result<Self, YamlMistake> {
        let YamlValue::Map(entries) = &node.value else {
            let fields = join_with_or(known);
            let actual = node.describe_type_and_value();
            return Err(YamlMistake::at_position(
                node.position,
                format!("{} must be a map with the fields {fields}, not {actual}", with_article(what)),
            ));
        };
        match entries.iter().find(|entry| !known.contains(&entry.key.as_str())) {
            None => Ok(Self { what, position: node.position, entries, unknown: Vec::new() }),
            Some(entry) => Err(unknown_field_mistake(entry, what, known)),
        }
    }

    /// Like [`Self::from_node`], but collects the mistakes: unknown fields are all reported, and the others can be read.
    pub fn collect_from_node(
        node: &'a YamlNode,
        what: &'static str,
        known: &[&str],
        mistakes: &mut MistakeCollector,
    ) -> Option<Self> {
        let YamlValue::Map(entries) = &node.value else {
            return mistakes.check(Self::from_node(node, what, known));
        };
        let unknown = entries.iter().filter(|entry| !known.contains(&entry.key.as_str()));
        let unknown: Vec<YamlMistake> =
            unknown.map(|entry| unknown_field_mistake(entry, what, known)).collect();
        for mistake in &unknown {
            mistakes.check::<()>(Err(mistake.clone()));
        }
        Some(Self { what, position: node.position, entries, unknown })
    }

    /// Returns a field, if it is present.
    #[must_use]
    pub fn find_field(&self, name: &str) -> Option<&'a YamlNode> {
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// Returns a required field.
    ///
    /// # Errors
    /// It is missing.
    pub fn require_field(&self, name: &str) -> Result<&'a YamlNode, YamlMistake> {
        let missing = || {
            // A misspelt field is one mistake, not two.
            let meant = did_you_mean_text(name);
            let misspelt = self.unknown.iter().find(|mistake| mistake.text.ends_with(&meant)).cloned();
            misspelt.unwrap_or_else(|| {
                let text = format!("this {} lacks the field {name:?}", self.what);
                YamlMistake::at_position(self.position, text)
            })
        };
        self.find_field(name).ok_or_else(missing)
    }
}

/// Returns a name with its article.
fn with_article(what: &str) -> String {
    let article = if what.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    format!("{article} {what}")
}

fn unknown_field_mistake(entry: &YamlEntry, what: &str, known: &[&str]) -> YamlMistake {
    let hint = match did_you_mean_hint(&entry.key, known.iter().copied()) {
        hint if hint.is_empty() => format!("; it can have {}", join_with_or(known)),
        hint => hint,
    };
    let key = quote_truncated(&entry.key);
    YamlMistake::at_position(
        entry.position,
        format!("there is no field {key} in {}{hint}", with_article(what)),
    )
}

impl YamlNode {
    /// Returns a text.
    ///
    /// # Errors
    /// The node has another type.
    pub fn parse_text(&self, name: &str) -> Result<&str, YamlMistake> {
        match &self.value {
            YamlValue::Text(text) => Ok(text),
            YamlValue::Number(_) | YamlValue::Flag(_) => {
                Err(self.mismatch_error(name, "text (put it in quotes)"))
            }
            YamlValue::Nothing | YamlValue::List(_) | YamlValue::Map(_) => {
                Err(self.mismatch_error(name, "text"))
            }
        }
    }

    /// Returns a boolean.
    ///
    /// # Errors
    /// The node has another type.
    pub fn parse_boolean(&self, name: &str) -> Result<bool, YamlMistake> {
        match self.value {
            YamlValue::Flag(flag) => Ok(flag),
            YamlValue::Nothing
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => Err(self.mismatch_error(name, "true or false")),
        }
    }

    /// Returns a list; `of` is the name of its items.
    ///
    /// # Errors
    /// The node has another type.
    pub fn parse_list(&self, name: &str, of: &str) -> Result<&[YamlNode], YamlMistake> {
        match &self.value {
            YamlValue::List(items) => Ok(items),
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::Map(_) => Err(self.mismatch_error(name, &format!("a list of {of}"))),
        }
    }

    /// Returns a whole number of at least 0; `expected` is the allowed range for the error.
    ///
    /// # Errors
    /// The node has another type.
    pub fn parse_integer(&self, name: &str, expected: &str) -> Result<u32, YamlMistake> {
        let number = match &self.value {
            YamlValue::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Text(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => None,
        };
        number.ok_or_else(|| self.mismatch_error(name, &format!("a whole number {expected}")))
    }

    /// Returns a duration: a number of seconds, or a text such as `90s`.
    ///
    /// # Errors
    /// The node has another type.
    pub fn parse_duration(&self, name: &str) -> Result<Duration, YamlMistake> {
        let duration = match &self.value {
            YamlValue::Number(number) => number.as_f64().map(time_text::duration_from_seconds),
            YamlValue::Text(text) => Some(time_text::parse_duration_or_zero(text)),
            YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::List(_) | YamlValue::Map(_) => None,
        };
        let expected = r#"a duration: seconds as a number, or text such as "90s", "1h 30m" or "30d""#;
        let bound = || format!("{expected}, at most {} days", time_text::MAX_DURATION.as_secs() / 86_400);
        duration.and_then(Result::ok).ok_or_else(|| self.mismatch_error(name, &bound()))
    }

    /// Returns the index of the node's text among some names.
    ///
    /// # Errors
    /// The node has another type.
    pub fn index_of_choice(&self, name: &str, names: &[&str]) -> Result<usize, YamlMistake> {
        let YamlValue::Text(text) = &self.value else {
            return Err(self.mismatch_error(name, &join_with_or(names)));
        };
        names.iter().position(|name| name == text).ok_or_else(|| {
            let mut mistake = self.mismatch_error(name, &join_with_or(names));
            mistake.text.push_str(&did_you_mean_hint(text, names.iter().copied()));
            mistake
        })
    }

    /// Returns a map as JSON values.
    ///
    /// # Errors
    /// The node has another type.
    pub fn to_json_entries(
        &self,
        name: &str,
    ) -> Result<impl Iterator<Item = (String, serde_json::Value)> + '_, YamlMistake> {
        match &self.value {
            YamlValue::Map(entries) => {
                Ok(entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())))
            }
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::List(_) => Err(self.mismatch_error(name, "a map of names and values")),
        }
    }

    /// Converts the node to JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            YamlValue::Nothing => serde_json::Value::Null,
            YamlValue::Flag(flag) => (*flag).into(),
            YamlValue::Number(number) => number.clone().into(),
            YamlValue::Text(text) => text.as_str().into(),
            YamlValue::List(items) => items.iter().map(YamlNode::to_json).collect(),
            YamlValue::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect()
            }
        }
    }

    /// Returns the error that the field of this name must be something else.
    #[must_use]
    pub fn mismatch_error(&self, name: &str, expected: &str) -> YamlMistake {
        YamlMistake::at_position(
            self.position,
            format!("{name:?} must be {expected}, not {}", self.describe_type_and_value()),
        )
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

/// Returns a text in quotes, truncated if it is long.
pub(crate) fn quote_truncated(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}
