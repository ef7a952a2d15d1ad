//! The consequences of a task's end for other tasks: dependents become ready or are cancelled, the planner is triggered, and
//! if the first failure ends the run, all tasks are cancelled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::spec::{OnFailedDependency, PlannerConsultMode};
use super::super::state::{Plan, PlannerTrigger, Task, TaskState};
use super::super::{Event, PlanningEvent, TaskEvent};
use super::turn::give_up_turn;
use super::usage_of_work_in_flight;
use crate::ids::TaskId;

/// Adds the consequences of the task ends among `events`.
pub(super) fn append_consequences_of_task_ends(plan: &Plan, mut events: Vec<Event>) -> Vec<Event> {
    let start = plan.run.start.as_ref();
    let is_asked = plan.run.winding_down.is_none()
        && start.is_some_and(|start| start.consult > PlannerConsultMode::Never);
    let asks_all = is_asked && start.is_some_and(|start| start.consult == PlannerConsultMode::EveryResult);
    let mut wave = TaskEndPropagation::default();
    let cancelled = events.iter().filter(|event| matches!(event, Event::Task(TaskEvent::Cancelled { .. })));
    let cancelled = cancelled.filter_map(Event::task).filter(|task| plan.is_child(task));
    wave.gone.extend(cancelled.filter_map(|task| plan.task_position(task)));
    for event in &events {
        // Its parent waits for a child, and nothing else does but later calls of the same conversation.
        if let Some(child) = event.task().filter(|task| plan.is_child(task)) {
            wave.propagate_end_of_child(plan, child, event);
            continue;
        }
        if let Event::Task(TaskEvent::Accepted { task, .. }) = event {
            wave.propagate_accepted_task(plan, task);
            if asks_all && plan.task(task).is_some_and(|task| !task.spec.is_final) {
                wave.trigger_planner(PlannerTrigger::Accepted { task: task.clone() });
            }
        } else if let Event::Task(TaskEvent::Failed { task, .. }) = event {
            if start.is_some_and(|start| start.fail_fast) {
                let reason = format!("task {task} failed, and the first failure ends this run");
                wave.cancel_all_open_tasks(plan, Some(task), &reason);
                wave.events.extend(give_up_turn(plan, &reason));
                continue;
            }
            wave.propagate_lost_task(plan, task, "failed");
            if is_asked {
                wave.trigger_planner(PlannerTrigger::TaskLost { task: task.clone() });
            }
        } else if let Event::Task(TaskEvent::Cancelled { task, .. }) = event {
            wave.propagate_lost_task(plan, task, "was cancelled");
        }
    }
    events.extend(wave.events);
    events
}

/// Triggers the planner for a task that a user cancelled, if a dependent has the policy `ask`.
pub(super) fn trigger_planner_for_waiting_dependents(plan: &Plan, task: &Task) -> Option<Event> {
    let waits = |dependent: &Task| {
        !dependent.state().is_terminal() && dependent.spec.on_failed_dependency == OnFailedDependency::Ask
    };
    let is_waited_for = task.dependents.iter().any(|&at| waits(&plan.tasks[at as usize]));
    let task = task.spec.id.clone();
    (plan.has_planner() && is_waited_for).then_some(Event::Planning(PlanningEvent::TriggerRaised {
        trigger: PlannerTrigger::TaskLost { task },
    }))
}

/// Propagates the end of a task through the plan, before any event of it is applied.
#[derive(Default)]
pub(super) struct TaskEndPropagation {
    pub events: Vec<Event>,
    /// The number of dependencies of each task that this wave met.
    met: BTreeMap<u32, u32>,
    /// The tasks that this wave ended.
    gone: BTreeSet<u32>,
}

impl TaskEndPropagation {
    fn trigger_planner(&mut self, trigger: PlannerTrigger) {
        self.events.push(Event::Planning(PlanningEvent::TriggerRaised { trigger }));
    }

    pub fn propagate_accepted_task(&mut self, plan: &Plan, id: &TaskId) {
        let Some(position) = plan.task_position(id) else { return };
        for &dependent in &plan.tasks[position as usize].dependents {
            self.count_dependency_as_met(plan, dependent);
        }
    }

    /// Makes the next call of a shared conversation ready, however the one before it has ended.
    fn propagate_end_of_child(&mut self, plan: &Plan, child: &TaskId, event: &Event) {
        let Event::Task(TaskEvent::Accepted { .. } | TaskEvent::Failed { .. } | TaskEvent::Cancelled { .. }) =
            event
        else {
            return;
        };
        self.propagate_accepted_task(plan, child);
    }

    /// Counts a dependency of a task as met; the last one makes the task ready.
    fn count_dependency_as_met(&mut self, plan: &Plan, position: u32) {
        let task = &plan.tasks[position as usize];
        let met = self.met.entry(position).or_default();
        *met += 1;
        if task.state() == TaskState::Pending && *met == task.unmet && !self.gone.contains(&position) {
            let attempt = task.attempt.max(1);
            self.events.push(Event::Task(TaskEvent::Ready { task: task.spec.id.clone(), attempt }));
        }
    }

    /// Applies the policies of all direct and indirect dependents of a lost task.
    pub fn propagate_lost_task(&mut self, plan: &Plan, id: &TaskId, how: &str) {
        let Some(first) = plan.task_position(id) else { return };
        self.gone.insert(first);
        let mut queue = VecDeque::from([(first, how)]);
        while let Some((position, how)) = queue.pop_front() {
            let lost = &plan.tasks[position as usize];
            for &dependent in &lost.dependents {
                let task = &plan.tasks[dependent as usize];
                if task.state().is_terminal() || self.gone.contains(&dependent) {
                    continue;
                }
                match task.spec.on_failed_dependency {
                    OnFailedDependency::Skip => self.count_dependency_as_met(plan, dependent),
                    OnFailedDependency::Ask => {}
                    OnFailedDependency::Cancel => {
                        let reason = format!("task {} {how}", lost.spec.id);
                        self.cancel_task(plan, dependent, reason, Some(lost.spec.id.clone()));
                        queue.push_back((dependent, "was cancelled"));
                    }
                }
            }
        }
    }

    fn cancel_task(&mut self, plan: &Plan, position: u32, reason: String, with: Option<TaskId>) {
        self.gone.insert(position);
        let task = &plan.tasks[position as usize];
        let usage = usage_of_work_in_flight(plan, task);
        self.events.push(Event::Task(TaskEvent::Cancelled {
            task: task.spec.id.clone(),
            reason,
            with,
            usage,
        }));
    }

    pub fn cancel_all_open_tasks(&mut self, plan: &Plan, except: Option<&TaskId>, reason: &str) {
        for (position, task) in (0_u32..).zip(&plan.tasks) {
            if !task.state().is_terminal() && Some(&task.spec.id) != except && !self.gone.contains(&position)
            {
                self.cancel_task(plan, position, reason.to_owned(), None);
            }
        }
    }
}
