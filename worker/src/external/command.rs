//! The kind `command`: a program that reads the task as JSON from standard input and writes the result to standard
//! output; lines on standard error are progress. It has answered when it exits. All processes that it has started are ended then,
//! and when the attempt ends.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::ProgramFiles;
use millrace_agent::spec::CapabilityFields;
use millrace_agent::tool::{Effect, schema_of};
use millrace_protocol::result::{CapabilityDescription, TaskError, TaskResult};
use millrace_protocol::secrets::{PieceRedactor, SecretRedactor, redact_bytes, remember_secrets};
use millrace_runtime::store::blobs::sha256_hex;
use millrace_strict_yaml::{
    MappingFields, MistakeCollector, YamlMistake, YamlMistakes, YamlNode, deserialize_node,
};
use millrace_tools::program::{ExchangeError, Program, RunningProgram};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::files::{ProgramFolder, WrittenFiles};
use super::{
    ExternalFailure, ExternalOutput, ExternalTask, ExternalWorkState, begin_or_resume_work, parse_effect,
    parse_timeout, record_output,
};
use crate::tools::launcher_of_this_program;
use crate::{Attempt, Capability, CapabilityOutcome};

const FIELDS: [&str; 7] = ["command", "files", "folder", "environment", "timeout", "effect", "max_output"];
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
    program: Vec<String>,
    folder: PathBuf,
    /// The files of the run that the program works on; `None` if it gets none.
    files: Option<ProgramFiles>,
    environment: Vec<String>,
    timeout: Duration,
    effect: Effect,
    max_output: usize,
}

fn parse_program(command: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let words = command.parse_list("command", "words: the program and its arguments")?;
    let words = words.iter().map(|word| Ok(word.parse_text("command")?.to_owned()));
    let program: Vec<String> = words.collect::<Result<_, YamlMistake>>()?;
    if program.first().is_none_or(String::is_empty) {
        return Err(command.mismatch_error("command", "a list that begins with a program"));
    }
    Ok(program)
}

fn parse_variable_names(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let names = node.parse_list("environment", "names of variables")?;
    names.iter().map(|name| Ok(name.parse_text("environment")?.to_owned())).collect()
}

impl CommandCapability {
    /// Reads a file. `file_folder` is the folder of the file, which is the default working directory.
    pub fn parse(root: &YamlNode, file_folder: &Path) -> Result<Self, YamlMistakes> {
        let mut mistakes = MistakeCollector::default();
        let capability = Self::collect(root, file_folder, &mut mistakes);
        mistakes.finish()?;
        Ok(capability.expect("a missing field is a mistake"))
    }

    fn collect(root: &YamlNode, file_folder: &Path, mistakes: &mut MistakeCollector) -> Option<Self> {
        let known = super::append_common_fields(&FIELDS);
        let fields =
            MappingFields::collect_from_node(root, "capability of the kind command", &known, mistakes)?;
        let about = CapabilityFields::collect_fields(&fields, mistakes);
        let program = mistakes.check(fields.require_field("command").and_then(parse_program));
        let names = fields.find_field("environment").map(parse_variable_names);
        let environment = mistakes.check_optional(names).unwrap_or_default();
        let folder = fields.find_field("folder").map(|node| node.parse_text("folder"));
        let folder = mistakes.check_optional(folder);
        let files = fields.find_field("files").map(|node| deserialize_node(node, "files"));
        let files = mistakes.check_optional(files);
        let max_output =
            fields.find_field("max_output").map(|node| node.parse_integer("max_output", "of bytes"));
        let max_output = mistakes.check_optional(max_output);
        let timeout = mistakes.check(parse_timeout(&fields, TIMEOUT));
        let effect = mistakes.check(parse_effect(&fields, Effect::Effect));
        Some(Self {
            about: about?,
            program: program?,
            folder: folder.map_or_else(|| file_folder.to_owned(), |folder| file_folder.join(folder)),
            files,
            environment,
            timeout: timeout?,
            effect: effect?,
            max_output: max_output.unwrap_or(MAX_OUTPUT) as usize,
        })
    }

