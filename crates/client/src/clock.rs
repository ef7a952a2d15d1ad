//! Times as text, in the local time zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Returns a time of day in the local time zone, with the zone, and with the date if that is not today.
pub fn format_clock(at: Timestamp) -> String {
    format_clock_in(at, Timestamp::now(), &TimeZone::system())
}

fn format_clock_in(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let (local, today) = (at.to_zoned(zone.clone()), now.to_zoned(zone.clone()).date());
    let format = if local.date() == today { "%H:%M:%S %Z" } else { "%Y-%m-%d %H:%M:%S %Z" };
    local.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn times_have_their_zone_and_old_ones_their_date() {
        let now: Timestamp = "2026-11-22T16:51:19Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        assert_eq!(format_clock_in(now, now, &zone), "11:51:19 -05");
        let before = now - SignedDuration::from_hours(48);
        assert_eq!(format_clock_in(before, now, &TimeZone::UTC), "2026-11-20 16:51:19 UTC");
    }
}
