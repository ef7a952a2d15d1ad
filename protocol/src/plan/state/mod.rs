//! The state of a run: what folding its decisions gives. Reading it is free; only [`super::apply`] writes it.

mod run;
mod task;
mod turn;

pub use run::{End, EndReason, FinalRung, MAX_BLOCKED, Plan, Spend, Start};
pub use task::{Attempt, AttemptEnd, Clock, ErroredFor, Task, TaskState};
pub use turn::{MAX_NOTES, Occasion, Planning};
