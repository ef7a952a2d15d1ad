//! The settings of a cluster: the options that a program requests, and the settings that the cluster was created with.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::{self, kv, stream};
use millrace_protocol::format::{FORMAT, check_format};
use millrace_protocol::registry::ClusterSettings;
use serde::Deserialize;

use super::names::{CLUSTER, bucket_stream};
use crate::Fault;
use crate::nats::error::fault_from_client_error;

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
    let bytes = store.get(SETTINGS).await.map_err(|error| fault_from_client_error(THE_SETTINGS, error))?;
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
