//! The connection to a cluster, and everything that speaks NATS directly: subjects, headers, streams, buckets, object
//! stores, permissions.

pub mod access;
pub mod bus;
pub mod connect;
pub mod connection;
pub mod direct_get;
pub(crate) mod object_store;
pub(crate) mod publish;
pub mod record;
pub mod strays;
pub mod tls;
pub mod topology;
