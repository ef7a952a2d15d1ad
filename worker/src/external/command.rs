//! The kind `command`: a program that reads the task as JSON from standard input and writes the result to standard
//! output; lines on standard error are progress. It has answered when it exits. All processes that it has started are ended then,
//! and when the attempt ends.
//!
//! The files of the run that a program works on: they are laid out in a temporary folder before it starts. What it changed is
//! recorded with its output under `files.<n>`, after `n` waits, and then written to the workspace.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{AgentFiles, FilesError, ProgramFiles, WorkingCopy};
use millrace_agent::sources::OrderInputError;
use millrace_agent::spec::CapabilityFields;
use millrace_agent::tool::Effect;
use millrace_agent::turn::{ArtifactChange, FileChangesError, Host as _, RecordedChanges};
use millrace_protocol::result::{Artifact, CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::secrets::{PieceRedactor, SecretRedactor, redact_bytes, remember_secrets};
use millrace_runtime::store::blobs::sha256_hex;
use millrace_strict_yaml::{
    FileDuration, Whole, YamlMistakes, YamlNode, command_words, tidy_schema, without_defaults,
};
use millrace_tools::program::{ExchangeError, Program, RunningProgram};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::{
    ExternalFailure, ExternalOutput, ExternalTask, ExternalWorkState, begin_or_resume_work, record_output,
};

use crate::tools::launcher_of_this_program;
use crate::{Attempt, Capability, CapabilityOutcome};

/// The default timeout.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The default limit of a result, in bytes.
const MAX_OUTPUT: u32 = 16 * 1024 * 1024;
/// The environment variables that every program gets.
pub(crate) const PASSED: [&str; 5] = ["PATH", "HOME", "LANG", "TMPDIR", "TZ"];
/// The shortest time between two progress notes.
const NOTE_INTERVAL: Duration = Duration::from_millis(500);
/// The longest line of progress, in characters.
const MAX_LINE: usize = 500;
/// The size in bytes of the largest file of a program whose SHA-256 is recorded.
const MAX_HASHED: u64 = 64 * 1024 * 1024;
/// The number of last lines that an error includes.
const LAST_LINES: usize = 10;

/// A program as a capability.
pub(crate) struct CommandCapability {
    pub about: CapabilityFields,
    own: CommandFields,
    folder: PathBuf,
}

/// The fields of the kind `command`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "capability of the kind command")]
#[schemars(transform = tidy_schema, transform = without_defaults)]
struct CommandFields {
    /// The program and its arguments.
    #[serde(rename = "command", deserialize_with = "read_program")]
    #[schemars(length(min = 1))]
    program: Vec<String>,
    /// The files of the run that the program gets in its working directory, and those whose changes are kept.
    files: Option<ProgramFiles>,
    /// The working directory, relative to the folder of this file. With files, the program works in a folder of its own, and words of the command that begin with ./ or ../ are found from here.
    folder: Option<String>,
    /// Environment variables to pass on from the worker, in addition to PATH, HOME, LANG, TMPDIR and TZ.
    #[serde(default)]
    environment: Vec<String>,
    /// The most bytes of its result.
    #[serde(default = "default_max_output")]
    max_output: Whole<0, { u32::MAX }>,
    /// Timeout, including retries: seconds, or text such as 5m.
    #[serde(default = "default_timeout")]
    timeout: FileDuration,
    /// What happens if the work is done twice: nothing (pure), nothing if the key is the same (idempotent), or a second effect (effect; never retried automatically).
    #[serde(default = "default_effect")]
    effect: Effect,
}

fn default_max_output() -> Whole<0, { u32::MAX }> {
    Whole(MAX_OUTPUT)
}

fn default_timeout() -> FileDuration {
    FileDuration(TIMEOUT)
}

fn default_effect() -> Effect {
    Effect::Effect
}

fn read_program<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let program = command_words(deserializer)?;
    match program.first().is_none_or(String::is_empty) {
        true => Err(D::Error::custom("it must be a list that begins with a program, not a list")),
        false => Ok(program),
    }
}

impl CommandCapability {
    /// Reads a file. `file_folder` is the folder of the file, which is the default working directory.
    pub fn parse(root: &YamlNode, file_folder: &Path) -> Result<Self, YamlMistakes> {
        let (about, own) = super::read_file::<CommandFields>(root, "command")?;
        let folder =
            own.folder.as_ref().map_or_else(|| file_folder.to_owned(), |folder| file_folder.join(folder));
        Ok(Self { about, own, folder })
    }

