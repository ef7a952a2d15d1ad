//! The limits of a tenant's account besides its disk space. They are far above what a large cluster needs, and keep one
//! stolen key from taking the connections, the memory or the consumers of all tenants.

use millrace_runtime::nats::topology::cluster_stream_names;

/// The maximum number of connections of an account, of the servers' 20,000: one per process, and one per client command.
pub const MAX_CONNECTIONS: u32 = 5_000;
/// The maximum number of subscriptions of an account on a server. A process has fewer than 20, and one per read in
/// progress.
pub const MAX_SUBSCRIPTIONS: u32 = 200_000;
/// The maximum memory of the streams and consumers of an account: only readers of lanes are in memory.
pub const MAX_MEMORY: u32 = 64 << 20;
/// The maximum number of consumers of one stream: a queue per capability, and readers of lanes.
pub const MAX_CONSUMERS: u32 = 10_000;

/// Returns the maximum number of streams of an account: those of a cluster, and a few of the operator.
pub fn max_streams(lanes: u16) -> usize {
    cluster_stream_names(lanes).len() + 10
}
