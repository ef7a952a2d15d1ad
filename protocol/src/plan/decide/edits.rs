//! One change of a plan, whoever wants it. Each is all or nothing; a refusal says what to do instead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::budget::{DEFAULT_DEPTH, DEFAULT_TASKS};
use super::super::edit::{Edit, Patch};
use super::super::graph::{check_patched, depth};
use super::super::spec::{Mode, OnFailedDependency, Review, ReviewCheck, TaskSpec};
use super::super::state::{ErroredFor, Plan, Task, TaskState};
use super::super::{Event, Refusal, check};
use super::begin::{added, is_met};
use super::wave::with_consequences;
use super::{find, in_hand, is_in_motion, on_the_plan, planning, wrong_state};
use crate::ids::TaskId;
use crate::result::MAX_MESSAGE;

/// Who wants a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) enum By {
    /// The planner, within what it may do in this run.
    Planner,
    /// A user.
    User,
}

/// What a change makes of the plan.
///
/// # Errors
/// Why it makes nothing.
pub(in crate::plan) fn edit(plan: &Plan, edit: &Edit, by: By) -> Result<Vec<Event>, Refusal> {
    let is_fixed = plan.start.as_ref().is_some_and(|start| start.mode == Mode::Fixed);
    if by == By::Planner && is_fixed && edit.changes_the_graph() {
        return Err(Refusal::FixedPlan { edit: edit.name().into() });
    }
    if plan.winding_down.is_some() && !matches!(edit, Edit::Cancel { .. }) {
        return Err(Refusal::WrongMoment("the run is coming to its end and takes no more changes".into()));
    }
    match edit {
        Edit::Add(tasks) => add(plan, tasks, by),
        Edit::Patch(wanted) => patch(plan, wanted, by),
        Edit::Cancel { task, reason } => cancel(plan, task, reason, by),
        Edit::Retry { task, feedback } => retry(plan, task, feedback.as_deref()),
        Edit::MarkFinal { task } => mark_final(plan, task),
        Edit::Finish { .. } | Edit::GiveUp { .. } if by == By::User => {
            Err(Refusal::WrongMoment("only the planner finishes a run; cancel it instead".into()))
        }
        Edit::Finish { reason } => match false_end(plan) {
            Some(why) => Err(Refusal::Unusable(format!("the objective is not achieved: {why}"))),
            None => Ok(planning::finished(plan, reason)),
        },
        Edit::GiveUp { reason } => give_up(plan, reason),
    }
}

fn give_up(plan: &Plan, reason: &str) -> Result<Vec<Event>, Refusal> {
    if plan.tasks.is_empty() {
        return Err(Refusal::Unusable("there is no plan that could be given up: make one".into()));
    }
    if is_in_motion(plan) {
        return Err(Refusal::WrongMoment(
            "tasks are under way: wait for their ends, or cancel them first".into(),
        ));
    }
    if false_end(plan).is_none() {
        return Err(Refusal::Unusable("the final task is completed: finish instead".into()));
    }
    Ok(planning::given_up_run(plan, reason))
}

/// Why the run is not at its end, if it is not: the deliverable is there when the one final task is completed.
pub(super) fn false_end(plan: &Plan) -> Option<String> {
    match plan.final_task() {
        None => Some("no task of the plan is final; mark the one whose result is the deliverable".into()),
        Some(task) if task.state == TaskState::Completed => None,
        Some(task) => Some(format!("the final task {} is {}, not completed", task.spec.id, task.state)),
    }
}

