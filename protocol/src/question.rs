//! Questions of a run to a person: the approval of a tool call, and the input that an agent needs. A question is a wait of a
//! parked attempt ([`crate::wait::WaitCondition::Answer`]), so that an open one holds no worker, and any number may be open.
//!
//! The supervisor's decision makes an answer valid: the first one that fits an open question, in the order of the log. Every
//! other is refused with the reason, and with the author and time of the answer that counts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Capability, InvalidName, TaskId};
use crate::schema::CompiledSchema;

/// The maximum length of each text of a question, in bytes. Longer arguments are shown by their beginning; their digest covers
/// the whole.
pub const MAX_QUESTION_TEXT: usize = 16_000;
/// The maximum length of the value, the arguments or the text of an answer, in bytes.
pub const MAX_ANSWER: usize = 64_000;

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The subject.
    pub subject: QuestionSubject,
    /// The text for the person.
    pub text: String,
    /// The digest of the subject: SHA-256 in hexadecimal. An answer names the digest that it was given for.
    pub digest: String,
    /// The kinds of answers that are allowed, at least one.
    pub decisions: Vec<AnswerKind>,
    /// The person or role that should answer, for people who read the list of questions; empty is anyone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// The consequence of a question that nobody answers in time; `None` if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<QuestionExpiry>,
}

/// The thing that a question is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuestionSubject {
    /// A tool call that needs an approval before it runs.
    Approval {
        /// The tool.
        tool: String,
        /// Its arguments as JSON, cut at [`MAX_QUESTION_TEXT`].
        arguments: String,
        /// The JSON Schema of the arguments, as JSON; empty if it is not known or too long. Edited arguments must fit it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        schema: String,
    },
    /// A question of an agent or a program.
    Input {
        /// The proposed answers; empty if there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        options: Vec<String>,
        /// The JSON Schema of the answer, as JSON; empty if any text is accepted.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        schema: String,
    },
}

/// The consequence of a question that nobody answers in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionExpiry {
    /// The time that each round of the question may take.
    #[serde(with = "whole_seconds")]
    pub after: Duration,
    /// The consequence. It is never an approval.
    pub action: ExpiryAction,
    /// The person or role to which [`ExpiryAction::Escalate`] gives the question; empty for other actions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub escalate_to: String,
}

/// The action when a question expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpiryAction {
    /// The call counts as rejected, the input as declined.
    Reject,
    /// The attempt fails, and so does its task.
    FailTask,
    /// The question is asked again, as a new round.
    AskAgain,
    /// The question is asked again, as a new round that names another person or role; when that expires, it counts as
    /// rejected.
    Escalate,
}

/// The id of a question in its run: `<task>/<attempt>/<number>`, and `.<round>` if it was asked again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuestionId {
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub attempt: u32,
    /// The number of the wait in the attempt, from 1.
    pub number: u32,
    /// The round, from 1; it grows when a question is asked again.
    pub round: u32,
}

impl fmt::Display for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, attempt, number, round } = self;
        write!(f, "{task}/{attempt}/{number}")?;
        if *round > 1 { write!(f, ".{round}") } else { Ok(()) }
    }
}

/// A text that is not the id of a question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuestionId {
    /// It has another form.
    #[error("{0:?} is no id of a question; it has the form TASK/ATTEMPT/NUMBER")]
    Form(String),
    /// Its task is no task id.
    #[error(transparent)]
    Task(#[from] InvalidName),
}

impl FromStr for QuestionId {
    type Err = InvalidQuestionId;

    fn from_str(text: &str) -> Result<Self, InvalidQuestionId> {
        let invalid = || InvalidQuestionId::Form(text.chars().take(200).collect());
        let positive = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let mut parts = text.split('/');
        let (task, attempt, last) = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(task), Some(attempt), Some(last), None) => (task, attempt, last),
            (_, _, _, _) => return Err(invalid()),
        };
        let (number, round) = match last.split_once('.') {
            Some((number, round)) => (number, positive(round).ok_or_else(invalid)?),
            None => (last, 1),
        };
        let (attempt, number) =
            (positive(attempt).ok_or_else(invalid)?, positive(number).ok_or_else(invalid)?);
        Ok(Self { task: TaskId::new(task)?, attempt, number, round })
    }
}

/// The kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerKind {
    /// The call runs as proposed.
    Approve,
    /// The call runs with other arguments.
    Edit,
    /// The call does not run.
    Reject,
    /// The call does not run; a text of the person is its result.
    Respond,
    /// The requested value.
    Answer,
    /// The person does not answer.
    Decline,
}

impl AnswerKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Approve, Self::Edit, Self::Reject, Self::Respond, Self::Answer, Self::Decline];

    /// Its name in files and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Edit => "edit",
            Self::Reject => "reject",
            Self::Respond => "respond",
            Self::Answer => "answer",
            Self::Decline => "decline",
        }
    }
}

