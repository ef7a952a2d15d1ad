//! The resources, one file each. A handler reads its request, calls `millrace_client` or the store, and returns a type of
//! `millrace_views` as JSON.

pub mod cluster;
pub mod events;
pub mod files;
mod journals;
mod limits;
mod log;
mod plans;
pub mod questions;
mod retention;
pub mod runs;
mod sessions;
pub mod steering;
pub mod submission;
mod tokens;
pub mod verifications;
pub mod webhooks;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::ApiRoutes;

pub use cluster::{Health, Version};
pub use files::{FileList, SourceText};
pub use journals::TraceDocument;
pub use limits::{AdmissionBody, CachedCaps, LimitBody, LimitList};
pub use log::JournalPage;
pub use plans::{PlanCheck, PlanCheckBody};
pub use questions::{AnswerBatch, AnswerBody, AnswerList, QuestionList};
pub use retention::{PruneBody, RetentionRuleBody, RetentionSettingsBody};
pub use runs::RunList;
pub use sessions::SessionList;
pub use steering::{
    AddBody, CancelBody, CommandReceipt, EditBody, MessageBody, ResumeBody, RetryBody, SignalBody,
};
pub use submission::SubmissionBody;
pub use tokens::{AuditList, CallerJson, LoginBody, TokenBody, TokenList};
pub use verifications::VerificationBody;
pub use webhooks::{
    DeliveryList, PushConfigBody, PushConfigList, SecretBody, WebhookBody, WebhookList, WebhookPatchBody,
};

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
        .merge(verifications::routes())
        .merge(plans::routes())
        .merge(events::routes())
        .merge(log::routes())
        .merge(files::routes())
        .merge(steering::routes())
        .merge(questions::routes())
        .merge(cluster::routes())
        .merge(limits::routes())
        .merge(journals::routes())
        .merge(tokens::routes())
        .merge(webhooks::routes())
}
