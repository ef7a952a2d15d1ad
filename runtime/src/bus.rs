//! One connection to a cluster. [`Bus::connect`] reaches the server and checks it; [`crate::topology::ensure`] makes
//! sure that the cluster is there.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerError};
use bytes::Bytes;
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::wire::{
    ENCODING_HEADER, ENCODING_JSON, Encoding, Garbage, Message, open, open_body, stored,
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::Fault;
use crate::blobs::Blobs;
use crate::fault::{lag, pause};
use crate::handshake;
use crate::marks::Marks;
use crate::metrics::Link;
use crate::topology::{self, Wanted};

/// How long an acknowledgement of an append is waited for before the log is asked what became of it.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a server that can't be reached is waited for when a supervisor starts: where all of a cluster is started at
/// once, servers come after whoever needs them.
const STARTING: Duration = Duration::from_secs(10);
/// How long servers that give no answer are asked again when a supervisor starts: those of a cluster that was just
/// started choose their leaders first, and not every one knows at once of what was just made.
const SETTLING: Duration = Duration::from_secs(30);
/// How long it is at the most between two of these questions: whoever starts a cluster waits for them.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How long it is waited before anything is said of that.
const QUIET: Duration = Duration::from_secs(1);
/// How often it is asked whether the server is there. Two questions may stand open, so that one whose machine was cut
/// off counts as lost in 6 to 8 s, as soon as the others have chosen new leaders.
const PING: Duration = Duration::from_secs(2);
/// How long a process that ends waits until what it said has left it.
const FLUSH: Duration = Duration::from_secs(2);
/// How many appends may wait for their acknowledgements at once.
const MAX_IN_FLIGHT: usize = 20_000;

/// Where a cluster is and who asks.
#[derive(Clone)]
pub struct Connection {
    /// One or more server URLs, separated by commas.
    pub url: String,
    /// How this process identifies itself.
    pub credentials: Credentials,
    /// How the connection is encrypted.
    pub tls: Tls,
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
    /// By an nkey whose seed stands in a file.
    NkeyFile(PathBuf),
    /// By an nkey of this seed.
    Nkey(SecretString),
}

/// The files that encrypt a connection, in PEM. With none of them a connection is encrypted where the server or a
/// `tls://` address asks for it, and the server's certificate must be signed by an authority that the machine trusts.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// The authorities that sign the server's certificate; with them a connection is never made in the clear.
    pub authorities: Option<PathBuf>,
    /// The certificate and the key by which this process shows who it is, for servers that want one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for Connection {
    /// Shows where, never who.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &without_passwords(&self.url)).finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection in the clear to a server that asks nobody who they are.
    #[must_use]
    pub fn open(url: impl Into<String>) -> Self {
        Self { url: url.into(), credentials: Credentials::None, tls: Tls::default() }
    }

    /// A connection to `url` with what the environment names:
    ///
    /// | variable | what it holds |
    /// |---|---|
    /// | `MILLRACE_NATS_CREDS` | a credentials file (JWT and nkey) |
    /// | `MILLRACE_NATS_NKEY` | a file with the seed of an nkey |
    /// | `MILLRACE_NATS_NKEY_SEED` | the seed of an nkey |
    /// | `MILLRACE_NATS_USER`, `MILLRACE_NATS_PASSWORD` | a user and its password |
    /// | `MILLRACE_NATS_CA` | a file with the authorities that sign the server's certificate |
    /// | `MILLRACE_NATS_CERT`, `MILLRACE_NATS_KEY` | files with a certificate and its key, for mutual TLS |
    ///
    /// The first of the credentials that is set counts. Files are read when the connection is made.
    #[must_use]
    pub fn with_environment(url: impl Into<String>) -> Self {
        let var = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let credentials = if let Some(file) = var("MILLRACE_NATS_CREDS") {
            Credentials::File(file.into())
        } else if let Some(file) = var("MILLRACE_NATS_NKEY") {
            Credentials::NkeyFile(file.into())
        } else if let Some(seed) = var("MILLRACE_NATS_NKEY_SEED") {
            Credentials::Nkey(seed.into())
        } else if let Some(user) = var("MILLRACE_NATS_USER") {
            Credentials::Password { user, password: var("MILLRACE_NATS_PASSWORD").unwrap_or_default() }
        } else {
            Credentials::None
        };
        let path = |name| var(name).map(PathBuf::from);
        let tls = Tls {
            authorities: path("MILLRACE_NATS_CA"),
            identity: path("MILLRACE_NATS_CERT").zip(path("MILLRACE_NATS_KEY")),
        };
        Self { url: url.into(), credentials, tls }
    }

    /// The servers of the URL.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.url.split(',').map(|url| url.trim().to_owned()).collect()
    }

    /// What the client library needs to know to connect so.
    ///
    /// # Errors
    /// A file can't be read, or holds no credentials.
    pub async fn options(&self) -> Result<ConnectOptions, Fault> {
        let mut options = ConnectOptions::new();
        if let Some(file) = &self.tls.authorities {
            self.read(file, "the authorities of").await?;
            options = options.add_root_certificates(file.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.tls.identity {
            self.read(certificate, "the certificate").await?;
            self.read(key, "the key of the certificate").await?;
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        match &self.credentials {
            Credentials::None => Ok(options),
            Credentials::Password { user, password } => {
                Ok(options.user_and_password(user.clone(), password.clone()))
            }
            Credentials::File(file) => {
                let text = self.read(file, "the credentials file").await?;
                let inbox = inbox_of(seed_in(&text).unwrap_or_default());
                let inbox = inbox.map_err(|why| self.useless(file, "the credentials file", &why))?;
                let options = options
                    .credentials(&text)
                    .map_err(|error| self.useless(file, "the credentials file", &error))?;
                Ok(options.custom_inbox_prefix(inbox))
            }
            Credentials::NkeyFile(file) => {
                let text = self.read(file, "the seed").await?;
                let seed = seed_in(&text).unwrap_or(text.trim());
                let inbox = inbox_of(seed).map_err(|why| self.useless(file, "the seed", &why))?;
                Ok(options.nkey(seed.to_owned()).custom_inbox_prefix(inbox))
            }
            Credentials::Nkey(seed) => {
                let seed = seed.expose_secret().trim();
                let inbox = inbox_of(seed).map_err(|why| Fault::Unsuitable {
                    url: without_passwords(&self.url),
                    why: format!("needs a seed, and MILLRACE_NATS_NKEY_SEED holds none: {why}"),
                })?;
                Ok(options.nkey(seed.to_owned()).custom_inbox_prefix(inbox))
            }
        }
    }

    async fn read(&self, file: &Path, what: &str) -> Result<String, Fault> {
        tokio::fs::read_to_string(file).await.map_err(|error| self.useless(file, what, &error))
    }

    fn useless(&self, file: &Path, what: &str, why: &dyn std::fmt::Display) -> Fault {
        let url = without_passwords(&self.url);
        Fault::Unsuitable { url, why: format!("needs {what} {}, which can't be used: {why}", file.display()) }
    }
}

/// The seed of a user in a file of credentials or of a seed alone.
fn seed_in(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| line.starts_with("SU"))
}

/// Where a process with this seed gets its answers: see [`crate::access::inbox`].
fn inbox_of(seed: &str) -> Result<String, String> {
    let pair = nkeys::KeyPair::from_seed(seed).map_err(|error| error.to_string())?;
    Ok(crate::access::inbox(&pair.public_key()))
}

/// A connection to a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    client: async_nats::Client,
    publish: jetstream::Context,
    control: jetstream::Context,
    settings: ClusterSettings,
    marks: Marks,
    blobs: Blobs,
    /// The queues that this process has made.
    queues: Mutex<BTreeSet<Capability>>,
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
            let refusals = Refusals::default();
            let client = reach(connection, name, &refusals, Patience::new(STARTING)).await?;
            let control = context(&client, Duration::from_secs(5));
            let (mut patience, url) = (Patience::new(SETTLING), without_passwords(&connection.url));
            let connected = async {
                loop {
                    match Box::pin(topology::ensure(&control, &url, wanted)).await {
                        Ok(settings) => return Self::on(client.clone(), control.clone(), settings).await,
                        Err(fault @ Fault::Unavailable { .. }) => patience.wait(fault).await?,
                        Err(fault) => return Err(fault),
                    }
                }
            };
            refusals.or(connection, connected).await
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
            let refusals = Refusals::default();
            let client = reach(connection, name, &refusals, Patience::new(patience)).await?;
            let control = context(&client, Duration::from_secs(5));
            let mut patience = Patience::new(patience);
            let joined = async {
                loop {
                    match topology::find(&control, &without_passwords(&connection.url)).await {
                        Ok(settings) => return Self::on(client.clone(), control.clone(), settings).await,
                        Err(fault @ (Fault::NoCluster { .. } | Fault::Unavailable { .. })) => {
                            patience.wait(fault).await?;
                        }
                        Err(fault) => return Err(fault),
                    }
                }
            };
            refusals.or(connection, joined).await
        }
        .boxed()
    }

    /// What is there of a cluster on an open connection, whether it is complete or not.
    pub(crate) async fn on(
        client: async_nats::Client,
        control: jetstream::Context,
        settings: ClusterSettings,
    ) -> Result<Self, Fault> {
        let blobs = Blobs::of(&control, lag(settings.replicas));
        let publish = context(&client, ACK_TIMEOUT);
        let (marks, queues) = (Marks::of(&settings), Mutex::default());
        Ok(Self(Arc::new(Inner { client, publish, control, settings, marks, blobs, queues })))
    }

    /// The NATS client.
    #[must_use]
    pub fn client(&self) -> &async_nats::Client {
        &self.0.client
    }

    /// Which orders need no mark.
    pub(crate) fn marks(&self) -> &Marks {
        &self.0.marks
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

    /// The queues that this process has made.
    pub(crate) fn queues(&self) -> MutexGuard<'_, BTreeSet<Capability>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
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
        if record.is_stray {
            let why = "nobody wrote it there: it has no Millrace-Id, or is an answer of the server".into();
            return Err(garbage(Garbage::Unreadable { what: "the message".into(), why }));
        }
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

    /// Waits until everything that was published has left this process, but not for a server that is away.
    pub async fn flush(&self) {
        match tokio::time::timeout(FLUSH, self.0.client.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "could not flush the connection"),
            Err(_) => warn!("could not flush the connection in time"),
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
    /// In a log or a queue: whether nobody wrote it there (see [`is_stray`]).
    pub is_stray: bool,
}

/// The header with the id of an append, by which its writer recognises it. No message of a log or a queue is without
/// it, or without the id of the client library by which repeated ones are told.
pub const ID_HEADER: &str = "Millrace-Id";
/// The header by which the server says which stream a message that it hands out is from.
pub(crate) const ORIGIN_HEADER: &str = "Nats-Stream";

/// Whether nobody wrote a message with these headers where it stands. Who may ask the server for a message can have the
/// answer sent to any subject, also to those that it may not write to, and there it is kept like any other message. Such
/// an answer comes with the words of the server, or with no headers at all. `told` is how often the server has said
/// where the message is from when it handed it to us: once where it was asked for the message itself.
#[must_use]
pub fn is_stray(headers: Option<&async_nats::HeaderMap>, told: usize) -> bool {
    let Some(headers) = headers else { return true };
    let has_id =
        headers.get(ID_HEADER).is_some() || headers.get(async_nats::header::NATS_MESSAGE_ID).is_some();
    !has_id || headers.get_all(ORIGIN_HEADER).count() > told
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

/// How much longer what may pass is waited for.
struct Patience {
    since: tokio::time::Instant,
    patience: Duration,
    tries: u32,
    is_told: bool,
}

impl Patience {
    fn new(patience: Duration) -> Self {
        Self { since: tokio::time::Instant::now(), patience, tries: 0, is_told: false }
    }

    /// Waits a little, or gives the fault back where the time is over. Says once that this takes longer.
    async fn wait(&mut self, fault: Fault) -> Result<(), Fault> {
        let waited = self.since.elapsed();
        if waited >= self.patience {
            return Err(fault);
        }
        if waited >= QUIET && !self.is_told {
            self.is_told = true;
            info!(%fault, patience = ?self.patience, "the cluster is not there yet; asking again");
        }
        self.tries += 1;
        tokio::time::sleep(pause(self.tries).min(LONGEST_WAIT)).await;
        Ok(())
    }
}

fn context(client: &async_nats::Client, timeout: Duration) -> jetstream::Context {
    ContextBuilder::new()
        .timeout(timeout)
        .ack_timeout(ACK_TIMEOUT)
        .max_ack_inflight(MAX_IN_FLIGHT)
        .build(client.clone())
}

/// Connects to an account that may have no cluster, and does something there; ends at once where the server refuses it.
pub(crate) async fn alone<T, E: From<Fault>>(
    connection: &Connection,
    name: &str,
    work: impl AsyncFnOnce(async_nats::Client, jetstream::Context) -> Result<T, E>,
) -> Result<T, E> {
    let refusals = Refusals::default();
    let client = dial(connection, name, &refusals).await?;
    let control = context(&client, Duration::from_secs(30));
    refusals.or(connection, work(client, control)).await
}

/// Connects, as soon as the server is there.
async fn reach(
    connection: &Connection,
    name: &str,
    refusals: &Refusals,
    mut patience: Patience,
) -> Result<async_nats::Client, Fault> {
    let mut is_told = false;
    loop {
        let fault = match dial(connection, name, refusals).await {
            Err(fault @ Fault::Unavailable { .. }) => fault,
            dialled => return dialled,
        };
        let why = fault.to_string();
        patience.wait(fault).await?;
        if !std::mem::replace(&mut is_told, true) {
            warn!(why, "the NATS server can't be reached yet; trying again for a while");
        }
    }
}

async fn dial(connection: &Connection, name: &str, refusals: &Refusals) -> Result<async_nats::Client, Fault> {
    let (told, link) = (refusals.clone(), Link::new());
    let options = connection
        .options()
        .await?
        .name(name)
        .connection_timeout(Duration::from_secs(5))
        .ping_interval(PING)
        .client_capacity(16_384)
        .subscription_capacity(65_536)
        .reconnect_delay_callback(|attempt| {
            Duration::from_millis(50 << attempt.min(5)).min(Duration::from_secs(1))
        })
        .event_callback(move |event| {
            count(&event, &link);
            report(&event, &told);
            std::future::ready(())
        });
    let servers = connection.servers();
    let client = options.connect(servers).await.map_err(|error| fault(connection, error))?;
    check_version(&client, &without_passwords(&connection.url))?;
    Ok(client)
}

fn fault(connection: &Connection, error: ConnectError) -> Fault {
    if let Some(why) = handshake::why_not(&error) {
        return Fault::Unsuitable { url: without_passwords(&connection.url), why };
    }
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            Fault::Unauthorized { url: without_passwords(&connection.url) }
        }
        ConnectErrorKind::Tls => Fault::Unsuitable {
            url: without_passwords(&connection.url),
            why: format!(
                "and this process can't agree on TLS ({error}); MILLRACE_NATS_CA names the authorities that sign its \
             certificate, MILLRACE_NATS_CERT and MILLRACE_NATS_KEY what it may ask for"
            ),
        },
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => {
            Fault::unavailable(format!("connecting to {}", without_passwords(&connection.url)), error)
        }
    }
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

/// What the server refused to this process, as it comes: the library says nothing of it to whoever waits for an answer.
#[derive(Clone, Default)]
struct Refusals(Arc<(Mutex<Option<String>>, Notify)>);

impl Refusals {
    fn tell(&self, what: String) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
        self.0.1.notify_one();
    }

    /// Does something that needs the server's answers, and ends at once where the server refuses to give them.
    async fn or<T, E: From<Fault>>(
        &self,
        connection: &Connection,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            done = work => done,
            () = self.0.1.notified() => {
                let what = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
                Err(Fault::Forbidden { url: without_passwords(&connection.url), what }.into())
            }
        }
    }
}

fn count(event: &Event, link: &Link) {
    match event {
        Event::Connected => link.made(),
        Event::Disconnected | Event::Closed => link.lost(),
        Event::ServerError(ServerError::Other(why)) if is_refusal(why) => link.refused(),
        Event::Draining
        | Event::LameDuckMode
        | Event::SlowConsumer(_)
        | Event::ServerError(_)
        | Event::ClientError(_) => {}
    }
}

fn report(event: &Event, refusals: &Refusals) {
    match event {
        Event::ServerError(ServerError::Other(why)) if is_refusal(why) => {
            warn!(refused = why.trim_matches('\''), "the NATS server does not let this process do that");
            refusals.tell(why.trim_matches('\'').to_owned());
        }
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

fn is_refusal(why: &str) -> bool {
    why.to_ascii_lowercase().contains("permissions violation")
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
