//! The answers that agents of the built-in roles give, and how each becomes a task's result.
//!
//! - [`Findings`]: text with citations of passages of the run's documents.
//! - [`Report`]: text with citations of the sources of earlier results.

pub(crate) mod findings;
mod marks;
mod repetition;
mod report;

pub use findings::{Findings, Passage};
pub(crate) use repetition::find_repeated_result;
pub use report::Report;
pub(crate) use report::{NumberedResults, remove_source_list};
