//! A listener that bounds the number and the lifetime of connections, so that idle or slow clients can't use up the file
//! descriptors, which the connections to NATS need too. A new connection replaces the oldest one, so that such clients
//! can't keep probes out either.
//!
//! # Invariants
//!
//! - I94: The health and metrics server has at most 64 connections, each for at most 10 s.
//!   (`crates/runtime/src/ops/health/limited_listener.rs::idle_and_half_sent_connections_end_and_others_are_served`)

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Sleep;

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
