//! The results of an ended run as documents for a run that follows up on it. The later run gets copies, so that it needs nothing
//! of the earlier one.
//!
//! ```text
//! earlier/RUN/report.md        the deliverable, with its sources
//! earlier/RUN/tasks.md         every completed task, in a line each
//! earlier/RUN/tasks/TASK.md    the result of each other task that has more than a line
//! earlier/RUN/files/PATH       the files of the run
//! ```

use std::fmt::Write;

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{AttemptEnd, EarlierRun, EndReason, MAX_EARLIER_TEXT, Plan, Task, TaskState};
use millrace_protocol::result::TaskResult;
use millrace_protocol::safe_text::markdown_line;
use millrace_runtime::store::workspace::RunWorkspace;
use millrace_runtime::{Bus, Fault};

use crate::{FindError, find_run, read_plan, read_task_result};

/// The maximum number of results that become a document each; the newest ones.
const MAX_RESULTS: usize = 500;
const MAX_FILES: usize = 2_000;

#[derive(Debug)]
pub struct EarlierResults {
    pub about: EarlierRun,
    /// Its results as documents: the path and the content of each.
    pub documents: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, thiserror::Error)]
pub enum EarlierRunError {
    /// No run, or several, have this name.
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(
        "run {0} has not ended, so that its results may change; wait for its end with `millrace watch {0}`, or cancel it"
    )]
    NotEnded(RunId),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Returns the results of the run that `text` names: a full id, a unique prefix of one, or `latest`.
pub async fn read_earlier_run(bus: &Bus, text: &str) -> Result<EarlierResults, EarlierRunError> {
    let run = find_run(bus, text).await?;
    match read_results_of_run(bus, &run).await? {
        Some(results) => Ok(results),
        None => Err(EarlierRunError::NotEnded(run)),
    }
}

/// Returns the results of a run; `None` if there is no such run, or it has not ended.
pub async fn read_results_of_run(bus: &Bus, run: &RunId) -> Result<Option<EarlierResults>, Fault> {
    let plan = read_plan(bus, run).await?;
    let Some(end) = &plan.run.end else { return Ok(None) };
    let run = run.clone();
    let folder = format!("earlier/{run}");
    let deliverable = end.deliverable.as_ref().map(|(task, _)| task);
    let mut documents = Vec::new();
    let mut summary = String::new();
    if let Some(task) = deliverable.and_then(|id| plan.task(id))
        && let Some(result) = read_task_result(bus, &run, &plan, &task.spec.id).await?
    {
        summary.clone_from(&result.summary);
        documents.push((format!("{folder}/report.md"), render_result(&task.spec.objective, &result)));
    }
    let completed = || plan.tasks().iter().filter(|task| task.state() == TaskState::Completed);
    if completed().next().is_some() {
        documents.push((format!("{folder}/tasks.md"), render_tasks(completed())));
    }
    for id in results_with_details(&plan, deliverable) {
        if let (Some(task), Some(result)) = (plan.task(id), read_task_result(bus, &run, &plan, id).await?) {
            documents.push((format!("{folder}/tasks/{id}.md"), render_result(&task.spec.objective, &result)));
        }
    }
    let workspace = RunWorkspace::new(bus, &run);
    for entry in workspace.list_files(None).await?.into_iter().take(MAX_FILES) {
        if let Some(file) = workspace.read_file(&entry.path).await? {
            let path = entry.path.as_str().trim_start_matches('/').to_owned();
            documents.push((format!("{folder}/files/{path}"), file.bytes));
        }
    }
    let objective = plan.run.start.as_ref().map(|start| cut_text(&start.objective)).unwrap_or_default();
    if end.reason != EndReason::Completed {
        // Agents must know that the results are not all that was wanted.
        let detail = if end.detail.is_empty() { String::new() } else { format!(": {}", end.detail) };
        let gap = if summary.is_empty() { "" } else { ". " };
        summary = format!("the run ended as {}{detail}{gap}{summary}", end.reason);
    }
    let about = EarlierRun { run, objective, summary: cut_text(&summary), folder };
    Ok(Some(EarlierResults { about, documents }))
}

/// The completed tasks, apart from the deliverable's, whose result is more than its summary.
fn results_with_details<'a>(plan: &'a Plan, deliverable: Option<&'a TaskId>) -> Vec<&'a TaskId> {
    let is_detailed = |task: &&Task| {
        let end = task.current_attempt().and_then(|attempt| attempt.end.as_ref());
        matches!(end, Some(AttemptEnd::Finished { is_detailed: true, .. }))
    };
    let completed = plan.tasks().iter().filter(|task| task.state() == TaskState::Completed);
    let others = completed.filter(|task| Some(&task.spec.id) != deliverable).filter(is_detailed);
    let mut ids: Vec<&TaskId> = others.map(|task| &task.spec.id).collect();
    ids.drain(..ids.len().saturating_sub(MAX_RESULTS));
    ids
}

fn render_result(objective: &str, result: &TaskResult) -> Vec<u8> {
    let mut text = format!("# {}\n\n{}\n", markdown_line(objective), result.output.trim_end());
    if let Some(data) = &result.data {
        let _ = write!(text, "\n## Data\n\n{data:#}\n");
    }
    if !result.sources.is_empty() {
        text.push_str("\n## Sources\n\n");
        for source in &result.sources {
            let [id, title, location] =
                [&source.id, &source.title, &source.location].map(|it| markdown_line(it));
            let _ = writeln!(text, "- [{id}] {title} ({location})");
        }
    }
    text.into_bytes()
}

fn render_tasks<'a>(tasks: impl Iterator<Item = &'a Task>) -> Vec<u8> {
    let mut text = "# Completed tasks\n\n".to_owned();
    for task in tasks {
        let summary = task.accepted_result().map(|(_, _, summary)| summary).unwrap_or_default();
        let [objective, summary] = [task.spec.objective.as_str(), summary].map(markdown_line);
        let _ = writeln!(text, "- {} ({objective}): {summary}", task.spec.id);
    }
    text.into_bytes()
}

fn cut_text(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_EARLIER_TEXT)].to_owned()
}
