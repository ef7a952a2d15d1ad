//! Durations as people write them: `10s`, `500ms`, `1h 30m`.

use std::time::Duration;

use jiff::SignedDuration;

/// Reads a positive duration.
///
/// # Errors
/// It has no unit, is negative or zero, or is no duration at all: a text that says what is expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration =
        text.parse().map_err(|error| format!("{error} (a duration is written as 10s or 1h 30m)"))?;
    let duration = Duration::try_from(duration).map_err(|_| "a duration can't be negative".to_owned())?;
    if duration.is_zero() { Err("a duration of zero makes no sense here".to_owned()) } else { Ok(duration) }
}

/// Writes a duration so that [`parse`] reads it back.
#[must_use]
pub fn format(duration: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_are_positive() {
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("1h 30m"), Ok(Duration::from_secs(5400)));
        for wrong in ["", "10", "-1s", "0s", "soon"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for millis in [1, 500, 1_000, 90_000, 86_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
