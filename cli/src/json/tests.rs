//! The schemas describe what is printed: every field, and no other.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use clap::CommandFactory;
use serde_json::{Map, Value};

use super::output_schema;
use crate::commands::schema;

/// Checks a value against the schema of an object or a command; a field that the schema does not name is a mistake too.
pub fn assert_matches_schema(name: &str, value: &Value) {
    static COMPILED: Mutex<Vec<(String, jsonschema::Validator)>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !compiled.iter().any(|(known, _)| known == name) {
        let mut schema = output_schema(name).unwrap_or_else(|| panic!("{name} has no schema"));
        close_objects(&mut schema, false);
        compiled.push((name.to_owned(), jsonschema::validator_for(&schema).unwrap()));
    }
    let (_, validator) = compiled.iter().find(|(known, _)| known == name).unwrap();
    let mistakes: Vec<String> = validator
        .iter_errors(value)
        .map(|mistake| format!("{}: {mistake}", mistake.instance_path()))
        .collect();
    assert!(mistakes.is_empty(), "{mistakes:#?} in {value:#}");
}

/// Compares a text with a golden file of this package; `UPDATE_GOLDEN=1` rewrites it.
#[track_caller]
pub fn assert_golden(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&file, text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap();
    for (number, (should, is)) in golden.lines().zip(text.lines()).enumerate() {
        assert_eq!(is, should, "{path}:{}", number + 1);
    }
    assert_eq!(text.len(), golden.len(), "{path} ends differently");
}

/// Each schema, with the definitions that several of them share only once. Those of the API are in its golden file.
#[test]
fn printed_schemas_are_as_reviewed() {
    let api = schema::schema_of("api");
    let mut definitions = Map::new();
    let mut schemas = Map::new();
    for name in schema::NAMES.iter().filter(|name| **name != "api") {
        let text = schema::schema_of(name).to_string().replace("#/$defs/", "#/components/schemas/");
        let mut schema: Value = serde_json::from_str(&text).unwrap();
        if let Some(Value::Object(own)) = schema.as_object_mut().and_then(|fields| fields.remove("$defs")) {
            for (key, definition) in own {
                if api["components"]["schemas"][&key] == definition {
                    continue;
                }
                let shared = definitions.get(&key).is_none_or(|other| *other == definition);
                definitions.insert(if shared { key } else { format!("{key} of {name}") }, definition);
            }
        }
        schemas.insert((*name).to_owned(), schema);
    }
    let golden = serde_json::json!({"definitions": definitions, "schemas": schemas});
    assert_golden("src/json/schemas.json", &format!("{golden:#}\n"));
}

/// Allows no field without a description. Parts of an object that is described in several places are left open.
fn close_objects(schema: &mut Value, is_part: bool) {
    match schema {
        Value::Object(fields) => {
            // Its field `answered` is not part of the form that models fill in.
            if fields.get("title").is_some_and(|title| title == "TaskResult") {
                return;
            }
            let is_whole = fields.contains_key("properties");
            if is_whole && !is_part && !fields.contains_key("additionalProperties") {
                fields.insert("unevaluatedProperties".into(), false.into());
            }
            for (name, inner) in fields.iter_mut() {
                let is_part = is_whole && ["oneOf", "anyOf", "allOf"].contains(&name.as_str());
                match inner.as_array_mut() {
                    Some(parts) => parts.iter_mut().for_each(|part| close_objects(part, is_part)),
                    None => close_objects(inner, false),
                }
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| close_objects(part, is_part)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_command_prints_json_and_has_a_schema() {
    let cli = crate::Cli::command();
    // The processes of a cluster log; `schema` prints JSON only, those of `mcp` and `acp` are their
    // protocols', and that of `trace --otlp` OTLP's.
    let without = [
        "supervisor",
        "worker",
        "critic",
        "metrics",
        "serve",
        "mcp",
        "acp",
        "schema",
        "trace",
        "completions",
        "man",
        "help",
    ];
    let commands: BTreeSet<&str> = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(clap::Command::get_name)
        .filter(|name| !without.contains(name))
        .collect();
    for name in &commands {
        let command = cli.find_subcommand(name).unwrap();
        let has_json = |command: &clap::Command| command.get_arguments().any(|one| one.get_id() == "json");
        assert!(has_json(command), "millrace {name} has no --json");
        assert!(command.get_subcommands().all(has_json), "a subcommand of millrace {name} has no --json");
        assert!(output_schema(name).is_some(), "millrace {name} has no schema");
        assert!(schema::NAMES.contains(name), "millrace schema does not know {name}");
    }
    for name in schema::NAMES.iter().filter(|name| !schema::FILES.contains(name)) {
        assert!(output_schema(name).is_some(), "{name}");
    }
}

#[test]
fn schemas_use_snake_case_and_describe_times() {
    fn names(schema: &Value, into: &mut BTreeSet<String>) {
        match schema {
            Value::Object(fields) => {
                if let Some(Value::Object(properties)) = fields.get("properties") {
                    into.extend(properties.keys().cloned());
                }
                fields.values().for_each(|inner| names(inner, into));
            }
            Value::Array(parts) => parts.iter().for_each(|part| names(part, into)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut all = BTreeSet::new();
    for name in schema::NAMES.iter().filter(|name| !schema::FILES.contains(name)) {
        names(&output_schema(name).unwrap(), &mut all);
    }
    let is_snake_case =
        |name: &String| name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit());
    assert!(all.iter().all(is_snake_case), "{all:?}");
    assert!(!all.iter().any(|name| name.starts_with("is_")), "{all:?}");
    let list = output_schema("list").unwrap();
    assert!(list.to_string().contains(r##""$ref":"#/$defs/Time""##), "{list:#}");
    assert!(list.to_string().contains("date-time"));
}
