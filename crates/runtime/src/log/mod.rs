//! The log: one stream per lane, in which every run has a subject per topic. Appends are fenced, reads are ordered by
//! sequence.

mod append;
pub mod follow;
pub mod journal;
pub mod lane;
mod read;

pub(crate) use append::append_payload;
pub use append::{AppendError, append_message, publish_message};
pub use read::{
    SubmittedRun, SubmittedRuns, has_submission, list_submitted_runs, measure_lane_lag, purge_run,
    read_lane_end, read_message, read_run, read_run_pages, read_topic,
};
