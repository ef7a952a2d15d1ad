//! The streams, consumers and buckets of a cluster, from one table, and making sure that they are there. Safe to
//! repeat, by any number of programs at once.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, pull};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, Compression, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode, kv};
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::subject;

use crate::Fault;

/// The version of the layout that this program makes and reads.
pub const LAYOUT: u32 = 1;
/// Stands in the place of the version in the settings of a cluster that is being restored.
pub(crate) const RESTORING: u32 = 0;
/// The stream with all queues.
pub const WORK: &str = "WORK";
/// The stream with the files of all runs.
pub const FILES: &str = "FILES";
/// The bucket of the rates that models may be asked at.
pub const LIMITS: &str = "limits";
/// The bucket of lane leases.
pub const LEASES: &str = "leases";
/// The bucket of supervisors that share the lanes.
pub const MEMBERS: &str = "members";
/// The bucket of signs of life.
pub const BEATS: &str = "beats";
/// The bucket of known capabilities.
pub const CAPABILITIES: &str = "capabilities";
/// The bucket of run summaries.
pub const RUNS: &str = "runs";
/// The bucket with the cluster's settings.
pub const CLUSTER: &str = "cluster";
/// The object store of large values.
pub const BLOBS: &str = "blobs";
/// The object store of runs that are over.
pub const ARCHIVE: &str = "archive";
/// How long a sign of life counts.
pub const BEAT_AGE: Duration = Duration::from_secs(10);

/// The key of the settings.
pub(crate) const SETTINGS: &str = "settings";
/// The key that says that everything in the table has been made once.
const READY: &str = "ready";

/// What a program expects of its cluster. `None` takes what is there.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// How many lanes.
    pub lanes: Option<u16>,
    /// How many copies of everything.
    pub replicas: Option<u8>,
    /// How long a lane belongs to a silent supervisor.
    pub lane_lease: Option<Duration>,
    /// How long work belongs to a silent worker.
    pub work_lease: Option<Duration>,
    /// What a cluster gets that is only just being made, where nothing is wanted.
    pub otherwise: Otherwise,
}

/// What a new cluster gets by default: 1 lane, 1 copy, and these leases.
#[derive(Debug, Clone)]
pub struct Otherwise {
    /// How long a lane belongs to a silent supervisor: 6 s, which outlasts a pause of the process.
    pub lane_lease: Duration,
    /// How long work belongs to a silent worker: 15 s, which outlasts the election of a new leader among replicas.
    pub work_lease: Duration,
}

impl Default for Otherwise {
    fn default() -> Self {
        Self { lane_lease: Duration::from_secs(6), work_lease: Duration::from_secs(15) }
    }
}

impl Wanted {
    fn settings(&self) -> ClusterSettings {
        let millis = |wanted: Option<Duration>, otherwise: Duration| {
            u64::try_from(wanted.unwrap_or(otherwise).as_millis()).unwrap_or(u64::MAX)
        };
        ClusterSettings {
            version: LAYOUT,
            lanes: self.lanes.unwrap_or(1),
            replicas: self.replicas.unwrap_or(1),
            lane_lease_ms: millis(self.lane_lease, self.otherwise.lane_lease),
            work_lease_ms: millis(self.work_lease, self.otherwise.work_lease),
            unmarked_orders_through: Some(0),
        }
    }

    /// Whether a cluster with these settings is the one that is wanted.
    fn check(&self, found: &ClusterSettings) -> Result<(), Fault> {
        let mine = self.settings();
        let differs = |what: &str, found: String, wanted: String, hint: &str| {
            Err(Fault::Differs { what: what.into(), found, wanted, hint: hint.into() })
        };
        let keep = "it is fixed when a cluster is made: leave the option away to use what is there";
        if found.version == RESTORING {
            let hint =
                "wait until `millrace restore` has ended, or do it again with --again if it was killed";
            return differs("the layout", "only what is restored so far".into(), LAYOUT.to_string(), hint);
        }
        if found.version != LAYOUT {
            let hint = "use the program version that made it, or a new cluster";
            return differs("the layout", found.version.to_string(), LAYOUT.to_string(), hint);
        }
        if self.lanes.is_some() && found.lanes != mine.lanes {
            return differs("the lane count", found.lanes.to_string(), mine.lanes.to_string(), keep);
        }
        if self.replicas.is_some() && found.replicas != mine.replicas {
            return differs("the replica count", found.replicas.to_string(), mine.replicas.to_string(), keep);
        }
        let ms = |ms: u64| format!("{ms} ms");
        if self.lane_lease.is_some() && found.lane_lease_ms != mine.lane_lease_ms {
            return differs("the lane lease", ms(found.lane_lease_ms), ms(mine.lane_lease_ms), keep);
        }
        if self.work_lease.is_some() && found.work_lease_ms != mine.work_lease_ms {
            return differs("the work lease", ms(found.work_lease_ms), ms(mine.work_lease_ms), keep);
        }
        Ok(())
    }
}

