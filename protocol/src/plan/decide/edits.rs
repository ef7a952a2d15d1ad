//! Edits of a plan, by the planner or a user. Each is all or nothing; a refusal suggests an alternative.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::super::budget::{DEFAULT_DEPTH, DEFAULT_TASKS};
use super::super::edit::{Edit, TaskPatch};
use super::super::graph::{check_patched_task, plan_depth};
use super::super::spec::{OnFailedDependency, PlanningMode, ReviewPolicy, TaskSpec};
use super::super::state::{ErroredTaskWait, Plan, Task, TaskState};
use super::super::{Event, GraphEvent, Refusal, TaskEvent, apply, check_new_tasks};
use super::begin::{is_dependency_met, task_added_event};
use super::run_end::{self, finish_run};
use super::wave::append_consequences_of_task_ends;
use super::{
    children, find_task, has_work_in_progress, refuse_program_checks, truncate_for_plan, turn,
    usage_of_work_in_flight, wrong_state_refusal,
};
use crate::ids::TaskId;
use crate::result::MAX_MESSAGE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) enum EditAuthor {
    /// The planner, with the permissions that it has in this run.
    Planner,
    User,
}

/// Returns the events of an edit.
pub(in crate::plan) fn decide_edit(plan: &Plan, edit: &Edit, by: EditAuthor) -> Result<Vec<Event>, Refusal> {
    let is_fixed = plan.run.start.as_ref().is_some_and(|start| start.mode == PlanningMode::Fixed);
    if by == EditAuthor::Planner && is_fixed && edit.changes_task_graph() {
        return Err(Refusal::FixedPlan { edit: edit.name().into() });
    }
    if plan.run.winding_down.is_some() && !matches!(edit, Edit::Cancel { .. }) {
        return Err(Refusal::WrongMoment("the run is winding down and accepts no more edits".into()));
    }
    match edit {
        Edit::Add(tasks) => add_tasks(plan, tasks, by),
        Edit::Patch(wanted) => patch_task(plan, wanted, by),
        Edit::Cancel { task, reason } => cancel_task(plan, task, reason, by),
        Edit::Retry { task, feedback, changes } => {
            retry_task(plan, task, (feedback.as_deref(), changes.as_deref()), by, None)
        }
        Edit::MarkFinal { task } => mark_task_final(plan, task),
        Edit::Finish { .. } | Edit::GiveUp { .. } if by == EditAuthor::User => {
            Err(Refusal::WrongMoment("only the planner can finish a run; cancel it instead".into()))
        }
        Edit::Finish { reason } => match why_run_cannot_finish(plan) {
            Some(why) => Err(Refusal::Unusable(format!("the objective is not achieved: {why}"))),
            None => Ok(finish_run(plan, reason)),
        },
        Edit::GiveUp { reason } => give_up_run(plan, reason),
    }
}

fn give_up_run(plan: &Plan, reason: &str) -> Result<Vec<Event>, Refusal> {
    if plan.tasks.is_empty() {
        return Err(Refusal::Unusable("there is no plan to give up; make one".into()));
    }
    if has_work_in_progress(plan) {
        return Err(Refusal::WrongMoment(
            "tasks are in progress; wait for them to end, or cancel them first".into(),
        ));
    }
    if why_run_cannot_finish(plan).is_none() {
        return Err(Refusal::Unusable("the final task is completed; finish the run instead".into()));
    }
    Ok(run_end::give_up_run(plan, reason))
}

/// Returns why the run can't finish yet; `None` if its final task is completed, so that the deliverable exists.
pub(super) fn why_run_cannot_finish(plan: &Plan) -> Option<String> {
    match plan.final_task() {
        None => Some("no task of the plan is final; mark the task whose result is the deliverable".into()),
        Some(task) if task.state() == TaskState::Completed => None,
        Some(task) => Some(format!("the final task {} is {}, not completed", task.spec.id, task.state())),
    }
}

