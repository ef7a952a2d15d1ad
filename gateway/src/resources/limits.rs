//! The rate limits of models.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_models::provider::parse_model_name;
use millrace_protocol::token::Scope;
use millrace_runtime::store::rate_limits::{LimitName, LimitStatus, RateLimit, read_rate_limit_statuses};
use millrace_views::{CommandOutcome, LimitJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{JsonBody, PathParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(list_limits))
        .scoped(Scope::Admin, routes!(put_limit, delete_limit))
}

/// Rate limits.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LimitList<'a> {
    /// The limits with their use in the last minute.
    pub limits: Vec<LimitJson<'a>>,
}

/// List the rate limits of models, and their use in the last minute.
#[utoipa::path(
    get, path = "/limits", tag = "limits",
    responses((status = 200, description = "The limits", body = ref("#/components/schemas/LimitList")))
)]
async fn list_limits(gateway: Access) -> Result<Response, Problem> {
    let statuses: Vec<LimitStatus> = read_rate_limit_statuses(&gateway.bus).await?;
    let limits = statuses.iter().map(LimitJson::from).collect();
    Ok(json_response(StatusCode::OK, &LimitList { limits }))
}

/// Limits per minute; one that is absent is unlimited.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitBody {
    /// Requests per minute.
    #[serde(default)]
    requests: Option<u64>,
    /// Tokens per minute, input and output.
    #[serde(default)]
    tokens: Option<u64>,
}

fn parse_name(text: &str) -> Result<LimitName, Problem> {
    let invalid = |why: String| Problem::new(ProblemKind::InvalidRequest, format!("{text:?}: {why}"));
    let name = text.parse::<LimitName>().map_err(|error| invalid(error.to_string()))?;
    // A limit on an unknown provider would hold for nothing.
    parse_model_name(text).map_err(|error| invalid(error.to_string()))?;
    Ok(name)
}

/// Set the rate limit of a model (`provider:model`), or of all models of a provider (`provider:*`).
#[utoipa::path(
    put, path = "/limits/{model}", tag = "limits",
    params(("model" = String, Path, description = "The model")),
    request_body = ref("#/components/schemas/LimitBody"),
    responses((status = 200, description = "The limit was set", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn put_limit(
    gateway: Access,
    PathParts(model): PathParts<String>,
    JsonBody(LimitBody { requests, tokens }): JsonBody<LimitBody>,
) -> Result<Response, Problem> {
    let name = parse_name(&model)?;
    if (requests, tokens) == (None, None) || requests == Some(0) || tokens == Some(0) {
        let detail = "a limit has requests, tokens or both, each 1 or more";
        return Err(Problem::new(ProblemKind::InvalidRequest, detail));
    }
    gateway.administrator().set_limit(&name, RateLimit { requests, tokens }).await?;
    let name = name.to_string();
    Ok(json_response(StatusCode::OK, &CommandOutcome::LimitSet { name: &name, requests, tokens }))
}

/// Remove the rate limit of a model.
#[utoipa::path(
    delete, path = "/limits/{model}", tag = "limits",
    params(("model" = String, Path, description = "The model")),
    responses((status = 200, description = "The limit was removed", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn delete_limit(gateway: Access, PathParts(model): PathParts<String>) -> Result<Response, Problem> {
    let name = model.parse::<LimitName>();
    let name =
        name.map_err(|error| Problem::new(ProblemKind::InvalidRequest, format!("{model:?}: {error}")))?;
    if !gateway.administrator().remove_limit(&name).await? {
        return Err(Problem::new(ProblemKind::LimitNotFound, format!("{name} has no limit")));
    }
    let name = name.to_string();
    Ok(json_response(StatusCode::OK, &CommandOutcome::LimitCleared { name: &name }))
}
