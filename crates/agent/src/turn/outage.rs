//! Waiting for a model: keepalives while a request is pending, which note whether the model is writing or the request has to wait;
//! and the wait for a provider that does not answer: since when, how often it was tried, and how long it may last. No I/O; the loop
//! sleeps and reports.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millrace_models::model::ProviderDeadline;
use millrace_models::resilience::outage_delay;
use millrace_protocol::wait::ProviderWait;
use tokio::time::Instant;

use crate::model::{Delta, DeltaListener, ModelError};

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
    /// Begins an outage at the first failure of the request, which may be before its last one.
    pub fn begin(provider_deadline: &ProviderDeadline) -> Self {
        let deadline = provider_deadline.start(Instant::now());
        let since = Timestamp::now().checked_sub(
            SignedDuration::try_from(provider_deadline.elapsed(Instant::now())).unwrap_or_default(),
        );
        Self { since: since.unwrap_or(Timestamp::MIN), tries: 0, deadline }
    }

    /// Continues the wait that the attempt has reported before, maybe on another machine.
    pub fn resume(wait: &ProviderWait, provider_deadline: &ProviderDeadline) -> Self {
        let waited = Timestamp::now().duration_since(wait.since).max(SignedDuration::ZERO).unsigned_abs();
        let deadline = provider_deadline.start_after(waited, Instant::now());
        Self { since: wait.since, tries: wait.tries, deadline }
    }

    /// Counts a failure and returns what to do next. The last try is at the deadline.
    pub fn record_failure(&mut self, model: &str, error: &ModelError) -> OutageStep {
        self.tries = self.tries.saturating_add(1);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let delay = outage_delay(self.tries, error);
        // A circuit breaker's pause may be longer than what is left: the last try is sent in spite of it.
        let is_asked_to_wait_longer = !matches!(error, ModelError::Paused { .. })
            && error.retry_after().is_some_and(|after| after > left);
        let is_over = left.is_zero() || is_asked_to_wait_longer;
        // After the end only the provider's request tells when another try may help.
        let delay = if is_over { error.retry_after().unwrap_or(Duration::ZERO) } else { delay.min(left) };
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

/// Forwards the deltas of a reply and remembers the latest activity.
pub(super) struct KeepaliveListener<'a> {
    watch: &'a dyn DeltaListener,
    latest: Mutex<ModelActivity>,
    deadline: &'a ProviderDeadline,
}

enum ModelActivity {
    /// The provider has the request, and there was no activity since the last keepalive.
    Idle,
    /// The model is writing.
    Writing,
    /// The request is waiting, with the reason.
    Waiting(String),
}

impl<'a> KeepaliveListener<'a> {
    pub fn new(watch: &'a dyn DeltaListener, deadline: &'a ProviderDeadline) -> Self {
        Self { watch, latest: Mutex::new(ModelActivity::Idle), deadline }
    }

    /// Returns a line about the activity since the last call; `None` if there was none.
    pub fn take_status(&self) -> Option<String> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            ModelActivity::Idle => None,
            ModelActivity::Writing => {
                *latest = ModelActivity::Idle;
                Some("the model is writing".into())
            }
            ModelActivity::Waiting(why) => Some(format!("waiting for the model: {why}")),
        }
    }
}

impl DeltaListener for KeepaliveListener<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) | Delta::Hidden | Delta::Restart => {
                ModelActivity::Writing
            }
            Delta::Waiting(why) => ModelActivity::Waiting(why.to_owned()),
            Delta::Sending | Delta::Sent(_) => ModelActivity::Idle,
        };
        self.watch.on_delta(delta);
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        Some(self.deadline)
    }
}
