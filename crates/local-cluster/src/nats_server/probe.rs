//! Runs a short-lived program with a timeout and captures its output.
//!
//! Programs on a user's `PATH` may hang, print without end or leave child processes running. None of that may block this
//! process. Versions of nats-server are queried so.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::nats_server::probe;

/// The interval at which the program is polled: it ends within milliseconds or runs for many seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time to wait for output after its writers have died: it is already in the pipe.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum captured bytes per output: enough for any version line or error of a package installer.
const OUTPUT_LIMIT: u64 = 64 * 1024;

/// The output of a program that ended.
#[derive(Debug)]
pub struct ProgramOutput {
    pub status: ExitStatus,
    /// The first 64 KiB of its standard output.
    pub stdout: String,
    /// The first 64 KiB of its standard error.
    pub stderr: String,
}

impl ProgramOutput {
    /// Returns the last non-empty line of standard error, or else of standard output.
    pub fn last_line(&self) -> String {
        let last =
            |text: &str| text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
        last(&self.stderr).or_else(|| last(&self.stdout)).unwrap_or_else(|| "it printed nothing".to_owned())
    }
}

/// Errors of [`run_with_timeout`].
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It could not be started.
    #[error("{0}")]
    Start(#[from] io::Error),
    /// It exceeded the timeout and was killed.
    #[error("it did not end within {} s", .0.as_secs())]
    TooSlow(Duration),
}

/// Runs `command`; after `limit` its process group is killed. The caller sets standard input.
pub fn run_with_timeout(command: &mut Command, limit: Duration) -> Result<ProgramOutput, ProbeError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().map(read_in_thread);
    let stderr = child.stderr.take().map(read_in_thread);
    let pid = Pid::from_child(&child);
    let ended = ends_within(pid, limit);
    // Before the child is reaped, while its id can't be reused for another group.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    if !ended? {
        return Err(ProbeError::TooSlow(limit));
    }
    Ok(ProgramOutput { status, stdout: collect_output(stdout), stderr: collect_output(stderr) })
}

fn ends_within(pid: Pid, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(pid), look)?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(true)
}

/// Reads a pipe in a thread of its own: a program that prints without end must not block, and neither must this process
/// if another program inherited the pipe.
fn read_in_thread(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.by_ref().take(OUTPUT_LIMIT).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn collect_output(output: Option<Receiver<String>>) -> String {
    output.and_then(|output| output.recv_timeout(DRAIN_TIMEOUT).ok()).unwrap_or_default()
}

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

    fn shell_command(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    #[test]
    fn a_hanging_program_is_killed_at_the_timeout() {
        let started = Instant::now();
        let error =
            run_with_timeout(&mut shell_command("sleep 600"), Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, ProbeError::TooSlow(_)), "{error}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_remaining_child_does_not_block_the_output() {
        let started = Instant::now();
        let output =
            run_with_timeout(&mut shell_command("sleep 600 & echo done"), Duration::from_secs(20)).unwrap();
        assert_eq!(output.stdout, "done\n");
        assert!(started.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn excessive_output_is_truncated_without_blocking() {
        let output = run_with_timeout(
            &mut shell_command("head -c 3000000 /dev/zero; exit 3"),
            Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 64 * 1024));
    }

    #[test]
    fn the_last_line_is_of_standard_error_first() {
        let output = run_with_timeout(
            &mut shell_command("echo out; echo; printf 'no\\nluck\\n\\n' >&2"),
            Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!(output.last_line(), "luck");
    }

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
