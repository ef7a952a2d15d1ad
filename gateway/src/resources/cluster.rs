//! The state of the cluster: processes, capabilities, queues and lanes; and the version of the gateway with the description of its API.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use millrace_protocol::registry::ProcessRole;
use millrace_protocol::token::Scope;
use millrace_runtime::ops::cluster_status::ClusterStatus;
use millrace_runtime::store::rate_limits::read_rate_limit_statuses;
use millrace_runtime::work::registry::read_heartbeats;
use millrace_views::{ClusterChecks, ClusterJson};
use schemars::JsonSchema;
use serde::Serialize;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::openapi::api_document_text;
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::{json_response, reply};

/// The time in which the cluster must respond to a health check.
const HEALTH_TIME: Duration = Duration::from_secs(5);

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(read_status))
        .scoped(Scope::Read, routes!(list_workers))
        .scoped(Scope::Read, routes!(list_capabilities))
        .scoped(Scope::Read, routes!(check_health))
        .scoped(Scope::Read, routes!(check_cluster))
        .public(routes!(read_version))
        .public(routes!(read_document))
}

/// Show the processes, capabilities, queues, lanes and runs of the cluster.
#[utoipa::path(
    get, path = "/status", tag = "cluster",
    responses((status = 200, description = "The state of the cluster", body = ref("#/components/schemas/ClusterJson")))
)]
async fn read_status(gateway: Access) -> ApiResult {
    let status = ClusterStatus::read(&gateway.bus).await?;
    let json = ClusterJson::status(gateway.bus.settings(), &status, Timestamp::now());
    reply(&json)
}

/// List the workers and critics.
#[utoipa::path(
    get, path = "/workers", tag = "cluster",
    responses((status = 200, description = "The workers and critics", body = ref("#/components/schemas/ClusterJson")))
)]
async fn list_workers(gateway: Access) -> ApiResult {
    let status = ClusterStatus::read(&gateway.bus).await?;
    let takes_orders = |role: ProcessRole| match role {
        ProcessRole::Worker | ProcessRole::Critic => true,
        ProcessRole::Supervisor | ProcessRole::Gateway => false,
    };
    let workers = status.processes.iter().filter(|process| takes_orders(process.heartbeat.role));
    reply(&ClusterJson::workers(workers, Timestamp::now()))
}

/// List the capabilities with their slots and queues.
#[utoipa::path(
    get, path = "/capabilities", tag = "cluster",
    responses((status = 200, description = "The capabilities", body = ref("#/components/schemas/ClusterJson")))
)]
pub async fn list_capabilities(gateway: Access) -> ApiResult {
    let status = ClusterStatus::read(&gateway.bus).await?;
    reply(&ClusterJson::capabilities(&status, Timestamp::now()))
}

/// The health of the gateway.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Health {
    /// The cluster responds.
    Health {
        /// The number of live supervisors; without one no run makes progress.
        supervisors: usize,
        /// The number of live workers.
        workers: usize,
    },
}

/// Check whether the cluster responds to this gateway.
#[utoipa::path(
    get, path = "/health", tag = "cluster",
    responses((status = 200, description = "The cluster responds", body = ref("#/components/schemas/Health")))
)]
async fn check_health(gateway: Access) -> ApiResult {
    let heartbeats = tokio::time::timeout(HEALTH_TIME, read_heartbeats(&gateway.bus)).await;
    let heartbeats = heartbeats.map_err(|_| {
        let detail = format!("the NATS server has not responded for {} s", HEALTH_TIME.as_secs());
        Problem::new(ProblemKind::ClusterUnavailable, detail)
    })??;
    let count = |role: ProcessRole| heartbeats.iter().filter(|heartbeat| heartbeat.role == role).count();
    let health =
        Health::Health { supervisors: count(ProcessRole::Supervisor), workers: count(ProcessRole::Worker) };
    reply(&health)
}

/// Check the processes, lanes, queues, limits and storage of the cluster; each problem has advice.
#[utoipa::path(
    get, path = "/checks", tag = "cluster",
    responses((status = 200, description = "The checks", body = ref("#/components/schemas/ClusterChecks")))
)]
async fn check_cluster(gateway: Access) -> ApiResult {
    let status = ClusterStatus::read(&gateway.bus).await?;
    let limits = read_rate_limit_statuses(&gateway.bus).await?;
    reply(&ClusterChecks::new(&status, &limits, Timestamp::now()))
}

/// The version.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Version {
    /// The version of the gateway.
    Version {
        /// The release.
        version: &'static str,
        /// The version of the API, which is in its paths.
        api: &'static str,
    },
}

/// Show the version of the gateway.
#[utoipa::path(
    get, path = "/version", tag = "cluster",
    responses((status = 200, description = "The version", body = ref("#/components/schemas/Version")))
)]
async fn read_version() -> Response {
    json_response(StatusCode::OK, &Version::Version { version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

/// Read this description of the API (OpenAPI 3.1).
#[utoipa::path(
    get, path = "/openapi.json", tag = "cluster",
    responses((status = 200, description = "The description", content_type = "application/json", body = Object))
)]
async fn read_document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], api_document_text()).into_response()
}
