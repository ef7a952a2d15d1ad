//! A planner's turn: what it is shown, what its tools do and say, what its answers come to, and that a turn that is taken
//! up behind any step comes to the same.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

#[path = "planner/answers.rs"]
mod answers;
#[path = "planner/board.rs"]
mod board;
#[path = "planner/real.rs"]
mod real;
#[path = "planner/support.rs"]
mod support;
#[path = "planner/tools.rs"]
mod tools;
#[path = "planner/turns.rs"]
mod turns;
