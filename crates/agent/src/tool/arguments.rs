//! Parses JSON written by a model. It owns the few repairs that can mean only one thing: an empty text for an empty
//! object, a fenced block, JSON inside a JSON string, trailing commas. Anything else that is broken stays broken.

use millrace_protocol::foreign_json::parse_foreign_json;
use serde_json::Value;

/// Parses a text as a JSON value.
pub(crate) fn parse_lenient_json(text: &str) -> Result<Value, serde_json::Error> {
    let text = text.trim();
    let mistake = match parse_foreign_json(text) {
        Ok(value) => return Ok(value),
        Err(mistake) => mistake,
    };
    let inner = strip_code_fence(text);
    let repaired = parse_foreign_json(inner).or_else(|_| parse_foreign_json(remove_trailing_commas(inner)));
    repaired.map_err(|_| mistake)
}

/// Parses a call's arguments as an object.
pub(crate) fn parse_arguments_object(text: &str) -> Result<Value, String> {
    // Some providers send an empty text, or null, for a call without arguments.
    if matches!(text.trim(), "" | "null") {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value = match parse_lenient_json(text) {
        Err(mistake) => return Err(format!("are not JSON: {mistake}")),
        Ok(Value::String(inner)) => parse_lenient_json(&inner).unwrap_or(Value::String(inner)),
        Ok(value) => value,
    };
    if value.is_object() { Ok(value) } else { Err("are not one JSON object".to_owned()) }
}

fn strip_code_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else {
        return text;
    };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}

/// Removes commas before a closing bracket, except inside strings.
fn remove_trailing_commas(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        let closes = || text[at + 1..].trim_start().starts_with(['}', ']']);
        if c != ',' || in_string || !closes() {
            result.push(c);
        }
        (in_string, escaped) = match (c, in_string, escaped) {
            ('"', true, false) => (false, false),
            ('\\', true, false) => (true, true),
            ('"', false, _) => (true, false),
            (_, within, _) => (within, false),
        };
    }
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unambiguous_mistakes_in_arguments_are_repaired() {
        let table = [
            (r#"{"at": "sky"}"#, Ok(json!({"at": "sky"}))),
            ("", Ok(json!({}))),
            (" null\n", Ok(json!({}))),
            (r#""{\"at\": \"sky\"}""#, Ok(json!({"at": "sky"}))),
            ("```json\n{\"at\": \"sky\"}\n```", Ok(json!({"at": "sky"}))),
            ("```\n{\"at\": \"sky\",}\n```", Ok(json!({"at": "sky"}))),
            (
                r#"{"at": [1, 2, ], "b": "x,}", "c": "\",]" ,}"#,
                Ok(json!({"at": [1, 2], "b": "x,}", "c": "\",]"})),
            ),
            (r#"{"at": "sky""#, Err("are not JSON: EOF while parsing an object at line 1 column 12")),
            (r#"{"at": "sky"} {"at": "sea"}"#, Err("are not JSON: trailing characters at line 1 column 15")),
            (r"{'at': 'sky'}", Err("are not JSON: key must be a string at line 1 column 2")),
            ("sky", Err("are not JSON: expected value at line 1 column 1")),
            (r#""sky""#, Err("are not one JSON object")),
            ("[1]", Err("are not one JSON object")),
            ("7", Err("are not one JSON object")),
        ];
        for (text, expected) in table {
            assert_eq!(parse_arguments_object(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
