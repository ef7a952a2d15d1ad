//! Labels of a run: names with values that its submitter chooses, to find runs by and to group them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The labels of a run: a value for each name.
pub type Labels = BTreeMap<String, String>;

/// The maximum number of labels of a run.
pub const MAX_LABELS: usize = 32;
/// The maximum length of a label's name in characters.
const MAX_NAME: usize = 63;
/// The maximum length of a label's value in characters.
const MAX_VALUE: usize = 256;

/// A text that is not a label, or not a selector of labels: the mistake, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLabel(String);

/// Parses a label, written as `NAME=VALUE`.
/// Errors: the text has no `=`, or its parts are no name or value.
pub fn parse_label(text: &str) -> Result<(String, String), InvalidLabel> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(InvalidLabel(format!("{text:?} is not a label; write NAME=VALUE, such as team=search")));
    };
    match find_label_problem(name, value) {
        Some(problem) => Err(InvalidLabel(problem)),
        None => Ok((name.to_owned(), value.to_owned())),
    }
}

/// Returns the mistake in the labels of a run, if there is one.
#[must_use]
pub fn find_labels_problem(labels: &Labels) -> Option<String> {
    if labels.len() > MAX_LABELS {
        return Some(format!("the run has {} labels; at most {MAX_LABELS} are allowed", labels.len()));
    }
    labels.iter().find_map(|(name, value)| find_label_problem(name, value))
}

fn find_label_problem(name: &str, value: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
    let shown: String = name.chars().take(MAX_NAME).collect();
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_allowed) {
        return Some(format!(
            "{shown:?} is not the name of a label; use 1 to {MAX_NAME} letters, digits, '.', '_', '/' and '-'"
        ));
    }
    if value.chars().count() > MAX_VALUE || value.contains(char::is_control) {
        return Some(format!(
            "the value of the label {shown} must have at most {MAX_VALUE} characters, on one line"
        ));
    }
    None
}

/// A condition on labels, written as `NAME=VALUE`, or as `NAME` for any value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelSelector {
    name: String,
    value: Option<String>,
}

impl LabelSelector {
    /// The name and the value, if the selector demands a value.
    pub fn exact_label(&self) -> Option<(&str, &str)> {
        Some((&self.name, self.value.as_deref()?))
    }

    /// `true` if these labels meet the condition.
    pub fn selects(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.name);
        value.is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl TryFrom<String> for LabelSelector {
    type Error = InvalidLabel;

    fn try_from(text: String) -> Result<Self, InvalidLabel> {
        text.parse()
    }
}

impl From<LabelSelector> for String {
    fn from(selector: LabelSelector) -> Self {
        selector.to_string()
    }
}

impl FromStr for LabelSelector {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        match find_label_problem(name, value.unwrap_or_default()) {
            Some(problem) => Err(InvalidLabel(problem)),
            None => Ok(Self { name: name.to_owned(), value: value.map(str::to_owned) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_parsed_selected_and_refused() {
        let labels: Labels = [parse_label("team=search"), parse_label("team/ticket=a=b c")]
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(labels["team/ticket"], "a=b c");
        for (selector, expected) in
            [("team", true), ("team=search", true), ("team=ads", false), ("owner", false), ("team=", false)]
        {
            let parsed: LabelSelector = selector.parse().unwrap();
            assert_eq!(parsed.selects(&labels), expected, "{selector}");
        }
        for text in ["team", "=x", "te am=x", "team=two\nlines", &format!("{}=x", "n".repeat(64))] {
            parse_label(text).unwrap_err();
        }
        let long = format!("team={}", "v".repeat(257));
        assert!(parse_label(&long).unwrap_err().to_string().contains("label team must have at most 256"));
        let many: Labels = (0..33).map(|n| (format!("l{n}"), String::new())).collect();
        assert!(find_labels_problem(&many).unwrap().contains("33 labels; at most 32"));
    }
}
