//! Policies on the fields of an agent's state. A policy can veto a read, a write or an append: nothing then happens, and the
//! model reads the reason.

use millrace_protocol::schema::check_value_against_schema;
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, ConditionView};

/// An operation on a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateOperation {
    /// Reading it.
    Get,
    /// Replacing its value.
    Set,
    /// Adding an item to its list.
    Append,
}

impl StateOperation {
    /// Its name, as in the names of tools.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Append => "append",
        }
    }
}

/// A policy. A value has to meet all of its rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatePolicy {
    /// The operations that it applies to.
    pub on: Vec<StateOperation>,
    /// The JSON Schema of the value; of the item for an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// The pattern that a text must match; the item for an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// The least number, length of a text in characters, or length of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The greatest number, length of a text in characters, or length of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The condition over `value`, `old`, `state` and `phase` under which the operation is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny: Option<Condition>,
    /// The reason for the model, in place of the one that names the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A value as a policy judges it.
pub(super) struct JudgedValue<'a> {
    pub operation: StateOperation,
    /// The value that is read or written; the item of an append.
    pub value: &'a Value,
    /// The value of the field after the operation.
    pub after: &'a Value,
}

impl StatePolicy {
    /// Checks an operation.
    ///
    /// # Errors
    /// The policy vetoes it, with the reason.
    pub(super) fn check_operation(
        &self,
        judged: &JudgedValue<'_>,
        view: &ConditionView<'_>,
    ) -> Result<(), String> {
        if !self.on.contains(&judged.operation) {
            return Ok(());
        }
        self.find_violation(judged, view).map_or(Ok(()), |reason| Err(self.message.clone().unwrap_or(reason)))
    }

    fn find_violation(&self, judged: &JudgedValue<'_>, view: &ConditionView<'_>) -> Option<String> {
        let JudgedValue { value, after, .. } = judged;
        if let Some(schema) = &self.schema
            && let Err(mistakes) = check_value_against_schema(schema, value)
        {
            return Some(format!("the value does not fit: {mistakes}"));
        }
        if let Some(pattern) = &self.matches
            && !matches_pattern(pattern, value)
        {
            return Some(format!("the value must be a text that matches {pattern:?}"));
        }
        // The limits of a list hold for the list after an append.
        let (size, what) = measure(after);
        if let Some(max) = self.max.filter(|max| size.is_none_or(|size| size > *max)) {
            return Some(format!("{what} must be at most {max}"));
        }
        if let Some(min) = self.min.filter(|min| size.is_none_or(|size| size < *min)) {
            return Some(format!("{what} must be at least {min}"));
        }
        let condition = self.deny.as_ref()?;
        match condition.evaluate(view) {
            Ok(false) => None,
            Ok(true) => Some(format!("it is denied where {}", condition.as_str())),
            Err(error) => Some(format!("the policy {:?} can't be checked: {error}", condition.as_str())),
        }
    }
}

fn matches_pattern(pattern: &str, value: &Value) -> bool {
    let matches = |text: &str| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text));
    value.as_str().is_some_and(matches)
}

/// The number that limits apply to, and its name.
fn measure(value: &Value) -> (Option<f64>, &'static str) {
    match value {
        Value::Number(number) => (number.as_f64(), "the number"),
        Value::String(text) => (Some(text.chars().count() as f64), "the length of the text"),
        Value::Array(items) => (Some(items.len() as f64), "the number of items"),
        Value::Null | Value::Bool(_) | Value::Object(_) => (None, "the value has no size; it"),
    }
}
