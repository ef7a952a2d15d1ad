//! The conditions under which a task starts: `not_before` and `wait_for_event`.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::plan::{PlanTime, StartEvent, StartEventExpiry, StartExpiryAction};
use millrace_protocol::time_text::parse_timestamp_within_a_year;
use millrace_strict_yaml::{
    FileDescription, ValueMistake, YamlMistakes, YamlNode, deserialize_field, tidy_schema,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// The notation of a [`PlanTime`]: a timestamp, or a duration from the start of the run.
#[derive(Deserialize)]
#[serde(try_from = "YamlNode")]
pub(super) struct FileTime(pub PlanTime);

impl TryFrom<YamlNode> for FileTime {
    type Error = ValueMistake;

    fn try_from(node: YamlNode) -> Result<Self, ValueMistake> {
        let expected = "a time with its offset, such as 2026-12-01T09:00:00Z, or a duration from the start of the run, such as \"2h 30m\"";
        if let Some(after) = node.to_duration() {
            return Ok(Self(PlanTime::AfterStart(after)));
        }
        let Some(text) = node.as_text() else { return Err(node.mismatch(expected)) };
        let at = parse_timestamp_within_a_year(text, Timestamp::now());
        at.map(PlanTime::At).map(Self).map_err(|why| node.mismatch(&format!("{expected} ({why})")))
    }
}

impl JsonSchema for FileTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FileTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "format": "date-time", "examples": ["2026-12-01T09:00:00Z"] },
                { "type": "string", "description": "A duration from the start of the run.", "examples": ["90s", "2h 30m"] },
                { "type": "number", "minimum": 0, "description": "Seconds after the start of the run." },
            ],
        })
    }
}

/// The notations of a [`StartEvent`]: its name, or a map with the time at which the wait for it ends.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "the name of an event, or a map of name, until and on_expiry", rename_all = "lowercase")]
#[schemars(untagged, inline)]
pub(super) enum EventForm {
    Text(#[schemars(length(min = 1), extend("description" = "The name of the event."))] String),
    Map(EventFields),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "wait_for_event", deny_unknown_fields)]
#[schemars(inline, transform = tidy_schema)]
#[schemars(extend("dependentRequired" = { "until": ["on_expiry"], "on_expiry": ["until"] }))]
pub(super) struct EventFields {
    /// The name of the event.
    #[schemars(length(min = 1))]
    name: String,
    /// The time at which the wait ends without the event.
    until: Option<FileTime>,
    /// The consequence for a task whose event was not signalled in time: it starts without it, or fails.
    on_expiry: Option<StartExpiryAction>,
}

impl TryFrom<EventForm> for Box<StartEvent> {
    type Error = ValueMistake;

    fn try_from(form: EventForm) -> Result<Self, ValueMistake> {
        let EventFields { name, until, on_expiry } = match form {
            EventForm::Text(name) => EventFields { name, until: None, on_expiry: None },
            EventForm::Map(fields) => fields,
        };
        let expiry = match (until, on_expiry) {
            (None, None) => None,
            (Some(FileTime(until)), Some(action)) => Some(StartEventExpiry { until, action }),
            (Some(_), None) => {
                let text =
                    "\"until\" needs \"on_expiry\": start or fail_task, for a task whose event does not come";
                return Err(ValueMistake::at("until", text));
            }
            (None, Some(_)) => {
                let text = "\"on_expiry\" needs \"until\", the time at which the wait ends";
                return Err(ValueMistake::at("on_expiry", text));
            }
        };
        Ok(Self::new(StartEvent { name, expiry }))
    }
}

/// Parses a time from the command line, in the format of a plan file; `none` removes it.
pub fn parse_not_before(text: &str) -> Result<PlanTime, YamlMistakes> {
    if text == "none" {
        return Ok(PlanTime::AfterStart(Duration::ZERO));
    }
    let kind = FileDescription { name: "time", holds: "a time or a duration" };
    let node = millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?;
    deserialize_field(&node, "the time").map(|FileTime(time)| time)
}

/// Parses an event from the command line, in the format of a plan file; `none` removes it.
pub fn parse_start_event(text: &str) -> Result<Box<StartEvent>, YamlMistakes> {
    if text == "none" {
        return Ok(Box::new(StartEvent { name: String::new(), expiry: None }));
    }
    let kind = FileDescription { name: "event", holds: "name, until and on_expiry" };
    let node = millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?;
    let event: EventForm = deserialize_field(&node, "wait_for_event")?;
    Box::try_from(event).map_err(|mistake| node.locate_mistake(mistake).into())
}
