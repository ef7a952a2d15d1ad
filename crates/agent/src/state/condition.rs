//! Conditions over an agent's state, phase and skills: expressions as in templates, such as `phase == 'draft' and state.count > 2`.

use std::collections::BTreeMap;

use minijinja::{Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::skills::SkillProgress;

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
