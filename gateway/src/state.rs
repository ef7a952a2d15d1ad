//! The state that all requests of a tenant share: the connection to the cluster, and nothing that could not be read again.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName};
use axum::response::{IntoResponse, Response};
use millrace_address_policy::ReceiverPolicy;
use millrace_client::read_log_damage;
use millrace_plan_file::limits::resume_arguments;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Plan;
use millrace_protocol::registry::RunSummary;
use millrace_protocol::tenant::TenantName;
use millrace_runtime::log::has_submission;
use millrace_runtime::store::retention::read_deletion;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::feed::LaneHub;
use crate::history::{HistoryCache, RunState, read_state_at};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::queue_places::CachedPlaces;
use crate::resources::CachedCaps;
use crate::run_index::RunIndex;

/// The state that all requests of a tenant share.
pub struct Gateway {
    /// The tenant; `None` for the only one of this process.
    pub tenant: Option<TenantName>,
    /// The connection to the cluster.
    pub bus: Bus,
    /// The summaries of runs as of the last list.
    pub runs: Arc<RunIndex>,
    /// The histories of runs that were read last.
    pub histories: Arc<HistoryCache>,
    pub hub: Arc<LaneHub>,
    /// The caps on the number of runs as they were last read.
    pub caps: CachedCaps,
    /// The places in the queues as they were last read.
    pub places: CachedPlaces,
    pub receivers: ReceiverPolicy,
    /// Ends open streams when the process stops, or stops serving the tenant.
    pub shutdown: CancellationToken,
}

/// The state as the handlers of a tenant share it.
pub type SharedGateway = Arc<Gateway>;

impl Gateway {
    #[must_use]
    pub fn new(
        tenant: Option<TenantName>,
        bus: Bus,
        receivers: ReceiverPolicy,
        shutdown: CancellationToken,
    ) -> Self {
        let runs = Arc::new(RunIndex::default());
        let hub = Arc::new(LaneHub::new(bus.clone(), runs.clone(), shutdown.clone()));
        Self {
            tenant,
            bus,
            runs,
            histories: Arc::default(),
            hub,
            caps: CachedCaps::default(),
            places: CachedPlaces::default(),
            receivers,
            shutdown,
        }
    }

    /// Finds the run with this id; `None` as its summary if no supervisor has started it.
    pub async fn find_run(&self, id: &str) -> Result<(RunId, Option<RunSummary>), Problem> {
        let run = parse_run(id)?;
        if let Some(summary) = registry::read_summary(&self.bus, &run).await? {
            return Ok((run, Some(summary)));
        }
        match has_submission(&self.bus, self.bus.lane_of_run(&run), &run).await? {
            true => Ok((run, None)),
            false => {
                self.refuse_deleted(&run).await?;
                Err(unknown_run(id))
            }
        }
    }

    pub async fn refuse_deleted(&self, run: &RunId) -> Result<(), Problem> {
        let deletion = read_deletion(&self.bus, run).await?.filter(|deletion| deletion.state.is_deleted());
        let Some(deletion) = deletion else { return Ok(()) };
        let (by, at) = (deletion.by, deletion.requested.strftime("%Y-%m-%d %H:%M:%S UTC"));
        Err(Problem::new(ProblemKind::RunDeleted, format!("run {run} was deleted by {by} at {at}")))
    }

    /// Reads the history of a run up to sequence `at`, or up to its last decision.
    pub async fn read_history(&self, run: &RunId, at: Option<u64>) -> Result<Arc<RunState>, Problem> {
        if let Some(at) = at {
            return Ok(Arc::new(read_state_at(&self.bus, run, at).await?));
        }
        let state = self.histories.read(&self.bus, run).await?;
        if state.last.is_none() {
            self.refuse_damaged(run).await?;
        }
        Ok(state)
    }

    /// Finds a task of a run by a parameter that selects what belongs to it.
    pub async fn find_task(&self, run: &RunId, id: &str) -> Result<TaskId, Problem> {
        find_task(self.read_history(run, None).await?.plan(), id)
    }

    /// Refuses a run whose log is damaged.
    pub async fn refuse_damaged(&self, run: &RunId) -> Result<(), Problem> {
        let Some(damage) = read_log_damage(&self.bus, run).await? else { return Ok(()) };
        let detail =
            format!("the log of run {run} is damaged: {damage}; restore a backup, or submit the run again");
        Err(Problem::new(ProblemKind::LogDamaged, detail))
    }
}

pub fn parse_run(id: &str) -> Result<RunId, Problem> {
    RunId::new(id).map_err(|_| unknown_run(id))
}

/// Finds a task. Before the first decision no task is known, and any id is accepted.
pub fn find_task(plan: &Plan, id: &str) -> Result<TaskId, Problem> {
    let unknown = || Problem::new(ProblemKind::TaskNotFound, format!("the run has no task {id:?}"));
    let task = TaskId::new(id).map_err(|_| unknown())?;
    match plan.run.start.is_none() || plan.task(&task).is_some() {
        true => Ok(task),
        false => Err(unknown()),
    }
}

fn unknown_run(id: &str) -> Problem {
    Problem::new(ProblemKind::RunNotFound, format!("there is no run {id:?}"))
}

/// Returns the command that resumes a run that has ended, if it can be resumed.
#[must_use]
pub fn resume_command(run: &RunId, plan: &Plan) -> Option<String> {
    resume_arguments(run, plan).map(|arguments| format!("millrace {arguments}"))
}

pub fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    text_response(status, serde_json::to_string(value).expect("the types of the API serialise to JSON"))
}

/// Returns the reply with a value as JSON.
pub fn reply(value: &impl Serialize) -> ApiResult {
    Ok(json_response(StatusCode::OK, value))
}

/// Returns a response with JSON that is a text already.
pub fn text_response(status: StatusCode, json: String) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], json).into_response()
}

/// Returns a response with JSON and the version of the resource.
pub fn versioned_json_response(value: &impl Serialize, sequence: u64) -> Response {
    let body = serde_json::to_vec(value).expect("the types of the API serialise to JSON");
    let headers: [(HeaderName, String); 2] =
        [(CONTENT_TYPE, "application/json".to_owned()), (ETAG, format!("\"{sequence}\""))];
    (StatusCode::OK, headers, body).into_response()
}

/// Reads a blob of a client's choice; `None` if there is none.
pub async fn find_blob(bus: &Bus, sha256: &str) -> Result<Option<Vec<u8>>, Fault> {
    match bus.blobs().get(sha256).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Fault::Missing { .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}
