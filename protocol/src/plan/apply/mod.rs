//! The fold: applies events to the state of a run. There are no rules here. An event that names something unknown is
//! ignored and counters saturate, so that no log can make the fold fail.
//!
//! | file | changes |
//! |---|---|
//! | `run` | start, pauses, end, continuing after the end; usage, reservations and waits for providers |
//! | `planning` | the planner's turn, its triggers and notes |
//! | `graph` | the tasks, their dependencies and their children |
//! | `task` | the states of tasks, attempts and reviews |
//!
//! The index of the plan is kept here: data derived from the tasks, updated with them. [`super::super::recount`] computes the same from
//! scratch.
//!
//! # Invariants
//!
//! - I3: A run's state is the fold of its decisions: in one pass or two, live or replayed.
//!   (`protocol/tests/rules/properties.rs::log_folds_to_the_live_plan_in_one_go_and_in_two`,
//!   `protocol/tests/rules/properties.rs::indices_match_the_tasks_after_any_log`)

mod graph;
mod planning;
mod run;
mod task;

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::event::truncate_to_micros;
use super::state::{ErroredTaskWait, Plan, PlanIndex, TaskPhase};
use super::{Decision, Event, GraphEvent};
use crate::ids::Capability;

/// Applies a decision to the state.
pub fn apply_decision(plan: &mut Plan, decision: &Decision) {
    apply_events(plan, &decision.events, decision.at);
    plan.run.through = plan.run.through.max(decision.answered_through().unwrap_or(0));
}

/// Applies the events of a decision in their order, as [`apply`] does.
pub fn apply_events(plan: &mut Plan, events: &[Event], at: Timestamp) {
    let is_new_task = |event: &&Event| matches!(event, Event::Graph(GraphEvent::TaskAdded { .. }));
    plan.reserve_tasks(events.iter().filter(is_new_task).count());
    for event in events {
        apply(plan, event, at);
    }
}

/// Applies an event to the state. `at` is the time of its decision, rounded down to whole microseconds: the log keeps no
/// more, and a plan folded from the log must equal the one that was decided on.
pub fn apply(plan: &mut Plan, event: &Event, at: Timestamp) {
    let at = truncate_to_micros(at);
    match event {
        Event::Run(event) => plan.apply_run(event, at),
        Event::User(event) => plan.apply_user(event),
        Event::Planning(event) => plan.apply_planning(event, at),
        Event::Graph(event) => plan.apply_graph(event, at),
        Event::Task(event) => plan.apply_task(event, at),
        Event::Attempt(event) => plan.apply_attempt(event, at),
        Event::Review(event) => plan.apply_review(event, at),
        Event::Budget(event) => plan.apply_budget(event, at),
        Event::Provider(event) => plan.apply_provider(event, at),
    }
}

impl PlanIndex {
    pub(in crate::plan) fn insert_backoff(&mut self, position: u32, phase: &TaskPhase) {
        if let Some((backoffs, until)) = self.backoff_of_phase(phase) {
            backoffs.insert((until, position));
        }
    }

    pub(super) fn remove_backoff(&mut self, position: u32, phase: &TaskPhase) {
        if let Some((backoffs, until)) = self.backoff_of_phase(phase) {
            backoffs.remove(&(until, position));
        }
    }

    /// The backoff of a task in this phase, and the set it belongs to.
    fn backoff_of_phase(
        &mut self,
        phase: &TaskPhase,
    ) -> Option<(&mut BTreeSet<(Timestamp, u32)>, Timestamp)> {
        match phase {
            TaskPhase::Errored(Some(ErroredTaskWait::Retry(until))) => Some((&mut self.retries, *until)),
            TaskPhase::NeedsReview { retry_at: Some(until) } => Some((&mut self.reviews, *until)),
            TaskPhase::Waiting { until: Some(until) } => Some((&mut self.waits, *until)),
            TaskPhase::Pending
            | TaskPhase::Ready
            | TaskPhase::Running
            | TaskPhase::Waiting { until: None }
            | TaskPhase::NeedsReview { retry_at: None }
            | TaskPhase::Completed
            | TaskPhase::Rerun
            | TaskPhase::Errored(_)
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => None,
        }
    }
}

impl Plan {
    /// Counts an open task of a capability up or down.
    pub(super) fn count_open_task(&mut self, capability: &Capability, is_open: bool) {
        let open = match self.index.open_by_capability.get_mut(capability) {
            Some(open) => open,
            None => self.index.open_by_capability.entry(capability.clone()).or_default(),
        };
        *open = if is_open { *open + 1 } else { open.saturating_sub(1) };
        if *open == 0 {
            self.index.open_by_capability.remove(capability);
        }
    }

    /// Updates whether the start of a task is to be checked, after it changed.
    pub(in crate::plan) fn update_unchecked_start(&mut self, position: u32) {
        if self.tasks[position as usize].has_unchecked_start() {
            self.index.unchecked_starts.insert(position);
        } else {
            self.index.unchecked_starts.remove(&position);
        }
    }

    /// Adds a task to those whose work waits for a reservation, if it does.
    pub(super) fn add_if_waiting_for_reservation(&mut self, task_position: u32) {
        if !self.needs_any_reservation() {
            return;
        }
        let task = &self.tasks[task_position as usize];
        let work = match task.phase {
            TaskPhase::Ready | TaskPhase::Rerun | TaskPhase::NeedsReview { .. } => task.dispatched_work(),
            TaskPhase::Pending
            | TaskPhase::Running
            | TaskPhase::Waiting { .. }
            | TaskPhase::Completed
            | TaskPhase::Errored(_)
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => None,
        };
        if work.is_some_and(|work| {
            self.needs_reservation(&work) && self.budget.reserved.amounts_of_work(&work).is_none()
        }) {
            if self.tasks[task_position as usize].spec.is_child() {
                self.index.waiting_children.insert(task_position);
                return;
            }
            let group = self.reservation_queue_key(task_position);
            self.index.waiting.entry(group).or_default().insert(task_position);
        }
    }

    pub(in crate::plan) fn add_all_waiting_for_reservation(&mut self) {
        for position in (0_u32..).take(self.tasks.len()) {
            self.add_if_waiting_for_reservation(position);
        }
    }

    pub(super) fn remove_waiting_for_reservation(&mut self, task_position: u32) {
        if self.index.waiting_children.remove(&task_position) || self.index.waiting.is_empty() {
            return;
        }
        let group = self.reservation_queue_key(task_position);
        if let Some(waiting) = self.index.waiting.get_mut(&group) {
            waiting.remove(&task_position);
            if waiting.is_empty() {
                self.index.waiting.remove(&group);
            }
        }
    }

    /// The key under which the work of a task waits for a reservation.
    fn reservation_queue_key(&self, position: u32) -> Option<Capability> {
        let task = &self.tasks[position as usize];
        (!matches!(task.phase, TaskPhase::NeedsReview { .. })).then(|| task.spec.capability.clone())
    }
}
