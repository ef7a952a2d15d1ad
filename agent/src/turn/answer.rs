//! The forms of a final answer, and what makes one unusable. It owns the checks that need nothing but the answer
//! itself; whether an answer is *good* is for a critic.

use std::collections::BTreeSet;

use millrace_protocol::result::TaskResult;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::AnswerSchema;
use crate::tool::{read_json, schema_of};

/// What an agent's work ends in.
pub trait Answer: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// The schema the model is given under `name`; `None` asks for plain text.
    fn schema(name: &str) -> Option<AnswerSchema>;

    /// Reads what the model wrote; with a schema, it has passed that before.
    ///
    /// # Errors
    /// What is wrong with it, as the model reads it in order to mend it.
    fn parse(text: &str) -> Result<Self, String>;
}

/// An answer in words, without a form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct PlainText(pub String);

impl Answer for PlainText {
    fn schema(_: &str) -> Option<AnswerSchema> {
        None
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("The answer is empty.".into());
        }
        Ok(Self(text.to_owned()))
    }
}

/// Any JSON object that fits the schema in the agent's brief.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct Data(pub Value);

impl Answer for Data {
    /// Any object; a brief names the schema that is meant.
    fn schema(name: &str) -> Option<AnswerSchema> {
        Some(AnswerSchema { name: name.to_owned(), schema: serde_json::json!({"type": "object"}) })
    }

    fn parse(text: &str) -> Result<Self, String> {
        from_json(text).map(Self)
    }
}

impl Answer for TaskResult {
    fn schema(name: &str) -> Option<AnswerSchema> {
        Some(structured::<Self>(name))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let result: Self = from_json(text)?;
        if result.is_empty() {
            return Err("'output' is empty and there is no 'data'.".into());
        }
        check_references(&result)?;
        Ok(result)
    }
}

fn structured<A: JsonSchema>(name: &str) -> AnswerSchema {
    AnswerSchema { name: name.to_owned(), schema: schema_of::<A>() }
}

fn from_json<A: DeserializeOwned>(text: &str) -> Result<A, String> {
    let value =
        read_json(text).map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
    serde_json::from_value(value).map_err(|mistake| format!("The answer does not fit its schema: {mistake}."))
}

/// Sources have names of their own, and quotations name a source that is there and lines that can be.
fn check_references(result: &TaskResult) -> Result<(), String> {
    let mut ids = BTreeSet::new();
    if let Some(twice) = result.sources.iter().find(|source| !ids.insert(source.id.as_str())) {
        return Err(format!("Two sources have the id '{}'.", twice.id));
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
    use super::*;

    #[test]
    fn mistakes_of_an_answer_are_told_in_words_the_model_can_act_on() {
        assert!(TaskResult::parse("no").unwrap_err().starts_with("The answer is not one JSON object"));
        assert!(TaskResult::parse("{}").unwrap_err().contains("'output' is empty"));
        let unlisted =
            r#"{"output":"x","quotations":[{"source":"S1","text":"q","first_line":1,"last_line":1}]}"#;
        assert!(TaskResult::parse(unlisted).unwrap_err().contains("'S1', which is not listed"));
    }

    #[test]
    fn a_fenced_answer_is_read_like_a_bare_one() {
        let result = TaskResult::parse("```json\n{\"output\": \"x\"}\n```").unwrap();
        assert_eq!(result.output, "x");
    }
}
