//! The state of a rate limit (GCRA), without I/O: times are arguments, in microseconds since 1970. A booking moves the
//! theoretical arrival time, at which everything booked is paid for at the allowed rate. A request is admitted if that
//! time is not too far ahead.

use serde::{Deserialize, Serialize};

/// The period of a rate.
const MINUTE: i64 = 60_000_000;
/// The maximum burst: what the rate allows in six seconds, and at least one request.
pub const BURST: i64 = MINUTE / 10;
/// The resolution of the recorded usage.
const SLOT: i64 = 5_000_000;

/// The allowed rate per minute. A missing value is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Requests per minute; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Input and output tokens per minute; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// The usage of a rate limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimitState {
    /// The theoretical arrival time of the booked requests.
    requests_at: i64,
    /// The theoretical arrival time of the booked tokens.
    tokens_at: i64,
    /// Until when no request is admitted.
    pub paused_until: i64,
    /// The usage of the last minute, oldest first.
    used: Vec<SlotUsage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SlotUsage {
    /// The time of the slot divided by [`SLOT`].
    slot: i64,
    requests: i64,
    tokens: i64,
}

/// Returns how long an amount takes at a rate.
fn cost_micros(amount: i64, rate: Option<u64>) -> i64 {
    let Some(rate) = rate else { return 0 };
    let cost = i128::from(amount) * i128::from(MINUTE) / i128::from(rate.max(1));
    // A year is long enough, and sums can't overflow.
    let year = i128::from(MINUTE) * 60 * 24 * 365;
    i64::try_from(cost.clamp(-year, year)).unwrap_or(0)
}

/// Returns when an amount is admitted. One larger than a burst is admitted when nothing else is booked.
fn admission_time_after_booked(booked: i64, cost: i64) -> i64 {
    booked - (BURST - cost).max(0)
}

impl RateLimitState {
    /// Returns when a request with this number of tokens is admitted: `now` or later.
    pub fn earliest_admission_time(&self, limit: &RateLimit, now: i64, tokens: u64) -> i64 {
        let requests = limit
            .requests
            .map_or(now, |_| admission_time_after_booked(self.requests_at, cost_micros(1, limit.requests)));
        let tokens = limit.tokens.map_or(now, |_| {
            admission_time_after_booked(
                self.tokens_at,
                cost_micros(i64::try_from(tokens).unwrap_or(i64::MAX), limit.tokens),
            )
        });
        now.max(requests).max(tokens).max(self.paused_until)
    }

    /// Books requests and tokens at the time of their admission, or corrects a booking. Usage beyond the booking is a
    /// debt that later requests wait for.
    pub fn book_usage(&mut self, limit: &RateLimit, at: i64, requests: i64, tokens: i64) {
        self.requests_at = advance_booked(self.requests_at, at, cost_micros(requests, limit.requests));
        self.tokens_at = advance_booked(self.tokens_at, at, cost_micros(tokens, limit.tokens));
        self.record_usage(at, requests, tokens);
    }

    /// Holds all requests until a time.
    pub fn pause_until(&mut self, until: i64) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Returns the requests and tokens of the last minute.
    pub fn usage_of_last_minute(&self, now: i64) -> (u64, u64) {
        let recent = || self.used.iter().filter(|used| used.slot > (now - MINUTE) / SLOT);
        let requests = recent().fold(0_i64, |sum, used| sum.saturating_add(used.requests));
        let tokens = recent().fold(0_i64, |sum, used| sum.saturating_add(used.tokens));
        (requests.max(0).unsigned_abs(), tokens.max(0).unsigned_abs())
    }

    fn record_usage(&mut self, at: i64, requests: i64, tokens: i64) {
        let slot = at / SLOT;
        self.used.retain(|used| used.slot > slot - MINUTE / SLOT - 1);
        match self.used.last_mut() {
            Some(used) if used.slot >= slot => {
                used.requests = used.requests.saturating_add(requests);
                used.tokens = used.tokens.saturating_add(tokens);
            }
            Some(_) | None => self.used.push(SlotUsage { slot, requests, tokens }),
        }
    }
}

