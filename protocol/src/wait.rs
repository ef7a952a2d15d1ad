//! Waits of parked attempts. An attempt that waits for something outside gives its slot back and ends nothing: it is *parked*.
//! When its last wait has ended, the same attempt is dispatched again and continues from its journal, on any machine.
//!
//! Outages of models' providers, as the attempts that wait for their end report them.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use millrace_api_form::{ApiForm, Named};
use serde::{Deserialize, Serialize};

use crate::child::{EndedTask, EndedTaskJson};
use crate::form::{PersonAnswerJson, event_data};
use crate::ids::TaskId;
use crate::question::{Answer, Question};

/// The largest number of waits with which an attempt may be parked at a time.
pub const MAX_WAITS: usize = 256;
/// The maximum length of the name of an event, in bytes.
pub const MAX_EVENT_NAME: usize = 128;

/// `true` if this may be the name of an event: 1 to [`MAX_EVENT_NAME`] bytes of text in one line.
#[must_use]
pub fn is_event_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MAX_EVENT_NAME && !name.chars().any(char::is_control)
}

/// A wait of a parked attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The key of the call that waits; each wait of an attempt has another one.
    pub key: String,
    /// The condition that ends it.
    pub condition: WaitCondition,
    /// The name of its group; `None` if its own end is needed. The first end of a wait of a group is enough: the others are withdrawn
    /// with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Wait {
    /// A wait whose own end is needed.
    #[must_use]
    pub fn new(key: impl Into<String>, condition: WaitCondition) -> Self {
        Self { key: key.into(), condition, group: None }
    }
}

/// Describes open waits: `a, b` if all are needed, `the first of a, b` if one is enough.
#[must_use]
pub fn describe_waits<'a>(open: impl Iterator<Item = &'a Wait>) -> String {
    let (mut parts, mut groups): (Vec<String>, Vec<(&str, Vec<String>)>) = (Vec::new(), Vec::new());
    for wait in open {
        let text = wait.condition.to_string();
        let Some(name) = wait.group.as_deref() else {
            parts.push(text);
            continue;
        };
        match groups.iter_mut().find(|(group, _)| *group == name) {
            Some((_, texts)) => texts.push(text),
            None => groups.push((name, vec![text])),
        }
    }
    parts.extend(groups.into_iter().map(|(_, texts)| match texts.as_slice() {
        [only] => only.clone(),
        texts => format!("the first of {}", texts.join(", ")),
    }));
    parts.join(", ")
}

/// The condition that ends a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitCondition {
    /// A time.
    Until(#[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")] Timestamp),
    /// An event of the run.
    Event {
        /// The name of the event.
        name: String,
        /// The time at which the wait ends without the event; `None` is never.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "jiff::fmt::serde::timestamp::microsecond::optional"
        )]
        until: Option<Timestamp>,
    },
    /// The answer of a person.
    Answer(Box<Question>),
    /// The ends of children of the attempt.
    Tasks {
        /// The children.
        tasks: Vec<TaskId>,
        /// `true` if the end of one of them is enough.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        any: bool,
        /// The time at which the wait ends whatever the children do; `None` is never.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "jiff::fmt::serde::timestamp::microsecond::optional"
        )]
        until: Option<Timestamp>,
    },
}

impl WaitCondition {
    /// The children whose ends the wait is for.
    pub fn tasks(&self) -> &[TaskId] {
        match self {
            Self::Until(_) | Self::Event { .. } | Self::Answer(_) => &[],
            Self::Tasks { tasks, .. } => tasks,
        }
    }

    /// The name of the event that ends the wait, if one does.
    pub fn event(&self) -> Option<&str> {
        match self {
            Self::Until(_) | Self::Answer(_) | Self::Tasks { .. } => None,
            Self::Event { name, .. } => Some(name),
        }
    }

    /// The question whose answer ends the wait, if one does.
    pub fn question(&self) -> Option<&Question> {
        match self {
            Self::Answer(question) => Some(question),
            Self::Until(_) | Self::Event { .. } | Self::Tasks { .. } => None,
        }
    }

    /// The time at which a wait that began at `since` ends or expires, whatever else happens.
    pub fn until(&self, since: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Until(at) => Some(*at),
            Self::Event { until, .. } | Self::Tasks { until, .. } => *until,
            Self::Answer(question) => {
                let after = SignedDuration::try_from(question.expiry.as_ref()?.after).ok()?;
                since.checked_add(after).ok()
            }
        }
    }
}

