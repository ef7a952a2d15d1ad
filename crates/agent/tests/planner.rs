//! Turns of the planner: its board, tools and answers, and that a turn resumed after any step gives the same proposal.

mod answers;
mod board;
mod real;
mod small;
pub(crate) mod support;
mod tools;
mod turns;