/// The name of a lane's stream.
#[must_use]
pub fn lane_stream(lane: Lane) -> String {
    format!("LANE_{lane}")
}

/// The name of a bucket's stream.
#[must_use]
pub fn bucket_stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// The name of an object store's stream.
#[must_use]
pub fn object_stream(bucket: &str) -> String {
    format!("OBJ_{bucket}")
}

/// The names of all streams of a cluster with so many lanes.
#[must_use]
pub fn streams(lanes: u16) -> Vec<String> {
    let lanes = (0..lanes).map(|lane| lane_stream(Lane(lane)));
    let buckets = [CLUSTER, LEASES, MEMBERS, BEATS, CAPABILITIES, RUNS, LIMITS].map(bucket_stream);
    let stores = [BLOBS, ARCHIVE].map(object_stream);
    lanes.chain([WORK.into(), FILES.into()]).chain(buckets).chain(stores).collect()
}

/// Makes sure that the cluster is there. The first program to come fixes its settings.
///
/// # Errors
/// The server has no JetStream or no room, does not answer, or something there differs from what is wanted.
pub async fn ensure(
    context: &jetstream::Context,
    url: &str,
    wanted: &Wanted,
) -> Result<ClusterSettings, Fault> {
    check_jetstream(context, url).await?;
    let replicas = wanted.settings().replicas;
    // One that is there has as many copies as it was made with, and what is in it says whether that is what is wanted.
    let store = match context.get_key_value(CLUSTER).await {
        Ok(store) => store,
        Err(error) if code(&error) == Some(ErrorCode::STREAM_NOT_FOUND) => {
            bucket(context, kv::Config { bucket: CLUSTER.into(), ..keep(replicas.into()) }).await?
        }
        Err(error) => return Err(fault("the cluster's settings", &error)),
    };
    let settings = settle(&store, wanted).await?;
    wanted.check(&settings)?;
    let copies = usize::from(settings.replicas);
    for lane in 0..settings.lanes {
        make_stream(context, lane_config(Lane(lane), copies)).await?;
    }
    make_stream(context, work_config(copies)).await?;
    make_stream(context, files_config(copies)).await?;
    let aged = |name: &str, max_age| kv::Config { bucket: name.into(), max_age, ..keep(copies) };
    let lease = Duration::from_millis(settings.lane_lease_ms);
    for config in [
        aged(CLUSTER, Duration::ZERO),
        aged(LEASES, lease),
        aged(MEMBERS, lease),
        aged(BEATS, BEAT_AGE),
        aged(CAPABILITIES, Duration::ZERO),
        aged(RUNS, Duration::ZERO),
        aged(LIMITS, Duration::ZERO),
    ] {
        bucket(context, config).await?;
    }
    make_stream(context, store_config(BLOBS, copies, false)).await?;
    make_stream(context, store_config(ARCHIVE, copies, true)).await?;
    if let Err(error) = store.create(READY, "".into()).await
        && error.kind() != kv::CreateErrorKind::AlreadyExists
    {
        return Err(fault("the cluster's settings", &error));
    }
    if settings.unmarked_orders_through.is_some() {
        fix_settings(context).await?;
    }
    Ok(settings)
}

