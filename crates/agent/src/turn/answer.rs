//! The forms of a final answer, and their validation. It owns the checks that need only the answer itself; critics judge
//! whether an answer is *good*.
//!
//! # Invariants
//!
//! - I91: Every form of an answer is bounded, and a correction allows nothing but the answer.
//!   (`crates/agent/src/answers/findings.rs::every_text_of_the_forms_is_bounded`,
//!   `crates/agent/src/critic/form.rs::the_form_has_a_bounded_key_per_criterion_and_asks_for_no_verdict`,
//!   `crates/agent/tests/turn/corrections.rs::a_correction_is_requested_without_tools`,
//!   `crates/models/tests/conformance/requests.rs::local_servers_get_bounds_and_optional_fields`)

use std::collections::BTreeSet;

use millrace_protocol::foreign_json::plain_json_error;
use millrace_protocol::result::{MAX_SUMMARY, TaskResult};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::AnswerSchema;
use crate::tool::{parse_lenient_json, schema_of};

/// The final answer of an agent.
pub trait Answer: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// `true` if an answer has another accepted form than that of the schema: it is parsed without a check against the schema.
    fn is_other_form(value: &Value, schema: &Value) -> bool {
        let _ = (value, schema);
        false
    }

    /// The schema for the model, under `name`, if it is always the same; `None` for plain text.
    fn answer_schema(name: &str) -> Option<AnswerSchema> {
        let _ = name;
        None
    }

    /// Parses the model's answer; if there is a schema, the answer has been validated against it.
    fn parse_answer(text: &str) -> Result<Self, String>;
}

/// An answer in plain text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct PlainText(pub String);

impl Answer for PlainText {
    fn parse_answer(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("The answer is empty.".into());
        }
        Ok(Self(text.to_owned()))
    }
}

/// Any JSON object that fits the schema in the agent's brief.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct JsonAnswer(pub Value);

impl Answer for JsonAnswer {
    /// Any object; the brief names the intended schema.
    fn answer_schema(name: &str) -> Option<AnswerSchema> {
        Some(AnswerSchema { name: name.to_owned(), schema: serde_json::json!({"type": "object"}) })
    }

    fn parse_answer(text: &str) -> Result<Self, String> {
        parse_json_answer(text).map(Self)
    }
}

impl JsonAnswer {
    /// Returns a summary of the data: its own `summary`, or the first line of its only text that says something, or the data in
    /// one line.
    pub(crate) fn summarize(&self) -> String {
        let own = self.0.get("summary").and_then(Value::as_str).filter(|summary| !summary.trim().is_empty());
        let only_field =
            self.0.as_object().filter(|fields| fields.len() == 1).and_then(|it| it.values().next());
        let only_text = only_field.unwrap_or(&self.0).as_str();
        let says_something = |line: &&str| line.contains(char::is_alphanumeric) && !line.starts_with("```");
        let first_line = || only_text?.lines().map(str::trim).find(says_something);
        match own.or_else(first_line) {
            Some(summary) => summary.to_owned(),
            None => self.0.to_string().chars().take(MAX_SUMMARY).collect(),
        }
    }
}

impl Answer for TaskResult {
    fn answer_schema(name: &str) -> Option<AnswerSchema> {
        Some(build_answer_schema::<Self>(name))
    }

    fn parse_answer(text: &str) -> Result<Self, String> {
        let result: Self = parse_json_answer(text)?;
        if result.is_empty() {
            return Err("'output' is empty and there is no 'data'.".into());
        }
        validate_citation_references(&result)?;
        Ok(result)
    }
}

fn build_answer_schema<A: JsonSchema>(name: &str) -> AnswerSchema {
    AnswerSchema { name: name.to_owned(), schema: schema_of::<A>() }
}

/// Parses an answer that is one JSON object.
pub(crate) fn parse_json_answer<A: DeserializeOwned>(text: &str) -> Result<A, String> {
    let value = parse_lenient_json(text)
        .map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
    serde_json::from_value(value).map_err(|mistake| {
        format!("The answer does not fit its schema: {}.", plain_json_error(&mistake.to_string()))
    })
}

/// Checks that source ids are unique, and that quotations name a listed source and a valid range of lines.
fn validate_citation_references(result: &TaskResult) -> Result<(), String> {
    let mut ids = BTreeSet::new();
    if let Some(duplicate) = result.sources.iter().find(|source| !ids.insert(source.id.as_str())) {
        return Err(format!("Two sources have the id '{}'.", duplicate.id));
    }
    for quotation in &result.quotations {
        if !ids.contains(quotation.source.as_str()) {
            return Err(format!("A quotation names the source '{}', which is not listed.", quotation.source));
        }
        if quotation.first_line == 0 || quotation.last_line < quotation.first_line {
            let lines = format!("{} to {}", quotation.first_line, quotation.last_line);
            return Err(format!("A quotation of '{}' has the lines {lines}.", quotation.source));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mistakes_are_worded_for_the_model_to_correct() {
        assert!(TaskResult::parse_answer("no").unwrap_err().starts_with("The answer is not one JSON object"));
        assert!(TaskResult::parse_answer("{}").unwrap_err().contains("'output' is empty"));
        let unlisted =
            r#"{"output":"x","quotations":[{"source":"S1","text":"q","first_line":1,"last_line":1}]}"#;
        assert!(TaskResult::parse_answer(unlisted).unwrap_err().contains("'S1', which is not listed"));
    }

    #[test]
    fn summary_of_data_says_something() {
        for (data, summary) in [
            (json!({"summary": "Two\nlines", "answer": "x"}), "Two\nlines"),
            (json!({"answer": "Founded in 2011.\nBy Ines Varga."}), "Founded in 2011."),
            (json!({"code": "```python\nprint(1)\n```"}), "print(1)"),
            (json!({"summary": " ", "weight": 690}), r#"{"summary":" ","weight":690}"#),
            (json!({"facts": ["a", "b"]}), r#"{"facts":["a","b"]}"#),
        ] {
            assert_eq!(JsonAnswer(data).summarize(), summary);
        }
        let long = JsonAnswer(json!({"a": 1, "b": "x".repeat(1_000)})).summarize();
        assert_eq!(long.chars().count(), MAX_SUMMARY);
    }

    #[test]
    fn a_fenced_answer_is_read() {
        let result = TaskResult::parse_answer("```json\n{\"output\": \"x\"}\n```").unwrap();
        assert_eq!(result.output, "x");
    }
}