fn add(plan: &Plan, tasks: &[TaskSpec], by: By) -> Result<Vec<Event>, Refusal> {
    if tasks.is_empty() {
        return Err(Refusal::Unusable("no tasks are given".into()));
    }
    check(plan, tasks)?;
    for task in tasks {
        refuse_lost(plan, task)?;
    }
    if by == By::Planner {
        tasks.iter().try_for_each(|task| refuse_programs(&task.review))?;
        let budget = plan.start.as_ref().map(|start| &start.budget);
        let limit = budget.and_then(|budget| budget.tasks).unwrap_or(DEFAULT_TASKS);
        let found = u32::try_from(plan.tasks.len() + tasks.len()).unwrap_or(u32::MAX);
        if found > limit {
            return Err(Refusal::TooLarge { what: "tasks".into(), found, allowed: limit });
        }
        refuse_deep(plan, tasks)?;
    }
    Ok(added(plan, tasks))
}

/// Which programs run is for users and capabilities to say, never for what a planner may have read somewhere.
fn refuse_programs(review: &Review) -> Result<(), Refusal> {
    let checks = match review {
        Review::None => &[][..],
        Review::Checks { checks } | Review::Critic { checks, .. } => checks,
    };
    if checks.iter().any(|check| matches!(check, ReviewCheck::Command { .. })) {
        return Err(Refusal::Unusable(
            "a planner can't ask for a check by a program; use another check".into(),
        ));
    }
    Ok(())
}

fn refuse_deep(plan: &Plan, tasks: &[TaskSpec]) -> Result<(), Refusal> {
    let budget = plan.start.as_ref().map(|start| &start.budget);
    let allowed = budget.and_then(|budget| budget.depth).unwrap_or(DEFAULT_DEPTH);
    let found = depth(plan, tasks);
    // A user may have made it deeper than that.
    if found > allowed && found > depth(plan, &[]) {
        return Err(Refusal::TooLarge { what: "tasks in a row".into(), found, allowed });
    }
    Ok(())
}

/// A task that waits for what is lost would wait for ever.
fn refuse_lost(plan: &Plan, spec: &TaskSpec) -> Result<(), Refusal> {
    let lost = spec.depends_on.iter().find(|id| is_lost(plan, spec, id)).and_then(|id| plan.task(id));
    match lost {
        None => Ok(()),
        Some(lost) => Err(Refusal::Unusable(format!(
            "task {} depends on {}, which is {}: retry that one first, depend on another, or go on without it \
             (on_failed_dependency: skip)",
            spec.id, lost.spec.id, lost.state
        ))),
    }
}

fn patch(plan: &Plan, wanted: &Patch, by: By) -> Result<Vec<Event>, Refusal> {
    let task = find(plan, &wanted.task)?;
    match task.state {
        TaskState::Pending | TaskState::Ready | TaskState::Rerun | TaskState::Errored => {}
        TaskState::Running | TaskState::NeedsReview => {
            return Err(wrong_state(task, "a change (wait for its end, or cancel it and add another)"));
        }
        TaskState::Completed | TaskState::Failed | TaskState::Cancelled => {
            return Err(wrong_state(task, "a change (retry it, or add another)"));
        }
    }
    let spec = patched(&task.spec, wanted);
    if spec == task.spec {
        return Err(Refusal::Unusable(format!("the patch changes nothing of task {}", wanted.task)));
    }
    check_patched(plan, &spec)?;
    if by == By::Planner && wanted.review.is_some() {
        refuse_programs(&spec.review)?;
    }
    refuse_lost(plan, &spec)?;
    if by == By::Planner && wanted.depends_on.is_some() {
        refuse_deep(plan, std::slice::from_ref(&spec))?;
    }
    let id = spec.id.clone();
    let is_ready = spec.depends_on.iter().all(|dependency| is_met(plan, &spec, dependency));
    let patch = |attempt| Event::TaskPatched { spec: Box::new(spec.clone()), attempt };
    let waits = |attempt| match is_ready {
        true => Event::TaskReady { task: id.clone(), attempt },
        false => Event::TaskPending { task: id.clone() },
    };
    Ok(match (task.state, task.errored) {
        (TaskState::Errored, Some(ErroredFor::Retry(_))) => {
            let attempt = task.attempt + 1;
            vec![patch(0), Event::TaskReopened { task: id.clone(), attempt, ready: is_ready, feedback: None }]
        }
        (TaskState::Pending, _) if !is_ready => vec![patch(0)],
        (TaskState::Pending, _) => vec![patch(0), waits(task.attempt.max(1))],
        // The order that is out says what is not wanted any more: it is taken back, and another attempt waits.
        _ if task.given_out().is_some() => vec![patch(task.attempt + 1), waits(task.attempt + 1)],
        _ => vec![patch(0), waits(task.attempt.max(1))],
    })
}