fn add_tasks(plan: &Plan, tasks: &[TaskSpec], by: EditAuthor) -> Result<Vec<Event>, Refusal> {
    if tasks.is_empty() {
        return Err(Refusal::Unusable("the list of tasks is empty".into()));
    }
    tasks.iter().try_for_each(|task| refuse_child_of_user(plan, task))?;
    check_new_tasks(plan, tasks)?;
    for task in tasks {
        refuse_lost_dependency(plan, task)?;
    }
    if by == EditAuthor::Planner {
        tasks.iter().try_for_each(|task| refuse_program_checks(&task.review))?;
        tasks.iter().try_for_each(|task| turn::refuse_lost_task(plan, task))?;
        let budget = plan.run.start.as_ref().map(|start| &start.budget);
        let limit = budget.and_then(|budget| budget.tasks).unwrap_or(DEFAULT_TASKS);
        let has_limit = budget.is_some_and(|budget| budget.tasks.is_some());
        let own = if has_limit { plan.tasks.len() } else { plan.planned_task_count() as usize };
        let found = u32::try_from(own + tasks.len()).unwrap_or(u32::MAX);
        if found > limit {
            return Err(Refusal::TooLarge { what: "tasks".into(), found, allowed: limit });
        }
        refuse_too_deep_plan(plan, tasks)?;
    }
    Ok(tasks.iter().map(|spec| task_added_event(plan, Arc::new(spec.clone()))).collect())
}

/// Rejects a task with fields of a delegated one, or with a dependency that is a child: only attempts delegate, and only they use the results.
fn refuse_child_of_user(plan: &Plan, spec: &TaskSpec) -> Result<(), Refusal> {
    if spec.has_fields_of_children() {
        return Err(Refusal::Unusable(format!(
            "task {} has fields of a delegated task; only a running task can delegate",
            spec.id
        )));
    }
    match spec.depends_on.iter().find(|id| plan.is_child(id)) {
        None => Ok(()),
        Some(child) => Err(Refusal::Unusable(format!(
            "task {} depends on {child}, which another task has delegated; depend on that task instead",
            spec.id
        ))),
    }
}

fn refuse_too_deep_plan(plan: &Plan, tasks: &[TaskSpec]) -> Result<(), Refusal> {
    let budget = plan.run.start.as_ref().map(|start| &start.budget);
    let allowed = budget.and_then(|budget| budget.depth).unwrap_or(DEFAULT_DEPTH);
    let found = plan_depth(plan, tasks);
    // A user may have made the plan deeper than that.
    if found > allowed && found > plan_depth(plan, &[]) {
        return Err(Refusal::TooLarge { what: "tasks in a row".into(), found, allowed });
    }
    Ok(())
}

/// Rejects a task with a dependency that is lost: it would wait forever.
fn refuse_lost_dependency(plan: &Plan, spec: &TaskSpec) -> Result<(), Refusal> {
    let lost =
        spec.depends_on.iter().find(|id| is_dependency_lost(plan, spec, id)).and_then(|id| plan.task(id));
    match lost {
        None => Ok(()),
        Some(lost) => Err(Refusal::Unusable(format!(
            "task {} depends on {}, which is {}; retry that task first, depend on another, or run without it \
             (on_failed_dependency: skip)",
            spec.id,
            lost.spec.id,
            lost.state()
        ))),
    }
}

fn patch_task(plan: &Plan, wanted: &TaskPatch, by: EditAuthor) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, &wanted.task)?;
    children::refuse_change_of_child(plan, task)?;
    match task.state() {
        TaskState::Ready if task.is_woken() => {
            return Err(wrong_state_refusal(
                task,
                "it has begun and can't be changed; wait for its end, or cancel it and add another task",
            ));
        }
        TaskState::Pending | TaskState::Ready | TaskState::Rerun | TaskState::Errored => {}
        TaskState::Waiting if task.is_waiting_to_start() => {}
        TaskState::Running | TaskState::NeedsReview | TaskState::Waiting => {
            return Err(wrong_state_refusal(
                task,
                "it can't be changed; wait for its end, or cancel it and add another task",
            ));
        }
        TaskState::Completed | TaskState::Failed | TaskState::Cancelled => {
            return Err(wrong_state_refusal(task, "it can't be changed; retry it, or add another task"));
        }
    }
    let Some(spec) = patched_spec(plan, task, wanted, by)? else {
        return Err(Refusal::Unusable(format!("the patch changes nothing in task {}", wanted.task)));
    };
    let id = spec.id.clone();
    let is_ready = spec.depends_on.iter().all(|dependency| is_dependency_met(plan, &spec, dependency));
    let spec = Arc::new(spec);
    let patch = |attempt| Event::Graph(GraphEvent::TaskPatched { spec: Arc::clone(&spec), attempt });
    let waits = |attempt| match is_ready {
        true => Event::Task(TaskEvent::Ready { task: id.clone(), attempt }),
        false => Event::Task(TaskEvent::Pending { task: id.clone() }),
    };
    Ok(match (task.state(), task.errored_wait()) {
        (TaskState::Errored, Some(ErroredTaskWait::Retry(_))) => {
            let attempt = task.attempt + 1;
            vec![
                patch(0),
                Event::Task(TaskEvent::Reopened {
                    task: id.clone(),
                    attempt,
                    ready: is_ready,
                    feedback: None,
                }),
            ]
        }
        (TaskState::Pending, _) if !is_ready => vec![patch(0)],
        (TaskState::Pending, _) => vec![patch(0), waits(task.attempt.max(1))],
        // The dispatched order has the old parameters: it is withdrawn, and a new attempt waits.
        _ if task.dispatched_work().is_some() || task.is_waiting_to_start() => {
            vec![patch(task.attempt + 1), waits(task.attempt + 1)]
        }
        _ => vec![patch(0), waits(task.attempt.max(1))],
    })
}

