//! The connection to a cluster, and everything that speaks NATS directly: subjects, headers, streams, buckets, object
//! stores, permissions.

pub mod access;
pub(crate) mod buckets;
pub mod bus;
pub mod certificate_expiry;
pub mod connect;
pub mod connection;
mod connection_metrics;
pub mod direct_get;
pub mod error;
pub(crate) mod object_store;
pub mod provenance;
pub(crate) mod publish;
pub mod record;
pub mod strays;
pub(crate) mod stream_tail;
pub mod tls_error;
pub mod topology;
