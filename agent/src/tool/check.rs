//! Checks a tool call's arguments against the tool's JSON Schema and says, in words fit for the model, what is
//! wrong. It owns the part of JSON Schema that tools use (type, enum, const, required, properties,
//! additionalProperties, items, minimum, maximum, minLength, anyOf, oneOf) and ignores the rest: what it lets through is
//! still deserialised by the tool.

use serde_json::{Map, Value};

/// The most mistakes that are named at once.
const MAX_MISTAKES: usize = 5;

/// Checks a value against a schema.
///
/// # Errors
/// What does not fit: one sentence per mistake, each beginning with the place, at most 5 of them.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    let mut mistakes = Vec::new();
    visit(schema, value, "", &mut mistakes);
    if mistakes.is_empty() {
        return Ok(());
    }
    let more = mistakes.len().saturating_sub(MAX_MISTAKES);
    mistakes.truncate(MAX_MISTAKES);
    if more > 0 {
        mistakes.push(format!("and {more} more"));
    }
    Err(mistakes.join("; "))
}

fn visit(schema: &Value, value: &Value, place: &str, mistakes: &mut Vec<String>) {
    let Some(schema) = schema.as_object() else {
        return;
    };
    if let Some(expected) = wrong_type(schema, value) {
        mistakes.push(format!("{} must be {expected}, not {}", name(place), kind(value)));
        return;
    }
    check_choices(schema, value, place, mistakes);
    check_alternatives(schema, value, place, mistakes);
    match value {
        Value::Object(fields) => check_object(schema, fields, place, mistakes),
        Value::Array(items) => {
            if let Some(item_schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    visit(item_schema, item, &format!("{place}[{index}]"), mistakes);
                }
            }
        }
        Value::Number(_) => check_bounds(schema, value, place, mistakes),
        Value::String(text) => check_length(schema, text, place, mistakes),
        Value::Null | Value::Bool(_) => {}
    }
}

fn wrong_type(schema: &Map<String, Value>, value: &Value) -> Option<String> {
    let allowed: Vec<&str> = match schema.get("type")? {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };
    let fits = allowed.iter().any(|allowed| match *allowed {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => kind(value) == other,
    });
    (!fits).then(|| {
        let named: Vec<String> = allowed.iter().map(|kind| with_article(kind)).collect();
        named.join(" or ")
    })
}

fn check_choices(schema: &Map<String, Value>, value: &Value, place: &str, mistakes: &mut Vec<String>) {
    if let Some(Value::Array(choices)) = schema.get("enum")
        && !choices.contains(value)
    {
        mistakes.push(format!("{} must be one of {}, not {value}", name(place), listed(choices)));
    }
    if let Some(constant) = schema.get("const")
        && constant != value
    {
        mistakes.push(format!("{} must be {constant}, not {value}", name(place)));
    }
}

/// A value must fit one of several schemas. Where all of them are single values, these are listed.
fn check_alternatives(schema: &Map<String, Value>, value: &Value, place: &str, mistakes: &mut Vec<String>) {
    let alternatives = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(*key)?.as_array());
    for alternatives in alternatives {
        if alternatives.iter().any(|one| check(one, value).is_ok()) {
            continue;
        }
        let constants: Vec<Value> = alternatives.iter().filter_map(|one| one.get("const").cloned()).collect();
        if constants.len() == alternatives.len() {
            mistakes.push(format!("{} must be one of {}, not {value}", name(place), listed(&constants)));
        } else {
            let first = alternatives.first().and_then(|one| check(one, value).err()).unwrap_or_default();
            mistakes.push(format!("{} fits none of its {} forms ({first})", name(place), alternatives.len()));
        }
    }
}

fn check_object(
    schema: &Map<String, Value>,
    fields: &Map<String, Value>,
    place: &str,
    mistakes: &mut Vec<String>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for required in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if let Some(required) = required.as_str()
            && !fields.contains_key(required)
        {
            mistakes.push(format!("{} is missing", name(&join(place, required))));
        }
    }
    for (field, value) in fields {
        let inner = join(place, field);
        match (properties.and_then(|all| all.get(field)), schema.get("additionalProperties")) {
            (Some(property), _) => visit(property, value, &inner, mistakes),
            (None, Some(Value::Bool(false))) => {
                let known: Vec<String> = properties.into_iter().flat_map(Map::keys).map(quoted).collect();
                mistakes.push(format!("{} is not known; known are {}", name(&inner), known.join(", ")));
            }
            (None, Some(other)) => visit(other, value, &inner, mistakes),
            (None, None) => {}
        }
    }
}

fn check_bounds(schema: &Map<String, Value>, value: &Value, place: &str, mistakes: &mut Vec<String>) {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let Some(number) = value.as_f64() else {
        return;
    };
    if let Some(least) = bound("minimum")
        && number < least
    {
        mistakes.push(format!("{} must be at least {least}, not {value}", name(place)));
    }
    if let Some(most) = bound("maximum")
        && number > most
    {
        mistakes.push(format!("{} must be at most {most}, not {value}", name(place)));
    }
}

fn check_length(schema: &Map<String, Value>, text: &str, place: &str, mistakes: &mut Vec<String>) {
    let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
    if (text.chars().count() as u64) < least {
        mistakes.push(format!("{} must have at least {least} characters", name(place)));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn with_article(kind: &str) -> String {
    match kind {
        "null" => kind.to_owned(),
        "integer" | "array" | "object" => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}

fn name(place: &str) -> String {
    if place.is_empty() { "the whole".to_owned() } else { quoted(place) }
}

fn quoted(text: impl AsRef<str>) -> String {
    format!("'{}'", text.as_ref())
}

fn join(place: &str, field: &str) -> String {
    if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") }
}

fn listed(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_mistake_is_told_with_its_place_and_what_was_expected() {
        let schema = json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1},
                "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 20},
                "order": {"enum": ["best", "first"]},
                "kind": {"oneOf": [{"const": "a"}, {"const": "b"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "free": {"type": "object", "additionalProperties": {"type": "integer"}}
            },
            "required": ["query"],
            "additionalProperties": false
        });
        let table = [
            (json!({"query": "x", "limit": 3, "tags": ["a"], "free": {"n": 1}}), ""),
            (json!({"query": "x", "limit": null}), ""),
            (json!({}), "'query' is missing"),
            (json!({"query": ""}), "'query' must have at least 1 characters"),
            (json!({"query": 3}), "'query' must be a string, not number"),
            (json!({"query": "x", "limit": 2.5}), "'limit' must be an integer or null, not number"),
            (json!({"query": "x", "limit": 21}), "'limit' must be at most 20, not 21"),
            (
                json!({"query": "x", "order": "worst"}),
                r#"'order' must be one of "best", "first", not "worst""#,
            ),
            (json!({"query": "x", "kind": "c"}), r#"'kind' must be one of "a", "b", not "c""#),
            (json!({"query": "x", "tags": ["a", 1]}), "'tags[1]' must be a string, not number"),
            (json!({"query": "x", "free": {"n": "1"}}), "'free.n' must be an integer, not string"),
            (json!([]), "the whole must be an object, not array"),
        ];
        for (value, expected) in table {
            assert_eq!(check(&schema, &value).err().unwrap_or_default(), expected, "{value}");
        }
        let unknown = check(&schema, &json!({"query": "x", "qury": "y"})).unwrap_err();
        assert!(unknown.starts_with("'qury' is not known; known are 'free', 'kind'"), "{unknown}");
    }
}