fn patched(old: &TaskSpec, wanted: &Patch) -> TaskSpec {
    let mut parameters = old.parameters.clone();
    for (name, value) in &wanted.parameters {
        if value.is_null() {
            parameters.remove(name);
        } else {
            parameters.insert(name.clone(), value.clone());
        }
    }
    TaskSpec {
        objective: wanted.objective.clone().unwrap_or_else(|| old.objective.clone()),
        capability: wanted.capability.clone().unwrap_or_else(|| old.capability.clone()),
        depends_on: wanted.depends_on.clone().unwrap_or_else(|| old.depends_on.clone()),
        parameters,
        review: wanted.review.clone().unwrap_or_else(|| old.review.clone()),
        limits: wanted.limits.clone().unwrap_or_else(|| old.limits.clone()),
        on_failed_dependency: wanted.on_failed_dependency.unwrap_or(old.on_failed_dependency),
        ..old.clone()
    }
}

pub(super) fn cancel(plan: &Plan, id: &TaskId, reason: &str, by: By) -> Result<Vec<Event>, Refusal> {
    let task = find(plan, id)?;
    if task.state.is_terminal() {
        return Err(wrong_state(task, "cancelling it"));
    }
    let event = Event::TaskCancelled {
        task: id.clone(),
        reason: on_the_plan(reason),
        with: None,
        usage: in_hand(plan, task),
    };
    let mut events = with_consequences(plan, vec![event]);
    if by == By::User {
        events.extend(super::wave::ask_for_waiting(plan, task));
    }
    Ok(events)
}

fn retry(plan: &Plan, id: &TaskId, feedback: Option<&str>) -> Result<Vec<Event>, Refusal> {
    let task = find(plan, id)?;
    match (task.state, task.errored) {
        (TaskState::Completed | TaskState::Failed | TaskState::Cancelled, _)
        | (TaskState::Errored, Some(ErroredFor::Retry(_))) => {}
        (TaskState::Running | TaskState::NeedsReview, _) => {
            return Err(wrong_state(task, "a retry (wait for its end, or cancel it first)"));
        }
        (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) => {
            return Err(wrong_state(task, "a retry (it is to run anyway)"));
        }
        (TaskState::Errored, _) => {
            return Err(wrong_state(task, "a retry (give it another capability or other parameters)"));
        }
    }
    if feedback.is_some_and(|text| text.len() > MAX_MESSAGE) {
        return Err(Refusal::Unusable(format!("the feedback is longer than {MAX_MESSAGE} bytes")));
    }
    refuse_lost(plan, &task.spec)?;
    let feedback = feedback.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let again: BTreeSet<u32> = plan.position(id).into_iter().collect();
    let mut events = redone(plan, &again);
    if let Some(Event::TaskReopened { feedback: told, .. }) = events.first_mut() {
        *told = feedback;
    }
    Ok(events)
}

/// Opens tasks again, in the order of the plan, and behind them all that is done again with them: what was built on
/// them, and what was lost with them and misses nothing else.
pub(super) fn redone(plan: &Plan, again: &BTreeSet<u32>) -> Vec<Event> {
    let invalidated = invalidated(plan, again);
    let all: BTreeSet<u32> = again.iter().chain(&invalidated).copied().collect();
    let is_redone = |id: &TaskId| plan.position(id).is_some_and(|at| all.contains(&at));
    let opened = again.iter().map(|&at| {
        let task = &plan.tasks[at as usize];
        let ready = task.spec.depends_on.iter().all(|id| !is_redone(id) && is_met(plan, &task.spec, id));
        Event::TaskReopened { task: task.spec.id.clone(), attempt: task.attempt + 1, ready, feedback: None }
    });
    let invalidated = invalidated.iter().map(|&at| {
        let task = &plan.tasks[at as usize];
        let usage = in_hand(plan, task);
        Event::TaskInvalidated { task: task.spec.id.clone(), attempt: task.attempt + 1, usage }
    });
    opened.chain(invalidated).collect()
}

