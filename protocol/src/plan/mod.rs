//! The plan of a run: its rules, and nothing else. No I/O, no clock, no randomness.
//!
//! ```text
//! decide(&Plan, &DecisionInput, now) -> Result<Vec<Event>, Refusal>   all rules
//! apply(&mut Plan, &Event, at)                                        no rules: the fold
//! pending_effects(&Plan, EffectScope) -> Vec<Effect>                  the pending effects
//! overdue_inputs(&Plan, now, attendance, …)-> Vec<OverdueInput>         the clocks and backoffs that ran out
//! ```
//!
//! The transitions of a task. All others are refused.
//!
//! | from | to | on | when |
//! |---|---|---|---|
//! | (new) | ready, pending | a seed plan, a proposal | everything it depends on is accepted; or not yet |
//! | pending | ready | a dependency is accepted, or skipped | it was the last one open |
//! | pending, ready, rerun | errored | the registry | no worker offers its capability, or that does not accept its parameters |
//! | errored | ready, pending | the registry | a worker offers it now, and it does |
//! | ready, rerun | running | a claim | of the current attempt |
//! | errored | running | a claim | its order was dispatched before its capability went missing, and the claimant offers it |
//! | running | running | a claim | another worker took the attempt over |
//! | running | completed | an outcome | a result, and no review required |
//! | running | needs_review | an outcome | a result, and a review required |
//! | running | ready | the worker | it gave up waiting for the provider, and the run pauses: the attempt continues later |
//! | pending, ready, rerun, errored, failed, cancelled | waiting | as to ready | it may start only at a time, or after an event, that has not come |
//! | running | waiting | the worker | it parked the attempt, which waits for something outside |
//! | ready | waiting | the worker | the same, in the moment in which an interrupt returned the attempt |
//! | waiting | ready | a clock, a command, an answer | the last of its waits has ended: the same attempt continues |
//! | waiting | failed | a clock | its question, or the event of its start, has expired with that consequence |
//! | needs_review | waiting | a verdict | persons must judge the result too |
//! | running | waiting | an outcome | a result that persons must judge, and no critic |
//! | waiting | completed, rerun, failed | the judgement of persons | enough votes accept the result; or not, and attempts are left or not |
//! | running | errored | an outcome, a clock | an error, an empty result or a timeout, and attempts are left |
//! | running | failed | an outcome, a clock | the same, and no attempts are left or a retry can't help |
//! | ready, rerun, running | errored, failed | the queue-wait clock | as above; an attempt whose worker is lost waits for another |
//! | errored | failed | the queue-wait clock | no worker offers its capability, or accepts its parameters |
//! | errored | ready | the clock | its backoff is over |
//! | needs_review | completed | a verdict | it passed |
//! | needs_review | rerun | a verdict | it did not, and attempts are left |
//! | needs_review | failed | a verdict | it did not, and none are left |
//! | needs_review | failed | a review's error | three reviews failed |
//! | ready, rerun, needs_review | failed | a reservation | its own budget or that of its capability is exhausted |
//! | pending, errored | cancelled | a dependency failed or was cancelled | its policy is `cancel` |
//! | any open state | cancelled | a command, a planner's edit | it or the run is cancelled, or the planner finishes without it |
//! | any open state | cancelled | the end of the run | the first failure ends it, or it winds down without the task |
//! | pending, rerun, errored, waiting | ready | an edit | after the edit all its dependencies are met; of those that wait, only one that has not begun |
//! | ready, rerun, errored, waiting | pending | an edit | after the edit not all its dependencies are met |
//! | completed, failed, cancelled, errored | ready, pending | an edit, a resumed run | it is to run again |
//! | ready, running, waiting, needs_review, rerun, completed, errored, cancelled | pending | the same | a task that it depends on, or was cancelled with, runs again |
//!
//! `completed`, `failed` and `cancelled` are terminal: only the last two rows lead out of them. `errored` is not terminal. A
//! run that winds down accepts only cancellations; a paused run accepts all edits.
//!
//! # Invariants
//!
//! - I2: Every state answers every input in exactly one way, and no transition happens that the table in
//!   `protocol/src/plan/mod.rs` does not list. (`protocol/tests/rules/table.rs::table_of_states_and_inputs_is_unchanged`,
//!   `protocol/tests/rules/table.rs::table_has_the_documented_transitions`)
//! - I4: A takeover at any point leads to the same decisions; terminal states never change; late and duplicate facts change
//!   nothing. (`protocol/tests/rules/properties.rs::successor_decides_the_same_at_any_point`,
//!   `protocol/tests/rules/properties.rs::invariants_hold_for_any_inputs`)
//! - I5: Every run of a fair world ends, with a typed reason that is true.
//!   (`protocol/tests/rules/properties.rs::every_run_of_a_fair_world_ends_for_a_true_reason`)

mod apply;
mod attendance;
mod budget;
mod cluster;
mod decide;
mod draft;
mod due;
mod edit;
mod event;
mod graph;
mod hold;
mod recount;
mod refusal;
mod reserved;
mod spec;
mod start;
mod state;
mod work;

pub use apply::{apply, apply_decision, apply_events};
pub use attendance::{Absence, Attendance, StoppedClocks, UncountedTime, WorkerSign};
pub(crate) use budget::optional_seconds;
pub use budget::{
    Budget, BudgetExhaustionPolicy, DEFAULT_DEPTH, DEFAULT_PROVIDER_TIMEOUT, DEFAULT_STEPS, DEFAULT_TASKS,
    DEFAULT_TOKENS_PER_TASK, ResourceAmounts, ResourceKind,
};
pub use cluster::{CapabilityRegistry, RegisteredCapability};
pub use decide::{
    AttemptResult, DecisionInput, Fact, MAX_IDLE_TURNS, MAX_PLANNING_ATTEMPTS, MAX_REVIEWS, PlanningResult,
    UnknownCapabilityStatus, decide, find_criteria_problem, find_earlier_runs_problem, suggest_larger_limits,
    tasks_without_budget,
};
pub use draft::PlanDraft;
pub use due::{
    DispatchedOrder, Effect, EffectScope, OverdueInput, RETIREMENT, dispatched_orders, is_order_pending,
    next_backoff_end, overdue_inputs, pending_effects, work_in_flight,
};
pub use edit::{CommandAction, Edit, MAX_TEXT, RunCommand, TaskPatch};
pub use event::{
    AnswerCause, AttemptEvent, BudgetEvent, Decision, Event, EventJson, GraphEvent, InputAnswer,
    PlanningEvent, ProviderEvent, ReviewEvent, RunEvent, TaskEvent, UserEvent,
};
pub use graph::check_new_tasks;
pub use hold::{HoldChange, RunHold, RunHolds, SessionTurn};
pub use refusal::{GraphError, Refusal};
pub use reserved::Reservations;
pub use spec::*;
pub use start::{
    MAX_PLAN_TIME, NOT_BEFORE_KEY, PLAN_WAIT_PREFIX, PlanTime, StartEvent, StartEventExpiry,
    StartExpiryAction, WAIT_FOR_EVENT_KEY,
};
pub use state::*;
pub use work::{JournalKey, Work, WorkKind};
