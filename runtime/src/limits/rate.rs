//! How much of a rate is used, pure: times are arguments, in microseconds since 1970. A booking moves the time at which
//! all that was booked will have been worth its place at the allowed rate (GCRA); a request may go if that time is not
//! too far ahead.

use serde::{Deserialize, Serialize};

/// What a rate counts in.
const MINUTE: i64 = 60_000_000;
/// How much may go at once: what the rate gives in six seconds, and at least one request.
pub const BURST: i64 = MINUTE / 10;
/// The size of the slots in which usage is remembered.
const SLOT: i64 = 5_000_000;

/// What is allowed a minute. What is left out is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// Requests a minute; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens a minute, in and out; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// How much of a rate is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// When the booked requests will have been worth their place.
    requests_at: i64,
    /// When the booked tokens will have been.
    tokens_at: i64,
    /// Until when nothing may go.
    pub paused_until: i64,
    /// What was used in the last minute, oldest first.
    used: Vec<Used>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Used {
    /// The time of the slot divided by [`SLOT`].
    slot: i64,
    requests: i64,
    tokens: i64,
}

/// How long so much takes at a rate.
fn cost(amount: i64, rate: Option<u64>) -> i64 {
    let Some(rate) = rate else { return 0 };
    let cost = i128::from(amount) * i128::from(MINUTE) / i128::from(rate.max(1));
    // A year is as good as for ever, and adds up without an overflow.
    let year = i128::from(MINUTE) * 60 * 24 * 365;
    i64::try_from(cost.clamp(-year, year)).unwrap_or(0)
}

/// When so much may go; what is larger than a burst goes when nothing else is booked.
fn free_at(booked: i64, cost: i64) -> i64 {
    booked - (BURST - cost).max(0)
}

impl State {
    /// When a request that may take so many tokens can go: `now` or later.
    #[must_use]
    pub fn free_at(&self, allowed: &Allowed, now: i64, tokens: u64) -> i64 {
        let requests = allowed.requests.map_or(now, |_| free_at(self.requests_at, cost(1, allowed.requests)));
        let tokens = allowed.tokens.map_or(now, |_| {
            free_at(self.tokens_at, cost(i64::try_from(tokens).unwrap_or(i64::MAX), allowed.tokens))
        });
        now.max(requests).max(tokens).max(self.paused_until)
    }

    /// Books requests and tokens, at a time at which they can go; or corrects what was booked, by less or more. What is
    /// more than was booked is a debt that others wait for.
    pub fn book(&mut self, allowed: &Allowed, at: i64, requests: i64, tokens: i64) {
        self.requests_at = moved(self.requests_at, at, cost(requests, allowed.requests));
        self.tokens_at = moved(self.tokens_at, at, cost(tokens, allowed.tokens));
        self.remember(at, requests, tokens);
    }

    /// Lets nothing go until a time.
    pub fn pause(&mut self, until: i64) {
        self.paused_until = self.paused_until.max(until);
    }

    /// The requests and tokens of the last minute.
    #[must_use]
    pub fn used(&self, now: i64) -> (u64, u64) {
        let recent = || self.used.iter().filter(|used| used.slot > (now - MINUTE) / SLOT);
        let requests = recent().fold(0_i64, |sum, used| sum.saturating_add(used.requests));
        let tokens = recent().fold(0_i64, |sum, used| sum.saturating_add(used.tokens));
        (requests.max(0).unsigned_abs(), tokens.max(0).unsigned_abs())
    }

    fn remember(&mut self, at: i64, requests: i64, tokens: i64) {
        let slot = at / SLOT;
        self.used.retain(|used| used.slot > slot - MINUTE / SLOT - 1);
        match self.used.last_mut() {
            Some(used) if used.slot >= slot => {
                used.requests = used.requests.saturating_add(requests);
                used.tokens = used.tokens.saturating_add(tokens);
            }
            Some(_) | None => self.used.push(Used { slot, requests, tokens }),
        }
    }
}

fn moved(booked: i64, at: i64, cost: i64) -> i64 {
    if cost < 0 { booked.saturating_add(cost) } else { booked.max(at).saturating_add(cost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000_000;

    fn allowed(requests: u64, tokens: u64) -> Allowed {
        Allowed { requests: Some(requests), tokens: Some(tokens) }
    }

    /// Lets through whatever can go, as fast as it can, for so many seconds.
    fn through(allowed: &Allowed, tokens: u64, seconds: i64) -> u64 {
        let (mut state, mut now, mut count) = (State::default(), NOW, 0);
        loop {
            now = state.free_at(allowed, now, tokens);
            if now >= NOW + seconds * 1_000_000 {
                return count;
            }
            state.book(allowed, now, 1, i64::try_from(tokens).unwrap());
            count += 1;
        }
    }

    #[test]
    fn whatever_the_window_no_more_goes_than_the_rate_and_one_burst() {
        for (requests, tokens, each) in [(60, 1_000_000, 1), (600, 6_000, 10), (1, 1_000, 1), (7, 100, 90)] {
            for seconds in [1, 6, 30, 60, 600] {
                let count = through(&allowed(requests, tokens), each, seconds);
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
    fn what_was_used_beyond_its_booking_is_waited_for_and_what_was_not_is_given_back() {
        let allowed = allowed(1_000, 60_000);
        let mut state = State::default();
        state.book(&allowed, NOW, 1, 6_000);
        assert_eq!(state.free_at(&allowed, NOW, 1_000), NOW + 1_000_000);
        // It took 2,000 more.
        state.book(&allowed, NOW, 0, 2_000);
        assert_eq!(state.free_at(&allowed, NOW, 1_000), NOW + 3_000_000);
        // Or 8,000 less.
        state.book(&allowed, NOW, 0, -8_000);
        assert_eq!(state.free_at(&allowed, NOW, 1_000), NOW);
        assert_eq!(state.used(NOW), (1, 0));
    }

    #[test]
    fn a_pause_holds_for_everything_and_is_never_made_shorter() {
        let mut state = State::default();
        state.pause(NOW + 5);
        state.pause(NOW + 3);
        assert_eq!(state.free_at(&Allowed::default(), NOW, 1), NOW + 5);
        assert_eq!(state.free_at(&Allowed::default(), NOW + 6, 1), NOW + 6);
    }

    #[test]
    fn what_is_larger_than_a_burst_goes_when_nothing_else_is_booked() {
        let allowed = allowed(100, 600);
        let mut state = State::default();
        assert_eq!(state.free_at(&allowed, NOW, 10_000), NOW);
        state.book(&allowed, NOW, 1, 10_000);
        assert_eq!(state.free_at(&allowed, NOW, 10_000), NOW + 1_000_000_000);
        assert_eq!(state.free_at(&allowed, NOW, u64::MAX), NOW + 1_000_000_000);
    }

    #[test]
    fn usage_is_that_of_the_last_minute() {
        let mut state = State::default();
        for second in 0..120 {
            state.book(&Allowed::default(), NOW + second * 1_000_000, 1, 10);
        }
        let (requests, tokens) = state.used(NOW + 119_000_000);
        assert!((55..=60).contains(&requests) && tokens == requests * 10, "{requests}");
        assert_eq!(state.used(NOW + 600_000_000), (0, 0));
        assert!(state.used.len() <= 14);
    }
}
