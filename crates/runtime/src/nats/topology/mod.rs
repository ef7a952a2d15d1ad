//! The streams, consumers and buckets of a cluster: their names, their configuration, the settings that the cluster was
//! created with, and creating all of it. Creating is idempotent, and any number of programs may do it at the same time.
//!
//! # Invariants
//!
//! - I98: Every bucket but the settings can be deleted while runs are in progress: supervisors create it again, without another
//!   fault. (`tests/tests/supervision.rs::deleted_buckets_are_created_again`)

pub mod streams;

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::context::AccountErrorKind;
use async_nats::jetstream::{self, ErrorCode, kv, stream};
use millrace_protocol::ids::Lane;
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::wire::{FORMAT, check_format};
use serde::Deserialize;
use streams::{
    ensure_stream, files_stream_config, lane_stream_config, object_store_stream_config, work_stream_config,
};

use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error, jetstream_error_code};

pub use streams::has_queue;
pub use streams::{
    ADMISSION_BOARD, ARCHIVE, ATTENDANCE, AUDIT, BLOBS, CAPABILITIES, CLUSTER, DELIVERIES,
    DELIVERY_RECORD_AGE, FILES, HEARTBEAT_AGE, HEARTBEATS, KEYS, LEASES, LIMITS, MEMBERS, RETENTION, RUNS,
    SESSIONS, TOKENS, WEBHOOKS, WORK, blob_referring_streams, bucket_stream, cluster_stream_names,
    ensure_queue, ensure_queues, lane_stream, object_stream,
};
pub(crate) use streams::{ensure_bucket, shared_bucket_config};

/// Creates the cluster where it does not exist, or checks that it has the requested settings. Of several programs that
/// start at the same time, the first one decides the settings.
/// Errors: the server has no JetStream or no storage left, does not respond, or the format, a setting or a stream differs.
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
/// Errors: the server does not respond or has no storage left, or a bucket differs.
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
/// Errors: the server has no JetStream or does not respond, there is no cluster, or it has another format.
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
    let ready = store.get(READY).await.or_fault(THE_SETTINGS)?;
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

/// The format in the settings of a cluster that is being restored.
pub(crate) const RESTORING: u16 = u16::MAX;

/// The key of the settings.
pub(crate) const SETTINGS: &str = "settings";
/// The key that exists once every stream and bucket has been created.
pub(super) const READY: &str = "ready";
/// The object of every fault here.
pub(crate) const THE_SETTINGS: &str = "the cluster's settings";

/// The settings that a program requests of its cluster. `None` accepts the setting of an existing cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    /// The number of lanes.
    pub lanes: Option<u16>,
    /// The number of replicas of every stream.
    pub replicas: Option<u8>,
    /// The lane lease: the time after which a supervisor loses a lane unless it renews its lease.
    pub lane_lease: Option<Duration>,
    /// The work lease: the time after which a worker loses an order unless it renews its lease.
    pub work_lease: Option<Duration>,
    /// The leases of a new cluster, where none are requested.
    pub defaults: ClusterDefaults,
}

/// The leases of a new cluster. Its other defaults are 1 lane and 1 replica.
#[derive(Debug, Clone)]
pub struct ClusterDefaults {
    /// The lane lease: 6 s, longer than a process usually pauses.
    pub lane_lease: Duration,
    /// The work lease: 15 s, longer than replicas take to elect a leader.
    pub work_lease: Duration,
}

impl Default for ClusterDefaults {
    fn default() -> Self {
        Self { lane_lease: Duration::from_secs(6), work_lease: Duration::from_secs(15) }
    }
}

impl ClusterOptions {
    /// Returns the settings of a new cluster with these options.
    pub(super) fn to_settings(&self) -> ClusterSettings {
        let millis = |requested: Option<Duration>, default: Duration| {
            u64::try_from(requested.unwrap_or(default).as_millis()).unwrap_or(u64::MAX)
        };
        ClusterSettings {
            version: FORMAT,
            lanes: self.lanes.unwrap_or(1),
            replicas: self.replicas.unwrap_or(1),
            lane_lease_ms: millis(self.lane_lease, self.defaults.lane_lease),
            work_lease_ms: millis(self.work_lease, self.defaults.work_lease),
        }
    }

