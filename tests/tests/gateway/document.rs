//! Checks answers against the description of the API.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use serde_json::{Value, json};

use super::http::{Answer, Request};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../gateway/openapi.json")).expect("the description is JSON")
});

/// Checks that an answer is one that the description has for its request.
///
/// # Panics
/// It is not.
pub fn assert_described(request: &Request, answer: &Answer) {
    let path = request.path.split('?').next().unwrap_or_default();
    let item = DOCUMENT["paths"].as_object().expect("paths").iter().find(|(template, item)| {
        matches_template(template, path) && item.get(request.method.to_lowercase()).is_some()
    });
    let place = format!("{} {} {}: {}", request.method, request.path, answer.status, answer.text());
    let Some((_, item)) = item else {
        assert!([404, 405].contains(&answer.status), "the description lacks {place}");
        return assert_valid("Problem", &answer.json());
    };
    let responses = &item[request.method.to_lowercase()]["responses"];
    let response = responses.get(answer.status.to_string()).unwrap_or(&responses["default"]);
    let media_type = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
    let Some(content) = response.get("content") else {
        return assert!(answer.body.is_empty(), "{place}");
    };
    let schema = &content
        .get(media_type)
        .unwrap_or_else(|| panic!("{media_type:?} is not described: {place}"))["schema"];
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        assert_valid(name, &answer.json());
    }
}

fn matches_template(template: &str, path: &str) -> bool {
    let (mut parts, mut given) = (template.split('/'), path.split('/').collect::<Vec<_>>().into_iter());
    loop {
        match (parts.next(), given.next()) {
            (None, None) => return true,
            (Some("{question}" | "{path}"), Some(_)) => return true,
            (Some(part), Some(text)) if part == text || (part.starts_with('{') && !text.is_empty()) => {}
            (_, _) => return false,
        }
    }
}

/// Checks a value against a schema of the description.
///
/// # Panics
/// It is not valid.
pub fn assert_valid(name: &str, value: &Value) {
    static COMPILED: Mutex<BTreeMap<String, jsonschema::Validator>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let validator = compiled.entry(name.to_owned()).or_insert_with(|| {
        let schema =
            json!({ "$ref": format!("#/components/schemas/{name}"), "components": DOCUMENT["components"] });
        jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{name}: {error}"))
    });
    let mistakes: Vec<String> = validator
        .iter_errors(value)
        .map(|mistake| format!("{}: {mistake}", mistake.instance_path()))
        .collect();
    assert!(mistakes.is_empty(), "no {name}: {mistakes:#?} in {value:#}");
}
