//! Validates a value against a JSON Schema. Errors are written for the model that produced the value: the mistake, its
//! place, and the expected value. The `jsonschema` crate interprets the schema; nothing outside the schema is fetched.

use std::sync::{Arc, OnceLock};

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use crate::schema_cost::SchemaCost;

/// The maximum number of mistakes in one error.
const MAX_MISTAKES: usize = 5;
/// The maximum number of listed choices of an enumeration.
const MAX_CHOICES: usize = 20;
/// The maximum number of quoted characters of a value or a description.
const MAX_QUOTED: usize = 120;

/// Validates a value against a schema.
/// Errors: the mistakes: one sentence each, beginning with the place; at most 5.
pub fn check_value_against_schema(schema: &Value, value: &Value) -> Result<(), String> {
    CompiledSchema::default().check_value(schema, value)
}

/// A schema that is compiled on first use, once for all clones. Derived from the schema, so it is neither serialised nor
/// compared.
#[derive(Clone, Default)]
pub struct CompiledSchema(Arc<OnceLock<Option<BoundedValidator>>>);

/// A validator and the bound of its time.
struct BoundedValidator {
    validator: Validator,
    cost: SchemaCost,
}

impl CompiledSchema {
    /// Like [`check_value_against_schema`]; always call it with the same schema. An invalid schema accepts every value, and one that would take
    /// exponential time too: the code that uses the value still checks it.
    /// Errors: As for [`check_value_against_schema`].
    pub fn check_value(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let Some(BoundedValidator { validator, cost }) = self.0.get_or_init(|| compile_validator(schema))
        else {
            return Ok(());
        };
        if !cost.is_affordable_for(value) || validator.is_valid(value) {
            return Ok(());
        }
        let mut mistakes: Vec<String> =
            validator.iter_errors(value).map(|error| describe_mistake(&error, schema)).collect();
        let more = mistakes.len().saturating_sub(MAX_MISTAKES);
        mistakes.truncate(MAX_MISTAKES);
        if more > 0 {
            mistakes.push(format!("and {more} more"));
        }
        Err(mistakes.join("; "))
    }
}

impl std::fmt::Debug for CompiledSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompiledSchema")
    }
}

