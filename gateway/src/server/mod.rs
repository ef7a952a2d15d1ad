//! The HTTP server: accepts connections within limits, and stops without cutting requests off.
//!
//! # Invariants
//!
//! - I166: Malformed, oversized and slow requests end with a problem or their connection, and never with an error of the gateway.
//!   (`tests/tests/gateway.rs::malformed_oversized_and_slow_requests_are_refused`)

mod connections;
mod headers;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use connections::{AddressSlots, LingeringStream};
use headers::{add_security_headers, refuse_ambiguous_request};

use crate::access::{Authenticator, PeerAddress, check_request, require_caller};
use crate::dashboard;
use crate::openapi::api_router;
use crate::pages;
use crate::problem::{Problem, ProblemKind};
use crate::standards::{A2aServer, McpServer};

/// The maximum number of open connections. Each open event stream holds one, with some 100 kB.
const MAX_CONNECTIONS: usize = 4_096;
/// The time in which a client must send the head of a request, also the first one of a connection.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// The maximum size of the head of a request.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The maximum number of headers of a request.
const MAX_HEADERS: usize = 100;
/// The maximum size of a body, unless its resource allows more.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// The time that open requests have to end when the process stops.
const STOP_TIME: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted, for example because the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn add_checks(router: Router, authenticator: Arc<Authenticator>) -> Router {
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn(check_request))
        .layer(Extension(authenticator))
        .layer(from_fn(refuse_ambiguous_request))
        .layer(map_response(add_security_headers))
}

fn build_router(
    authenticator: Arc<Authenticator>,
    has_dashboard: bool,
    shutdown: CancellationToken,
) -> Router {
    let a2a = A2aServer::new(authenticator.is_encrypted(), authenticator.needs_token());
    let (agent_card, a2a) = a2a.into_routes();
    let mcp = McpServer::for_requests().into_http_service(shutdown);
    let protocols = Router::new().route_service("/mcp", mcp).merge(a2a).layer(from_fn(require_caller));
    let (router, _) = api_router().split_for_parts();
    let pages = match has_dashboard {
        true => dashboard::routes(),
        false => Router::new().route("/", get(pages::redirect_to_docs)),
    };
    let router = router
        .merge(pages)
        .merge(protocols)
        .merge(agent_card)
        .route("/docs", get(pages::serve_page))
        .route("/docs/docs.js", get(pages::serve_script))
        .route("/docs/docs.css", get(pages::serve_style));
    add_checks(router, authenticator)
}

async fn unknown_path(request: Request) -> Response {
    let path = request.uri().path();
    Problem::new(ProblemKind::UnknownPath, format!("there is no {path:?}; /docs lists the resources"))
        .into_response()
}

async fn method_not_allowed(request: Request) -> Response {
    let detail = format!("{} is not possible on {:?}", request.method(), request.uri().path());
    Problem::new(ProblemKind::MethodNotAllowed, detail).into_response()
}

pub struct ServerSettings {
    pub has_dashboard: bool,
    /// The TLS acceptor; `None` without encryption.
    pub tls: Option<TlsAcceptor>,
    /// The maximum number of connections from an address.
    pub max_per_address: Option<NonZeroU32>,
}

/// Serves connections until the token is cancelled, and then lets open requests end.
pub async fn serve(
    listener: TcpListener,
    authenticator: Arc<Authenticator>,
    settings: ServerSettings,
    shutdown: CancellationToken,
) {
    let router = build_router(authenticator, settings.has_dashboard, shutdown.clone());
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let addresses = AddressSlots::new(settings.max_per_address);
    let connections = TaskTracker::new();
    loop {
        // Beyond the limit, connections wait in the queue of the operating system.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Some((stream, address, slot)) = accepted else { continue };
        let Some(address_slot) = addresses.take(address.ip()) else {
            debug!(%address, "closing a connection: the address has too many");
            continue;
        };
        let (router, shutdown, tls) = (router.clone(), shutdown.clone(), settings.tls.clone());
        connections.spawn(async move {
            accept_encryption(stream, address, tls, router, shutdown).await;
            drop((slot, address_slot));
        });
    }
    connections.close();
    if tokio::time::timeout(STOP_TIME, connections.wait()).await.is_err() {
        warn!(open = connections.len(), "closing connections whose requests have not ended");
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, address)) => Some((stream, address, slot)),
        Err(error) => {
            warn!(%error, "accepting a connection failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Serves a connection, after the handshake if it must be encrypted.
async fn accept_encryption(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
    shutdown: CancellationToken,
) {
    // Events are small and must not wait for each other.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%address, %error, "can't switch off the delay of small packets");
    }
    let Some(tls) = tls else { return serve_connection(stream, address, router, shutdown).await };
    match tokio::time::timeout(HEADER_TIME, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, address, router, shutdown).await,
        Ok(Err(error)) => debug!(%address, %error, "TLS handshake failed"),
        Err(_) => debug!(%address, "TLS handshake timed out"),
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    router: Router,
    shutdown: CancellationToken,
) {
    let service = TowerToHyperService::new(router.map_request(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(PeerAddress(address.ip()));
        request
    }));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS);
    let stream = LingeringStream::new(stream, shutdown.clone());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let outcome: Result<(), hyper::Error> = tokio::select! {
        outcome = &mut connection => outcome,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        debug!(%address, %error, "connection failed");
    }
}
