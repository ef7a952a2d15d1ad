//! The names and the configuration of the streams, buckets and object stores of a cluster, and creating them. The permissions in
//! `access` use the same names. An existing stream with another configuration is a
//! fault.
//!
//! A client can have the server store its replies in a stream (see the threat model in [`crate::nats::access`]). The
//! limits here bound the size of such a message. Their number has no limit per subject: the subjects of a lane, the
//! versions of a file and the parts of an object grow without a natural bound, so that such a limit would be a way to
//! block them. Supervisors delete forged messages instead, and the
//! limit of the account bounds all streams together.
//!
//! The queues of a cluster: one durable consumer of the stream `WORK` per capability. Only supervisors create them: a
//! client that could create a consumer could receive the orders of every capability.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{self, AckPolicy, pull};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, Compression, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode, kv};
use bytes::Bytes;
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::subject;

use crate::Fault;
use crate::fault::{ClientResult, response_fault};
use crate::nats::direct_get::{self, ALL_SUBJECTS};

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

/// The maximum size of a message of a lane, a queue or a file: an inline body, the envelope and the headers.
const MAX_MESSAGE: i32 = 320 * 1024;
/// The maximum size of a part of an object, which is 128 KiB, and its headers.
const MAX_PART: i32 = 160 * 1024;

/// The configuration that all buckets share.
pub(crate) fn shared_bucket_config(replicas: usize) -> kv::Config {
    kv::Config { history: 1, num_replicas: replicas, storage: StorageType::File, ..Default::default() }
}

/// The stream of a bucket. Rollups are not allowed: with one, a client that may write one key could delete all others.
fn bucket_stream_config(config: kv::Config) -> stream::Config {
    stream::Config {
        name: bucket_stream(&config.bucket),
        subjects: vec![format!("$KV.{}.>", config.bucket)],
        max_messages_per_subject: config.history,
        max_age: config.max_age,
        storage: config.storage,
        num_replicas: config.num_replicas,
        discard: DiscardPolicy::New,
        allow_direct: true,
        deny_delete: true,
        ..Default::default()
    }
}

pub(super) fn object_store_stream_config(name: &str, replicas: usize, allow_rollup: bool) -> stream::Config {
    stream::Config {
        name: object_stream(name),
        subjects: vec![format!("$O.{name}.C.>"), format!("$O.{name}.M.>")],
        max_message_size: MAX_PART,
        storage: StorageType::File,
        num_replicas: replicas,
        discard: DiscardPolicy::New,
        allow_direct: true,
        allow_rollup,
        ..Default::default()
    }
}

pub(super) fn lane_stream_config(lane: Lane, replicas: usize) -> stream::Config {
    stream::Config {
        name: lane_stream(lane),
        subjects: vec![subject::all_subjects_of_lane(lane)],
        max_message_size: MAX_MESSAGE,
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: replicas,
        compression: Some(Compression::None),
        duplicate_window: Duration::from_secs(120),
        allow_direct: true,
        max_consumers: 10_000,
        ..Default::default()
    }
}

/// The stream of all queues. It holds at most one order per subject, so that an order is never queued twice.
pub(super) fn work_stream_config(replicas: usize) -> stream::Config {
    stream::Config {
        name: WORK.into(),
        subjects: vec![subject::ALL_ORDERS.into()],
        max_message_size: MAX_MESSAGE,
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        num_replicas: replicas,
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        discard_new_per_subject: true,
        allow_direct: true,
        max_consumers: 10_000,
        ..Default::default()
    }
}

/// The stream of files. It keeps every version of every file; the current version of a path is the last message of its
/// subject.
pub(super) fn files_stream_config(replicas: usize) -> stream::Config {
    stream::Config {
        name: FILES.into(),
        subjects: vec![subject::ALL_FILES.into()],
        max_message_size: MAX_MESSAGE,
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: replicas,
        compression: Some(Compression::None),
        allow_direct: true,
        max_consumers: 1_000,
        ..Default::default()
    }
}

