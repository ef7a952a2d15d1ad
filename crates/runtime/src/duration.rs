//! Durations as people write them: `10s`, `500ms`, `1h 30m`, `30d`.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};

/// Parses a positive duration.
///
/// # Errors
/// It has no unit, is negative or zero, or is not a duration: an error text for the user.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration; write a number with a unit, such as 500ms, 10s or 1h 30m");
    // Days have 24 hours here.
    let span: Span = text.parse().map_err(|_| wrong())?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| "a duration can't be negative".to_owned())?;
    if duration.is_zero() { Err("a duration must be longer than zero".to_owned()) } else { Ok(duration) }
}

/// Formats a duration so that [`parse_duration`] accepts it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_are_positive() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "10", "-1s", "0s", "soon"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
        let error = parse_duration("5").unwrap_err();
        assert_eq!(
            error,
            "\"5\" is not a duration; write a number with a unit, such as 500ms, 10s or 1h 30m"
        );
    }

    #[test]
    fn formatted_durations_can_be_parsed() {
        for millis in [1, 500, 1_000, 90_000, 86_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
