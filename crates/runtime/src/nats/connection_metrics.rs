//! Metrics of the connection to the server.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ops::metrics::names::{NATS_CONNECTED, NATS_RECONNECTS, NATS_REFUSED};
use crate::ops::metrics::{Counter, Gauge};

/// The metrics of one connection, for as long as it lives.
pub(crate) struct ConnectionMetrics {
    is_connected: Gauge,
    reconnects: Counter,
    denials: Counter,
    was_connected: AtomicBool,
}

impl ConnectionMetrics {
    pub fn new() -> Self {
        Self {
            is_connected: NATS_CONNECTED.with_labels(&[]),
            reconnects: NATS_RECONNECTS.with_labels(&[]),
            denials: NATS_REFUSED.with_labels(&[]),
            was_connected: AtomicBool::new(false),
        }
    }

    /// Records that the connection was established, for the first time or again.
    pub fn record_connected(&self) {
        self.is_connected.set(1.0);
        if self.was_connected.swap(true, Ordering::Relaxed) {
            self.reconnects.increment();
        }
    }

    /// Records that the connection was lost or closed.
    pub fn record_disconnected(&self) {
        self.is_connected.set(0.0);
    }

    /// Records that the server denied a permission.
    pub fn count_denial(&self) {
        self.denials.increment();
    }
}
