//! The state of a run: what folding its decisions gives. Reading it is free; only [`super::apply`] writes it.

mod json;
mod questions;
mod run;
mod task;
mod turn;
mod uncounted_time;

pub use questions::{QuestionState, RunQuestion};
pub(in crate::plan) use run::PlanIndex;
pub use run::{
    BudgetState, DeliverableRule, EndReason, MAX_BLOCKED, PauseReason, Plan, PlanningState, RunEnd,
    RunParameters, RunState, UsageBreakdown,
};
pub use task::{
    Attempt, AttemptClock, AttemptEnd, AttemptReview, AttemptWait, ErroredTaskWait, Task, TaskPhase,
    TaskState,
};
pub use turn::{MAX_NOTES, PlannerTrigger, PlanningTurn};
pub use uncounted_time::UncountedTime;
