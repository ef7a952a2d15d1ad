//! Administrative changes of a cluster. Each is recorded before it is carried out, with its author, whichever surface it comes from:
//! commands and the API make them here, and nowhere else. (Changes of webhooks are in [`crate::webhooks`].) Also deletes
//! many runs, and reads the retention of a cluster.
//!
//! # Invariants
//!
//! - I271: Every administrative change is recorded with its author before it is carried out, on every surface.
//!   (`tests/tests/gateway.rs::administrative_changes_are_recorded_on_every_surface`,
//!   `tests/tests/architecture.rs::surfaces_make_administrative_changes_through_the_client`)

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::admission::AdmissionCaps;
use millrace_protocol::audit::{Actor, AuditAction, AuditRecord};
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{PruneSelection, RetentionRule, SweepRecord, SweepSettings};
use millrace_protocol::token::{StoredToken, TokenId, TokenText};
use millrace_runtime::store::admission;
use millrace_runtime::store::rate_limits::{self, LimitName, RateLimit};
use millrace_runtime::store::retention::{
    self, DeletionError, DeletionRequest, list_deletions, list_rules, read_sweep_record, read_sweep_settings,
    request_deletion, select_runs,
};
use millrace_runtime::store::tokens::{self, CreateTokenError, NewToken, read_token, record_action};
use millrace_runtime::{Bus, Fault, clock};

pub(crate) async fn record(bus: &Bus, by: Actor, action: AuditAction) -> Result<(), Fault> {
    record_action(bus, &AuditRecord { at: clock::now(), by, action }).await
}

/// Returns the time at which a token of this age expires.
pub fn expiry_after(age: Duration) -> Result<Timestamp, String> {
    let after = SignedDuration::try_from(age).ok().and_then(|age| clock::now().checked_add(age).ok());
    after.ok_or_else(|| "that is too far in the future".into())
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

/// The number of requests that are written at the same time.
const CONCURRENT_REQUESTS: usize = 64;

#[derive(Debug)]
pub struct RetentionOverview {
    pub rules: Vec<(String, RetentionRule)>,
    pub settings: SweepSettings,
    /// The number of deletions in progress.
    pub pending: usize,
    pub last_sweep: Option<SweepRecord>,
}

pub async fn read_retention(bus: &Bus) -> Result<RetentionOverview, Fault> {
    let deletions = list_deletions(bus).await?;
    Ok(RetentionOverview {
        rules: list_rules(bus).await?,
        settings: read_sweep_settings(bus).await?,
        pending: deletions.iter().filter(|entry| entry.value.state.is_pending()).count(),
        last_sweep: read_sweep_record(bus).await?,
    })
}

/// Requests the deletion of runs. Returns those whose deletion is in progress now; runs that continue meanwhile, or that somebody
/// else has deleted, are left out.
pub async fn request_deletions(bus: &Bus, runs: Vec<RunId>, by: &str) -> Result<Vec<RunId>, Fault> {
    let requests = futures::stream::iter(runs).map(|run| request_one(bus, run, by));
    requests
        .buffered(CONCURRENT_REQUESTS)
        .try_filter_map(|run| std::future::ready(Ok(run)))
        .try_collect()
        .await
}

async fn request_one(bus: &Bus, run: RunId, by: &str) -> Result<Option<RunId>, Fault> {
    match request_deletion(bus, &run, by).await {
        Ok(DeletionRequest::Recorded | DeletionRequest::Pending) => Ok(Some(run)),
        Ok(DeletionRequest::Deleted) | Err(DeletionError::NotFound(_) | DeletionError::Live(_)) => Ok(None),
        Err(DeletionError::Fault(fault)) => Err(fault),
    }
}
