//! Tests of the plan's rules and of the wire format, as plain values: no sockets, no clock, no waiting. Each module tests
//! one property; `cast`, `scene`, `show` and `golden` are shared helpers.
#![allow(clippy::unwrap_used, reason = "test helpers fail like the tests that use them")]
#![allow(clippy::result_large_err, reason = "tests inspect and drop the errors")]

mod admission;
mod cast;
mod clocks;
mod delegation;
mod drafts;
mod effects;
mod golden;
mod graphs;
mod holds;
mod judgement;
mod oracle;
mod properties;
mod questions;
mod random;
mod repetition;
mod resumed;
mod scene;
mod show;
mod speed;
mod table;
mod transcripts;
mod waits;
mod wire;
mod world;
