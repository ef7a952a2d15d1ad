//! The strict subset of JSON Schema that the structured outputs of OpenAI and Anthropic support, which guarantees the
//! form of an answer. All properties are required, optional ones may be null instead; additional properties are
//! forbidden; unsupported keywords move into the description, where the model still reads them. Pure functions. Callers
//! validate the output of [`strict_answer_to_original`] against the original schema.

use serde_json::{Map, Value, json};

/// OpenAI rejects deeper schemas.
const MAX_DEPTH: usize = 10;

/// The formats that both providers support.
const SUPPORTED_FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

const ANNOTATION_KEYWORDS: [&str; 9] =
    ["$schema", "$id", "$comment", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"];

const BOUND_KEYWORDS: [(&str, &str); 12] = [
    ("minimum", "at least"),
    ("maximum", "at most"),
    ("exclusiveMinimum", "more than"),
    ("exclusiveMaximum", "less than"),
    ("multipleOf", "a multiple of"),
    ("minLength", "characters, at least"),
    ("maxLength", "characters, at most"),
    ("pattern", "matches the pattern"),
    ("minItems", "items, at least"),
    ("maxItems", "items, at most"),
    ("minProperties", "properties, at least"),
    ("maxProperties", "properties, at most"),
];

/// Converts a schema to the strict subset; `None` if it cannot be expressed: its root is not an object with named
/// properties, or it contains a map, an unconstrained value, a tuple, a condition, or is nested too deeply.
pub fn to_strict_schema(schema: &Value) -> Option<Value> {
    let root = schema.as_object()?;
    let is_object = root.get("type").is_none_or(|kind| kind == "object") && root.contains_key("properties");
    if !is_object || ["anyOf", "oneOf", "allOf", "$ref"].iter().any(|word| root.contains_key(*word)) {
        return None;
    }
    convert_schema_node(schema, 0)
}

/// Returns a schema in the strict subset with `true`, or itself with `false` if it cannot be expressed there.
pub(super) fn strict_or_original(schema: &Value) -> (bool, Value) {
    to_strict_schema(schema).map_or_else(|| (false, schema.clone()), |strict| (true, strict))
}

/// The highest bound on a length that a grammar holds: servers expand it, and llama.cpp rejects more repetitions.
const MAX_GRAMMAR_LENGTH: u64 = 2_000;

/// Converts a schema to one that the grammars of local servers hold. Unlike the strict subset, optional properties stay
/// optional and bounds stay bounds. Left out is what servers reject: unanchored patterns, `items: false`, bounds that are
/// too high.
pub fn to_grammar_schema(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(key, value)| is_grammar_keyword(key, value))
                .map(convert_grammar_entry)
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(to_grammar_schema).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

fn is_grammar_keyword(key: &str, value: &Value) -> bool {
    match key {
        "$schema" => false,
        "items" => *value != Value::Bool(false),
        "pattern" => !value.is_string() || is_anchored_pattern(value),
        "maxLength" | "maxItems" => value.as_u64().is_none_or(|bound| bound <= MAX_GRAMMAR_LENGTH),
        _ => true,
    }
}

fn is_anchored_pattern(pattern: &Value) -> bool {
    pattern.as_str().is_some_and(|pattern| pattern.starts_with('^') && pattern.ends_with('$'))
}

fn convert_grammar_entry((key, value): (&String, &Value)) -> (String, Value) {
    let is_literal = matches!(key.as_str(), "const" | "enum" | "default" | "examples");
    (key.clone(), if is_literal { value.clone() } else { to_grammar_schema(value) })
}

fn convert_schema_node(schema: &Value, depth: usize) -> Option<Value> {
    let source = schema.as_object().filter(|source| depth <= MAX_DEPTH && !source.is_empty())?;
    if let Some(only) = merge_single_all_of(source) {
        return convert_schema_node(&only, depth);
    }
    let mut out = Map::new();
    let mut notes = Vec::new();
    for (word, value) in source {
        convert_keyword(word, value, source, depth, &mut out, &mut notes)?;
    }
    if declares_type(source, "object") {
        convert_object(source, depth, &mut out)?;
    } else if declares_type(source, "array") && !source.contains_key("items") {
        return None;
    }
    append_notes_to_description(&mut out, &notes);
    let says_something =
        ["type", "enum", "const", "anyOf", "$ref"].iter().any(|word| out.contains_key(*word));
    let is_nullable = source.get("nullable") == Some(&Value::Bool(true));
    let strict = Value::Object(out);
    says_something.then(|| if is_nullable { allow_null(strict) } else { strict })
}

/// Merges an `allOf` with a single schema into its parent.
fn merge_single_all_of(source: &Map<String, Value>) -> Option<Value> {
    let [Value::Object(only)] = source.get("allOf")?.as_array()?.as_slice() else { return None };
    let mut merged = only.clone();
    let beside = source.iter().filter(|(word, _)| *word != "allOf");
    beside.for_each(|(word, value)| drop(merged.insert(word.clone(), value.clone())));
    Some(Value::Object(merged))
}

fn convert_keyword(
    word: &str,
    value: &Value,
    source: &Map<String, Value>,
    depth: usize,
    out: &mut Map<String, Value>,
    notes: &mut Vec<String>,
) -> Option<()> {
    match word {
        "type" | "enum" | "const" | "description" => drop(out.insert(word.to_owned(), value.clone())),
        "$ref" if value.as_str().is_some_and(|to| to.starts_with("#/$defs/") || to == "#") => {
            out.insert(word.to_owned(), value.clone());
        }
        "format" if SUPPORTED_FORMATS.iter().any(|format| value == format) => {
            drop(out.insert(word.to_owned(), value.clone()))
        }
        "format" => notes.extend(
            value.as_str().filter(|text| !is_number_format(text)).map(|text| format!("format: {text}")),
        ),
        "anyOf" | "oneOf" if !out.contains_key("anyOf") => {
            let all = value.as_array()?.iter().map(|one| convert_schema_node(one, depth + 1));
            out.insert("anyOf".to_owned(), all.collect::<Option<_>>()?);
        }
        "items" => drop(out.insert(word.to_owned(), convert_schema_node(value, depth + 1)?)),
        "$defs" => {
            let convert =
                |(name, def): (&String, _)| Some((name.clone(), convert_schema_node(def, depth + 1)?));
            let defs = value.as_object()?.iter().map(convert);
            out.insert(word.to_owned(), Value::Object(defs.collect::<Option<_>>()?));
        }
        "properties" | "required" | "additionalProperties" if declares_type(source, "object") => {}
        "uniqueItems" => notes.extend((value == true).then(|| "no item twice".to_owned())),
        "nullable" => {}
        _ if ANNOTATION_KEYWORDS.contains(&word) => {}
        _ => {
            let (_, reads) = BOUND_KEYWORDS.iter().find(|(bound, _)| *bound == word)?;
            notes
                .push(format!("{reads} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
    }
    Some(())
}

/// Returns `true` for formats that only repeat the width of a number.
fn is_number_format(format: &str) -> bool {
    ["int", "uint", "float", "double"].iter().any(|kind| format.starts_with(kind))
}

fn declares_type(source: &Map<String, Value>, name: &str) -> bool {
    match source.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        Some(_) => false,
        None => name == "object" && source.contains_key("properties"),
    }
}

/// Converts an object: all properties required, no additional ones.
fn convert_object(source: &Map<String, Value>, depth: usize, out: &mut Map<String, Value>) -> Option<()> {
    let open = source.get("additionalProperties").is_some_and(|more| more != &Value::Bool(false));
    let properties = source.get("properties").and_then(Value::as_object);
    let no_names = properties.is_none_or(Map::is_empty);
    if open || (no_names && source.get("additionalProperties").is_none()) {
        return None;
    }
    let mut named = Map::new();
    for (name, property) in properties.into_iter().flatten() {
        let strict = convert_schema_node(property, depth + 1)?;
        named.insert(name.clone(), if is_required(source, name) { strict } else { allow_null(strict) });
    }
    out.entry("type").or_insert_with(|| json!("object"));
    out.insert("required".to_owned(), named.keys().map(|name| json!(name)).collect());
    out.insert("properties".to_owned(), Value::Object(named));
    out.insert("additionalProperties".to_owned(), json!(false));
    Some(())
}

fn is_required(object: &Map<String, Value>, name: &str) -> bool {
    object.get("required").and_then(Value::as_array).is_some_and(|all| all.iter().any(|one| one == name))
}

fn append_notes_to_description(out: &mut Map<String, Value>, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    let notes = notes.join("; ");
    let text = match out.get("description").and_then(Value::as_str) {
        Some(text) => format!("{text} ({notes})"),
        None => notes,
    };
    out.insert("description".to_owned(), json!(text));
}

fn allow_null(schema: Value) -> Value {
    let Value::Object(mut map) = schema else { return schema };
    let is_listed = map.contains_key("enum") || map.contains_key("const");
    let null = json!("null");
    match map.get_mut("type").filter(|_| !is_listed) {
        Some(kind @ Value::String(_)) if *kind != null => *kind = json!([kind, "null"]),
        Some(Value::String(_)) => {}
        Some(Value::Array(several)) if several.contains(&null) => {}
        Some(Value::Array(several)) => several.push(null),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {
            return allow_null_in_any_of(map);
        }
    }
    Value::Object(map)
}

fn allow_null_in_any_of(mut map: Map<String, Value>) -> Value {
    if let Some(Value::Array(any)) = map.get_mut("anyOf") {
        if !any.iter().any(|one| one["type"] == "null") {
            any.push(json!({"type": "null"}));
        }
        return Value::Object(map);
    }
    let description = map.remove("description");
    let mut out = json!({"anyOf": [map, {"type": "null"}]});
    if let Some(description) = description {
        out["description"] = description;
    }
    out
}

/// Converts an answer from the strict subset to the original schema: null is removed where a property is optional.
pub fn strict_answer_to_original(schema: &Value, value: Value) -> Value {
    remove_optional_nulls(schema, schema, value)
}

fn remove_optional_nulls(root: &Value, schema: &Value, value: Value) -> Value {
    let schema = resolve_reference(root, schema);
    let value = match find_matching_alternative(root, schema, &value) {
        Some(branch) => remove_optional_nulls(root, branch, value),
        None => value,
    };
    match value {
        Value::Array(items) => match schema.get("items") {
            Some(of) => items.into_iter().map(|item| remove_optional_nulls(root, of, item)).collect(),
            None => Value::Array(items),
        },
        Value::Object(fields) => match (schema.get("properties"), schema.as_object()) {
            (Some(Value::Object(properties)), Some(object)) => {
                let retained = fields.into_iter().filter(|(name, field)| {
                    !(field.is_null() && properties.contains_key(name) && !is_required(object, name))
                });
                let inner = retained.map(|(name, field)| match properties.get(&name) {
                    Some(of) => (name, remove_optional_nulls(root, of, field)),
                    None => (name, field),
                });
                Value::Object(inner.collect())
            }
            _ => Value::Object(fields),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// Resolves a reference; chains of references are followed up to a limit.
fn resolve_reference<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let target = |schema: &'a Value| {
        let to = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        root.pointer(to)
    };
    std::iter::successors(Some(schema), |schema| target(schema)).take(8).last().unwrap_or(schema)
}

/// Returns the first alternative that a value may match.
fn find_matching_alternative<'a>(root: &'a Value, schema: &'a Value, value: &Value) -> Option<&'a Value> {
    let branches = ["anyOf", "oneOf", "allOf"].iter().find_map(|word| schema.get(word)?.as_array())?;
    branches
        .iter()
        .map(|branch| resolve_reference(root, branch))
        .find(|branch| value_matches_schema(branch, value))
}

/// Returns `true` if a value matches a schema superficially: its type, its required properties and their constants.
fn value_matches_schema(schema: &Value, value: &Value) -> bool {
    let kinds = match schema.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let typed = kinds.is_empty() || kinds.iter().any(|kind| has_json_type(kind, value));
    let allowed = |schema: &Value, value: &Value| {
        schema.get("const").is_none_or(|only| only == value)
            && schema.get("enum").and_then(Value::as_array).is_none_or(|all| all.contains(value))
    };
    let (Some(fields), Some(properties)) =
        (value.as_object(), schema.get("properties").and_then(Value::as_object))
    else {
        return typed && allowed(schema, value);
    };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let complete = required.filter_map(Value::as_str).all(|name| fields.contains_key(name));
    let are_known_fields = fields.keys().all(|name| properties.contains_key(name));
    let constants =
        properties.iter().all(|(name, of)| fields.get(name).is_none_or(|it| it.is_null() || allowed(of, it)));
    typed && complete && are_known_fields && constants
}

fn has_json_type(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_keeps_optional_properties_and_bounds() {
        let schema = json!({
            "$schema": "x", "type": "object", "additionalProperties": false,
            "properties": {
                "output": {"type": "string", "minLength": 1, "maxLength": 2_000},
                "long": {"type": "string", "maxLength": 2_001, "pattern": "x"},
                "marks": {"type": "array", "maxItems": 8, "items": {"type": "string", "pattern": "^P[0-9]+$"}},
                "pair": {"items": false},
            },
            "required": ["output"],
        });
        let expected = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "output": {"type": "string", "minLength": 1, "maxLength": 2_000},
                "long": {"type": "string"},
                "marks": {"type": "array", "maxItems": 8, "items": {"type": "string", "pattern": "^P[0-9]+$"}},
                "pair": {},
            },
            "required": ["output"],
        });
        assert_eq!(to_grammar_schema(&schema), expected);
    }

    #[test]
    fn optional_properties_become_nullable_and_others_are_forbidden() {
        let schema = json!({
            "$schema": "x", "title": "Answer", "type": "object", "description": "It.",
            "properties": {
                "name": {"type": "string", "minLength": 1, "default": "a"},
                "count": {"type": "integer", "format": "uint32", "minimum": 0, "description": "How many."},
                "when": {"type": "string", "format": "date"},
                "where": {"type": "string", "format": "uri"},
                "kind": {"enum": ["a", "b"]},
                "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
            },
            "required": ["name", "tags"],
        });
        let expected = json!({
            "type": "object", "description": "It.", "additionalProperties": false,
            "required": ["count", "kind", "name", "tags", "when", "where"],
            "properties": {
                "name": {"type": "string", "description": "characters, at least 1"},
                "count": {"type": ["integer", "null"], "description": "How many. (at least 0)"},
                "when": {"type": ["string", "null"], "format": "date"},
                "where": {"type": ["string", "null"], "description": "format: uri"},
                "kind": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "no item twice"},
            },
        });
        let mut strict = to_strict_schema(&schema).unwrap();
        let names = strict["required"].as_array_mut().unwrap();
        names.sort_by_key(ToString::to_string);
        assert_eq!(strict, expected);
    }

    #[test]
    fn alternatives_and_definitions_keep_their_meaning() {
        let schema = json!({
            "type": "object",
            "properties": {
                "next": {"$ref": "#/$defs/node"},
                "either": {"oneOf": [{"const": "x", "description": "one"}, {"type": "object", "properties": {"n": {"type": "number"}}}]},
                "only": {"allOf": [{"$ref": "#/$defs/node"}], "description": "here"},
                "old": {"type": "string", "nullable": true},
            },
            "required": ["either", "only", "old"],
            "$defs": {"node": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
        });
        let strict = to_strict_schema(&schema).unwrap();
        assert_eq!(
            strict["properties"]["next"],
            json!({"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
        );
        assert_eq!(strict["properties"]["either"]["anyOf"][0], json!({"const": "x", "description": "one"}));
        assert_eq!(
            strict["properties"]["either"]["anyOf"][1]["properties"]["n"],
            json!({"type": ["number", "null"]})
        );
        assert_eq!(strict["properties"]["only"], json!({"$ref": "#/$defs/node", "description": "here"}));
        assert_eq!(strict["properties"]["old"], json!({"type": ["string", "null"]}));
        assert_eq!(strict["$defs"]["node"]["additionalProperties"], json!(false));
    }

    #[test]
    fn unsupported_schemas_are_rejected() {
        let within =
            |property: Value| json!({"type": "object", "properties": {"p": property}, "required": ["p"]});
        let mut deep = json!({"type": "string"});
        (0..12).for_each(|_| deep = within(deep.take()));
        let all = [
            json!({"type": "string"}),
            json!({"anyOf": [{"type": "object", "properties": {}}]}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"p": {"type": "string"}}, "additionalProperties": true}),
            within(json!({"type": "object", "additionalProperties": {"type": "string"}})),
            within(json!({"type": "object"})),
            within(json!({"type": "array"})),
            within(json!({"type": "array", "items": true})),
            within(
                json!({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}),
            ),
            within(json!({})),
            within(json!(true)),
            within(json!({"description": "anything"})),
            within(json!({"not": {"type": "string"}})),
            within(json!({"type": "string", "if": {}, "then": {}})),
            within(
                json!({"type": "object", "patternProperties": {"a": {}}, "properties": {"a": {"type": "string"}}}),
            ),
            within(json!({"$ref": "https://example.com/schema"})),
            within(json!({"allOf": [{"type": "string"}, {"minLength": 3}]})),
            deep,
        ];
        for schema in all {
            assert_eq!(to_strict_schema(&schema), None, "{schema}");
        }
    }

    #[test]
    fn nulls_are_removed_for_optional_properties_only() {
        let schema = json!({
            "type": "object",
            "properties": {
                "must": {"type": ["string", "null"]},
                "may": {"type": "string"},
                "list": {"type": "array", "items": {"$ref": "#/$defs/item"}},
                "either": {"oneOf": [
                    {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]},
                    {"type": "object", "properties": {"kind": {"const": "b"}, "x": {"type": ["integer", "null"]}}, "required": ["kind", "x"]},
                ]},
                "any": {},
            },
            "required": ["must"],
            "$defs": {"item": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}},
        });
        let source = json!({
            "must": null, "may": null, "list": [{"a": 1, "b": null}, {"a": null, "b": 2}, null],
            "either": {"kind": "b", "x": null}, "any": {"deep": null}, "unknown": null,
        });
        let expected = json!({
            "must": null, "list": [{"a": 1}, {"a": null, "b": 2}, null],
            "either": {"kind": "b", "x": null}, "any": {"deep": null}, "unknown": null,
        });
        assert_eq!(strict_answer_to_original(&schema, source), expected);
        let other =
            strict_answer_to_original(&schema, json!({"must": "m", "either": {"kind": "a", "x": null}}));
        assert_eq!(other, json!({"must": "m", "either": {"kind": "a"}}));
        let looped = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(strict_answer_to_original(&looped, json!({"x": null})), json!({"x": null}));
    }
}
