//! The answer's schema as part of the prompt.

use serde_json::Value;

use crate::model::Request;

pub(super) fn add_schema_to_prompt(request: &Request) -> Request {
    let mut rewritten = request.clone();
    if let Some(answer) = rewritten.answer.take() {
        rewritten.system = format!(
            "{}\n\nWhen you are done, answer with one JSON object and nothing else: no text around it, no code \
             fence. It must match this JSON Schema:\n{}",
            rewritten.system,
            to_compact_json(&answer.schema)
        );
    }
    rewritten
}

/// Formats a schema in one line.
pub(super) fn to_compact_json(schema: &Value) -> String {
    schema.to_string()
}