/// The tasks that are done again because others are, nearest first. Each dependency is looked at once or twice, however
/// many tasks are done again.
fn invalidated(plan: &Plan, again: &BTreeSet<u32>) -> Vec<u32> {
    let mut redone = Redone { plan, all: again.clone(), missed: BTreeMap::new() };
    let dependents = |at: u32| plan.tasks[at as usize].dependents.iter().copied();
    let mut queue: VecDeque<u32> = again.iter().flat_map(|&at| dependents(at)).collect();
    let mut found = Vec::new();
    while let Some(position) = queue.pop_front() {
        if !redone.all.contains(&position) && redone.takes(position) {
            redone.add(position);
            found.push(position);
            queue.extend(dependents(position));
        }
    }
    found
}

/// Tasks that are done again, while they are gathered.
struct Redone<'a> {
    plan: &'a Plan,
    all: BTreeSet<u32>,
    /// Of tasks that were lost with others: how many of those that they depend on are lost and not done again.
    missed: BTreeMap<u32, usize>,
}

impl Redone<'_> {
    fn add(&mut self, position: u32) {
        self.all.insert(position);
        let id = &self.plan.tasks[position as usize].spec.id;
        for dependent in &self.plan.tasks[position as usize].dependents {
            let spec = &self.plan.tasks[*dependent as usize].spec;
            if let Some(missed) = self.missed.get_mut(dependent).filter(|_| is_lost(self.plan, spec, id)) {
                *missed = missed.saturating_sub(1);
            }
        }
    }

    /// Whether a task is done again with one that it depends on.
    fn takes(&mut self, position: u32) -> bool {
        let task = &self.plan.tasks[position as usize];
        match task.state {
            TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun => true,
            TaskState::Errored => matches!(task.errored, Some(ErroredFor::Retry(_))) || task.unmet == 0,
            // It went because something was lost: it comes back when nothing is any more.
            TaskState::Cancelled => task.lost_with.is_some() && self.missed_by(position) == 0,
            TaskState::Pending | TaskState::Failed => false,
        }
    }

    fn missed_by(&mut self, position: u32) -> usize {
        let (plan, all) = (self.plan, &self.all);
        *self.missed.entry(position).or_insert_with(|| {
            let spec = &plan.tasks[position as usize].spec;
            let is_redone = |id: &TaskId| plan.position(id).is_some_and(|at| all.contains(&at));
            spec.depends_on.iter().filter(|id| is_lost(plan, spec, id) && !is_redone(id)).count()
        })
    }
}

/// Whether a task that depends on another would wait for it in vain.
pub(super) fn is_lost(plan: &Plan, spec: &TaskSpec, dependency: &TaskId) -> bool {
    let lost = |task: &Task| matches!(task.state, TaskState::Failed | TaskState::Cancelled);
    spec.on_failed_dependency != OnFailedDependency::Skip && plan.task(dependency).is_some_and(lost)
}

fn mark_final(plan: &Plan, id: &TaskId) -> Result<Vec<Event>, Refusal> {
    let task = find(plan, id)?;
    if task.spec.is_final {
        return Err(Refusal::Unusable(format!("task {id} is final already")));
    }
    if matches!(task.state, TaskState::Failed | TaskState::Cancelled) {
        return Err(wrong_state(task, "making it final (retry it first)"));
    }
    Ok(vec![Event::FinalMarked { task: id.clone() }])
}
