//! Questions and answers, as JSON.

use millrace_protocol::question::{Answer, AnswerKind, ExpiryAction, Question, QuestionSubject};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

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
}

impl<'a> From<&'a Question> for QuestionJson<'a> {
    fn from(question: &'a Question) -> Self {
        let Question { subject, text, digest, decisions, to, expiry } = question;
        let json = |text: &str| {
            (!text.is_empty()).then(|| serde_json::from_str(text).unwrap_or_else(|_| text.into()))
        };
        let (kind, tool, arguments, options, schema) = match subject {
            QuestionSubject::Approval { tool, arguments, schema } => (
                QuestionKindJson::Approval,
                Some(tool.as_str()),
                json(arguments),
                [].as_slice(),
                json(schema),
            ),
            QuestionSubject::Input { options, schema } => {
                (QuestionKindJson::Input, None, None, options.as_slice(), json(schema))
            }
        };
        let expires_s = expiry.as_ref().map(|expiry| expiry.after.as_secs());
        let on_expiry = expiry.as_ref().map(|expiry| expiry.action);
        let escalate_to = expiry.as_ref().map_or("", |expiry| &expiry.escalate_to);
        Self {
            kind,
            text,
            tool,
            arguments,
            options,
            schema,
            decisions,
            digest,
            to,
            expires_s,
            on_expiry,
            escalate_to,
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
    /// The reason of a rejection, or the text of a response; `null` for other kinds.
    text: Option<&'a str>,
}

impl<'a> From<&'a Answer> for PersonAnswerJson<'a> {
    fn from(answer: &'a Answer) -> Self {
        let json = |text: &str| Some(serde_json::from_str(text).unwrap_or_else(|_| text.into()));
        let (value, text) = match answer {
            Answer::Approve | Answer::Decline => (None, None),
            Answer::Edit { arguments: value } | Answer::Answer { value } => (json(value), None),
            Answer::Reject { message: text } | Answer::Respond { content: text } => {
                (None, Some(text.as_str()))
            }
        };
        Self { answer: answer.kind(), value, text }
    }
}
