//! What work comes back with: a task's result with its sources and quotations, a critic's verdict, a planner's
//! proposal, and errors. These are the words that workers, critics and models speak.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{Edit, Review, TaskSpec};

/// What a task produced. Sources are named by their ids in `output` as `[S1]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TaskResult {
    /// One or two sentences, for the board; at most [`MAX_SUMMARY`] characters are kept on the plan.
    pub summary: String,
    /// The result itself, as Markdown. Never empty in a result that passes.
    pub output: String,
    /// What the reader of the result should know beside it: gaps, doubts, what was not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// The sources that `output` and `quotations` name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Passages taken from sources word for word.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotations: Vec<Quotation>,
    /// Structured output, in the form the capability says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// What it cost.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model, as far as that is known.
    #[serde(skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
}

/// How many characters of a summary the plan keeps.
pub const MAX_SUMMARY: usize = 280;

impl TaskResult {
    /// Whether there is text in it beyond the summary.
    #[must_use]
    pub fn is_detailed(&self) -> bool {
        let output = self.output.trim();
        !output.is_empty() && output != self.summary.trim()
    }

    /// Whether there is nothing in it that somebody could use. Such a result never passes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.output.trim().is_empty() && self.data.as_ref().is_none_or(Value::is_null)
    }
}

/// Something a result rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// The name that the result uses for it, such as `S1`; unique within the result.
    pub id: String,
    /// What it is.
    pub kind: SourceKind,
    /// Its title, for the list of sources.
    pub title: String,
    /// Where it is: a path below the documents' folder, or a URL.
    pub location: String,
    /// The SHA-256 of its bytes in hexadecimal, where it was read whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// The kinds of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A document handed in with the run.
    Document,
    /// A page on the web.
    Web,
    /// Program text.
    Code,
    /// A data set or a query's answer.
    Data,
    /// Anything else.
    Other,
}

/// A passage of a source, word for word. `first_line` and `last_line` count from 1, both included, in the source's
/// readable text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quotation {
    /// The id of the source.
    pub source: String,
    /// The words. White space may be folded; nothing else may differ.
    pub text: String,
    /// Where the passage begins.
    pub first_line: u32,
    /// Where it ends.
    pub last_line: u32,
}

/// What was used of the things that cost money.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Calls to a model.
    pub model_calls: u64,
    /// Calls to tools.
    pub tool_calls: u64,
    /// Tokens sent, those from and to the provider's cache included.
    pub input_tokens: u64,
    /// Tokens received, those of hidden reasoning included.
    pub output_tokens: u64,
    /// Of the tokens sent, those that the provider had in its cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Of the tokens sent, those that the provider put into its cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Of the tokens received, those of hidden reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// What it cost, in millionths of a US dollar, as far as prices are known.
    #[serde(skip_serializing_if = "is_zero")]
    pub cost_micros: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// Whether nothing was used.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what another piece of work used. The figures are what workers claim, so that none may overflow.
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

/// What was used, by the model that it was used of.
pub type ModelUsage = BTreeMap<String, Usage>;

/// Why an attempt at a task ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct TaskError {
    /// What kind of failure it was; decides whether trying again can help.
    pub kind: ErrorKind,
    /// What went wrong, for a person: what, where, and what to do. At most [`MAX_MESSAGE`] characters are kept on the
    /// plan.
    pub message: String,
    /// Which limit was reached, where it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// What had been used by then.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model, as far as that is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: ModelUsage,
    /// What had been produced by then, at most [`MAX_PRODUCED`] characters. It stays in the journal; the plan does
    /// without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced: Option<String>,
}

/// How many characters of an error's text the plan keeps.
pub const MAX_MESSAGE: usize = 4_000;

/// How many characters an attempt that failed may leave of what it had produced.
pub const MAX_PRODUCED: usize = 16_000;

/// The limits of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Replies of the model.
    Turns,
    /// Calls of tools.
    ToolCalls,
    /// The same call again and again.
    IdenticalCalls,
    /// Tokens sent.
    InputTokens,
    /// Tokens received.
    OutputTokens,
    /// Tokens sent that the provider had in its cache.
    CachedTokens,
    /// Money.
    Cost,
    /// What was reserved of the run's budget.
    Allowance,
    /// Working time.
    Time,
    /// What the model can hold of a conversation, after it was made shorter twice.
    Context,
}

impl TaskError {
    /// An error of a kind with its text.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            limit: None,
            usage: Usage::default(),
            models: ModelUsage::new(),
            produced: None,
        }
    }
}

