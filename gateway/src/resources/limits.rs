//! The rate limits of models, and the caps on the number of runs.

use std::time::Duration;

use millrace_client::find_admission_problem;
use millrace_models::provider::parse_model_name;
use millrace_protocol::admission::AdmissionCaps;
use millrace_protocol::token::Scope;
use millrace_runtime::store::admission::{read_board, read_caps};
use millrace_runtime::store::rate_limits::{LimitName, LimitStatus, RateLimit, read_rate_limit_statuses};
use millrace_runtime::{Bus, Fault};
use millrace_views::{Admission, CommandOutcome, LimitJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Json, Path};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::{Gateway, reply};

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Read, routes!(list_limits))
        .scoped(Scope::Admin, routes!(put_limit, delete_limit))
        .scoped(Scope::Read, routes!(read_admission))
        .scoped(Scope::Admin, routes!(put_admission))
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
async fn list_limits(gateway: Access) -> ApiResult {
    let statuses: Vec<LimitStatus> = read_rate_limit_statuses(&gateway.bus).await?;
    let limits = statuses.iter().map(LimitJson::from).collect();
    reply(&LimitList { limits })
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
    let invalid = |why: String| Problem::invalid(format!("{text:?}: {why}"));
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
    Path(model): Path<String>,
    Json(LimitBody { requests, tokens }): Json<LimitBody>,
) -> ApiResult {
    let name = parse_name(&model)?;
    if (requests, tokens) == (None, None) || requests == Some(0) || tokens == Some(0) {
        let detail = "a limit has requests, tokens or both, each 1 or more";
        return Err(Problem::invalid(detail));
    }
    gateway.administrator().set_limit(&name, RateLimit { requests, tokens }).await?;
    let name = name.to_string();
    reply(&CommandOutcome::LimitSet { name: &name, requests, tokens })
}

/// Remove the rate limit of a model.
#[utoipa::path(
    delete, path = "/limits/{model}", tag = "limits",
    params(("model" = String, Path, description = "The model")),
    responses((status = 200, description = "The limit was removed", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn delete_limit(gateway: Access, Path(model): Path<String>) -> ApiResult {
    let name = model.parse::<LimitName>();
    let name = name.map_err(|error| Problem::invalid(format!("{model:?}: {error}")))?;
    if !gateway.administrator().remove_limit(&name).await? {
        return Err(Problem::new(ProblemKind::LimitNotFound, format!("{name} has no limit")));
    }
    let name = name.to_string();
    reply(&CommandOutcome::LimitCleared { name: &name })
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
async fn read_admission(gateway: Access) -> ApiResult {
    let (caps, board) = (read_caps(&gateway.bus).await?, read_board(&gateway.bus).await?);
    reply(&Admission::new(&caps.caps, &board))
}

/// Set the caps on the number of runs; supervisors know them a second later.
#[utoipa::path(
    put, path = "/admission", tag = "limits",
    request_body = ref("#/components/schemas/AdmissionBody"),
    responses((status = 200, description = "The caps were set", body = ref("#/components/schemas/CommandOutcome")))
)]
async fn put_admission(
    gateway: Access,
    Json(AdmissionBody { max_running_runs, max_waiting_runs }): Json<AdmissionBody>,
) -> ApiResult {
    let caps = AdmissionCaps { max_running_runs, max_waiting_runs };
    let caps = caps.validate().map_err(Problem::invalid)?;
    gateway.administrator().set_caps(caps).await?;
    gateway.caps.forget().await;
    reply(&CommandOutcome::RunCapsSet { max_running_runs, max_waiting_runs })
}
