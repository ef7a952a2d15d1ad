//! Questions of a run to a person: the approval of a tool call, the input that an agent needs, the judgement of a result, and
//! the approval of the plan. All but the last are waits of an attempt ([`crate::wait::WaitCondition::Answer`]), so that an open
//! one holds no worker, and any number may be open.
//!
//! The supervisor's decision makes an answer valid: the first one that fits an open question, in the order of the log. Every
//! other is refused with the reason, and with the author and time of the answer that counts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millrace_api_form::{ApiForm, Named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::foreign_json::parse_foreign_json;
use crate::form::PersonAnswerJson;
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Named)]
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
    /// The judgement of a result.
    Review {
        /// The result in a sentence.
        summary: String,
        /// The criteria, one sentence each; may be empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        criteria: Vec<String>,
        /// The verdict of the critic that reviewed it before, for the person; empty if none did.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        critic: String,
    },
    /// The approval of the plan, before the first task starts.
    Plan {
        /// The number of its tasks.
        tasks: u32,
    },
}

/// The consequence of a question that nobody answers in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuestionExpiry {
    /// The time that each round of the question may take, in seconds.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "u64")]
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

/// The id of a question in its run: `<task>/<attempt>/<number>`, or `plan/<number>` for the approval of the plan; and
/// `.<round>` from the second round on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "WireQuestionId", into = "WireQuestionId")]
pub struct QuestionId {
    /// The part of the run that asks.
    pub asker: QuestionAsker,
    /// The number of the question: of the wait in the attempt, or of the plan's questions, from 1.
    pub number: u32,
    /// The round, from 1; it grows when a question is asked again.
    pub round: u32,
}

/// The part of a run that asks a question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuestionAsker {
    /// The plan.
    Plan,
    /// An attempt at a task.
    Attempt(TaskId, u32),
}

/// The first part of the id of a question about the plan.
const PLAN: &str = "plan";

impl QuestionId {
    /// The id of a question of an attempt.
    #[must_use]
    pub fn of_attempt(task: TaskId, attempt: u32, number: u32, round: u32) -> Self {
        Self { asker: QuestionAsker::Attempt(task, attempt), number, round }
    }

    /// The id of a question about the plan.
    #[must_use]
    pub fn of_plan(number: u32, round: u32) -> Self {
        Self { asker: QuestionAsker::Plan, number, round }
    }

    /// The task whose attempt asks, if one does.
    pub fn task(&self) -> Option<&TaskId> {
        match &self.asker {
            QuestionAsker::Plan => None,
            QuestionAsker::Attempt(task, _) => Some(task),
        }
    }

    /// `true` if both name the same question, in whatever round.
    pub fn is_same_question(&self, other: &Self) -> bool {
        self.asker == other.asker && self.number == other.number
    }
}

impl fmt::Display for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asker, number, round } = self;
        match asker {
            QuestionAsker::Plan => write!(f, "{PLAN}/{number}")?,
            QuestionAsker::Attempt(task, attempt) => write!(f, "{task}/{attempt}/{number}")?,
        }
        if *round > 1 { write!(f, ".{round}") } else { Ok(()) }
    }
}

/// The wire form: a question about the plan has no task and no attempt.
#[derive(Serialize, Deserialize)]
struct WireQuestionId {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    number: u32,
    round: u32,
}

impl From<QuestionId> for WireQuestionId {
    fn from(QuestionId { asker, number, round }: QuestionId) -> Self {
        match asker {
            QuestionAsker::Plan => Self { task: None, attempt: None, number, round },
            QuestionAsker::Attempt(task, attempt) => {
                Self { task: Some(task), attempt: Some(attempt), number, round }
            }
        }
    }
}

impl From<WireQuestionId> for QuestionId {
    fn from(WireQuestionId { task, attempt, number, round }: WireQuestionId) -> Self {
        match task {
            None => Self::of_plan(number, round),
            Some(task) => Self::of_attempt(task, attempt.unwrap_or_default(), number, round),
        }
    }
}

/// A text that is not the id of a question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuestionId {
    /// It has another form.
    #[error("{0:?} is no id of a question; it has the form TASK/ATTEMPT/NUMBER or plan/NUMBER")]
    Form(String),
    /// Its task is no task id.
    #[error(transparent)]
    Task(#[from] InvalidName),
}

impl FromStr for QuestionId {
    type Err = InvalidQuestionId;

