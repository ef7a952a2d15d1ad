//! What users command. A command is carried out once, and its first event says whose it was.

use super::super::edit::{Command, Control, Edit, MAX_TEXT};
use super::super::state::{End, EndReason, Occasion, Plan};
use super::super::{Budget, Event, Refusal};
use super::edits::{By, cancel, edit, invalidated};
use super::settle::deliverable;
use super::wave::Wave;
use super::{begin::is_met, planning};

pub(super) fn command(plan: &Plan, command: &Command) -> Result<Vec<Event>, Refusal> {
    let mut events = vec![commanded(plan, command)?];
    events.extend(match &command.control {
        Control::CancelRun { reason } => cancel_run(plan, reason),
        Control::CancelTask { task, reason } => cancel(plan, task, reason, By::User)?,
        Control::Edit(wanted) => edit(plan, wanted, By::User)?,
        Control::Pause if plan.paused.is_some() => {
            return Err(Refusal::WrongMoment("the run is paused already".into()));
        }
        Control::Pause => vec![Event::Paused],
        Control::Resume { budget: None } if plan.paused.is_none() => {
            return Err(Refusal::WrongMoment("the run is not paused".into()));
        }
        Control::Resume { budget } => vec![resumed(plan, budget.as_ref())?],
        Control::Message { text } => message(plan, &command.by, text)?,
    });
    Ok(events)
}

/// Goes on with a run that has ended, with more than it had.
pub(super) fn reopen(plan: &Plan, command: &Command, end: &End) -> Result<Vec<Event>, Refusal> {
    let Control::Resume { budget: Some(budget) } = &command.control else {
        return Err(Refusal::RunAlreadyEnded(end.reason));
    };
    let mut events = vec![commanded(plan, command)?, Event::RunReopened, resumed(plan, Some(budget))?];
    // Those that were given up because the run was coming to its end are wanted again, and with them what was made
    // without them.
    let given_up = plan.tasks.iter().filter(|task| task.is_wound_down);
    let mut seen = std::collections::BTreeSet::new();
    for task in given_up {
        let ready = task.spec.depends_on.iter().all(|id| {
            is_met(plan, &task.spec, id) && plan.task(id).is_none_or(|dependency| !dependency.is_wound_down)
        });
        let (id, attempt) = (task.spec.id.clone(), task.attempt + 1);
        events.push(Event::TaskReopened { task: id.clone(), attempt, ready, feedback: None });
        seen.insert(id);
        for event in invalidated(plan, task) {
            let is_new = event.task().is_some_and(|id| {
                plan.task(id).is_some_and(|task| !task.is_wound_down) && seen.insert(id.clone())
            });
            if is_new {
                events.push(event);
            }
        }
    }
    Ok(events)
}

fn commanded(plan: &Plan, command: &Command) -> Result<Event, Refusal> {
    let Command { id, by, control } = command;
    if plan.commands.contains(id) {
        return Err(Refusal::AlreadyApplied(id.clone()));
    }
    let what = match control {
        Control::CancelRun { reason } => format!("cancel the run: {reason}"),
        Control::CancelTask { task, reason } => format!("cancel task {task}: {reason}"),
        Control::Edit(Edit::Add(tasks)) => format!("add {} tasks", tasks.len()),
        Control::Edit(Edit::Patch(patch)) => format!("change task {}", patch.task),
        Control::Edit(Edit::Cancel { task, reason }) => format!("cancel task {task}: {reason}"),
        Control::Edit(Edit::Retry { task, .. }) => format!("retry task {task}"),
        Control::Edit(Edit::MarkFinal { task }) => format!("make task {task} final"),
        Control::Edit(Edit::Finish { .. } | Edit::GiveUp { .. }) => "finish the run".into(),
        Control::Pause => "pause".into(),
        Control::Resume { budget: None } => "resume".into(),
        Control::Resume { budget: Some(_) } => "resume with more".into(),
        Control::Message { .. } => "tell the planner something".into(),
    };
    Ok(Event::Commanded { id: id.clone(), by: by.clone(), what: super::on_the_plan(&what) })
}

fn resumed(plan: &Plan, more: Option<&Budget>) -> Result<Event, Refusal> {
    let old = plan.start.as_ref().map(|start| start.budget.clone()).unwrap_or_default();
    let budget = more.map_or_else(|| old.clone(), |more| old.raised(more));
    if let Err((field, expected)) = budget.check() {
        return Err(Refusal::Unusable(format!("the budget: {field} must be {expected}")));
    }
    Ok(Event::Resumed { budget: Box::new(budget) })
}

fn message(plan: &Plan, by: &str, text: &str) -> Result<Vec<Event>, Refusal> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Refusal::Unusable("the message is empty".into()));
    }
    if text.len() > MAX_TEXT {
        return Err(Refusal::Unusable(format!("the message is longer than {MAX_TEXT} bytes")));
    }
    if !plan.has_planner() {
        return Err(Refusal::WrongMoment("this run has no planner that could be told something".into()));
    }
    if !planning::is_available(plan) && plan.planning.is_none() && plan.idle_turns < super::MAX_IDLE_TURNS {
        return Err(Refusal::WrongMoment("the planner of this run is asked no more".into()));
    }
    let (by, text) = (by.to_owned(), text.to_owned());
    let occasion = Occasion::Message { by: by.clone(), text: text.clone() };
    Ok(vec![Event::MessageReceived { by, text }, Event::OccasionRaised { occasion }])
}

fn cancel_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = Wave::default();
    wave.cancel_all(plan, None, reason);
    wave.events.push(Event::RunEnded {
        reason: EndReason::Cancelled,
        detail: super::on_the_plan(reason),
        deliverable: deliverable(plan),
    });
    wave.events
}