    /// Records the SHA-256 of the file that the command names, or, if it names several, of the lines of their SHA-256. A program
    /// that is found by `PATH` is not one of them.
    pub fn hash_program(&mut self) {
        let files = self.own.program.iter().map(|word| self.folder.join(word));
        let small = files.filter(|path| {
            std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_HASHED)
        });
        let hashes = small.filter_map(|path| std::fs::read(path).ok()).map(|bytes| sha256_hex(&bytes));
        self.about.version.program_sha256 = match &hashes.collect::<Vec<_>>()[..] {
            [] => None,
            [only] => Some(only.clone()),
            several => Some(sha256_hex(several.join("\n").as_bytes())),
        };
    }

    pub fn info(&self) -> &CapabilityFields {
        &self.about
    }

    async fn run_task(&self, attempt: &mut Attempt<'_>) -> Result<TaskResult, TaskError> {
        let task = ExternalTask::read_from_attempt(attempt).await?;
        let (waited, step) = match begin_or_resume_work(attempt, self.own.effect).await? {
            ExternalWorkState::Done(result) => return Ok(*result),
            ExternalWorkState::Pending(waited) => (waited, None),
            ExternalWorkState::Ended(waited, step) => (waited, Some(*step)),
        };
        let task = task.with_key_after_waits(waited);
        let (bytes, files) = match (step, &self.own.files) {
            (Some(step), _) => step.write_back(attempt, &task.key).await?,
            (None, None) => (self.run_program(attempt, &task, &self.folder).await?, WrittenFiles::default()),
            (None, Some(files)) => {
                let mut folder = ProgramFolder::update_folder(attempt, files).await?;
                let output = self.run_program(attempt, &task, folder.path()).await?;
                let step = folder.record_changes(attempt, waited, &output).await?;
                step.write_back(attempt, &task.key).await?
            }
        };
        let output = ExternalOutput { bytes: &bytes, files };
        record_output(attempt, waited, output, self.about.output.as_ref(), self.own.effect).await
    }

    /// Runs the program in a folder and returns its output.
    async fn run_program(
        &self,
        attempt: &mut Attempt<'_>,
        task: &ExternalTask,
        folder: &Path,
    ) -> Result<Vec<u8>, TaskError> {
        let task = task.to_json();
        let running = self.start_program(folder).await;
        let mut running = running.map_err(|failure| self.convert_failure(failure))?;
        let mut progress = StderrProgress::new(running.stderr.take());
        let ended = async {
            running.exchange(&task, self.own.max_output.0 as usize).await.map_err(|fault| {
                let why = match fault {
                    ExchangeError::Wait(fault) => format!("can't wait for {}: {fault}", self.program_name()),
                    ExchangeError::TooLong(_) => format!("{fault}; raise max_output, or write less"),
                    ExchangeError::Read(_) => fault.to_string(),
                };
                ExternalFailure::with_unknown_outcome(why)
            })
        };
        let timeout = tokio::time::sleep(self.own.timeout.0);
        tokio::pin!(ended, timeout);
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended,
                line = progress.next_line() => attempt.record_note(line).await?,
                () = &mut timeout => {
                    let why = format!("{} timed out after {:?}", self.program_name(), self.own.timeout.0);
                    break Err(ExternalFailure::with_unknown_outcome(why));
                }
            }
        };
        progress.read_remaining_lines().await;
        let output = ended
            .and_then(|(status, output)| self.check_exit_status(redact_bytes(output), status, &progress));
        output.map_err(|failure| self.convert_failure(failure))
    }

    async fn start_program(&self, folder: &Path) -> Result<RunningProgram, ExternalFailure> {
        remember_passed_variables(&self.own.environment, &self.own.program);
        let program = Program {
            command: (0..self.own.program.len()).map(|at| self.resolve_word(at).into()).collect(),
            folder: Some(folder.to_owned()),
            ..Program::default()
        };
        let program =
            program.pass_variables(PASSED.into_iter().chain(self.own.environment.iter().map(String::as_str)));
        let started = RunningProgram::start(launcher_of_this_program().as_ref(), &program).await;
        started.map_err(|fault| {
            ExternalFailure::without_effect(format!("can't start {}: {fault}", self.program_name()))
        })
    }

    /// Returns a word of the command. A program that works in a folder of its own finds `./` and `../` from the folder of the
    /// capability all the same.
    fn resolve_word(&self, at: usize) -> PathBuf {
        let word = &self.own.program[at];
        let is_relative = word.starts_with("./") || word.starts_with("../");
        if self.own.files.is_none() || !is_relative {
            return PathBuf::from(word);
        }
        let joined = self.folder.join(word);
        std::path::absolute(&joined).unwrap_or(joined)
    }

    fn check_exit_status(
        &self,
        output: Vec<u8>,
        status: ExitStatus,
        progress: &StderrProgress,
    ) -> Result<Vec<u8>, ExternalFailure> {
        if status.success() {
            return Ok(output);
        }
        let why = format!("{} failed ({status}): {}", self.program_name(), progress.last_lines());
        // A program that was killed by a signal could not report how far it got.
        Err(ExternalFailure { why, may_be_done: status.code().is_none() })
    }

    fn convert_failure(&self, failure: ExternalFailure) -> TaskError {
        failure.into_task_error(self.own.effect)
    }

    fn program_name(&self) -> String {
        format!("the program {:?}", self.own.program[0])
    }
}

