//! The answer's form asked for in words.

use serde_json::Value;

use crate::model::Request;

pub(super) fn asked(request: &Request) -> Request {
    let mut asked = request.clone();
    if let Some(answer) = asked.answer.take() {
        asked.system = format!(
            "{}\n\nWhen you are done, answer with one JSON object and nothing else: no words around it, no code \
             fence. It has this JSON Schema:\n{}",
            asked.system,
            compact(&answer.schema)
        );
    }
    asked
}

/// A schema in one line.
pub(super) fn compact(schema: &Value) -> String {
    schema.to_string()
}
