//! Times and durations as people write them: the one grammar of all commands, files, settings and requests.

use std::time::Duration;

use jiff::fmt::temporal::Pieces;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp};

use crate::plan::MAX_PLAN_TIME;

/// The longest duration. Single fields have smaller bounds of their own.
pub const MAX_DURATION: Duration = Duration::from_secs(36_500 * 86_400);
/// The largest offset from UTC: no place on earth has a larger one.
const MAX_OFFSET_SECONDS: u32 = 14 * 3_600;

/// Parses a duration, which may be zero: `500ms`, `10s`, `1h 30m`, `30d`. A day has 24 hours.
pub fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("{text:?} is not a duration; write a number with a unit, such as 500ms, 10s, 1h 30m or 30d")
    };
    let span: Span = text.trim().parse().map_err(|_| wrong())?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| "a duration can't be negative".to_owned())?;
    check_duration(duration)
}

/// Parses a duration that is longer than zero.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match parse_duration_or_zero(text)? {
        Duration::ZERO => Err("a duration must be longer than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// Returns a duration of so many seconds, which may be zero.
pub fn duration_from_seconds(seconds: f64) -> Result<Duration, String> {
    let duration = Duration::try_from_secs_f64(seconds);
    check_duration(
        duration.map_err(|_| format!("{seconds} is not a valid number of seconds; use 0 or more"))?,
    )
}

fn check_duration(duration: Duration) -> Result<Duration, String> {
    match duration <= MAX_DURATION {
        true => Ok(duration),
        false => Err(format!("a duration is at most {} days", MAX_DURATION.as_secs() / 86_400)),
    }
}

/// Parses a time with its offset from UTC: `2026-12-01T09:00:00Z`, `2026-12-01T10:00:00+01:00`.
pub fn parse_timestamp(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is not a time; write it with its offset, such as 2026-12-01T09:00:00Z");
    let pieces = Pieces::parse(text).map_err(|_| wrong())?;
    let offset = pieces.to_numeric_offset().ok_or_else(wrong)?;
    if offset.seconds().unsigned_abs() > MAX_OFFSET_SECONDS {
        return Err(format!(
            "the offset of {text:?} is more than 14 hours; places on earth are at most 14 hours from UTC"
        ));
    }
    if pieces.time().is_none() {
        return Err(wrong());
    }
    text.parse().map_err(|_| {
        format!("{text:?} is out of range; times are from {} to {}", Timestamp::MIN, Timestamp::MAX)
    })
}

/// Parses a time by which things are selected: a time with its offset, a date, which begins in `zone`, or a duration before `now`.
pub fn parse_time_or_age(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(pieces) = Pieces::parse(text) {
        let is_date =
            pieces.time().is_none() && pieces.offset().is_none() && pieces.time_zone_annotation().is_none();
        let start = || zone.to_timestamp(pieces.date().into()).map_err(|error| error.to_string());
        return if is_date { start() } else { parse_timestamp(text) };
    }
    let wrong = || {
        format!(
            "{text:?} is neither a time such as 2026-11-22T09:30:00Z, nor a date such as 2026-11-22, nor a duration such as 2h"
        )
    };
    let is_duration = text.parse::<Span>().is_ok();
    let age = parse_duration(text).map_err(|error| if is_duration { error } else { wrong() })?;
    now.checked_sub(age).map_err(|_| wrong())
}

/// Parses the time of a start or of the end of a wait: at most [`MAX_PLAN_TIME`] from now.
pub fn parse_timestamp_within_a_year(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let at = parse_timestamp(text)?;
    match at.duration_since(now).try_into().is_ok_and(|after: Duration| after > MAX_PLAN_TIME) {
        true => Err(format!("{at} is more than a year away")),
        false => Ok(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_take_days_and_have_bounds() {
        let day = 86_400;
        for (text, seconds) in [
            ("10s", 10),
            ("1h 30m", 5_400),
            ("364d", 364 * day),
            ("2w", 14 * day),
            ("0s", 0),
            ("36500d", 36_500 * day),
        ] {
            assert_eq!(parse_duration_or_zero(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (text, mistake) in [
            ("", "is not a duration"),
            ("10", "is not a duration"),
            ("1mo", "is not a duration"),
            ("-1s", "negative"),
            ("36501d", "at most 36500 days"),
            ("0s", "longer than zero"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains(mistake), "{text}: {error}");
        }
        assert!(duration_from_seconds(-1.0).is_err() && duration_from_seconds(f64::NAN).is_err());
        assert!(duration_from_seconds(1e18).unwrap_err().contains("36500 days"));
    }

    #[test]
    fn a_time_is_also_a_date_or_an_age_where_things_are_selected() {
        let now: Timestamp = "2026-11-28T12:00:00Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        for (text, time) in [
            ("2h", "2026-11-28T10:00:00Z"),
            (" 1d ", "2026-11-27T12:00:00Z"),
            ("2026-11-22", "2026-11-21T23:00:00Z"),
            ("2026-11-22T09:30Z", "2026-11-22T09:30:00Z"),
        ] {
            assert_eq!(parse_time_or_age(text, now, &zone), Ok(time.parse().unwrap()), "{text}");
        }
        for (text, mistake) in [
            ("2026-11-28T09:56:01+25:00", "more than 14 hours"),
            ("2026-11-28T09:56:01+14:01", "more than 14 hours"),
            ("2026-11-28T09:56:01", "not a time"),
            ("2026-11-28[Europe/Berlin]", "not a time"),
            ("2026-02-30", "neither a time"),
            ("9999-12-31T23:59:59Z", "out of range"),
            ("0s", "longer than zero"),
            ("36501d", "at most 36500 days"),
            ("soon", "neither a time"),
            ("", "neither a time"),
        ] {
            let error = parse_time_or_age(text, now, &zone).unwrap_err();
            assert!(error.contains(mistake), "{text}: {error}");
        }
    }

    #[test]
    fn times_have_an_offset_and_bounds() {
        for text in [
            "2026-12-01T09:00:00Z",
            " 2026-12-01T09:00:00+14:00 ",
            "2026-12-01T09:00-12:00",
            "9999-12-30T22:00:00Z",
        ] {
            parse_timestamp(text).unwrap();
        }
        for (text, mistake) in [
            ("2026-12-01T09:00:00+25:00", "more than 14 hours"),
            ("2026-12-01T09:00:00-14:01", "more than 14 hours"),
            ("2026-12-01T09:00:00", "with its offset"),
            ("2026-12-01", "with its offset"),
            ("9999-12-31T23:59:59Z", "to 9999-12-30T22:00:00.999999999Z"),
            ("2026-02-30T09:00:00Z", "is not a time"),
            ("soon", "is not a time"),
        ] {
            let error = parse_timestamp(text).unwrap_err();
            assert!(error.contains(mistake), "{text}: {error}");
        }
        let now = parse_timestamp("2026-12-01T09:00:00Z").unwrap();
        for (text, is_accepted) in
            [("2020-01-01T00:00:00Z", true), ("2027-12-01T09:00:00Z", true), ("2027-12-03T09:00:00Z", false)]
        {
            assert_eq!(parse_timestamp_within_a_year(text, now).is_ok(), is_accepted, "{text}");
        }
    }
}
