//! The connection to the server, as far as it is counted.

use std::sync::atomic::{AtomicBool, Ordering};

use super::names::{NATS_CONNECTED, NATS_RECONNECTS, NATS_REFUSED};
use super::{Level, Tally};

/// What is counted of one connection, for as long as it lives.
pub(crate) struct Link {
    connected: Level,
    reconnects: Tally,
    refused: Tally,
    was_there: AtomicBool,
}

impl Link {
    pub fn new() -> Self {
        Self {
            connected: NATS_CONNECTED.level(&[]),
            reconnects: NATS_RECONNECTS.tally(&[]),
            refused: NATS_REFUSED.tally(&[]),
            was_there: AtomicBool::new(false),
        }
    }

    /// It was made, the first time or again.
    pub fn made(&self) {
        self.connected.set(1.0);
        if self.was_there.swap(true, Ordering::Relaxed) {
            self.reconnects.one();
        }
    }

    /// It was lost, or closed.
    pub fn lost(&self) {
        self.connected.set(0.0);
    }

    /// The server did not permit something.
    pub fn refused(&self) {
        self.refused.one();
    }
}
