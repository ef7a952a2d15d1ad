//! The tools with which an agent waits for a time or an event, or asks a person. A call that waits parks the attempt: it holds no
//! worker meanwhile, and the conversation continues with the end of the wait as the result of the call.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::question::Answer;
use millrace_protocol::time_text::parse_timestamp_within_a_year;
use millrace_protocol::wait::{MAX_EVENT_NAME, WaitCondition, WaitEnd};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Tool, ToolError, tool_from_function};

use crate::approval::{check_input, input_question};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SleepFor")]
#[serde(deny_unknown_fields)]
struct SleepForArguments {
    /// The number of seconds.
    #[schemars(range(min = 1, max = 31_536_000))]
    seconds: u32,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SleepUntil")]
#[serde(deny_unknown_fields)]
struct SleepUntilArguments {
    /// The time, as RFC 3339 with its offset: 2026-11-22T12:00:00Z.
    #[schemars(length(min = 1, max = 64))]
    time: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "WaitForEvent")]
#[serde(deny_unknown_fields)]
struct WaitForEventArguments {
    /// The name of the event.
    #[schemars(length(min = 1, max = 128))]
    name: String,
    /// The longest wait in seconds; without a limit by default.
    #[schemars(range(min = 1, max = 31_536_000))]
    seconds: Option<u32>,
}

/// `sleep_for{seconds}`: continues after a time.
#[must_use]
pub fn sleep_for_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "sleep_for",
        "Waits for a number of seconds. Nothing is used up meanwhile.",
        |SleepForArguments { seconds }: SleepForArguments, _| async move {
            Err(ToolError::Waits(WaitCondition::Until(time_after(seconds))))
        },
    )
}

/// `sleep_until{time}`: continues at a time.
#[must_use]
pub fn sleep_until_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "sleep_until",
        "Waits until a time. Nothing is used up meanwhile.",
        |SleepUntilArguments { time }: SleepUntilArguments, _| async move { sleep_until(&time) },
    )
}

/// `wait_for_event{name, seconds?}`: continues when a user or a program signals an event to the run.
#[must_use]
pub fn wait_for_event_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "wait_for_event",
        "Waits until an event is signalled to this run, and returns its data. An event that was signalled before counts once. \
         Nothing is used up meanwhile.",
        |WaitForEventArguments { name, seconds }: WaitForEventArguments, _| async move {
            if name.trim().is_empty() || name.len() > MAX_EVENT_NAME {
                let text = format!("the name of an event has 1 to {MAX_EVENT_NAME} bytes");
                return Err(ToolError::Refused(text));
            }
            Err(ToolError::Waits(WaitCondition::Event { name, until: seconds.map(time_after) }))
        },
    )
}

/// The name of [`continue_at_first_tool`].
pub(crate) const CONTINUE_AT_FIRST: &str = "continue_at_first";

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ContinueAtFirst")]
#[serde(deny_unknown_fields)]
struct ContinueAtFirstArguments {}

/// `continue_at_first{}`: of the calls of the same message that wait, the first end is enough.
#[must_use]
pub fn continue_at_first_tool() -> Arc<dyn Tool> {
    tool_from_function(
        CONTINUE_AT_FIRST,
        "Make this call in one message with several calls that wait (sleeps, events, questions, calls that need an approval, tasks) to \
         continue at the first of them. The others are withdrawn: an unanswered question is closed, and a call without approval does \
         not run.",
        |ContinueAtFirstArguments {}: ContinueAtFirstArguments, _| async move {
            Ok::<_, ToolError>("This message continues when the first of its waiting calls ends.".to_owned())
        },
    )
}

fn sleep_until(time: &str) -> Result<String, ToolError> {
    let now = Timestamp::now();
    let at = parse_timestamp_within_a_year(time, now).map_err(ToolError::Refused)?;
    if at <= now {
        return Ok(format!("{at} is past; it is {now}"));
    }
    Err(ToolError::Waits(WaitCondition::Until(at)))
}

fn time_after(seconds: u32) -> Timestamp {
    let at = Timestamp::now().saturating_add(SignedDuration::from_secs(seconds.into()));
    at.unwrap_or(Timestamp::MAX)
}

/// The result of a call whose wait has ended, for the model.
#[must_use]
pub(crate) fn describe_wait_end(end: &WaitEnd) -> String {
    match end {
        WaitEnd::TimeReached => "The time has come.".into(),
        WaitEnd::Signalled { by, data } if data.is_empty() => {
            format!("{by} signalled the event, without data.")
        }
        WaitEnd::Signalled { by, data } => format!("{by} signalled the event with this data:\n{data}"),
        WaitEnd::Expired => "The event was not signalled in time.".into(),
        WaitEnd::Withdrawn => "Withdrawn: another call of this message ended first.".into(),
        WaitEnd::TasksEnded(_) => format!("{end}."),
        WaitEnd::Answered { by, answer } => describe_answer(by, answer),
    }
}

/// The result of `ask_user`, for the model.
fn describe_answer(by: &str, answer: &Answer) -> String {
    match answer {
        Answer::Answer { value } => match parse_foreign_json(value) {
            Ok(serde_json::Value::String(text)) => text,
            Ok(_) | Err(_) => value.clone(),
        },
        Answer::Decline if by.is_empty() => "Nobody answered in time. Continue without the answer.".into(),
        Answer::Decline => "The person does not want to answer. Continue without the answer.".into(),
        Answer::Respond { content } => content.clone(),
        Answer::Approve
        | Answer::Edit { .. }
        | Answer::Reject { .. }
        | Answer::Pass
        | Answer::Fail { .. } => answer.to_string(),
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AskUser")]
#[serde(deny_unknown_fields)]
struct AskUserArguments {
    /// The question, understandable without this conversation.
    #[schemars(length(min = 1, max = 16000))]
    question: String,
    /// Proposed answers; the person may give another.
    #[serde(default)]
    #[schemars(length(max = 20))]
    options: Vec<String>,
    /// The JSON Schema of the answer; any text by default.
    schema: Option<serde_json::Map<String, Value>>,
}

/// `ask_user{question, options?, schema?}`: asks a person and continues with the answer.
#[must_use]
pub fn ask_user_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "ask_user",
        "Asks a person a question and returns the answer. It may take long; nothing is used up meanwhile. Ask only what you can \
         not find out yourself, all questions at once in one message.",
        |arguments: AskUserArguments, _| async move { ask_user(arguments) },
    )
}

fn ask_user(arguments: AskUserArguments) -> Result<String, ToolError> {
    let AskUserArguments { question, options, schema } = arguments;
    let (question, schema) = (question.trim(), schema.map(Value::Object));
    check_input(question, &options, schema.as_ref()).map_err(ToolError::Refused)?;
    let question = input_question(question, options, schema.as_ref());
    Err(ToolError::Waits(WaitCondition::Answer(Box::new(question))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_future_time_within_a_year_is_waited_for() {
        assert!(sleep_until("2020-01-01T00:00:00Z").unwrap().contains("is past"));
        assert!(
            matches!(sleep_until("tomorrow"), Err(ToolError::Refused(text)) if text.contains("is not a time"))
        );
        assert!(matches!(sleep_until("9000-01-01T00:00:00Z"), Err(ToolError::Refused(_))));
        let soon = time_after(60);
        assert_eq!(sleep_until(&soon.to_string()), Err(ToolError::Waits(WaitCondition::Until(soon))));
    }
}
