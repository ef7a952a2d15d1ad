//! The wall clock for deadlines, without its jumps. Deadlines follow from times in the log, which processes of several
//! machines and several starts compare, so they need wall time. But a wall clock jumps (an administrator or NTP sets it, a
//! machine was suspended), and a jump is not time in which work could have been done.
//!
//! This clock starts with the wall clock and advances with the monotonic clock of the process. If the wall clock has jumped,
//! it approaches the new wall time slowly.
//!
//! Durations as people write them, with the grammar of [`millrace_protocol::time_text`].
//!
//! # Invariants
//!
//! - I77: A jump of the wall clock is not a timeout.
//!   (`crates/runtime/src/clock.rs::jump_of_the_wall_clock_does_not_let_time_pass`)

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

pub use millrace_protocol::time_text::parse_duration;

/// The largest difference that is followed at once: NTP makes such steps in normal operation.
const MAX_STEP: SignedDuration = SignedDuration::from_secs(1);
/// The share of the elapsed time by which a larger difference is reduced: 1/16.
const SLEW_DIVISOR: u32 = 16;

/// Returns the wall time for deadlines. It does not jump as long as this process runs.
#[must_use]
pub fn now() -> Timestamp {
    static CLOCK: OnceLock<Mutex<SteadyClock>> = OnceLock::new();
    let (wall, monotonic) = (Timestamp::now(), Instant::now());
    let clock = CLOCK.get_or_init(|| Mutex::new(SteadyClock::new(wall, monotonic)));
    clock.lock().unwrap_or_else(PoisonError::into_inner).advance(wall, monotonic)
}

/// A wall clock without jumps. No I/O: its caller reads the clocks.
#[derive(Debug)]
struct SteadyClock {
    time: Timestamp,
    read_at: Instant,
    has_jumped: bool,
}

impl SteadyClock {
    fn new(wall: Timestamp, monotonic: Instant) -> Self {
        Self { time: wall, read_at: monotonic, has_jumped: false }
    }

    /// Advances to a moment, as both clocks show it, and returns the steady time then. It never decreases.
    fn advance(&mut self, wall: Timestamp, monotonic: Instant) -> Timestamp {
        let elapsed = monotonic.saturating_duration_since(self.read_at);
        self.read_at = self.read_at.max(monotonic);
        let expected = self.time.saturating_add(signed(elapsed)).unwrap_or(Timestamp::MAX);
        let difference = wall.duration_since(expected);
        let has_jumped = difference.abs() > MAX_STEP;
        if has_jumped && !self.has_jumped {
            let by_seconds = difference.as_secs();
            warn!(by_seconds, "the wall clock has jumped, or this machine was suspended; deadlines are kept");
        }
        self.has_jumped = has_jumped;
        let slew = signed(elapsed / SLEW_DIVISOR);
        let correction = if has_jumped { difference.clamp(-slew, slew) } else { difference };
        self.time = expected.saturating_add(correction).unwrap_or(expected).max(self.time);
        self.time
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// Formats a duration so that [`parse_duration`] accepts it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clocks {
        wall: Timestamp,
        monotonic: Instant,
        steady: SteadyClock,
    }

    impl Clocks {
        fn start() -> Self {
            let (wall, monotonic) = ("2026-11-21T23:00:00Z".parse().unwrap(), Instant::now());
            Self { wall, monotonic, steady: SteadyClock::new(wall, monotonic) }
        }

        /// Lets time pass by both clocks, read every 50 ms; returns how far the steady clock advanced.
        fn pass(&mut self, time: Duration) -> SignedDuration {
            let before = self.steady.time;
            for _ in 0..time.as_millis() / 50 {
                self.monotonic += Duration::from_millis(50);
                self.wall += SignedDuration::from_millis(50);
                self.steady.advance(self.wall, self.monotonic);
            }
            self.steady.time.duration_since(before)
        }

        fn difference(&self) -> SignedDuration {
            self.wall.duration_since(self.steady.time)
        }
    }

    #[test]
    fn jump_of_the_wall_clock_does_not_let_time_pass() {
        for hours in [1, -1, 24 * 365] {
            let mut clocks = Clocks::start();
            clocks.pass(Duration::from_secs(5));
            clocks.wall += SignedDuration::from_hours(hours);
            let passed = clocks.pass(Duration::from_secs(60));
            assert!(passed >= SignedDuration::from_secs(56), "{hours} h: {passed:?}");
            assert!(passed <= SignedDuration::from_secs(64), "{hours} h: {passed:?}");
        }
    }

    #[test]
    fn clock_that_jumps_back_again_leaves_no_trace() {
        let mut clocks = Clocks::start();
        clocks.wall += SignedDuration::from_hours(1);
        clocks.pass(Duration::from_secs(2));
        clocks.wall -= SignedDuration::from_hours(1);
        clocks.pass(Duration::from_secs(2));
        assert_eq!(clocks.difference(), SignedDuration::ZERO);
    }

    #[test]
    fn new_wall_time_is_reached_slowly() {
        for seconds in [90, -90] {
            let mut clocks = Clocks::start();
            clocks.wall += SignedDuration::from_secs(seconds);
            clocks.pass(Duration::from_secs(800));
            assert!(clocks.difference().abs() > SignedDuration::from_secs(30));
            clocks.pass(Duration::from_secs(800));
            assert_eq!(clocks.difference(), SignedDuration::ZERO);
        }
    }

    #[test]
    fn small_steps_are_followed_and_time_never_decreases() {
        let mut clocks = Clocks::start();
        clocks.wall += SignedDuration::from_millis(800);
        clocks.pass(Duration::from_millis(50));
        assert_eq!(clocks.difference(), SignedDuration::ZERO);
        let before = clocks.steady.time;
        clocks.wall -= SignedDuration::from_millis(800);
        clocks.pass(Duration::from_millis(50));
        assert_eq!(clocks.steady.time, before);
        clocks.pass(Duration::from_secs(2));
        assert_eq!(clocks.difference(), SignedDuration::ZERO);
    }

    #[test]
    fn formatted_durations_can_be_parsed() {
        for millis in [1, 500, 1_000, 90_000, 86_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