/// Fixes what the cluster's settings say by now: the server takes nothing in the place of a key any more. Else an answer
/// that somebody has it send there (see [`crate::access`]) would be the settings of whoever reads them next, and what
/// they said before would be lost.
pub(crate) async fn fix_settings(context: &jetstream::Context) -> Result<(), Fault> {
    let fault = |error: &(dyn std::error::Error + 'static)| fault("the cluster's settings", error);
    let stream = context.get_stream(bucket_stream(CLUSTER)).await.map_err(|error| fault(&error))?;
    let found = &stream.cached_info().config;
    if !found.discard_new_per_subject {
        let fixed = stream::Config { discard_new_per_subject: true, ..found.clone() };
        context.update_stream(fixed).await.map_err(|error| fault(&error))?;
    }
    Ok(())
}

/// The settings of the cluster that is there.
///
/// # Errors
/// The server has no JetStream or does not answer, there is no cluster, or it is of another version.
pub async fn find(context: &jetstream::Context, url: &str) -> Result<ClusterSettings, Fault> {
    check_jetstream(context, url).await?;
    let none = || Fault::NoCluster { url: url.into() };
    let store = context.get_key_value(CLUSTER).await.map_err(|error| match code(&error) {
        Some(ErrorCode::STREAM_NOT_FOUND) => none(),
        Some(_) | None => fault("the cluster's settings", &error),
    })?;
    let ready = store.get(READY).await.map_err(|error| fault("the cluster's settings", &error))?;
    if ready.is_none() {
        return Err(none());
    }
    let settings = read_settings(&store).await?;
    Wanted::default().check(&settings)?;
    Ok(settings)
}

/// A bucket that is there.
pub(crate) async fn open_bucket(context: &jetstream::Context, name: &str) -> Result<kv::Store, Fault> {
    context.get_key_value(name).await.map_err(|error| fault(&format!("bucket {name}"), &error))
}

/// Makes sure that there is a place for orders and, in it, the queues of these capabilities. For supervisors: whoever
/// could make a queue could make one of another's orders.
///
/// # Errors
/// The server does not answer, or what is there differs.
pub async fn ensure_queues(
    context: &jetstream::Context,
    settings: &ClusterSettings,
    capabilities: impl IntoIterator<Item = &Capability>,
) -> Result<(), Fault> {
    make_stream(context, work_config(settings.replicas.into())).await?;
    for capability in capabilities {
        ensure_queue(context, settings, capability).await?;
    }
    Ok(())
}

/// Makes sure that a capability has its queue.
///
/// # Errors
/// The server does not answer, or a consumer of that name differs.
pub async fn ensure_queue(
    context: &jetstream::Context,
    settings: &ClusterSettings,
    capability: &Capability,
) -> Result<consumer::Consumer<pull::Config>, Fault> {
    let config = pull::Config {
        durable_name: Some(capability.to_string()),
        filter_subject: subject::orders_for(capability),
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
        .map_err(|error| fault(&format!("the queue of {capability}"), &error))
}

/// Whether a capability has its queue yet.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn has_queue(context: &jetstream::Context, capability: &Capability) -> Result<bool, Fault> {
    let what = format!("the queue of {capability}");
    // Servers of a cluster take an empty object for no payload, and `null` for one.
    let question = format!("CONSUMER.INFO.{WORK}.{capability}");
    let answer: Response<consumer::Info> =
        context.request(question, &serde_json::json!({})).await.map_err(|error| fault(&what, &error))?;
    match answer {
        Response::Ok(_) => Ok(true),
        Response::Err { error } => match error.error_code() {
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND => Ok(false),
            _ => Err(from_code(&what, &error)),
        },
    }
}

pub(crate) async fn check_jetstream(context: &jetstream::Context, url: &str) -> Result<(), Fault> {
    context.query_account().await.map(|_| ()).map_err(|error| match error.kind() {
        // Servers that have yet to choose who leads them.
        jetstream::context::AccountErrorKind::JetStream(why)
            if why.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE =>
        {
            Fault::unavailable("asking for JetStream", error)
        }
        jetstream::context::AccountErrorKind::JetStreamUnavailable
        | jetstream::context::AccountErrorKind::JetStream(_) => Fault::Unsuitable {
            url: url.into(),
            why: "has no JetStream for this account; start it with -js, or enable jetstream in its \
                  configuration"
                .into(),
        },
        jetstream::context::AccountErrorKind::TimedOut | jetstream::context::AccountErrorKind::Other => {
            Fault::unavailable("asking for JetStream", error)
        }
    })
}

async fn settle(store: &kv::Store, wanted: &Wanted) -> Result<ClusterSettings, Fault> {
    let mine = serde_json::to_vec(&wanted.settings()).expect("settings have a form in JSON");
    // Whoever creates the key first fixes the settings; everybody else reads them.
    if let Err(error) = store.create(SETTINGS, mine.into()).await
        && error.kind() != kv::CreateErrorKind::AlreadyExists
    {
        return Err(fault("the cluster's settings", &error));
    }
    read_settings(store).await
}

async fn read_settings(store: &kv::Store) -> Result<ClusterSettings, Fault> {
    let found = store.get(SETTINGS).await.map_err(|error| fault("the cluster's settings", &error))?;
    let bytes = found.ok_or_else(|| Fault::unavailable("the cluster's settings", "they are not there"))?;
    settings_from(&bytes)
}

pub(crate) fn settings_from(bytes: &[u8]) -> Result<ClusterSettings, Fault> {
    serde_json::from_slice(bytes).map_err(|error| Fault::Differs {
        what: "the layout".into(),
        found: format!("settings that can't be read ({error})"),
        wanted: LAYOUT.to_string(),
        hint: "use a new cluster".into(),
    })
}

/// What all buckets have in common.
pub(crate) fn keep(replicas: usize) -> kv::Config {
    kv::Config { history: 1, num_replicas: replicas, storage: StorageType::File, ..Default::default() }
}

/// The stream of a bucket. One message can't take the place of all (a rollup): who may write one key may not take the
/// others away.
fn bucket_config(config: kv::Config) -> stream::Config {
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

/// An object store.
fn store_config(name: &str, replicas: usize, allow_rollup: bool) -> stream::Config {
    stream::Config {
        name: object_stream(name),
        subjects: vec![format!("$O.{name}.C.>"), format!("$O.{name}.M.>")],
        storage: StorageType::File,
        num_replicas: replicas,
        discard: DiscardPolicy::New,
        allow_direct: true,
        allow_rollup,
        ..Default::default()
    }
}

fn lane_config(lane: Lane, replicas: usize) -> stream::Config {
    stream::Config {
        name: lane_stream(lane),
        subjects: vec![subject::lane(lane)],
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

fn work_config(replicas: usize) -> stream::Config {
    stream::Config {
        name: WORK.into(),
        subjects: vec![subject::ALL_ORDERS.into()],
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

/// Every version of every file is kept, and the last of each path is found by its subject.
fn files_config(replicas: usize) -> stream::Config {
    stream::Config {
        name: FILES.into(),
        subjects: vec![subject::ALL_FILES.into()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: replicas,
        compression: Some(Compression::None),
        allow_direct: true,
        max_consumers: 1_000,
        ..Default::default()
    }
}

/// Creates a stream, or checks that the one there is as it should be. An older program made streams in which one message
/// could take the place of all: that ends.
async fn make_stream(context: &jetstream::Context, wanted: stream::Config) -> Result<(), Fault> {
    let name = wanted.name.clone();
    let stream = context
        .get_or_create_stream(wanted.clone())
        .await
        .map_err(|error| fault(&format!("stream {name}"), &error))?;
    let found = &stream.cached_info().config;
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
    let has_rollup_too_much = found.allow_rollup && !wanted.allow_rollup;
    let without_rollup = stream::Config { allow_rollup: false, ..found.clone() };
    let (found, wanted) = (show(found), show(&wanted));
    if found == wanted && has_rollup_too_much {
        let updated = context.update_stream(without_rollup).await;
        return updated.map(|_| ()).map_err(|error| fault(&format!("stream {name}"), &error));
    }
    if found == wanted {
        return Ok(());
    }
    let hint = "use another cluster or account, or remove that stream if nothing needs it".into();
    Err(Fault::Differs { what: format!("stream {name}"), found, wanted, hint })
}

/// Makes sure that there is a bucket.
pub(crate) async fn bucket(context: &jetstream::Context, config: kv::Config) -> Result<kv::Store, Fault> {
    let name = config.bucket.clone();
    make_stream(context, bucket_config(config)).await?;
    open_bucket(context, &name).await
}

/// A fault from an error of the client library.
pub(crate) fn fault(what: &str, error: &(dyn std::error::Error + 'static)) -> Fault {
    match server_error(error) {
        Some(error) => from_code(what, &error),
        None => Fault::unavailable(what, error),
    }
}

/// The server's own code for an error, if it is one of the server's.
pub(crate) fn code(error: &(dyn std::error::Error + 'static)) -> Option<ErrorCode> {
    server_error(error).map(|error| error.error_code())
}

fn server_error(error: &(dyn std::error::Error + 'static)) -> Option<jetstream::Error> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref().cloned().or_else(|| in_kind(error)))
}

/// Where a stream is looked up, the client library keeps the server's error in the kind of its own.
fn in_kind(error: &(dyn std::error::Error + 'static)) -> Option<jetstream::Error> {
    match error.downcast_ref::<jetstream::context::GetStreamError>()?.kind() {
        jetstream::context::GetStreamErrorKind::JetStream(error) => Some(error),
        jetstream::context::GetStreamErrorKind::EmptyName
        | jetstream::context::GetStreamErrorKind::Request
        | jetstream::context::GetStreamErrorKind::InvalidStreamName => None,
    }
}

fn from_code(what: &str, error: &jetstream::Error) -> Fault {
    match error.error_code() {
        ErrorCode::STREAM_NAME_EXIST | ErrorCode::CONSUMER_ALREADY_EXISTS => Fault::Differs {
            what: what.into(),
            found: "another configuration".into(),
            wanted: "the one of this version".into(),
            hint: "use another cluster or account, or remove it if nothing needs it".into(),
        },
        ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::STREAM_STORE_FAILED => Fault::Full { why: error.to_string() },
        _ => Fault::unavailable(what, error),
    }
}
