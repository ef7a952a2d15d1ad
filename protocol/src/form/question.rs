//! Questions, answers and waits.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::Time;
use crate::foreign_json::parse_foreign_json;
use crate::ids::TaskId;
use crate::question::{Answer, AnswerKind, ExpiryAction, Question, QuestionSubject};
use crate::wait::{Wait, WaitCondition};

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
