//! The tests of the command: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod bench;
mod command_line;
mod eval;
mod eval_yardsticks;
mod local;
mod nats_config;
mod questions;
mod secrets;
mod steering;
mod support;
