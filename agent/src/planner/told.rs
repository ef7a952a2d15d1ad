//! What a planner is told of its changes, and of a name that there is not. Words only.

use std::collections::BTreeMap;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Event, Plan, TaskState};

use super::kindness::near;

/// The most tasks that are named in one sentence.
const MAX_NAMED: usize = 30;

/// That there is no such task, and which there are.
pub(super) fn unknown(plan: &Plan, text: &str) -> String {
    let text: String = text.trim().chars().take(80).collect();
    let hint = near(plan, &text).map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
    format!("there is no task '{text}'{hint}; {}", tasks(plan))
}

/// Which tasks there are.
pub(super) fn tasks(plan: &Plan) -> String {
    match plan.tasks() {
        [] => "the plan has no tasks yet".into(),
        all => format!("the tasks are {}", named(all.iter().map(|task| &task.spec.id))),
    }
}

/// Some ids as a list, of which the newest are named.
pub(super) fn named<'a>(ids: impl Iterator<Item = &'a TaskId>) -> String {
    let ids: Vec<&str> = ids.map(TaskId::as_str).collect();
    match ids.len().saturating_sub(MAX_NAMED) {
        0 => ids.join(", "),
        more => format!("{} and {more} older ones", ids[more..].join(", ")),
    }
}

/// How many tasks are in which state.
pub(super) fn counts(plan: &Plan) -> String {
    let counts =
        TaskState::ALL.iter().map(|&state| (state, plan.count(state))).filter(|(_, count)| *count > 0);
    let counts: Vec<String> = counts.map(|(state, count)| format!("{count} {state}")).collect();
    match plan.tasks().len() {
        1 => format!("1 task: {}", counts.join(", ")),
        all => format!("{all} tasks: {}", counts.join(", ")),
    }
}

/// What a change came to.
pub(super) fn changed(plan: &Plan, events: &[Event]) -> String {
    let mut lines: BTreeMap<usize, Vec<&TaskId>> = BTreeMap::new();
    let mut said: Vec<String> = Vec::new();
    for event in events {
        let Some((what, task)) = word(event) else { continue };
        let at = said.iter().position(|known| *known == what).unwrap_or_else(|| {
            said.push(what);
            said.len() - 1
        });
        lines.entry(at).or_default().push(task);
    }
    let mut told: Vec<String> =
        lines.into_iter().map(|(at, ids)| format!("{}: {}", said[at], named(ids.into_iter()))).collect();
    if let Some(Event::RunEnded { reason, .. }) = events.last() {
        told.push(format!("the run ends with this turn: {reason}"));
    }
    told.push(format!("the plan has {}", counts(plan)));
    let mut text = told.join("; ");
    text.push('.');
    text
}

/// What an event is to its task, for a planner; `None` for what it need not know.
fn word(event: &Event) -> Option<(String, &TaskId)> {
    let (word, task) = match event {
        Event::TaskAdded { spec, ready: true } => ("added and ready at once", &spec.id),
        Event::TaskAdded { spec, ready: false } => ("added, waiting for what they depend on", &spec.id),
        Event::TaskPatched { spec, .. } => ("changed", &spec.id),
        Event::FinalMarked { task } => ("final", task),
        Event::TaskReopened { task, ready: true, .. } => ("to run once more, at once", task),
        Event::TaskReopened { task, ready: false, .. } => {
            ("to run once more, when what it depends on is there", task)
        }
        Event::TaskInvalidated { task, .. } => ("to be done again, since they build on it", task),
        Event::TaskCancelled { task, with: None, .. } => ("cancelled", task),
        Event::TaskCancelled { task, with: Some(_), .. } => ("cancelled with it", task),
        Event::TaskReady { task, .. } => ("ready now", task),
        Event::RunStarted { .. }
        | Event::PlanningAsked { .. }
        | Event::OccasionRaised { .. }
        | Event::PlanningClaimed { .. }
        | Event::ProposalAccepted { .. }
        | Event::PlanningErrored { .. }
        | Event::CapabilityMissing { .. }
        | Event::ParametersWrong { .. }
        | Event::Reserved { .. }
        | Event::BudgetLow { .. }
        | Event::WindingDown { .. }
        | Event::Commanded { .. }
        | Event::MessageReceived { .. }
        | Event::Paused
        | Event::Resumed { .. }
        | Event::RunReopened
        | Event::RunRetired
        | Event::TaskPending { .. }
        | Event::AttemptClaimed { .. }
        | Event::AttemptFinished { .. }
        | Event::AttemptErrored { .. }
        | Event::AttemptTimedOut { .. }
        | Event::ReviewErrored { .. }
        | Event::ReviewReady { .. }
        | Event::VerdictGiven { .. }
        | Event::TaskAccepted { .. }
        | Event::TaskRerun { .. }
        | Event::TaskFailed { .. }
        | Event::RunEnded { .. } => return None,
    };
    Some((word.to_owned(), task))
}
