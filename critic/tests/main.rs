//! The tests of critics: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod critic;
mod review;
mod support;
