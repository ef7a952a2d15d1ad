//! The JSON of Protocol Buffers allows two names for each field of a request: `historyLength`, and `history_length` as in the
//! definition. The types of A2A know the first one.

use serde_json::{Map, Value};

/// The fields whose content is the client's own.
const FREE_FIELDS: [&str; 2] = ["metadata", "data"];

/// Returns a request with the usual names of its fields.
pub fn with_usual_names(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut usual = Map::new();
            for (name, value) in fields {
                let value =
                    if FREE_FIELDS.contains(&name.as_str()) { value } else { with_usual_names(value) };
                usual.insert(usual_name(&name), value);
            }
            Value::Object(usual)
        }
        Value::Array(values) => values.into_iter().map(with_usual_names).collect(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

pub fn usual_name(name: &str) -> String {
    let mut usual = String::with_capacity(name.len());
    let mut is_start = false;
    for c in name.chars() {
        match c {
            '_' => is_start = true,
            c if is_start => {
                usual.push(c.to_ascii_uppercase());
                is_start = false;
            }
            c => usual.push(c),
        }
    }
    usual
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_names_are_one_field_and_content_stays_as_it_is() {
        let request = json!({
            "history_length": 1, "pageSize": 2,
            "message": { "task_id": "a_b", "parts": [{ "data": { "max_tokens": 1 }, "media_type": "x" }],
                "metadata": { "my_key": 1 } },
        });
        let expected = json!({
            "historyLength": 1, "pageSize": 2,
            "message": { "taskId": "a_b", "parts": [{ "data": { "max_tokens": 1 }, "mediaType": "x" }],
                "metadata": { "my_key": 1 } },
        });
        assert_eq!(with_usual_names(request), expected);
    }
}
