//! Results of work: a task's result with its sources and quotations, a critic's verdict, a planner's proposal, and
//! errors. Workers, critics and models produce them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_api_form::{ApiForm, Named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::FilePath;
use crate::plan::{Edit, ReviewPolicy, TaskSpec};

/// The result of a task. `output` cites sources by their ids, as `[S1]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TaskResult {
    /// One or two sentences for the board; the plan keeps at most [`MAX_SUMMARY`] characters.
    pub summary: String,
    /// The result itself, as Markdown. A result without it never passes.
    pub output: String,
    /// Notes for the reader: gaps, doubts, searches without a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// The sources that `output` and `quotations` cite.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Verbatim passages of sources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotations: Vec<Quotation>,
    /// Structured output, in the form that the capability declares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The model that wrote `output`, if its statements were to be verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The statements of `output` with their verdicts, in order; empty if it was not verified.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<VerifiedStatement>,
    /// The files of the run's workspace that the attempt made or changed, by path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// `false` if the task was a question and the result does not answer it. `None` if the capability does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub answered: Option<bool>,
    /// The usage of the attempt.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model, as far as it is known.
    #[serde(skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
}

/// The maximum length of a summary on the plan, in characters.
pub const MAX_SUMMARY: usize = 280;

impl TaskResult {
    /// `true` if it has text beyond the summary.
    pub fn is_detailed(&self) -> bool {
        let output = self.output.trim();
        !output.is_empty() && output != self.summary.trim()
    }

    /// `false` if it states that it does not answer its question.
    pub fn is_answered(&self) -> bool {
        self.answered != Some(false)
    }

    /// `true` if it has no usable content. Such a result never passes.
    pub fn is_empty(&self) -> bool {
        self.output.trim().is_empty() && self.data.as_ref().is_none_or(Value::is_null)
    }
}

/// A version of a file that an attempt made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// Its path.
    pub path: FilePath,
    /// The version.
    pub version: u64,
    /// The size of its content in bytes.
    pub bytes: u64,
    /// The SHA-256 of its content in hexadecimal.
    pub sha256: String,
}

/// A source of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// Its id in the result, such as `S1`; unique within the result.
    pub id: String,
    /// Its kind.
    pub kind: SourceKind,
    /// Its title, for the list of sources.
    pub title: String,
    /// Its address: a path below the documents folder, or a URL.
    pub location: String,
    /// The SHA-256 of its bytes in hexadecimal, if it was read completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The time at which it was read, if it may change. The SHA-256 is then that of its text in lines, which is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub accessed_at: Option<Timestamp>,
}

/// The kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A document that was submitted with the run.
    Document,
    /// A web page.
    Web,
    /// Source code.
    Code,
    /// A data set or the result of a query.
    Data,
    /// Other.
    Other,
}

/// A verbatim passage of a source. `first_line` and `last_line` count from 1, both inclusive, in the source's extracted
/// text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quotation {
    /// The id of the source.
    pub source: String,
    /// The text. White space may be normalised; nothing else may differ.
    pub text: String,
    /// Its first line.
    pub first_line: u32,
    /// Its last line.
    pub last_line: u32,
    /// The page, slide, sheet or section of the source, such as `page 3`, in formats that have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A statement of a result with its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedStatement {
    /// Its words, without marks and markup.
    pub text: String,
    /// The position of its first character in `output`, in Unicode characters from 0.
    pub start: u32,
    /// The position after its last character, marks included.
    pub end: u32,
    /// The verdict.
    pub verdict: StatementVerdict,
    /// The lines that decided it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<SourceLines>,
    /// Its finder: `quotation`, `figure` or `model NAME`; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_by: Option<Finder>,
    /// The reason, for a person.
    pub reason: String,
    /// The probability with which the model calls it supported, from 0 to 1, if its server gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// `true` if it was taken out of `output`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// The consequence for a result that has statements which the sources refute or which are not verified. A result with a refuted statement
/// is sent back to its author once before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationPolicy {
    /// They are delivered with a mark.
    #[default]
    Mark,
    /// Those with an invented figure or quotation and those that the sources contradict are taken out; the others are marked.
    Remove,
    /// A result with a statement that is neither supported nor supported in part fails its attempt.
    Require,
}

/// The relation of the sources to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatementVerdict {
    /// They say it.
    Supported,
    /// They say a part of it, or add a condition.
    Partly,
    /// They say the opposite.
    Contradicted,
    /// They do not say it.
    Unsupported,
    /// There is no judgement.
    Unverified,
}

impl VerifiedStatement {
    /// `true` if the sources contradict it, or if no source has one of its figures or quotations.
    pub fn is_refuted(&self) -> bool {
        match self.verdict {
            StatementVerdict::Contradicted => true,
            StatementVerdict::Unsupported => {
                matches!(self.found_by, Some(Finder::Figure | Finder::Quotation))
            }
            StatementVerdict::Supported | StatementVerdict::Partly | StatementVerdict::Unverified => false,
        }
    }