impl PartialEq for CompiledSchema {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn compile_validator(schema: &Value) -> Option<BoundedValidator> {
    // Registration reports an invalid schema; here its values are accepted.
    let cost = SchemaCost::estimate(schema)?;
    Some(BoundedValidator { validator: jsonschema::validator_for(schema).ok()?, cost })
}

/// Corrects a value where only one meaning is possible: removes a null for an optional field, fills in the default of a
/// missing required field, and turns a whole number written as `3.0` into 3.
pub fn convert_unambiguous_values(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let required = |name: &str| {
                let all = schema.get("required").and_then(Value::as_array);
                all.is_some_and(|all| all.iter().any(|one| one == name))
            };
            let property = |name: &str| schema.get("properties").and_then(|all| all.get(name));
            fields.retain(|name, value| {
                !value.is_null() || required(name) || property(name).is_none_or(accepts_null)
            });
            let all = schema.get("properties").and_then(Value::as_object);
            for (name, property) in all.into_iter().flatten() {
                if let Some(default) = property.get("default").filter(|_| required(name)) {
                    fields.entry(name.clone()).or_insert_with(|| default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(property) = property(name) {
                    convert_unambiguous_values(property, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item) = schema.get("items") {
                items.iter_mut().for_each(|value| convert_unambiguous_values(item, value));
            }
        }
        Value::Number(number) => {
            if allows_type(schema, "integer")
                && !allows_type(schema, "number")
                && let Some(whole) =
                    number.as_f64().filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < 9e15)
            {
                #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
                let whole = whole as i64;
                *value = whole.into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// `true` if a schema may accept null; `true` when in doubt.
fn accepts_null(schema: &Value) -> bool {
    schema.get("type").is_none() || allows_type(schema, "null")
}

fn allows_type(schema: &Value, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    }
}

/// Describes a mistake.
fn describe_mistake(error: &ValidationError<'_>, schema: &Value) -> String {
    let place = place_from_pointer(error.instance_path().as_str());
    let name = quote_place(&place);
    let value = || quoted_value(error.instance());
    let choices = |options: &[Value]| describe_allowed_values(&name, options, error.instance());
    match error.kind() {
        ValidationErrorKind::Type { kind } => {
            let expected = describe_expected_types(kind);
            format!("{name} must be {expected}, not {}", json_type_name(error.instance()))
        }
        ValidationErrorKind::Enum { options } => choices(options.as_array().map_or(&[], Vec::as_slice)),
        ValidationErrorKind::Constant { expected_value } => {
            format!("{name} must be {expected_value}, not {}", value())
        }
        ValidationErrorKind::Required { property } => {
            describe_missing_field(property, &place, find_parent_schema(error, schema))
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            describe_unknown_fields(unexpected, &place, find_parent_schema(error, schema))
        }
        ValidationErrorKind::AnyOf { context }
        | ValidationErrorKind::OneOfNotValid { context }
        | ValidationErrorKind::OneOfMultipleValid { context } => {
            describe_alternatives(error, &name, context, schema)
        }
        ValidationErrorKind::Pattern { pattern } => {
            format!("{name} must match the pattern {pattern}, which {} does not", value())
        }
        ValidationErrorKind::Minimum { .. }
        | ValidationErrorKind::Maximum { .. }
        | ValidationErrorKind::ExclusiveMinimum { .. }
        | ValidationErrorKind::ExclusiveMaximum { .. }
        | ValidationErrorKind::MinLength { .. }
        | ValidationErrorKind::MaxLength { .. }
        | ValidationErrorKind::MinItems { .. }
        | ValidationErrorKind::MaxItems { .. } => describe_limit(error, &name),
        ValidationErrorKind::AdditionalItems { .. }
        | ValidationErrorKind::BacktrackLimitExceeded { .. }
        | ValidationErrorKind::RegexEngineFailure { .. }
        | ValidationErrorKind::Contains
        | ValidationErrorKind::ContentEncoding { .. }
        | ValidationErrorKind::ContentMediaType { .. }
        | ValidationErrorKind::Custom { .. }
        | ValidationErrorKind::FalseSchema
        | ValidationErrorKind::Format { .. }
        | ValidationErrorKind::FromUtf8 { .. }
        | ValidationErrorKind::MaxProperties { .. }
        | ValidationErrorKind::MinProperties { .. }
        | ValidationErrorKind::MultipleOf { .. }
        | ValidationErrorKind::Not { .. }
        | ValidationErrorKind::PropertyNames { .. }
        | ValidationErrorKind::UnevaluatedItems { .. }
        | ValidationErrorKind::UniqueItems
        | ValidationErrorKind::Referencing(_) => {
            format!("{name} does not fit: {}", truncate_quote(&error.masked_with("it").to_string()))
        }
    }
}

/// Describes a value that is too small or too large.
#[expect(clippy::wildcard_enum_match_arm, reason = "only the kinds with limits come here")]
fn describe_limit(error: &ValidationError<'_>, name: &str) -> String {
    let value = || quoted_value(error.instance());
    match error.kind() {
        ValidationErrorKind::Minimum { limit } => format!("{name} must be at least {limit}, not {}", value()),
        ValidationErrorKind::Maximum { limit } => format!("{name} must be at most {limit}, not {}", value()),
        ValidationErrorKind::ExclusiveMinimum { limit } => {
            format!("{name} must be more than {limit}, not {}", value())
        }
        ValidationErrorKind::ExclusiveMaximum { limit } => {
            format!("{name} must be less than {limit}, not {}", value())
        }
        ValidationErrorKind::MinLength { limit } => format!("{name} must have at least {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => {
            let length = error.instance().as_str().map_or(0, |text| text.chars().count());
            format!("{name} must have at most {limit} characters, not {length}")
        }
        ValidationErrorKind::MinItems { limit } => format!("{name} must have at least {limit} items"),
        ValidationErrorKind::MaxItems { limit } => {
            let length = error.instance().as_array().map_or(0, Vec::len);
            format!("{name} must have at most {limit} items, not {length}")
        }
        _ => format!("{name} does not fit"),
    }
}

/// Returns the schema that contains the failed keyword.
fn find_parent_schema<'a>(error: &ValidationError<'_>, schema: &'a Value) -> Option<&'a Value> {
    let path = error.schema_path().as_str();
    schema.pointer(path.rsplit_once('/').map_or("", |(parent, _)| parent))
}

fn describe_unknown_fields(unexpected: &[String], place: &str, parent: Option<&Value>) -> String {
    let fields = parent.and_then(|schema| schema.get("properties"));
    let fields: Vec<&str> = fields
        .and_then(Value::as_object)
        .map_or_else(Vec::new, |all| all.keys().map(String::as_str).collect());
    let describe = |field: &String| {
        describe_unknown_field(&truncate_quote(&append_field_to_place(place, field)), field, &fields)
    };
    let mut unknown: Vec<String> = unexpected.iter().take(MAX_MISTAKES).map(describe).collect();
    if unexpected.len() > MAX_MISTAKES {
        unknown.push(format!("{} more unknown fields", unexpected.len() - MAX_MISTAKES));
    }
    unknown.join("; ")
}

fn describe_missing_field(property: &Value, place: &str, parent: Option<&Value>) -> String {
    let field = property.as_str().unwrap_or_default();
    let name = quote_place(&append_field_to_place(place, field));
    let property = parent.and_then(|schema| schema.get("properties")?.get(field));
    let kind = property.and_then(|property| property.get("type")).and_then(Value::as_str).map(add_article);
    let description =
        property.and_then(|property| property.get("description")).and_then(Value::as_str).map(truncate_quote);
    match (kind, description) {
        (Some(kind), Some(description)) => format!("{name} is missing; it must be {kind}: {description}"),
        (Some(kind), None) => format!("{name} is missing; it must be {kind}"),
        (None, Some(description)) => format!("{name} is missing: {description}"),
        (None, None) => format!("{name} is missing"),
    }
}

fn describe_unknown_field(place: &str, field: &str, known: &[&str]) -> String {
    let meant =
        find_nearest_name(field, known.iter().copied()).map(|near| format!("did you mean '{near}'? "));
    let listed: Vec<String> = known.iter().map(|name| format!("'{name}'")).collect();
    let listed = if listed.is_empty() {
        "no fields are allowed".to_owned()
    } else {
        format!("known fields: {}", listed.join(", "))
    };
    format!("{} is unknown; {}{listed}", quote_place(place), meant.unwrap_or_default())
}

fn describe_allowed_values(name: &str, options: &[Value], value: &Value) -> String {
    let meant =
        value.as_str().and_then(|text| find_nearest_name(text, options.iter().filter_map(Value::as_str)));
    let meant = meant.map(|near| format!("; did you mean {}?", Value::from(near)));
    let mut listed: Vec<String> = options.iter().take(MAX_CHOICES).map(quoted_value).collect();
    if options.len() > MAX_CHOICES {
        listed.push(format!("and {} more", options.len() - MAX_CHOICES));
    }
    format!(
        "{name} must be one of {}, not {}{}",
        listed.join(", "),
        quoted_value(value),
        meant.unwrap_or_default()
    )
}

/// Describes a value that matches none of several forms, or too many. If all forms are constants, it lists them;
/// otherwise it describes the mistakes in the form with the best match.
fn describe_alternatives(
    error: &ValidationError<'_>,
    name: &str,
    context: &[Vec<ValidationError<'static>>],
    schema: &Value,
) -> String {
    let forms = schema.pointer(error.schema_path().as_str()).and_then(Value::as_array);
    let constants: Option<Vec<Value>> =
        forms.and_then(|forms| forms.iter().map(|form| form.get("const").cloned()).collect());
    if let Some(constants) = constants.filter(|all| !all.is_empty()) {
        return describe_allowed_values(name, &constants, error.instance());
    }
    let mistyped = |branch: &&Vec<ValidationError<'static>>| {
        branch.iter().any(|inner| {
            matches!(inner.kind(), ValidationErrorKind::Type { .. })
                && inner.instance_path().as_str() == error.instance_path().as_str()
        })
    };
    let failed: Vec<&Vec<ValidationError<'static>>> =
        context.iter().filter(|branch| !branch.is_empty()).collect();
    if failed.is_empty() {
        return format!("{name} fits more than one of its {} forms", context.len());
    }
    match failed.iter().filter(|branch| !mistyped(branch)).min_by_key(|branch| branch.len()) {
        Some(nearest) => {
            let mistakes: Vec<String> =
                nearest.iter().take(MAX_MISTAKES).map(|inner| describe_mistake(inner, schema)).collect();
            mistakes.join("; ")
        }
        None => {
            let kinds: Vec<String> =
                failed.iter().flat_map(|branch| branch.iter()).filter_map(expected_type_of).collect();
            format!("{name} must be {}, not {}", kinds.join(" or "), json_type_name(error.instance()))
        }
    }
}

fn expected_type_of(error: &ValidationError<'_>) -> Option<String> {
    if let ValidationErrorKind::Type { kind } = error.kind() {
        Some(describe_expected_types(kind))
    } else {
        None
    }
}

fn describe_expected_types(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => add_article(one.as_str()),
        TypeKind::Multiple(several) => {
            let mut named: Vec<&str> = several.iter().map(|kind| kind.as_str()).collect();
            named.sort_by_key(|kind| *kind == "null");
            let named: Vec<String> = named.into_iter().map(add_article).collect();
            named.join(" or ")
        }
    }
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn add_article(kind: &str) -> String {
    match kind {
        "null" => kind.to_owned(),
        "integer" | "array" | "object" => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}

/// Converts a JSON Pointer to a place: `/free/n` to `free.n`, `/tags/1` to `tags[1]`.
fn place_from_pointer(pointer: &str) -> String {
    pointer.split('/').skip(1).fold(String::new(), |place, part| {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("{place}[{part}]")
        } else {
            append_field_to_place(&place, &part.replace("~1", "/").replace("~0", "~"))
        }
    })
}

fn quote_place(place: &str) -> String {
    if place.is_empty() { "the value".to_owned() } else { format!("'{place}'") }
}

fn append_field_to_place(place: &str, field: &str) -> String {
    if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") }
}

fn quoted_value(value: &Value) -> String {
    truncate_quote(&value.to_string())
}

fn truncate_quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Returns the known name that was probably meant: up to a third of its letters may differ.
#[must_use]
pub fn find_nearest_name<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long texts are not misspelt names, and their edit distance is expensive.
    if unknown.len() > 100 {
        return None;
    }
    let unknown = unknown.to_lowercase();
    let near = known.into_iter().filter(|name| name.len() <= 100);
    let near = near.map(|name| (strsim::osa_distance(&unknown, &name.to_lowercase()), name)).min()?;
    let length = near.1.chars().count();
    (near.0 <= length.max(3) / 3 && near.0 < length).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn test_schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": 5, "description": "The search text."},
                "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 20},
                "order": {"enum": ["best", "first"]},
                "kind": {"oneOf": [{"const": "a"}, {"const": "b"}]},
                "near": {"anyOf": [{"enum": ["left", "right"]}, {"type": "null"}]},
                "form": {"anyOf": [
                    {"type": "string"},
                    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
                ]},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                "page": {"type": "integer"},
                "code": {"type": "string", "pattern": "^[a-z]+$"},
                "free": {"type": "object", "additionalProperties": {"type": "integer"}}
            },
            "required": ["query"],
            "additionalProperties": false
        })
    }

