//! Connecting to a NATS server: retries while it is starting, faults that say what to change, and permission errors,
//! which the client library reports as events only.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{ConnectError, ConnectErrorKind, Event, ServerError};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::connection::{ConnectionMetrics, ConnectionSettings, without_passwords};
use super::tls;
use super::tls::export_certificate_expiry;
use crate::Fault;
use crate::fault::backoff;

/// The timeout of an append's acknowledgement, after which the writer reads the log to find out if the message was
/// stored.
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait between two attempts: a user waits for the first cluster to start.
const MAX_BACKOFF: Duration = Duration::from_millis(100);
/// The delay before a log line reports retries.
const LOG_AFTER: Duration = Duration::from_secs(1);
/// The interval of pings. Two may be unanswered, so that a connection to an unreachable machine counts as lost after 6
/// to 8 s, about when the other servers have elected new leaders.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum number of messages that the client library publishes and that wait for their acknowledgements.
const MAX_IN_FLIGHT: usize = 20_000;

/// The period in which an operation is retried.
pub(super) struct RetryPeriod {
    started: tokio::time::Instant,
    limit: Duration,
    tries: u32,
    is_logged: bool,
}

impl RetryPeriod {
    pub(super) fn new(limit: Duration) -> Self {
        Self { started: tokio::time::Instant::now(), limit, tries: 0, is_logged: false }
    }

    /// Waits before the next attempt, or returns the fault of the last one if the period is over.
    pub(super) async fn wait_before_retry(&mut self, fault: Fault) -> Result<(), Fault> {
        let waited = self.started.elapsed();
        if waited >= self.limit {
            return Err(fault);
        }
        if waited >= LOG_AFTER && !self.is_logged {
            self.is_logged = true;
            info!(%fault, retrying_for = ?self.limit, "the cluster is not available yet; retrying");
        }
        self.tries += 1;
        tokio::time::sleep(backoff(self.tries).min(MAX_BACKOFF)).await;
        Ok(())
    }
}

/// Creates a JetStream context whose requests time out after `timeout`.
pub(super) fn jetstream_context(client: &async_nats::Client, timeout: Duration) -> jetstream::Context {
    ContextBuilder::new()
        .timeout(timeout)
        .ack_timeout(ACK_TIMEOUT)
        .max_ack_inflight(MAX_IN_FLIGHT)
        .build(client.clone())
}

/// Connects to an account that may have no cluster, and runs an operation there. Returns at once if the server denies a
/// permission.
pub(crate) async fn with_connection<T, E: From<Fault>>(
    connection: &ConnectionSettings,
    name: &str,
    work: impl AsyncFnOnce(async_nats::Client, jetstream::Context) -> Result<T, E>,
) -> Result<T, E> {
    let denials = DeniedPermissions::default();
    let client = connect_once(connection, name, &denials).await?;
    let control = jetstream_context(&client, Duration::from_secs(30));
    denials.fail_on_denial(connection, work(client, control)).await
}

/// Connects to a server, with retries while it can't be reached.
pub(super) async fn connect_with_retries(
    connection: &ConnectionSettings,
    name: &str,
    denials: &DeniedPermissions,
    mut period: RetryPeriod,
) -> Result<async_nats::Client, Fault> {
    loop {
        match connect_once(connection, name, denials).await {
            Err(fault @ Fault::Unavailable { .. }) => period.wait_before_retry(fault).await?,
            result => return result,
        }
    }
}

async fn connect_once(
    connection: &ConnectionSettings,
    name: &str,
    denials: &DeniedPermissions,
) -> Result<async_nats::Client, Fault> {
    let (denials, metrics) = (denials.clone(), Arc::new(ConnectionMetrics::new()));
    export_certificate_expiry(&connection.tls, &metrics);
    let options = connection
        .build_connect_options()
        .await?
        .name(name)
        .connection_timeout(Duration::from_secs(5))
        .ping_interval(PING_INTERVAL)
        .client_capacity(16_384)
        .subscription_capacity(65_536)
        .reconnect_delay_callback(|attempt| {
            Duration::from_millis(50 << attempt.min(5)).min(Duration::from_secs(1))
        })
        .event_callback(move |event| {
            count_connection_event(&event, &metrics);
            log_connection_event(&event, &denials);
            std::future::ready(())
        });
    let servers = connection.server_urls();
    let client = options.connect(servers).await.map_err(|error| connect_fault(connection, error))?;
    check_server_version(&client, &without_passwords(&connection.url))?;
    Ok(client)
}

