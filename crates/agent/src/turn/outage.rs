//! The wait for a model's provider that does not answer: since when, how often it was tried, and how long it may last. No
//! I/O; the driver sleeps and reports.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millrace_models::resilience::outage_delay;
use millrace_protocol::provider::ProviderWait;
use tokio::time::Instant;

use crate::model::ModelError;

/// How long an attempt waits beyond its deadline while a circuit breaker lets it send no request: as long as a breaker pauses.
const PAUSE_GRACE: Duration = Duration::from_secs(300);

/// An outage of the provider, as one attempt sees it.
#[derive(Debug)]
pub(super) struct Outage {
    since: Timestamp,
    tries: u32,
    /// When the attempt gives up.
    deadline: Instant,
}

/// The next step of an attempt that waits.
#[derive(Debug)]
pub(super) enum OutageStep {
    /// Wait, and try again then.
    TryAt(Instant, ProviderWait),
    /// Give up: it has lasted too long, or the provider requested a longer wait than is left.
    GiveUp(ProviderWait),
}

impl Outage {
    /// Begins an outage.
    pub fn begin(timeout: Duration) -> Self {
        Self { since: Timestamp::now(), tries: 0, deadline: deadline_after(timeout) }
    }

    /// Continues the wait that the attempt has reported before, maybe on another machine.
    pub fn resume(wait: &ProviderWait, timeout: Duration) -> Self {
        let waited = Timestamp::now().duration_since(wait.since).max(SignedDuration::ZERO).unsigned_abs();
        let deadline = deadline_after(timeout.saturating_sub(waited));
        Self { since: wait.since, tries: wait.tries, deadline }
    }

    /// Counts a failure and returns what to do next. The last try is at the deadline.
    pub fn record_failure(&mut self, model: &str, error: &ModelError) -> OutageStep {
        self.tries = self.tries.saturating_add(1);
        let now = Instant::now();
        let left = self.deadline.saturating_duration_since(now);
        let delay = outage_delay(self.tries, error);
        let (is_over, delay) = if matches!(error, ModelError::Paused { .. }) {
            // No request was sent: whether the provider is still away is not known.
            (now >= self.deadline + PAUSE_GRACE, delay)
        } else if left.is_zero() || error.retry_after().is_some_and(|after| after > left) {
            (true, delay)
        } else {
            (false, delay.min(left))
        };
        let next_try =
            SignedDuration::try_from(delay).ok().and_then(|delay| Timestamp::now().checked_add(delay).ok());
        let wait = ProviderWait {
            model: model.to_owned(),
            since: self.since,
            next_try: next_try.unwrap_or(Timestamp::MAX),
            tries: self.tries,
            error: error.to_string(),
        };
        if is_over { OutageStep::GiveUp(wait) } else { OutageStep::TryAt(Instant::now() + delay, wait) }
    }
}

/// Far in the future if the timeout is longer than a clock can tell.
fn deadline_after(timeout: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(365 * 86_400);
    Instant::now() + timeout.min(LONG)
}