    /// Checks that an existing cluster has the requested settings.
    pub fn check_settings_match(&self, actual: &ClusterSettings) -> Result<(), Fault> {
        let requested = self.to_settings();
        let mismatch = |what: &str, actual: String, requested: String, hint: &str| {
            Err(Fault::Mismatch { what: what.into(), actual, requested, hint: hint.into() })
        };
        let omit = "it can't change after a cluster is created: omit the option to use the existing value";
        if self.lanes.is_some() && actual.lanes != requested.lanes {
            return mismatch("lane count", actual.lanes.to_string(), requested.lanes.to_string(), omit);
        }
        if self.replicas.is_some() && actual.replicas != requested.replicas {
            return mismatch(
                "replica count",
                actual.replicas.to_string(),
                requested.replicas.to_string(),
                omit,
            );
        }
        let ms = |ms: u64| format!("{ms} ms");
        if self.lane_lease.is_some() && actual.lane_lease_ms != requested.lane_lease_ms {
            return mismatch("lane lease", ms(actual.lane_lease_ms), ms(requested.lane_lease_ms), omit);
        }
        if self.work_lease.is_some() && actual.work_lease_ms != requested.work_lease_ms {
            return mismatch("work lease", ms(actual.work_lease_ms), ms(requested.work_lease_ms), omit);
        }
        Ok(())
    }
}

/// Reads the settings of an existing cluster, or writes those of a new one. Of several programs that start at the same
/// time, the first one to create the key decides.
pub(super) async fn read_or_create_settings(
    store: &kv::Store,
    url: &str,
    options: &ClusterOptions,
) -> Result<ClusterSettings, Fault> {
    if let Some(settings) = read_settings(store, url).await? {
        return Ok(settings);
    }
    let requested = serde_json::to_vec(&options.to_settings()).expect("settings serialise to JSON");
    if let Err(error) = store.create(SETTINGS, requested.into()).await
        && error.kind() != kv::CreateErrorKind::AlreadyExists
    {
        return Err(fault_from_client_error(THE_SETTINGS, error));
    }
    read_settings(store, url).await?.ok_or_else(|| Fault::unavailable(THE_SETTINGS, "they do not exist"))
}

/// Reads the settings from their bucket; `None` if there are none.
pub(super) async fn read_settings(store: &kv::Store, url: &str) -> Result<Option<ClusterSettings>, Fault> {
    let bytes = store.get(SETTINGS).await.or_fault(THE_SETTINGS)?;
    bytes.map(|bytes| parse_settings(&bytes, url)).transpose()
}

/// Parses settings. The format is checked first: settings of another one may have other fields.
fn parse_settings(bytes: &[u8], url: &str) -> Result<ClusterSettings, Fault> {
    #[derive(Deserialize)]
    struct SettingsFormat {
        version: u16,
    }
    let unsuitable = |why: String| Fault::Unsuitable { url: url.into(), why };
    let unreadable = |error| unsuitable(format!("has a cluster with unreadable settings ({error})"));
    let SettingsFormat { version } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if version == RESTORING {
        return Err(unsuitable(
            "has a cluster that is being restored; wait until `millrace restore` has finished, or run it again with \
             --again if it was killed"
                .into(),
        ));
    }
    check_format(version).map_err(|other| {
        unsuitable(format!(
            "has a cluster that {other}; nothing was changed; use another account or data folder"
        ))
    })?;
    serde_json::from_slice(bytes).map_err(unreadable)
}

/// Makes the server reject every further write to the keys of the settings. Otherwise a client could redirect a server
/// reply there (see the threat model in `access`), which would replace the settings for every program that starts
/// later.
pub(super) async fn freeze_settings(context: &jetstream::Context) -> Result<(), Fault> {
    fn settings_fault(error: impl Error + Send + Sync + 'static) -> Fault {
        fault_from_client_error(THE_SETTINGS, error)
    }
    let stream = context.get_stream(bucket_stream(CLUSTER)).await.map_err(settings_fault)?;
    let current = &stream.cached_info().config;
    if !current.discard_new_per_subject {
        let frozen = stream::Config { discard_new_per_subject: true, ..current.clone() };
        context.update_stream(frozen).await.map_err(settings_fault)?;
    }
    Ok(())
}
