//! Children: tasks that a running attempt delegates.
//!
//! # Invariants
//!
//! - I105: A delegated task is added once, also if processes die between its delegation and its end, and the end of the last one
//!   wakes its parent. (`tests/tests/delegation.rs::kills_lose_no_child_and_no_wake_up`,
//!   `protocol/tests/rules/delegation.rs::repeated_delegation_adds_nothing`,
//!   `protocol/tests/rules/delegation.rs::parent_wakes_with_all_ends_when_the_last_child_has_ended`)
//! - I106: No delegated task outlives the attempt that delegated it, however that ends.
//!   (`protocol/tests/rules/delegation.rs::children_end_with_their_parents_attempt`,
//!   `protocol/tests/rules/properties.rs::every_run_of_a_fair_world_ends_for_a_true_reason`,
//!   `tests/tests/delegation.rs::cancelled_parent_leaves_no_child_behind`)
//! - I107: Delegated tasks run within the reservation of their parent: they never wait for other work of the run, and are not
//!   counted twice. (`protocol/tests/rules/delegation.rs::child_uses_the_reservation_of_its_parent`,
//!   `protocol/tests/rules/delegation.rs::parent_that_is_given_up_is_charged_once`,
//!   `crates/agent/tests/turn/delegation.rs::usage_of_tasks_counts_against_the_amounts_of_the_attempt`,
//!   `tests/tests/delegation.rs::budget_of_children_comes_out_of_their_parents_reservation`)
//! - I108: A bad delegated task is refused alone, and its parent continues with the reason.
//!   (`protocol/tests/rules/delegation.rs::bad_child_is_refused_alone`,
//!   `protocol/tests/rules/delegation.rs::depth_and_number_are_bounded`)
//! - I109: The loss of a delegated task concerns its parent alone, and none is the deliverable or part of the plan.
//!   (`protocol/tests/rules/delegation.rs::lost_child_concerns_its_parent_alone`,
//!   `protocol/tests/rules/delegation.rs::users_and_planners_can_not_make_children_part_of_the_plan`)
//! - I133: Of children on several machines one fails, one times out and one succeeds: their parent gets every end; cancelling a
//!   root leaves no work, no process and no question.
//!   (`tests/tests/delegation.rs::agent_delegates_to_capabilities_on_several_machines`)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::budget::ResourceAmounts;
use super::super::spec::{OnFailedDependency, TaskSpec};
use super::super::state::{Plan, Task};
use super::super::{AttemptEvent, Event, GraphEvent, Refusal, TaskEvent, check_new_tasks};
use super::wave::append_consequences_of_task_ends;
use super::{
    find_task_with_attempt, refuse_program_checks, truncate_for_plan, usage_of_work_in_flight,
    wrong_state_refusal,
};
use crate::child::{Delegation, MAX_CHILD_DEPTH, MAX_CHILD_MESSAGE, MAX_CHILDREN, ParentTask};
use crate::ids::TaskId;
use crate::overrides::AgentOverrides;
use crate::result::Usage;

/// Handles the changes that a running attempt makes to its children.
pub(super) fn handle_delegation(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    delegation: &Delegation,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    if !task.has_worker_or_lost_it_to_interrupt() {
        return Err(wrong_state_refusal(task, "its delegation is ignored"));
    }
    let open = |child: &TaskId| plan.child_of(task, child).filter(|child| !child.state().is_terminal());
    // A duplicate id in the list ends its child once.
    let cancels: BTreeMap<&TaskId, (&Task, &str)> = delegation
        .cancels
        .iter()
        .filter_map(|(child, reason)| Some((child, (open(child)?, reason.as_str()))))
        .collect();
    let mut events = add_children(plan, task, &delegation.children, |id| cancels.contains_key(id));
    for (child, text) in &delegation.messages {
        // A worker that was lost before it recorded the result of the call sends the message again.
        let is_new = |child: &&Task| child.instructions.iter().all(|(_, known)| known != text);
        if let Some(child) = open(child).filter(is_new).filter(|_| text.len() <= MAX_CHILD_MESSAGE) {
            events.push(Event::Task(TaskEvent::Instructed {
                task: child.spec.id.clone(),
                attempt: child.attempt + 1,
                text: text.clone(),
            }));
        }
    }
    let cancelled = cancels.values().map(|(child, reason)| {
        let reason = format!("task {id} cancelled it: {reason}");
        cancel_child(plan, child, &reason)
    });
    let cancelled = append_consequences_of_task_ends(plan, cancelled.collect());
    events.extend(cancelled);
    match events.is_empty() {
        true => Err(Refusal::WrongMoment(format!("task {id} has delegated this already"))),
        false => Ok(events),
    }
}

