//! One connection to a cluster. [`Bus::connect`] reaches the server and checks it; [`crate::topology::ensure`] makes
//! sure that the cluster is there.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{ConnectErrorKind, ConnectOptions, Event};
use bytes::Bytes;
use millrace_protocol::ids::Lane;
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::wire::{
    ENCODING_HEADER, ENCODING_JSON, Encoding, Garbage, Message, open, open_body, stored,
};
use tracing::{debug, info, warn};

use crate::Fault;
use crate::blobs::Blobs;
use crate::topology::{self, Wanted};

/// How long an acknowledgement of an append is waited for before the log is asked what became of it.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// How many appends may wait for their acknowledgements at once.
const MAX_IN_FLIGHT: usize = 20_000;

/// Where a cluster is and who asks.
#[derive(Clone)]
pub struct Connection {
    /// One or more server URLs, separated by commas.
    pub url: String,
    /// How this process identifies itself.
    pub credentials: Credentials,
}

/// How a process identifies itself to the NATS server.
#[derive(Clone)]
pub enum Credentials {
    /// Not at all.
    None,
    /// By user and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// By a credentials file (JWT and nkey).
    File(PathBuf),
}

impl std::fmt::Debug for Connection {
    /// Shows where, never who.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &without_passwords(&self.url)).finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection to `url` with the credentials that the environment names: `MILLRACE_NATS_CREDS` (a file), or
    /// `MILLRACE_NATS_USER` and `MILLRACE_NATS_PASSWORD`.
    #[must_use]
    pub fn with_environment(url: impl Into<String>) -> Self {
        let var = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let credentials = match (var("MILLRACE_NATS_CREDS"), var("MILLRACE_NATS_USER")) {
            (Some(file), _) => Credentials::File(file.into()),
            (None, Some(user)) => {
                let password = var("MILLRACE_NATS_PASSWORD").unwrap_or_default();
                Credentials::Password { user, password }
            }
            (None, None) => Credentials::None,
        };
        Self { url: url.into(), credentials }
    }
}

/// A connection to a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    client: async_nats::Client,
    publish: jetstream::Context,
    control: jetstream::Context,
    settings: ClusterSettings,
    blobs: Blobs,
}

impl Bus {
    /// Connects, checks that the server has JetStream and is new enough, and makes sure that the cluster is there
    /// with the settings that `wanted` asks for. For those who own a part of it: supervisors.
    ///
    /// # Errors
    /// The server can't be reached, refuses the credentials, has no JetStream, is too old, or the cluster differs
    /// from what is wanted.
    pub fn connect<'a>(
        connection: &'a Connection,
        name: &'a str,
        wanted: &'a Wanted,
    ) -> BoxFuture<'a, Result<Self, Fault>> {
        async move {
            let client = dial(connection, name).await?;
            let control = context(&client, Duration::from_secs(5));
            let settings = topology::ensure(&control, &without_passwords(&connection.url), wanted).await?;
            Self::on(client, control, settings).await
        }
        .boxed()
    }

    /// Connects to a cluster that is there, or will be within `patience`: for workers, critics and clients.
    ///
    /// # Errors
    /// As for [`Self::connect`], or there is no cluster.
    pub fn join<'a>(
        connection: &'a Connection,
        name: &'a str,
        patience: Duration,
    ) -> BoxFuture<'a, Result<Self, Fault>> {
        async move {
            let client = dial(connection, name).await?;
            let control = context(&client, Duration::from_secs(5));
            let started = tokio::time::Instant::now();
            loop {
                match topology::find(&control, &without_passwords(&connection.url)).await {
                    Ok(settings) => return Self::on(client, control, settings).await,
                    Err(Fault::NoCluster { .. }) if started.elapsed() < patience => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Err(fault) => return Err(fault),
                }
            }
        }
        .boxed()
    }

    async fn on(
        client: async_nats::Client,
        control: jetstream::Context,
        settings: ClusterSettings,
    ) -> Result<Self, Fault> {
        let blobs = Blobs::open(&control).await?;
        let publish = context(&client, ACK_TIMEOUT);
        Ok(Self(Arc::new(Inner { client, publish, control, settings, blobs })))
    }

    /// The NATS client.
    #[must_use]
    pub fn client(&self) -> &async_nats::Client {
        &self.0.client
    }

    /// What is fixed in this cluster.
    #[must_use]
    pub fn settings(&self) -> &ClusterSettings {
        &self.0.settings
    }

    /// The lane of a run.
    #[must_use]
    pub fn lane(&self, run: &millrace_protocol::ids::RunId) -> Lane {
        run.lane(self.0.settings.lanes)
    }

    /// Large values.
    #[must_use]
    pub fn blobs(&self) -> &Blobs {
        &self.0.blobs
    }

    /// For appends: waits two seconds for an acknowledgement.
    pub(crate) fn publisher(&self) -> &jetstream::Context {
        &self.0.publish
    }

    /// For everything else.
    pub(crate) fn control(&self) -> &jetstream::Context {
        &self.0.control
    }

    /// Reads a message of the log, wherever its body is.
    ///
    /// # Errors
    /// It is no such message, or its body can't be had.
    pub async fn open<M: Message>(&self, record: &Record) -> Result<M, Fault> {
        let garbage = |garbage| Fault::Garbage {
            subject: record.subject.to_string(),
            sequence: record.sequence,
            garbage,
        };
        match open(&record.payload, record.encoding) {
            Ok(message) => Ok(message),
            Err(Garbage::Elsewhere) => {
                let stored = stored::<M>(&record.payload, record.encoding).map_err(garbage)?;
                let place = stored.ok_or(garbage(Garbage::Empty))?;
                open_body(&self.0.blobs.get(&place.sha256).await?).map_err(garbage)
            }
            Err(error) => Err(garbage(error)),
        }
    }

    /// Waits until everything that was published has left this process.
    pub async fn flush(&self) {
        if let Err(error) = self.0.client.flush().await {
            warn!(%error, "could not flush the connection");
        }
    }
}

