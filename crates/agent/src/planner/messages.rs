//! Replies to the planner: the outcome of an edit, and unknown task names.

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Event, GraphEvent, Plan, RunEvent, TaskEvent, TaskState};
use millrace_protocol::schema::find_nearest_name;

/// The largest number of tasks named in one sentence.
const MAX_NAMED: usize = 30;

/// The error for an unknown task name.
pub(super) fn unknown_task_error(plan: &Plan, text: &str) -> String {
    let text: String = text.trim().chars().take(80).collect();
    let hint =
        find_similar_id(plan, &text).map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
    format!("there is no task '{text}'{hint}; {}", format_task_list(plan))
}

/// A list of the plan's tasks.
pub(super) fn format_task_list(plan: &Plan) -> String {
    match plan.tasks() {
        [] => "the plan has no tasks yet".into(),
        all => format!("the tasks are {}", format_id_list(all.iter().map(|task| &task.spec.id))),
    }
}

/// A list of ids; at most [`MAX_NAMED`], the newest.
pub(super) fn format_id_list<'a>(ids: impl Iterator<Item = &'a TaskId>) -> String {
    let ids: Vec<&str> = ids.map(TaskId::as_str).collect();
    match ids.len().saturating_sub(MAX_NAMED) {
        0 => ids.join(", "),
        more => format!("{} and {more} older ones", ids[more..].join(", ")),
    }
}

/// The number of tasks in each state.
pub(super) fn count_tasks_by_state(plan: &Plan) -> String {
    let counts = TaskState::ALL
        .iter()
        .map(|&state| (state, plan.task_count_in_state(state)))
        .filter(|(_, count)| *count > 0);
    let counts: Vec<String> = counts.map(|(state, count)| format!("{count} {state}")).collect();
    match plan.tasks().len() {
        1 => format!("1 task: {}", counts.join(", ")),
        all => format!("{all} tasks: {}", counts.join(", ")),
    }
}

/// The outcome of an edit.
pub(super) fn describe_edit(plan: &Plan, events: &[Event]) -> String {
    let mut by_change: Vec<(&str, Vec<&TaskId>)> = Vec::new();
    for (change, task) in events.iter().filter_map(describe_event) {
        match by_change.iter_mut().find(|(earlier, _)| *earlier == change) {
            Some((_, tasks)) => tasks.push(task),
            None => by_change.push((change, vec![task])),
        }
    }
    let mut sentences: Vec<String> = by_change
        .into_iter()
        .map(|(change, ids)| format!("{change}: {}", format_id_list(ids.into_iter())))
        .collect();
    if let Some(Event::Run(RunEvent::Ended { reason, .. })) = events.last() {
        sentences.push(format!("the run ends with this turn: {reason}"));
    }
    sentences.push(format!("the plan has {}", count_tasks_by_state(plan)));
    let mut text = sentences.join("; ");
    text.push('.');
    text
}

/// The change of a task that an event describes; `None` for events that the planner need not know.
fn describe_event(event: &Event) -> Option<(&'static str, &TaskId)> {
    if let Event::Graph(event) = event {
        Some((describe_graph_event(event), event.task()))
    } else if let Event::Task(event) = event {
        Some((describe_task_event(event)?, event.task()))
    } else {
        None
    }
}

fn describe_graph_event(event: &GraphEvent) -> &'static str {
    match event {
        GraphEvent::TaskAdded { ready: true, .. } => "added and ready",
        GraphEvent::TaskAdded { ready: false, .. } => "added, pending on their dependencies",
        GraphEvent::TaskPatched { .. } => "changed",
        GraphEvent::FinalMarked { .. } => "final",
    }
}

fn describe_task_event(event: &TaskEvent) -> Option<&'static str> {
    if let TaskEvent::Reopened { ready, .. } = event {
        Some(if *ready { "retried, ready" } else { "retried, pending on their dependencies" })
    } else if let TaskEvent::Invalidated { .. } = event {
        Some("invalidated and to run again, since they depend on it")
    } else if let TaskEvent::Cancelled { with, .. } = event {
        Some(if with.is_some() { "cancelled with it" } else { "cancelled" })
    } else if let TaskEvent::Ready { .. } = event {
        Some("ready")
    } else {
        None
    }
}

/// Finds the task id most similar to a text.
fn find_similar_id<'a>(plan: &'a Plan, text: &str) -> Option<&'a str> {
    find_nearest_name(text.trim(), plan.tasks().iter().map(|task| task.spec.id.as_str()))
}
