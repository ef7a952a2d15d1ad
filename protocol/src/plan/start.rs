//! The conditions under which a task starts: a time and an event of the run. Plain data; the rules park each attempt at the
//! task before its first dispatch until they are met.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::time_text;
use crate::wait::{Wait, WaitCondition, is_event_name};

/// The beginning of the keys of waits that the rules make for a plan. The waits of workers have other keys.
pub const PLAN_WAIT_PREFIX: &str = "plan.";
/// The key of the wait for the time of a task's start.
pub const NOT_BEFORE_KEY: &str = "plan.not_before";
/// The key of the wait for the event of a task's start.
pub const WAIT_FOR_EVENT_KEY: &str = "plan.wait_for_event";
/// The longest time after the start of a run that a plan may name: a year.
pub const MAX_PLAN_TIME: Duration = Duration::from_secs(366 * 86_400);

/// A time in a plan. On the wire it is a text (RFC 3339) or a number of seconds after the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanTime {
    /// A time.
    At(Timestamp),
    /// A time after the start of the run.
    AfterStart(Duration),
}

impl PlanTime {
    /// The time, in a run that started at `start`.
    #[must_use]
    pub fn resolve(self, start: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::AfterStart(after) => {
                let after = SignedDuration::try_from(after).unwrap_or(SignedDuration::MAX);
                start.saturating_add(after).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// `true` for the start of the run itself, which no task has to wait for.
    #[must_use]
    pub fn is_start(self) -> bool {
        self == Self::AfterStart(Duration::ZERO)
    }
}

/// `2026-11-22T12:00:00Z`, `90 s after the start of the run`.
impl fmt::Display for PlanTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => at.fmt(f),
            Self::AfterStart(after) => write!(f, "{} s after the start of the run", after.as_secs_f64()),
        }
    }
}

impl Serialize for PlanTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::At(at) => at.serialize(serializer),
            Self::AfterStart(after) => serializer.serialize_f64(after.as_secs_f64()),
        }
    }
}

impl<'de> Deserialize<'de> for PlanTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Seconds(f64),
        }
        match Form::deserialize(deserializer)? {
            Form::Text(text) => time_text::parse_timestamp(&text).map(Self::At),
            Form::Seconds(seconds) => time_text::duration_from_seconds(seconds).map(Self::AfterStart),
        }
        .map_err(D::Error::custom)
    }
}

impl JsonSchema for PlanTime {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PlanTime".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A time with its offset (RFC 3339), or a number of seconds after the start of the run.",
            "anyOf": [
                { "type": "string", "format": "date-time" },
                { "type": "number", "minimum": 0 },
            ],
        })
    }
}

/// The event of a run without which a task does not start. An event that was signalled before counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct StartEvent {
    /// The name of the event.
    pub name: String,
    /// The end of the wait without the event; `None` if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<StartEventExpiry>,
}

/// The end of a wait for an event that is not signalled in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct StartEventExpiry {
    /// The time.
    pub until: PlanTime,
    /// The consequence.
    pub action: StartExpiryAction,
}

/// The consequence for a task whose event was not signalled in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartExpiryAction {
    /// It starts without the event.
    Start,
    /// It fails.
    FailTask,
}

/// The conditions for the start of a task, with the first mistake in them if there is one.
pub(super) fn find_start_mistake(
    not_before: Option<PlanTime>,
    event: Option<&StartEvent>,
) -> Option<(&'static str, &'static str)> {
    let is_too_late = |time: PlanTime| matches!(time, PlanTime::AfterStart(after) if after > MAX_PLAN_TIME);
    if not_before.is_some_and(is_too_late) {
        return Some(("not_before", "at most a year after the start of the run"));
    }
    let event = event?;
    if !is_event_name(&event.name) {
        return Some(("wait_for_event", "the name of an event: 1 to 128 bytes of text in one line"));
    }
    let until = event.expiry.as_ref().map(|expiry| expiry.until);
    until.is_some_and(is_too_late).then_some((
        "wait_for_event",
        "an event that is awaited for at most a year after the start of the run",
    ))
}

/// The waits for these conditions, in a run that started at `start`.
pub(super) fn start_waits(
    not_before: Option<PlanTime>,
    event: Option<&StartEvent>,
    start: Timestamp,
) -> Vec<Wait> {
    let time = not_before.map(|time| Wait::new(NOT_BEFORE_KEY, WaitCondition::Until(time.resolve(start))));
    let event = event.map(|event| {
        let until = event.expiry.as_ref().map(|expiry| expiry.until.resolve(start));
        Wait::new(WAIT_FOR_EVENT_KEY, WaitCondition::Event { name: event.name.clone(), until })
    });
    time.into_iter().chain(event).collect()
}
