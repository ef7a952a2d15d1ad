//! One connection to a cluster. [`Bus::connect`] reaches the server and checks it; [`crate::topology::ensure`] makes
//! sure that the cluster is there.

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{ConnectError, ConnectErrorKind, Event, ServerError};
use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::wire::{Garbage, Message, open, open_body, stored};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::Fault;
use crate::blobs::Blobs;
use crate::connection::{Connection, without_passwords};
use crate::fault::{lag, pause};
use crate::handshake;
use crate::marks::Marks;
use crate::metrics::Link;
use crate::record::Record;
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
    loop {
        match dial(connection, name, refusals).await {
            Err(fault @ Fault::Unavailable { .. }) => patience.wait(fault).await?,
            dialled => return dialled,
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
