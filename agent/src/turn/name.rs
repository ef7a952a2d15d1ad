//! What an attempt is called outside of its journal: in the keys of its calls and in the paths of what it puts aside.

use std::fmt;

use millrace_protocol::plan::Work;
use millrace_protocol::work::Order;

use crate::files::{FilePath, InvalidPath};

/// Where results that are too long for the conversation are put.
const FOLDER: &str = "/large_results";

/// The name of an attempt: `<run>/<task>/<attempt>`; for a review `<run>/<task>/<attempt>/review.<n>`, for planning
/// `<run>/@planning.<turn>/<attempt>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptName {
    run: String,
    work: String,
}

impl AttemptName {
    /// The name of the work of an order.
    #[must_use]
    pub fn of(order: &Order) -> Self {
        let work = match &order.work {
            Work::Task { task, attempt } => format!("{task}/{attempt}"),
            Work::Review { task, attempt, review } => format!("{task}/{attempt}/review.{review}"),
            Work::Planning { turn, attempt } => format!("@planning.{turn}/{attempt}"),
        };
        Self { run: order.run.to_string(), work }
    }

    /// The key of a call: the `index`-th that was run of those in the reply of a turn.
    #[must_use]
    pub fn key(&self, turn: u64, index: usize) -> String {
        format!("{self}/{turn}.{index}")
    }

    /// Where the long result of a call is put.
    pub(super) fn large_result(&self, turn: u64, index: usize) -> Result<FilePath, InvalidPath> {
        FilePath::new(&format!("{FOLDER}/{}/{turn}.{index}.txt", self.work))
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.work)
    }
}
