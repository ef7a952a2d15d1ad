//! Local clusters: everything a run needs, as child processes of this one, on one data folder.
//!
//! ```text
//! Cluster ─── keeper (a thread) ─── fleet ─┬─ nats-server
//!                                          ├─ supervisor-1 …
//!                                          ├─ worker-1 …
//!                                          └─ critic-1 …
//! ```
//!
//! A process that dies unasked is started again. A stop goes from those who do the work to the server. If this process
//! is killed, the kernel kills the others. What a cluster has logged stays in the data folder, for the next one on it.
//! This module knows nothing of runs, plans or streams: what the processes say to one another is theirs.

mod bound;
mod by_hand;
mod cluster;
pub mod data;
mod detached;
mod fleet;
mod options;
mod server;

use std::ffi::OsString;
use std::process::ExitCode;

pub use bound::Launcher;
pub use cluster::Cluster;
pub use data::ClusterInfo;
pub use detached::{has_store, running, start_detached, stop};
pub use fleet::Event;
pub use options::Options;

/// Runs this module's internal commands, if `arguments` (those of the process, its own name first) name one. To be
/// called first of all in `main`, before there are threads.
pub fn intercept(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.get(1).is_some_and(|first| first == by_hand::NAME) {
        return Some(by_hand::run(arguments[1..].to_vec()).unwrap_or_else(|error| {
            eprintln!("millrace: {error}");
            ExitCode::FAILURE
        }));
    }
    bound::intercept(arguments)
}
