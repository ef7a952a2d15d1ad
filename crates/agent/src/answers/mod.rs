//! The answers that agents of the built-in roles give, and how each becomes a task's result.
//!
//! - [`Findings`]: text with citations of passages of the run's documents.
//! - [`Report`]: text with citations of the sources of earlier results.

mod checker;
mod content;
pub(crate) mod findings;
pub(crate) mod labels;
pub(crate) mod report;

pub(crate) use checker::{FindingsChecker, ReportChecker};
pub(crate) use content::find_repeated_result;
pub use findings::{Findings, Passage};
pub(crate) use report::NumberedResults;
pub use report::{Report, remove_source_list};
