//! References in the schema of a field to values of the state: `{$state: FIELD}`, or `{$state: FIELD.name}` for a part of it, where
//! `*` stands for each item of a list. They are resolved with the current values whenever tools are offered or a value is checked.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The key of a reference.
const KEY: &str = "$state";

/// Returns the paths of all references in a schema.
pub(crate) fn list_references(schema: &Value) -> Vec<&str> {
    match schema {
        Value::Object(fields) => match as_reference(fields) {
            Some(path) => vec![path],
            None => fields.values().flat_map(list_references).collect(),
        },
        Value::Array(items) => items.iter().flat_map(list_references).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Returns the schema with the current values in place of its references.
///
/// # Errors
/// A reference leads to no value, or the schema with the values is not valid; with the reason.
pub(crate) fn resolve_schema(schema: &Value, values: &BTreeMap<String, Value>) -> Result<Value, String> {
    let resolved = resolve(schema, values)?;
    jsonschema::validator_for(&resolved)
        .map_err(|why| format!("its schema is not valid with the current values of the state: {why}"))?;
    if has_empty_enum(&resolved) {
        return Err("there is no value to choose from".into());
    }
    Ok(resolved)
}

/// The keywords that hold schemas by name.
const NAMED_SCHEMAS: [&str; 3] = ["properties", "patternProperties", "$defs"];
/// The keywords that hold schemas of which a looser one allows more.
const SCHEMAS: [&str; 6] =
    ["items", "prefixItems", "additionalProperties", "propertyNames", "allOf", "anyOf"];

/// Returns a schema without references that allows all values that the schema can ever allow: constraints with references are left
/// out.
pub(crate) fn without_references(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    if as_reference(fields).is_some() {
        return Value::Object(Map::new());
    }
    let open = fields.iter().filter_map(|(name, value)| {
        if list_references(value).is_empty() {
            return Some((name.clone(), value.clone()));
        }
        let value = match value {
            Value::Object(named) if NAMED_SCHEMAS.contains(&name.as_str()) => {
                named.iter().map(|(name, schema)| (name.clone(), without_references(schema))).collect()
            }
            Value::Array(all) if SCHEMAS.contains(&name.as_str()) => {
                all.iter().map(without_references).collect()
            }
            one if SCHEMAS.contains(&name.as_str()) => without_references(one),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => return None,
        };
        Some((name.clone(), value))
    });
    Value::Object(open.collect())
}

fn as_reference(fields: &Map<String, Value>) -> Option<&str> {
    fields.get(KEY).filter(|_| fields.len() == 1)?.as_str()
}

fn resolve(schema: &Value, values: &BTreeMap<String, Value>) -> Result<Value, String> {
    match schema {
        Value::Object(fields) => match as_reference(fields) {
            Some(path) => find_value(path, values),
            None => {
                let resolved = fields.iter().map(|(name, value)| Ok((name.clone(), resolve(value, values)?)));
                Ok(Value::Object(resolved.collect::<Result<_, String>>()?))
            }
        },
        Value::Array(items) => {
            Ok(Value::Array(items.iter().map(|item| resolve(item, values)).collect::<Result<_, _>>()?))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(schema.clone()),
    }
}

fn find_value(path: &str, values: &BTreeMap<String, Value>) -> Result<Value, String> {
    let mut parts = path.split('.');
    let field = parts.next().unwrap_or_default();
    let value = values.get(field).ok_or_else(|| format!("the state has no field {field:?}"))?;
    let parts: Vec<&str> = parts.collect();
    find_part(value, &parts).ok_or_else(|| format!("state.{path} has no value"))
}

fn find_part(value: &Value, path: &[&str]) -> Option<Value> {
    let Some((part, rest)) = path.split_first() else { return Some(value.clone()) };
    match value {
        Value::Array(items) if *part == "*" => items.iter().map(|item| find_part(item, rest)).collect(),
        Value::Array(items) => find_part(items.get(part.parse::<usize>().ok()?)?, rest),
        Value::Object(fields) => find_part(fields.get(*part)?, rest),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// `true` if nothing can be chosen at some place: models' providers refuse such a schema.
fn has_empty_enum(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty)
                || fields.values().any(has_empty_enum)
        }
        Value::Array(items) => items.iter().any(has_empty_enum),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values() -> BTreeMap<String, Value> {
        let values = json!({
            "names": ["a", "b"],
            "limits": {"max": 3, "steps": [1, 2]},
            "rooms": [{"id": "x", "size": 1}, {"id": "y", "size": 2}],
            "none": [],
        });
        serde_json::from_value(values).unwrap()
    }

    #[test]
    fn references_are_replaced_by_current_values() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"enum": {"$state": "names"}},
                "count": {"type": "integer", "maximum": {"$state": "limits.max"}, "minimum": {"$state": "limits.steps.0"}},
                "room": {"enum": {"$state": "rooms.*.id"}},
            },
        });
        let mut references = list_references(&schema);
        references.sort_unstable();
        assert_eq!(references, ["limits.max", "limits.steps.0", "names", "rooms.*.id"]);
        let resolved = resolve_schema(&schema, &values()).unwrap();
        let expected = json!({
            "type": "object",
            "properties": {
                "name": {"enum": ["a", "b"]},
                "count": {"type": "integer", "maximum": 3, "minimum": 1},
                "room": {"enum": ["x", "y"]},
            },
        });
        assert_eq!(resolved, expected);
        let open = json!({
            "type": "object",
            "properties": {"name": {}, "count": {"type": "integer"}, "room": {}},
        });
        assert_eq!(without_references(&schema), open);
        assert_eq!(without_references(&json!({"$state": "limits"})), json!({}));
        let negated =
            json!({"type": "string", "not": {"enum": {"$state": "names"}}, "items": {"$state": "limits"}});
        assert_eq!(without_references(&negated), json!({"type": "string", "items": {}}));
        let plain = json!({"type": "string", "enum": ["$state"], "description": "$state"});
        assert_eq!((without_references(&plain), list_references(&plain).len()), (plain.clone(), 0));
    }

    #[test]
    fn references_without_a_usable_value_are_refused_with_the_reason() {
        for (schema, reason) in [
            (json!({"enum": {"$state": "nobody"}}), "the state has no field \"nobody\""),
            (json!({"enum": {"$state": "limits.min"}}), "state.limits.min has no value"),
            (json!({"enum": {"$state": "rooms.2.id"}}), "state.rooms.2.id has no value"),
            (json!({"enum": {"$state": "limits"}}), "its schema is not valid"),
            (json!({"maximum": {"$state": "names"}}), "its schema is not valid"),
            (json!({"items": {"enum": {"$state": "none"}}}), "there is no value to choose from"),
        ] {
            let error = resolve_schema(&schema, &values()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
