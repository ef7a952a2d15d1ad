//! Checks a value against a JSON Schema and says, in words fit for the model that wrote it, what is wrong, where, and
//! what was expected. It owns the texts; what a schema means is the `jsonschema` crate's business. Nothing outside the
//! schema is ever fetched.

use std::sync::{Arc, OnceLock};

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

/// The most mistakes that are named at once.
const MAX_MISTAKES: usize = 5;
/// The most choices of an enumeration that are listed.
const MAX_CHOICES: usize = 20;
/// The most characters of a value or a description that are repeated.
const MAX_QUOTED: usize = 120;

/// Checks a value against a schema.
///
/// # Errors
/// What does not fit: one sentence per mistake, each beginning with the place, at most 5 of them.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    Compiled::default().check(schema, value)
}

/// A schema made ready for checking: on first use, and once for all clones. It follows from the schema, so that it is
/// neither written nor compared.
#[derive(Clone, Default)]
pub struct Compiled(Arc<OnceLock<Option<Validator>>>);

impl Compiled {
    /// As [`check`]; each time with the same schema. A schema that is none itself lets everything through: whoever
    /// takes the value still reads it.
    ///
    /// # Errors
    /// As for [`check`].
    pub fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let Some(validator) = self.0.get_or_init(|| compile(schema)) else {
            return Ok(());
        };
        if validator.is_valid(value) {
            return Ok(());
        }
        let mut mistakes: Vec<String> =
            validator.iter_errors(value).map(|error| told(&error, schema)).collect();
        let more = mistakes.len().saturating_sub(MAX_MISTAKES);
        mistakes.truncate(MAX_MISTAKES);
        if more > 0 {
            mistakes.push(format!("and {more} more"));
        }
        Err(mistakes.join("; "))
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

impl PartialEq for Compiled {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn compile(schema: &Value) -> Option<Validator> {
    // Whoever offers a schema that is none is told when it registers; here what it describes goes unchecked.
    jsonschema::validator_for(schema).ok()
}

/// Makes a value fit where only one thing can be meant: a null that stands for a field left out is taken away, a field
/// that is asked for and left out gets its default, and a whole number written as `3.0` becomes 3.
pub fn straighten(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let required = |name: &str| {
                let all = schema.get("required").and_then(Value::as_array);
                all.is_some_and(|all| all.iter().any(|one| one == name))
            };
            let property = |name: &str| schema.get("properties").and_then(|all| all.get(name));
            fields.retain(|name, value| {
                !value.is_null() || required(name) || property(name).is_none_or(takes_null)
            });
            let all = schema.get("properties").and_then(Value::as_object);
            for (name, property) in all.into_iter().flatten() {
                if let Some(default) = property.get("default").filter(|_| required(name)) {
                    fields.entry(name.clone()).or_insert_with(|| default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(property) = property(name) {
                    straighten(property, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item) = schema.get("items") {
                items.iter_mut().for_each(|value| straighten(item, value));
            }
        }
        Value::Number(number) => {
            if names_type(schema, "integer")
                && !names_type(schema, "number")
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

/// Whether a schema may mean to let null through; when in doubt, it does.
fn takes_null(schema: &Value) -> bool {
    schema.get("type").is_none() || names_type(schema, "null")
}

fn names_type(schema: &Value, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    }
}

/// A mistake in words.
fn told(error: &ValidationError<'_>, schema: &Value) -> String {
    let place = place(error.instance_path().as_str());
    let name = name(&place);
    let value = || quoted_value(error.instance());
    let choices = |options: &[Value]| one_of(&name, options, error.instance());
    match error.kind() {
        ValidationErrorKind::Type { kind } => {
            format!("{name} must be {}, not {}", expected_types(kind), kind_of(error.instance()))
        }
        ValidationErrorKind::Enum { options } => choices(options.as_array().map_or(&[], Vec::as_slice)),
        ValidationErrorKind::Constant { expected_value } => {
            format!("{name} must be {expected_value}, not {}", value())
        }
        ValidationErrorKind::Required { property } => missing(property, &place, parent(error, schema)),
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            let known = parent(error, schema).and_then(|schema| schema.get("properties"));
            let known: Vec<&str> = known
                .and_then(Value::as_object)
                .map_or_else(Vec::new, |all| all.keys().map(String::as_str).collect());
            let told = |field: &String| unknown_field(&cut(&join(&place, field)), field, &known);
            let mut unknown: Vec<String> = unexpected.iter().take(MAX_MISTAKES).map(told).collect();
            if unexpected.len() > MAX_MISTAKES {
                unknown.push(format!("nor are {} more", unexpected.len() - MAX_MISTAKES));
            }
            unknown.join("; ")
        }
        ValidationErrorKind::AnyOf { context }
        | ValidationErrorKind::OneOfNotValid { context }
        | ValidationErrorKind::OneOfMultipleValid { context } => alternatives(error, &name, context, schema),
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
        ValidationErrorKind::Pattern { pattern } => {
            format!("{name} must match the pattern {pattern}, which {} does not", value())
        }
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
            format!("{name} does not fit: {}", cut(&error.masked_with("it").to_string()))
        }
    }
}

/// The schema whose keyword an error is about.
fn parent<'a>(error: &ValidationError<'_>, schema: &'a Value) -> Option<&'a Value> {
    let path = error.schema_path().as_str();
    schema.pointer(path.rsplit_once('/').map_or("", |(parent, _)| parent))
}

fn missing(property: &Value, place: &str, parent: Option<&Value>) -> String {
    let field = property.as_str().unwrap_or_default();
    let name = name(&join(place, field));
    let property = parent.and_then(|schema| schema.get("properties")?.get(field));
    let kind = property.and_then(|property| property.get("type")).and_then(Value::as_str).map(with_article);
    let description =
        property.and_then(|property| property.get("description")).and_then(Value::as_str).map(cut);
    match (kind, description) {
        (Some(kind), Some(description)) => format!("{name} is missing; it must be {kind}: {description}"),
        (Some(kind), None) => format!("{name} is missing; it must be {kind}"),
        (None, Some(description)) => format!("{name} is missing: {description}"),
        (None, None) => format!("{name} is missing"),
    }
}

fn unknown_field(place: &str, field: &str, known: &[&str]) -> String {
    let meant = nearest(field, known.iter().copied()).map(|near| format!("did you mean '{near}'? "));
    let listed: Vec<String> = known.iter().map(|name| format!("'{name}'")).collect();
    let listed = if listed.is_empty() {
        "there are none".to_owned()
    } else {
        format!("known are {}", listed.join(", "))
    };
    format!("{} is not known; {}{listed}", name(place), meant.unwrap_or_default())
}

fn one_of(name: &str, options: &[Value], value: &Value) -> String {
    let meant = value.as_str().and_then(|text| nearest(text, options.iter().filter_map(Value::as_str)));
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

/// A value that fits none of several forms, or too many. Where all of them are single values, these are listed; else the
/// form that comes nearest is the one that was meant.
fn alternatives(
    error: &ValidationError<'_>,
    name: &str,
    context: &[Vec<ValidationError<'static>>],
    schema: &Value,
) -> String {
    let forms = schema.pointer(error.schema_path().as_str()).and_then(Value::as_array);
    let constants: Option<Vec<Value>> =
        forms.and_then(|forms| forms.iter().map(|form| form.get("const").cloned()).collect());
    if let Some(constants) = constants.filter(|all| !all.is_empty()) {
        return one_of(name, &constants, error.instance());
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
                nearest.iter().take(MAX_MISTAKES).map(|inner| told(inner, schema)).collect();
            mistakes.join("; ")
        }
        None => {
            let kinds: Vec<String> =
                failed.iter().flat_map(|branch| branch.iter()).filter_map(type_of).collect();
            format!("{name} must be {}, not {}", kinds.join(" or "), kind_of(error.instance()))
        }
    }
}

fn type_of(error: &ValidationError<'_>) -> Option<String> {
    if let ValidationErrorKind::Type { kind } = error.kind() { Some(expected_types(kind)) } else { None }
}

fn expected_types(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => with_article(one.as_str()),
        TypeKind::Multiple(several) => {
            let mut named: Vec<&str> = several.iter().map(|kind| kind.as_str()).collect();
            named.sort_by_key(|kind| *kind == "null");
            let named: Vec<String> = named.into_iter().map(with_article).collect();
            named.join(" or ")
        }
    }
}

fn kind_of(value: &Value) -> &'static str {
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

/// `free.n` and `tags[1]` for the JSON Pointers `/free/n` and `/tags/1`.
fn place(pointer: &str) -> String {
    pointer.split('/').skip(1).fold(String::new(), |place, part| {
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("{place}[{part}]")
        } else {
            join(&place, &part.replace("~1", "/").replace("~0", "~"))
        }
    })
}

fn name(place: &str) -> String {
    if place.is_empty() { "the whole".to_owned() } else { format!("'{place}'") }
}

fn join(place: &str, field: &str) -> String {
    if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") }
}

fn quoted_value(value: &Value) -> String {
    cut(&value.to_string())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The known name that was probably meant: a third of its letters may be wrong.
#[must_use]
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long texts are no misspelt names, and their distances are dear.
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

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": 5, "description": "What to look for."},
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
    fn each_mistake_is_told_with_its_place_and_what_was_expected() {
        let table = [
            (json!({"query": "x", "limit": 3, "tags": ["a"], "free": {"n": 1}}), ""),
            (json!({"query": "x", "limit": null, "near": null, "form": {"n": 1}}), ""),
            (json!({}), "'query' is missing; it must be a string: What to look for."),
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
            (json!([]), "the whole must be an object, not array"),
            (
                json!({"qury": "x"}),
                "'qury' is not known; did you mean 'query'? known are 'query', 'limit', 'order', 'kind', 'near', \
                 'form', 'tags', 'page', 'code', 'free'; 'query' is missing; it must be a string: What to look for.",
            ),
        ];
        let (schema, compiled) = (schema(), Compiled::default());
        for (value, expected) in table {
            let told = compiled.check(&schema, &value).err().unwrap_or_default();
            // Which of several mistakes comes first is the validator's business.
            let mut sorted: Vec<&str> = told.split("; ").collect();
            let mut wanted: Vec<&str> = expected.split("; ").collect();
            sorted.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(sorted, wanted, "{value}");
        }
    }

    #[test]
    fn of_many_mistakes_the_first_few_are_told_and_the_rest_is_counted() {
        let schema = json!({"type": "array", "items": {"type": "string"}});
        let told = check(&schema, &json!([1, 2, 3, 4, 5, 6, 7])).unwrap_err();
        assert_eq!(told.matches("must be a string").count(), MAX_MISTAKES, "{told}");
        assert!(told.ends_with("and 2 more"), "{told}");
        let fields = (0..2_000).map(|n| (format!("x{n}"), json!(0)));
        let none = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false});
        let told = check(&none, &Value::Object(fields.collect())).unwrap_err();
        assert!(told.ends_with("nor are 1995 more") && told.len() < 400, "{told}");
        let told = check(&none, &json!({"y".repeat(5_000): 0})).unwrap_err();
        assert!(told.len() < 400, "{told}");
        let long = check(&json!({"enum": (0..50).collect::<Vec<_>>()}), &json!("x".repeat(500))).unwrap_err();
        assert!(long.contains("19, and 30 more, not \"xxx") && long.len() < 400, "{long}");
    }

    #[test]
    fn what_can_mean_only_one_thing_is_put_right_and_nothing_else() {
        let schema = schema();
        let mut value =
            json!({"query": null, "limit": null, "page": 3.0, "code": null, "tags": [null], "order": null});
        straighten(&schema, &mut value);
        assert_eq!(value, json!({"query": null, "limit": null, "page": 3, "tags": [null], "order": null}));
        let mut value = json!({"page": 3.5, "limit": 4.0});
        straighten(&schema, &mut value);
        assert_eq!(value, json!({"page": 3.5, "limit": 4}));
        let asked = json!({
            "properties": {"a": {"default": []}, "b": {"default": 1}, "c": {}},
            "required": ["a", "c"]
        });
        let mut value = json!({});
        straighten(&asked, &mut value);
        assert_eq!(value, json!({"a": []}), "only what is asked for and has a default");
    }

    #[test]
    fn a_schema_that_is_none_or_reaches_outside_lets_everything_through() {
        for schema in [json!({"type": "nonsense"}), json!({"$ref": "http://127.0.0.1:1/x.json"})] {
            assert_eq!(check(&schema, &json!({"a": 1})), Ok(()), "{schema}");
        }
    }
}
