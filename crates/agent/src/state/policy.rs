//! Policies on the fields of an agent's state, and conditions over its state, phase and skills: expressions as in templates, such as
//! `phase == 'draft' and state.count > 2`. A policy can veto a read, a write or an append: nothing then happens, and the model reads the
//! reason.

use std::collections::BTreeMap;

use millrace_protocol::schema::check_value_against_schema;
use millrace_strict_yaml::{one_or_many, tidy_schema, without_defaults};
use minijinja::{Environment, UndefinedBehavior};
use regex::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::skills::SkillProgress;
use crate::spec::fields::{AnyObject, TextOrFlag};

/// An operation on a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "policy")]
#[schemars(deny_unknown_fields, transform = tidy_schema, transform = without_defaults, transform = require_rule)]
pub struct StatePolicy {
    /// The operations that it applies to; set and append by default.
    #[serde(default = "writing_operations", deserialize_with = "one_or_many")]
    #[schemars(schema_with = "operations_schema")]
    pub on: Vec<StateOperation>,
    /// The JSON Schema of the value, or of the item of an append.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AnyObject")]
    pub schema: Option<Value>,
    /// A regular expression that the text, or the item of an append, must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// The least number, length of a text or length of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The greatest number, length of a text or length of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The operation is denied where this expression over value, old, state.FIELD and phase holds.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_denial")]
    #[schemars(with = "TextOrFlag")]
    pub deny: Option<Condition>,
    /// The reason that the agent reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

fn writing_operations() -> Vec<StateOperation> {
    vec![StateOperation::Set, StateOperation::Append]
}

fn operations_schema(_: &mut SchemaGenerator) -> Schema {
    let operation = json!({ "enum": ["get", "set", "append"] });
    json_schema!({ "oneOf": [operation, { "type": "array", "items": operation, "minItems": 1 }] })
}

fn require_rule(schema: &mut Schema) {
    let rules = ["schema", "matches", "min", "max", "deny"].map(|rule| json!({ "required": [rule] }));
    schema.insert("anyOf".into(), rules.to_vec().into());
}

/// Reads a condition, or `true` or `false` in its place.
fn read_denial<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Condition>, D::Error> {
    struct DenialVisitor;

    impl Visitor<'_> for DenialVisitor {
        type Value = Option<Condition>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("text")
        }

        fn visit_bool<E: Error>(self, flag: bool) -> Result<Self::Value, E> {
            Ok(Some(Condition::unchecked(flag.to_string())))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(Condition::unchecked(text.to_owned())))
        }
    }

    deserializer.deserialize_any(DenialVisitor)
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

/// A condition. Its syntax has been checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Condition(String);

/// The values that a condition can use.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ConditionView<'a> {
    /// The fields of the state.
    pub state: &'a BTreeMap<String, Value>,
    /// The phase; empty if the agent has none.
    pub phase: &'a str,
    /// The skills whose instructions were read.
    pub skills: &'a SkillProgress,
    /// The value before a change, for policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<&'a Value>,
    /// The value that is written or read, for policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<&'a Value>,
}

impl Condition {
    /// Checks the syntax of a condition.
    pub fn parse(text: &str) -> Result<Self, String> {
        create_environment().compile_expression(text).map_err(|error| describe_error(&error))?;
        Ok(Self(text.to_owned()))
    }

    pub(super) const fn unchecked(text: String) -> Self {
        Self(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names that it uses, such as `phase` and `state.count`, sorted.
    pub fn used_names(&self) -> Vec<String> {
        let environment = create_environment();
        let mut names: Vec<String> = match environment.compile_expression(&self.0) {
            Ok(expression) => expression.undeclared_variables(true).into_iter().collect(),
            Err(_) => Vec::new(),
        };
        names.sort_unstable();
        names
    }

    /// Evaluates it.
    pub fn evaluate(&self, view: &ConditionView<'_>) -> Result<bool, String> {
        let environment = create_environment();
        let expression = environment.compile_expression(&self.0).map_err(|error| describe_error(&error))?;
        expression.eval(view).map(|value| value.is_true()).map_err(|error| describe_error(&error))
    }
}

fn create_environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment
}

fn describe_error(error: &minijinja::Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_expressions_over_state_and_phase() {
        let state = BTreeMap::from([("count".to_owned(), json!(0)), ("names".to_owned(), json!(["a", "b"]))]);
        let skills = SkillProgress { read: vec!["csv".into()], tools: vec!["execute".into()] };
        let (skills, value) = (&skills, Some(&json!(5)));
        let view = ConditionView { state: &state, phase: "draft", skills, old: None, value };
        for (text, expected) in [
            ("phase == 'draft'", Ok(true)),
            ("phase in ['review', 'done']", Ok(false)),
            ("state.count", Ok(false)),
            ("state.count == 0 and not state.count > 2", Ok(true)),
            ("state.names | length >= 2", Ok(true)),
            ("value > state.count", Ok(true)),
            ("'csv' in skills.read and 'execute' in skills.tools", Ok(true)),
            ("'pdf' in skills.read", Ok(false)),
            ("'csv' in skills.raed", Err(())),
            ("state.count | length > 1", Err(())),
            ("state.colour == 1", Err(())),
        ] {
            let evaluated = Condition::parse(text).unwrap().evaluate(&view).map_err(drop);
            assert_eq!(evaluated, expected, "{text}");
        }
        for text in ["", "phase ==", "{{ phase }}", "(phase"] {
            assert!(Condition::parse(text).is_err(), "{text}");
        }
        let names = Condition::parse("phase == 'a' and state.count > value").unwrap().used_names();
        assert_eq!(names, ["phase", "state.count", "value"]);
    }
}
