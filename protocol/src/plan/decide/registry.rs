//! Changes of the capability registry. A task whose capability is unknown, or rejects its parameters, waits in the state
//! errored until that changes.

use super::super::cluster::CapabilityRegistry;
use super::super::state::{ErroredTaskWait, Plan, PlannerTrigger, Task, TaskState};
use super::super::{Event, PlanningEvent, TaskEvent};
use super::{UnknownCapabilityStatus, truncate_for_plan, usage_of_work_in_flight};

pub(super) fn check_tasks_against_registry(
    plan: &Plan,
    cluster: &CapabilityRegistry,
    unknown_status: UnknownCapabilityStatus,
) -> Vec<Event> {
    let open = plan.index.open_by_capability.iter().filter(|(_, open)| **open > 0);
    let is_plain = |name| cluster.find_capability(name).is_some_and(|offered| offered.parameters.is_none());
    if plan.task_count_in_state(TaskState::Errored) == 0 && open.into_iter().all(|(name, _)| is_plain(name)) {
        return Vec::new();
    }
    let is_asked = plan.has_planner() && plan.run.winding_down.is_none();
    let mut events = Vec::new();
    for task in &plan.tasks {
        let Some(event) = check_task_against_registry(task, cluster, unknown_status) else { continue };
        if let (true, Event::Task(TaskEvent::ParametersRejected { problem, .. })) =
            (task.spec.is_child(), &event)
        {
            // Nobody changes the parameters of a child: its parent can delegate another one.
            events.push(Event::Task(TaskEvent::Cancelled {
                task: task.spec.id.clone(),
                reason: format!("{} rejects its parameters: {problem}", task.spec.capability),
                with: None,
                usage: usage_of_work_in_flight(plan, task),
            }));
            continue;
        }
        let problem = describe_stuck_task(task, &event, cluster).filter(|_| !task.spec.is_child());
        events.push(event);
        if let Some(problem) = problem.filter(|_| is_asked) {
            let trigger = PlannerTrigger::TaskStuck { task: task.spec.id.clone(), problem };
            events.push(Event::Planning(PlanningEvent::TriggerRaised { trigger }));
        }
    }
    events
}

/// Describes the problem of a stuck task for the planner.
fn describe_stuck_task(task: &Task, event: &Event, cluster: &CapabilityRegistry) -> Option<String> {
    if let Event::Task(TaskEvent::CapabilityMissing { capability, .. }) = event {
        return Some(format!("no worker provides {capability}; {}", cluster.format_task_capabilities()));
    }
    let Event::Task(TaskEvent::ParametersRejected { problem, .. }) = event else { return None };
    Some(format!("{} rejects its parameters: {problem}", task.spec.capability))
}

fn check_task_against_registry(
    task: &Task,
    cluster: &CapabilityRegistry,
    unknown_status: UnknownCapabilityStatus,
) -> Option<Event> {
    let (id, capability) = (task.spec.id.clone(), task.spec.capability.clone());
    let is_known = cluster.find_capability(&capability).is_some();
    match (task.state(), task.errored_wait()) {
        // It is checked when it starts, which may be in a month.
        (TaskState::Pending, _) if task.spec.has_start_conditions() => None,
        (TaskState::Ready | TaskState::Rerun, _) if task.has_unchecked_start() => None,
        (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) if !is_known => (unknown_status
            == UnknownCapabilityStatus::Missing)
            .then_some(Event::Task(TaskEvent::CapabilityMissing { task: id, capability })),
        // The attempt has begun with its parameters.
        (TaskState::Ready, _) if task.is_woken() => None,
        (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) => {
            let problem = truncate_for_plan(&cluster.find_parameter_problem(&task.spec)?);
            Some(Event::Task(TaskEvent::ParametersRejected { task: id, problem }))
        }
        (
            TaskState::Errored,
            Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. }),
        ) if is_known => {
            match cluster.find_parameter_problem(&task.spec).map(|problem| truncate_for_plan(&problem)) {
                Some(problem) if task.parameter_problem() == Some(problem.as_str()) => None,
                Some(problem) => Some(Event::Task(TaskEvent::ParametersRejected { task: id, problem })),
                None if task.unmet == 0 => {
                    Some(Event::Task(TaskEvent::Ready { task: id, attempt: task.attempt.max(1) }))
                }
                None => Some(Event::Task(TaskEvent::Pending { task: id })),
            }
        }
        _ => None,
    }
}