fn advance_booked(booked: i64, at: i64, cost: i64) -> i64 {
    if cost < 0 { booked.saturating_add(cost) } else { booked.max(at).saturating_add(cost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000_000;

    fn limit(requests: u64, tokens: u64) -> RateLimit {
        RateLimit { requests: Some(requests), tokens: Some(tokens) }
    }

    /// Admits requests as fast as possible, and returns how many in this number of seconds.
    fn admitted(limit: &RateLimit, tokens: u64, seconds: i64) -> u64 {
        let (mut state, mut now, mut count) = (RateLimitState::default(), NOW, 0);
        loop {
            now = state.earliest_admission_time(limit, now, tokens);
            if now >= NOW + seconds * 1_000_000 {
                return count;
            }
            state.book_usage(limit, now, 1, i64::try_from(tokens).unwrap());
            count += 1;
        }
    }

    #[test]
    fn admits_at_most_the_rate_plus_one_burst_in_any_window() {
        for (requests, tokens, each) in [(60, 1_000_000, 1), (600, 6_000, 10), (1, 1_000, 1), (7, 100, 90)] {
            for seconds in [1, 6, 30, 60, 600] {
                let count = admitted(&limit(requests, tokens), each, seconds);
                let most = |rate: u64, each: u64| {
                    let burst = (rate / 10).max(each);
                    (rate * u64::try_from(seconds).unwrap() / 60 + burst) / each + 1
                };
                let most = most(requests, 1).min(most(tokens, each));
                assert!(count <= most, "{requests} {tokens} {each} in {seconds} s: {count} of {most}");
                assert!(
                    count + 2 >= most / 2,
                    "{requests} {tokens} {each} in {seconds} s: {count} of {most}"
                );
            }
        }
    }

    #[test]
    fn corrections_delay_or_advance_later_requests() {
        let limit = limit(1_000, 60_000);
        let mut state = RateLimitState::default();
        state.book_usage(&limit, NOW, 1, 6_000);
        assert_eq!(state.earliest_admission_time(&limit, NOW, 1_000), NOW + 1_000_000);
        // The request used 2,000 tokens more than booked.
        state.book_usage(&limit, NOW, 0, 2_000);
        assert_eq!(state.earliest_admission_time(&limit, NOW, 1_000), NOW + 3_000_000);
        // And now 8,000 less.
        state.book_usage(&limit, NOW, 0, -8_000);
        assert_eq!(state.earliest_admission_time(&limit, NOW, 1_000), NOW);
        assert_eq!(state.usage_of_last_minute(NOW), (1, 0));
    }

    #[test]
    fn pause_holds_all_requests_and_is_never_shortened() {
        let mut state = RateLimitState::default();
        state.pause_until(NOW + 5);
        state.pause_until(NOW + 3);
        assert_eq!(state.earliest_admission_time(&RateLimit::default(), NOW, 1), NOW + 5);
        assert_eq!(state.earliest_admission_time(&RateLimit::default(), NOW + 6, 1), NOW + 6);
    }

    #[test]
    fn request_larger_than_a_burst_is_admitted_when_nothing_is_booked() {
        let limit = limit(100, 600);
        let mut state = RateLimitState::default();
        assert_eq!(state.earliest_admission_time(&limit, NOW, 10_000), NOW);
        state.book_usage(&limit, NOW, 1, 10_000);
        assert_eq!(state.earliest_admission_time(&limit, NOW, 10_000), NOW + 1_000_000_000);
        assert_eq!(state.earliest_admission_time(&limit, NOW, u64::MAX), NOW + 1_000_000_000);
    }

    #[test]
    fn usage_covers_the_last_minute() {
        let mut state = RateLimitState::default();
        for second in 0..120 {
            state.book_usage(&RateLimit::default(), NOW + second * 1_000_000, 1, 10);
        }
        let (requests, tokens) = state.usage_of_last_minute(NOW + 119_000_000);
        assert!((55..=60).contains(&requests) && tokens == requests * 10, "{requests}");
        assert_eq!(state.usage_of_last_minute(NOW + 600_000_000), (0, 0));
        assert!(state.used.len() <= 14);
    }
}
