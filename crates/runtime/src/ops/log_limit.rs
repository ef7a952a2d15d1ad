//! Limits log lines about messages that anybody with credentials can cause: one line per kind and minute, with the
//! number of events since the line before. Otherwise the log would be a second way to fill a disk.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two lines of the same kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// A limit on the log lines of each kind of event.
#[derive(Debug)]
pub struct LogLimit(Mutex<BTreeMap<&'static str, KindState>>);

/// The events of one kind.
#[derive(Debug)]
struct KindState {
    logged: Instant,
    /// The events since the last line.
    suppressed: u64,
}

impl LogLimit {
    /// Creates a limit; every kind may be logged at once.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Counts an event of a kind. Returns the number of events since the last line, this one included, if a line may
    /// be logged now.
    pub fn count_event(&self, kind: &'static str) -> Option<u64> {
        self.count_event_at(kind, Instant::now())
    }

    fn count_event_at(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = kinds.get_mut(kind) else {
            kinds.insert(kind, KindState { logged: now, suppressed: 0 });
            return Some(1);
        };
        state.suppressed += 1;
        if now.duration_since(state.logged) < INTERVAL {
            return None;
        }
        state.logged = now;
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_per_minute_with_its_count() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        assert_eq!(limit.count_event_at("forged", start), Some(1));
        for second in 1..60 {
            assert_eq!(limit.count_event_at("forged", start + Duration::from_secs(second)), None);
        }
        assert_eq!(
            limit.count_event_at("unreadable", start + Duration::from_secs(30)),
            Some(1),
            "another kind"
        );
        assert_eq!(limit.count_event_at("forged", start + Duration::from_secs(60)), Some(60));
        assert_eq!(limit.count_event_at("forged", start + Duration::from_secs(61)), None);
    }
}
