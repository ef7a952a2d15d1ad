//! The circuit breaker of a model. It opens after many consecutive failures or when the provider requests a pause; then
//! no requests are sent for a while, until one probe request tests if the model works again. All requests of a process to
//! the same model share its breaker.
//!
//! ```text
//! closed ──consecutive failures, or a requested pause──▶ open ──pause over──▶ half-open: one probe request
//!    ▲                                                    ▲ ──probe failed: pause doubles──┘ │
//!    └────────────────────────────────probe succeeded─────────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::model::{ModelError, format_seconds};

/// Consecutive failures that open the breaker: as many as two callers need to give up.
const FAILURE_THRESHOLD: u32 = 10;
const INITIAL_PAUSE: Duration = Duration::from_secs(15);
/// The longest pause, so that requests are sent again within two minutes of the end of an outage.
const MAX_PAUSE: Duration = Duration::from_secs(120);
/// The longest pause at the request of a provider: a later request may find that it answers again.
pub(super) const MAX_REQUESTED_PAUSE: Duration = Duration::from_secs(300);

/// The circuit breakers of a process, by the models' full names.
#[derive(Debug, Default)]
pub struct CircuitBreakers(Mutex<HashMap<String, Arc<CircuitBreaker>>>);

impl CircuitBreakers {
    pub fn breaker_for_model(&self, model: &str) -> Arc<CircuitBreaker> {
        let mut breakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        breakers.entry(model.to_owned()).or_default().clone()
    }
}

