//! The arguments and the structured results of the tools. Their JSON Schemas are what models see, so every field says what to write or what it is.

use millrace_protocol::question::AnswerKind;
use millrace_protocol::result::{SourceLines, StatementVerdict, VerificationPolicy, VerifiedStatement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::feed::EventLevel;
use crate::resources::EditBody;
use crate::standards::api::RunEvent;
use crate::standards::run_view::ErrorView;

/// The longest wait of a call in seconds: many clients give up after a minute.
pub const MAX_WAIT: u64 = 50;
/// The maximum number of events of a call.
pub const MAX_EVENTS: usize = 200;

/// The arguments of `start_run`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRunArguments {
    /// The question to answer or the work to do, in plain language, with everything that the agents need to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// Optional: a plan of your own, `{"tasks": [{"id", "objective", "capability", "depends_on", "parameters", "final"}]}`. Without it, a
    /// planner makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Map<String, Value>>,
    /// Optional: limits, such as `{"tokens": "200k", "time": "30m", "cost": 2.5}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Map<String, Value>>,
    /// Optional: criteria that the deliverable must meet, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// Optional: ids of ended runs whose results the new run builds on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Optional: the name of a session. Its runs run one after the other, and each sees the results of those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Optional: labels to find the run by, such as `{"project": "atlas"}`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
    /// Optional: `true` if the user approves the plan before its first task starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approve_plan: bool,
    /// Optional: `mark`, `remove` or `require`: the consequence of statements that the sources do not support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationPolicy>,
    /// Optional: documents that the agents read and cite.
    #[serde(default, skip_serializing)]
    pub documents: Vec<DocumentArgument>,
    /// Optional: a key of your choice. A repeated call with the same key and arguments returns the same run.
    #[serde(default, skip_serializing)]
    pub key: Option<String>,
}

/// A document for a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentArgument {
    /// The path under which agents cite it, such as `contract.md`.
    pub path: String,
    /// The text.
    pub text: String,
}

/// The arguments of `verify_text`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyArguments {
    /// The text, as Markdown, of at most 256 KiB. It may cite documents, as `[handbook.md:14]`, as links or as footnotes.
    pub text: String,
    /// The documents that the statements are compared with.
    #[serde(default)]
    pub documents: Vec<DocumentArgument>,
    /// Optional: the models, such as `verifier=openai:gpt-5.2`; `verifier=none` lets no model judge.
    #[serde(default)]
    pub models: Vec<String>,
    /// Optional: limits, such as `{"tokens": "200k", "time": "30m", "cost": 2.5}`.
    #[serde(default)]
    pub budget: Option<Map<String, Value>>,
    /// Optional: ids of ended runs whose results and files are documents too.
    #[serde(default)]
    pub after: Vec<String>,
    /// Optional: a key of your choice. A repeated call with the same key and arguments waits for the same verification.
    #[serde(default)]
    pub key: Option<String>,
    /// The longest wait in seconds, 50 by default and at most.
    #[serde(default = "longest_wait")]
    #[schemars(range(min = 0, max = 50))]
    pub timeout_seconds: u64,
}

/// The arguments of tools that need a run only.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunArguments {
    /// The id of the run, as `start_run` and `list_runs` return it.
    pub run: String,
}

/// The arguments of `wait_for_run`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitArguments {
    /// The id of the run.
    pub run: String,
    /// The longest wait in seconds, 50 by default and at most.
    #[serde(default = "longest_wait")]
    #[schemars(range(min = 0, max = 50))]
    pub timeout_seconds: u64,
}

fn longest_wait() -> u64 {
    MAX_WAIT
}

/// The arguments of `read_events`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsArguments {
    /// The id of the run.
    pub run: String,
    /// Only events after this position: `after` of the call before. Absent: from the beginning.
    #[serde(default)]
    pub after: String,
    /// `decisions` (default): tasks, attempts, reviews, questions. `steps`: also each step of the agents.
    #[serde(default)]
    pub level: EventsLevel,
    /// The longest wait for the first event in seconds, 0 by default.
    #[serde(default)]
    #[schemars(range(min = 0, max = 50))]
    pub timeout_seconds: u64,
    /// The maximum number of events, 50 by default.
    #[serde(default = "default_events")]
    #[schemars(range(min = 1, max = 200))]
    pub limit: usize,
}

fn default_events() -> usize {
    50
}

/// The parts of a run that events have.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventsLevel {
    /// The decisions of the supervisor.
    #[default]
    Decisions,
    /// Also the steps of the agents.
    Steps,
}

impl From<EventsLevel> for EventLevel {
    fn from(level: EventsLevel) -> Self {
        match level {
            EventsLevel::Decisions => Self::Decisions,
            EventsLevel::Steps => Self::Steps,
        }
    }
}

/// The arguments of `list_runs`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRunsArguments {
    /// Optional: only runs in these states, separated by commas, such as `running,paused`.
    #[serde(default)]
    pub state: String,
    /// Optional: only runs with these labels, separated by commas: `NAME=VALUE`.
    #[serde(default)]
    pub label: String,
    /// Optional: only runs whose objective or id has this text.
    #[serde(default)]
    pub text: String,
    /// The maximum number of runs, 20 by default.
    #[serde(default = "default_runs")]
    #[schemars(range(min = 1, max = 100))]
    pub limit: usize,
    /// Optional: `next` of the call before, to continue its list.
    #[serde(default)]
    pub cursor: String,
}

