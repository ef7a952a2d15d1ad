//! The events that a stream has. Events pass this filter when they happen and when they are read again, so that a client that reconnects
//! gets the same ones. Pure.
//!
//! # Invariants
//!
//! - I267: A stream sends live exactly the events that it sends when it is read again, at every level and with every filter.
//!   (`tests/tests/gateway/streams.rs::streams_send_live_what_they_send_when_read_again`)

use std::collections::BTreeSet;

use millrace_protocol::ids::TaskId;
use millrace_views::event_names;
use serde::Deserialize;

use super::frame::{PositionedEvent, STEP};
use super::message::LaneMessage;

/// The parts of a run that a stream has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventLevel {
    /// The events of the supervisor's decisions.
    #[default]
    Decisions,
    /// The same, and each entry of the journals: model calls, tool results, notes, results.
    Steps,
    /// The same, and the output of models as it is written.
    Live,
}

/// A filter of events. The default has the events of all decisions.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub level: EventLevel,
    /// Only events with these names; all if empty.
    types: BTreeSet<String>,
    pub task: Option<TaskId>,
}

/// A name that no event of the stream has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEventType {
    #[error("types={0:?} is no event; valid: {1}")]
    Unknown(String, String),
    /// The level leaves it out.
    #[error("types=step selects entries of journals, which are in the stream with level=steps only")]
    NeedsSteps,
}

impl EventFilter {
    /// Parses a list of names of events, separated by commas. `summaries` is the name of other frames of the stream.
    pub fn parse(
        level: EventLevel,
        types: Option<&str>,
        summaries: Option<&str>,
    ) -> Result<Self, InvalidEventType> {
        let names = types.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
        let types: BTreeSet<String> = names.map(str::to_owned).collect();
        let known = || event_names().iter().map(String::as_str).chain([STEP]).chain(summaries);
        if let Some(unknown) = types.iter().find(|name| !known().any(|known| known == *name)) {
            let known: Vec<&str> = known().collect();
            return Err(InvalidEventType::Unknown(unknown.clone(), known.join(", ")));
        }
        let filter = Self { level, types, task: None };
        match filter.types.contains(STEP) && !filter.has_steps() {
            true => Err(InvalidEventType::NeedsSteps),
            false => Ok(filter),
        }
    }

    /// `true` if entries of journals are sent.
    pub fn has_steps(&self) -> bool {
        self.level >= EventLevel::Steps
    }

    /// `true` if a message may have events that are sent.
    pub fn selects_message(&self, message: &LaneMessage) -> bool {
        self.has_steps() || message.is_decision()
    }

    pub fn selects(&self, event: &PositionedEvent) -> bool {
        (self.has_steps() || event.name != STEP)
            && (self.types.is_empty() || self.types.contains(&event.name))
            && self.selects_task(event.task.as_deref())
    }

    /// `true` if what belongs to this task is sent.
    pub fn selects_task(&self, task: Option<&str>) -> bool {
        self.task.as_ref().is_none_or(|wanted| task == Some(wanted.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_event_has_are_refused() {
        let parse = |level, types, summaries| EventFilter::parse(level, Some(types), summaries);
        for (level, types, summaries, is_valid) in [
            (EventLevel::Decisions, "", None, true),
            (EventLevel::Decisions, "task_completed, run_ended,", None, true),
            (EventLevel::Steps, "step,run_ended", None, true),
            (EventLevel::Decisions, "run_summary", Some("run_summary"), true),
            (EventLevel::Decisions, "run_summary", None, false),
            (EventLevel::Decisions, "step", None, false),
            (EventLevel::Live, "nope", None, false),
            (EventLevel::Live, "run_ended,Run_Ended", None, false),
        ] {
            assert_eq!(parse(level, types, summaries).is_ok(), is_valid, "{level:?} {types}");
        }
        let error = parse(EventLevel::Decisions, "nope", None).unwrap_err().to_string();
        assert!(error.contains("run_ended") && error.contains("\"nope\""), "{error}");
    }
}
