//! The client of one cluster, over which all messages of a process go: a NATS connection, its JetStream contexts, and
//! the settings of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::kv;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::wire::{
    DecodeError, WireMessage, decode_blob_ref_of_body, decode_body, decode_message,
};
use tracing::warn;

use super::connect::{DeniedPermissions, RetryPeriod, connect_with_retries, jetstream_context};
use super::connection::{ConnectionSettings, without_passwords};
use super::record::StreamRecord;
use super::topology::streams::open_bucket;
use super::topology::{self, ClusterOptions};
use crate::Fault;
use crate::fault::max_replica_lag;
use crate::ops::runtime::{LONG_MESSAGE, run_possibly_long};
use crate::store::blobs::BlobStore;

/// The period in which a starting supervisor retries to reach a server: where everything starts at the same time, a
/// server may start after its clients.
const CONNECT_PERIOD: Duration = Duration::from_secs(10);
/// The period in which a starting supervisor retries requests without a response: a NATS cluster that was just started
/// elects its leaders first, and new streams take a moment to be known to every server.
const ENSURE_PERIOD: Duration = Duration::from_secs(30);
/// The timeout of sending the last messages of a stopping process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The client of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Bus(Arc<BusInner>);

struct BusInner {
    client: async_nats::Client,
    control: jetstream::Context,
    settings: ClusterSettings,
    blobs: BlobStore,
    /// The queues that this process has created.
    queues: Mutex<BTreeSet<Capability>>,
    /// The buckets that this process has opened.
    buckets: Mutex<BTreeMap<&'static str, Arc<kv::Store>>>,
    denials: DeniedPermissions,
    /// The address of the server, without passwords.
    url: String,
}

