//! The forms of entities in the API and in the output of commands with `--json`. Most are derived beside the entity
//! ([`millrace_api_form::ApiForm`]); the forms here have other fields than the log.

mod work;

use std::borrow::Cow;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use crate::foreign_json::parse_foreign_json;

pub use self::work::{
    AttemptErrorKind, DeliverableChoice, ErrorDetails, TimedOutKind, WorkJson, WorkKindJson,
};
pub use crate::form::work::{PersonAnswerJson, QuestionJson, QuestionKindJson, WaitJson};

/// A time in UTC, as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Time(Timestamp);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl Time {
    /// Returns the time.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time", "description": "A time in UTC, as RFC 3339." })
    }
}

/// Returns a transformation that adds the field `type` to the schema of a struct, which serde adds to its value.
pub fn tagged(name: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.insert("type".into(), json!({ "type": "string", "const": name }));
        }
        let required = schema.ensure_object().entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            required.insert(0, "type".into());
        }
    }
}

/// The data of an event; as text if it is not JSON.
pub fn event_data(data: &str) -> Option<serde_json::Value> {
    (!data.is_empty()).then(|| parse_foreign_json(data).unwrap_or_else(|_| data.into()))
}
