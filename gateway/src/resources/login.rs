//! `POST /login` and `POST /logout`: pages in a browser exchange a token for a cookie, since an event source can't set headers.

use std::sync::Arc;

use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use utoipa_axum::routes;

use super::me::caller_response;
use crate::access::{
    ApiRoutes, Authenticator, ClientAddress, TenantChoice, remove_cookies, set_cookie, set_tenant_cookie,
};
use crate::extract::JsonBody;
use crate::problem::{Problem, ProblemKind};

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().public(routes!(log_in)).public(routes!(log_out))
}

/// A token to log in with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// The token.
    token: String,
}

/// Exchange a token for a cookie, with which a browser sends it from then on. Scripts can't read the cookie, and it goes to
/// this site only. A tenant that the header Millrace-Tenant chooses gets a cookie too.
#[utoipa::path(
    post, path = "/login", tag = "access",
    request_body = ref("#/components/schemas/LoginBody"),
    responses((status = 200, description = "The holder of the token; Set-Cookie has the cookie", body = ref("#/components/schemas/Caller")))
)]
async fn log_in(
    Extension(authenticator): Extension<Arc<Authenticator>>,
    address: ClientAddress,
    headers: HeaderMap,
    JsonBody(LoginBody { token }): JsonBody<LoginBody>,
) -> Result<Response, Problem> {
    let choice = TenantChoice::of_header(&headers);
    let access = authenticator.accept_token(token.trim(), choice, address.0).await?;
    let cookie = set_cookie(token.trim(), authenticator.is_encrypted()).ok_or_else(|| {
        Problem::new(ProblemKind::InvalidRequest, "the token is too long for a cookie; send it in a header")
    })?;
    let mut response = caller_response(&access);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    let chosen = access.tenant.as_ref().filter(|_| choice.is_made());
    let tenant = set_tenant_cookie(chosen, authenticator.is_encrypted());
    response.headers_mut().append(header::SET_COOKIE, tenant);
    Ok(response)
}

/// Remove the cookie.
#[utoipa::path(
    post, path = "/logout", tag = "access",
    responses((status = 204, description = "Set-Cookie removes the cookie"))
)]
async fn log_out(Extension(authenticator): Extension<Arc<Authenticator>>) -> Response {
    let cookies = remove_cookies(authenticator.is_encrypted());
    let cookies = AppendHeaders(cookies.map(|cookie| (header::SET_COOKIE, cookie)));
    (StatusCode::NO_CONTENT, cookies).into_response()
}