impl Bus {
    /// Connects, checks that the server is new enough and has JetStream, and creates the cluster where it does not
    /// exist. For supervisors, which alone have permission to create streams.
    /// Errors: the server can't be reached, refuses the credentials, has no JetStream or is too old, or the cluster does not
    /// have the requested settings.
    pub fn connect_and_ensure_cluster<'a>(
        connection: &'a ConnectionSettings,
        name: &'a str,
        options: &'a ClusterOptions,
    ) -> BoxFuture<'a, Result<Self, Fault>> {
        async move {
            let denials = DeniedPermissions::default();
            let client =
                connect_with_retries(connection, name, &denials, RetryPeriod::new(CONNECT_PERIOD)).await?;
            let control = jetstream_context(&client, Duration::from_secs(5));
            let (mut period, url) = (RetryPeriod::new(ENSURE_PERIOD), without_passwords(&connection.url));
            let connected = async {
                loop {
                    match Box::pin(topology::ensure_cluster(&control, &url, options)).await {
                        Ok(settings) => {
                            let denials = denials.clone();
                            return Self::new(
                                client.clone(),
                                control.clone(),
                                settings,
                                (denials, url.clone()),
                            );
                        }
                        Err(fault @ Fault::Unavailable { .. }) => period.wait_before_retry(fault).await?,
                        Err(fault) => return Err(fault),
                    }
                }
            };
            denials.fail_on_denial(connection, connected).await
        }
        .boxed()
    }

    /// Connects to an existing cluster, and waits up to `patience` for it to be created. For workers, critics and
    /// clients.
    /// Errors: As for [`Self::connect_and_ensure_cluster`], or there is no cluster.
    pub fn join_existing_cluster<'a>(
        connection: &'a ConnectionSettings,
        name: &'a str,
        patience: Duration,
    ) -> BoxFuture<'a, Result<Self, Fault>> {
        async move {
            let denials = DeniedPermissions::default();
            let client = connect_with_retries(connection, name, &denials, RetryPeriod::new(patience)).await?;
            let control = jetstream_context(&client, Duration::from_secs(5));
            let (mut period, url) = (RetryPeriod::new(patience), without_passwords(&connection.url));
            let joined = async {
                loop {
                    match topology::find_cluster_settings(&control, &url).await {
                        Ok(settings) => {
                            let denials = denials.clone();
                            return Self::new(
                                client.clone(),
                                control.clone(),
                                settings,
                                (denials, url.clone()),
                            );
                        }
                        Err(fault @ (Fault::NoCluster { .. } | Fault::Unavailable { .. })) => {
                            period.wait_before_retry(fault).await?;
                        }
                        Err(fault) => return Err(fault),
                    }
                }
            };
            denials.fail_on_denial(connection, joined).await
        }
        .boxed()
    }

    /// Creates a client over an open connection, whether the cluster is complete or not.
    pub(crate) async fn from_open_connection(
        client: async_nats::Client,
        control: jetstream::Context,
        settings: ClusterSettings,
    ) -> Result<Self, Fault> {
        Self::new(client, control, settings, (DeniedPermissions::default(), String::new()))
    }

    fn new(
        client: async_nats::Client,
        control: jetstream::Context,
        settings: ClusterSettings,
        (denials, url): (DeniedPermissions, String),
    ) -> Result<Self, Fault> {
        let blobs = BlobStore::new(&control, max_replica_lag(settings.replicas));
        let (queues, buckets) = (Mutex::default(), Mutex::default());
        let inner = BusInner { client, control, settings, blobs, queues, buckets, denials, url };
        Ok(Self(Arc::new(inner)))
    }

    /// Publishes something to a subject. Returns at once with [`Fault::Forbidden`] if the server denies that to this identity;
    /// otherwise the publication would only time out.
    pub async fn fail_on_denial<T, E: From<Fault>>(
        &self,
        subject: &str,
        publishing: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            result = publishing => result,
            what = self.0.denials.wait_for_denial_of(subject) => {
                Err(Fault::Forbidden { url: self.0.url.clone(), what }.into())
            }
        }
    }

    pub fn client(&self) -> &async_nats::Client {
        &self.0.client
    }

    /// Returns the id of the connected server; `None` while there is no connection. A restarted server has another id.
    pub fn connected_server(&self) -> Option<String> {
        let is_connected = self.0.client.connection_state() == State::Connected;
        is_connected.then(|| self.0.client.server_info().server_id)
    }

    pub fn settings(&self) -> &ClusterSettings {
        &self.0.settings
    }

    /// Creates the buckets of the cluster that do not exist.
    /// Errors: the server does not respond or has no storage left, or a bucket differs.
    pub async fn ensure_buckets(&self) -> Result<(), Fault> {
        Box::pin(topology::ensure_buckets(&self.0.control, &self.0.settings)).await
    }

    pub fn lane_of_run(&self, run: &millrace_protocol::ids::RunId) -> Lane {
        run.lane(self.0.settings.lanes)
    }

    /// Returns the lane in which the runs of a session are.
    pub fn lane_of_session(&self, session: &millrace_protocol::ids::SessionId) -> Lane {
        session.lane(self.0.settings.lanes)
    }

    /// Returns the store of large values.
    pub fn blobs(&self) -> &BlobStore {
        &self.0.blobs
    }

    /// Returns the queues that this process has created.
    pub(crate) fn lock_created_queues(&self) -> MutexGuard<'_, BTreeSet<Capability>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a bucket. Opening one requests its stream from the server, so that each is opened once.
    /// Fails also if the cluster has no such bucket.
    pub(crate) async fn bucket(&self, name: &'static str) -> Result<Arc<kv::Store>, Fault> {
        let opened = self.lock_buckets().get(name).cloned();
        if let Some(bucket) = opened {
            return Ok(bucket);
        }
        let bucket = Arc::new(Box::pin(open_bucket(&self.0.control, name)).await?);
        Ok(self.lock_buckets().entry(name).or_insert(bucket).clone())
    }

    fn lock_buckets(&self) -> MutexGuard<'_, BTreeMap<&'static str, Arc<kv::Store>>> {
        self.0.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the JetStream context for all requests but publishing; see [`super::publish`].
    pub fn request_context(&self) -> &jetstream::Context {
        &self.0.control
    }

    /// Decodes a message, and reads its body from the blob store if it is stored there.
    /// Errors: the message is forged, is none of this type, or its body can't be read.
    pub async fn decode_record<M: WireMessage>(&self, record: &StreamRecord) -> Result<M, Fault> {
        let invalid = |error| Fault::InvalidMessage {
            subject: record.subject.to_string(),
            sequence: record.sequence,
            error,
        };
        if record.is_forged() {
            let why =
                "it is forged: a redirected server reply (it has no Millrace-Id, or a Nats-Stream header)"
                    .into();
            return Err(invalid(DecodeError::Unreadable { what: "the message".into(), why }));
        }
        match decode_message(&record.payload, record.encoding) {
            Ok(message) => Ok(message),
            Err(DecodeError::Elsewhere) => {
                let stored =
                    decode_blob_ref_of_body::<M>(&record.payload, record.encoding).map_err(invalid)?;
                let place = stored.ok_or(invalid(DecodeError::Empty))?;
                let body = self.0.blobs.get(&place.sha256).await?;
                run_possibly_long(body.len() >= LONG_MESSAGE, || decode_body(&body)).map_err(invalid)
            }
            Err(error) => Err(invalid(error)),
        }
    }

    /// Waits until all published messages are sent, for 2 s at most.
    pub async fn flush_client(&self) {
        match tokio::time::timeout(FLUSH_TIMEOUT, self.0.client.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "flushing the connection failed"),
            Err(_) => warn!("flushing the connection timed out"),
        }
    }
}
