//! The routes of the API, each with the access that it demands. A route can't be added without: that is what checks its
//! requests, and what the description of the API says about it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use millrace_protocol::token::Scope;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::SecurityRequirement;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::authenticate::{Authenticator, RequestHead};
use super::browser::check_headers;
use super::caller::ClientAddress;

/// The name of the tokens' scheme in the description of the API.
pub const TOKEN_SCHEME: &str = "token";

#[derive(Debug, Clone, Copy)]
enum RequiredAccess {
    /// Any request.
    None,
    Caller,
    Scope(Scope),
}

#[derive(Default)]
pub struct ApiRoutes(OpenApiRouter);

impl ApiRoutes {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds operations for callers with a scope.
    #[must_use]
    pub fn scoped(self, scope: Scope, routes: UtoipaMethodRouter) -> Self {
        self.add(RequiredAccess::Scope(scope), routes)
    }

    /// Adds operations for callers with any scope.
    #[must_use]
    pub fn authenticated(self, routes: UtoipaMethodRouter) -> Self {
        self.add(RequiredAccess::Caller, routes)
    }

    /// Adds public operations. Their handlers get no [`Access`](super::Access).
    #[must_use]
    pub fn public(self, routes: UtoipaMethodRouter) -> Self {
        self.add(RequiredAccess::None, routes)
    }

    fn add(self, required: RequiredAccess, (schemas, mut paths, router): UtoipaMethodRouter) -> Self {
        for item in paths.paths.values_mut() {
            operations_of(item).for_each(|operation| operation.security = Some(requirement_of(required)));
        }
        let check = from_fn(move |Extension(authenticator): Extension<Arc<Authenticator>>, request, next| {
            check_access(required, authenticator, request, next)
        });
        let router = match required {
            RequiredAccess::None => router,
            RequiredAccess::Caller | RequiredAccess::Scope(_) => router.route_layer(check),
        };
        Self(self.0.routes((schemas, paths, router)))
    }

    /// Adds the routes of another list.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self(self.0.merge(other.0))
    }

    /// Sets the maximum size of a body in bytes, for all routes so far.
    #[must_use]
    pub fn limit_body(self, bytes: usize) -> Self {
        Self(self.0.layer(DefaultBodyLimit::max(bytes)))
    }

    pub fn nest_below(self, root: &str) -> OpenApiRouter {
        OpenApiRouter::new().nest(root, self.0)
    }
}

/// Refuses requests of other hosts and origins.
pub async fn check_request(
    Extension(authenticator): Extension<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = ClientAddress::of_request(&request, authenticator.is_behind_proxy());
    request.extensions_mut().insert(address);
    let authority = request.uri().authority().map(ToString::to_string);
    let hosts = authenticator.allowed_hosts();
    match check_headers(request.method(), authority.as_deref(), request.headers(), hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Passes a request on with the access of its caller, whatever its scopes.
pub async fn require_caller(
    Extension(authenticator): Extension<Arc<Authenticator>>,
    request: Request,
    next: Next,
) -> Response {
    check_access(RequiredAccess::Caller, authenticator, request, next).await
}

/// Passes a request on with the access of its caller.
async fn check_access(
    required: RequiredAccess,
    authenticator: Arc<Authenticator>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = match authenticator.authenticate(RequestHead::of(&request)).await {
        Ok(access) => access,
        Err(problem) => return problem.into_response(),
    };
    if let RequiredAccess::Scope(scope) = required
        && let Err(problem) = access.require(scope)
    {
        return problem.into_response();
    }
    request.extensions_mut().insert(access);
    next.run(request).await
}

fn operations_of(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
    [get, put, post, delete, options, head, patch, trace].into_iter().filter_map(Option::as_mut)
}

/// Returns the security requirement of an operation. OpenAPI 3.1 allows names of roles for schemes of any type.
fn requirement_of(required: RequiredAccess) -> Vec<SecurityRequirement> {
    match required {
        RequiredAccess::None => Vec::new(),
        RequiredAccess::Caller => vec![SecurityRequirement::new(TOKEN_SCHEME, [""; 0])],
        RequiredAccess::Scope(scope) => vec![SecurityRequirement::new(TOKEN_SCHEME, [scope.name()])],
    }
}
