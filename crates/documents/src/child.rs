//! The child process that parses binary formats: how it is started and stopped, and its entry point. It gets the file on
//! standard input, has no environment, and answers with JSON.
//!
//! # Invariants
//!
//! - I135: Documents in binary formats are parsed in a process without keys and with limits; a hostile or broken file is skipped
//!   with a reason. (`crates/documents/tests/formats.rs::hostile_and_broken_files_are_refused_with_the_reason`,
//!   `crates/documents/tests/formats.rs::any_prefix_and_any_flipped_byte_of_a_file_is_read_or_refused`,
//!   `crates/documents/tests/formats.rs::child_is_stopped_at_its_limits`)

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{BinaryFormat, ExtractError, ExtractedText, extract_text};

const ARGUMENT: &str = "__extract-document";
/// The stack of the thread that parses.
const STACK: usize = 64 * 1024 * 1024;
/// The maximum number of files that a child process has open.
const MAX_FILES: u64 = 64;

/// The time for a child process to end after its answer: polls, and the time between them.
const END_POLLS: u32 = 400;
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// `true` if the `main` of this process called [`run_as_extractor`].
static MAIN_CALLS_EXTRACTOR: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtractorLimits {
    /// The time, both elapsed and of the processor, in seconds.
    pub seconds: u64,
    pub memory: u64,
    /// The size of the text in bytes.
    pub output: u64,
}

impl Default for ExtractorLimits {
    /// A scanned book of 32 MiB takes a few seconds and 300 MiB.
    fn default() -> Self {
        Self { seconds: 60, memory: 1024 * 1024 * 1024, output: 64 * 1024 * 1024 }
    }
}

/// A program whose `main` calls [`run_as_extractor`].
#[derive(Debug, Clone)]
pub struct Extractor {
    program: PathBuf,
    limits: ExtractorLimits,
}

impl Extractor {
    /// Returns this program as an extractor.
    ///
    /// # Errors
    /// Its `main` does not call [`run_as_extractor`], or the system does not know its path.
    pub fn this_program() -> Result<Self, ExtractError> {
        if !MAIN_CALLS_EXTRACTOR.load(Ordering::Relaxed) {
            return Err(ExtractError::NotStarted(
                "the program's main does not begin with run_as_launcher()".into(),
            ));
        }
        let program = std::env::current_exe().map_err(not_started_error)?;
        Ok(Self::at(program))
    }

    /// Uses another program.
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), limits: ExtractorLimits::default() }
    }

    pub fn with_limits(self, limits: ExtractorLimits) -> Self {
        Self { limits, ..self }
    }

    /// Extracts the text of a document in a child process.
    pub fn extract_text(&self, format: BinaryFormat, bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
        let mut child = self.start_child(format)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ExtractError::NotStarted("it has no pipes".into()));
        };
        let answer = self.exchange(&mut child, input, output, bytes);
        let status = end_child(&mut child).map_err(not_started_error)?;
        let answer = answer?;
        if answer.len() as u64 > self.limits.output {
            return Err(ExtractError::TooLarge(self.limits.output / (1024 * 1024)));
        }
        serde_json::from_slice(&answer)
            .unwrap_or_else(|_| Err(ExtractError::Crashed(describe_status(status))))
    }

    fn start_child(&self, format: BinaryFormat) -> Result<Child, ExtractError> {
        let ExtractorLimits { seconds, memory, .. } = self.limits;
        Command::new(&self.program)
            .args([ARGUMENT, format.name(), &memory.to_string(), &seconds.to_string()])
            .env_clear()
            // The allocator of some programs claims memory beforehand, which would count against the limit.
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(not_started_error)
    }

    /// Writes the file and reads the answer, up to one byte more than it may have.
    fn exchange(
        &self,
        child: &mut Child,
        mut input: ChildStdin,
        output: ChildStdout,
        bytes: &[u8],
    ) -> Result<Vec<u8>, ExtractError> {
        let (sender, receiver) = mpsc::channel();
        let limit = self.limits.output + 1;
        std::thread::scope(|scope| {
            // A child that has enough, or has died, closes the pipe.
            scope.spawn(move || drop(input.write_all(bytes)));
            scope.spawn(move || {
                let mut answer = Vec::new();
                let read = output.take(limit).read_to_end(&mut answer);
                drop(sender.send(read.map(|_| answer)));
            });
            let answer = receiver.recv_timeout(Duration::from_secs(self.limits.seconds));
            // Ends both threads.
            if answer
                .as_ref()
                .map_or(true, |answer| answer.as_ref().is_ok_and(|read| read.len() as u64 >= limit))
            {
                drop(child.kill());
            }
            match answer {
                Ok(answer) => answer.map_err(not_started_error),
                Err(_) => Err(ExtractError::TimedOut(self.limits.seconds)),
            }
        })
    }
}

/// Does the work of a child process if this process was started as one; returns `None` at once otherwise. Call it first in
/// `main`.
pub fn run_as_extractor() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        MAIN_CALLS_EXTRACTOR.store(true, Ordering::Relaxed);
        return None;
    }
    let done = ChildArguments::parse(arguments).and_then(|arguments| arguments.run());
    Some(if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct ChildArguments {
    format: BinaryFormat,
    memory: u64,
    seconds: u64,
}

impl ChildArguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> io::Result<Self> {
        let invalid = || io::Error::other("invalid arguments for an internal command");
        let name = arguments.next().ok_or_else(invalid)?;
        let format =
            BinaryFormat::ALL.into_iter().find(|format| format.name() == name).ok_or_else(invalid)?;
        let mut number = || arguments.next().and_then(|text| text.parse().ok()).ok_or_else(invalid);
        Ok(Self { format, memory: number()?, seconds: number()? })
    }

    fn run(&self) -> io::Result<()> {
        let answer = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        // A parser may print.
        rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        std::panic::set_hook(Box::new(|_| {}));
        self.limit_resources()?;
        // The thread that started this process waits for it.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes)?;
        let mut answer = io::BufWriter::new(answer);
        serde_json::to_writer(&mut answer, &parse_on_own_stack(self.format, &bytes)?)?;
        answer.flush()
    }

    fn limit_resources(&self) -> io::Result<()> {
        for (resource, limit) in [
            (Resource::Data, self.memory),
            (Resource::Cpu, self.seconds),
            (Resource::Core, 0),
            (Resource::Fsize, 0),
            (Resource::Nofile, MAX_FILES),
        ] {
            setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
        }
        Ok(())
    }
}

/// Parses on a thread with a large stack. A panic is the answer that the file is damaged.
fn parse_on_own_stack(format: BinaryFormat, bytes: &[u8]) -> io::Result<Result<ExtractedText, ExtractError>> {
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(STACK);
        let parser = parser.spawn_scoped(scope, || extract_text(format, bytes))?;
        let panicked = |_| Err(ExtractError::Damaged("its parser failed".into()));
        Ok(parser.join().unwrap_or_else(panicked))
    })
}

/// Waits for the end of a child that has closed its output, and kills it if that takes long.
fn end_child(child: &mut Child) -> io::Result<ExitStatus> {
    for _ in 0..END_POLLS {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(END_POLL_INTERVAL);
    }
    child.kill()?;
    child.wait()
}

fn describe_status(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code} and no answer"),
        (None, None) => "ended without an answer".into(),
    }
}

fn not_started_error(error: io::Error) -> ExtractError {
    ExtractError::NotStarted(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_that_stays_after_its_answer_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(end_child(&mut child).unwrap().signal(), Some(9));
    }
}