#[derive(Debug, Default)]
pub struct CircuitBreaker {
    state: Mutex<BreakerState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct BreakerState {
    phase: BreakerPhase,
    failures: u32,
    /// The reason for opening it, for error messages.
    reason: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum BreakerPhase {
    #[default]
    Closed,
    Open {
        until: Instant,
        pause: Duration,
    },
    HalfOpen {
        pause: Duration,
    },
}

#[derive(Debug)]
pub enum Admission {
    Allowed(RequestPermit),
    Open {
        until: Instant,
        reason: String,
    },
    /// A probe request is in flight; [`CircuitBreaker::wait_for_change`] completes when it has ended.
    HalfOpen {
        reason: String,
    },
}

/// Permission to send one request, to be used for reporting the outcome. Dropped without a report, it changes nothing.
#[derive(Debug)]
pub struct RequestPermit {
    breaker: Arc<CircuitBreaker>,
    is_probe: bool,
}

impl CircuitBreaker {
    pub fn admit_request(breaker: &Arc<Self>, now: Instant) -> Admission {
        let mut state = breaker.lock_state();
        let allowed = |is_probe| Admission::Allowed(RequestPermit { breaker: breaker.clone(), is_probe });
        match state.phase {
            BreakerPhase::Closed => allowed(false),
            BreakerPhase::Open { until, .. } if now < until => {
                Admission::Open { until, reason: state.reason.clone() }
            }
            BreakerPhase::Open { pause, .. } => {
                state.phase = BreakerPhase::HalfOpen { pause };
                allowed(true)
            }
            BreakerPhase::HalfOpen { .. } => Admission::HalfOpen { reason: state.reason.clone() },
        }
    }

    /// Completes when the probe request in flight has ended.
    pub fn wait_for_change(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub fn end_pause(&self, now: Instant) {
        let mut state = self.lock_state();
        if let BreakerPhase::Open { until, .. } = &mut state.phase {
            *until = (*until).min(now);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_probe_with_phase(&self, phase: BreakerPhase) {
        self.lock_state().phase = phase;
        self.changed.notify_waiters();
    }
}

impl RequestPermit {
    /// Reports that the model answered, even if it rejected the request.
    pub fn record_success(mut self) {
        let mut state = self.breaker.lock_state();
        state.failures = 0;
        // A request that was sent before the pause began does not end the pause.
        drop(state);
        if std::mem::take(&mut self.is_probe) {
            self.breaker.end_probe_with_phase(BreakerPhase::Closed);
        }
    }

    pub fn record_failure(mut self, error: &ModelError) {
        let now = Instant::now();
        let is_probe = std::mem::take(&mut self.is_probe);
        let mut state = self.breaker.lock_state();
        state.failures = state.failures.saturating_add(1);
        let requested = error.retry_after().map(|requested| requested.min(MAX_REQUESTED_PAUSE));
        let pause = match (state.phase, requested) {
            (_, Some(requested)) => Some(requested),
            (BreakerPhase::HalfOpen { pause }, None) if is_probe => Some((pause * 2).min(MAX_PAUSE)),
            (BreakerPhase::Closed, None) if state.failures >= FAILURE_THRESHOLD => Some(INITIAL_PAUSE),
            (BreakerPhase::Closed | BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. }, None) => None,
        };
        let Some(pause) = pause else {
            return;
        };
        let until = match state.phase {
            BreakerPhase::Open { until, .. } => until.max(now + pause),
            BreakerPhase::Closed | BreakerPhase::HalfOpen { .. } => now + pause,
        };
        state.reason = match requested {
            Some(requested) => {
                format!("its provider requested a pause of {} ({error})", format_seconds(requested))
            }
            None => format!("{} consecutive requests failed, the last with: {error}", state.failures),
        };
        drop(state);
        // A requested pause is no sign of failure: the next pause starts at its usual length.
        self.breaker.end_probe_with_phase(BreakerPhase::Open {
            until,
            pause: if requested.is_some() { INITIAL_PAUSE } else { pause },
        });
    }
}

impl Drop for RequestPermit {
    /// If the probe request was cancelled, lets the next request be the probe.
    fn drop(&mut self) {
        if self.is_probe {
            self.breaker
                .end_probe_with_phase(BreakerPhase::Open { until: Instant::now(), pause: INITIAL_PAUSE });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overloaded_error() -> ModelError {
        ModelError::Overloaded { retry_after: None, message: "busy".into() }
    }

    fn rate_limited_error(after: u64) -> ModelError {
        ModelError::RateLimited { retry_after: Some(Duration::from_secs(after)), message: "slow".into() }
    }

    fn admit_or_panic(breaker: &Arc<CircuitBreaker>) -> RequestPermit {
        let admission = CircuitBreaker::admit_request(breaker, Instant::now());
        let Admission::Allowed(pass) = admission else { panic!("{admission:?}") };
        pass
    }

    fn remaining_open_time(breaker: &Arc<CircuitBreaker>) -> (u64, String) {
        let admission = CircuitBreaker::admit_request(breaker, Instant::now());
        let Admission::Open { until, reason } = admission else { panic!("{admission:?}") };
        ((until - Instant::now()).as_secs(), reason)
    }

    async fn advance_time(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_consecutive_failures_and_sends_one_probe() {
        let breaker = Arc::default();
        for _ in 0..FAILURE_THRESHOLD - 1 {
            admit_or_panic(&breaker).record_failure(&overloaded_error());
        }
        admit_or_panic(&breaker).record_success();
        for _ in 0..FAILURE_THRESHOLD {
            admit_or_panic(&breaker).record_failure(&overloaded_error());
        }
        let (seconds, reason) = remaining_open_time(&breaker);
        assert_eq!(seconds, 15);
        assert!(reason.contains("10 consecutive requests failed") && reason.contains("busy"), "{reason}");
        advance_time(15).await;
        let probe = admit_or_panic(&breaker);
        assert!(matches!(
            CircuitBreaker::admit_request(&breaker, Instant::now()),
            Admission::HalfOpen { .. }
        ));
        probe.record_failure(&overloaded_error());
        assert_eq!(remaining_open_time(&breaker).0, 30);
        advance_time(30).await;
        admit_or_panic(&breaker).record_success();
        let (_first, _second) = (admit_or_panic(&breaker), admit_or_panic(&breaker));
    }

    #[tokio::test(start_paused = true)]
    async fn a_requested_pause_begins_at_once_and_is_capped() {
        let breaker = Arc::default();
        let early = admit_or_panic(&breaker);
        admit_or_panic(&breaker).record_failure(&rate_limited_error(42));
        assert_eq!(remaining_open_time(&breaker).0, 42);
        early.record_success();
        assert_eq!(remaining_open_time(&breaker).0, 42, "an answer to an earlier request changes nothing");
        advance_time(42).await;
        admit_or_panic(&breaker).record_failure(&rate_limited_error(10_000));
        assert_eq!(remaining_open_time(&breaker).0, 300, "capped at the maximum");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_probe_passes_to_the_next_request() {
        let breaker = Arc::default();
        admit_or_panic(&breaker).record_failure(&rate_limited_error(1));
        advance_time(1).await;
        let changed = breaker.wait_for_change();
        drop(admit_or_panic(&breaker));
        changed.await;
        admit_or_panic(&breaker).record_success();
        admit_or_panic(&breaker).record_success();
    }

    #[tokio::test(start_paused = true)]
    async fn each_model_has_its_own_breaker() {
        let breakers = CircuitBreakers::default();
        admit_or_panic(&breakers.breaker_for_model("a:b")).record_failure(&rate_limited_error(9));
        assert_eq!(remaining_open_time(&breakers.breaker_for_model("a:b")).0, 9);
        admit_or_panic(&breakers.breaker_for_model("a:c")).record_success();
    }
}