    /// Records the SHA-256 of the file that the command names, or, if it names several, of the lines of their SHA-256. A program
    /// that is found by `PATH` is not one of them.
    pub fn hash_program(&mut self) {
        let files = self.program.iter().map(|word| self.folder.join(word));
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
        let (waited, step) = match begin_or_resume_work(attempt, self.effect).await? {
            ExternalWorkState::Done(result) => return Ok(*result),
            ExternalWorkState::Pending(waited) => (waited, None),
            ExternalWorkState::Ended(waited, step) => (waited, Some(*step)),
        };
        let task = task.with_key_after_waits(waited);
        let (bytes, files) = match (step, &self.files) {
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
        record_output(attempt, waited, output, self.about.output.as_ref(), self.effect).await
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
            running.exchange(&task, self.max_output).await.map_err(|fault| {
                let why = match fault {
                    ExchangeError::Wait(fault) => format!("can't wait for {}: {fault}", self.program_name()),
                    ExchangeError::TooLong(_) => format!("{fault}; raise max_output, or write less"),
                    ExchangeError::Read(_) => fault.to_string(),
                };
                ExternalFailure::with_unknown_outcome(why)
            })
        };
        let timeout = tokio::time::sleep(self.timeout);
        tokio::pin!(ended, timeout);
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended,
                line = progress.next_line() => attempt.record_note(line).await?,
                () = &mut timeout => {
                    let why = format!("{} timed out after {:?}", self.program_name(), self.timeout);
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
        remember_passed_variables(&self.environment, &self.program);
        let program = Program {
            command: (0..self.program.len()).map(|at| self.resolve_word(at).into()).collect(),
            folder: Some(folder.to_owned()),
            ..Program::default()
        };
        let program =
            program.pass_variables(PASSED.into_iter().chain(self.environment.iter().map(String::as_str)));
        let started = RunningProgram::start(launcher_of_this_program().as_ref(), &program).await;
        started.map_err(|fault| {
            ExternalFailure::without_effect(format!("can't start {}: {fault}", self.program_name()))
        })
    }

    /// Returns a word of the command. A program that works in a folder of its own finds `./` and `../` from the folder of the
    /// capability all the same.
    fn resolve_word(&self, at: usize) -> PathBuf {
        let word = &self.program[at];
        let is_relative = word.starts_with("./") || word.starts_with("../");
        if self.files.is_none() || !is_relative {
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
        failure.into_task_error(self.effect)
    }

    fn program_name(&self) -> String {
        format!("the program {:?}", self.program[0])
    }
}

impl Capability for CommandCapability {
    fn describe(&self) -> CapabilityDescription {
        self.about.to_capability_description()
    }

    fn max_concurrent_attempts(&self) -> Option<u32> {
        self.about.slots
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

fn files_schema() -> Value {
    let description = "The files of the run that the program gets in its working directory, and those whose changes are kept.";
    let mut schema = schema_of::<ProgramFiles>();
    schema["description"] = json!(description);
    schema
}

/// Returns the JSON Schema of the kind `command`.
pub(crate) fn capability_file_schema() -> Value {
    let own = json!({
        "command": {
            "description": "The program and its arguments.",
            "type": "array",
            "items": { "type": "string" },
            "minItems": 1,
        },
        "files": files_schema(),
        "folder": {
            "description": "The working directory, relative to the folder of this file. With files, the program works in a \
                            folder of its own, and words of the command that begin with ./ or ../ are found from here.",
            "type": "string",
        },
        "environment": {
            "description": "Environment variables to pass on from the worker, in addition to PATH, HOME, LANG, TMPDIR and TZ.",
            "type": "array",
            "items": { "type": "string" },
        },
        "max_output": { "description": "The most bytes of its result.", "type": "integer", "minimum": 0 },
    });
    super::build_capability_schema("command", "command", own)
}
