//! Waits of programs and services: in place of a result they reply with the waits that they need, and are run again when all of
//! these have ended.
//!
//! ```json
//! {"wait_for": {
//!   "region": {"ask": {"question": "Which region?", "options": ["eu", "us"]}},
//!   "go":     {"approve": {"action": "deploy", "arguments": {"version": 3}, "text": "Deploys to production."}},
//!   "later":  {"until": "2026-11-22T12:00:00Z"},
//!   "built":  {"event": "built"}
//! }}
//! ```
//!
//! The next time, the task has the ends in `ended_waits`, by their names.

use jiff::Timestamp;
use millrace_agent::approval::{approval_question, check_input, input_question};
use millrace_protocol::question::Answer;
use millrace_protocol::wait::{EndedWait, MAX_EVENT_NAME, MAX_WAITS, Wait, WaitCondition, WaitEnd};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ExternalFailure;

/// The reply of a program or service that waits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitReply {
    wait_for: Map<String, Value>,
}

/// A wait in such a reply.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum RequestedWait {
    Ask { ask: RequestedInput },
    Approve { approve: RequestedApproval },
    Event { event: String, until: Option<Timestamp> },
    Until { until: Timestamp },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestedInput {
    question: String,
    #[serde(default)]
    options: Vec<String>,
    schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestedApproval {
    action: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    #[serde(default)]
    text: String,
    schema: Option<Value>,
}

/// Returns the waits that an output asks for; `None` if it is a result.
///
/// # Errors
/// It asks for waits in a wrong form.
pub(super) fn parse_wait_reply(output: &[u8]) -> Result<Option<Vec<Wait>>, ExternalFailure> {
    let Ok(value) = serde_json::from_slice::<Value>(output) else { return Ok(None) };
    if value.get("wait_for").is_none() {
        return Ok(None);
    }
    let invalid = |why: String| ExternalFailure::without_effect(format!("\"wait_for\" in its output: {why}"));
    let reply: WaitReply = serde_json::from_value(value).map_err(|error| invalid(error.to_string()))?;
    if reply.wait_for.is_empty() || reply.wait_for.len() > MAX_WAITS {
        return Err(invalid(format!("it must have 1 to {MAX_WAITS} waits")));
    }
    let wait = |(key, wait): (String, Value)| {
        let condition = serde_json::from_value(wait).map_err(|_| {
            let forms = "{\"ask\": {\"question\": …}}, {\"approve\": {\"action\": …}}, {\"until\": TIME} or {\"event\": NAME}";
            format!("the wait {key:?} has another form than {forms}")
        });
        let condition = condition.and_then(RequestedWait::into_condition);
        condition.map(|condition| Wait { key, condition })
    };
    reply.wait_for.into_iter().map(wait).collect::<Result<Vec<_>, _>>().map(Some).map_err(invalid)
}

impl RequestedWait {
    fn into_condition(self) -> Result<WaitCondition, String> {
        let is_fit = |text: &str, max: usize| !text.trim().is_empty() && text.len() <= max;
        Ok(match self {
            Self::Until { until } => WaitCondition::Until(until),
            Self::Event { event, .. } if !is_fit(&event, MAX_EVENT_NAME) => {
                return Err(format!("the name of an event has 1 to {MAX_EVENT_NAME} bytes"));
            }
            Self::Event { event, until } => WaitCondition::Event { name: event, until },
            Self::Ask { ask } => {
                let RequestedInput { question, options, schema } = ask;
                check_input(&question, &options, schema.as_ref())?;
                WaitCondition::Answer(Box::new(input_question(&question, options, schema.as_ref())))
            }
            Self::Approve { approve } if !is_fit(&approve.action, MAX_EVENT_NAME) => {
                return Err(format!("the name of an action has 1 to {MAX_EVENT_NAME} bytes"));
            }
            Self::Approve { approve } => {
                let RequestedApproval { action, arguments, text, schema } = approve;
                let question = approval_question(&action, &Value::Object(arguments), &text, schema.as_ref());
                WaitCondition::Answer(Box::new(question))
            }
        })
    }
}

/// The ends of waits, by name, as the program or service receives them.
pub(super) fn ended_waits_to_json(ended: &[EndedWait]) -> Map<String, Value> {
    ended.iter().map(|wait| (wait.key.clone(), end_to_json(&wait.end))).collect()
}

fn end_to_json(end: &WaitEnd) -> Value {
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    match end {
        WaitEnd::TimeReached => json!({"end": "time_reached"}),
        WaitEnd::Expired => json!({"end": "expired"}),
        WaitEnd::TasksEnded(ended) => json!({"end": "tasks_ended", "tasks": ended}),
        WaitEnd::Signalled { by, data } if data.is_empty() => {
            json!({"end": "signalled", "by": by, "data": null})
        }
        WaitEnd::Signalled { by, data } => json!({"end": "signalled", "by": by, "data": parse(data)}),
        WaitEnd::Answered { by, answer } => {
            let mut value = json!({"end": "answered", "by": by, "answer": answer.kind()});
            match answer {
                Answer::Approve | Answer::Decline | Answer::Pass => {}
                Answer::Edit { arguments } => value["arguments"] = parse(arguments),
                Answer::Answer { value: given } => value["value"] = parse(given),
                Answer::Reject { message: text }
                | Answer::Respond { content: text }
                | Answer::Fail { feedback: text } => {
                    value["text"] = text.as_str().into();
                }
            }
            value
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_wait_are_told_from_results() {
        let parse = |text: &str| parse_wait_reply(text.as_bytes());
        assert!(parse("plain").unwrap().is_none());
        assert!(parse(r#"{"words": 3}"#).unwrap().is_none());
        let waits = parse(
            r#"{"wait_for": {"a": {"ask": {"question": "Which?", "options": ["x"]}}, "b": {"until": "2026-11-22T12:00:00Z"},
                "c": {"event": "built", "until": "2026-11-22T12:00:00Z"}, "d": {"approve": {"action": "deploy", "arguments": {"v": 3}}}}}"#,
        );
        let waits = waits.unwrap().unwrap();
        let shown: Vec<String> =
            waits.iter().map(|wait| format!("{}: {}", wait.key, wait.condition)).collect();
        assert_eq!(
            shown,
            [
                "a: an answer to \"Which?\"",
                "b: 2026-11-22 12:00:00 UTC",
                "c: the event \"built\" until 2026-11-22 12:00:00 UTC",
                r#"d: the approval of deploy {"v":3}"#
            ]
        );
        for (text, mistake) in [
            (r#"{"wait_for": {}}"#, "1 to"),
            (r#"{"wait_for": {"a": {"asks": 1}}}"#, "the wait \"a\" has another form"),
            (r#"{"wait_for": {"a": {"event": ""}}}"#, "the name of an event"),
            (r#"{"wait_for": {"a": {"ask": {"question": " "}}}}"#, "a question has"),
            (r#"{"wait_for": [], "output": "x"}"#, "\"wait_for\" in its output"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.why.contains(mistake) && !refused.may_be_done, "{}", refused.why);
        }
    }
}
