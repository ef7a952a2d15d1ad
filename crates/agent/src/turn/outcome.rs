//! The end of an agent's work: with an answer, at a limit, or with a fault, and what each means for the attempt. It owns
//! the messages; the machine and its driver choose among them.
//!
//! Usage totals of a piece of work, in total and by model. Arithmetic only.
//!
//! The reason that the work could not be finished, and the form of a step's value in the journal.

use std::time::Duration;

use millrace_protocol::plan::{ResourceAmounts, ResourceKind, TaskSpec};
use millrace_protocol::result::{Artifact, ErrorKind, ExceededLimit, ModelUsage, TaskError, Usage};
use millrace_protocol::wait::{ProviderWait, Wait};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Dollars, UnexpectedInput};
use crate::model::ModelError;

/// The outcome of an agent's work and its usage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkSummary<A> {
    pub outcome: WorkOutcome<A>,
    /// Model calls, tool calls and tokens of all the work.
    pub usage: Usage,
    /// The same by model.
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
    /// The files that it made or changed, by path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The partial result in place of an answer: the model's last text, its notes and its to-do list, at most
    /// [`millrace_protocol::result::MAX_PRODUCED`] characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced: Option<String>,
}

impl<A> WorkSummary<A> {
    /// Returns the answer, or the error that the outcome means for the attempt.
    pub fn into_result(self) -> Result<AnsweredWork<A>, TaskError> {
        match self.outcome {
            WorkOutcome::Answered(answer) => {
                let spent = UsageTotals { usage: self.usage, models: self.models };
                Ok(AnsweredWork { answer, spent, artifacts: self.artifacts })
            }
            WorkOutcome::Stopped(stop) => {
                let spent = UsageTotals { usage: self.usage, models: self.models };
                Err(stop.into_task_error(spent, self.produced))
            }
        }
    }
}

/// Work that ended with an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AnsweredWork<A> {
    pub answer: A,
    /// The usage of the work.
    pub spent: UsageTotals,
    /// The files that it made or changed, by path.
    pub artifacts: Vec<Artifact>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkOutcome<A> {
    Answered(A),
    /// No answer.
    Stopped(StopReason),
}

/// The reason that the work ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum StopReason {
    /// The limit of model turns was reached.
    #[error("no answer after {limit} turns")]
    Turns { limit: u32 },
    /// The model kept calling tools after the notice that its calls are used up.
    #[error("all {limit} tool calls were used up and the model did not answer without them")]
    ToolCalls { limit: u32 },
    /// The model repeated one call too often.
    #[error(
        "the tool {tool} was called more than {limit} times with the same arguments and the same result while nothing else changed \
         (`limits: {{identical_calls: …}}` in the capability)"
    )]
    IdenticalCalls { tool: String, limit: u32 },
    /// The next request would exceed the input tokens.
    #[error("{used} of at most {limit} input tokens were sent, and the next request would exceed the limit")]
    InputTokens {
        limit: u64,
        /// The amount used.
        used: u64,
    },
    /// The output tokens are used up.
    #[error("{used} of at most {limit} output tokens were received")]
    OutputTokens {
        limit: u64,
        /// The amount used.
        used: u64,
    },
    /// The cached tokens are used up.
    #[error("{used} of at most {limit} cached tokens were sent")]
    CachedTokens {
        limit: u64,
        /// The amount used.
        used: u64,
    },
    /// The money is spent.
    #[error("{used} of at most {limit} were spent")]
    Cost {
        limit: Dollars,
        /// The amount spent.
        used: Dollars,
    },
    /// The attempt's reservation in the run's budget is used up.
    #[error(
        "the run's budget reserved {} for this attempt, {} of it are used, and the next request would exceed it",
        .dimension.format_amount(*.limit),
        .dimension.format_amount(*.used)
    )]
    Allowance {
        /// The dimension of the budget.
        dimension: ResourceKind,
        /// The reserved amount.
        limit: u64,
        /// The amount used.
        used: u64,
    },
    /// The working time is used up.
    #[error("the working time of {limit:?} was used up")]
    Time { limit: Duration },
    /// The conversation is too long for the model even after compaction.
    #[error(
        "the conversation is too long for the model after it was compacted {compactions} times: {message}"
    )]
    Context {
        /// The number of compactions.
        compactions: u32,
        /// The provider's message.
        message: String,
    },
    /// The answer was invalid and corrections did not help.
    #[error("the answer was still invalid after {repairs} corrections: {mistake}")]
    UnusableAnswer {
        /// The number of corrections.
        repairs: u32,
        /// The mistake in the last answer.
        mistake: String,
    },
    /// The provider's content filter cut the reply off.
    #[error("the model's provider filtered the reply")]
    ContentFilter,
}

