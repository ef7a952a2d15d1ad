//! A command that runs in a launcher: its start, its output and its end. The output is in a bounded buffer, which keeps the head and the
//! tail and counts the bytes in between.

use std::collections::VecDeque;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

use super::launch_message::{
    ALLOCATOR_VARIABLE, Confinement, ExceededLimit, LaunchRequest, LauncherReport, SUPERVISE_ARGUMENT,
};

use super::launcher::Launcher;
use super::settings::ByteLimits;
use super::usage::{self, FolderUsage};

use crate::program::left_message;

/// The timeout for killing the remaining processes of a command.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const KILL_SIGNAL: i32 = 9;
const KILLED_EXIT_CODE: i32 = 128 + KILL_SIGNAL;

pub(super) enum CommandEnd {
    Exited { code: i32, signal: Option<i32>, exceeded: Option<ExceededLimit> },
    TimedOut(Duration),
}

/// A running command. Dropping it closes the socket to the launcher, which ends the command and all its processes.
pub(super) struct RunningCommand {
    reports: Lines<BufReader<UnixStream>>,
    launcher: Child,
    output: Arc<Mutex<OutputBuffer>>,
    reading_task: JoinHandle<()>,
}

impl RunningCommand {
    pub(super) fn start(
        launcher: &Launcher,
        environment: &[(String, String)],
        request: &LaunchRequest,
    ) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (reader, writer) = io::pipe()?;
        // Output and error share a pipe to preserve their order.
        let launcher = Command::new(launcher.executable())
            .arg(SUPERVISE_ARGUMENT)
            .arg(serde_json::to_string(request)?)
            .env_clear()
            .envs(environment.iter().cloned())
            .env(ALLOCATOR_VARIABLE, "0")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(writer.try_clone()?))
            .stderr(Stdio::from(writer))
            .spawn()?;
        let output = Arc::new(Mutex::new(OutputBuffer::default()));
        let reading_task = spawn_output_reader(reader, Arc::clone(&output))?;
        Ok(Self {
            reports: BufReader::new(UnixStream::from_std(ours)?).lines(),
            launcher,
            output,
            reading_task,
        })
    }

    /// Waits for the end and kills the command after `limit`. Returns its confinement, outcome and output.
    pub(super) async fn wait_for_end(
        mut self,
        limit: Duration,
        bytes: &ByteLimits,
        folder_usage: &FolderUsage,
    ) -> Result<(Option<Confinement>, CommandEnd, String), String> {
        let mut confinement = None;
        let end = tokio::select! {
            end = timeout(limit, self.read_reports(&mut confinement, bytes)) => {
                end.unwrap_or(Ok(CommandEnd::TimedOut(limit)))
            }
            exceeded = folder_usage.wait_until_exceeded() => Ok(killed(exceeded)),
        };
        drop(self.reports);
        let all_ended = async {
            let _ = self.launcher.wait().await;
            let _ = (&mut self.reading_task).await;
        };
        if timeout(STOP_TIMEOUT, all_ended).await.is_err() {
            warn!("a process of an ended command still holds its output open");
            self.reading_task.abort();
            let _ = self.launcher.start_kill();
        }
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).text();
        // A short command may fill the folder before it is measured, and a killed one before it is dead.
        let exceeded = folder_usage.exceeded_limit().await;
        let end = match (end, exceeded) {
            (Ok(CommandEnd::Exited { code: 0, .. }), Some(exceeded)) => Ok(killed(exceeded)),
            (end, _) => end,
        };
        match end {
            Ok(end) => Ok((confinement, end, output)),
            Err(reason) => Err(format!("{reason} {output}")),
        }
    }

    /// Waits for the end of the command, or until all commands of this process use too much memory.
    async fn read_reports(
        &mut self,
        confinement: &mut Option<Confinement>,
        limits: &ByteLimits,
    ) -> Result<CommandEnd, String> {
        let memory = usage::MEMORY.add_entry();
        loop {
            let line = self.reports.next_line().await.map_err(|e| e.to_string())?;
            let line = line.ok_or("the launcher ended without a report")?;
            match serde_json::from_str(&line)
                .map_err(|e| format!("unexpected launcher report {line:?}: {e}"))?
            {
                LauncherReport::Started(detected) => *confinement = Some(detected),
                LauncherReport::Failed(reason) => return Err(reason),
                LauncherReport::Memory(bytes) => {
                    memory.set(bytes);
                    if memory.must_yield(limits.shared_memory) {
                        return Ok(killed(ExceededLimit::SharedMemory));
                    }
                }
                LauncherReport::Left(processes) => warn!("{}", left_message(&processes)),
                LauncherReport::Ended { code, signal, exceeded } => {
                    return Ok(CommandEnd::Exited { code, signal, exceeded });
                }
            }
        }
    }
}

/// Returns the end of a command that is killed because it exceeds a limit.
fn killed(exceeded: ExceededLimit) -> CommandEnd {
    CommandEnd::Exited { code: KILLED_EXIT_CODE, signal: Some(KILL_SIGNAL), exceeded: Some(exceeded) }
}

fn spawn_output_reader(reader: PipeReader, into: Arc<Mutex<OutputBuffer>>) -> io::Result<JoinHandle<()>> {
    let mut reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    Ok(tokio::spawn(async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            into.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
        }
    }))
}

/// Maximum size of the output in bytes.
pub const MAX_OUTPUT: usize = 100_000;

#[derive(Debug)]
pub(super) struct OutputBuffer {
    half_size: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Default for OutputBuffer {
    fn default() -> Self {
        Self::new(MAX_OUTPUT)
    }
}

impl OutputBuffer {
    fn new(max_size: usize) -> Self {
        Self { half_size: max_size / 2, head: Vec::new(), tail: VecDeque::new(), dropped: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.half_size - self.head.len()));
        self.head.extend_from_slice(head);
        // If the rest is longer than the tail, only its end is kept.
        let skipped = rest.len().saturating_sub(self.half_size);
        self.tail.extend(&rest[skipped..]);
        let over = self.tail.len().saturating_sub(self.half_size);
        self.tail.drain(..over);
        self.dropped += (skipped + over) as u64;
    }

    /// Returns the text, with a note in place of omitted bytes. Invalid UTF-8 is shown as `�`.
    pub(super) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[… {} bytes omitted …]\n{tail}", self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(max_size: usize, pieces: &[&str]) -> String {
        let mut buffer = OutputBuffer::new(max_size);
        for piece in pieces {
            buffer.push(piece.as_bytes());
        }
        buffer.text()
    }

    #[test]
    fn output_within_the_limit_is_kept() {
        assert_eq!(buffer(10, &[]), "");
        assert_eq!(buffer(10, &["abc", "defg", "hij"]), "abcdefghij");
        assert_eq!(buffer(10, &["ab", "äö"]), "abäö");
        assert_eq!(buffer(4, &["aä", "b"]), "aäb", "a character may span head and tail");
    }

    #[test]
    fn long_output_keeps_its_head_and_tail() {
        let expected = "abcde\n[… 16 bytes omitted …]\nvwxyz";
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        assert_eq!(buffer(10, &[alphabet]), expected);
        let letters: Vec<String> = alphabet.chars().map(String::from).collect();
        assert_eq!(buffer(10, &letters.iter().map(String::as_str).collect::<Vec<_>>()), expected);
    }
}
