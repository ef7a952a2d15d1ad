//! How an agent's work ends: with an answer, at a limit, or with a fault on the way, and what each means for the
//! attempt. It owns the words; the machine and its driver choose among them.

use std::time::Duration;

use millrace_protocol::plan::Dimension;
use millrace_protocol::result::{ErrorKind, Limit, ModelUsage, TaskError, Usage};
use serde::{Deserialize, Serialize};

use super::{Dollars, DriveError, Spent};
use crate::model::ModelError;

/// How the work ended and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended<A> {
    /// How it ended.
    pub outcome: Outcome<A>,
    /// Model calls, tool calls and tokens of the whole work.
    pub usage: Usage,
    /// The same by model.
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
    /// Without an answer: what there is instead, the last words of the model, its notes and its to-do list, at most
    /// [`millrace_protocol::result::MAX_PRODUCED`] characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced: Option<String>,
}

impl<A> Ended<A> {
    /// The answer and what it cost, or the error that the end means for the attempt.
    ///
    /// # Errors
    /// The work ended without an answer.
    pub fn into_result(self) -> Result<(A, Spent), TaskError> {
        match self.outcome {
            Outcome::Answered(answer) => Ok((answer, Spent { usage: self.usage, models: self.models })),
            Outcome::Stopped(stop) => Err(TaskError {
                kind: stop.kind(),
                message: format!("the agent came to no answer: {stop}"),
                limit: stop.limit(),
                usage: self.usage,
                models: self.models,
                produced: self.produced,
            }),
        }
    }
}

/// How the work ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<A> {
    /// With an answer.
    Answered(A),
    /// Without one.
    Stopped(Stop),
}

/// Why the work ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Stop {
    /// The model was asked as often as allowed.
    #[error("no answer after {limit} turns")]
    Turns {
        /// The limit.
        limit: u32,
    },
    /// The model went on calling tools after it was told that its calls are used up.
    #[error("all {limit} tool calls were used up and the model did not answer without them")]
    ToolCalls {
        /// The limit.
        limit: u32,
    },
    /// The model made one call over and over.
    #[error("the call of {tool} with the same arguments was made more than {limit} times")]
    IdenticalCalls {
        /// The tool.
        tool: String,
        /// The limit.
        limit: u32,
    },
    /// Asking again would send more tokens than allowed.
    #[error("{used} of at most {limit} input tokens were sent, and another question would pass the limit")]
    InputTokens {
        /// The limit.
        limit: u64,
        /// What was used.
        used: u64,
    },
    /// All tokens that may be received were.
    #[error("{used} of at most {limit} output tokens were received")]
    OutputTokens {
        /// The limit.
        limit: u64,
        /// What was used.
        used: u64,
    },
    /// The provider's cache gave all that it may.
    #[error("{used} of at most {limit} cached tokens were sent")]
    CachedTokens {
        /// The limit.
        limit: u64,
        /// What was used.
        used: u64,
    },
    /// The money is spent.
    #[error("{used} of at most {limit} were spent")]
    Cost {
        /// The limit.
        limit: Dollars,
        /// What was spent.
        used: Dollars,
    },
    /// What the run's budget had reserved for the attempt is used up.
    #[error(
        "the run's budget had reserved {} for this attempt, {} of it are used, and another question would pass it",
        .dimension.say(*.limit),
        .dimension.say(*.used)
    )]
    Allowance {
        /// What of.
        dimension: Dimension,
        /// What was reserved.
        limit: u64,
        /// What was used.
        used: u64,
    },
    /// The working time is used up.
    #[error("the working time of {limit:?} was used up")]
    Time {
        /// The limit.
        limit: Duration,
    },
    /// The conversation is too long for the model even after it was made shorter.
    #[error(
        "the conversation is too long for the model after it was made shorter {compactions} times: {message}"
    )]
    Context {
        /// How often it was made shorter.
        compactions: u32,
        /// The provider's words.
        message: String,
    },
    /// The answer could not be used, and mending it did not help.
    #[error("the answer could not be used after {repairs} corrections: {mistake}")]
    UnusableAnswer {
        /// How often it was mended.
        repairs: u32,
        /// What was wrong with the last one.
        mistake: String,
    },
    /// The provider's filter cut the reply off.
    #[error("the model's provider filtered the reply")]
    ContentFilter,
}

impl Stop {
    /// The limit that was reached, if it was one.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        match self {
            Self::Turns { .. } => Some(Limit::Turns),
            Self::ToolCalls { .. } => Some(Limit::ToolCalls),
            Self::IdenticalCalls { .. } => Some(Limit::IdenticalCalls),
            Self::InputTokens { .. } => Some(Limit::InputTokens),
            Self::OutputTokens { .. } => Some(Limit::OutputTokens),
            Self::CachedTokens { .. } => Some(Limit::CachedTokens),
            Self::Cost { .. } => Some(Limit::Cost),
            Self::Allowance { .. } => Some(Limit::Allowance),
            Self::Time { .. } => Some(Limit::Time),
            Self::Context { .. } => Some(Limit::Context),
            Self::UnusableAnswer { .. } | Self::ContentFilter => None,
        }
    }

    /// The kind of error it is for the attempt.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.limit().map_or(ErrorKind::Model, |_| ErrorKind::Limit)
    }
}

/// The work could not be carried to its end. What is in the journal stays there.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failure {
    /// Why.
    #[source]
    pub error: Box<DriveError>,
    /// What had been used by then.
    pub spent: Spent,
    /// What had been produced by then, as in [`Ended::produced`].
    pub produced: Option<String>,
}

impl From<Failure> for TaskError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.error.as_ref() {
            DriveError::Model(error) => kind_of(error),
            DriveError::Tool { .. } => ErrorKind::Tool,
            DriveError::Journal(_) => ErrorKind::Other,
            DriveError::Unreadable { .. } | DriveError::OutOfStep(_) => ErrorKind::Panic,
        };
        let message = failure.error.to_string();
        let Spent { usage, models } = failure.spent;
        Self { usage, models, produced: failure.produced, ..Self::new(kind, message) }
    }
}

/// A request that its provider refuses for what it holds will be refused again. Whatever else a provider fails with may
/// be better at another time, or at a worker with another key.
fn kind_of(error: &ModelError) -> ErrorKind {
    match error {
        ModelError::BadRequest { .. } | ModelError::ContentFilter { .. } => ErrorKind::InvalidTask,
        ModelError::RateLimited { .. }
        | ModelError::Overloaded { .. }
        | ModelError::ContextOverflow { .. }
        | ModelError::Authentication { .. }
        | ModelError::Truncated { .. }
        | ModelError::Protocol { .. }
        | ModelError::Timeout { .. }
        | ModelError::Connection { .. } => ErrorKind::Model,
    }
}
