//! Waits for a worker, by the place in the queue. Pure.

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, Task, Work};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::work::queue_place::{PlaceInQueue, PlacesInQueue, WaitingWork};

use crate::wording::describe_hold;

/// Returns the work for which a run in a list waits for a worker, if it does.
pub fn waiting_work_of_summary(summary: &RunSummary) -> Option<WaitingWork> {
    let (capability, work) = summary.wait.as_ref()?.order.clone()?;
    Some(WaitingWork { run: summary.run.clone(), capability, work })
}

/// Returns the work of a run that waits for a worker.
pub fn waiting_work_of_plan(run: &RunId, plan: &Plan) -> Vec<WaitingWork> {
    if !plan.is_live() || describe_hold(plan, false).is_some() {
        return Vec::new();
    }
    let first = first_waiting_work(run, plan);
    let of_tasks = plan.tasks().iter().filter_map(|task| waiting_work_of_task(run, task));
    let others: Vec<WaitingWork> = of_tasks.filter(|one| Some(one) != first.as_ref()).collect();
    first.into_iter().chain(others).collect()
}

/// Returns the work for which a run as a whole waits for a worker, if it does.
fn first_waiting_work(run: &RunId, plan: &Plan) -> Option<WaitingWork> {
    let (capability, work) = plan.current_wait()?.0.order?;
    Some(WaitingWork { run: run.clone(), capability, work })
}

/// Returns the work of a task that waits for a worker.
pub(crate) fn waiting_work_of_task(run: &RunId, task: &Task) -> Option<WaitingWork> {
    let work = task.dispatched_work().filter(|_| task.is_waiting_for_worker())?;
    Some(WaitingWork { run: run.clone(), capability: task.spec.capability.clone(), work })
}

/// Describes the wait of a run for a worker, with its place in the queue; `None` if it has none.
pub fn describe_wait_of_plan(run: &RunId, plan: &Plan, places: &PlacesInQueue) -> Option<String> {
    describe_wait_of_run(&first_waiting_work(run, plan)?, places)
}

/// Describes the wait of a run in a list for a worker, with its place in the queue; `None` if it has none.
pub fn describe_wait_of_summary(summary: &RunSummary, places: &PlacesInQueue) -> Option<String> {
    describe_wait_of_run(&waiting_work_of_summary(summary)?, places)
}

fn describe_wait_of_run(waiting: &WaitingWork, places: &PlacesInQueue) -> Option<String> {
    let who = match &waiting.work {
        Work::Task { task, .. } | Work::Review { task, .. } => task.to_string(),
        Work::Planning { turn, .. } => format!("the planner's turn {turn}"),
    };
    Some(format!("{who} waits for {}", describe_place(waiting, places.get(waiting)?)))
}

/// Describes the wait for a worker: `a free slot of research: queued behind 10, 1 of 1 slots busy`.
pub(crate) fn describe_place(waiting: &WaitingWork, place: &PlaceInQueue) -> String {
    let (name, slots) = (&waiting.capability, place.slots);
    if slots.workers == 0 {
        return format!("a worker that provides {name}; none is running");
    }
    let behind = place.behind.map(|behind| format!(" behind {behind}")).unwrap_or_default();
    format!("a free slot of {name}: queued{behind}, {} of {} slots busy", slots.busy, slots.total)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::Capability;
    use millrace_runtime::ops::cluster_status::CapabilitySlots;

    use super::*;

    #[test]
    fn place_in_the_queue_and_busy_slots_are_named() {
        let work = Work::Task { task: "t".parse().unwrap(), attempt: 1 };
        let waiting = WaitingWork {
            run: RunId::new("r").unwrap(),
            capability: Capability::new("research").unwrap(),
            work,
        };
        let describe = |behind, workers, busy, total| {
            let slots = CapabilitySlots { workers, total, busy };
            let places = [(waiting.clone(), PlaceInQueue { behind, slots })].into();
            describe_wait_of_run(&waiting, &places).unwrap()
        };
        assert_eq!(
            describe(Some(10), 1, 1, 1),
            "t waits for a free slot of research: queued behind 10, 1 of 1 slots busy"
        );
        assert_eq!(describe(None, 2, 3, 8), "t waits for a free slot of research: queued, 3 of 8 slots busy");
        assert_eq!(
            describe(Some(4), 0, 0, 0),
            "t waits for a worker that provides research; none is running"
        );
        assert_eq!(describe_wait_of_run(&waiting, &PlacesInQueue::new()), None);
    }
}
