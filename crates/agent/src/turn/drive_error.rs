//! The reason that the work could not be finished, and the form of a step's value in the journal.

use millrace_protocol::plan::{ResourceAmounts, TaskSpec};
use millrace_protocol::result::TaskError;
use millrace_protocol::wait::{ProviderWait, Wait};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::UnexpectedInput;
use crate::model::ModelError;

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
pub(super) fn encode_step(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("replies and results hold only texts and numbers")
}

/// Describes a model whose cost is limited and can't be counted.
pub(crate) fn describe_uncounted_cost(model: &str) -> String {
    format!(
        "no price known for {model}, so that its cost, which is limited here, can't be counted; name its price in the file of \
         MILLRACE_PRICES and resume the run, or start it again with a limit of tokens or calls instead of the cost"
    )
}
