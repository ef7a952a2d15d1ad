//! The resources, one file each. A handler reads its request, calls `millrace_client` or the store, and returns a type of
//! `millrace_views` as JSON.

mod admission;
mod blobs;
pub mod cluster;
pub mod events;
pub mod files;
mod limits;
mod log;
mod login;
mod me;
mod meta;
mod plans;
pub mod push_configs;
pub mod questions;
mod retention;
pub mod runs;
mod sessions;
mod sources;
mod spend;
pub mod steering;
pub mod submission;
mod tasks;
mod tokens;
mod traces;
mod transcripts;
mod webhooks;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::ApiRoutes;

pub use admission::{AdmissionBody, CachedCaps};
pub use cluster::Health;
pub use files::FileList;
pub use limits::{LimitBody, LimitList};
pub use log::JournalPage;
pub use login::LoginBody;
pub use me::CallerJson;
pub use meta::Version;
pub use plans::{PlanCheck, PlanCheckBody};
pub use push_configs::{PushConfigBody, PushConfigList};
pub use questions::{AnswerBatch, AnswerBody, AnswerList, QuestionList};
pub use retention::{PruneBody, RetentionRuleBody, RetentionSettingsBody};
pub use runs::RunList;
pub use sessions::SessionList;
pub use sources::SourceText;
pub use steering::{
    AddBody, CancelBody, CommandReceipt, EditBody, MessageBody, ResumeBody, RetryBody, SignalBody,
};
pub use submission::SubmissionBody;
pub use tokens::{AuditList, TokenBody, TokenList};
pub use traces::TraceDocument;
pub use webhooks::{DeliveryList, SecretBody, WebhookBody, WebhookList, WebhookPatchBody};

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
        .merge(sessions::routes())
        .merge(retention::routes())
        .merge(submission::routes())
        .merge(plans::routes())
        .merge(events::routes())
        .merge(log::routes())
        .merge(tasks::routes())
        .merge(sources::routes())
        .merge(spend::routes())
        .merge(transcripts::routes())
        .merge(traces::routes())
        .merge(files::routes())
        .merge(steering::routes())
        .merge(questions::routes())
        .merge(blobs::routes())
        .merge(cluster::routes())
        .merge(limits::routes())
        .merge(admission::routes())
        .merge(tokens::routes())
        .merge(webhooks::routes())
        .merge(push_configs::routes())
        .merge(login::routes())
        .merge(me::routes())
        .merge(meta::routes())
}
