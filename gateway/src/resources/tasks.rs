//! The tasks of a run, as of any sequence.

use std::collections::BTreeSet;

use axum::response::Response;
use millrace_protocol::plan::TaskState;
use millrace_protocol::token::Scope;
use millrace_views::TaskList;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::versioned_json_response;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(list_tasks)).scoped(Scope::Read, routes!(read_task))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TaskQuery {
    /// Only tasks in these states, separated by commas, such as `running,waiting`.
    state: Option<String>,
    /// The tasks as of this sequence.
    at: Option<u64>,
}

/// List the tasks of a run with their attempts.
#[utoipa::path(
    get, path = "/runs/{run}/tasks", tag = "runs",
    params(("run" = String, Path, description = "The run"), TaskQuery),
    responses((status = 200, description = "The tasks; the ETag is the sequence of the run's last decision", body = ref("#/components/schemas/TaskList")))
)]
async fn list_tasks(
    gateway: Access,
    PathParts(run): PathParts<String>,
    QueryParts(query): QueryParts<TaskQuery>,
) -> Result<Response, Problem> {
    let states = parse_states(query.state.as_deref())?;
    let (run, _) = gateway.find_run(&run).await?;
    let state = gateway.read_history(&run, query.at).await?;
    let is_wanted =
        |task: &millrace_protocol::plan::Task| states.is_empty() || states.contains(&task.state());
    let tasks = TaskList::new(&run, (state.plan(), state.sequence()), is_wanted);
    Ok(versioned_json_response(&tasks, state.sequence()))
}

fn parse_states(text: Option<&str>) -> Result<BTreeSet<TaskState>, Problem> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let find = |name: &str| {
        TaskState::ALL.into_iter().find(|state| state.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = TaskState::ALL.iter().map(|state| state.as_str()).collect();
            let detail = format!("state={name:?} is no state of a task; valid: {}", known.join(", "));
            Problem::new(ProblemKind::InvalidRequest, detail)
        })
    };
    names.map(find).collect()
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct OneTaskQuery {
    /// The task as of this sequence.
    at: Option<u64>,
}

/// Read one task of a run with its attempts.
#[utoipa::path(
    get, path = "/runs/{run}/tasks/{task}", tag = "runs",
    params(("run" = String, Path, description = "The run"), ("task" = String, Path, description = "The task"), OneTaskQuery),
    responses((status = 200, description = "A list with this task", body = ref("#/components/schemas/TaskList")))
)]
async fn read_task(
    gateway: Access,
    PathParts((run, id)): PathParts<(String, String)>,
    QueryParts(query): QueryParts<OneTaskQuery>,
) -> Result<Response, Problem> {
    let (run, _) = gateway.find_run(&run).await?;
    let state = gateway.read_history(&run, query.at).await?;
    if !state.plan().tasks().iter().any(|task| task.spec.id.as_str() == id) {
        return Err(Problem::new(ProblemKind::TaskNotFound, format!("run {run} has no task {id:?}")));
    }
    let tasks = TaskList::new(&run, (state.plan(), state.sequence()), |task| task.spec.id.as_str() == id);
    Ok(versioned_json_response(&tasks, state.sequence()))
}
