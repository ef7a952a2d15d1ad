//! The names of the streams, buckets and object stores of a cluster. The permissions in `access` use the same names.

use std::time::Duration;

use millrace_protocol::ids::Lane;

/// The stream of all queues.
pub const WORK: &str = "WORK";
/// The stream of the files of all runs.
pub const FILES: &str = "FILES";
/// The bucket of rate limits.
pub const LIMITS: &str = "limits";
/// The key of the board of admission in [`LIMITS`]. Clients may write keys of two parts there only.
pub const ADMISSION_BOARD: &str = "admission";
/// The key of the attendance in [`LIMITS`].
pub const ATTENDANCE: &str = "attendance";
/// The bucket of idempotency keys of submissions.
pub const KEYS: &str = "keys";
/// The bucket of tokens of the HTTP API.
pub const TOKENS: &str = "tokens";
/// The bucket of administrative actions.
pub const AUDIT: &str = "audit";
/// The bucket of sessions: the runs of each, in their order.
pub const SESSIONS: &str = "sessions";
/// The bucket of webhooks of the HTTP API.
pub const WEBHOOKS: &str = "webhooks";
/// The bucket of deliveries to the receivers of webhooks.
pub const DELIVERIES: &str = "deliveries";
/// The time for which a delivery stays in its bucket after its last change.
pub const DELIVERY_RECORD_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The bucket of lane leases.
pub const LEASES: &str = "leases";
/// The bucket of live supervisors, which share the lanes.
pub const MEMBERS: &str = "members";
/// The bucket of heartbeats.
pub const HEARTBEATS: &str = "beats";
/// The bucket of registered capabilities.
pub const CAPABILITIES: &str = "capabilities";
/// The bucket of run summaries.
pub const RUNS: &str = "runs";
/// The bucket of the cluster's settings.
pub const CLUSTER: &str = "cluster";
/// The bucket of deletions of runs, and of the rules for them.
pub const RETENTION: &str = "retention";
/// The object store of large values.
pub const BLOBS: &str = "blobs";
/// The object store of archived runs.
pub const ARCHIVE: &str = "archive";
/// The maximum age of a heartbeat: the process counts as live until then.
pub const HEARTBEAT_AGE: Duration = Duration::from_secs(10);

/// Returns the name of a lane's stream.
#[must_use]
pub fn lane_stream(lane: Lane) -> String {
    format!("LANE_{lane}")
}

/// Returns the name of a bucket's stream.
#[must_use]
pub fn bucket_stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// Returns the name of an object store's stream.
#[must_use]
pub fn object_stream(bucket: &str) -> String {
    format!("OBJ_{bucket}")
}

/// Returns the names of all streams of a cluster with this number of lanes.
#[must_use]
pub fn cluster_stream_names(lanes: u16) -> Vec<String> {
    let lanes = (0..lanes).map(|lane| lane_stream(Lane(lane)));
    let buckets = BUCKETS.map(bucket_stream);
    let stores = [BLOBS, ARCHIVE].map(object_stream);
    lanes.chain([WORK.into(), FILES.into()]).chain(buckets).chain(stores).collect()
}

const BUCKETS: [&str; 14] = [
    CLUSTER,
    LEASES,
    MEMBERS,
    HEARTBEATS,
    CAPABILITIES,
    RUNS,
    LIMITS,
    KEYS,
    SESSIONS,
    TOKENS,
    AUDIT,
    WEBHOOKS,
    DELIVERIES,
    RETENTION,
];

/// The buckets whose entries never refer to blobs. New buckets count as referring unless they are named here.
const BUCKETS_WITHOUT_BLOBS: [&str; 12] = [
    CLUSTER, LEASES, MEMBERS, HEARTBEATS, LIMITS, KEYS, SESSIONS, TOKENS, AUDIT, WEBHOOKS, DELIVERIES,
    RETENTION,
];

/// Returns the names of the streams whose messages may refer to blobs. The archive and the blobs themselves refer to blobs
/// too, but as objects.
#[must_use]
pub fn blob_referring_streams(lanes: u16) -> Vec<String> {
    let others = BUCKETS_WITHOUT_BLOBS.map(bucket_stream);
    let objects = [BLOBS, ARCHIVE].map(object_stream);
    let all = cluster_stream_names(lanes).into_iter();
    all.filter(|stream| !others.contains(stream) && !objects.contains(stream)).collect()
}
