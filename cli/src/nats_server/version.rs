//! Versions of nats-server: reading, comparing and asking a program for its own.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::probe;

/// A nats-server prints its version in milliseconds, also on a machine under load.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// A released version. What follows the third number (`-RC.1`) is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    /// Asks the program at `path` for its version (`-v`). The error says why it is no usable nats-server.
    pub fn of(path: &Path) -> Result<Self, String> {
        let mut command = Command::new(path);
        command.arg("-v").stdin(Stdio::null());
        let output = probe::run(&mut command, VERSION_LIMIT).map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("`-v` ended with {}: {}", output.status, output.last_words()));
        }
        Self::announced_in(&output.stdout)
            .ok_or_else(|| format!("it is no nats-server: `-v` printed {:?}", output.last_words()))
    }

    /// Reads what `nats-server -v` prints: `nats-server: v2.15.1`.
    fn announced_in(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("nats-server:"))?;
        Self::parse(line.trim().trim_start_matches('v'))
    }

    /// Reads `2.15.1`, with or without a suffix such as `-RC.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_announce_is_read() {
        for (text, version) in [
            ("nats-server: v2.15.1\n", Some(Version(2, 15, 1))),
            ("nats-server: v2.12.0-RC.3\n", Some(Version(2, 12, 0))),
            ("a warning\nnats-server: 2.9.10", Some(Version(2, 9, 10))),
            ("nats-server: v2.15", None),
            ("nats-server: v2.15.1.4", None),
            ("nats-server: latest", None),
            ("pyenv: nats-server: command not found", None),
            ("", None),
        ] {
            assert_eq!(Version::announced_in(text), version, "{text:?}");
        }
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(Version(2, 9, 10) < Version(2, 12, 0));
        assert!(Version(2, 12, 0) <= Version(2, 12, 0));
        assert!(Version(3, 0, 0) > Version(2, 15, 1));
    }
}
