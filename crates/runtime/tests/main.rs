//! The tests of the runtime: one program for all of them.

mod archive;
mod queue_state;
mod retention;
mod runtime;
mod summary_changes;
mod workspace;
