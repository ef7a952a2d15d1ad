//! The current time, as a tool.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, tool_from_function};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Now")]
#[serde(deny_unknown_fields)]
struct NowArguments {}

/// `now{}`: the current time in UTC, with the date and the day of the week.
#[must_use]
pub fn now_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "now",
        "The current date and time in UTC, with the day of the week.",
        |NowArguments {}: NowArguments, _| async { Ok(format_time(Timestamp::now())) },
    )
}

/// `2026-11-22T03:00:00Z (Sunday, 22 November 2026)`.
fn format_time(now: Timestamp) -> String {
    now.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%SZ (%A, %-d %B %Y)").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_has_its_date_and_day() {
        let time = Timestamp::from_second(1_795_316_400).unwrap();
        assert_eq!(format_time(time), "2026-11-22T03:00:00Z (Sunday, 22 November 2026)");
    }
}
