//! Questions, answers and other waits, as JSON.

use millrace_client::questions::{AnswerOutcome, OutcomeKind, full_id};
use millrace_protocol::form::{PersonAnswerJson, QuestionJson, Time};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{AttemptWait, QuestionState, RunQuestion};
use millrace_protocol::question::{QuestionAsker, QuestionId};
use millrace_protocol::wait::WaitEndJson;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{milliseconds, tagged};

/// The state of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuestionStatus {
    /// It can be answered.
    Open,
    /// A person has answered it.
    Answered,
    /// It expired without an answer.
    Expired,
    /// Its attempt does not need the answer any more.
    Withdrawn,
}

/// A question with its place, its state and its answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QuestionDetails<'a> {
    /// The task; `null` for a question about the plan.
    task: Option<TaskId>,
    /// The attempt; `null` for a question about the plan.
    attempt: Option<u32>,
    /// The number of the wait in the attempt, or of the question about the plan, from 1.
    number: u32,
    /// The round, from 1; it grows when an expired question is renewed.
    round: u32,
    /// The state.
    status: QuestionStatus,
    /// The start of its round.
    asked_at: Time,
    /// When it expires; `null` if it does not, or is closed.
    expires_at: Option<Time>,
    #[serde(flatten)]
    question: QuestionJson<'a>,
    /// The person whose answer counts; `null` as long as there is none.
    by: Option<&'a str>,
    /// When it was decided on; `null` while it is open, and if it was withdrawn.
    decided_at: Option<Time>,
    /// The time from its round to its decision.
    time_to_decide_ms: Option<u64>,
    /// The answer; `null` as long as there is none.
    answer: Option<PersonAnswerJson<'a>>,
    /// The reason why it was withdrawn; `null` if it was not.
    withdrawn: Option<String>,
}

impl<'a> From<RunQuestion<'a>> for QuestionDetails<'a> {
    fn from(record: RunQuestion<'a>) -> Self {
        let (expires_at, time_to_decide) = (record.expires_at(), record.time_to_decide());
        let RunQuestion { id: QuestionId { asker, number, round }, task: _, wait, question, state } = record;
        let (task, attempt) = match asker {
            QuestionAsker::Plan => (None, None),
            QuestionAsker::Attempt(task, attempt) => (Some(task), Some(attempt)),
        };
        let (status, by, answer, withdrawn) = match state {
            QuestionState::Open => (QuestionStatus::Open, None, None, None),
            QuestionState::Answered { by, answer } => {
                (QuestionStatus::Answered, Some(by), Some(answer.into()), None)
            }
            QuestionState::Expired => (QuestionStatus::Expired, None, None, None),
            QuestionState::Withdrawn(reason) => (QuestionStatus::Withdrawn, None, None, Some(reason)),
        };
        Self {
            task,
            attempt,
            number,
            round,
            status,
            asked_at: wait.since.into(),
            expires_at: expires_at.map(Time::from),
            question: question.into(),
            by,
            decided_at: wait.ended_at.map(Time::from),
            time_to_decide_ms: time_to_decide.map(milliseconds),
            answer,
            withdrawn,
        }
    }
}

/// A question of a run: a line of `millrace inbox --json`, and of `millrace watch --json` when it is opened and when it is
/// closed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "question")]
#[schemars(transform = tagged("question"))]
pub struct QuestionLine<'a> {
    /// The id, as `millrace answer` accepts it.
    id: String,
    /// The run.
    run: &'a RunId,
    #[serde(flatten)]
    details: QuestionDetails<'a>,
}

impl<'a> QuestionLine<'a> {
    /// Returns the line for a question of a run.
    pub fn new(run: &'a RunId, record: RunQuestion<'a>) -> Self {
        Self { id: full_id(run, &record.id), run, details: record.into() }
    }
}

/// The outcome of an answer: a line of `millrace answer --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "answer")]
#[schemars(transform = tagged("answer"))]
pub struct AnswerLine<'a> {
    /// The question: its full id, or the argument if there is no such question.
    id: &'a str,
    /// The outcome.
    outcome: OutcomeKind,
    /// The person whose answer counts; `null` if there is none.
    by: Option<&'a str>,
    /// When that answer was decided on.
    at: Option<Time>,
    /// That answer.
    answer: Option<PersonAnswerJson<'a>>,
    /// The outcome, for a person.
    message: &'a str,
    /// The open questions that the name fits, if there are several.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    candidates: &'a [String],
}

impl<'a> From<&'a AnswerOutcome> for AnswerLine<'a> {
    fn from(outcome: &'a AnswerOutcome) -> Self {
        let AnswerOutcome { id, kind, by, at, answer, message, candidates } = outcome;
        Self {
            id,
            outcome: *kind,
            by: by.as_deref(),
            at: at.map(Time::from),
            answer: answer.as_ref().map(PersonAnswerJson::from),
            message,
            candidates,
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
