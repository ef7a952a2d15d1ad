//! Pieces of work and their errors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::ids::TaskId;
use crate::plan::{AttemptClock, DeliverableRule, JournalKey, Work};
use crate::result::{ErrorKind, ExceededLimit, ModelUsage, TaskError, Usage};

/// The task whose result is the deliverable, and the rule by which it was chosen.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeliverableChoice<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The rule.
    pub rule: DeliverableRule,
}

impl<'a> From<&'a (TaskId, DeliverableRule)> for DeliverableChoice<'a> {
    fn from((task, rule): &'a (TaskId, DeliverableRule)) -> Self {
        Self { task, rule: *rule }
    }
}

/// A piece of work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WorkJson<'a> {
    /// The kind of the work.
    pub kind: WorkKindJson,
    /// The task, of work on a task or its review.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'a TaskId>,
    /// The planner's turn, of work on a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The attempt.
    pub attempt: u32,
    /// The number of the try at a review.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub review: Option<u32>,
}

/// A kind of work.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkKindJson {
    /// An attempt at a task.
    Task,
    /// A review of an attempt's result.
    Review,
    /// An attempt at a turn of the planner.
    Planning,
}

impl<'a> WorkJson<'a> {
    fn of_task(kind: WorkKindJson, task: &'a TaskId, attempt: u32) -> Self {
        Self { kind, task: Some(task), turn: None, attempt, review: None }
    }

    fn of_turn(turn: u32, attempt: u32) -> Self {
        Self { kind: WorkKindJson::Planning, task: None, turn: Some(turn), attempt, review: None }
    }
}

impl<'a> From<&'a Work> for WorkJson<'a> {
    fn from(work: &'a Work) -> Self {
        match work {
            Work::Task { task, attempt } => Self::of_task(WorkKindJson::Task, task, *attempt),
            Work::Review { task, attempt, review } => {
                Self { review: Some(*review), ..Self::of_task(WorkKindJson::Review, task, *attempt) }
            }
            Work::Planning { turn, attempt } => Self::of_turn(*turn, *attempt),
        }
    }
}

impl<'a> From<&'a JournalKey> for WorkJson<'a> {
    fn from(journal: &'a JournalKey) -> Self {
        match journal {
            JournalKey::Task(task, attempt) => Self::of_task(WorkKindJson::Task, task, *attempt),
            JournalKey::Review(task, attempt) => Self::of_task(WorkKindJson::Review, task, *attempt),
            JournalKey::Planning(turn, attempt) => Self::of_turn(*turn, *attempt),
        }
    }
}

/// The error of an attempt.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct ErrorDetails<'a> {
    /// The kind of the error.
    pub kind: AttemptErrorKind,
    /// The error, for a person.
    pub message: Cow<'a, str>,
    /// The limit that was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExceededLimit>,
    /// `true` if the model's provider refused the request for good.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refused_by_provider: bool,
    /// The unfinished answer of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produced: Option<&'a str>,
    /// The usage.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The usage by model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: Cow<'a, ModelUsage>,
}

/// The kind of an attempt's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum AttemptErrorKind {
    /// An error that the worker reported.
    Reported(ErrorKind),
    /// The attempt timed out.
    TimedOut(TimedOutKind),
}

/// The kind of a time-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimedOutKind {
    /// The attempt timed out.
    TimedOut,
}

impl<'a> From<&'a TaskError> for ErrorDetails<'a> {
    fn from(error: &'a TaskError) -> Self {
        let TaskError { kind, message, limit, usage, models, is_refused_by_provider, produced } = error;
        Self {
            kind: AttemptErrorKind::Reported(*kind),
            message: message.into(),
            limit: *limit,
            refused_by_provider: *is_refused_by_provider,
            produced: produced.as_deref(),
            usage: *usage,
            models: Cow::Borrowed(models),
        }
    }
}

impl From<AttemptClock> for ErrorDetails<'_> {
    fn from(clock: AttemptClock) -> Self {
        Self {
            kind: AttemptErrorKind::TimedOut(TimedOutKind::TimedOut),
            message: clock.to_string().into(),
            limit: None,
            refused_by_provider: false,
            produced: None,
            usage: Usage::default(),
            models: Cow::Owned(ModelUsage::new()),
        }
    }
}
