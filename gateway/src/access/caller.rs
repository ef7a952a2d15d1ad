//! The caller of a request, and its access to the cluster.

use std::convert::Infallible;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use millrace_client::Administrator;
use millrace_protocol::audit::Actor;
use millrace_protocol::token::{Scope, ScopeSet, TokenId};

use super::limits::{LimitEnforcer, RequestSlot, StreamPermit};
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, SharedGateway};

/// The header in which proxies name the clients of requests.
const FORWARDED_FOR: &str = "x-forwarded-for";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name, which is the author of commands and answers in the log.
    pub name: String,
    /// The operations that it may use.
    pub scopes: ScopeSet,
    /// The id of its token; `None` for the user of this machine.
    pub token: Option<TokenId>,
    pub address: Option<IpAddr>,
    /// `true` for the user of this machine, who needs no token.
    pub is_local: bool,
}

impl Caller {
    /// Returns the user of this machine, who may do everything.
    #[must_use]
    pub fn local(name: String) -> Self {
        Self { name, scopes: ScopeSet::all(), token: None, address: None, is_local: true }
    }
}

/// The address from which a connection comes.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub IpAddr);

/// The address of the client that has sent a request.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub Option<IpAddr>);

impl ClientAddress {
    /// Finds the address: that of the connection, or the one that the proxy in front of this server has added last.
    #[must_use]
    pub fn of_request(request: &Request, is_behind_proxy: bool) -> Self {
        if !is_behind_proxy {
            return Self(request.extensions().get::<PeerAddress>().map(|peer| peer.0));
        }
        let mut lines = request.headers().get_all(FORWARDED_FOR).iter();
        let last =
            lines.next_back().and_then(|line| line.to_str().ok()).and_then(|line| line.rsplit(',').next());
        Self(last.and_then(|address| address.trim().parse().ok()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().copied().unwrap_or(Self(None)))
    }
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
    pub(super) fn new(
        gateway: SharedGateway,
        caller: Arc<Caller>,
        limits: Arc<LimitEnforcer>,
        slot: RequestSlot,
    ) -> Self {
        Self { gateway, caller, limits, slot }
    }

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
}

impl Access {
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
