//! Who may do what on the server: for each role, the subjects that it may publish to and subscribe to, made of the same
//! names that the code uses. Whatever is not listed the server refuses. `millrace nats-config` writes them down.
//!
//! | role | writes | reads |
//! |---|---|---|
//! | supervisor | plans, queues, leases, summaries, the archive; makes and empties streams | the lanes |
//! | worker | the journals of tasks (a planner: of its turns), its own queue's acknowledgements, files, blobs | the lanes, files, blobs |
//! | critic | the journals of reviews, its own queue's acknowledgements, blobs | the lanes, files, blobs |
//! | client | what is handed in, commands, limits, blobs, files | everything but queues |
//! | viewer | nothing | everything but queues |
//! | metrics | nothing | the state of streams and queues, who lives, summaries |
//! | backup | everything, from a backup | everything, into a backup |
//!
//! A lane is read as a whole: no subject of a read says which run it is about. Answers come to an inbox that only the
//! holder of the same key can listen to.

use millrace_protocol::ids::Capability;

/// What a process is to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Owns lanes.
    Supervisor,
    /// Does the tasks of these capabilities; `planner` is one of them.
    Worker(Vec<Capability>),
    /// Judges results.
    Critic,
    /// Hands runs in, steers and reads them.
    Client,
    /// Reads runs.
    Viewer,
    /// Counts.
    Metrics,
    /// Keeps a copy of everything elsewhere, and puts it back.
    Backup,
}

/// The subjects of an identity, with `*` and `>` as the server reads them. What is not here is refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// What it may publish to.
    pub publish: Vec<String>,
    /// What it may subscribe to.
    pub subscribe: Vec<String>,
}

/// Below which subject a process that has the nkey with this public half gets its answers. Nobody else may listen
/// there.
#[must_use]
pub fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}