impl Capability for CommandCapability {
    fn describe(&self) -> CapabilityDescription {
        self.about.to_capability_description()
    }

    fn max_concurrent_attempts(&self) -> Option<u32> {
        self.about.slots.map(u32::from)
    }

    fn run<'a>(
        &'a self,
        attempt: &'a mut Attempt<'_>,
    ) -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>> {
        async move { self.run_task(attempt).await.map(CapabilityOutcome::Result) }.boxed()
    }
}

/// Remembers what a program gets and may write: variables, and arguments that hold secrets.
pub(crate) fn remember_passed_variables(variables: &[String], arguments: &[String]) {
    let mut secrets = SecretRedactor::default();
    for name in variables {
        secrets.add_named(name, &std::env::var(name).unwrap_or_default());
    }
    secrets.add_arguments(arguments);
    remember_secrets(&secrets);
}

/// The lines that the program writes to standard error.
struct StderrProgress {
    lines: Option<BufReader<pipe::Receiver>>,
    redactor: PieceRedactor,
    last: std::collections::VecDeque<String>,
    noted_at: Option<Instant>,
}

impl StderrProgress {
    fn new(stderr: Option<pipe::Receiver>) -> Self {
        Self {
            lines: stderr.map(BufReader::new),
            redactor: PieceRedactor::default(),
            last: Default::default(),
            noted_at: None,
        }
    }

    /// Returns the next line for a progress note; lines within [`NOTE_INTERVAL`] of the last note are skipped. Waits
    /// forever at the end of the lines.
    async fn next_line(&mut self) -> String {
        while let Some(line) = self.read_line().await {
            if self.noted_at.is_none_or(|at| at.elapsed() >= NOTE_INTERVAL) {
                self.noted_at = Some(Instant::now());
                return line;
            }
        }
        std::future::pending().await
    }

    /// Reads the remaining lines for the error message, as far as they are available already.
    async fn read_remaining_lines(&mut self) {
        let reading = async { while self.read_line().await.is_some() {} };
        drop(tokio::time::timeout(Duration::from_millis(200), reading).await);
    }

    async fn read_line(&mut self) -> Option<String> {
        let lines = self.lines.as_mut()?;
        let mut line = Vec::new();
        loop {
            // An overlong line is split, so that it can't fill the memory.
            let available = match lines.fill_buf().await {
                Ok([]) | Err(_) => {
                    self.lines = None;
                    break;
                }
                Ok(bytes) => bytes,
            };
            let end = available.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(available.len(), |at| at + 1);
            line.extend_from_slice(&available[..length]);
            lines.consume(length);
            if end.is_some() || line.len() > 4 * MAX_LINE {
                break;
            }
        }
        let mut text = self.redactor.push(&String::from_utf8_lossy(&line));
        if line.ends_with(b"\n") || self.lines.is_none() {
            text += &self.redactor.finish();
        }
        let text: String = text.trim_end().chars().take(MAX_LINE).collect();
        if text.is_empty() && self.lines.is_none() {
            return None;
        }
        self.last.push_back(text.clone());
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
        }
        Some(text)
    }

    fn last_lines(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { "no output on standard error".into() } else { lines.join("\n") }
    }
}

/// Returns the JSON Schema of the kind `command`.
pub(crate) fn capability_file_schema() -> Value {
    super::build_capability_schema::<CommandFields>("command", "command")
}

