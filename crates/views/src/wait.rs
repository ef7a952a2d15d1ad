//! Waits of parked attempts, as JSON.

use millrace_protocol::child::EndedTask;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::AttemptWait;
use millrace_protocol::result::Usage;
use millrace_protocol::wait::{Wait, WaitCondition, WaitEnd};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{PersonAnswerJson, QuestionJson, Time};

/// A wait of a parked attempt.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaitJson<'a> {
    /// The key of the wait in its attempt.
    key: &'a str,
    /// The name of the event that it waits for; `null` if it waits for a time.
    event: Option<&'a str>,
    /// The question that must be answered; `null` for other waits.
    question: Option<QuestionJson<'a>>,
    /// The time at which it ends, at the latest; `null` if it has no limit, or is a question.
    until: Option<Time>,
    /// The delegated tasks that it waits for.
    #[serde(skip_serializing_if = "<[TaskId]>::is_empty")]
    tasks: &'a [TaskId],
    /// The name of its group, of which the first end is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
}

impl<'a> From<&'a Wait> for WaitJson<'a> {
    fn from(Wait { key, condition, group }: &'a Wait) -> Self {
        let until = match condition {
            WaitCondition::Until(at) => Some(*at),
            WaitCondition::Event { until, .. } | WaitCondition::Tasks { until, .. } => *until,
            WaitCondition::Answer(_) => None,
        };
        let question = condition.question().map(QuestionJson::from);
        Self {
            key,
            event: condition.event(),
            question,
            until: until.map(Time::from),
            tasks: condition.tasks(),
            group: group.as_deref(),
        }
    }
}

/// A wait of an attempt for anything but a person, with its times and its end.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaitDetails<'a> {
    /// The condition that ends it, as text.
    waits_for: String,
    /// The name of the event that it waits for; `null` for other waits.
    event: Option<&'a str>,
    /// The delegated tasks that it waits for.
    #[serde(skip_serializing_if = "<[TaskId]>::is_empty")]
    tasks: &'a [TaskId],
    /// The name of its group, of which the first end is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    /// When it began.
    since: Time,
    /// The time at which it ends, at the latest; `null` if it has no limit.
    until: Option<Time>,
    /// When it ended; `null` if it has not.
    ended_at: Option<Time>,
    /// Its end; `null` if it has not.
    end: Option<WaitEndJson<'a>>,
}

impl<'a> WaitDetails<'a> {
    /// Returns the details of a wait; `None` for a question, which has details of its own.
    pub fn of_wait(wait: &'a AttemptWait) -> Option<Self> {
        let condition = &wait.wait.condition;
        condition.question().is_none().then(|| Self {
            waits_for: condition.to_string(),
            event: condition.event(),
            tasks: condition.tasks(),
            group: wait.wait.group.as_deref(),
            since: Time::from(wait.since),
            until: wait.until().map(Time::from),
            ended_at: wait.ended_at.map(Time::from),
            end: wait.end.as_ref().map(WaitEndJson::from),
        })
    }
}

/// The end of a wait.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WaitEndJson<'a> {
    /// Its time has come.
    TimeReached,
    /// Its event was signalled.
    Signalled {
        /// The user or the program.
        by: &'a str,
        /// The data of the event; `null` if it has none.
        data: Option<serde_json::Value>,
    },
    /// Its event was not signalled in time.
    Expired,
    /// Another wait of its group ended first.
    Withdrawn,
    /// Its question was answered.
    Answered {
        /// The person; empty if the question expired.
        by: &'a str,
        /// The answer.
        #[serde(flatten)]
        answer: PersonAnswerJson<'a>,
    },
    /// Delegated tasks have ended.
    TasksEnded {
        /// The tasks.
        tasks: Vec<EndedTaskJson<'a>>,
    },
}

/// A delegated task that has ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EndedTaskJson<'a> {
    /// The task.
    task: &'a TaskId,
    /// `completed`, `failed`, `timed_out`, `cancelled` or `refused`.
    end: &'static str,
    /// Its summary, or the reason for its end.
    text: &'a str,
    /// Its usage, with that of the tasks that it delegated.
    usage: Usage,
}

impl<'a> From<&'a EndedTask> for EndedTaskJson<'a> {
    fn from(EndedTask { task, end, usage }: &'a EndedTask) -> Self {
        Self { task, end: end.name(), text: end.text(), usage: *usage }
    }
}

impl<'a> From<&'a WaitEnd> for WaitEndJson<'a> {
    fn from(end: &'a WaitEnd) -> Self {
        match end {
            WaitEnd::TimeReached => Self::TimeReached,
            WaitEnd::Signalled { by, data } => Self::Signalled { by, data: event_data(data) },
            WaitEnd::Expired => Self::Expired,
            WaitEnd::Withdrawn => Self::Withdrawn,
            WaitEnd::Answered { by, answer } => Self::Answered { by, answer: answer.into() },
            WaitEnd::TasksEnded(ended) => Self::TasksEnded { tasks: ended.iter().map(Into::into).collect() },
        }
    }
}

/// The data of an event; as text if it is not JSON.
pub fn event_data(data: &str) -> Option<serde_json::Value> {
    (!data.is_empty()).then(|| parse_foreign_json(data).unwrap_or_else(|_| data.into()))
}
