//! Durations as people write them, with the grammar of [`millrace_protocol::time_text`].

use std::time::Duration;

use jiff::SignedDuration;

pub use millrace_protocol::time_text::parse_duration;

/// Formats a duration so that [`parse_duration`] accepts it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_durations_can_be_parsed() {
        for millis in [1, 500, 1_000, 90_000, 86_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