    #[test]
    fn schemas_that_double_are_not_applied() {
        let mut definitions = serde_json::Map::new();
        for number in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", number + 1)});
            definitions.insert(format!("d{number}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d40".into(), json!({"type": "object"}));
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
        assert_eq!(check_value_against_schema(&schema, &json!({})), Ok(()));
        assert_eq!(check_value_against_schema(&schema, &json!(3)), Ok(()), "not applied");
    }

    #[test]
    fn each_mistake_names_its_place_and_the_expected_value() {
        let table = [
            (json!({"query": "x", "limit": 3, "tags": ["a"], "free": {"n": 1}}), ""),
            (json!({"query": "x", "limit": null, "near": null, "form": {"n": 1}}), ""),
            (json!({}), "'query' is missing; it must be a string: The search text."),
            (json!({"query": ""}), "'query' must have at least 1 characters"),
            (json!({"query": "123456"}), "'query' must have at most 5 characters, not 6"),
            (json!({"query": 3}), "'query' must be a string, not number"),
            (json!({"query": "x", "limit": 2.5}), "'limit' must be an integer or null, not number"),
            (json!({"query": "x", "limit": 21}), "'limit' must be at most 20, not 21"),
            (json!({"query": "x", "limit": 0}), "'limit' must be at least 1, not 0"),
            (
                json!({"query": "x", "order": "worst"}),
                r#"'order' must be one of "best", "first", not "worst""#,
            ),
            (
                json!({"query": "x", "order": "frist"}),
                r#"'order' must be one of "best", "first", not "frist"; did you mean "first"?"#,
            ),
            (json!({"query": "x", "kind": "c"}), r#"'kind' must be one of "a", "b", not "c""#),
            (json!({"query": "x", "near": "up"}), r#"'near' must be one of "left", "right", not "up""#),
            (json!({"query": "x", "form": 1}), "'form' must be a string or an object, not number"),
            (json!({"query": "x", "form": {}}), "'form.n' is missing; it must be an integer"),
            (json!({"query": "x", "tags": ["a", 1]}), "'tags[1]' must be a string, not number"),
            (json!({"query": "x", "tags": ["a", "b", "c"]}), "'tags' must have at most 2 items, not 3"),
            (
                json!({"query": "x", "code": "A1"}),
                r#"'code' must match the pattern ^[a-z]+$, which "A1" does not"#,
            ),
            (json!({"query": "x", "free": {"n": "1"}}), "'free.n' must be an integer, not string"),
            (json!([]), "the value must be an object, not array"),
            (
                json!({"qury": "x"}),
                "'qury' is unknown; did you mean 'query'? known fields: 'query', 'limit', 'order', 'kind', 'near', \
                 'form', 'tags', 'page', 'code', 'free'; 'query' is missing; it must be a string: The search text.",
            ),
        ];
        let (schema, compiled) = (test_schema(), CompiledSchema::default());
        for (value, expected) in table {
            let error = compiled.check_value(&schema, &value).err().unwrap_or_default();
            // The validator chooses the order of mistakes.
            let mut sorted: Vec<&str> = error.split("; ").collect();
            let mut expected: Vec<&str> = expected.split("; ").collect();
            sorted.sort_unstable();
            expected.sort_unstable();
            assert_eq!(sorted, expected, "{value}");
        }
    }

    #[test]
    fn first_mistakes_are_listed_and_the_rest_counted() {
        let schema = json!({"type": "array", "items": {"type": "string"}});
        let error = check_value_against_schema(&schema, &json!([1, 2, 3, 4, 5, 6, 7])).unwrap_err();
        assert_eq!(error.matches("must be a string").count(), MAX_MISTAKES, "{error}");
        assert!(error.ends_with("and 2 more"), "{error}");
        let fields = (0..2_000).map(|n| (format!("x{n}"), json!(0)));
        let none = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false});
        let error = check_value_against_schema(&none, &Value::Object(fields.collect())).unwrap_err();
        assert!(error.ends_with("1995 more unknown fields") && error.len() < 400, "{error}");
        let error = check_value_against_schema(&none, &json!({"y".repeat(5_000): 0})).unwrap_err();
        assert!(error.len() < 400, "{error}");
        let long = check_value_against_schema(
            &json!({"enum": (0..50).collect::<Vec<_>>()}),
            &json!("x".repeat(500)),
        )
        .unwrap_err();
        assert!(long.contains("19, and 30 more, not \"xxx") && long.len() < 400, "{long}");
    }

    #[test]
    fn only_unambiguous_values_are_corrected() {
        let schema = test_schema();
        let mut value =
            json!({"query": null, "limit": null, "page": 3.0, "code": null, "tags": [null], "order": null});
        convert_unambiguous_values(&schema, &mut value);
        assert_eq!(value, json!({"query": null, "limit": null, "page": 3, "tags": [null], "order": null}));
        let mut value = json!({"page": 3.5, "limit": 4.0});
        convert_unambiguous_values(&schema, &mut value);
        assert_eq!(value, json!({"page": 3.5, "limit": 4}));
        let schema = json!({
            "properties": {"a": {"default": []}, "b": {"default": 1}, "c": {}},
            "required": ["a", "c"]
        });
        let mut value = json!({});
        convert_unambiguous_values(&schema, &mut value);
        assert_eq!(value, json!({"a": []}), "only required fields get their default");
    }

    #[test]
    fn invalid_or_remote_schema_accepts_every_value() {
        for schema in [json!({"type": "nonsense"}), json!({"$ref": "http://127.0.0.1:1/x.json"})] {
            assert_eq!(check_value_against_schema(&schema, &json!({"a": 1})), Ok(()), "{schema}");
        }
    }
}