/// `2026-11-22 12:00:00 UTC`, `the event "deployed" until 2026-11-22 12:00:00 UTC`.
impl fmt::Display for WaitCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        match self {
            Self::Until(at) => f.write_str(&time(*at)),
            Self::Event { name, until: None } => write!(f, "the event {name:?}"),
            Self::Event { name, until: Some(at) } => write!(f, "the event {name:?} until {}", time(*at)),
            Self::Answer(question) => question.fmt(f),
            Self::Tasks { tasks, any, until } => {
                let names: Vec<&str> = tasks.iter().map(TaskId::as_str).collect();
                let all = match tasks.len() {
                    1 => "the task ",
                    _ if *any => "one of the tasks ",
                    _ => "the tasks ",
                };
                write!(f, "{all}{}", names.join(", "))?;
                until.map_or(Ok(()), |at| write!(f, " until {}", time(at)))
            }
        }
    }
}

/// The end of a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm, Named)]
pub enum WaitEnd {
    /// Its time has come.
    TimeReached,
    /// Its event was signalled.
    Signalled {
        /// The user or the program.
        by: String,
        /// The data of the event; `null` if it has none.
        // JSON text in the log, empty if there is none.
        #[api(form(Option<serde_json::Value>), value(event_data(data)))]
        data: String,
    },
    /// Its event was not signalled in time.
    Expired,
    /// Another wait of its group ended first.
    Withdrawn,
    /// Its question was answered.
    Answered {
        /// The person; empty if the question expired.
        by: String,
        #[api(form(PersonAnswerJson<'a>), flatten)]
        answer: Answer,
    },
    /// Delegated tasks have ended.
    // All that it is for, one, or those that had ended at its time.
    TasksEnded(
        /// The tasks.
        #[api(name = "tasks", form(Vec<EndedTaskJson<'a>>), value(inner.iter().map(Into::into).collect()))]
        Vec<EndedTask>,
    ),
}

impl fmt::Display for WaitEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeReached => f.write_str("its time has come"),
            Self::Signalled { by, .. } => write!(f, "{by} signalled it"),
            Self::Expired => f.write_str("it expired"),
            Self::Answered { by, answer } if by.is_empty() => answer.fmt(f),
            Self::Answered { by, answer } => write!(f, "{by} {answer}"),
            Self::Withdrawn => f.write_str("another wait ended first"),
            Self::TasksEnded(ended) if ended.is_empty() => f.write_str("no task ended in time"),
            Self::TasksEnded(ended) => {
                let ends: Vec<String> = ended.iter().map(EndedTask::to_string).collect();
                f.write_str(&ends.join(", "))
            }
        }
    }
}

/// A wait that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct EndedWait {
    /// The key of the wait.
    pub key: String,
    /// The end.
    #[api(form(WaitEndJson<'a>))]
    pub end: WaitEnd,
}

/// An event that a user or a program signalled to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct Signal {
    /// The name of the event.
    pub name: String,
    /// The user or the program.
    pub by: String,
    /// The data of the event; `null` if it has none.
    // JSON text in the log, empty if there is none.
    #[api(form(Option<serde_json::Value>), value(event_data(data)))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub data: String,
}

/// A wait for a model's provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct ProviderWait {
    /// The model, as `provider:model`.
    pub model: String,
    /// The time of the first failure.
    pub since: Timestamp,
    /// The time of the next request.
    #[api(name = "next_try_at")]
    pub next_try: Timestamp,
    /// The number of failures.
    // So far, each after the quick retries of one request.
    pub tries: u32,
    /// The last error.
    pub error: String,
}

/// `openai:gpt-5.2 since 12:00:00, next try at 12:04:00, last error: …`.
impl fmt::Display for ProviderWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |at: Timestamp| at.strftime("%H:%M:%S").to_string();
        let Self { model, since, next_try, tries: _, error } = self;
        write!(f, "{model} since {}, next try at {}, last error: {error}", time(*since), time(*next_try))
    }
}

/// A change in the wait of an attempt for its provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderStatus {
    /// A request failed; the attempt waits for the next try.
    Waiting(ProviderWait),
    /// The provider answered.
    Recovered,
    /// The provider did not answer within the run's provider timeout.
    GivenUp(ProviderWait),
}
