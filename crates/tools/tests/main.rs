//! The tests of tools: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod execute;
mod execute_shared;
mod execute_workspace;
mod mcp;
#[cfg(target_os = "linux")]
mod program;
mod support;
mod web;