/// Returns a task with the wanted changes; `None` if they change nothing.
fn patched_spec(
    plan: &Plan,
    task: &Task,
    wanted: &TaskPatch,
    by: EditAuthor,
) -> Result<Option<TaskSpec>, Refusal> {
    let mut spec = apply_patch_to_spec(&task.spec, wanted);
    if let (EditAuthor::Planner, ReviewPolicy::Persons(persons)) = (by, &task.spec.review)
        && !matches!(spec.review, ReviewPolicy::Persons(_))
    {
        // A planner may add to the review of a user's task; it can't take the persons away.
        spec.review = ReviewPolicy::Persons(Box::new(persons.after(spec.review)));
    }
    if spec == *task.spec {
        return Ok(None);
    }
    if task.spec.is_child() && spec.depends_on != task.spec.depends_on {
        return Err(Refusal::Unusable("a delegated task can't depend on other tasks".into()));
    }
    let continues = task.spec.fork.is_some() || task.spec.is_shared;
    if continues && spec.capability != task.spec.capability {
        return Err(Refusal::Unusable(
            "a fork or shared agent keeps the capability whose conversation it continues".into(),
        ));
    }
    if task.spec.is_shared && spec.on_failed_dependency != task.spec.on_failed_dependency {
        return Err(Refusal::Unusable(
            "a call of a shared agent runs however the calls before it end".into(),
        ));
    }
    if !task.spec.is_child() {
        refuse_child_of_user(plan, &spec)?;
    }
    check_patched_task(plan, &spec)?;
    if by == EditAuthor::Planner && wanted.review.is_some() {
        refuse_program_checks(&spec.review)?;
    }
    refuse_lost_dependency(plan, &spec)?;
    if by == EditAuthor::Planner && wanted.depends_on.is_some() {
        refuse_too_deep_plan(plan, std::slice::from_ref(&spec))?;
    }
    Ok(Some(spec))
}

fn apply_patch_to_spec(old: &TaskSpec, wanted: &TaskPatch) -> TaskSpec {
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
        not_before: wanted.not_before.or(old.not_before).filter(|time| !time.is_start()),
        wait_for_event: wanted
            .wait_for_event
            .clone()
            .or_else(|| old.wait_for_event.clone())
            .filter(|event| !event.name.is_empty()),
        ..old.clone()
    }
}

pub(super) fn cancel_task(
    plan: &Plan,
    id: &TaskId,
    reason: &str,
    by: EditAuthor,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    if task.state().is_terminal() {
        return Err(wrong_state_refusal(task, "it can't be cancelled"));
    }
    let event = Event::Task(TaskEvent::Cancelled {
        task: id.clone(),
        reason: truncate_for_plan(reason),
        with: None,
        usage: usage_of_work_in_flight(plan, task),
    });
    let mut events = append_consequences_of_task_ends(plan, vec![event]);
    if by == EditAuthor::User {
        events.extend(super::wave::trigger_planner_for_waiting_dependents(plan, task));
    }
    Ok(events)
}

