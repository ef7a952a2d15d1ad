//! Tokens of the HTTP API, and administrative actions.

use jiff::Timestamp;
use millrace_protocol::audit::{Actor, AuditAction, AuditRecord};
use millrace_protocol::token::{ScopeSet, StoredToken, TokenId, TokenState};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Time;

/// A token of the HTTP API, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TokenJson<'a> {
    /// A token.
    Token {
        /// Its id, which is a part of its text.
        id: &'a TokenId,
        /// The name of its holder: the author of its commands and answers.
        name: &'a str,
        /// The operations that it allows.
        scopes: &'a ScopeSet,
        /// Its state.
        state: TokenState,
        /// When it was created.
        created_at: Time,
        /// The name of its creator.
        created_by: &'a str,
        /// When it expires; absent for never.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_at: Option<Time>,
        /// When it was revoked.
        #[serde(skip_serializing_if = "Option::is_none")]
        revoked_at: Option<Time>,
        /// The name of the user or token holder that revoked it.
        #[serde(skip_serializing_if = "Option::is_none")]
        revoked_by: Option<&'a str>,
    },
}

impl<'a> TokenJson<'a> {
    #[must_use]
    pub fn new(token: &'a StoredToken, now: Timestamp) -> Self {
        let StoredToken { id, name, scopes, sha256: _, created, created_by, expires, revoked } = token;
        Self::Token {
            id,
            name,
            scopes,
            state: token.state_at(now),
            created_at: (*created).into(),
            created_by,
            expires_at: expires.map(Time::from),
            revoked_at: revoked.as_ref().map(|revoked| revoked.at.into()),
            revoked_by: revoked.as_ref().map(|revoked| revoked.by.as_str()),
        }
    }
}

/// An administrative action.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditLine<'a> {
    /// An action.
    AdministrativeAction {
        /// Its place among all actions.
        sequence: u64,
        /// When it was requested.
        at: Time,
        /// The requester.
        by: &'a Actor,
        /// The action.
        action: &'a AuditAction,
    },
}

impl<'a> AuditLine<'a> {
    #[must_use]
    pub fn new(sequence: u64, record: &'a AuditRecord) -> Self {
        let AuditRecord { at, by, action } = record;
        Self::AdministrativeAction { sequence, at: (*at).into(), by, action }
    }
}