impl fmt::Display for AnswerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An answer of a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The call runs as proposed.
    Approve,
    /// The call runs with these arguments in place of the proposed ones.
    Edit {
        /// The complete arguments, as JSON.
        arguments: String,
    },
    /// The call does not run.
    Reject {
        /// The reason, for the agent.
        message: String,
    },
    /// The call does not run; this is its result.
    Respond {
        /// The result, for the agent.
        content: String,
    },
    /// The requested value.
    Answer {
        /// The value, as JSON.
        value: String,
    },
    /// The person does not answer.
    Decline,
}

impl Answer {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> AnswerKind {
        match self {
            Self::Approve => AnswerKind::Approve,
            Self::Edit { .. } => AnswerKind::Edit,
            Self::Reject { .. } => AnswerKind::Reject,
            Self::Respond { .. } => AnswerKind::Respond,
            Self::Answer { .. } => AnswerKind::Answer,
            Self::Decline => AnswerKind::Decline,
        }
    }

    /// The text that it carries.
    fn text(&self) -> &str {
        match self {
            Self::Approve | Self::Decline => "",
            Self::Edit { arguments: text }
            | Self::Reject { message: text }
            | Self::Respond { content: text }
            | Self::Answer { value: text } => text,
        }
    }
}

/// `approved`, `answered {"version":3}`, `rejected: not on a Friday`.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Approve => f.write_str("approved"),
            Self::Edit { arguments } => write!(f, "approved with the arguments {arguments}"),
            Self::Reject { message } if message.is_empty() => f.write_str("rejected"),
            Self::Reject { message } => write!(f, "rejected: {message}"),
            Self::Respond { content } => write!(f, "responded: {content}"),
            Self::Answer { value } => write!(f, "answered {value}"),
            Self::Decline => f.write_str("declined"),
        }
    }
}

/// The calls that an answer also decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerScope {
    /// This call only.
    #[default]
    Once,
    /// Every call of the tool with the same arguments, by the same capability, in this run.
    ThisCallInRun,
    /// Every call of the tool, by the same capability, in this run.
    ThisToolInRun,
}

impl AnswerScope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Once, Self::ThisCallInRun, Self::ThisToolInRun];

    /// Its name in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::ThisCallInRun => "this_call_in_run",
            Self::ThisToolInRun => "this_tool_in_run",
        }
    }

    /// `true` for the default.
    #[must_use]
    pub fn is_once(&self) -> bool {
        *self == Self::Once
    }
}

/// The answer of a person to a question, as a message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAnswer {
    /// The idempotency key; the client chooses it.
    pub id: String,
    /// The person, as the client names them.
    pub by: String,
    /// The question.
    pub question: QuestionId,
    /// The digest of the question that the person has seen.
    pub digest: String,
    /// The answer.
    pub answer: Answer,
    /// The calls that it also decides.
    #[serde(default, skip_serializing_if = "AnswerScope::is_once")]
    pub scope: AnswerScope,
}

/// A decision on all calls of a tool, or all with the same arguments, by a capability in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingAnswer {
    /// The capability whose agents make the calls.
    pub capability: Capability,
    /// The tool.
    pub tool: String,
    /// The digest of the calls; `None` is all calls of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The person who decided.
    pub by: String,
    /// The decision: [`Answer::Approve`] or [`Answer::Reject`].
    pub answer: Answer,
}

impl StandingAnswer {
    /// `true` if it decides a question of an agent of this capability.
    #[must_use]
    pub fn applies_to(&self, capability: &Capability, question: &Question) -> bool {
        let is_tool =
            matches!(&question.subject, QuestionSubject::Approval { tool, .. } if *tool == self.tool);
        is_tool
            && *capability == self.capability
            && question.decisions.contains(&self.answer.kind())
            && self.digest.as_ref().is_none_or(|digest| *digest == question.digest)
    }
}

