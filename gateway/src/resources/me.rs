//! The caller of a request.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{ScopeSet, TokenId};
use schemars::JsonSchema;
use serde::Serialize;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes, Caller};
use crate::state::json_response;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().authenticated(routes!(read_caller))
}

/// The caller of a request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CallerJson<'a> {
    /// The caller.
    Caller {
        /// The name: the author of its commands and answers.
        name: &'a str,
        /// The operations that it may use.
        scopes: &'a ScopeSet,
        /// The id of its token; absent for the user of the gateway's machine.
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<&'a TokenId>,
        /// Its tenant, if the gateway serves several.
        #[serde(skip_serializing_if = "Option::is_none")]
        tenant: Option<&'a TenantName>,
    },
}

/// Show the caller of this request, and its scopes.
#[utoipa::path(
    get, path = "/me", tag = "access",
    responses((status = 200, description = "The caller", body = ref("#/components/schemas/Caller")))
)]
async fn read_caller(access: Access) -> Response {
    caller_response(&access)
}

/// Returns a response with the caller.
pub fn caller_response(access: &Access) -> Response {
    let Caller { name, scopes, token, .. } = &*access.caller;
    json_response(
        StatusCode::OK,
        &CallerJson::Caller { name, scopes, token: token.as_ref(), tenant: access.tenant.as_ref() },
    )
}
