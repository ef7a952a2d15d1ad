//! The HTTP server of a process: `/livez`, `/readyz` and `/metrics`. It also polls the NATS server, for the check
//! `log`. Requests change nothing, and no request waits for the cluster.
//!
//! A listener that bounds the number and the lifetime of connections, so that idle or slow clients can't use up the file
//! descriptors, which the connections to NATS need too. A new connection replaces the oldest one, so that such clients
//! can't keep probes out either.
//!
//! # Invariants
//!
//! - I94: The health and metrics server has at most 64 connections, each for at most 10 s.
//!   (`crates/runtime/src/ops/health/serve.rs::idle_and_half_sent_connections_end_and_others_are_served`)

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tracing::{debug, info, warn};

use super::{Health, HealthCheckResult, LastEventTime};
use crate::Fault;
use crate::nats::bus::Bus;
use crate::ops::metrics;
use crate::ops::metrics::names::{BUILD_INFO, ProcessKind};

/// The interval of requests to the NATS server.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum age of the last response of the NATS server.
const MAX_RESPONSE_AGE: Duration = Duration::from_secs(10);

/// The HTTP server can't start.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot serve health and metrics at {address}: {why}; set another address with --http or MILLRACE_HTTP"
)]
pub struct ListenError {
    pub address: SocketAddr,
    /// The error of the operating system.
    pub why: std::io::Error,
}

/// The HTTP server of a process, which stops when this is dropped.
pub struct HttpServer {
    health: Health,
    is_served: bool,
    last_response: Arc<LastEventTime>,
    tasks: Vec<AbortHandle>,
}

impl HttpServer {
    /// Starts the HTTP server at an address; without an address nothing is served.
    pub async fn start(
        address: Option<SocketAddr>,
        process: ProcessKind,
        health: Health,
    ) -> Result<Self, ListenError> {
        let last_response = Arc::new(LastEventTime::default());
        let mut server = Self { health: health.clone(), is_served: false, last_response, tasks: Vec::new() };
        let Some(address) = address else { return Ok(server) };
        let last_response = server.last_response.clone();
        health.add_readiness_check("log", move || check_response_age(last_response.age()));
        if matches!(process, ProcessKind::Worker | ProcessKind::Critic) {
            // The host replaces it when it starts, which is after the first answer of the log.
            health.add_readiness_check("capabilities", || Err("not started yet".into()));
        }
        let failed = |why| ListenError { address, why };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        info!(%address, "serving health and metrics");
        let router = build_health_router(process, health);
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(LimitedListener::new(listener), router).await {
                warn!(%error, "the health and metrics server failed; probes of this process will fail");
            }
        });
        server.is_served = true;
        server.tasks.push(serving.abort_handle());
        Ok(server)
    }

    /// Returns the health of the process.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Waits until the process has joined its cluster, and polls the NATS server from then on. `None` if the process is
    /// stopped before.
    pub async fn join_cluster_and_poll_server(
        &mut self,
        joining: impl Future<Output = Result<Bus, Fault>>,
    ) -> Result<Option<Bus>, Fault> {
        let Some(result) = self.health.run_until_stopping(joining).await else { return Ok(None) };
        let bus = result?;
        if let Some(poller) = self.server_poller() {
            let polling = tokio::spawn(poller.poll(bus.clone(), |_| ()));
            self.tasks.push(polling.abort_handle());
        }
        Ok(Some(bus))
    }
}

impl HttpServer {
    /// Returns the poller of NATS servers, for a process with several connections; `None` if no page is served.
    pub fn server_poller(&self) -> Option<ServerPoller> {
        self.is_served.then(|| ServerPoller(self.last_response.clone()))
    }
}

/// Polls NATS servers for the check `log`: it passes while one of them responds.
#[derive(Clone)]
pub struct ServerPoller(Arc<LastEventTime>);

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl ServerPoller {
    /// Sends the server a request that every role may send, again and again. It records each response, and reports to
    /// `on_round` whether there was one.
    pub async fn poll(self, bus: Bus, mut on_round: impl FnMut(bool)) {
        let mut rounds = tokio::time::interval(POLL_INTERVAL);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            match bus.request_context().query_account().await {
                Ok(_) => {
                    self.0.set_now();
                    on_round(true);
                }
                Err(error) => {
                    debug!(%error, "no response from the NATS server");
                    on_round(false);
                }
            }
        }
    }
}

fn check_response_age(age: Option<Duration>) -> Result<(), String> {
    match age {
        None => Err("not joined yet".into()),
        Some(age) if age > MAX_RESPONSE_AGE => Err(format!("no response for {} s", age.as_secs())),
        Some(_) => Ok(()),
    }
}

