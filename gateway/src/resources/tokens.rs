//! The tokens of the API, the caller of a request, its login in a browser, and the record of administrative actions.

use std::sync::Arc;

use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use jiff::Timestamp;
use millrace_client::expiry_after;
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{Scope, ScopeSet, TokenId, TokenState, find_token_name_problem};
use millrace_runtime::clock::parse_duration;
use millrace_runtime::store::tokens::{CreateTokenError, NewToken, read_actions, read_tokens};
use millrace_views::{AuditLine, CommandOutcome, TokenJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{
    Access, ApiRoutes, Authenticator, Caller, ClientAddress, TenantChoice, remove_cookies, set_cookie,
    set_tenant_cookie,
};
use crate::extract::{Json, Path, Query};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::{json_response, reply};

/// The maximum number of actions in a reply.
const MAX_ACTIONS: usize = 1_000;

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Admin, routes!(list_tokens, post_token))
        .scoped(Scope::Admin, routes!(delete_token))
        .scoped(Scope::Admin, routes!(list_actions))
        .authenticated(routes!(read_caller))
        .public(routes!(log_in))
        .public(routes!(log_out))
}

/// Tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenList<'a> {
    /// The tokens, oldest first.
    pub tokens: Vec<TokenJson<'a>>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TokenQuery {
    /// `true` lists expired and revoked tokens too.
    #[serde(default)]
    all: bool,
}

/// List the tokens. Their secrets can't be read.
#[utoipa::path(
    get, path = "/tokens", tag = "access", params(TokenQuery),
    responses((status = 200, description = "The tokens", body = ref("#/components/schemas/TokenList")))
)]
async fn list_tokens(access: Access, Query(query): Query<TokenQuery>) -> ApiResult {
    let (tokens, now) = (read_tokens(&access.bus).await?, Timestamp::now());
    let shown = tokens.iter().filter(|token| query.all || token.state_at(now) == TokenState::Active);
    let tokens = shown.map(|token| TokenJson::new(token, now)).collect();
    reply(&TokenList { tokens })
}

/// A token to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    /// The name of its holder: the author of its commands and answers.
    name: String,
    /// The operations that it allows, one or more.
    scopes: ScopeSet,
    /// The time after which it is refused, such as `30d`; never if absent.
    #[serde(default)]
    expires_in: Option<String>,
}

/// Create a token. Its text is in this reply only. It can't have a scope that the caller lacks.
#[utoipa::path(
    post, path = "/tokens", tag = "access",
    request_body = ref("#/components/schemas/TokenBody"),
    responses((status = 201, description = "The token was created", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn post_token(access: Access, Json(body): Json<TokenBody>) -> ApiResult {
    let TokenBody { name, scopes, expires_in } = body;
    let invalid = |detail: String| Problem::invalid(detail);
    if let Some(problem) = find_token_name_problem(&name) {
        return Err(invalid(format!("name: {problem}")));
    }
    if scopes.is_empty() {
        return Err(invalid("scopes: a token has one or more scopes".into()));
    }
    // Otherwise a caller could get what it may not do.
    scopes.iter().try_for_each(|scope| access.require(scope))?;
    let expires = expires_in.as_deref().map(|text| parse_duration(text).and_then(expiry_after)).transpose();
    let expires = expires.map_err(|detail| invalid(format!("expires_in: {detail}")))?;
    let new =
        NewToken { name, scopes, expires, by: access.caller.name.clone(), tenant: access.tenant.clone() };
    let (text, stored) = access.administrator().create_token(new).await.map_err(|error| match error {
        CreateTokenError::TooMany => Problem::new(ProblemKind::TooManyTokens, error),
        CreateTokenError::Fault(fault) => fault.into(),
    })?;
    Ok(json_response(StatusCode::CREATED, &CommandOutcome::token_created(&text, &stored)))
}

/// Revoke a token. Every gateway refuses it within a second.
#[utoipa::path(
    delete, path = "/tokens/{token}", tag = "access",
    params(("token" = String, Path, description = "The id of the token")),
    responses((status = 200, description = "The token was revoked", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn delete_token(access: Access, Path(token): Path<String>) -> ApiResult {
    let unknown = || {
        let detail = format!("there is no token with the id {token:?}; /tokens lists them");
        Problem::new(ProblemKind::TokenNotFound, detail)
    };
    let id: TokenId = token.parse().map_err(|_| unknown())?;
    let revoked = access.administrator().revoke_token(&id).await?.ok_or_else(unknown)?;
    let outcome = CommandOutcome::TokenRevoked { id: &revoked.id, name: &revoked.name };
    reply(&outcome)
}

/// Administrative actions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AuditList<'a> {
    /// The actions, oldest first, at most 1000.
    pub actions: Vec<AuditLine<'a>>,
    /// The sequence of the last one, for `after`; 0 if there are none.
    pub next: u64,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    /// Only actions after this sequence: the `next` of the part before.
    #[serde(default)]
    after: u64,
}

/// List administrative actions: who created and revoked tokens, changed limits, webhooks and rules, and deleted runs. What was done to a run is in its events.
#[utoipa::path(
    get, path = "/audit", tag = "access", params(AuditQuery),
    responses((status = 200, description = "A part of the actions", body = ref("#/components/schemas/AuditList")))
)]
async fn list_actions(access: Access, Query(query): Query<AuditQuery>) -> ApiResult {
    let actions = read_actions(&access.bus, query.after, MAX_ACTIONS).await?;
    let next = actions.last().map_or(query.after, |(sequence, _)| *sequence);
    let actions = actions.iter().map(|(sequence, record)| AuditLine::new(*sequence, record)).collect();
    reply(&AuditList { actions, next })
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

pub fn caller_response(access: &Access) -> Response {
    let Caller { name, scopes, token, .. } = &*access.caller;
    json_response(
        StatusCode::OK,
        &CallerJson::Caller { name, scopes, token: token.as_ref(), tenant: access.tenant.as_ref() },
    )
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
    Json(LoginBody { token }): Json<LoginBody>,
) -> ApiResult {
    let choice = TenantChoice::of_header(&headers);
    let access = authenticator.accept_token(token.trim(), choice, address.0).await?;
    let cookie = set_cookie(token.trim(), authenticator.is_encrypted())
        .ok_or_else(|| Problem::invalid("the token is too long for a cookie; send it in a header"))?;
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
