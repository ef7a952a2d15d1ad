//! The caller of a request.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_protocol::token::ScopeSet;
use schemars::JsonSchema;
use serde::Serialize;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
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
    },
}

/// Show who sends this request, and what it may do.
#[utoipa::path(
    get, path = "/me", tag = "access",
    responses((status = 200, description = "The caller", body = ref("#/components/schemas/Caller")))
)]
async fn read_caller(access: Access) -> Response {
    let caller = &access.caller;
    json_response(StatusCode::OK, &CallerJson::Caller { name: &caller.name, scopes: &caller.scopes })
}
