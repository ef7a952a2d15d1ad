//! The configuration of each stream and bucket, and creating them. An existing stream with another configuration is a
//! fault.
//!
//! A client can have the server store its replies in a stream (see the threat model in [`crate::nats::access`]). The
//! limits here bound the size of such a message. Their number has no limit per subject: the subjects of a lane, the
//! versions of a file and the parts of an object grow without a natural bound, so that such a limit would be a way to
//! block them. Supervisors delete forged messages instead, and the
//! limit of the account bounds all streams together.

use std::time::Duration;

use async_nats::jetstream::stream::{self, Compression, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, kv};
use millrace_protocol::ids::Lane;
use millrace_protocol::subject;

use super::names::{FILES, WORK, bucket_stream, lane_stream, object_stream};
use crate::Fault;
use crate::nats::buckets::open_bucket;
use crate::nats::error::fault_from_client_error;

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
    let stream = context
        .get_or_create_stream(requested.clone())
        .await
        .map_err(|error| fault_from_client_error(&what, error))?;
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