impl Question {
    /// Checks that an answer fits the question, apart from its digest.
    ///
    /// # Errors
    /// The mistake, with the answers that are allowed.
    pub fn check_answer(&self, answer: &Answer, scope: AnswerScope) -> Result<(), String> {
        let kind = answer.kind();
        if !self.decisions.contains(&kind) {
            let allowed: Vec<&str> = self.decisions.iter().map(|kind| kind.name()).collect();
            return Err(format!("{kind} is not allowed here; allowed: {}", allowed.join(", ")));
        }
        let text = answer.text();
        if text.len() > MAX_ANSWER {
            return Err(format!("the answer has {} bytes; the maximum is {MAX_ANSWER}", text.len()));
        }
        let is_standing = matches!(answer, Answer::Approve | Answer::Reject { .. });
        let is_call = matches!(self.subject, QuestionSubject::Approval { .. });
        if !(scope.is_once() || is_standing && is_call) {
            return Err("only an approval or a rejection of a call can count for further calls".into());
        }
        match (answer, &self.subject) {
            (Answer::Edit { arguments }, QuestionSubject::Approval { schema, .. }) => {
                let value = parse_json(arguments, "the arguments")?;
                if !value.is_object() {
                    return Err("the arguments must be a JSON object".into());
                }
                check_value("the arguments", schema, &value)
            }
            (Answer::Answer { value }, QuestionSubject::Input { schema, options }) => {
                let value = parse_json(value, "the answer")?;
                if schema.is_empty() && !options.is_empty() && !value.is_string() {
                    return Err("the answer must be a text: one of the options, or another".into());
                }
                check_value("the answer", schema, &value)
            }
            (Answer::Respond { content }, _) if content.trim().is_empty() => {
                Err("the response is empty".into())
            }
            (
                Answer::Approve
                | Answer::Edit { .. }
                | Answer::Reject { .. }
                | Answer::Respond { .. }
                | Answer::Answer { .. }
                | Answer::Decline,
                QuestionSubject::Approval { .. } | QuestionSubject::Input { .. },
            ) => Ok(()),
        }
    }

    /// The tool whose call needs the approval, if it is one.
    #[must_use]
    pub fn tool(&self) -> Option<&str> {
        match &self.subject {
            QuestionSubject::Approval { tool, .. } => Some(tool),
            QuestionSubject::Input { .. } => None,
        }
    }

    /// The answer that its expiry gives, if that is one.
    #[must_use]
    pub fn answer_of_expiry(&self) -> Answer {
        match self.subject {
            QuestionSubject::Approval { .. } => Answer::Reject { message: "nobody answered in time".into() },
            QuestionSubject::Input { .. } => Answer::Decline,
        }
    }
}

fn parse_json(text: &str, what: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{what} must be JSON: {error}"))
}

fn check_value(what: &str, schema: &str, value: &serde_json::Value) -> Result<(), String> {
    let Ok(schema) = serde_json::from_str(schema) else { return Ok(()) };
    CompiledSchema::default().check_value(&schema, value).map_err(|mistake| format!("{what}: {mistake}"))
}

/// `the approval of execute {"command":"rm -r build"}`, `an answer to "Which region?"`.
impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            QuestionSubject::Approval { tool, arguments, .. } => {
                write!(f, "the approval of {tool} {}", shorten(arguments))
            }
            QuestionSubject::Input { .. } => write!(f, "an answer to \"{}\"", shorten(&self.text)),
        }
    }
}

/// Cuts a text for one line.
fn shorten(text: &str) -> String {
    const MAX: usize = 120;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Durations as whole seconds, at least one.
mod whole_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(duration.as_secs())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(|seconds| Duration::from_secs(seconds.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval() -> Question {
        Question {
            subject: QuestionSubject::Approval {
                tool: "execute".into(),
                arguments: r#"{"command":"rm"}"#.into(),
                schema: r#"{"type":"object","properties":{"command":{"type":"string"}},"required":["command"],"additionalProperties":false}"#.into(),
            },
            text: "Runs a command.".into(),
            digest: "d".into(),
            decisions: vec![AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject],
            to: String::new(),
            expiry: None,
        }
    }

    #[test]
    fn ids_are_read_back_as_written() {
        for (text, valid) in [
            ("t1/1/2", true),
            ("t1/1/2.3", true),
            ("t1/1", false),
            ("t1/0/1", false),
            ("t1/1/1/1", false),
            ("t!/1/1", false),
            ("t1/1/1.0", false),
        ] {
            let read = text.parse::<QuestionId>();
            assert_eq!(
                read.as_ref().map(ToString::to_string).ok(),
                valid.then(|| text.to_owned()),
                "{read:?}"
            );
        }
    }

    #[test]
    fn answers_that_do_not_fit_are_refused_with_what_fits() {
        let check = |answer| approval().check_answer(&answer, AnswerScope::Once);
        let edit = |arguments: &str| Answer::Edit { arguments: arguments.into() };
        assert_eq!(check(Answer::Approve), Ok(()));
        assert_eq!(check(edit(r#"{"command":"ls"}"#)), Ok(()));
        for (answer, mistake) in [
            (
                Answer::Respond { content: "x".into() },
                "respond is not allowed here; allowed: approve, edit, reject",
            ),
            (edit("{"), "the arguments must be JSON"),
            (edit("[]"), "the arguments must be a JSON object"),
            (edit("{}"), "the arguments: "),
            (edit(&format!(r#"{{"command":"{}"}}"#, "x".repeat(MAX_ANSWER))), "the maximum is"),
        ] {
            let refused = check(answer).unwrap_err();
            assert!(refused.contains(mistake), "{refused}");
        }
        let standing = approval().check_answer(&edit(r#"{"command":"ls"}"#), AnswerScope::ThisToolInRun);
        assert!(standing.unwrap_err().contains("only an approval or a rejection"));
    }
}
