//! Administrative actions, as they are recorded. What is done to a run is in its log; this is the rest.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::AdmissionCaps;
use crate::ids::{RunId, WebhookId};
use crate::retention::PruneSelection;
use crate::token::{ScopeSet, TokenId};

/// An administrative action. It is recorded before it is carried out, so that none is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// When it was requested.
    pub at: Timestamp,
    /// The requester.
    pub by: Actor,
    /// The action.
    pub action: AuditAction,
}

/// The person or program that requests something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Actor {
    /// The name: the author of commands and answers.
    pub name: String,
    /// The id of the token that the request had; absent for commands on a machine and for users of an identity provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenId>,
    /// The address from which the request came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl Actor {
    /// Returns a user of this machine.
    #[must_use]
    pub fn local(name: String) -> Self {
        Self { name, token: None, address: None }
    }
}

/// The kinds of administrative actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditAction {
    /// A token was created.
    TokenCreated {
        /// The name of its holder.
        token_name: String,
        /// The operations that it allows.
        scopes: ScopeSet,
        /// When it expires.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        expires: Option<Timestamp>,
    },
    /// A token was revoked.
    TokenRevoked {
        /// Its id.
        token_id: TokenId,
        /// The name of its holder.
        token_name: String,
    },
    /// The rate limit of a model was set.
    LimitSet {
        /// The model, or the provider with `*`.
        model: String,
        /// The maximum number of requests per minute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requests: Option<u64>,
        /// The maximum number of tokens per minute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
    },
    /// A webhook was created.
    WebhookCreated {
        /// Its id.
        webhook: WebhookId,
        /// The URL of its receiver.
        url: String,
    },
    /// A webhook was changed.
    WebhookChanged {
        /// Its id.
        webhook: WebhookId,
        /// The URL of its receiver after the change.
        url: String,
    },
    /// A webhook was deleted.
    WebhookDeleted {
        /// Its id.
        webhook: WebhookId,
        /// The URL of its receiver.
        url: String,
    },
    /// The secret of a webhook was replaced.
    WebhookSecretReplaced {
        /// Its id.
        webhook: WebhookId,
    },
    /// The rate limit of a model was removed.
    LimitCleared {
        /// The model, or the provider with `*`.
        model: String,
    },
    /// The caps on the number of runs were set.
    RunCapsSet {
        /// The new caps.
        #[serde(flatten)]
        caps: AdmissionCaps,
    },
    /// The deletion of a run was requested. It is refused if the run is live.
    RunDeletionRequested {
        /// The run.
        run: RunId,
    },
    /// The deletion of several runs was requested.
    PruneRequested {
        /// The selection.
        selection: PruneSelection,
        /// The number of runs that it selected.
        runs: u64,
    },
    /// A retention rule was set.
    RetentionRuleSet {
        /// Its name.
        rule: String,
        /// The runs that it selects.
        selection: PruneSelection,
    },
    /// A retention rule was removed.
    RetentionRuleRemoved {
        /// Its name.
        rule: String,
    },
    /// The time for which blobs without references stay was changed.
    BlobGraceSet {
        /// The time in milliseconds.
        blob_grace_ms: u64,
    },
    /// A sweep of blobs was requested.
    SweepRequested,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stay_readable() {
        let record = AuditRecord {
            at: Timestamp::UNIX_EPOCH,
            by: Actor::local("ann".into()),
            action: AuditAction::LimitCleared { model: "openai:*".into() },
        };
        let text = r#"{"at":"1970-01-01T00:00:00Z","by":{"name":"ann"},"action":{"type":"limit_cleared","model":"openai:*"}}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert_eq!(serde_json::from_str::<AuditRecord>(text).unwrap(), record);
    }
}
