//! The time until which a caller waits for a provider that is away. It begins with the first failure of a request, and
//! limits what the request waits for: its retries and the pauses of circuit breakers. A call in flight is never cut off.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Longer than any wait, and short enough to be added to a time.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

/// The deadline of one request and its repetitions.
#[derive(Debug)]
pub struct ProviderDeadline {
    timeout: Duration,
    outage: OnceLock<Outage>,
    tries_at_once: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Outage {
    began: Instant,
    deadline: Instant,
}

impl ProviderDeadline {
    /// A deadline that is `timeout` after the first failure.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, outage: OnceLock::new(), tries_at_once: AtomicBool::new(false) }
    }

    /// Lets the first request be sent although the provider asked to wait.
    #[must_use]
    pub fn trying_at_once(self) -> Self {
        Self { tries_at_once: AtomicBool::new(true), ..self }
    }

    /// Returns `true` the first time if the first request is to be sent at once.
    pub(super) fn take_try_at_once(&self) -> bool {
        self.tries_at_once.swap(false, Ordering::Relaxed)
    }

    /// Counts a failure and returns the deadline; only the first one sets it.
    pub fn start(&self, now: Instant) -> Instant {
        self.start_after(Duration::ZERO, now)
    }

    /// Sets the deadline, unless it is set, if the outage has lasted for `waited` already. Returns the deadline.
    pub fn start_after(&self, waited: Duration, now: Instant) -> Instant {
        let left = self.timeout.saturating_sub(waited).min(MAX_TIMEOUT);
        self.outage.get_or_init(|| Outage { began: now, deadline: now + left }).deadline
    }

    /// Returns the time since the deadline was set; zero before.
    #[must_use]
    pub fn elapsed(&self, now: Instant) -> Duration {
        self.outage.get().map_or(Duration::ZERO, |outage| now.saturating_duration_since(outage.began))
    }

    /// `true` if the deadline has passed.
    #[must_use]
    pub fn has_passed(&self, now: Instant) -> bool {
        self.outage.get().is_some_and(|outage| now >= outage.deadline)
    }
}