fn default_runs() -> usize {
    20
}

/// The arguments of `list_questions`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuestionsArguments {
    /// Optional: only the questions of this run.
    #[serde(default)]
    pub run: Option<String>,
}

/// The arguments of `answer_question`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerArguments {
    /// The id of the question.
    #[serde(skip_serializing)]
    pub question: String,
    /// The kind of answer, one of the question's `decisions`.
    pub answer: AnswerKind,
    /// With `answer`: the value. With `edit`: the complete arguments of the call.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// With `reject`: the reason. With `respond`: the content. With `fail`: the feedback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The arguments of `message_run`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageArguments {
    /// The id of the run.
    #[serde(skip_serializing)]
    pub run: String,
    /// The message.
    pub text: String,
}

/// The arguments of `resume_run`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeArguments {
    /// The id of the run.
    #[serde(skip_serializing)]
    pub run: String,
    /// Optional: new total limits, such as `{"tokens": "400k"}`; the others stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Map<String, Value>>,
}

/// The arguments of `cancel_run`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelArguments {
    /// The id of the run.
    #[serde(skip_serializing)]
    pub run: String,
    /// Optional: the reason, which is recorded in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The arguments of `retry_task`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryArguments {
    /// The id of the run.
    #[serde(skip_serializing)]
    pub run: String,
    /// The id of the task.
    #[serde(skip_serializing)]
    pub task: String,
    /// Optional: feedback for the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// Optional: changes of the task for the next attempt.
    #[serde(flatten)]
    pub changes: EditBody,
}

/// The arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileArguments {
    /// The id of the run.
    pub run: String,
    /// The path of the file, as `list_files` returns it.
    pub path: String,
}

/// The arguments of tools that need none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

/// The result of `start_run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StartedRun {
    /// The id of the run.
    pub run: String,
}

/// The result of `verify_text`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerificationResult {
    /// The id of the run that verifies the text.
    pub run: String,
    /// Its state: the verdicts are there when it is `completed`.
    pub state: String,
    /// The numbers of statements by verdict, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The statements in order, with their verdicts.
    pub statements: Vec<VerdictResult>,
    /// The last errors of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorView>,
}

/// A statement with its verdict.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerdictResult {
    /// Its words.
    pub text: String,
    /// `supported`, `partly`, `contradicted` or `unsupported` by the documents, or `unverified`: there is no judgement.
    pub verdict: StatementVerdict,
    /// The lines that decided it, such as `handbook.md:14-16`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// The reason.
    pub reason: String,
}

impl From<VerifiedStatement> for VerdictResult {
    fn from(statement: VerifiedStatement) -> Self {
        let VerifiedStatement { text, verdict, lines, reason, .. } = statement;
        let show = |SourceLines { source, first_line, last_line }: SourceLines| match first_line == last_line
        {
            true => format!("{source}:{first_line}"),
            false => format!("{source}:{first_line}-{last_line}"),
        };
        Self { text, verdict, lines: lines.into_iter().map(show).collect(), reason }
    }
}

/// The result of a command.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct CommandResult {
    /// The id of the run.
    pub run: String,
    /// `command_applied`, or `command_accepted` if the command is in the log and no supervisor has decided on it yet.
    #[serde(rename = "type")]
    pub outcome: String,
    /// The changes.
    #[serde(default)]
    pub summary: String,
}

/// The result of `answer_question`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct AnswerResult {
    /// The id of the question.
    pub id: String,
    /// `answered`, or `sent` if the answer is in the log and no supervisor has decided on it yet.
    pub outcome: String,
    /// The outcome in a sentence.
    pub message: String,
}

/// The result of `read_events`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventsResult {
    /// The events, oldest first.
    pub events: Vec<RunEvent>,
    /// The `after` of the next call.
    pub after: String,
    /// `true` if the run has ended and there are no further events.
    pub ended: bool,
}

/// A run in a list.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct ListedRun {
    /// The id of the run.
    pub run: String,
    /// Its state.
    pub state: String,
    /// The current wait; absent while one of its own tasks is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// A description of the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// The beginning of its objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// The number of its open questions.
    pub open_questions: u32,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
}

/// The result of `list_runs`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct RunsResult {
    /// The runs, newest first.
    pub runs: Vec<ListedRun>,
    /// The `cursor` of the next call; empty at the end.
    pub next: String,
}

/// A capability.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct CapabilityResult {
    /// The name, as tasks of a plan name it.
    pub name: String,
    /// The description for planners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The number of workers that have it.
    pub workers: u64,
    /// The parameters and the output, as JSON Schemas.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub interface: Value,
}

/// The result of `list_capabilities`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct CapabilitiesResult {
    /// The capabilities.
    pub capabilities: Vec<CapabilityResult>,
}

/// A file of a run.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct FileResult {
    /// The path.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The version, from 1.
    pub version: u64,
    /// The author.
    pub author: String,
}

/// The result of `list_files`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct FilesResult {
    /// The files.
    pub files: Vec<FileResult>,
}
