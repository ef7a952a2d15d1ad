//! The name of an attempt outside of its journal: in the keys of its tool calls and the paths of its stored results.

use std::fmt;

use millrace_protocol::plan::Work;
use millrace_protocol::work::Order;

use crate::files::{FilePath, InvalidFilePath};

/// The folder for results that are too long for the conversation.
const FOLDER: &str = "/large_results";
/// The folder for the conversations of attempts that were shortened.
const HISTORY_FOLDER: &str = "/conversation_history";

/// The name of an attempt: `<run>/<task>/<attempt>`; for a review `<run>/<task>/<attempt>/review.<n>`, for planning
/// `<run>/@planning.<turn>/<attempt>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptName {
    run: String,
    work: String,
}

impl AttemptName {
    /// Names the attempt that an order is for.
    #[must_use]
    pub fn from_order(order: &Order) -> Self {
        let work = match order.work() {
            Work::Task { task, attempt } => format!("{task}/{attempt}"),
            Work::Review { task, attempt, review } => format!("{task}/{attempt}/review.{review}"),
            Work::Planning { turn, attempt } => format!("@planning.{turn}/{attempt}"),
        };
        Self { run: order.run.to_string(), work }
    }

    /// The key of a call: the `index`-th executed call in the reply of a turn.
    pub fn call_key(&self, turn: u64, index: usize) -> String {
        format!("{self}/{turn}.{index}")
    }

    /// The path of the file with the whole conversation.
    pub(super) fn history_path(&self) -> Result<FilePath, InvalidFilePath> {
        FilePath::new(&format!("{HISTORY_FOLDER}/{}.md", self.work))
    }

    /// The path for the long result of a call.
    pub(super) fn large_result_path(&self, turn: u64, index: usize) -> Result<FilePath, InvalidFilePath> {
        FilePath::new(&format!("{FOLDER}/{}/{turn}.{index}.txt", self.work))
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.work)
    }
}