/// Returns the events of a retry with feedback and changes. `ended` is the end of the run, if the retry reopens it.
pub(super) fn retry_task(
    plan: &Plan,
    id: &TaskId,
    (feedback, changes): (Option<&str>, Option<&TaskPatch>),
    by: EditAuthor,
    ended: Option<Timestamp>,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    children::refuse_change_of_child(plan, task)?;
    let is_mended = changes.is_some_and(|it| it.capability.is_some() || !it.parameters.is_empty());
    match (task.state(), task.errored_wait()) {
        (TaskState::Completed | TaskState::Failed | TaskState::Cancelled, _)
        | (TaskState::Errored, Some(ErroredTaskWait::Retry(_))) => {}
        (TaskState::Errored, _) if is_mended => {}
        (TaskState::Waiting, _) if task.is_waiting_to_start() => {
            return Err(wrong_state_refusal(task, "it will run without a retry"));
        }
        (TaskState::Running | TaskState::NeedsReview | TaskState::Waiting, _) => {
            return Err(wrong_state_refusal(
                task,
                "it can't be retried; wait for its end, or cancel it first",
            ));
        }
        (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) => {
            return Err(wrong_state_refusal(task, "it will run without a retry"));
        }
        (TaskState::Errored, _) => {
            return Err(wrong_state_refusal(
                task,
                "a retry can't help; change its capability or its parameters",
            ));
        }
    }
    if feedback.is_some_and(|text| text.len() > MAX_MESSAGE) {
        return Err(Refusal::Unusable(format!("the feedback is longer than {MAX_MESSAGE} bytes")));
    }
    let Some(changes) = changes else { return reopen_task(plan, task, feedback, ended) };
    if changes.task != *id {
        return Err(Refusal::Unusable(format!("the changes are of task {}, not of {id}", changes.task)));
    }
    let Some(spec) = patched_spec(plan, task, changes, by)? else {
        return retry_task(plan, id, (feedback, None), by, ended);
    };
    let patched = Event::Graph(GraphEvent::TaskPatched { spec: Arc::new(spec), attempt: 0 });
    let mut changed = plan.clone();
    apply(&mut changed, &patched, task.since);
    let reopened = reopen_task(&changed, find_task(&changed, id)?, feedback, ended)?;
    Ok(std::iter::once(patched).chain(reopened).collect())
}

/// Reopens a task that is retried, with the tasks that need its result.
fn reopen_task(
    plan: &Plan,
    task: &Task,
    feedback: Option<&str>,
    ended: Option<Timestamp>,
) -> Result<Vec<Event>, Refusal> {
    refuse_lost_dependency(plan, &task.spec)?;
    let feedback = feedback.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let again: BTreeSet<u32> = plan.task_position(&task.spec.id).into_iter().collect();
    let mut events = reopen_tasks(plan, &again, LostDependents::Rerun { ended });
    if let Some(Event::Task(TaskEvent::Reopened { feedback: event_feedback, .. })) = events.first_mut() {
        *event_feedback = feedback;
    }
    Ok(events)
}

/// Reopens tasks, in the order of the plan, and then all tasks that must run again with them: dependents of their results,
/// and tasks that were cancelled with them and miss nothing else.
pub(super) fn reopen_tasks(plan: &Plan, again: &BTreeSet<u32>, lost: LostDependents) -> Vec<Event> {
    let invalidated = find_invalidated_tasks(plan, again, lost);
    let all: BTreeSet<u32> = again.iter().chain(&invalidated).copied().collect();
    let is_redone = |id: &TaskId| plan.task_position(id).is_some_and(|at| all.contains(&at));
    let opened = again.iter().map(|&at| {
        let task = &plan.tasks[at as usize];
        let ready =
            task.spec.depends_on.iter().all(|id| !is_redone(id) && is_dependency_met(plan, &task.spec, id));
        Event::Task(TaskEvent::Reopened {
            task: task.spec.id.clone(),
            attempt: task.attempt + 1,
            ready,
            feedback: None,
        })
    });
    let invalidated = invalidated.iter().map(|&at| {
        let task = &plan.tasks[at as usize];
        let usage = usage_of_work_in_flight(plan, task);
        Event::Task(TaskEvent::Invalidated { task: task.spec.id.clone(), attempt: task.attempt + 1, usage })
    });
    opened.chain(invalidated).collect()
}

/// The policy for dependents of a rerun task that have failed, or were cancelled with the end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LostDependents {
    /// They stay lost: the caller has selected all tasks to run again.
    Stay,
    /// They run again, with the new result, unless they miss another dependency.
    Rerun {
        /// The end of the run, if it has ended.
        ended: Option<Timestamp>,
    },
}

