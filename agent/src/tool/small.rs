//! The time of day, as a tool.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, typed};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Now {}

/// `now{}`: the time of day in UTC, with the date and the day of the week.
#[must_use]
pub fn now() -> Arc<dyn Tool> {
    typed("now", "The present date and time in UTC, with the day of the week.", |Now {}: Now, _| async {
        Ok(written(Timestamp::now()))
    })
}

/// `2026-11-22T03:00:00Z (Sunday, 22 November 2026)`.
fn written(now: Timestamp) -> String {
    now.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%SZ (%A, %-d %B %Y)").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_told_with_its_date_and_day() {
        let time = Timestamp::from_second(1_795_316_400).unwrap();
        assert_eq!(written(time), "2026-11-22T03:00:00Z (Sunday, 22 November 2026)");
    }
}
