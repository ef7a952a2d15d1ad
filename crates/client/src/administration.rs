//! Administrative changes of a cluster. Each is recorded before it is carried out, with its author, whichever surface it comes from:
//! commands and the API make them here, and nowhere else. (Changes of webhooks are in [`crate::webhooks`].)
//!
//! # Invariants
//!
//! - I271: Every administrative change is recorded with its author before it is carried out, on every surface.
//!   (`tests/tests/gateway.rs::administrative_changes_are_recorded_on_every_surface`,
//!   `tests/tests/architecture.rs::surfaces_make_administrative_changes_through_the_client`)

use millrace_protocol::admission::AdmissionCaps;
use millrace_protocol::audit::{Actor, AuditAction, AuditRecord};
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{PruneSelection, RetentionRule, SweepSettings};
use millrace_protocol::token::{StoredToken, TokenId, TokenText};
use millrace_runtime::store::audit::record_action;
use millrace_runtime::store::rate_limits::{LimitName, RateLimit};
use millrace_runtime::store::retention::{self, DeletionError, DeletionRequest, select_runs};
use millrace_runtime::store::tokens::{CreateTokenError, NewToken, read_token};
use millrace_runtime::store::{admission, rate_limits, tokens};
use millrace_runtime::{Bus, Fault, clock};

use crate::retention::request_deletions;

pub(crate) async fn record(bus: &Bus, by: Actor, action: AuditAction) -> Result<(), Fault> {
    record_action(bus, &AuditRecord { at: clock::now(), by, action }).await
}

/// Makes changes on behalf of an actor.
pub struct Administrator<'a> {
    bus: &'a Bus,
    actor: Actor,
}

impl<'a> Administrator<'a> {
    /// An administrator whose changes have this author.
    #[must_use]
    pub fn new(bus: &'a Bus, actor: Actor) -> Self {
        Self { bus, actor }
    }

    async fn record(&self, action: AuditAction) -> Result<(), Fault> {
        record(self.bus, self.actor.clone(), action).await
    }

    pub async fn set_limit(&self, name: &LimitName, limit: RateLimit) -> Result<(), Fault> {
        let RateLimit { requests, tokens } = limit;
        self.record(AuditAction::LimitSet { model: name.to_string(), requests, tokens }).await?;
        rate_limits::set_limit(self.bus, name, limit).await
    }

    /// Removes the rate limit of a model; returns `false` if it has none.
    pub async fn remove_limit(&self, name: &LimitName) -> Result<bool, Fault> {
        if !rate_limits::has_limit(self.bus, name).await? {
            return Ok(false);
        }
        self.record(AuditAction::LimitCleared { model: name.to_string() }).await?;
        rate_limits::remove_limit(self.bus, name).await?;
        Ok(true)
    }

    pub async fn set_caps(&self, caps: AdmissionCaps) -> Result<(), Fault> {
        self.record(AuditAction::RunCapsSet { caps }).await?;
        admission::set_caps(self.bus, &caps).await
    }

    pub async fn create_token(&self, new: NewToken) -> Result<(TokenText, StoredToken), CreateTokenError> {
        let NewToken { name, scopes, expires, .. } = &new;
        let action =
            AuditAction::TokenCreated { token_name: name.clone(), scopes: scopes.clone(), expires: *expires };
        self.record(action).await?;
        tokens::create_token(self.bus, new).await
    }

    /// Revokes a token and returns it; `None` if there is none with this id.
    pub async fn revoke_token(&self, id: &TokenId) -> Result<Option<StoredToken>, Fault> {
        let Some(token) = read_token(self.bus, id).await? else { return Ok(None) };
        self.record(AuditAction::TokenRevoked { token_id: id.clone(), token_name: token.name }).await?;
        tokens::revoke_token(self.bus, id, &self.actor.name).await
    }

    pub async fn delete_run(&self, run: &RunId) -> Result<DeletionRequest, DeletionError> {
        self.record(AuditAction::RunDeletionRequested { run: run.clone() }).await?;
        retention::request_deletion(self.bus, run, &self.actor.name).await
    }

    /// Requests the deletion of the runs that a selection selects. Returns those whose deletion is in progress now.
    pub async fn prune_runs(&self, selection: &PruneSelection) -> Result<Vec<RunId>, Fault> {
        let selected = select_runs(self.bus, selection).await?;
        let count = selected.len() as u64;
        self.record(AuditAction::PruneRequested { selection: selection.clone(), runs: count }).await?;
        let runs = selected.into_iter().map(|summary| summary.run).collect();
        request_deletions(self.bus, runs, &self.actor.name).await
    }

    pub async fn set_retention_rule(&self, name: &RunId, selection: PruneSelection) -> Result<(), Fault> {
        let action = AuditAction::RetentionRuleSet { rule: name.to_string(), selection: selection.clone() };
        self.record(action).await?;
        let rule = RetentionRule { selection, by: self.actor.name.clone() };
        retention::set_rule(self.bus, name, &rule).await
    }

    /// Removes a retention rule; returns `false` if there is none of this name.
    pub async fn remove_retention_rule(&self, name: &RunId) -> Result<bool, Fault> {
        if retention::list_rules(self.bus).await?.iter().all(|(rule, _)| rule != name.as_str()) {
            return Ok(false);
        }
        self.record(AuditAction::RetentionRuleRemoved { rule: name.to_string() }).await?;
        retention::remove_rule(self.bus, name).await
    }

    pub async fn set_sweep_settings(&self, settings: &SweepSettings) -> Result<(), Fault> {
        self.record(AuditAction::BlobGraceSet { blob_grace_ms: settings.blob_grace_ms }).await?;
        retention::set_sweep_settings(self.bus, settings).await
    }

    pub async fn request_sweep(&self) -> Result<(), Fault> {
        self.record(AuditAction::SweepRequested).await?;
        retention::request_sweep(self.bus, &self.actor.name).await
    }
}
