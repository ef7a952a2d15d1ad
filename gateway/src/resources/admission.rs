//! `/admission`: the caps on the number of runs.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use millrace_client::find_admission_problem;
use millrace_protocol::admission::AdmissionCaps;
use millrace_protocol::token::Scope;
use millrace_runtime::store::admission::{read_board, read_caps};
use millrace_runtime::{Bus, Fault};
use millrace_views::{Admission, CommandOutcome};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::JsonBody;
use crate::problem::{Problem, ProblemKind};
use crate::state::{Gateway, json_response};

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(read_admission)).scoped(Scope::Admin, routes!(put_admission))
}

/// The maximum age of the cached caps: a submission reads them no more often.
const MAX_CACHE_AGE: Duration = Duration::from_secs(1);

/// The caps as they were last read.
#[derive(Default)]
pub struct CachedCaps(Mutex<Option<(Instant, AdmissionCaps)>>);

impl CachedCaps {
    async fn read(&self, bus: &Bus) -> Result<AdmissionCaps, Fault> {
        let mut cached = self.0.lock().await;
        if let Some((at, caps)) = *cached
            && at.elapsed() < MAX_CACHE_AGE
        {
            return Ok(caps);
        }
        let caps = read_caps(bus).await?.caps;
        *cached = Some((Instant::now(), caps));
        Ok(caps)
    }

    async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Returns the problem of a run that is submitted now, if as many runs as allowed wait for a place.
///
/// # Errors
/// The cluster does not respond.
pub async fn find_problem_of_full_cluster(gateway: &Gateway) -> Result<Option<Problem>, Problem> {
    let caps = gateway.caps.read(&gateway.bus).await?;
    let problem = find_admission_problem(&gateway.bus, &caps).await?;
    Ok(problem.map(|problem| Problem::new(ProblemKind::TooManyRuns, problem)))
}

/// The caps on the number of runs; one that is absent is unlimited.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdmissionBody {
    /// The number of runs that may run at once. Others wait in the order of their submissions.
    #[serde(default)]
    max_running_runs: Option<u32>,
    /// The number of runs that may wait for a place. Others are refused.
    #[serde(default)]
    max_waiting_runs: Option<u32>,
}

/// Read the caps on the number of runs, and how many run and wait.
#[utoipa::path(
    get, path = "/admission", tag = "limits",
    responses((status = 200, description = "The caps and the numbers", body = ref("#/components/schemas/Admission")))
)]
async fn read_admission(gateway: Access) -> Result<Response, Problem> {
    let (caps, board) = (read_caps(&gateway.bus).await?, read_board(&gateway.bus).await?);
    Ok(json_response(StatusCode::OK, &Admission::new(&caps.caps, &board)))
}

/// Set the caps on the number of runs; supervisors know them a second later.
#[utoipa::path(
    put, path = "/admission", tag = "limits",
    request_body = ref("#/components/schemas/AdmissionBody"),
    responses((status = 200, description = "The caps were set", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn put_admission(
    gateway: Access,
    JsonBody(AdmissionBody { max_running_runs, max_waiting_runs }): JsonBody<AdmissionBody>,
) -> Result<Response, Problem> {
    let caps = AdmissionCaps { max_running_runs, max_waiting_runs };
    let caps = caps.validate().map_err(|error| Problem::new(ProblemKind::InvalidRequest, error))?;
    gateway.administrator().set_caps(caps).await?;
    gateway.caps.forget().await;
    Ok(json_response(StatusCode::OK, &CommandOutcome::RunCapsSet { max_running_runs, max_waiting_runs }))
}
