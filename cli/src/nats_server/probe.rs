//! Runs a short-lived program and takes what it printed, within a time limit.
//!
//! Programs found on a user's `PATH` may hang, flood their output or leave children of their own behind: none of
//! that may hold this process up.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// How often a running program is looked at: such programs end within milliseconds or run for many seconds.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long output is waited for once its writers are dead: it is in the pipe already.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// The most that is kept of one output: enough for any version line or error of a package installer.
const OUTPUT_LIMIT: u64 = 64 * 1024;

/// What a program that ended left.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// The first 64 KiB of its standard output.
    pub stdout: String,
    /// The first 64 KiB of its standard error.
    pub stderr: String,
}

impl Output {
    /// The last line that says something, of standard error or else of standard output.
    pub fn last_words(&self) -> String {
        let last =
            |text: &str| text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
        last(&self.stderr).or_else(|| last(&self.stdout)).unwrap_or_else(|| "it printed nothing".to_owned())
    }
}

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started.
    #[error("{0}")]
    Start(#[from] io::Error),
    /// It ran longer than it may, and was killed.
    #[error("it did not end within {} s", .0.as_secs())]
    TooSlow(Duration),
}

/// Runs `command` to its end; after `limit` it is killed with its whole process group. Its standard input is the
/// caller's to set.
pub fn run(command: &mut Command, limit: Duration) -> Result<Output, Error> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().map(read_aside);
    let stderr = child.stderr.take().map(read_aside);
    let pid = Pid::from_child(&child);
    let ended = ends_within(pid, limit);
    // Before the child is reaped, so that its id still names this group and no other.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    if !ended? {
        return Err(Error::TooSlow(limit));
    }
    Ok(Output { status, stdout: collect(stdout), stderr: collect(stderr) })
}

fn ends_within(pid: Pid, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(pid), look)?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

/// A thread per pipe: a program that floods one output must not block on it, and a stranger that inherited the
/// pipe and lives on must not block this process.
fn read_aside(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut kept = Vec::new();
        let _ = pipe.by_ref().take(OUTPUT_LIMIT).read_to_end(&mut kept);
        let _ = io::copy(&mut pipe, &mut io::sink());
        let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
    });
    receiver
}

fn collect(output: Option<Receiver<String>>) -> String {
    output.and_then(|output| output.recv_timeout(LAST_OUTPUT).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    #[test]
    fn a_program_that_never_ends_is_killed_at_the_limit() {
        let begun = Instant::now();
        let error = run(&mut shell("sleep 600"), Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::TooSlow(_)), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_child_left_behind_does_not_keep_the_output_open() {
        let begun = Instant::now();
        let output = run(&mut shell("sleep 600 & echo done"), Duration::from_secs(20)).unwrap();
        assert_eq!(output.stdout, "done\n");
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn a_flood_is_cut_and_does_not_block_the_program() {
        let output = run(&mut shell("head -c 3000000 /dev/zero; exit 3"), Duration::from_secs(20)).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 64 * 1024));
    }

    #[test]
    fn the_last_words_are_of_standard_error_first() {
        let output =
            run(&mut shell("echo out; echo; printf 'no\\nluck\\n\\n' >&2"), Duration::from_secs(20)).unwrap();
        assert_eq!(output.last_words(), "luck");
    }
}
