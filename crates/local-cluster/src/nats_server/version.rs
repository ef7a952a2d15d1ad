//! Versions of nats-server: parsing, comparing, and querying a program.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::probe;

/// Timeout of `nats-server -v`, which takes milliseconds even on a busy machine.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// A released version. A suffix (`-RC.1`) is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(pub u16, pub u16, pub u16);

impl ServerVersion {
    /// Runs the program at `path` with `-v`. The error says why it is not a usable nats-server.
    pub fn query_program(path: &Path) -> Result<Self, String> {
        let mut command = Command::new(path);
        command.arg("-v").stdin(Stdio::null());
        let output =
            probe::run_with_timeout(&mut command, VERSION_LIMIT).map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("`-v` ended with {}: {}", output.status, output.last_line()));
        }
        Self::parse_output(&output.stdout)
            .ok_or_else(|| format!("not a nats-server: `-v` printed {:?}", output.last_line()))
    }

    /// Parses the output of `nats-server -v`: `nats-server: v2.15.1`.
    fn parse_output(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("nats-server:"))?;
        Self::parse(line.trim().trim_start_matches('v'))
    }

    /// Parses `2.15.1`, with or without a suffix such as `-RC.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_output_is_parsed() {
        for (text, version) in [
            ("nats-server: v2.15.1\n", Some(ServerVersion(2, 15, 1))),
            ("nats-server: v2.12.0-RC.3\n", Some(ServerVersion(2, 12, 0))),
            ("a warning\nnats-server: 2.9.10", Some(ServerVersion(2, 9, 10))),
            ("nats-server: v2.15", None),
            ("nats-server: v2.15.1.4", None),
            ("nats-server: latest", None),
            ("pyenv: nats-server: command not found", None),
            ("", None),
        ] {
            assert_eq!(ServerVersion::parse_output(text), version, "{text:?}");
        }
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(ServerVersion(2, 9, 10) < ServerVersion(2, 12, 0));
        assert!(ServerVersion(2, 12, 0) <= ServerVersion(2, 12, 0));
        assert!(ServerVersion(3, 0, 0) > ServerVersion(2, 15, 1));
    }
}