/// A message of the log.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its sequence in the lane.
    pub sequence: u64,
    /// Its subject.
    pub subject: async_nats::Subject,
    /// Its bytes.
    pub payload: Bytes,
    /// How they are encoded.
    pub encoding: Encoding,
    /// When the server stored it.
    pub time: jiff::Timestamp,
    /// In a bucket: whether it says that the key is gone.
    pub is_deletion: bool,
}

/// The encoding that a message's headers name.
#[must_use]
pub fn encoding(headers: Option<&async_nats::HeaderMap>) -> Encoding {
    let json = headers
        .and_then(|headers| headers.get(ENCODING_HEADER))
        .is_some_and(|value| value.as_str() == ENCODING_JSON);
    if json { Encoding::Json } else { Encoding::MessagePack }
}

/// The time that is so many nanoseconds after the beginning of 1970; that beginning if it is out of range.
pub(crate) fn timestamp(nanoseconds: i128) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

fn context(client: &async_nats::Client, timeout: Duration) -> jetstream::Context {
    ContextBuilder::new()
        .timeout(timeout)
        .ack_timeout(ACK_TIMEOUT)
        .max_ack_inflight(MAX_IN_FLIGHT)
        .build(client.clone())
}

async fn dial(connection: &Connection, name: &str) -> Result<async_nats::Client, Fault> {
    let options = ConnectOptions::new()
        .name(name)
        .connection_timeout(Duration::from_secs(5))
        .ping_interval(Duration::from_secs(5))
        .client_capacity(16_384)
        .subscription_capacity(65_536)
        .reconnect_delay_callback(|attempt| {
            Duration::from_millis(50 << attempt.min(5)).min(Duration::from_secs(1))
        })
        .event_callback(|event| async move { report(&event) });
    let options = match &connection.credentials {
        Credentials::None => options,
        Credentials::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
        Credentials::File(file) => {
            options.credentials_file(file).await.map_err(|error| Fault::Unsuitable {
                url: without_passwords(&connection.url),
                why: format!("needs the credentials file {}, which can't be read: {error}", file.display()),
            })?
        }
    };
    let servers: Vec<String> = connection.url.split(',').map(|url| url.trim().to_owned()).collect();
    let client = options.connect(servers).await.map_err(|error| match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            Fault::Unauthorized { url: without_passwords(&connection.url) }
        }
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Tls
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => {
            Fault::unavailable(format!("connecting to {}", without_passwords(&connection.url)), error)
        }
    })?;
    check_version(&client, &without_passwords(&connection.url))?;
    Ok(client)
}

/// The addresses as they may be shown: they may hold a user and a password.
#[must_use]
pub fn without_passwords(urls: &str) -> String {
    let shown = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    };
    urls.split(',').map(|url| shown(url.trim())).collect::<Vec<_>>().join(",")
}

fn report(event: &Event) {
    match event {
        Event::Connected => debug!("connected to the NATS server"),
        Event::Disconnected => warn!("lost the NATS server; reconnecting"),
        Event::Closed => debug!("closed the connection to the NATS server"),
        Event::Draining => debug!("draining the connection to the NATS server"),
        Event::LameDuckMode => info!("the NATS server is about to stop"),
        Event::SlowConsumer(subscription) => warn!(subscription, "a subscription lags and loses messages"),
        Event::ServerError(error) => warn!(%error, "the NATS server reports an error"),
        Event::ClientError(error) => warn!(%error, "the NATS client reports an error"),
    }
}

/// The oldest server that has what is used here.
pub const MIN_SERVER: (i64, i64) = (2, 12);

fn check_version(client: &async_nats::Client, url: &str) -> Result<(), Fault> {
    if client.is_server_compatible(MIN_SERVER.0, MIN_SERVER.1, 0) {
        return Ok(());
    }
    let found = client.server_info().version;
    let why = format!("has version {found}; {}.{} or newer is needed", MIN_SERVER.0, MIN_SERVER.1);
    Err(Fault::Unsuitable { url: url.into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_what_they_hold_besides() {
        for (url, shown) in [
            ("nats://a.example:4222", "nats://a.example:4222"),
            ("nats://user:p@ss@a.example:4222, tls://token@b", "nats://a.example:4222,tls://b"),
            ("user:secret@a.example", "a.example"),
        ] {
            assert_eq!(without_passwords(url), shown);
        }
    }
}
