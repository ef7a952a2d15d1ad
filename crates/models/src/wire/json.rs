//! Reads and writes JSON fields that may be missing or of any type.

use std::borrow::Cow;

use serde_json::Value;

/// Returns the number at a JSON pointer, or 0.
pub(super) fn read_number_at(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the text at a JSON pointer, or an empty one.
pub(super) fn read_text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of a list; none if it is no list.
pub(super) fn items_of(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns `true` if an object has a field that is not null.
pub(super) fn has_field(value: &Value, name: &str) -> bool {
    value.get(name).is_some_and(|field| !field.is_null())
}

/// Converts any JSON value to text: strings unchanged, null as empty text, everything else as JSON.
pub(super) fn json_to_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => "".into(),
        Value::String(text) => text.into(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string().into(),
    }
}

pub(super) fn set_field(object: &mut Value, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}
