//! Reads the JSON that a model wrote. It owns the few repairs that can mean only one thing: nothing for an empty object,
//! a fenced block, JSON text inside a JSON string, a comma before a closing bracket. Whatever else is broken stays so.

use serde_json::Value;

/// The value that a text stands for.
///
/// # Errors
/// The parser's words on the text as it was written.
pub(crate) fn read_json(text: &str) -> Result<Value, serde_json::Error> {
    let text = text.trim();
    let mistake = match serde_json::from_str(text) {
        Ok(value) => return Ok(value),
        Err(mistake) => mistake,
    };
    let inner = unfenced(text);
    let repaired = serde_json::from_str(inner).or_else(|_| serde_json::from_str(&without_last_commas(inner)));
    repaired.map_err(|_| mistake)
}

/// The object that a call's arguments stand for.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn read_arguments(text: &str) -> Result<Value, String> {
    // Some providers send nothing at all, or null, for a call without arguments.
    if matches!(text.trim(), "" | "null") {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value = match read_json(text) {
        Err(mistake) => return Err(format!("are not JSON: {mistake}")),
        Ok(Value::String(inner)) => read_json(&inner).unwrap_or(Value::String(inner)),
        Ok(value) => value,
    };
    if value.is_object() { Ok(value) } else { Err("are not one JSON object".to_owned()) }
}

fn unfenced(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else {
        return text;
    };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}

/// The text without commas that stand before a closing bracket, strings left alone.
fn without_last_commas(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        let closes = || text[at + 1..].trim_start().starts_with(['}', ']']);
        if c != ',' || in_string || !closes() {
            kept.push(c);
        }
        (in_string, escaped) = match (c, in_string, escaped) {
            ('"', true, false) => (false, false),
            ('\\', true, false) => (true, true),
            ('"', false, _) => (true, false),
            (_, within, _) => (within, false),
        };
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_repaired_where_only_one_thing_can_be_meant() {
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
            assert_eq!(read_arguments(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
