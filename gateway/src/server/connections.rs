//! The connections of the server: how many an address has, so that one address can't take all of them, and how they end.
//!
//! A request may be refused before all of it has arrived: its body is too large, its token is wrong, its path unknown. If the server
//! closed the socket then, the operating system would answer what still arrives with a reset, and the client could lose the answer. So
//! the end of the answers is sent first, and what arrives after it is read and dropped until the client closes its side too.
//!
//! # Invariants
//!
//! - I243: An address has no more connections than allowed, and those that end make room.
//!   (`tests/tests/gateway_identity.rs::connections_beyond_the_limit_of_an_address_are_closed`)

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The open connections from each address.
#[derive(Clone)]
pub struct AddressSlots {
    limit: Option<NonZeroU32>,
    open: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// A connection from an address; it ends when it is dropped.
pub struct AddressSlot {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

impl AddressSlots {
    /// Creates one with a maximum number of connections from an address. This machine has no limit.
    pub fn new(limit: Option<NonZeroU32>) -> Self {
        Self { limit, open: Arc::default() }
    }

    /// Counts a connection. `None` if the address has too many.
    pub fn take(&self, address: IpAddr) -> Option<AddressSlot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if self.limit.is_some_and(|limit| !address.is_loopback() && *count >= limit.get()) {
            return None;
        }
        *count += 1;
        Some(AddressSlot { address, open: self.open.clone() })
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_make_room() {
        let slots = AddressSlots::new(NonZeroU32::new(2));
        let address = "10.0.0.1".parse().unwrap();
        let (first, _second) = (slots.take(address).unwrap(), slots.take(address).unwrap());
        assert!(slots.take(address).is_none());
        assert!(slots.take("10.0.0.2".parse().unwrap()).is_some());
        drop(first);
        assert!(slots.take(address).is_some());
        let local: Vec<_> = (0..9).map(|_| slots.take("127.0.0.1".parse().unwrap())).collect();
        assert!(local.iter().all(Option::is_some));
    }
}
