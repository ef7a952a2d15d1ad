//! The fold: applies events to the state of a run. There are no rules here. An event that names something unknown is
//! ignored and counters saturate, so that no log can make the fold fail.
//!
//! | file | changes |
//! |---|---|
//! | `run` | start, pauses, end, and continuing after the end |
//! | `planning` | the planner's turn, its triggers and notes |
//! | `graph` | the tasks and their dependencies |
//! | `task` | the states of tasks |
//! | `attempt` | attempts and reviews |
//! | `budget` | usage and reservations |
//! | `provider` | waits for providers |
//! | `children` | the links between tasks and their children |
//! | `index` | derived data that is kept up to date |
//!
//! # Invariants
//!
//! - I3: A run's state is the fold of its decisions: in one pass or two, live or replayed.
//!   (`protocol/tests/rules/properties.rs::log_folds_to_the_live_plan_in_one_go_and_in_two`,
//!   `protocol/tests/rules/properties.rs::indices_match_the_tasks_after_any_log`)

mod attempt;
mod budget;
mod children;
mod graph;
mod index;
mod planning;
mod provider;
mod run;
mod task;

use jiff::Timestamp;

use super::event::truncate_to_micros;
use super::state::Plan;
use super::{Decision, Event, GraphEvent};

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
