//! The tests of workers: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod files;
mod hooks;
mod planner;
mod program_files;
mod stopping;
mod support;
mod throughput;
mod worker;