/// Adds the children of a running attempt that are not in the plan yet. One that is refused leaves its reason in the attempt.
/// None of them waits for a task that the same decision cancels.
pub(super) fn add_children(
    plan: &Plan,
    parent: &Task,
    children: &[TaskSpec],
    is_cancelled: impl Fn(&TaskId) -> bool,
) -> Vec<Event> {
    let mut added: Vec<TaskSpec> = Vec::new();
    let mut events = Vec::new();
    for child in children {
        let is_repeated = added.iter().any(|other| other.id == child.id);
        if is_repeated || plan.child_of(parent, &child.id).is_some() || is_refused(parent, &child.id) {
            continue;
        }
        match check_child(plan, parent, child, &added) {
            Ok(mut spec) => {
                spec.depends_on.retain(|id| !is_cancelled(id));
                let ready = spec.depends_on.is_empty();
                events.push(Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(spec.clone()), ready }));
                added.push(spec);
            }
            Err(reason) => events.push(Event::Attempt(AttemptEvent::ChildRefused {
                task: parent.spec.id.clone(),
                attempt: parent.attempt,
                child: child.id.clone(),
                reason: truncate_for_plan(&reason),
            })),
        }
    }
    events
}

fn is_refused(parent: &Task, child: &TaskId) -> bool {
    let refused = parent.current_attempt().map(|attempt| &attempt.refused_children);
    refused.into_iter().flatten().any(|(refused, _)| refused == child)
}

/// Returns the child in the form in which it is added.
fn check_child(plan: &Plan, parent: &Task, child: &TaskSpec, added: &[TaskSpec]) -> Result<TaskSpec, String> {
    let depth = parent.spec.parent.as_ref().map_or(0, |own| own.depth) + 1;
    if depth > MAX_CHILD_DEPTH {
        return Err(format!("tasks may be delegated at most {MAX_CHILD_DEPTH} deep"));
    }
    if plan.run.winding_down.is_some() {
        return Err("the run is winding down and starts no more tasks".into());
    }
    let siblings = plan.children(parent).filter(|sibling| is_of_current_attempt(parent, sibling));
    if siblings.count() + added.len() >= MAX_CHILDREN as usize {
        return Err(format!("an attempt may delegate at most {MAX_CHILDREN} tasks"));
    }
    let allowed = plan.run.start.as_ref().and_then(|start| start.budget.tasks);
    let found = u32::try_from(plan.tasks.len() + added.len() + 1).unwrap_or(u32::MAX);
    if let Some(allowed) = allowed.filter(|allowed| found > *allowed) {
        return Err(Refusal::TooLarge { what: "tasks".into(), found, allowed }.to_string());
    }
    if !child.depends_on.is_empty() || child.is_final {
        return Err("a delegated task can't be final and can't depend on other tasks".into());
    }
    check_fork(parent, child)?;
    refuse_program_checks(&child.review).map_err(|refusal| refusal.to_string())?;
    let mut spec = TaskSpec {
        parent: Some(ParentTask { task: parent.spec.id.clone(), attempt: parent.attempt, depth }),
        budget: budget_of_child(plan, parent, child, added)?,
        overrides: overrides_of_child(parent, child)?,
        on_failed_dependency: match child.is_shared {
            true => OnFailedDependency::Skip,
            false => child.on_failed_dependency,
        },
        ..child.clone()
    };
    // The restrictions of its parent decide which conversation it continues.
    spec.depends_on = earlier_calls_of_conversation(plan, parent, &spec, added)?;
    // A call of a shared conversation depends on those that are added with it.
    let mut new = added.to_vec();
    new.push(spec.clone());
    check_new_tasks(plan, &new).map_err(|mistake| mistake.to_string())?;
    Ok(spec)
}

/// A fork delegates no further, and has the capability of the attempt that it continues.
fn check_fork(parent: &Task, child: &TaskSpec) -> Result<(), String> {
    if parent.spec.fork.is_some() {
        return Err("a fork can't delegate".into());
    }
    if child.fork.is_some() && child.capability != parent.spec.capability {
        return Err(format!("a fork has the capability of its parent, {}", parent.spec.capability));
    }
    Ok(())
}

/// The open calls of a shared conversation: a new call runs after all of them, however they end.
fn earlier_calls_of_conversation(
    plan: &Plan,
    parent: &Task,
    child: &TaskSpec,
    added: &[TaskSpec],
) -> Result<Vec<TaskId>, String> {
    if !child.is_shared {
        return Ok(Vec::new());
    }
    let is_open = |task: &&Task| !task.state().is_terminal() && task.spec.shares_conversation_with(child);
    let open: Vec<&Task> = plan.tasks.iter().filter(is_open).collect();
    if waits_for(plan, &open, parent) {
        return Err(format!(
            "it would wait for itself: a call of the shared agent {} waits for {}",
            child.capability, parent.spec.id
        ));
    }
    let open = open.iter().map(|task| &*task.spec);
    let added = added.iter().filter(|other| other.shares_conversation_with(child));
    Ok(open.chain(added).map(|earlier| earlier.id.clone()).collect())
}