/// The kinds of failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The task as it stands can't be done: wrong parameters, nothing to work on. Trying again can't help.
    InvalidTask,
    /// The parameters are not what the capability takes. The task waits for others.
    WrongParameters,
    /// The model's service failed or refused.
    Model,
    /// A tool failed in a way that the agent could not work around.
    Tool,
    /// A limit of the attempt was reached: turns, calls, tokens.
    Limit,
    /// The capability's code panicked or broke a rule of its own.
    Panic,
    /// Too many workers claimed the attempt and were lost.
    Abandoned,
    /// It may have changed something outside that must not be changed twice, and nobody knows whether it did. Trying
    /// again is for a person to decide.
    Unclear,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// Whether a new attempt may succeed where this one failed.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        match self {
            Self::InvalidTask | Self::WrongParameters | Self::Unclear => false,
            Self::Model | Self::Tool | Self::Limit | Self::Panic | Self::Abandoned | Self::Other => true,
        }
    }
}

/// A critic's judgement of one attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Whether the result is accepted.
    pub passed: bool,
    /// Each criterion with its outcome; never empty.
    pub criteria: Vec<CriterionOutcome>,
    /// Why, for a person.
    pub reasoning: String,
    /// What the next attempt should do differently, where it did not pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// How sure the critic is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Where several models judged: what each of them said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opinions: Vec<Opinion>,
    /// What the review cost.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model, as far as that is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: ModelUsage,
}

/// What one of several models said of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Opinion {
    /// The model.
    pub model: String,
    /// Whether it accepts the result.
    pub passed: bool,
    /// Why.
    pub reasoning: String,
    /// How sure it is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// One criterion of a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CriterionOutcome {
    /// What was asked.
    pub criterion: String,
    /// Whether the result answers it.
    pub met: bool,
    /// What is missing, where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
}

impl Verdict {
    /// What makes a verdict contradict itself, if anything does: no criteria at all, passed with a criterion that
    /// is not met, rejected with all of them met, or a confidence that is none.
    #[must_use]
    pub fn inconsistency(&self) -> Option<&'static str> {
        if self.confidence.is_some_and(|confidence| !(0.0..=1.0).contains(&confidence)) {
            return Some("its confidence is not between 0 and 1");
        }
        let met = self.criteria.iter().filter(|c| c.met).count();
        match (self.criteria.len(), self.passed) {
            (0, _) => Some("it names no criteria"),
            (all, true) if met < all => Some("it passes a result with a criterion that is not met"),
            (all, false) if met == all => Some("it rejects a result that meets every criterion"),
            (_, true | false) => None,
        }
    }
}

/// What a planner's turn comes to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Proposal {
    /// Why, for a person.
    pub reasoning: String,
    /// Tasks to add; they may depend on each other and on tasks of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSpec>,
    /// Further changes of the plan, in order, behind the tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
}

impl Proposal {
    /// All that it wants, in order.
    pub fn all(&self) -> impl Iterator<Item = Edit> + '_ {
        let tasks = (!self.tasks.is_empty()).then(|| Edit::Add(self.tasks.clone()));
        tasks.into_iter().chain(self.edits.iter().cloned())
    }
}

/// What a capability says of itself to the cluster's registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapabilityDescription {
    /// Its name.
    pub name: crate::ids::Capability,
    /// What it does, for planners and people.
    pub description: String,
    /// The JSON Schema of a task's parameters; `None` accepts any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// The JSON Schema of its results' `data`; `None` promises nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// What critics ask of every result of it, on top of what a task's own review asks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// How its results are judged where a task does not say.
    #[serde(default, skip_serializing_if = "Review::is_none")]
    pub review: Review,
    /// How it answers a short question of another agent; `None` if it can't be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consult: Option<Consult>,
}

impl CapabilityDescription {
    /// A capability that takes any parameters.
    #[must_use]
    pub fn new(name: crate::ids::Capability, description: impl Into<String>) -> Self {
        Self {
            name,
            description: description.into(),
            parameters: None,
            output: None,
            criteria: Vec::new(),
            review: Review::None,
            consult: None,
        }
    }
}

/// How a capability answers a short question: one reply of a model, without tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consult {
    /// The instructions that stand above the question.
    pub instructions: String,
    /// The model that answers; `None` takes the one of whoever asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// A task's parameters: named JSON values.
pub type Parameters = BTreeMap<String, Value>;
