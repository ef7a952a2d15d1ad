//! Waits of programs and services: in place of a result they reply with the waits that they need, and are run again when all of
//! these have ended. A wait can delegate tasks to other capabilities.
//!
//! ```json
//! {"wait_for": {
//!   "region": {"ask": {"question": "Which region?", "options": ["eu", "us"]}},
//!   "go":     {"approve": {"action": "deploy", "arguments": {"version": 3}, "text": "Deploys to production."}},
//!   "later":  {"until": "2026-11-22T12:00:00Z"},
//!   "built":  {"event": "built"},
//!   "counts": {"delegate": [{"capability": "wordcount", "description": "Count.", "parameters": {"text": "one two"}}]}
//! }}
//! ```
//!
//! The next time, the task has the ends in `ended_waits`, by their names. With `"any": true` beside `wait_for`, the first end is enough,
//! and the others are withdrawn.
//!
//! # Invariants
//!
//! - I123: A program or service delegates each task of its reply once, also across crashes, and runs again with their ends and
//!   results. (`tests/tests/delegation.rs::program_delegates_in_its_reply`,
//!   `worker/src/external/waits.rs::replies_that_wait_are_told_from_results`)

use jiff::Timestamp;
use millrace_agent::approval::{approval_question, check_input, input_question};
use millrace_agent::tool::ChildLimits;
use millrace_protocol::child::{EndedTask, MAX_CHILDREN, TaskEnd, child_id};
use millrace_protocol::foreign_json::{JsonOrText, parse_foreign_json, parse_json_or_text, plain_json_error};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{ResourceAmounts, ReviewPolicy, TaskSpec};
use millrace_protocol::question::Answer;
use millrace_protocol::time_text::parse_timestamp_within_a_year;
use millrace_protocol::wait::{EndedWait, MAX_EVENT_NAME, MAX_WAITS, Wait, WaitCondition, WaitEnd};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::ExternalFailure;

/// The waits of a reply, and the tasks that some of them delegate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RequestedWaits {
    pub waits: Vec<Wait>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<TaskSpec>,
}

/// The attempt that replied. Its tasks have ids that begin with its own, and share its allowance.
pub(super) struct DelegatingAttempt<'a> {
    pub task: &'a TaskId,
    pub attempt: u32,
    pub allowance: ResourceAmounts,
}

/// The reply of a program or service that waits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitReply {
    wait_for: Map<String, Value>,
    /// The first end is enough.
    #[serde(default)]
    any: bool,
}

/// The group of the waits of a reply of which the first end is enough.
const ANY: &str = "any";

/// A wait in such a reply.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum RequestedWait {
    Ask { ask: RequestedInput },
    Approve { approve: RequestedApproval },
    Event { event: String, until: Option<String> },
    Delegate { delegate: OneOrMore<RequestedTask>, until: Option<String> },
    Until { until: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(Box<T>),
    More(Vec<T>),
}

/// A task that the program or service delegates.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestedTask {
    capability: Capability,
    description: String,
    #[serde(default)]
    parameters: TaskParameters,
    #[serde(default)]
    review: Vec<String>,
    #[serde(default)]
    limits: ChildLimits,
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
pub(super) fn parse_wait_reply(
    output: &[u8],
    attempt: &DelegatingAttempt<'_>,
) -> Result<Option<RequestedWaits>, ExternalFailure> {
    let output = parse_json_or_text(output);
    let output =
        output.map_err(|mistake| ExternalFailure::with_unknown_outcome(format!("its output {mistake}")))?;
    let JsonOrText::Json(value) = output else { return Ok(None) };
    if value.get("wait_for").is_none() {
        return Ok(None);
    }
    let invalid = |why: String| ExternalFailure::without_effect(format!("\"wait_for\" in its output: {why}"));
    let reply: WaitReply =
        serde_json::from_value(value).map_err(|error| invalid(plain_json_error(&error.to_string())))?;
    if reply.wait_for.is_empty() || reply.wait_for.len() > MAX_WAITS {
        return Err(invalid(format!("it must have 1 to {MAX_WAITS} waits")));
    }
    let mut requested = RequestedWaits { waits: Vec::new(), children: Vec::new() };
    for (key, wait) in reply.wait_for {
        let wait: RequestedWait = serde_json::from_value(wait).map_err(|_| {
            let forms = "{\"ask\": {\"question\": …}}, {\"approve\": {\"action\": …}}, {\"until\": TIME}, {\"event\": NAME} \
                         or {\"delegate\": {\"capability\": …, \"description\": …}}";
            invalid(format!("the wait {key:?} has another form than {forms}"))
        })?;
        let condition = wait.into_condition(&key, attempt, &mut requested.children).map_err(invalid)?;
        let group = reply.any.then(|| ANY.to_owned());
        requested.waits.push(Wait { key, condition, group });
    }
    attempt.share_allowance(&mut requested.children);
    Ok(Some(requested))
}