/// `true` if the end of one of these tasks may wait for the end of another one: through its children, and through the tasks that it
/// depends on.
fn waits_for(plan: &Plan, tasks: &[&Task], other: &Task) -> bool {
    let mut seen: BTreeSet<&TaskId> = BTreeSet::new();
    let mut open: Vec<&Task> = tasks.to_vec();
    while let Some(task) = open.pop() {
        if task.state().is_terminal() || !seen.insert(&task.spec.id) {
            continue;
        }
        if task.spec.id == other.spec.id {
            return true;
        }
        open.extend(plan.children(task));
        open.extend(task.spec.depends_on.iter().filter_map(|id| plan.task(id)));
    }
    false
}

/// The overrides of a child, with the restrictions of its parent.
fn overrides_of_child(parent: &Task, child: &TaskSpec) -> Result<Option<Box<AgentOverrides>>, String> {
    let mut own = child.overrides.as_deref().cloned().unwrap_or_default();
    let outer = parent.spec.overrides.as_deref().cloned().unwrap_or_default();
    if child.fork.is_some() {
        own.model.clone_from(&outer.model);
    }
    let overrides = own.within(&outer);
    overrides.check_size()?;
    Ok((!overrides.is_empty()).then(|| Box::new(overrides)))
}

fn is_of_current_attempt(parent: &Task, child: &Task) -> bool {
    child.spec.parent.as_ref().is_some_and(|own| own.attempt == parent.attempt)
}

/// The budget of a child: at most the rest of its parent's reservation.
fn budget_of_child(
    plan: &Plan,
    parent: &Task,
    child: &TaskSpec,
    added: &[TaskSpec],
) -> Result<ResourceAmounts, String> {
    let reserved = parent.reserved_work().and_then(|work| plan.budget.reserved.amounts_of_work(&work));
    let Some(reserved) = reserved else { return Ok(child.budget) };
    let mut left = reserved;
    for (resource, amount) in reserved.iter() {
        let siblings = plan.children(parent).filter(|sibling| is_of_current_attempt(parent, sibling));
        let held = siblings.map(|sibling| match sibling.state().is_terminal() {
            true => resource.amount_used(&plan.usage_with_children(sibling)),
            false => sibling.spec.budget.get(resource).unwrap_or(0),
        });
        let held = held.chain(added.iter().map(|sibling| sibling.budget.get(resource).unwrap_or(0)));
        let free = amount.saturating_sub(held.fold(0, u64::saturating_add));
        if free == 0 {
            let all = resource.format_amount(amount);
            return Err(format!("nothing is left for it of the {all} that its parent may use"));
        }
        left.set(resource, Some(free));
    }
    Ok(child.budget.min_per_resource(left))
}

/// The usage of the children of a task's current attempt, and the rest of the reservations of open ones.
pub(super) fn usage_of_children(plan: &Plan, task: &Task) -> Usage {
    let mut all = Usage::default();
    for child in plan.children(task).filter(|child| is_of_current_attempt(task, child)) {
        all.add(plan.usage_with_children(child));
        if let Some(work) = child.reserved_work().filter(|_| !child.state().is_terminal()) {
            let held = plan.budget.reserved.amounts_of_work(&work).unwrap_or_default();
            let mut left = held;
            // The usage of its own children is in its usage already.
            let used = used_by_children(plan, child);
            for (resource, amount) in held.iter() {
                left.set(resource, Some(amount.saturating_sub(resource.amount_used(&used))));
            }
            all.add(left.as_usage());
        }
    }
    all
}

fn used_by_children(plan: &Plan, task: &Task) -> Usage {
    let mut all = Usage::default();
    for child in plan.children(task).filter(|child| is_of_current_attempt(task, child)) {
        all.add(plan.usage_with_children(child));
    }
    all
}

pub(super) fn cancel_child(plan: &Plan, child: &Task, reason: &str) -> Event {
    Event::Task(TaskEvent::Cancelled {
        task: child.spec.id.clone(),
        reason: truncate_for_plan(reason),
        with: None,
        usage: usage_of_work_in_flight(plan, child),
    })
}

/// Refuses to run a child again, or to change one whose parent's attempt is over.
pub(super) fn refuse_change_of_child(plan: &Plan, task: &Task) -> Result<(), Refusal> {
    let Some(own) = &task.spec.parent else { return Ok(()) };
    let is_live = plan.parent(task).and_then(Task::live_attempt) == Some(own.attempt);
    if is_live && !task.state().is_terminal() {
        return Ok(());
    }
    let why = match is_live {
        true => format!("its parent {} has its end already; add another task instead", own.task),
        false => format!("its parent {} does not wait for it any more; retry that task instead", own.task),
    };
    Err(wrong_state_refusal(task, &why))
}