impl StopReason {
    /// The error that it means for the attempt.
    #[must_use]
    pub fn into_task_error(self, spent: UsageTotals, produced: Option<String>) -> TaskError {
        TaskError {
            kind: self.error_kind(),
            message: format!("the agent gave no answer: {self}"),
            limit: self.reached_limit(),
            usage: spent.usage,
            models: spent.models,
            is_refused_by_provider: false,
            produced,
        }
    }

    /// The limit that was reached, if it was one.
    pub fn reached_limit(&self) -> Option<ExceededLimit> {
        match self {
            Self::Turns { .. } => Some(ExceededLimit::Turns),
            Self::ToolCalls { .. } => Some(ExceededLimit::ToolCalls),
            Self::IdenticalCalls { .. } => Some(ExceededLimit::IdenticalCalls),
            Self::InputTokens { .. } => Some(ExceededLimit::InputTokens),
            Self::OutputTokens { .. } => Some(ExceededLimit::OutputTokens),
            Self::CachedTokens { .. } => Some(ExceededLimit::CachedTokens),
            Self::Cost { .. } => Some(ExceededLimit::Cost),
            Self::Allowance { .. } => Some(ExceededLimit::Allowance),
            Self::Time { .. } => Some(ExceededLimit::Time),
            Self::Context { .. } => Some(ExceededLimit::Context),
            Self::UnusableAnswer { .. } | Self::ContentFilter => None,
        }
    }

    /// The kind of task error.
    pub fn error_kind(&self) -> ErrorKind {
        self.reached_limit().map_or(ErrorKind::Model, |_| ErrorKind::Limit)
    }
}

/// The work could not be finished. The journal keeps what was recorded.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct WorkFailure {
    /// The reason.
    #[source]
    pub error: Box<DriveError>,
    /// The usage so far.
    pub spent: UsageTotals,
    /// The partial result so far, as in [`WorkSummary::produced`].
    pub produced: Option<String>,
}

impl From<WorkFailure> for TaskError {
    fn from(failure: WorkFailure) -> Self {
        let is_refused_by_provider = match failure.error.as_ref() {
            DriveError::Model(error) => error.is_refusal(),
            DriveError::ProviderAway(_)
            | DriveError::UncountedCost { .. }
            | DriveError::ReservationTooSmall(_)
            | DriveError::Parked(..)
            | DriveError::Tool { .. }
            | DriveError::Host(_)
            | DriveError::Unreadable { .. }
            | DriveError::OutOfStep(_) => false,
        };
        let kind = match failure.error.as_ref() {
            DriveError::Model(error) => error_kind_of_model_error(error),
            DriveError::ProviderAway(_) => ErrorKind::Model,
            // A retry can't help, as with a task that asks for something else.
            DriveError::UncountedCost { .. } => ErrorKind::InvalidTask,
            DriveError::ReservationTooSmall(_) => ErrorKind::Limit,
            DriveError::Tool { .. } => ErrorKind::Tool,
            DriveError::Host(_) | DriveError::Parked(..) => ErrorKind::Other,
            DriveError::Unreadable { .. } | DriveError::OutOfStep(_) => ErrorKind::Panic,
        };
        let message = failure.error.to_string();
        let UsageTotals { usage, models } = failure.spent;
        Self { usage, models, is_refused_by_provider, produced: failure.produced, ..Self::new(kind, message) }
    }
}

