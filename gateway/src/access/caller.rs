//! The caller of a request.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use millrace_protocol::token::{ScopeSet, TokenId};

use crate::problem::{Problem, ProblemKind};

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

pub(super) fn unauthenticated(detail: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::Unauthenticated, detail)
}

/// The refusal of every token that is not valid. Whether the token, its tenant or its secret is wrong is no one's business.
pub(super) fn refused_token() -> Problem {
    unauthenticated("the token is not valid here; it is unknown, expired, or was revoked")
}
