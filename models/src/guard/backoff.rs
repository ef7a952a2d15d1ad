//! How often a model is asked, and how long is waited between. Pure, but for the jitter.

use std::time::Duration;

use crate::model::ModelError;

/// How often a model is asked, and how long is waited between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many times at most.
    pub tries: u32,
    /// The wait after the first failure; each further one is twice as long.
    pub first: Duration,
    /// The longest of these waits.
    pub cap: Duration,
    /// The longest wait that a provider may ask for; if it asks for more, it is not asked again.
    pub longest: Duration,
    /// Whether it waits while the breaker is open, or leaves at once because another model can be asked.
    pub waits_for_the_breaker: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            tries: 5,
            first: Duration::from_secs(1),
            cap: Duration::from_secs(60),
            longest: Duration::from_secs(600),
            waits_for_the_breaker: true,
        }
    }
}

impl Policy {
    /// For a model that another stands in for: nobody need wait long for it.
    #[must_use]
    pub fn with_stand_in() -> Self {
        Self { longest: Duration::from_secs(30), waits_for_the_breaker: false, ..Self::default() }
    }

    /// How long to wait after the failure of the `tries`th try; `None` if that was the last.
    #[must_use]
    pub fn wait(&self, error: &ModelError, tries: u32) -> Option<Duration> {
        if !error.is_transient() || tries >= self.tries {
            return None;
        }
        match asked_for(error) {
            Some(after) if after > self.longest => None,
            // Never sooner than was asked for, and not all at once.
            Some(after) => Some(after + jitter(Duration::from_millis(500).max(after / 10))),
            None => {
                let wait = self.first.saturating_mul(1 << (tries - 1).min(20)).min(self.cap);
                Some(wait / 2 + jitter(wait / 2))
            }
        }
    }
}

/// The wait that the provider asked for.
pub(super) fn asked_for(error: &ModelError) -> Option<Duration> {
    match error {
        ModelError::RateLimited { retry_after, .. } => *retry_after,
        ModelError::Overloaded { .. }
        | ModelError::ContextOverflow { .. }
        | ModelError::Authentication { .. }
        | ModelError::ContentFilter { .. }
        | ModelError::Truncated { .. }
        | ModelError::BadRequest { .. }
        | ModelError::Protocol { .. }
        | ModelError::Timeout { .. }
        | ModelError::Connection { .. } => None,
    }
}

fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(after: Option<u64>) -> ModelError {
        ModelError::RateLimited { retry_after: after.map(Duration::from_secs), message: String::new() }
    }

    #[test]
    fn waits_grow_up_to_the_cap_and_end_with_the_tries() {
        let policy = Policy { tries: 9, ..Policy::default() };
        let overloaded = ModelError::Overloaded { message: String::new() };
        for (tries, whole) in [(1, 1), (2, 2), (3, 4), (4, 8), (7, 60), (8, 60)] {
            let wait = policy.wait(&overloaded, tries).unwrap();
            let whole = Duration::from_secs(whole);
            assert!(wait >= whole / 2 && wait <= whole, "try {tries}: {wait:?}");
        }
        assert_eq!(policy.wait(&overloaded, 9), None);
    }

    #[test]
    fn a_provider_s_wish_is_honoured_unless_it_is_too_long() {
        let policy = Policy::default();
        let wait = policy.wait(&limited(Some(120)), 1).unwrap();
        assert!(wait >= Duration::from_secs(120) && wait <= Duration::from_secs(132), "{wait:?}");
        assert!(policy.wait(&limited(Some(600)), 1).is_some());
        assert_eq!(policy.wait(&limited(Some(601)), 1), None);
        assert_eq!(Policy::with_stand_in().wait(&limited(Some(31)), 1), None);
        assert!(policy.wait(&limited(None), 1).unwrap() <= Duration::from_secs(1));
    }

    #[test]
    fn what_does_not_pass_by_itself_is_not_asked_again() {
        let message = String::new;
        let lasting = [
            ModelError::ContextOverflow { message: message() },
            ModelError::Authentication { message: message() },
            ModelError::ContentFilter { message: message() },
            ModelError::BadRequest { message: message() },
            ModelError::Protocol { message: message() },
        ];
        for error in lasting {
            assert_eq!(Policy::default().wait(&error, 1), None, "{error}");
        }
    }
}