/// Creates a stream, or checks that the existing one has the same configuration.
pub(super) async fn ensure_stream(
    context: &jetstream::Context,
    requested: stream::Config,
) -> Result<(), Fault> {
    let what = format!("stream {}", requested.name);
    let stream = context.get_or_create_stream(requested.clone()).await.or_fault(&what)?;
    let show = |c: &stream::Config| {
        format!(
            "subjects {:?}, retention {:?}, storage {:?}, {} replicas, {} per subject, discard {:?}",
            c.subjects,
            c.retention,
            c.storage,
            c.num_replicas,
            c.max_messages_per_subject.max(0),
            c.discard
        )
    };
    let (actual, requested) = (show(&stream.cached_info().config), show(&requested));
    if actual != requested {
        let hint = "use another cluster or account, or remove that stream if nothing needs it".into();
        return Err(Fault::Mismatch { what, actual, requested, hint });
    }
    Ok(())
}

/// Creates a bucket, or opens the existing one.
pub(crate) async fn ensure_bucket(
    context: &jetstream::Context,
    config: kv::Config,
) -> Result<kv::Store, Fault> {
    let name = config.bucket.clone();
    ensure_stream(context, bucket_stream_config(config)).await?;
    open_bucket(context, &name).await
}

/// Creates the stream of all queues and the queues of these capabilities, where they do not exist.
/// Fails also if an existing stream or consumer differs.
pub async fn ensure_queues(
    context: &jetstream::Context,
    settings: &ClusterSettings,
    capabilities: impl IntoIterator<Item = &Capability>,
) -> Result<(), Fault> {
    ensure_stream(context, work_stream_config(settings.replicas.into())).await?;
    for capability in capabilities {
        ensure_queue(context, settings, capability).await?;
    }
    Ok(())
}

/// Creates the queue of a capability, or returns the existing one.
pub async fn ensure_queue(
    context: &jetstream::Context,
    settings: &ClusterSettings,
    capability: &Capability,
) -> Result<consumer::Consumer<pull::Config>, Fault> {
    let config = pull::Config {
        durable_name: Some(capability.to_string()),
        filter_subject: subject::order_subjects_of_capability(capability),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_millis(settings.work_lease_ms),
        max_ack_pending: 100_000,
        max_waiting: 10_000,
        num_replicas: usize::from(settings.replicas),
        ..Default::default()
    };
    context
        .create_consumer_on_stream(config, WORK)
        .await
        .or_fault_with(|| format!("the queue of {capability}"))
}

/// Returns `true` if a capability has a queue.
pub async fn has_queue(context: &jetstream::Context, capability: &Capability) -> Result<bool, Fault> {
    let what = format!("the queue of {capability}");
    // A NATS cluster accepts an empty object in place of an empty payload, but not `null`.
    let request = format!("CONSUMER.INFO.{WORK}.{capability}");
    let response: Response<consumer::Info> =
        context.request(request, &serde_json::json!({})).await.or_fault(&what)?;
    match response {
        Response::Ok(_) => Ok(true),
        Response::Err { error } => match error.error_code() {
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND => Ok(false),
            _ => Err(response_fault(&what, error)),
        },
    }
}

/// Opens an existing bucket.
pub(crate) async fn open_bucket(context: &jetstream::Context, name: &str) -> Result<kv::Store, Fault> {
    context.get_key_value(name).await.or_fault_with(|| format!("bucket {name}"))
}

/// Returns the current entries of a bucket, as keys and values. Deleted keys are left out.
pub(crate) async fn read_bucket_entries(
    client: &Client,
    bucket: &str,
) -> Result<Vec<(String, Bytes)>, Fault> {
    let prefix = format!("$KV.{bucket}.");
    let records = direct_get::read_matching(client, &bucket_stream(bucket), ALL_SUBJECTS, 1).await?;
    let present = records.into_iter().filter(|record| !record.is_deletion);
    Ok(present
        .filter_map(|record| Some((record.subject.strip_prefix(&prefix)?.to_owned(), record.payload)))
        .collect())
}
