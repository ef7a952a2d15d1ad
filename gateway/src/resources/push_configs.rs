//! Push configs: receivers of A2A notifications about one run.

use std::fmt;

use axum::http::StatusCode;
use axum::response::Response;
use millrace_client::webhooks::{self as webhooks, NewPushConfig, PushConfigError};
use millrace_protocol::ids::RunId;
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::{PushAuthentication, SecretText, StoredPushConfig};
use millrace_views::PushConfigJson;
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
        .scoped(Scope::Read, routes!(list_push_configs))
        .scoped(Scope::Submit, routes!(set_push_config))
        .scoped(Scope::Read, routes!(read_push_config))
        .scoped(Scope::Submit, routes!(delete_push_config))
}

fn invalid(detail: impl fmt::Display) -> Problem {
    Problem::new(ProblemKind::InvalidRequest, detail)
}

impl From<PushConfigError> for Problem {
    fn from(error: PushConfigError) -> Self {
        match error {
            PushConfigError::NotFound(..) => Self::new(ProblemKind::PushConfigNotFound, error),
            PushConfigError::TooMany(_) => Self::new(ProblemKind::TooManyPushConfigs, error),
            PushConfigError::Invalid(mistake) => invalid(mistake),
            PushConfigError::Fault(fault) => fault.into(),
        }
    }
}

/// A push config to set.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushConfigBody {
    /// Its id, unique within the run; one is created if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The URL of its receiver.
    pub url: String,
    /// The token that requests have in the header `X-A2A-Notification-Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub token: Option<SecretText>,
    /// The header `Authorization` of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<PushAuthenticationBody>,
}

/// The header `Authorization` of requests to a receiver.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushAuthenticationBody {
    /// The scheme, such as `Bearer`.
    pub scheme: String,
    /// The credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub credentials: Option<SecretText>,
}

impl Access {
    /// Checks a push config.
    ///
    /// # Errors
    /// It has a mistake, or its URL is not allowed.
    pub fn check_push_config(&self, body: PushConfigBody) -> Result<NewPushConfig, Problem> {
        let PushConfigBody { id, url, token, authentication } = body;
        let url = self.receivers.parse_url(&url).map_err(|error| invalid(format!("url: {error}")))?;
        let authentication = authentication
            .map(|PushAuthenticationBody { scheme, credentials }| PushAuthentication { scheme, credentials });
        let new = NewPushConfig { config: id, url, token, authentication };
        new.check().map_err(invalid)?;
        Ok(new)
    }

    /// Sets a push config of a run.
    ///
    /// # Errors
    /// The run has too many, or the cluster does not respond.
    pub async fn set_push_config(
        &self,
        run: &RunId,
        new: NewPushConfig,
    ) -> Result<StoredPushConfig, Problem> {
        Ok(webhooks::set_push_config(&self.bus, run, new, &self.caller.name).await?)
    }
}

/// The push configs of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PushConfigList<'a> {
    /// The push configs, oldest first.
    pub push_configs: Vec<PushConfigJson<'a>>,
}

/// List the push configs of a run. Their tokens and credentials can't be read.
#[utoipa::path(
    get, path = "/runs/{run}/push-configs", tag = "webhooks",
    params(("run" = String, Path, description = "The run")),
    responses((status = 200, description = "The push configs", body = ref("#/components/schemas/PushConfigList")))
)]
async fn list_push_configs(access: Access, PathParts(run): PathParts<String>) -> Result<Response, Problem> {
    let (run, _) = access.find_run(&run).await?;
    let configs = webhooks::list_push_configs(&access.bus, &run).await?;
    let push_configs = configs.iter().map(PushConfigJson::new).collect();
    Ok(json_response(StatusCode::OK, &PushConfigList { push_configs }))
}

/// Set a push config of a run: its receiver gets A2A notifications about the status of the run. One with the same id is replaced.
#[utoipa::path(
    post, path = "/runs/{run}/push-configs", tag = "webhooks",
    params(("run" = String, Path, description = "The run")),
    request_body = ref("#/components/schemas/PushConfigBody"),
    responses((status = 201, description = "The push config was set", body = ref("#/components/schemas/PushConfig")))
)]
async fn set_push_config(
    access: Access,
    PathParts(run): PathParts<String>,
    JsonBody(body): JsonBody<PushConfigBody>,
) -> Result<Response, Problem> {
    let (run, _) = access.find_run(&run).await?;
    let new = access.check_push_config(body)?;
    let config = access.set_push_config(&run, new).await?;
    Ok(json_response(StatusCode::CREATED, &PushConfigJson::new(&config)))
}

/// Read a push config of a run.
#[utoipa::path(
    get, path = "/runs/{run}/push-configs/{config}", tag = "webhooks",
    params(
        ("run" = String, Path, description = "The run"),
        ("config" = String, Path, description = "The id of the push config")
    ),
    responses((status = 200, description = "The push config", body = ref("#/components/schemas/PushConfig")))
)]
async fn read_push_config(
    access: Access,
    PathParts((run, config)): PathParts<(String, String)>,
) -> Result<Response, Problem> {
    let (run, _) = access.find_run(&run).await?;
    let config = webhooks::find_push_config(&access.bus, &run, &config).await?;
    Ok(json_response(StatusCode::OK, &PushConfigJson::new(&config)))
}

/// Delete a push config of a run. Notifications that were not delivered are not attempted any more.
#[utoipa::path(
    delete, path = "/runs/{run}/push-configs/{config}", tag = "webhooks",
    params(
        ("run" = String, Path, description = "The run"),
        ("config" = String, Path, description = "The id of the push config")
    ),
    responses((status = 200, description = "The push config that was deleted", body = ref("#/components/schemas/PushConfig")))
)]
async fn delete_push_config(
    access: Access,
    PathParts((run, config)): PathParts<(String, String)>,
) -> Result<Response, Problem> {
    let (run, _) = access.find_run(&run).await?;
    let deleted = webhooks::delete_push_config(&access.bus, &run, &config).await?;
    Ok(json_response(StatusCode::OK, &PushConfigJson::new(&deleted)))
}
