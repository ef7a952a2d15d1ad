//! Turns of the planner: its board, tools and answers, and that a turn resumed after any step gives the same proposal.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

#[path = "planner/answers.rs"]
mod answers;
#[path = "planner/board.rs"]
mod board;
#[path = "planner/real.rs"]
mod real;
#[path = "planner/small.rs"]
mod small;
#[path = "planner/support.rs"]
mod support;
#[path = "planner/tools.rs"]
mod tools;
#[path = "planner/turns.rs"]
mod turns;