/// Maps a model error to a task error. A request that was rejected for its content, its key or its account will be rejected
/// again; any other failure may be transient.
fn error_kind_of_model_error(error: &ModelError) -> ErrorKind {
    match error {
        ModelError::BadRequest { .. }
        | ModelError::UnsupportedSetting { .. }
        | ModelError::ContentFilter { .. }
        | ModelError::Authentication { .. }
        | ModelError::Quota { .. } => ErrorKind::InvalidTask,
        ModelError::RateLimited { .. }
        | ModelError::Overloaded { .. }
        | ModelError::ContextOverflow { .. }
        | ModelError::Truncated { .. }
        | ModelError::Protocol { .. }
        | ModelError::Timeout { .. }
        | ModelError::Paused { .. }
        | ModelError::Connection { .. } => ErrorKind::Model,
    }
}

/// The usage of a piece of work, in total and by model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    /// The total.
    pub usage: Usage,
    /// The same by full model name; usage by tools that call no model is only in [`UsageTotals::usage`].
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
}

impl UsageTotals {
    /// The usage of one model.
    #[must_use]
    pub fn from_model_usage(model: &str, usage: Usage) -> Self {
        Self { usage, models: ModelUsage::from([(model.to_owned(), usage)]) }
    }

    /// Adds the usage of another piece of work.
    pub fn add_totals(&mut self, other: &Self) {
        self.usage.add(other.usage);
        for (model, usage) in &other.models {
            self.models.entry(model.clone()).or_default().add(*usage);
        }
    }
}

/// The reason that the work could not be finished. Everything in the journal is preserved.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The model request failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's provider did not answer for too long. The attempt can continue later.
    #[error("the provider of {} does not answer: {}", .0.model, .0.error)]
    ProviderAway(ProviderWait),
    /// The reservation does not pay for the first request, which needs these amounts; nothing was sent.
    #[error("the first request needs {0}, more than was reserved")]
    ReservationTooSmall(ResourceAmounts),
    /// The cost is limited, and that of this model can't be counted.
    #[error("{}", describe_uncounted_cost(.model))]
    UncountedCost {
        /// The model, as `provider:model`.
        model: String,
    },
    /// Calls wait for something outside. The attempt is parked, and continues when all of these waits have ended. The tasks are
    /// children that the waits are for.
    #[error("{} calls wait for something outside", .0.len())]
    Parked(Vec<Wait>, Vec<TaskSpec>),
    /// A tool's service is unavailable.
    #[error("tool {tool} is unavailable: {reason}")]
    Tool { tool: String, reason: String },
    /// The host can't continue: the journal, the stores.
    #[error("cannot use the journal: {}", .0.message)]
    Host(#[from] TaskError),
    /// A recorded value can't be decoded: it was written by a version that this one does not know.
    #[error("cannot decode the journal's step {name:?}: {reason}")]
    Unreadable {
        /// The step.
        name: String,
        reason: String,
    },
    /// The loop and the machine are out of sync: a bug.
    #[error(transparent)]
    OutOfStep(#[from] UnexpectedInput),
}

/// Decodes the value of a recorded step.
pub(super) fn decode_step<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, DriveError> {
    serde_json::from_value(value)
        .map_err(|mistake| DriveError::Unreadable { name: name.to_owned(), reason: mistake.to_string() })
}

/// Encodes the value of a step for the journal.
pub(crate) fn encode_step(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("replies and results hold only texts and numbers")
}

/// Describes a model whose cost is limited and can't be counted.
pub(crate) fn describe_uncounted_cost(model: &str) -> String {
    format!(
        "no price known for {model}, so that its cost, which is limited here, can't be counted; name its price in the file of \
         MILLRACE_PRICES and resume the run, or start it again with a limit of tokens or calls instead of the cost"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_counted_by_model_and_in_total() {
        let of = |input_tokens| Usage { model_calls: 1, input_tokens, ..Usage::default() };
        let mut spent = UsageTotals::default();
        for (model, input) in [("a:x", 3), ("b:y", 4), ("a:x", 5)] {
            spent.add_totals(&UsageTotals::from_model_usage(model, of(input)));
        }
        let two = Usage { model_calls: 2, ..of(8) };
        assert_eq!(spent.models, ModelUsage::from([("a:x".into(), two), ("b:y".into(), of(4))]));
        assert_eq!((spent.usage.model_calls, spent.usage.input_tokens), (3, 12));
    }
}
