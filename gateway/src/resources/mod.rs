//! The resources, one file each. A handler reads its request, calls `millrace_client` or the store, and returns a type of
//! `millrace_views` as JSON.

mod blobs;
mod cluster;
mod events;
mod files;
mod limits;
mod me;
mod meta;
mod questions;
mod retention;
mod runs;
mod steering;
mod submission;
mod transcripts;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::ApiRoutes;

pub use cluster::Health;
pub use files::FileList;
pub use limits::{LimitBody, LimitList};
pub use me::CallerJson;
pub use meta::Version;
pub use questions::{AnswerBatch, AnswerBody, AnswerList, QuestionList};
pub use retention::{PruneBody, RetentionRuleBody, RetentionSettingsBody};
pub use runs::RunList;
pub use steering::{
    AddBody, CancelBody, CommandReceipt, EditBody, MessageBody, ResumeBody, RetryBody, SignalBody,
};
pub use submission::SubmissionBody;

/// The result of a write, with the sequence at which it is visible.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Written{T}")]
pub struct Written<T> {
    /// The sequence, in the lane of the run, at which the write is visible: `at=` and `after=` accept it.
    pub sequence: u64,
    /// The result.
    #[serde(flatten)]
    pub outcome: T,
}

/// Returns the routes of all resources, below `/api/v1`.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .merge(runs::routes())
        .merge(retention::routes())
        .merge(submission::routes())
        .merge(events::routes())
        .merge(transcripts::routes())
        .merge(files::routes())
        .merge(steering::routes())
        .merge(questions::routes())
        .merge(blobs::routes())
        .merge(cluster::routes())
        .merge(limits::routes())
        .merge(me::routes())
        .merge(meta::routes())
}
