//! The tests of agents: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod answers;
mod embeddings;
mod extractive;
mod given_text;
mod judge;
mod pages;
mod planner;
mod prompt_size;
mod rerun;
mod size;
mod skills;
mod turn;
