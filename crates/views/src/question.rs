//! Questions and answers, as JSON.

use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{QuestionState, RunQuestion};
use millrace_protocol::question::{
    Answer, AnswerKind, ExpiryAction, Question, QuestionAsker, QuestionId, QuestionSubject,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{Time, milliseconds, tagged};
use millrace_client::questions::{AnswerOutcome, OutcomeKind, full_id};

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
