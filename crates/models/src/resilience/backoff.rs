//! The retry policy: how often to retry a request, and how long to wait before each retry. Pure, except for the random part.

use std::time::Duration;

use crate::model::ModelError;

/// The first delay of an attempt that waits for its provider: the quick retries before it took a few seconds.
const FIRST_OUTAGE_DELAY: Duration = Duration::from_secs(2);
/// The longest of these delays. 1,000 waiting attempts send 15 requests a second, and work continues within two minutes of
/// the end of an outage.
const MAX_OUTAGE_DELAY: Duration = Duration::from_secs(120);

/// The number of retries of a request, and the delays between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// The delay after the first failure; it doubles with each further failure.
    pub initial_delay: Duration,
    /// The maximum of these delays.
    pub max_delay: Duration,
    /// The longest wait a provider may request; if it requests more, the request is not retried.
    pub max_retry_after: Duration,
    /// The longest wait for the cluster's rate limit.
    pub max_rate_limit_wait: Duration,
    /// `true` to wait while the circuit breaker is open; `false` to fail at once because a fallback is available.
    pub waits_for_breaker: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
            max_retry_after: Duration::from_secs(600),
            max_rate_limit_wait: Duration::from_secs(600),
            waits_for_breaker: true,
        }
    }
}

impl RetryPolicy {
    /// Returns the policy for a model with a fallback: no long waits.
    #[must_use]
    pub fn for_model_with_fallback() -> Self {
        let short = Duration::from_secs(30);
        Self {
            max_retry_after: short,
            max_rate_limit_wait: short,
            waits_for_breaker: false,
            ..Self::default()
        }
    }

    /// Returns the policy for a model whose attempts wait for their provider themselves: a few quick retries, so that the
    /// wait is reported soon.
    #[must_use]
    pub fn before_wait() -> Self {
        Self {
            max_attempts: 3,
            max_rate_limit_wait: Self::default().max_rate_limit_wait,
            ..Self::for_model_with_fallback()
        }
    }

    /// Returns the delay before the next attempt after `attempts` failed ones; `None` if there is no next attempt.
    #[must_use]
    pub fn retry_delay(&self, error: &ModelError, attempts: u32) -> Option<Duration> {
        if !error.is_transient() || attempts >= self.max_attempts {
            return None;
        }
        match error.retry_after() {
            Some(after) if after > self.max_retry_after => None,
            // Never earlier than requested, and not all clients at once.
            Some(after) => Some(after + random_delay_up_to(Duration::from_millis(500).max(after / 10))),
            None => {
                let retry_delay =
                    self.initial_delay.saturating_mul(1 << (attempts - 1).min(20)).min(self.max_delay);
                Some(retry_delay / 2 + random_delay_up_to(retry_delay / 2))
            }
        }
    }
}

/// Returns the delay before the next try of an attempt that waits for its provider, after `tries` requests that failed with
/// all their retries. It is never shorter than the provider requested.
#[must_use]
pub fn outage_delay(tries: u32, error: &ModelError) -> Duration {
    let delay = FIRST_OUTAGE_DELAY.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(MAX_OUTAGE_DELAY);
    let delay = delay / 2 + random_delay_up_to(delay / 2);
    match error.retry_after() {
        Some(after) => delay.max(after + random_delay_up_to(Duration::from_millis(500).max(after / 10))),
        None => delay,
    }
}

fn random_delay_up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_limited_error(after: Option<u64>) -> ModelError {
        ModelError::RateLimited { retry_after: after.map(Duration::from_secs), message: String::new() }
    }

    #[test]
    fn delays_double_up_to_the_maximum_and_attempts_are_limited() {
        let policy = RetryPolicy { max_attempts: 9, ..RetryPolicy::default() };
        let overloaded = ModelError::Overloaded { message: String::new() };
        for (attempts, whole) in [(1, 1), (2, 2), (3, 4), (4, 8), (7, 60), (8, 60)] {
            let retry_delay = policy.retry_delay(&overloaded, attempts).unwrap();
            let whole = Duration::from_secs(whole);
            assert!(retry_delay >= whole / 2 && retry_delay <= whole, "attempt {attempts}: {retry_delay:?}");
        }
        assert_eq!(policy.retry_delay(&overloaded, 9), None);
    }

    #[test]
    fn retry_after_is_honoured_unless_it_is_too_long() {
        let policy = RetryPolicy::default();
        let retry_delay = policy.retry_delay(&rate_limited_error(Some(120)), 1).unwrap();
        assert!(
            retry_delay >= Duration::from_secs(120) && retry_delay <= Duration::from_secs(132),
            "{retry_delay:?}"
        );
        assert!(policy.retry_delay(&rate_limited_error(Some(600)), 1).is_some());
        assert_eq!(policy.retry_delay(&rate_limited_error(Some(601)), 1), None);
        assert_eq!(
            RetryPolicy::for_model_with_fallback().retry_delay(&rate_limited_error(Some(31)), 1),
            None
        );
        assert!(policy.retry_delay(&rate_limited_error(None), 1).unwrap() <= Duration::from_secs(1));
    }

    #[test]
    fn outage_delays_double_up_to_two_minutes_and_honour_requests() {
        let away = ModelError::Connection { message: String::new() };
        for (tries, whole) in [(1, 2), (2, 4), (5, 32), (7, 120), (u32::MAX, 120)] {
            let (delay, whole) = (outage_delay(tries, &away), Duration::from_secs(whole));
            assert!(delay >= whole / 2 && delay <= whole, "try {tries}: {delay:?}");
        }
        let delay = outage_delay(1, &rate_limited_error(Some(900)));
        assert!(delay >= Duration::from_secs(900) && delay <= Duration::from_secs(990), "{delay:?}");
        let paused = ModelError::Paused { retry_after: Some(Duration::ZERO), message: String::new() };
        assert!(outage_delay(7, &paused) >= Duration::from_secs(60));
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let message = String::new;
        let lasting = [
            ModelError::ContextOverflow { message: message() },
            ModelError::Authentication { message: message() },
            ModelError::ContentFilter { message: message() },
            ModelError::BadRequest { message: message() },
            ModelError::Protocol { message: message() },
        ];
        for error in lasting {
            assert_eq!(RetryPolicy::default().retry_delay(&error, 1), None, "{error}");
        }
    }
}