#[derive(Clone)]
struct HealthRouterState {
    process: ProcessKind,
    health: Health,
    /// Keeps the gauge as long as the server runs.
    _build: metrics::Gauge,
}

fn build_health_router(process: ProcessKind, health: Health) -> Router {
    let build = BUILD_INFO.with_labels(&[env!("CARGO_PKG_VERSION"), &process.to_string()]);
    build.set(1.0);
    Router::new()
        .route("/livez", get(serve_liveness))
        .route("/readyz", get(serve_readiness))
        .route("/metrics", get(serve_metrics))
        .fallback(serve_not_found)
        .with_state(HealthRouterState { process, health, _build: build })
}

async fn serve_liveness(State(state): State<HealthRouterState>) -> Response {
    render_check_results("livez", &[state.health.check_liveness()])
}

async fn serve_readiness(State(state): State<HealthRouterState>) -> Response {
    render_check_results("readyz", &state.health.check_readiness())
}

async fn serve_metrics(State(state): State<HealthRouterState>) -> Response {
    // Running the checks updates their gauges.
    drop(state.health.check_readiness());
    ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], metrics::render_metrics(state.process)).into_response()
}

async fn serve_not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found; available: /livez, /readyz, /metrics\n").into_response()
}

/// Formats the results of checks like Kubernetes does.
fn render_check_results(name: &str, results: &[HealthCheckResult]) -> Response {
    let is_ok = results.iter().all(|one| one.outcome.is_ok());
    let line = |one: &HealthCheckResult| match &one.outcome {
        Ok(()) => format!("[+]{} ok\n", one.name),
        Err(missing) => format!("[-]{} {missing}\n", one.name),
    };
    let mut text: String = results.iter().map(line).collect();
    text += &format!("{name} check {}\n", if is_ok { "passed" } else { "failed" });
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text).into_response()
}

/// The maximum number of open connections.
const MAX_CONNECTIONS: usize = 64;
/// The lifetime of a connection. Requests take milliseconds; a client that keeps connections open connects again.
const MAX_LIFETIME: Duration = Duration::from_secs(10);

/// Keeps at most [`MAX_CONNECTIONS`] connections, the newest ones, each for at most [`MAX_LIFETIME`].
pub(super) struct LimitedListener {
    listener: TcpListener,
    /// The open connections, oldest first. A connection ends when its sender is dropped.
    open: VecDeque<oneshot::Sender<()>>,
}

impl LimitedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, open: VecDeque::new() }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.open.retain(|connection| !connection.is_closed());
        while self.open.len() >= MAX_CONNECTIONS {
            self.open.pop_front();
        }
        let (connection, replaced) = oneshot::channel();
        self.open.push_back(connection);
        let lifetime = Box::pin(tokio::time::sleep(MAX_LIFETIME));
        (LimitedStream { stream, lifetime, replaced }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection, which fails with [`io::ErrorKind::TimedOut`] at the end of its lifetime or when newer ones replace it.
pub(super) struct LimitedStream {
    stream: TcpStream,
    lifetime: Pin<Box<Sleep>>,
    /// Ready when the connection is replaced.
    replaced: oneshot::Receiver<()>,
}

impl LimitedStream {
    fn check_lifetime(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_over = self.lifetime.as_mut().poll(context).is_ready()
            || Pin::new(&mut self.replaced).poll(context).is_ready();
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_lifetime(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_lifetime(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn log_check_fails_when_the_last_response_is_too_old() {
        assert!(check_response_age(None).is_err());
        assert!(check_response_age(Some(MAX_RESPONSE_AGE)).is_ok());
        assert_eq!(check_response_age(Some(Duration::from_secs(12))), Err("no response for 12 s".to_owned()));
    }

    #[tokio::test]
    async fn idle_and_half_sent_connections_end_and_others_are_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "served"));
        let serving = tokio::spawn(async move {
            axum::serve(LimitedListener::new(listener), router).await.unwrap();
        });

        let mut idle = Vec::new();
        for number in 0..2 * MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nX-Half").await.unwrap();
            }
            idle.push(stream);
        }
        // All places are taken, and twice over: a new connection takes the place of the oldest one.
        let mut honest = TcpStream::connect(address).await.unwrap();
        honest.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        let reading = honest.read_to_string(&mut response);
        tokio::time::timeout(Duration::from_secs(120), reading).await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("served"), "{response}");
        for mut stream in idle {
            let mut rest = Vec::new();
            let reading = stream.read_to_end(&mut rest);
            drop(tokio::time::timeout(Duration::from_secs(120), reading).await.expect("the connection ends"));
        }
        serving.abort();
    }
}