/// Converts a connection error to the fault that says what to change.
fn connect_fault(connection: &ConnectionSettings, error: ConnectError) -> Fault {
    let url = without_passwords(&connection.url);
    if let Some(why) = tls::explain_handshake_failure(&error) {
        return Fault::Unsuitable { url, why };
    }
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            Fault::Unauthorized { url }
        }
        ConnectErrorKind::Tls => Fault::Unsuitable {
            url,
            why: format!(
                "and this process can't agree on TLS ({error}); check the certificate authority in MILLRACE_NATS_CA, and \
                 the client certificate in MILLRACE_NATS_CERT and MILLRACE_NATS_KEY"
            ),
        },
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => Fault::unavailable(format!("connecting to {url}"), error),
    }
}

/// The permission errors of a connection. The client library reports them as events, while the request that was denied
/// only times out.
#[derive(Clone, Default)]
pub(super) struct DeniedPermissions(Arc<(Mutex<Option<String>>, Notify)>);

impl DeniedPermissions {
    fn record_denial(&self, what: String) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
        self.0.1.notify_one();
    }

    /// Waits until the server denies something to this subject, and returns its words.
    pub(super) async fn wait_for_denial_of(&self, subject: &str) -> String {
        loop {
            self.0.1.notified().await;
            let what = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
            if what.contains(subject) {
                return what;
            }
        }
    }

    /// Runs an operation that needs responses of the server. Returns at once with [`Fault::Forbidden`] if the server
    /// denies a permission meanwhile.
    pub(super) async fn fail_on_denial<T, E: From<Fault>>(
        &self,
        connection: &ConnectionSettings,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            result = operation => result,
            () = self.0.1.notified() => {
                let what = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
                Err(Fault::Forbidden { url: without_passwords(&connection.url), what }.into())
            }
        }
    }
}

fn count_connection_event(event: &Event, metrics: &ConnectionMetrics) {
    match event {
        Event::Connected => metrics.record_connected(),
        Event::Disconnected | Event::Closed => metrics.record_disconnected(),
        Event::ServerError(ServerError::Other(why)) if is_permission_denial(why) => metrics.count_denial(),
        Event::Draining
        | Event::LameDuckMode
        | Event::SlowConsumer(_)
        | Event::ServerError(_)
        | Event::ClientError(_) => {}
    }
}

fn log_connection_event(event: &Event, denials: &DeniedPermissions) {
    match event {
        Event::ServerError(ServerError::Other(why)) if is_permission_denial(why) => {
            warn!(denied = why.trim_matches('\''), "permission denied by the NATS server");
            denials.record_denial(why.trim_matches('\'').to_owned());
        }
        Event::Connected => debug!("connected to the NATS server"),
        Event::Disconnected => warn!("lost the connection to the NATS server; reconnecting"),
        Event::Closed => debug!("closed the connection to the NATS server"),
        Event::Draining => debug!("draining the connection to the NATS server"),
        Event::LameDuckMode => info!("the NATS server is about to stop"),
        Event::SlowConsumer(subscription) => {
            warn!(subscription, "slow consumer: a subscription lost messages")
        }
        Event::ServerError(error) => warn!(%error, "the NATS server reported an error"),
        Event::ClientError(error) => warn!(%error, "the NATS client reported an error"),
    }
}

fn is_permission_denial(why: &str) -> bool {
    why.to_ascii_lowercase().contains("permissions violation")
}

/// The oldest supported version of the server.
pub const MIN_SERVER: (i64, i64) = (2, 12);

fn check_server_version(client: &async_nats::Client, url: &str) -> Result<(), Fault> {
    if client.is_server_compatible(MIN_SERVER.0, MIN_SERVER.1, 0) {
        return Ok(());
    }
    let version = client.server_info().version;
    let why = format!("has version {version}; {}.{} or newer is required", MIN_SERVER.0, MIN_SERVER.1);
    Err(Fault::Unsuitable { url: url.into(), why })
}