/// Returns the tasks that must run again because others do, nearest first. Each dependency is visited once or twice, no
/// matter how many tasks run again.
fn find_invalidated_tasks(plan: &Plan, again: &BTreeSet<u32>, lost: LostDependents) -> Vec<u32> {
    let mut redone = RerunCollector { plan, lost, all: again.clone(), missed: BTreeMap::new() };
    let dependents = |at: u32| plan.tasks[at as usize].dependents.iter().copied();
    let mut queue: VecDeque<u32> = again.iter().flat_map(|&at| dependents(at)).collect();
    let mut order = Vec::new();
    while let Some(position) = queue.pop_front() {
        if !redone.all.contains(&position) && redone.must_rerun(position) {
            redone.add_task(position);
            order.push(position);
            queue.extend(dependents(position));
        }
    }
    order
}

/// Collects the tasks that must run again.
struct RerunCollector<'a> {
    plan: &'a Plan,
    lost: LostDependents,
    all: BTreeSet<u32>,
    /// For lost tasks that may come back: the number of their dependencies that are lost and do not run again.
    missed: BTreeMap<u32, usize>,
}

impl RerunCollector<'_> {
    fn add_task(&mut self, position: u32) {
        self.all.insert(position);
        let id = &self.plan.tasks[position as usize].spec.id;
        for dependent in &self.plan.tasks[position as usize].dependents {
            let spec = &self.plan.tasks[*dependent as usize].spec;
            if let Some(missed) =
                self.missed.get_mut(dependent).filter(|_| is_dependency_lost(self.plan, spec, id))
            {
                *missed = missed.saturating_sub(1);
            }
        }
    }

    /// `true` if a task must run again because its dependency does.
    fn must_rerun(&mut self, position: u32) -> bool {
        let task = &self.plan.tasks[position as usize];
        match task.state() {
            TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Waiting
            | TaskState::Completed
            | TaskState::Rerun => true,
            TaskState::Errored => {
                matches!(task.errored_wait(), Some(ErroredTaskWait::Retry(_))) || task.unmet == 0
            }
            // It was cancelled because a dependency was lost: it comes back when none is lost any more.
            TaskState::Cancelled => {
                let may_return = task.cancelled_with_dependency().is_some() || self.was_lost_with_run(task);
                may_return && self.lost_dependency_count(position) == 0
            }
            // Like that of a completed task, its input changes.
            TaskState::Failed => {
                self.lost != LostDependents::Stay && self.lost_dependency_count(position) == 0
            }
            TaskState::Pending => false,
        }
    }

    /// `true` if a task was cancelled because the run wound down or ended, and not by a user before.
    fn was_lost_with_run(&self, task: &Task) -> bool {
        match self.lost {
            LostDependents::Rerun { ended: Some(ended) } => task.is_wound_down() || task.since == ended,
            LostDependents::Rerun { ended: None } | LostDependents::Stay => false,
        }
    }

    fn lost_dependency_count(&mut self, position: u32) -> usize {
        let (plan, all) = (self.plan, &self.all);
        *self.missed.entry(position).or_insert_with(|| {
            let spec = &plan.tasks[position as usize].spec;
            let is_redone = |id: &TaskId| plan.task_position(id).is_some_and(|at| all.contains(&at));
            spec.depends_on.iter().filter(|id| is_dependency_lost(plan, spec, id) && !is_redone(id)).count()
        })
    }
}

/// `true` if a task would wait forever for a dependency.
pub(super) fn is_dependency_lost(plan: &Plan, spec: &TaskSpec, dependency: &TaskId) -> bool {
    let lost = |task: &Task| matches!(task.state(), TaskState::Failed | TaskState::Cancelled);
    spec.on_failed_dependency != OnFailedDependency::Skip && plan.task(dependency).is_some_and(lost)
}

fn mark_task_final(plan: &Plan, id: &TaskId) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    if task.spec.is_final {
        return Err(Refusal::Unusable(format!("task {id} is already final")));
    }
    if task.spec.is_child() {
        return Err(Refusal::Unusable(format!("another task has delegated task {id}; it can't be final")));
    }
    if matches!(task.state(), TaskState::Failed | TaskState::Cancelled) {
        return Err(wrong_state_refusal(task, "it can't be final; retry it first"));
    }
    Ok(vec![Event::Graph(GraphEvent::FinalMarked { task: id.clone() })])
}
