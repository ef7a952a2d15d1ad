//! What users command. A command is carried out once, and its first event says whose it was.

use std::collections::BTreeSet;

use super::super::edit::{Command, Control, Edit, MAX_TEXT};
use super::super::spec::{OnFailedDependency, TaskSpec};
use super::super::state::{End, EndReason, Occasion, Plan, Task, TaskState};
use super::super::{Budget, Event, Refusal};
use super::edits::{By, cancel, edit, is_lost, redone};
use super::planning;
use super::settle::deliverable;
use super::wave::Wave;
use crate::ids::TaskId;

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
        Control::Resume { budget: Some(_) } if plan.winding_down.is_some() && plan.paused.is_none() => {
            let why = "the run is coming to its end; go on with it, with more, when it has ended";
            return Err(Refusal::WrongMoment(why.into()));
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
    let given_up = wanted_again(plan);
    let again = redone(plan, &given_up);
    let restored = restored(plan, &again);
    events.extend(again.into_iter().chain(restored));
    // What waits for something that is lost for good is the planner's to judge.
    let waits = |task: &&Task| task.spec.on_failed_dependency == OnFailedDependency::Ask;
    let asks = plan.tasks.iter().zip(0_u32..).filter(|(task, at)| waits(task) && given_up.contains(at));
    let lost = asks.flat_map(|(task, _)| &task.spec.depends_on).filter_map(|id| plan.task(id));
    let lost: BTreeSet<&TaskId> =
        lost.filter(|task| task.state == TaskState::Failed).map(|task| &task.spec.id).collect();
    if plan.has_planner() {
        events.extend(
            lost.into_iter()
                .map(|task| Event::OccasionRaised { occasion: Occasion::TaskLost { task: task.clone() } }),
        );
    }
    Ok(events)
}

/// The tasks that were given up only because the run was coming to its end, but for those that go with what is lost
/// for good.
fn wanted_again(plan: &Plan) -> BTreeSet<u32> {
    let all = (0_u32..).zip(&plan.tasks);
    let mut wanted: BTreeSet<u32> = all.filter(|(_, task)| task.is_wound_down).map(|(at, _)| at).collect();
    let goes = |at: u32, wanted: &BTreeSet<u32>| {
        let spec = &plan.tasks[at as usize].spec;
        let is_lost =
            |id| is_lost(plan, spec, id) && plan.position(id).is_none_or(|at| !wanted.contains(&at));
        spec.on_failed_dependency == OnFailedDependency::Cancel && spec.depends_on.iter().any(is_lost)
    };
    let mut gone: Vec<u32> = wanted.iter().copied().filter(|&at| goes(at, &wanted)).collect();
    wanted.retain(|at| gone.binary_search(at).is_err());
    while let Some(at) = gone.pop() {
        let lost = &plan.tasks[at as usize];
        let goes_too = |at: &u32| {
            let policy = plan.tasks[*at as usize].spec.on_failed_dependency;
            policy == OnFailedDependency::Cancel && wanted.remove(at)
        };
        gone.extend(lost.dependents.iter().copied().filter(goes_too));
    }
    wanted
}

/// What was to go on without what was missing at the end of the run is again as it was asked for; but for what misses
/// something that is lost for good, and would wait for it for ever.
fn restored(plan: &Plan, again: &[Event]) -> Vec<Event> {
    let again: BTreeSet<&TaskId> = again.iter().filter_map(Event::task).collect();
    let is_there =
        |spec: &TaskSpec| spec.depends_on.iter().all(|id| again.contains(id) || !is_lost(plan, spec, id));
    let changed = plan
        .tasks
        .iter()
        .filter_map(|task| Some(TaskSpec { on_failed_dependency: task.own_policy?, ..task.spec.clone() }));
    let restored = changed.filter(is_there);
    restored.map(|spec| Event::TaskPatched { spec: Box::new(spec), attempt: 0 }).collect()
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
    if !planning::can_be_told(plan) {
        return Err(Refusal::WrongMoment("the planner of this run is asked no more".into()));
    }
    let (by, text) = (by.to_owned(), text.to_owned());
    let occasion = Occasion::Message { by: by.clone(), text: text.clone() };
    Ok(vec![Event::MessageReceived { by, text }, Event::OccasionRaised { occasion }])
}

fn cancel_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = Wave::default();
    wave.cancel_all(plan, None, &super::on_the_plan(reason));
    wave.events.extend(planning::given_up(plan, "the run was cancelled"));
    wave.events.push(Event::RunEnded {
        reason: EndReason::Cancelled,
        detail: super::on_the_plan(reason),
        deliverable: deliverable(plan),
    });
    wave.events
}
