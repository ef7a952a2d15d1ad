//! Events and decisions of a run. The names of events are `noun_verb`; those of the log are not changed by this.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use millrace_protocol::ids::{RunId, WorkerId};
use millrace_protocol::plan::{AnswerCause, Decision, EventJson};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{Time, tagged};

/// An event of a run: a line of `millrace run --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventLine<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The sequence, in the lane, of the decision with the event; events of one decision share it.
    pub sequence: u64,
    /// The time of the decision.
    pub at: Time,
    /// The event.
    #[serde(flatten)]
    pub event: EventJson<'a>,
}

/// Returns the names of all events of a run.
pub fn event_names() -> &'static BTreeSet<String> {
    static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(EventJson<'_>);
        let variants = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        variants.filter_map(|one| Some(one["properties"]["type"]["const"].as_str()?.to_owned())).collect()
    });
    &NAMES
}

/// A decision of a run: a line of `millrace replay --log --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "decision")]
#[schemars(transform = tagged("decision"))]
pub struct DecisionLine<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the decision in the lane.
    sequence: u64,
    /// The time of the decision.
    at: Time,
    /// The supervisor.
    by: &'a WorkerId,
    /// The answered inputs, in order.
    answers: Vec<AnswerJson>,
    /// The events, those of one answer after those of the one before.
    events: Vec<EventJson<'a>>,
}

/// The answer to an input.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AnswerJson {
    /// The input.
    cause: CauseJson,
    /// The sequence, in the lane, of the message that was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<u64>,
    /// The number of its events.
    events: u32,
    /// The reason why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

/// The kind of an input.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CauseJson {
    /// A message of a client, worker or critic.
    Message,
    /// A time that was reached.
    Clock,
    /// A change of the cluster's capabilities.
    Registry,
    /// A rule that follows from the answer before.
    Rules,
}

impl<'a> DecisionLine<'a> {
    pub fn new(run: &'a RunId, sequence: u64, decision: &'a Decision) -> Self {
        let answers = decision.answers.iter().map(|answer| {
            let (cause, message) = match answer.cause {
                AnswerCause::Fact(sequence) => (CauseJson::Message, Some(sequence)),
                AnswerCause::Clock => (CauseJson::Clock, None),
                AnswerCause::Registry => (CauseJson::Registry, None),
                AnswerCause::Rules => (CauseJson::Rules, None),
            };
            let refusal = answer.refusal.as_ref().map(ToString::to_string);
            AnswerJson { cause, message, events: answer.events, refusal }
        });
        Self {
            run,
            sequence,
            at: decision.at.into(),
            by: &decision.by,
            answers: answers.collect(),
            events: decision.events.iter().map(EventJson::from).collect(),
        }
    }
}
