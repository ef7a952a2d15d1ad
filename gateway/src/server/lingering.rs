//! A connection that is closed so that its last answer arrives.
//!
//! A request may be refused before all of it has arrived: its body is too large, its token is wrong, its path unknown. If the server
//! closed the socket then, the operating system would answer what still arrives with a reset, and the client could lose the answer. So
//! the end of the answers is sent first, and what arrives after it is read and dropped until the client closes its side too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The longest time in which a client may send the rest of a request.
const LINGER_TIME: Duration = Duration::from_secs(30);
/// The longest time without a byte of it.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// The number of bytes that are dropped at a time.
const CHUNK: usize = 64 * 1024;

/// A connection.
pub struct LingeringStream<S> {
    stream: S,
    /// Closes it at once when the process stops.
    shutdown: CancellationToken,
    /// Set when the end of the answers was sent.
    rest: Option<Rest>,
}

/// The time that is left for the rest of a request.
struct Rest {
    end: Pin<Box<Sleep>>,
    idle: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    chunk: Box<[u8]>,
}

impl Rest {
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.end.as_mut().poll(context).is_ready()
            || self.idle.as_mut().poll(context).is_ready()
            || self.stopped.as_mut().poll(context).is_ready()
    }
}

impl<S> LingeringStream<S> {
    /// Wraps a connection.
    pub fn new(stream: S, shutdown: CancellationToken) -> Self {
        Self { stream, shutdown, rest: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, shutdown, rest } = &mut *self;
        if rest.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
        }
        let rest = rest.get_or_insert_with(|| Rest {
            end: Box::pin(sleep(LINGER_TIME)),
            idle: Box::pin(sleep(IDLE_TIME)),
            stopped: Box::pin(shutdown.clone().cancelled_owned()),
            chunk: vec![0; CHUNK].into(),
        });
        while !rest.is_over(context) {
            let mut buffer = ReadBuf::new(&mut rest.chunk);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    rest.idle.as_mut().reset(Instant::now() + IDLE_TIME);
                }
                // The client has closed its side.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
