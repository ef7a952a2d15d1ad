//! The NATS shell that every program shares: everything between the rules of `millrace-protocol` and a NATS server. It
//! contains no rules: what a message means is decided in `millrace-protocol`. A function that returns a [`Fault`] fails if the server
//! does not respond; its documentation names the other reasons.
//!
//! ```text
//! program           the frame of every program: logging, signals, metrics page, joining the cluster, exit codes
//! fault             what can fail outside of the rules, and whether a retry can help
//! clock             wall time without jumps; durations as people write them
//! nats/             the connection to a cluster, and everything that speaks NATS directly
//! ├─ bus            the client of one cluster
//! ├─ connection     URL, credentials and TLS of a connection
//! ├─ connect        connecting, retries, and permission errors of the server
//! ├─ access         threat model, and the permissions of each role
//! ├─ topology/      names, settings and configuration of streams, consumers and buckets
//! ├─ record         one message of a stream, published or a redirected server reply
//! ├─ direct_get     batched reads of a stream
//! └─ object_store   writing and reading objects without consumers
//! log/              the log of decisions and journal entries
//! ├─ append         fenced appends
//! ├─ read           reading a run, a topic or one message
//! ├─ lane           everything that a lane holds, and a lane as it grows
//! ├─ follow/        the log of a run or a lane from a sequence on, with what was archived
//! └─ journal        the entries of one piece of work
//! work/             who does what
//! ├─ queue          orders: offer, withdraw, stop
//! ├─ lane_lease     which supervisor owns which lane
//! └─ registry       capabilities, heartbeats, run summaries
//! store/            what outlives a run
//! ├─ blobs          large values, by content hash
//! ├─ bucket         typed entries of key-value buckets; forged ones are ignored
//! ├─ archive        runs that have ended
//! ├─ retention/     deleting runs, and sweeping blobs that nothing refers to
//! ├─ workspace      the files of a run
//! ├─ rate_limits/   request and token rates of models
//! └─ backup/        a copy of a cluster in a folder, and restoring it
//! ops/              how a process is operated
//! ├─ health/        liveness, readiness and their HTTP endpoints
//! ├─ metrics/       counters, gauges and histograms of this process
//! ├─ cluster_metrics  gauges of the whole cluster
//! ├─ cluster_status  processes, queues, lanes and runs of the whole cluster
//! ├─ telemetry      logging
//! └─ runtime        signals, and work that takes long
//! ```
//!
//! Long asynchronous functions return boxed futures: an unboxed future is compiled again in every crate that awaits it,
//! which costs minutes of a first build, while an allocation costs nothing compared to a message.

pub mod clock;
pub mod fault;
pub mod log;
pub mod nats;
pub mod ops;
pub mod program;
pub mod store;
pub mod work;

pub use fault::Fault;
pub use nats::bus::Bus;
pub use nats::connection::ConnectionSettings;
