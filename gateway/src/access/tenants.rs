//! The tenants that a gateway serves, each with its own tokens and limits. Requests reach the state of a tenant only through the
//! credentials that its own account has accepted.
//!
//! # Invariants
//!
//! - I240: A gateway of several tenants shows a caller nothing of another tenant, at any operation; a token that names another
//!   tenant, none, or one that does not exist is refused with the same words as a wrong one.
//!   (`tests/tests/gateway_tenants.rs::tenants_see_nothing_of_each_other`)
//! - I242: A token of an identity provider gives access to the tenants of its claim alone, and to one of several only if the
//!   request chooses it; a stream has the runs of its tenant alone.
//!   (`tests/tests/gateway_tenants.rs::claims_and_streams_belong_to_one_tenant`)

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{StoredToken, TokenState, TokenText};
use tokio_util::sync::CancellationToken;

use super::authenticate::refused_token;
use super::caller::{Access, Caller};
use super::limits::{CallerLimits, LimitEnforcer, RequestSlot, RequestSlots};
use super::tenant_metrics::TenantMetrics;
use super::token_cache::TokenCache;
use crate::problem::{Problem, ProblemKind};
use crate::state::SharedGateway;

/// The access to the account of a tenant: its tokens, and the limits of their holders.
pub struct TenantAccess {
    gateway: SharedGateway,
    tokens: TokenCache,
    limits: Arc<LimitEnforcer>,
    slots: RequestSlots,
    /// `None` for the only tenant of a gateway.
    metrics: Option<TenantMetrics>,
}

impl TenantAccess {
    /// Creates it over the state of the tenant, with a maximum number of its requests and streams in progress.
    #[must_use]
    pub fn new(gateway: SharedGateway, limits: CallerLimits, in_progress: Option<NonZeroU32>) -> Self {
        let metrics = gateway.tenant.as_ref().map(TenantMetrics::new);
        let limits = LimitEnforcer::new(limits, metrics.as_ref().map(TenantMetrics::open_streams));
        let (tokens, limits, slots) =
            (TokenCache::default(), Arc::new(limits), RequestSlots::new(in_progress));
        Self { gateway, tokens, limits, slots, metrics }
    }

    /// Returns the access of the holder of a token of this tenant. `lookups` limits how often an address has tokens looked up.
    pub async fn accept_token(
        &self,
        text: &TokenText,
        address: Option<IpAddr>,
        lookups: &LimitEnforcer,
    ) -> Result<Access, Problem> {
        if text.tenant != self.gateway.tenant {
            return Err(refused_token());
        }
        // Taken before the lookup, which may have to wait for the cluster.
        let slot = self.take_slot()?;
        let token = match self.tokens.find_cached(&text.id) {
            Some(token) => token,
            None => {
                lookups.count_lookup(address)?;
                self.tokens.read(&self.gateway.bus, &text.id).await?
            }
        };
        let token = token.filter(|token| token.is_of(text)).ok_or_else(|| self.refuse())?;
        match token.state_at(Timestamp::now()) {
            TokenState::Active => self.admit_in(slot, Arc::new(caller_of(&token, address))),
            TokenState::Expired | TokenState::Revoked => Err(self.refuse()),
        }
    }

    /// Returns the access of a caller, if it has not sent too many requests.
    pub fn admit(&self, caller: Arc<Caller>) -> Result<Access, Problem> {
        self.admit_in(self.take_slot()?, caller)
    }

    fn take_slot(&self) -> Result<RequestSlot, Problem> {
        self.slots.take().inspect_err(|_| {
            if let Some(metrics) = &self.metrics {
                metrics.count_request(false);
            }
        })
    }

    fn admit_in(&self, slot: RequestSlot, caller: Arc<Caller>) -> Result<Access, Problem> {
        let counted = self.limits.count_request(&caller);
        if let Some(metrics) = &self.metrics {
            metrics.count_request(counted.is_ok());
        }
        counted?;
        Ok(Access::new(self.gateway.clone(), caller, self.limits.clone(), slot))
    }

    fn refuse(&self) -> Problem {
        if let Some(metrics) = &self.metrics {
            metrics.count_refusal();
        }
        refused_token()
    }
}

fn caller_of(token: &StoredToken, address: Option<IpAddr>) -> Caller {
    Caller {
        name: token.name.clone(),
        scopes: token.scopes.clone(),
        token: Some(token.id.clone()),
        address,
        is_local: false,
    }
}

/// The tenants of a gateway that serves several. They come and go while it runs.
#[derive(Default)]
pub struct TenantDirectory(RwLock<BTreeMap<TenantName, Option<Arc<TenantAccess>>>>);

impl TenantDirectory {
    /// Adds a tenant that is not connected yet.
    pub fn add(&self, name: &TenantName) {
        self.change(|tenants| tenants.insert(name.clone(), None));
    }

    /// Adds the access to a tenant that is connected, unless it was removed meanwhile: `stop` is cancelled before that.
    pub fn connect(&self, name: &TenantName, access: Arc<TenantAccess>, stop: &CancellationToken) {
        self.change(|tenants| {
            if !stop.is_cancelled() {
                tenants.insert(name.clone(), Some(access));
            }
        });
    }

    pub fn remove(&self, name: &TenantName) {
        self.change(|tenants| tenants.remove(name));
    }

    /// `true` if this tenant is served, whether it is connected or not.
    pub fn contains(&self, name: &TenantName) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Returns the access to a tenant; `None` if it is not served here.
    pub fn find(&self, name: &TenantName) -> Option<Result<Arc<TenantAccess>, Problem>> {
        let tenants = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let away = || {
            Problem::new(
                ProblemKind::ClusterUnavailable,
                "the cluster of this tenant does not respond; try again",
            )
        };
        tenants.get(name).map(|access| access.clone().ok_or_else(away))
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<TenantName, Option<Arc<TenantAccess>>>) -> T) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

pub enum ServedTenants {
    /// The only one, which needs no name.
    Only(Arc<TenantAccess>),
    /// Several, which credentials name.
    Several(Arc<TenantDirectory>),
}
