//! The conditions under which a task starts: `not_before` and `wait_for_event`.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::plan::{PlanTime, StartEvent, StartEventExpiry, StartExpiryAction};
use millrace_protocol::time_text::parse_timestamp_within_a_year;
use millrace_strict_yaml::{FileDescription, MappingFields, YamlMistake, YamlNode, YamlValue};
use serde_json::{Value, json};

/// The fields of `wait_for_event`.
const EVENT: [&str; 3] = ["name", "until", "on_expiry"];
/// The names of the variants of [`StartExpiryAction`], in order.
const ON_EXPIRY: [&str; 2] = ["start", "fail_task"];

/// Reads a time: a timestamp, or a duration from the start of the run.
pub(super) fn parse_time(node: &YamlNode, name: &str) -> Result<PlanTime, YamlMistake> {
    let expected = "a time with its offset, such as 2026-12-01T09:00:00Z, or a duration from the start of the run, such as \"2h 30m\"";
    if let Ok(after) = node.parse_duration(name) {
        return Ok(PlanTime::AfterStart(after));
    }
    let YamlValue::Text(text) = &node.value else { return Err(node.mismatch_error(name, expected)) };
    let at = parse_timestamp_within_a_year(text, Timestamp::now());
    at.map(PlanTime::At).map_err(|why| node.mismatch_error(name, &format!("{expected} ({why})")))
}

/// Reads an event: its name, or a map with the time at which the wait for it ends.
pub(super) fn parse_event(node: &YamlNode) -> Result<Box<StartEvent>, YamlMistake> {
    if let YamlValue::Text(name) = &node.value {
        return Ok(Box::new(StartEvent { name: name.clone(), expiry: None }));
    }
    let fields = MappingFields::from_node(node, "wait_for_event", &EVENT)?;
    let name = fields.require_field("name")?.parse_text("name")?.to_owned();
    let expiry = match (fields.find_field("until"), fields.find_field("on_expiry")) {
        (None, None) => None,
        (Some(until), Some(action)) => {
            Some(StartEventExpiry { until: parse_time(until, "until")?, action: parse_action(action)? })
        }
        (Some(until), None) => {
            let text =
                "\"until\" needs \"on_expiry\": start or fail_task, for a task whose event does not come";
            return Err(YamlMistake::at_position(until.position, text));
        }
        (None, Some(action)) => {
            let text = "\"on_expiry\" needs \"until\", the time at which the wait ends";
            return Err(YamlMistake::at_position(action.position, text));
        }
    };
    Ok(Box::new(StartEvent { name, expiry }))
}

fn parse_action(node: &YamlNode) -> Result<StartExpiryAction, YamlMistake> {
    Ok(match node.index_of_choice("on_expiry", &ON_EXPIRY)? {
        0 => StartExpiryAction::Start,
        _ => StartExpiryAction::FailTask,
    })
}

/// Parses a time from the command line, in the format of a plan file; `none` removes it.
///
/// # Errors
/// It is not a time.
pub fn parse_not_before(text: &str) -> Result<PlanTime, YamlMistake> {
    if text == "none" {
        return Ok(PlanTime::AfterStart(Duration::ZERO));
    }
    let kind = FileDescription { name: "time", holds: "a time or a duration" };
    parse_time(&millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?, "the time")
}

/// Parses an event from the command line, in the format of a plan file; `none` removes it.
///
/// # Errors
/// It is not an event.
pub fn parse_start_event(text: &str) -> Result<Box<StartEvent>, YamlMistake> {
    if text == "none" {
        return Ok(Box::new(StartEvent { name: String::new(), expiry: None }));
    }
    let kind = FileDescription { name: "event", holds: "name, until and on_expiry" };
    parse_event(&millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?)
}

pub(super) fn time_schema(description: &str) -> Value {
    json!({
        "description": description,
        "anyOf": [
            { "type": "string", "format": "date-time", "examples": ["2026-12-01T09:00:00Z"] },
            { "type": "string", "description": "A duration from the start of the run.", "examples": ["90s", "2h 30m"] },
            { "type": "number", "minimum": 0, "description": "Seconds after the start of the run." },
        ],
    })
}

pub(super) fn event_schema(description: &str) -> Value {
    json!({
        "description": description,
        "anyOf": [
            { "type": "string", "minLength": 1, "description": "The name of the event." },
            {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "minLength": 1, "description": "The name of the event." },
                    "until": time_schema("The time at which the wait ends without the event."),
                    "on_expiry": {
                        "description": "The consequence for a task whose event was not signalled in time: it starts without it, or fails.",
                        "enum": ON_EXPIRY,
                    },
                },
                "required": ["name"],
                "dependentRequired": { "until": ["on_expiry"], "on_expiry": ["until"] },
                "additionalProperties": false,
            },
        ],
    })
}
