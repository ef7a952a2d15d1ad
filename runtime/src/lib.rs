//! The NATS shell that every program shares: connection, log, journals, queues, leases, blobs, registry, shutdown and
//! logging. It knows no rules: what a message means is said by `millrace-protocol`.
//!
//! ```text
//! Bus            one connection to a cluster that was checked against its settings
//! ├─ access      who may do what
//! ├─ log         fenced appends, reading a run or a journal from its start
//! ├─ backlog     all that a lane holds
//! ├─ tail        a lane as it grows, from any sequence
//! ├─ journal     the chain of entries of one piece of work
//! ├─ queue       orders: offer, pull, lease, withdraw
//! ├─ lease       who owns a lane
//! ├─ blobs       large values, by content
//! ├─ archive     runs that are over
//! ├─ registry    capabilities, signs of life, summaries
//! ├─ metrics     what a process measures, and what is measured of the cluster as a whole
//! ├─ health      whether a process lives and can do its part, over HTTP
//! ├─ backup      a copy of all of it in a folder, and putting it back
//! └─ host        a process that takes orders: slots, leases, cancelling, draining
//! ```
//!
//! Larger asynchronous functions give boxed futures: a future that is not boxed is compiled anew in every crate that
//! waits for it, which costs minutes of a first build, and an allocation costs nothing beside a message.

pub mod access;
pub mod archive;
pub mod backlog;
pub mod backup;
pub mod blobs;
pub mod bus;
pub mod connection;
pub mod direct;
pub mod duration;
pub mod fault;
pub mod handshake;
pub mod health;
pub mod host;
pub mod journal;
pub mod lease;
pub mod limits;
pub mod log;
pub mod marks;
pub mod metrics;
mod objects;
pub mod queue;
pub mod record;
pub mod registry;
pub mod shutdown;
pub mod tail;
pub mod telemetry;
pub mod topology;
pub mod workspace;

pub use bus::Bus;
pub use connection::Connection;
pub use fault::Fault;