impl DelegatingAttempt<'_> {
    /// Gives each task an equal share of the allowance; the attempt keeps one share.
    fn share_allowance(&self, children: &mut [TaskSpec]) {
        let shares = u64::try_from(children.len()).unwrap_or(u64::MAX).saturating_add(1);
        let mut share = self.allowance;
        for (resource, amount) in self.allowance.iter() {
            share.set(resource, Some(amount / shares));
        }
        children.iter_mut().for_each(|child| child.budget = share.min_per_resource(child.budget));
    }
}

impl RequestedTask {
    fn into_spec(self, id: TaskId) -> TaskSpec {
        let Self { capability, description, parameters, review, limits } = self;
        let review = if review.is_empty() { ReviewPolicy::None } else { ReviewPolicy::critic(review) };
        TaskSpec {
            parameters,
            review,
            budget: limits.amounts(),
            limits: limits.task_limits(),
            overrides: limits.to_overrides(),
            ..TaskSpec::new(id, description, capability)
        }
    }
}

impl RequestedWait {
    /// Converts it, and adds the tasks that it delegates to `children`.
    fn into_condition(
        self,
        key: &str,
        attempt: &DelegatingAttempt<'_>,
        children: &mut Vec<TaskSpec>,
    ) -> Result<WaitCondition, String> {
        let is_fit = |text: &str, max: usize| !text.trim().is_empty() && text.len() <= max;
        Ok(match self {
            Self::Until { until } => WaitCondition::Until(parse_until(&until)?),
            Self::Event { event, .. } if !is_fit(&event, MAX_EVENT_NAME) => {
                return Err(format!("the name of an event has 1 to {MAX_EVENT_NAME} bytes"));
            }
            Self::Event { event, until } => {
                WaitCondition::Event { name: event, until: until.as_deref().map(parse_until).transpose()? }
            }
            Self::Delegate { delegate, until } => {
                let requested = match delegate {
                    OneOrMore::One(only) => vec![*only],
                    OneOrMore::More(all) => all,
                };
                if requested.is_empty() || requested.len() > MAX_CHILDREN as usize {
                    return Err(format!("\"delegate\" must have 1 to {MAX_CHILDREN} tasks"));
                }
                let id = |index: usize| child_id(attempt.task, attempt.attempt, &format!("{key}-{index}"));
                let specs = requested.into_iter().enumerate();
                let specs: Vec<TaskSpec> = specs.map(|(index, task)| task.into_spec(id(index))).collect();
                let tasks = specs.iter().map(|spec| spec.id.clone()).collect();
                children.extend(specs);
                WaitCondition::Tasks {
                    tasks,
                    any: false,
                    until: until.as_deref().map(parse_until).transpose()?,
                }
            }
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

/// Parses the time at which a wait ends: at most a year from now, like that of an agent.
fn parse_until(text: &str) -> Result<Timestamp, String> {
    parse_timestamp_within_a_year(text, Timestamp::now()).map_err(|why| format!("\"until\": {why}"))
}

/// The ends of waits, by name, as the program or service receives them.
pub(super) fn ended_waits_to_json(ended: &[EndedWait]) -> Map<String, Value> {
    ended.iter().map(|wait| (wait.key.clone(), end_to_json(&wait.end))).collect()
}

fn end_to_json(end: &WaitEnd) -> Value {
    let parse = |text: &str| parse_foreign_json(text).unwrap_or_else(|_| Value::from(text));
    match end {
        WaitEnd::TimeReached => json!({"end": "time_reached"}),
        WaitEnd::Expired => json!({"end": "expired"}),
        WaitEnd::Withdrawn => json!({"end": "withdrawn"}),
        WaitEnd::TasksEnded(ended) => {
            let tasks: Vec<Value> = ended.iter().map(ended_task_to_json).collect();
            json!({"end": "tasks_ended", "tasks": tasks})
        }
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

/// The end of a delegated task. Its result, if it has one, is among the inputs.
fn ended_task_to_json(ended: &EndedTask) -> Value {
    let mut value = json!({"task": ended.task, "state": ended.end.name(), "text": ended.end.text(), "usage": ended.usage});
    if let TaskEnd::Failed { kind, limit, produced, .. } = &ended.end {
        value["kind"] = json!(kind);
        value["limit"] = json!(limit);
        value["produced"] = json!(produced);
    }
    value
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn replies_that_wait_are_told_from_results() {
        let task = TaskId::new("t").unwrap();
        let allowance = ResourceAmounts { tokens: Some(300), ..ResourceAmounts::default() };
        let attempt = DelegatingAttempt { task: &task, attempt: 2, allowance };
        let parse = |text: &str| parse_wait_reply(text.as_bytes(), &attempt);
        assert!(parse("plain").unwrap().is_none());
        assert!(parse(r#"{"words": 3}"#).unwrap().is_none());
        let nearly = parse(
            "{\"wait_for\": {\"go\": {\"approve\":\n {\"action\": \"x\", \"arguments\": {\"x\": NaN}}}}}",
        );
        let error = nearly.unwrap_err();
        assert!(
            error.why.contains("line 2 column") && error.why.contains("JSON has no NaN"),
            "{}",
            error.why
        );
        let half = parse(r#"{"wait_for": {"a": {"ask": {"question": "Which \ud83d?"}}}}"#).unwrap().unwrap();
        assert_eq!(half.waits[0].condition.to_string(), "an answer to \"Which \u{fffd}?\"");
        let waits = parse(
            r#"{"wait_for": {"a": {"ask": {"question": "Which?", "options": ["x"]}}, "b": {"until": "2026-11-22T12:00:00Z"},
                "c": {"event": "built", "until": "2026-11-22T12:00:00Z"}, "d": {"approve": {"action": "deploy", "arguments": {"v": 3}}}}}"#,
        );
        let waits = waits.unwrap().unwrap();
        let shown: Vec<String> =
            waits.waits.iter().map(|wait| format!("{}: {}", wait.key, wait.condition)).collect();
        assert_eq!(
            shown,
            [
                "a: an answer to \"Which?\"",
                "b: 2026-11-22 12:00:00 UTC",
                "c: the event \"built\" until 2026-11-22 12:00:00 UTC",
                r#"d: the approval of deploy {"v":3}"#
            ]
        );
        assert!(waits.waits.iter().all(|wait| wait.group.is_none()), "all are needed");
        let first =
            parse(r#"{"wait_for": {"a": {"event": "built"}, "b": {"event": "failed"}}, "any": true}"#);
        let groups: HashSet<_> = first.unwrap().unwrap().waits.into_iter().map(|wait| wait.group).collect();
        assert!(groups.len() == 1 && !groups.contains(&None), "{groups:?}");
        let delegated = parse(
            r#"{"wait_for": {"counts": {"delegate": [{"capability": "echo", "description": "one"},
                {"capability": "echo", "description": "two", "limits": {"tokens": 20, "seconds": 5}}]}}}"#,
        );
        let RequestedWaits { waits, children } = delegated.unwrap().unwrap();
        assert_eq!(waits[0].condition.to_string(), "the tasks t-2-counts-0, t-2-counts-1");
        let budgets: Vec<Option<u64>> = children.iter().map(|child| child.budget.tokens).collect();
        assert_eq!(budgets, [Some(100), Some(20)], "three shares");
        assert_eq!(children[1].limits.run_time.as_secs(), 5);
        for (text, mistake) in [
            (r#"{"wait_for": {}}"#, "1 to"),
            (r#"{"wait_for": {"a": {"delegate": []}}}"#, "must have 1 to 32 tasks"),
            (
                r#"{"wait_for": {"a": {"delegate": {"capability": "b c"}}}}"#,
                "the wait \"a\" has another form",
            ),
            (r#"{"wait_for": {"a": {"asks": 1}}}"#, "the wait \"a\" has another form"),
            (r#"{"wait_for": {"a": {"until": "2026-12-01T09:00:00+25:00"}}}"#, "more than 14 hours"),
            (r#"{"wait_for": {"a": {"until": "9999-12-31T23:59:59Z"}}}"#, "is out of range"),
            (r#"{"wait_for": {"a": {"event": "x", "until": "9998-01-01T00:00:00Z"}}}"#, "more than a year"),
            (r#"{"wait_for": {"a": {"event": ""}}}"#, "the name of an event"),
            (r#"{"wait_for": {"a": {"ask": {"question": " "}}}}"#, "a question has"),
            (r#"{"wait_for": {"a": {"event": "b"}}, "any": "yes"}"#, "\"wait_for\" in its output"),
            (r#"{"wait_for": [], "output": "x"}"#, "\"wait_for\" in its output"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.why.contains(mistake) && !refused.may_be_done, "{}", refused.why);
        }
    }

    #[test]
    fn data_of_others_is_json_with_halves_of_characters_too() {
        let by = "ci".to_owned();
        let half = r#"{"a": "\ud83d"}"#.to_owned();
        let signalled = WaitEnd::Signalled { by: by.clone(), data: half.clone() };
        assert_eq!(end_to_json(&signalled)["data"], json!({"a": "\u{fffd}"}));
        let answered = WaitEnd::Answered { by, answer: Answer::Answer { value: half } };
        assert_eq!(end_to_json(&answered)["value"], json!({"a": "\u{fffd}"}));
    }
}
