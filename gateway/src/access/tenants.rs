//! The tenants that a gateway serves, each with its own tokens, limits and metrics, and the access of callers to them. Requests reach the state of a tenant only through the
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

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jiff::Timestamp;
use millrace_client::Administrator;
use millrace_protocol::audit::Actor;
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{Scope, StoredToken, TokenId, TokenState, TokenText};
use millrace_runtime::ops::metrics::names::{TENANT_REQUESTS, TENANT_STREAMS};
use millrace_runtime::ops::metrics::{Counter, Gauge};
use millrace_runtime::store::tokens::read_token;
use millrace_runtime::{Bus, Fault};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::caller::{Caller, refused_token};
use super::limits::{CallerLimits, LimitEnforcer, RequestSlot, RequestSlots, StreamPermit};
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, SharedGateway};

/// The time for which a token that was read is used.
const MAX_AGE: Duration = Duration::from_millis(500);
/// The maximum number of tokens that are held, with those that do not exist.
const MAX_CACHED: usize = 4_096;
/// The time in which the cluster must respond.
const READ_TIME: Duration = Duration::from_secs(5);

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
        Ok(Access { gateway: self.gateway.clone(), caller, limits: self.limits.clone(), slot })
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

/// A caller's access to the cluster of its tenant. Only the checks of a route create one, so a handler that has it serves a
/// caller with the scope of that route.
#[derive(Clone)]
pub struct Access {
    gateway: SharedGateway,
    pub caller: Arc<Caller>,
    limits: Arc<LimitEnforcer>,
    slot: RequestSlot,
}

impl Access {
    /// Returns the permission to hold an event stream open.
    pub fn open_stream(&self) -> Result<StreamPermit, Problem> {
        self.limits.open_stream(&self.caller, self.slot.clone())
    }

    /// Checks that the caller has a scope, for an operation that needs another one than its route.
    pub fn require(&self, scope: Scope) -> Result<(), Problem> {
        if self.caller.scopes.contains(scope) {
            return Ok(());
        }
        let Caller { name, scopes, .. } = &*self.caller;
        let detail = format!(
            "this operation needs the scope {scope}, and the token of {name} has {scopes}; use a token with that scope"
        );
        Err(Problem::new(ProblemKind::ScopeMissing, detail))
    }

    /// The caller as the audit names it.
    pub fn actor(&self) -> Actor {
        let Caller { name, token, address, .. } = &*self.caller;
        let address = address.map(|address| address.to_string());
        Actor { name: name.clone(), token: token.clone(), address }
    }

    /// Makes administrative changes on behalf of the caller.
    pub fn administrator(&self) -> Administrator<'_> {
        Administrator::new(&self.gateway.bus, self.actor())
    }
}

impl Deref for Access {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let access = parts.extensions.get::<Self>().cloned();
        access.ok_or_else(|| Problem::new(ProblemKind::Unauthenticated, "this route has no access checks"))
    }
}

/// The metrics of the requests of a tenant.
struct TenantMetrics {
    accepted: Counter,
    refused: Counter,
    limited: Counter,
    streams: Gauge,
}

impl TenantMetrics {
    /// Creates them.
    fn new(tenant: &TenantName) -> Self {
        let requests = |outcome| TENANT_REQUESTS.with_labels(&[tenant.as_str(), outcome]);
        Self {
            accepted: requests("accepted"),
            refused: requests("refused"),
            limited: requests("limited"),
            streams: TENANT_STREAMS.with_labels(&[tenant.as_str()]),
        }
    }

    /// Counts a request with a valid token; `is_within_limits` is `false` if there were too many.
    fn count_request(&self, is_within_limits: bool) {
        if is_within_limits { &self.accepted } else { &self.limited }.increment();
    }

    /// Counts a request whose token is not valid.
    fn count_refusal(&self) {
        self.refused.increment();
    }

    /// Returns the number of open event streams.
    fn open_streams(&self) -> Gauge {
        self.streams.clone()
    }
}

/// The tokens of a tenant, as they were read last.
///
/// A token is read from its bucket again when what is known of it is older than half a second, so that a revocation takes effect
/// within a second at every gateway. Compared with a subscription to the bucket, nothing can be missed, and a gateway that can't
/// read the bucket accepts no token for longer than that.
#[derive(Default)]
struct TokenCache(Mutex<HashMap<TokenId, CachedToken>>);

struct CachedToken {
    read_at: Instant,
    token: Option<Arc<StoredToken>>,
}

impl TokenCache {
    /// Returns a token that was read at most half a second ago, or that there is none; `None` if it must be read.
    fn find_cached(&self, id: &TokenId) -> Option<Option<Arc<StoredToken>>> {
        self.with_entries(|entries| {
            let entry = entries.get(id).filter(|entry| entry.read_at.elapsed() < MAX_AGE)?;
            Some(entry.token.clone())
        })
    }

    /// Reads a token; `None` if there is none with this id.
    async fn read(&self, bus: &Bus, id: &TokenId) -> Result<Option<Arc<StoredToken>>, Fault> {
        // The age counts from before the read: what is written meanwhile may be missing.
        let read_at = Instant::now();
        let token = match timeout(READ_TIME, read_token(bus, id)).await {
            Ok(token) => token?.map(Arc::new),
            Err(error) => return Err(Fault::unavailable("reading a token", error)),
        };
        self.with_entries(|entries| {
            if entries.len() >= MAX_CACHED {
                entries.retain(|_, entry| entry.read_at.elapsed() < MAX_AGE);
            }
            if entries.len() < MAX_CACHED {
                entries.insert(id.clone(), CachedToken { read_at, token: token.clone() });
            }
        });
        Ok(token)
    }

    fn with_entries<T>(&self, action: impl FnOnce(&mut HashMap<TokenId, CachedToken>) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