    /// `true` if it is in the text and is neither supported nor supported in part.
    pub fn is_open(&self) -> bool {
        !self.removed && !matches!(self.verdict, StatementVerdict::Supported | StatementVerdict::Partly)
    }

    /// The verdict for a person, with the model that gave it, such as `not supported (model openai:gpt-5.2)`.
    pub fn outcome(&self) -> String {
        match &self.found_by {
            Some(finder @ Finder::Model(_)) => {
                format!("{} ({})", self.verdict.name(), String::from(finder.clone()))
            }
            Some(Finder::Quotation | Finder::Figure) | None => self.verdict.name().to_owned(),
        }
    }
}

impl StatementVerdict {
    /// Its name for a person.
    pub fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Partly => "supported in part",
            Self::Contradicted => "contradicted",
            Self::Unsupported => "not supported",
            Self::Unverified => "not verified",
        }
    }
}

/// The finder of a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum Finder {
    /// The words are in the sources, or are not.
    Quotation,
    /// No source has one of its figures.
    Figure,
    /// The model with this full name.
    Model(String),
}

impl From<Finder> for String {
    fn from(finder: Finder) -> Self {
        match finder {
            Finder::Quotation => "quotation".into(),
            Finder::Figure => "figure".into(),
            Finder::Model(name) => format!("model {name}"),
        }
    }
}

impl TryFrom<String> for Finder {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "quotation" => Ok(Self::Quotation),
            "figure" => Ok(Self::Figure),
            other => match other.strip_prefix("model ") {
                Some(name) => Ok(Self::Model(name.to_owned())),
                None => Err(format!("\"{text}\" is not quotation, figure or model NAME")),
            },
        }
    }
}

/// Lines of a source, from 1, both inclusive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct SourceLines {
    /// The location of the source.
    pub source: String,
    /// The first line.
    pub first_line: u32,
    /// The last line.
    pub last_line: u32,
}

/// Usage of models and tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Model calls.
    pub model_calls: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Input tokens, including those read from and written to the provider's cache.
    pub input_tokens: u64,
    /// Output tokens, including hidden reasoning.
    pub output_tokens: u64,
    /// Input tokens that were read from the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Input tokens that were written to the provider's cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Output tokens of hidden reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// The cost in millionths of a US dollar, as far as prices are known.
    #[serde(skip_serializing_if = "is_zero")]
    pub cost_micros: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// `true` if nothing was used.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the usage of another piece of work. Workers report the figures, so an overflow saturates.
    pub fn add(&mut self, other: Self) {
        self.model_calls = self.model_calls.saturating_add(other.model_calls);
        self.tool_calls = self.tool_calls.saturating_add(other.tool_calls);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
        self.cost_micros = self.cost_micros.saturating_add(other.cost_micros);
    }
}

/// Usage by model.
pub type ModelUsage = BTreeMap<String, Usage>;

/// An error that ended an attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct TaskError {
    /// The kind of failure; it decides whether a retry can help.
    pub kind: ErrorKind,
    /// A text for a person: the problem, its place, and a way out. The plan keeps at most [`MAX_MESSAGE`] characters.
    pub message: String,
    /// The limit that was reached, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExceededLimit>,
    /// The usage of the attempt until the error.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model, as far as it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: ModelUsage,
    /// `true` if the model's provider refused the request for good: a wrong key, no credit, no such model. Neither waiting
    /// nor another attempt helps; the run can be resumed when a person has mended it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_refused_by_provider: bool,
    /// The output of the attempt until the error, at most [`MAX_PRODUCED`] characters. It stays in the journal; the plan
    /// does not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced: Option<String>,
}

/// The maximum length of an error message on the plan, in characters.
pub const MAX_MESSAGE: usize = 4_000;

/// The maximum length of the output that a failed attempt leaves, in characters.
pub const MAX_PRODUCED: usize = 16_000;

/// A limit of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExceededLimit {
    /// Model replies.
    Turns,
    /// Tool calls.
    ToolCalls,
    /// Repetitions of the same call.
    IdenticalCalls,
    /// Input tokens.
    InputTokens,
    /// Output tokens.
    OutputTokens,
    /// Input tokens read from the provider's cache.
    CachedTokens,
    /// Cost.
    Cost,
    /// The reservation of the run's budget.
    Allowance,
    /// Run time.
    Time,
    /// The model's context window, after the conversation was compacted twice.
    Context,
}

impl TaskError {
    /// Creates an error without usage.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            limit: None,
            usage: Usage::default(),
            models: ModelUsage::new(),
            is_refused_by_provider: false,
            produced: None,
        }
    }
}

/// The kind of failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Named)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The task can't be done as it is: invalid input, nothing to work on. A retry can't help.
    InvalidTask,
    /// The capability rejects the parameters. The task waits until they are changed.
    WrongParameters,
    /// The model's provider failed or refused.
    Model,
    /// A tool failed and the agent found no way around it.
    Tool,
    /// A limit of the attempt was reached: turns, calls, tokens.
    Limit,
    /// The capability's code panicked or broke the protocol.
    Panic,
    /// Too many workers claimed the attempt and were lost.
    Abandoned,
    /// The attempt may have had an external effect that must not happen twice, and its outcome is unknown. A person must
    /// decide on a retry.
    Unclear,
    /// Other.
    Other,
}

