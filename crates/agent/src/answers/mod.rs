//! The answers that agents of the built-in roles give, and how each becomes a task's result.
//!
//! - [`Findings`]: text with citations of passages of the run's documents.
//! - [`Report`]: text with citations of the sources of earlier results.

pub(crate) mod findings;
mod marks;
mod report;

pub use findings::{Findings, Passage};
pub(crate) use report::NumberedResults;
pub use report::Report;
