//! skeleton
use serde_json::Value;
/// See later.
#[must_use]
pub fn strict(_schema: &Value) -> Option<Value> {
    None
}
/// See later.
#[must_use]
pub fn unstrict(_schema: &Value, value: Value) -> Value {
    value
}
