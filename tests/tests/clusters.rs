//! Tests of whole clusters and of the images, in one program, so that those that wait run beside those that compute.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod acp;
mod admission;
mod agent_takeover;
mod agents;
mod backup;
mod bad_input;
mod behaviours;
mod chaos;
mod delegation;
mod exit_codes;
mod fencing;
mod files;
mod first_command;
mod foreign_processes;
mod health;
mod history;
mod image;
mod images;
mod kill_sweep;
mod machines;
mod memories;
mod month;
mod prefixes;
mod python_takeover;
mod python_worker;
mod questions;
mod queues;
mod reopen;
mod scaling;
mod sessions;
mod skills;
mod stored_format;
mod supervision;
mod takeover;
mod traces;
mod waiting;
mod web_sources;
