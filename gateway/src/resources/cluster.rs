//! The state of the cluster: processes, capabilities, queues and lanes.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
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
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

/// The time in which the cluster must respond to a health check.
const HEALTH_TIME: Duration = Duration::from_secs(5);

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(read_status))
        .scoped(Scope::Read, routes!(list_workers))
        .scoped(Scope::Read, routes!(list_capabilities))
        .scoped(Scope::Read, routes!(check_health))
        .scoped(Scope::Read, routes!(check_cluster))
}

/// Show the processes, capabilities, queues, lanes and runs of the cluster.
#[utoipa::path(
    get, path = "/status", tag = "cluster",
    responses((status = 200, description = "The state of the cluster", body = ref("#/components/schemas/ClusterJson")))
)]
async fn read_status(gateway: Access) -> Result<Response, Problem> {
    let status = ClusterStatus::read(&gateway.bus).await?;
    let json = ClusterJson::status(gateway.bus.settings(), &status, Timestamp::now());
    Ok(json_response(StatusCode::OK, &json))
}

/// List the workers and critics.
#[utoipa::path(
    get, path = "/workers", tag = "cluster",
    responses((status = 200, description = "The workers and critics", body = ref("#/components/schemas/ClusterJson")))
)]
async fn list_workers(gateway: Access) -> Result<Response, Problem> {
    let status = ClusterStatus::read(&gateway.bus).await?;
    let takes_orders = |role: ProcessRole| match role {
        ProcessRole::Worker | ProcessRole::Critic => true,
        ProcessRole::Supervisor | ProcessRole::Gateway => false,
    };
    let workers = status.processes.iter().filter(|process| takes_orders(process.heartbeat.role));
    Ok(json_response(StatusCode::OK, &ClusterJson::workers(workers, Timestamp::now())))
}

/// List the capabilities with their slots and queues.
#[utoipa::path(
    get, path = "/capabilities", tag = "cluster",
    responses((status = 200, description = "The capabilities", body = ref("#/components/schemas/ClusterJson")))
)]
pub async fn list_capabilities(gateway: Access) -> Result<Response, Problem> {
    let status = ClusterStatus::read(&gateway.bus).await?;
    Ok(json_response(StatusCode::OK, &ClusterJson::capabilities(&status, Timestamp::now())))
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
async fn check_health(gateway: Access) -> Result<Response, Problem> {
    let heartbeats = tokio::time::timeout(HEALTH_TIME, read_heartbeats(&gateway.bus)).await;
    let heartbeats = heartbeats.map_err(|_| {
        let detail = format!("the NATS server has not responded for {} s", HEALTH_TIME.as_secs());
        Problem::new(ProblemKind::ClusterUnavailable, detail)
    })??;
    let count = |role: ProcessRole| heartbeats.iter().filter(|heartbeat| heartbeat.role == role).count();
    let health =
        Health::Health { supervisors: count(ProcessRole::Supervisor), workers: count(ProcessRole::Worker) };
    Ok(json_response(StatusCode::OK, &health))
}

/// Check the processes, lanes, queues, limits and storage of the cluster; each problem has advice.
#[utoipa::path(
    get, path = "/checks", tag = "cluster",
    responses((status = 200, description = "The checks", body = ref("#/components/schemas/ClusterChecks")))
)]
async fn check_cluster(gateway: Access) -> Result<Response, Problem> {
    let status = ClusterStatus::read(&gateway.bus).await?;
    let limits = read_rate_limit_statuses(&gateway.bus).await?;
    Ok(json_response(StatusCode::OK, &ClusterChecks::new(&status, &limits, Timestamp::now())))
}
