//! The streams, consumers and buckets of a cluster: their names, their configuration, the settings that the cluster was
//! created with, and creating all of it. Creating is idempotent, and any number of programs may do it at the same time.
//!
//! # Invariants
//!
//! - I98: Every bucket but the settings can be deleted while runs are in progress: supervisors create it again, without another
//!   fault. (`tests/tests/supervision.rs::deleted_buckets_are_created_again`)

pub mod names;
mod queues;
mod settings;
mod streams;

use std::time::Duration;

use async_nats::jetstream::context::AccountErrorKind;
use async_nats::jetstream::{self, ErrorCode, kv};
use millrace_protocol::ids::Lane;
use millrace_protocol::registry::ClusterSettings;

pub use names::{
    ADMISSION_BOARD, ARCHIVE, ATTENDANCE, AUDIT, BLOBS, CAPABILITIES, CLUSTER, DELIVERIES,
    DELIVERY_RECORD_AGE, FILES, HEARTBEAT_AGE, HEARTBEATS, KEYS, LEASES, LIMITS, MEMBERS, RETENTION, RUNS,
    SESSIONS, TOKENS, WEBHOOKS, WORK, blob_referring_streams, bucket_stream, cluster_stream_names,
    lane_stream, object_stream,
};
pub use queues::has_queue;
pub use queues::{ensure_queue, ensure_queues};
pub use settings::{ClusterDefaults, ClusterOptions};
pub(crate) use settings::{RESTORING, SETTINGS, THE_SETTINGS};
pub(crate) use streams::{ensure_bucket, shared_bucket_config};

use super::error::{fault_from_client_error, jetstream_error_code};
use crate::Fault;
use settings::{READY, freeze_settings, read_or_create_settings, read_settings};
use streams::{
    ensure_stream, files_stream_config, lane_stream_config, object_store_stream_config, work_stream_config,
};

/// Creates the cluster where it does not exist, or checks that it has the requested settings. Of several programs that
/// start at the same time, the first one decides the settings.
///
/// # Errors
/// The server has no JetStream or no storage left, does not respond, or the format, a setting or a stream differs.
pub async fn ensure_cluster(
    context: &jetstream::Context,
    url: &str,
    options: &ClusterOptions,
) -> Result<ClusterSettings, Fault> {
    check_jetstream(context, url).await?;
    let replicas = options.to_settings().replicas;
    // An existing bucket keeps its number of replicas; the settings in it are checked below.
    let store = match context.get_key_value(CLUSTER).await {
        Ok(store) => store,
        Err(error) if jetstream_error_code(&error) == Some(ErrorCode::STREAM_NOT_FOUND) => {
            ensure_bucket(
                context,
                kv::Config { bucket: CLUSTER.into(), ..shared_bucket_config(replicas.into()) },
            )
            .await?
        }
        Err(error) => return Err(fault_from_client_error(THE_SETTINGS, error)),
    };
    let settings = read_or_create_settings(&store, url, options).await?;
    options.check_settings_match(&settings)?;
    let replicas = usize::from(settings.replicas);
    for lane in 0..settings.lanes {
        ensure_stream(context, lane_stream_config(Lane(lane), replicas)).await?;
    }
    ensure_stream(context, work_stream_config(replicas)).await?;
    ensure_stream(context, files_stream_config(replicas)).await?;
    Box::pin(ensure_buckets(context, &settings)).await?;
    ensure_stream(context, object_store_stream_config(BLOBS, replicas, false)).await?;
    ensure_stream(context, object_store_stream_config(ARCHIVE, replicas, true)).await?;
    if let Err(error) = store.create(READY, "".into()).await
        && error.kind() != kv::CreateErrorKind::AlreadyExists
    {
        return Err(fault_from_client_error(THE_SETTINGS, error));
    }
    freeze_settings(context).await?;
    Ok(settings)
}

/// Creates the buckets of a cluster that do not exist. What they hold, except the settings, is derived from the log or
/// written again by its owners.
///
/// # Errors
/// The server does not respond or has no storage left, or a bucket differs.
pub(crate) async fn ensure_buckets(
    context: &jetstream::Context,
    settings: &ClusterSettings,
) -> Result<(), Fault> {
    let replicas = usize::from(settings.replicas);
    let config =
        |name: &str, max_age| kv::Config { bucket: name.into(), max_age, ..shared_bucket_config(replicas) };
    let lease = Duration::from_millis(settings.lane_lease_ms);
    for config in [
        config(CLUSTER, Duration::ZERO),
        config(LEASES, lease),
        config(MEMBERS, lease),
        config(HEARTBEATS, HEARTBEAT_AGE),
        config(CAPABILITIES, Duration::ZERO),
        config(RUNS, Duration::ZERO),
        config(LIMITS, Duration::ZERO),
        config(KEYS, Duration::ZERO),
        config(TOKENS, Duration::ZERO),
        config(AUDIT, Duration::ZERO),
        config(SESSIONS, Duration::ZERO),
        config(WEBHOOKS, Duration::ZERO),
        config(DELIVERIES, DELIVERY_RECORD_AGE),
        config(RETENTION, Duration::ZERO),
    ] {
        ensure_bucket(context, config).await?;
    }
    Ok(())
}

/// Returns the settings of the existing cluster.
///
/// # Errors
/// The server has no JetStream or does not respond, there is no cluster, or it has another format.
pub async fn find_cluster_settings(
    context: &jetstream::Context,
    url: &str,
) -> Result<ClusterSettings, Fault> {
    check_jetstream(context, url).await?;
    let no_cluster = || Fault::NoCluster { url: url.into() };
    let store = context.get_key_value(CLUSTER).await.map_err(|error| match jetstream_error_code(&error) {
        Some(ErrorCode::STREAM_NOT_FOUND) => no_cluster(),
        Some(_) | None => fault_from_client_error(THE_SETTINGS, error),
    })?;
    let ready = store.get(READY).await.map_err(|error| fault_from_client_error(THE_SETTINGS, error))?;
    if ready.is_none() {
        return Err(no_cluster());
    }
    read_settings(&store, url).await?.ok_or_else(no_cluster)
}

/// Checks that the account has JetStream.
pub(crate) async fn check_jetstream(context: &jetstream::Context, url: &str) -> Result<(), Fault> {
    let what = "checking for JetStream";
    context.query_account().await.map(|_| ()).map_err(|error| match error.kind() {
        // The servers have not elected their meta leader yet.
        AccountErrorKind::JetStream(response)
            if response.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE =>
        {
            Fault::unavailable(what, error)
        }
        AccountErrorKind::JetStreamUnavailable | AccountErrorKind::JetStream(_) => Fault::Unsuitable {
            url: url.into(),
            why: "has no JetStream for this account; start it with -js, or enable jetstream in its \
                  configuration"
                .into(),
        },
        AccountErrorKind::TimedOut | AccountErrorKind::Other => Fault::unavailable(what, error),
    })
}
