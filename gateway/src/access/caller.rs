//! The caller of a request, and its access to the cluster.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use millrace_protocol::token::{Scope, ScopeSet};

use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, SharedGateway};

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name, which is the author of commands and answers in the log.
    pub name: String,
    /// The operations that it may use.
    pub scopes: ScopeSet,
}

/// A caller's access to the cluster of its tenant. Only the checks of a route create one, so a handler that has it serves a
/// caller with the scope of that route.
#[derive(Clone)]
pub struct Access {
    gateway: SharedGateway,
    /// The caller.
    pub caller: Arc<Caller>,
}

impl Access {
    pub(super) fn new(gateway: SharedGateway, caller: Arc<Caller>) -> Self {
        Self { gateway, caller }
    }

    /// Checks that the caller has a scope, for an operation that needs another one than its route.
    ///
    /// # Errors
    /// It has not.
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
