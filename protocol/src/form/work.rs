//! Pieces of work and their errors, questions, answers and waits.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::foreign_json::parse_foreign_json;
use crate::form::Time;
use crate::ids::TaskId;
use crate::plan::{AttemptClock, DeliverableRule, JournalKey, Work};
use crate::question::{Answer, AnswerKind, ExpiryAction, Question, QuestionSubject};
use crate::result::{ErrorKind, ExceededLimit, ModelUsage, TaskError, Usage};
use crate::wait::{Wait, WaitCondition};

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

/// A question to a person.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QuestionJson<'a> {
    /// The kind.
    kind: QuestionKindJson,
    /// The text for the person.
    text: &'a str,
    /// The tool whose call needs an approval; `null` for an input.
    tool: Option<&'a str>,
    /// The arguments of the call, as JSON text if they are cut; `null` for an input.
    arguments: Option<Value>,
    /// The proposed answers to an input.
    options: &'a [String],
    /// The result to judge, in a sentence; `null` for other kinds.
    result: Option<&'a str>,
    /// The criteria for the judgement of a result.
    criteria: &'a [String],
    /// The verdict of the critic on that result; `null` if there is none.
    critic: Option<&'a str>,
    /// The JSON Schema of edited arguments, or of the answer; `null` if there is none.
    schema: Option<Value>,
    /// The kinds of answers that are allowed.
    decisions: &'a [AnswerKind],
    /// The digest that an answer must name.
    digest: &'a str,
    /// The person or role that should answer; empty is anyone.
    to: &'a str,
    /// The seconds that a round of the question may take; `null` if it does not expire.
    expires_s: Option<u64>,
    /// The consequence of an expired question; `null` if it does not expire.
    on_expiry: Option<ExpiryAction>,
    /// The person or role that gets an expired question; empty if nobody does.
    escalate_to: &'a str,
}

/// The kinds of questions.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKindJson {
    /// The approval of a tool call.
    Approval,
    /// An input for an agent.
    Input,
    /// The judgement of a result.
    Review,
    /// The approval of the plan.
    Plan,
}

impl<'a> From<&'a Question> for QuestionJson<'a> {
    fn from(question: &'a Question) -> Self {
        let Question { subject, text, digest, decisions, to, expiry } = question;
        let json =
            |text: &str| (!text.is_empty()).then(|| parse_foreign_json(text).unwrap_or_else(|_| text.into()));
        let expires_s = expiry.as_ref().map(|expiry| expiry.after.as_secs());
        let on_expiry = expiry.as_ref().map(|expiry| expiry.action);
        let escalate_to = expiry.as_ref().map_or("", |expiry| &expiry.escalate_to);
        let common = Self {
            kind: QuestionKindJson::Plan,
            text,
            tool: None,
            arguments: None,
            options: &[],
            result: None,
            criteria: &[],
            critic: None,
            schema: None,
            decisions,
            digest,
            to,
            expires_s,
            on_expiry,
            escalate_to,
        };
        match subject {
            QuestionSubject::Approval { tool, arguments, schema } => Self {
                kind: QuestionKindJson::Approval,
                tool: Some(tool),
                arguments: json(arguments),
                schema: json(schema),
                ..common
            },
            QuestionSubject::Input { options, schema } => {
                Self { kind: QuestionKindJson::Input, options, schema: json(schema), ..common }
            }
            QuestionSubject::Review { summary, criteria, critic } => Self {
                kind: QuestionKindJson::Review,
                result: Some(summary),
                criteria,
                critic: Some(critic.as_str()).filter(|critic| !critic.is_empty()),
                ..common
            },
            QuestionSubject::Plan { .. } => common,
        }
    }
}

/// An answer to a question.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PersonAnswerJson<'a> {
    /// The kind.
    answer: AnswerKind,
    /// The changed arguments, or the value; `null` for other kinds.
    value: Option<Value>,
    /// The reason of a rejection, the text of a response, or the feedback on a result; `null` for other kinds.
    text: Option<&'a str>,
}

impl<'a> From<&'a Answer> for PersonAnswerJson<'a> {
    fn from(answer: &'a Answer) -> Self {
        let json = |text: &str| Some(parse_foreign_json(text).unwrap_or_else(|_| text.into()));
        let (value, text) = match answer {
            Answer::Approve | Answer::Decline | Answer::Pass => (None, None),
            Answer::Edit { arguments: value } | Answer::Answer { value } => (json(value), None),
            Answer::Reject { message: text }
            | Answer::Respond { content: text }
            | Answer::Fail { feedback: text } => (None, Some(text.as_str())),
        };
        Self { answer: answer.kind(), value, text }
    }
}

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
