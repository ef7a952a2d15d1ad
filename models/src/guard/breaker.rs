//! The circuit breaker of a model: after many failures in a row, or when the provider asks for a pause, the model is not
//! asked for a while; then one request tries whether it answers again. It owns this state for all of a process.
//!
//! ```text
//! closed ──failures in a row, or a pause that is asked for──▶ open ──its time is over──▶ probed by one request
//!    ▲                                                         ▲  ───failed: twice as long──────┘ │
//!    └─────────────────────────────answered───────────────────────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::backoff::asked_for;
use super::seconds;
use crate::model::ModelError;

/// How many requests in a row must fail: two callers that have given up.
const FAILURES: u32 = 10;
/// How long the model is left alone at first.
const PAUSE: Duration = Duration::from_secs(15);
/// The longest that it is left alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The breakers of a process, by the full names of the models.
#[derive(Debug, Default)]
pub struct Breakers(Mutex<HashMap<String, Arc<Breaker>>>);

impl Breakers {
    /// The breaker of a model.
    #[must_use]
    pub fn of(&self, model: &str) -> Arc<Breaker> {
        let mut breakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        breakers.entry(model.to_owned()).or_default().clone()
    }
}

/// The breaker of one model.
#[derive(Debug, Default)]
pub struct Breaker {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Failures in a row.
    failures: u32,
    /// Why it opened, for a person.
    why: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Closed,
    Open {
        until: Instant,
        pause: Duration,
    },
    Probed {
        pause: Duration,
    },
}

/// Whether a request may be made.
#[derive(Debug)]
pub enum Admission {
    /// It may.
    Go(Pass),
    /// Not before then.
    Open {
        /// When.
        until: Instant,
        /// Why.
        why: String,
    },
    /// Another request tries just now; [`Breaker::changed`] tells when it is over.
    Probed {
        /// Why it has to be tried.
        why: String,
    },
}

/// The leave to make one request; its outcome goes back through it. Dropped without one, it leaves no trace.
#[derive(Debug)]
pub struct Pass {
    breaker: Arc<Breaker>,
    probe: bool,
}

impl Breaker {
    /// Whether a request may be made.
    #[must_use]
    pub fn admit(breaker: &Arc<Self>, now: Instant) -> Admission {
        let mut state = breaker.state();
        let go = |probe| Admission::Go(Pass { breaker: breaker.clone(), probe });
        match state.phase {
            Phase::Closed => go(false),
            Phase::Open { until, .. } if now < until => Admission::Open { until, why: state.why.clone() },
            Phase::Open { pause, .. } => {
                state.phase = Phase::Probed { pause };
                go(true)
            }
            Phase::Probed { .. } => Admission::Probed { why: state.why.clone() },
        }
    }

    /// Is done when a request that tried the model is over.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, phase: Phase) {
        self.state().phase = phase;
        self.changed.notify_waiters();
    }
}

impl Pass {
    /// The model answered, whatever it said.
    pub fn answered(mut self) {
        let mut state = self.breaker.state();
        state.failures = 0;
        // Whoever asked before the pause began knows nothing of it.
        let closes = std::mem::take(&mut self.probe);
        drop(state);
        if closes {
            self.breaker.settle(Phase::Closed);
        }
    }

    /// The model failed in a way that may pass.
    pub fn failed(mut self, error: &ModelError) {
        let now = Instant::now();
        let probe = std::mem::take(&mut self.probe);
        let mut state = self.breaker.state();
        state.failures = state.failures.saturating_add(1);
        let asked = asked_for(error).map(|asked| asked.min(LONGEST_PAUSE));
        let pause = match (state.phase, asked) {
            (_, Some(asked)) => Some(asked),
            (Phase::Probed { pause }, None) if probe => Some((pause * 2).min(LONGEST_PAUSE)),
            (Phase::Closed, None) if state.failures >= FAILURES => Some(PAUSE),
            (Phase::Closed | Phase::Open { .. } | Phase::Probed { .. }, None) => None,
        };
        let Some(pause) = pause else {
            return;
        };
        let until = match state.phase {
            Phase::Open { until, .. } => until.max(now + pause),
            Phase::Closed | Phase::Probed { .. } => now + pause,
        };
        state.why = match asked {
            Some(asked) => format!("its provider asked for {} of rest ({error})", seconds(asked)),
            None => format!("{} requests in a row failed, the last with: {error}", state.failures),
        };
        drop(state);
        // A pause that was asked for says nothing of how bad things are: the next one begins from the usual length.
        self.breaker.settle(Phase::Open { until, pause: if asked.is_some() { PAUSE } else { pause } });
    }
}

impl Drop for Pass {
    /// A request that was given up leaves the trial to the next.
    fn drop(&mut self) {
        if self.probe {
            self.breaker.settle(Phase::Open { until: Instant::now(), pause: PAUSE });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overloaded() -> ModelError {
        ModelError::Overloaded { message: "busy".into() }
    }

    fn limited(after: u64) -> ModelError {
        ModelError::RateLimited { retry_after: Some(Duration::from_secs(after)), message: "slow".into() }
    }

    fn go(breaker: &Arc<Breaker>) -> Pass {
        let admission = Breaker::admit(breaker, Instant::now());
        let Admission::Go(pass) = admission else { panic!("{admission:?}") };
        pass
    }

    fn open_for(breaker: &Arc<Breaker>) -> (u64, String) {
        let admission = Breaker::admit(breaker, Instant::now());
        let Admission::Open { until, why } = admission else { panic!("{admission:?}") };
        ((until - Instant::now()).as_secs(), why)
    }

    async fn pass_time(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_one_request_tries_again() {
        let breaker = Arc::default();
        for _ in 0..FAILURES - 1 {
            go(&breaker).failed(&overloaded());
        }
        go(&breaker).answered();
        for _ in 0..FAILURES {
            go(&breaker).failed(&overloaded());
        }
        let (seconds, why) = open_for(&breaker);
        assert_eq!(seconds, 15);
        assert!(why.contains("10 requests in a row failed") && why.contains("busy"), "{why}");
        pass_time(15).await;
        let probe = go(&breaker);
        assert!(matches!(Breaker::admit(&breaker, Instant::now()), Admission::Probed { .. }));
        probe.failed(&overloaded());
        assert_eq!(open_for(&breaker).0, 30);
        pass_time(30).await;
        go(&breaker).answered();
        let (_first, _second) = (go(&breaker), go(&breaker));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_is_asked_for_begins_at_once_and_ends_in_time() {
        let breaker = Arc::default();
        let early = go(&breaker);
        go(&breaker).failed(&limited(42));
        assert_eq!(open_for(&breaker).0, 42);
        early.answered();
        assert_eq!(open_for(&breaker).0, 42, "an answer from before changes nothing");
        pass_time(42).await;
        go(&breaker).failed(&limited(10_000));
        assert_eq!(open_for(&breaker).0, 300, "no longer than the longest");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_is_given_up_is_left_to_the_next() {
        let breaker = Arc::default();
        go(&breaker).failed(&limited(1));
        pass_time(1).await;
        let changed = breaker.changed();
        drop(go(&breaker));
        changed.await;
        go(&breaker).answered();
        go(&breaker).answered();
    }

    #[tokio::test(start_paused = true)]
    async fn models_have_breakers_of_their_own() {
        let breakers = Breakers::default();
        go(&breakers.of("a:b")).failed(&limited(9));
        assert_eq!(open_for(&breakers.of("a:b")).0, 9);
        go(&breakers.of("a:c")).answered();
    }
}