    fn from_str(text: &str) -> Result<Self, InvalidQuestionId> {
        let invalid = || InvalidQuestionId::Form(text.chars().take(200).collect());
        let positive = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(invalid);
        let parts: Vec<&str> = text.split('/').collect();
        let (asker, last) = match parts.as_slice() {
            [PLAN, last] => (QuestionAsker::Plan, last),
            [task, attempt, last] => (QuestionAsker::Attempt(TaskId::new(task)?, positive(attempt)?), last),
            _ => return Err(invalid()),
        };
        let (number, round) = match last.split_once('.') {
            Some((number, round)) => (number, positive(round)?),
            None => (*last, 1),
        };
        Ok(Self { asker, number: positive(number)?, round })
    }
}

/// Returns a digest in hexadecimal.
pub(crate) fn hex_digest(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The kinds of answers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Named,
)]
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
    /// The result is accepted.
    Pass,
    /// The result is rejected.
    Fail,
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
    /// The result is accepted.
    Pass,
    /// The result is rejected.
    Fail {
        /// The feedback for the next attempt.
        feedback: String,
    },
}

impl Answer {
    /// Its kind.
    pub fn kind(&self) -> AnswerKind {
        match self {
            Self::Approve => AnswerKind::Approve,
            Self::Edit { .. } => AnswerKind::Edit,
            Self::Reject { .. } => AnswerKind::Reject,
            Self::Respond { .. } => AnswerKind::Respond,
            Self::Answer { .. } => AnswerKind::Answer,
            Self::Decline => AnswerKind::Decline,
            Self::Pass => AnswerKind::Pass,
            Self::Fail { .. } => AnswerKind::Fail,
        }
    }

    /// The text that it carries.
    fn text(&self) -> &str {
        match self {
            Self::Approve | Self::Decline | Self::Pass => "",
            Self::Fail { feedback: text }
            | Self::Edit { arguments: text }
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
            Self::Pass => f.write_str("passed it"),
            Self::Fail { feedback } => write!(f, "failed it: {feedback}"),
        }
    }
}

/// The calls that an answer also decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Named)]
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
    /// `true` for the default.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct StandingAnswer {
    /// The capability whose agents make the calls.
    pub capability: Capability,
    /// The tool.
    pub tool: String,
    /// The digest of the calls; `null` for all calls of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The person.
    pub by: String,
    /// The decision: [`Answer::Approve`] or [`Answer::Reject`].
    #[api(form(PersonAnswerJson<'a>), flatten)]
    pub answer: Answer,
}

impl StandingAnswer {
    /// `true` if it decides a question of an agent of this capability.
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
            (Answer::Fail { feedback }, _) if feedback.trim().is_empty() => {
                Err("the feedback is empty; say what the next attempt must do better".into())
            }
            (
                Answer::Approve
                | Answer::Edit { .. }
                | Answer::Reject { .. }
                | Answer::Respond { .. }
                | Answer::Answer { .. }
                | Answer::Decline
                | Answer::Pass
                | Answer::Fail { .. },
                QuestionSubject::Approval { .. }
                | QuestionSubject::Input { .. }
                | QuestionSubject::Review { .. }
                | QuestionSubject::Plan { .. },
            ) => Ok(()),
        }
    }

    /// The tool whose call needs the approval, if it is one.
    pub fn tool(&self) -> Option<&str> {
        match &self.subject {
            QuestionSubject::Approval { tool, .. } => Some(tool),
            QuestionSubject::Input { .. } | QuestionSubject::Review { .. } | QuestionSubject::Plan { .. } => {
                None
            }
        }
    }

    /// The answer that its expiry gives, if that is one.
    pub fn answer_of_expiry(&self) -> Answer {
        const NO_ANSWER: &str = "nobody answered in time";
        match self.subject {
            QuestionSubject::Approval { .. } | QuestionSubject::Plan { .. } => {
                Answer::Reject { message: NO_ANSWER.into() }
            }
            QuestionSubject::Input { .. } => Answer::Decline,
            QuestionSubject::Review { .. } => Answer::Fail { feedback: NO_ANSWER.into() },
        }
    }
}

fn parse_json(text: &str, what: &str) -> Result<serde_json::Value, String> {
    parse_foreign_json(text).map_err(|error| format!("{what} must be JSON: {error}"))
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
            QuestionSubject::Review { summary, .. } if self.to.is_empty() => {
                write!(f, "a person's judgement of \"{}\"", shorten(summary))
            }
            QuestionSubject::Review { summary, .. } => {
                write!(f, "the judgement of {} on \"{}\"", self.to, shorten(summary))
            }
            QuestionSubject::Plan { tasks: 1 } => f.write_str("the approval of the plan, which has 1 task"),
            QuestionSubject::Plan { tasks } => {
                write!(f, "the approval of the plan, which has {tasks} tasks")
            }
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
            ("plan/1", true),
            ("plan/2.3", true),
            ("plan/1/2", true),
            ("plan/0", false),
            ("plan", false),
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