impl ErrorKind {
    /// `true` if a new attempt may succeed.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::InvalidTask | Self::WrongParameters | Self::Unclear => false,
            Self::Model | Self::Tool | Self::Limit | Self::Panic | Self::Abandoned | Self::Other => true,
        }
    }
}

/// A critic's verdict on one attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// `true` if the result is accepted.
    pub passed: bool,
    /// Each criterion with its outcome; never empty.
    pub criteria: Vec<CriterionOutcome>,
    /// The reasoning, for a person.
    pub reasoning: String,
    /// Feedback for the next attempt, if it did not pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// The critic's confidence, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The opinion of each model, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opinions: Vec<JudgeOpinion>,
    /// The usage of the review.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model, as far as it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: ModelUsage,
}

/// The opinion of one of several models about a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Opinion")]
pub struct JudgeOpinion {
    /// The model.
    pub model: String,
    /// `true` if it accepts the result.
    pub passed: bool,
    /// Its reasoning.
    pub reasoning: String,
    /// Its confidence, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// The outcome of one criterion of a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CriterionOutcome {
    /// The criterion.
    pub criterion: String,
    /// `true` if the result meets it.
    pub met: bool,
    /// The gap, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
}

impl Verdict {
    /// Returns the contradiction in a verdict, if there is one: no criteria, passed with an unmet criterion, rejected with
    /// all criteria met, or an invalid confidence.
    pub fn find_inconsistency(&self) -> Option<&'static str> {
        if self.confidence.is_some_and(|confidence| !(0.0..=1.0).contains(&confidence)) {
            return Some("its confidence is not between 0 and 1");
        }
        let met = self.criteria.iter().filter(|c| c.met).count();
        match (self.criteria.len(), self.passed) {
            (0, _) => Some("it has no criteria"),
            (all, true) if met < all => Some("it passes a result with an unmet criterion"),
            (all, false) if met == all => Some("it rejects a result that meets every criterion"),
            (_, true | false) => None,
        }
    }
}

/// The result of a planning turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Proposal")]
pub struct PlanProposal {
    /// The reasoning, for a person.
    pub reasoning: String,
    /// Tasks to add; they may depend on each other and on tasks of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSpec>,
    /// Further edits of the plan, applied in order after the tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    /// The reason for a plain plan that was made without the planner's model; `None` for the planner's own plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

impl PlanProposal {
    /// Returns all edits, in order.
    pub fn all_edits(&self) -> impl Iterator<Item = Edit> + '_ {
        let tasks = (!self.tasks.is_empty()).then(|| Edit::Add(self.tasks.clone()));
        tasks.into_iter().chain(self.edits.iter().cloned())
    }
}

/// The schemas of the input and output of a capability.
// With its name and description, in the cluster's registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
#[api(name = "CapabilityInterface")]
pub struct CapabilityDescription {
    #[api(skip)]
    pub name: crate::ids::Capability,
    /// A description for planners and users.
    #[api(skip)]
    pub description: String,
    /// The JSON Schema of a task's parameters; `null` accepts any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// The JSON Schema of `data` in its results; `null` declares none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The criteria that critics check for every result of it.
    // In addition to those of the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// The review of its results, if the task declares none.
    #[serde(default, skip_serializing_if = "ReviewPolicy::is_none")]
    pub review: ReviewPolicy,
    /// Its settings for short questions of other agents; `None` if it answers none.
    #[api(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consult: Option<ConsultSettings>,
    /// Its version.
    #[api(optional)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<CapabilityVersion>,
}

impl CapabilityDescription {
    /// Creates a description that accepts any parameters.
    #[must_use]
    pub fn new(name: crate::ids::Capability, description: impl Into<String>) -> Self {
        Self {
            name,
            description: description.into(),
            parameters: None,
            output: None,
            criteria: Vec::new(),
            review: ReviewPolicy::None,
            consult: None,
            version: None,
        }
    }
}

/// The version of a capability: of the file that defines it, and of the program that the file starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapabilityVersion {
    /// The version that its author gave it, such as `2026-11-24` or `3.1`; at most [`MAX_VERSION`] characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// SHA-256 of its capability file, in hexadecimal; absent if no file defines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// SHA-256 of the files of the program that a capability of the kind `command` starts, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_sha256: Option<String>,
}

/// The maximum length of a capability's version in characters.
pub const MAX_VERSION: usize = 100;

/// The software that does a piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// The program and its version, such as `millrace 0.5.0`.
    pub program: String,
    /// The version of the capability; absent if it has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<CapabilityVersion>,
}

/// The settings with which a capability answers a short question: one model reply, without tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsultSettings {
    /// The instructions, placed before the question.
    pub instructions: String,
    /// The model that answers; `None` uses the model of the asking agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}
