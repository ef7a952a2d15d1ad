//! The user and the time zone of this machine: the author of commands and answers, and times as text.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Returns the author of a command: `by`, or else the login name.
pub fn author_name(by: Option<String>) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|name| !name.trim().is_empty());
    by.or_else(|| variable("LOGNAME"))
        .or_else(|| variable("USER"))
        .or_else(login_name)
        .unwrap_or_else(|| "unknown".into())
}

fn login_name() -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&id))?;
    line.split(':').next().map(str::to_owned)
}

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
    fn a_command_always_has_an_author() {
        assert_eq!(author_name(Some("ann".into())), "ann");
        assert!(!author_name(None).is_empty());
    }

    #[test]
    fn times_have_their_zone_and_old_ones_their_date() {
        let now: Timestamp = "2026-11-22T16:51:19Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        assert_eq!(format_clock_in(now, now, &zone), "11:51:19 -05");
        let before = now - SignedDuration::from_hours(48);
        assert_eq!(format_clock_in(before, now, &TimeZone::UTC), "2026-11-20 16:51:19 UTC");
    }
}
