//! The tests of models: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod conformance;
mod factory;
mod local;
mod resilience;
mod structured;
mod support;