/// The name of the step that records the changes of a program after this number of waits.
pub(super) fn step_name(waited: u32) -> String {
    format!("files.{waited}")
}

/// The step that records the output of a program and the files that it changed, before they are written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FilesStep {
    output: String,
    changes: RecordedChanges,
}

/// The files that a program changed in the workspace.
#[derive(Debug, Default)]
pub(super) struct WrittenFiles {
    /// The files that it made or changed.
    pub artifacts: Vec<Artifact>,
    /// The conflicts and the changes that are not kept, for the reader of the result.
    pub warnings: String,
}

/// The working folder of a program. It is removed on drop.
pub(super) struct ProgramFolder {
    folder: TempDir,
    copy: WorkingCopy,
}

impl ProgramFolder {
    /// Creates a folder with the files of the run.
    pub async fn update_folder(
        attempt: &mut Attempt<'_>,
        settings: &ProgramFiles,
    ) -> Result<Self, TaskError> {
        let unusable = |error: std::io::Error| {
            TaskError::new(ErrorKind::Tool, format!("can't create a working folder for the program: {error}"))
        };
        let folder = tempfile::Builder::new().prefix("millrace-command-").tempdir().map_err(unusable)?;
        let files = AgentFiles::unrestricted(attempt.files());
        let mut copy = WorkingCopy::open(files, settings.clone(), folder.path()).map_err(unusable)?;
        let omissions = copy.update_folder().await.map_err(|error| convert_files_error(attempt, error))?;
        if !omissions.is_empty() {
            attempt.record_note(format!("not in the working folder: {}", omissions.join("; "))).await?;
        }
        Ok(Self { folder, copy })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Records the output of the program and what it changed.
    ///
    /// # Errors
    /// The folder can't be read; or as for a step.
    pub async fn record_changes(
        &mut self,
        attempt: &mut Attempt<'_>,
        waited: u32,
        output: &[u8],
    ) -> Result<FilesStep, TaskError> {
        let found = self.copy.find_changes(false).await;
        let found = found.map_err(|error| convert_files_error(attempt, error))?;
        let changes = RecordedChanges::store_contents(&found, attempt.host).await;
        let changes = changes.map_err(|error| convert_changes_error(attempt, error))?;
        let step = FilesStep { output: String::from_utf8_lossy(output).into_owned(), changes };
        let value = serde_json::to_value(&step).expect("changes hold only texts, numbers and bytes");
        attempt.host.record(&step_name(waited), &value).await?;
        Ok(step)
    }
}

impl FilesStep {
    /// Writes the changes under the key of the work. Returns the output of the program and the changed files.
    ///
    /// # Errors
    /// The workspace can't be used now.
    pub async fn write_back(
        self,
        attempt: &mut Attempt<'_>,
        key: &str,
    ) -> Result<(Vec<u8>, WrittenFiles), TaskError> {
        let files = AgentFiles::unrestricted(attempt.files());
        let written = self.changes.write_back(&files, key, attempt.host).await;
        let written = written.map_err(|error| convert_changes_error(attempt, error))?;
        if !written.text.is_empty() {
            attempt.record_note(written.text).await?;
        }
        let artifacts = written.artifacts.into_iter().filter_map(|change| match change {
            ArtifactChange::Written(artifact) => Some(artifact),
            ArtifactChange::Deleted(_) => None,
        });
        let files = WrittenFiles { artifacts: artifacts.collect(), warnings: written.warnings };
        Ok((self.output.into_bytes(), files))
    }
}

/// Converts the error of the workspace: if it is unavailable, the attempt is released and continues later.
fn convert_files_error(attempt: &mut Attempt<'_>, error: FilesError) -> TaskError {
    match error {
        FilesError::Unavailable(why) => {
            attempt.host.end_with_session_error(OrderInputError::Unavailable(why))
        }
        FilesError::Stale { .. }
        | FilesError::Denied(_)
        | FilesError::TooLarge { .. }
        | FilesError::Broken(_) => {
            TaskError::new(ErrorKind::Tool, format!("the files of the program can't be used: {error}"))
        }
    }
}

fn convert_changes_error(attempt: &mut Attempt<'_>, error: FileChangesError) -> TaskError {
    match error {
        FileChangesError::Files(error) => convert_files_error(attempt, error),
        // The attempt keeps the cause and decides its outcome.
        FileChangesError::Host(_) => TaskError::new(ErrorKind::Other, error.to_string()),
    }
}
