//! What follows for other tasks from a task's end: those that can begin now, those that are cancelled with what they
//! depend on, what the planner is to be asked, and the end of everything where the first failure ends the run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::Event;
use super::super::spec::{Consult, OnFailedDependency};
use super::super::state::{Occasion, Plan, Task, TaskState};
use super::{in_hand, planning};
use crate::ids::TaskId;

/// Adds what follows from the ends of tasks among `events`.
pub(super) fn with_consequences(plan: &Plan, mut events: Vec<Event>) -> Vec<Event> {
    let start = plan.start.as_ref();
    let is_asked = plan.winding_down.is_none() && start.is_some_and(|start| start.consult > Consult::Never);
    let asks_all = is_asked && start.is_some_and(|start| start.consult == Consult::EveryResult);
    let mut wave = Wave::default();
    for event in &events {
        if let Event::TaskAccepted { task, .. } = event {
            wave.accepted(plan, task);
            if asks_all && plan.task(task).is_some_and(|task| !task.spec.is_final) {
                wave.raise(Occasion::Accepted { task: task.clone() });
            }
        } else if let Event::TaskFailed { task, .. } = event {
            if start.is_some_and(|start| start.fail_fast) {
                let reason = format!("task {task} failed, and the first failure ends this run");
                wave.cancel_all(plan, Some(task), &reason);
                wave.events.extend(planning::given_up(plan, &reason));
                continue;
            }
            wave.lost(plan, task, "failed");
            if is_asked {
                wave.raise(Occasion::TaskLost { task: task.clone() });
            }
        } else if let Event::TaskCancelled { task, .. } = event {
            wave.lost(plan, task, "was cancelled");
        }
    }
    events.extend(wave.events);
    events
}

/// The planner is asked about a task that a user has cancelled where others wait for a word on it.
pub(super) fn ask_for_waiting(plan: &Plan, task: &Task) -> Option<Event> {
    let waits = |dependent: &Task| {
        !dependent.state.is_terminal() && dependent.spec.on_failed_dependency == OnFailedDependency::Ask
    };
    let is_waited_for = task.dependents.iter().any(|&at| waits(&plan.tasks[at as usize]));
    let task = task.spec.id.clone();
    (plan.has_planner() && is_waited_for)
        .then_some(Event::OccasionRaised { occasion: Occasion::TaskLost { task } })
}

/// The spread of one task's end through the plan, before any of it is applied.
#[derive(Default)]
pub(super) struct Wave {
    pub events: Vec<Event>,
    /// How many dependencies of a task this wave has met.
    met: BTreeMap<u32, u32>,
    /// The tasks that this wave has ended.
    gone: BTreeSet<u32>,
}

impl Wave {
    fn raise(&mut self, occasion: Occasion) {
        self.events.push(Event::OccasionRaised { occasion });
    }

    pub fn accepted(&mut self, plan: &Plan, id: &TaskId) {
        let Some(position) = plan.position(id) else { return };
        for &dependent in &plan.tasks[position as usize].dependents {
            self.meet(plan, dependent);
        }
    }

    /// One more dependency of a task is met; the last one makes it ready.
    fn meet(&mut self, plan: &Plan, position: u32) {
        let task = &plan.tasks[position as usize];
        let met = self.met.entry(position).or_default();
        *met += 1;
        if task.state == TaskState::Pending && *met == task.unmet && !self.gone.contains(&position) {
            let attempt = task.attempt.max(1);
            self.events.push(Event::TaskReady { task: task.spec.id.clone(), attempt });
        }
    }

    /// A task is lost: what hangs on it goes by its own policy, and so on to the last.
    pub fn lost(&mut self, plan: &Plan, id: &TaskId, how: &str) {
        let Some(first) = plan.position(id) else { return };
        self.gone.insert(first);
        let mut queue = VecDeque::from([(first, how)]);
        while let Some((position, how)) = queue.pop_front() {
            let lost = &plan.tasks[position as usize];
            for &dependent in &lost.dependents {
                let task = &plan.tasks[dependent as usize];
                if task.state.is_terminal() || self.gone.contains(&dependent) {
                    continue;
                }
                match task.spec.on_failed_dependency {
                    OnFailedDependency::Skip => self.meet(plan, dependent),
                    OnFailedDependency::Ask => {}
                    OnFailedDependency::Cancel => {
                        let reason = format!("task {} {how}", lost.spec.id);
                        self.cancel(plan, dependent, reason, Some(lost.spec.id.clone()));
                        queue.push_back((dependent, "was cancelled"));
                    }
                }
            }
        }
    }

    fn cancel(&mut self, plan: &Plan, position: u32, reason: String, with: Option<TaskId>) {
        self.gone.insert(position);
        let task = &plan.tasks[position as usize];
        let usage = in_hand(plan, task);
        self.events.push(Event::TaskCancelled { task: task.spec.id.clone(), reason, with, usage });
    }

    pub fn cancel_all(&mut self, plan: &Plan, except: Option<&TaskId>, reason: &str) {
        for (position, task) in (0_u32..).zip(&plan.tasks) {
            if !task.state.is_terminal() && Some(&task.spec.id) != except && !self.gone.contains(&position) {
                self.cancel(plan, position, reason.to_owned(), None);
            }
        }
    }
}
