//! Access to the nodes of a file field by field: what each must be, and what it is instead.

use std::time::Duration;

use jiff::SignedDuration;

use crate::mistake::{Mistake, Place, any_of, did_you_mean};
use crate::yaml::{Entry, Node, Value};

/// The fields of a map, all of them known.
pub struct Fields<'a> {
    what: &'static str,
    place: Place,
    entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    /// The fields of a node that must be a map with no fields but the known ones; `what` it describes.
    ///
    /// # Errors
    /// It is no map, or has a field that is not known.
    pub fn of(node: &'a Node, what: &'static str, known: &[&str]) -> Result<Self, Mistake> {
        let Value::Map(entries) = &node.value else {
            let fields = any_of(known);
            let found = node.found();
            return Err(Mistake::at(
                node.place,
                format!("a {what} must be a map with the fields {fields}, not {found}"),
            ));
        };
        match entries.iter().find(|entry| !known.contains(&entry.key.as_str())) {
            None => Ok(Self { what, place: node.place, entries }),
            Some(entry) => {
                let hint = match did_you_mean(&entry.key, known.iter().copied()) {
                    hint if hint.is_empty() => format!("; it can have {}", any_of(known)),
                    hint => hint,
                };
                let key = short(&entry.key);
                Err(Mistake::at(entry.place, format!("there is no field {key} in a {what}{hint}")))
            }
        }
    }

    /// A field, if it is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// It is missing.
    pub fn required(&self, name: &str) -> Result<&'a Node, Mistake> {
        let missing = || Mistake::at(self.place, format!("this {} lacks the field {name:?}", self.what));
        self.get(name).ok_or_else(missing)
    }
}

impl Node {
    /// A text.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&self, name: &str) -> Result<&str, Mistake> {
        match &self.value {
            Value::Text(text) => Ok(text),
            Value::Number(_) | Value::Flag(_) => Err(self.not(name, "text (put it in quotes)")),
            Value::Nothing | Value::List(_) | Value::Map(_) => Err(self.not(name, "text")),
        }
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&self, name: &str) -> Result<bool, Mistake> {
        match self.value {
            Value::Flag(flag) => Ok(flag),
            Value::Nothing | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                Err(self.not(name, "true or false"))
            }
        }
    }

    /// A list; `of` says of what.
    ///
    /// # Errors
    /// It is something else.
    pub fn list(&self, name: &str, of: &str) -> Result<&[Node], Mistake> {
        match &self.value {
            Value::List(items) => Ok(items),
            Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                Err(self.not(name, &format!("a list of {of}")))
            }
        }
    }

    /// A whole number of 0 or more; `expected` says which are wanted.
    ///
    /// # Errors
    /// It is something else.
    pub fn whole(&self, name: &str, expected: &str) -> Result<u32, Mistake> {
        let number = match &self.value {
            Value::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
            Value::Nothing | Value::Flag(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => None,
        };
        number.ok_or_else(|| self.not(name, &format!("a whole number {expected}")))
    }

    /// A duration: a number of seconds, or a text such as `90s`.
    ///
    /// # Errors
    /// It is something else.
    pub fn duration(&self, name: &str) -> Result<Duration, Mistake> {
        let duration = match &self.value {
            Value::Number(number) => {
                number.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            }
            Value::Text(text) => {
                text.parse::<SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok())
            }
            Value::Nothing | Value::Flag(_) | Value::List(_) | Value::Map(_) => None,
        };
        duration.ok_or_else(|| {
            self.not(name, r#"a duration: seconds as a number, or text such as "90s" or "1h 30m""#)
        })
    }

    /// One of some names, and its number among them.
    ///
    /// # Errors
    /// It is something else.
    pub fn choice(&self, name: &str, names: &[&str]) -> Result<usize, Mistake> {
        let Value::Text(text) = &self.value else { return Err(self.not(name, &any_of(names))) };
        names.iter().position(|name| name == text).ok_or_else(|| {
            let mut mistake = self.not(name, &any_of(names));
            mistake.text.push_str(&did_you_mean(text, names.iter().copied()));
            mistake
        })
    }

    /// A map as JSON values.
    ///
    /// # Errors
    /// It is something else.
    pub fn parameters(
        &self,
        name: &str,
    ) -> Result<impl Iterator<Item = (String, serde_json::Value)> + '_, Mistake> {
        match &self.value {
            Value::Map(entries) => Ok(entries.iter().map(|entry| (entry.key.clone(), entry.node.json()))),
            Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                Err(self.not(name, "a map of names and values"))
            }
        }
    }

    /// The whole as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        match &self.value {
            Value::Nothing => serde_json::Value::Null,
            Value::Flag(flag) => (*flag).into(),
            Value::Number(number) => number.clone().into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.iter().map(Node::json).collect(),
            Value::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.json())).collect()
            }
        }
    }

    /// That the field of this name must be something else.
    #[must_use]
    pub fn not(&self, name: &str, expected: &str) -> Mistake {
        Mistake::at(self.place, format!("{name:?} must be {expected}, not {}", self.found()))
    }

    pub(crate) fn found(&self) -> String {
        match &self.value {
            Value::Nothing => "nothing".into(),
            Value::Flag(flag) => flag.to_string(),
            Value::Number(number) => format!("the number {number}"),
            Value::Text(text) => format!("the text {}", short(text)),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map".into(),
        }
    }
}

/// A text in quotes, cut where it is long.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}
