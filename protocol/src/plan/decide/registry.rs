//! What the cluster can do: tasks that nobody can do, or whose parameters nobody takes, wait in state errored, and go on as
//! soon as that is mended.

use super::super::Event;
use super::super::cluster::Cluster;
use super::super::state::{ErroredFor, Occasion, Plan, Task, TaskState};
use super::{MayBeMissing, on_the_plan};

pub(super) fn learn(plan: &Plan, cluster: &Cluster, may_be_missing: MayBeMissing) -> Vec<Event> {
    let open = plan.open_by_capability.iter().filter(|(_, open)| **open > 0);
    let is_plain = |name| cluster.get(name).is_some_and(|offered| offered.parameters.is_none());
    if plan.count(TaskState::Errored) == 0 && open.into_iter().all(|(name, _)| is_plain(name)) {
        return Vec::new();
    }
    let is_asked = plan.has_planner() && plan.winding_down.is_none();
    let mut events = Vec::new();
    for task in &plan.tasks {
        let Some(event) = of(task, cluster, may_be_missing) else { continue };
        let problem = problem(task, &event, cluster);
        events.push(event);
        if let Some(problem) = problem.filter(|_| is_asked) {
            let occasion = Occasion::TaskStuck { task: task.spec.id.clone(), problem };
            events.push(Event::OccasionRaised { occasion });
        }
    }
    events
}

/// What the planner is told of it, where a task is stuck.
fn problem(task: &Task, event: &Event, cluster: &Cluster) -> Option<String> {
    if let Event::CapabilityMissing { capability, .. } = event {
        return Some(format!("nobody offers the capability {capability}; {}", cluster.say()));
    }
    let Event::ParametersWrong { problem, .. } = event else { return None };
    Some(format!("its parameters are not what {} takes: {problem}", task.spec.capability))
}

fn of(task: &Task, cluster: &Cluster, may_be_missing: MayBeMissing) -> Option<Event> {
    let (id, capability) = (task.spec.id.clone(), task.spec.capability.clone());
    let is_known = cluster.get(&capability).is_some();
    match (task.state, task.errored) {
        (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) if !is_known => {
            (may_be_missing == MayBeMissing::Yes).then_some(Event::CapabilityMissing { task: id, capability })
        }
        (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) => {
            let problem = on_the_plan(&cluster.problem(&task.spec)?);
            Some(Event::ParametersWrong { task: id, problem })
        }
        (TaskState::Errored, Some(ErroredFor::Capability | ErroredFor::Parameters)) if is_known => {
            match cluster.problem(&task.spec).map(|problem| on_the_plan(&problem)) {
                Some(problem) if task.problem.as_ref() == Some(&problem) => None,
                Some(problem) => Some(Event::ParametersWrong { task: id, problem }),
                None if task.unmet == 0 => Some(Event::TaskReady { task: id, attempt: task.attempt.max(1) }),
                None => Some(Event::TaskPending { task: id }),
            }
        }
        _ => None,
    }
}
