//! The capability that is a program: it gets the task as JSON on its standard input and gives the result on its standard
//! output; what it says on its standard error is progress. It owns the process and all that it starts, which ends with
//! the program, and with the attempt.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::spec::About;
use millrace_agent::tool::Effect;
use millrace_forms::{Fields, Mistake, Node};
use millrace_protocol::result::{CapabilityDescription, TaskError, TaskResult};
use millrace_tools::bound::{self, Group};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::time::Instant;

use crate::outside::{self, Begun, Failed, Task, begin, effect, record, result, timeout};
use crate::shelf::this_program;
use crate::{Attempt, Capability, Outcome, file};

const FIELDS: [&str; 6] = ["command", "folder", "environment", "timeout", "effect", "max_output"];
/// How long a program may take, unless its file says another time.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The most bytes of a result, unless the file says another number.
const MAX_OUTPUT: u32 = 16 * 1024 * 1024;
/// The variables that every program gets.
const PASSED: [&str; 5] = ["PATH", "HOME", "LANG", "TMPDIR", "TZ"];
/// The least time between two lines of progress that are told.
const BETWEEN: Duration = Duration::from_millis(500);
/// The longest line of progress, in characters.
const MAX_LINE: usize = 500;
/// How many of the last lines are told with an error.
const LAST_LINES: usize = 10;

/// A program as a capability.
pub(crate) struct Command {
    about: About,
    program: Vec<String>,
    folder: PathBuf,
    environment: Vec<String>,
    timeout: Duration,
    effect: Effect,
    max_output: usize,
}

impl Command {
    /// Reads a file; `beside` is the folder it lies in, where the program works unless the file says otherwise.
    pub fn read(root: &Node, beside: &Path) -> Result<Self, Mistake> {
        let fields = Fields::of(root, "capability of the kind command", &file::fields(&FIELDS))?;
        let about = About::read(&fields)?;
        let command = fields.required("command")?;
        let words = command.list("command", "words: the program and its arguments")?;
        let program: Vec<String> =
            words.iter().map(|word| Ok(word.text("command")?.to_owned())).collect::<Result<_, Mistake>>()?;
        if program.first().is_none_or(String::is_empty) {
            return Err(command.not("command", "a list that begins with a program"));
        }
        let names = fields.get("environment").map(|node| node.list("environment", "names of variables"));
        let environment = names.transpose()?.unwrap_or_default();
        let folder = fields.get("folder").map(|node| node.text("folder")).transpose()?;
        let max_output =
            fields.get("max_output").map(|node| node.whole("max_output", "of bytes")).transpose()?;
        Ok(Self {
            about,
            program,
            folder: folder.map_or_else(|| beside.to_owned(), |folder| beside.join(folder)),
            environment: environment
                .iter()
                .map(|name| Ok(name.text("environment")?.to_owned()))
                .collect::<Result<_, Mistake>>()?,
            timeout: timeout(&fields, TIMEOUT)?,
            effect: effect(&fields, Effect::Effect)?,
            max_output: max_output.unwrap_or(MAX_OUTPUT) as usize,
        })
    }

    pub fn about(&self) -> &About {
        &self.about
    }

    async fn work(&self, attempt: &mut Attempt<'_>) -> Result<TaskResult, TaskError> {
        let task = Task::of(attempt).await?;
        if let Begun::Done(done) = begin(attempt, self.effect).await? {
            return Ok(*done);
        }
        let output = self.execute(attempt, task.json()).await?;
        let result = result(&output, self.about.output.as_ref()).map_err(|failed| self.error(failed))?;
        record(attempt, &result).await?;
        Ok(result)
    }

    /// Runs the program to its end and gives what it wrote.
    async fn execute(&self, attempt: &mut Attempt<'_>, task: Vec<u8>) -> Result<Vec<u8>, TaskError> {
        let mut running = self.start().await.map_err(|failed| self.error(failed))?;
        let mut group = running.id().map(Group);
        let (stdin, stdout) = (running.stdin.take(), running.stdout.take());
        let mut said = Said::of(running.stderr.take());
        let feeding = async {
            if let Some(mut stdin) = stdin {
                // A program that does not want its task may close its input.
                drop(stdin.write_all(&task).await);
            }
            Ok(())
        };
        let waiting = async {
            let status = running.wait().await;
            // What it leaves behind may hold its input and output open.
            drop(group.take());
            status.map_err(|fault| Failed::unclear(format!("{} can't be waited for: {fault}", self.name())))
        };
        let ended = async { tokio::try_join!(waiting, read_output(stdout, self.max_output), feeding) };
        let timeout = tokio::time::sleep(self.timeout);
        tokio::pin!(ended, timeout);
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended,
                line = said.next() => attempt.note(line).await?,
                () = &mut timeout => {
                    let why = format!("{} did not end within {:?}", self.name(), self.timeout);
                    break Err(Failed::unclear(why));
                }
            }
        };
        said.rest().await;
        let output = ended.and_then(|(status, output, ())| self.judge(output, status, &said));
        output.map_err(|failed| self.error(failed))
    }

    async fn start(&self) -> Result<Child, Failed> {
        let passed = PASSED.into_iter().chain(self.environment.iter().map(String::as_str));
        let variables = passed.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)));
        let mut command = bound::command(&self.program[0], this_program().as_ref());
        command
            .args(&self.program[1..])
            .current_dir(&self.folder)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let started = bound::spawn(move || command.spawn()).await.flatten();
        started.map_err(|fault| Failed::undone(format!("{} can't be started: {fault}", self.name())))
    }

    fn judge(&self, output: Vec<u8>, status: ExitStatus, said: &Said) -> Result<Vec<u8>, Failed> {
        if status.success() {
            return Ok(output);
        }
        let why = format!("{} failed ({status}): {}", self.name(), said.last_words());
        // One that a signal ended could not say how far it was.
        Err(Failed { why, may_be_done: status.code().is_none() })
    }

    fn error(&self, failed: Failed) -> TaskError {
        failed.error(self.effect)
    }

    fn name(&self) -> String {
        format!("the program {:?}", self.program[0])
    }
}

impl Capability for Command {
    fn describe(&self) -> CapabilityDescription {
        self.about.describe()
    }

    fn slots(&self) -> Option<u32> {
        self.about.slots
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        async move { self.work(attempt).await.map(Outcome::Result) }.boxed()
    }
}

async fn read_output(stdout: Option<ChildStdout>, max: usize) -> Result<Vec<u8>, Failed> {
    let Some(stdout) = stdout else { return Ok(Vec::new()) };
    let mut output = Vec::new();
    let read = stdout.take(max as u64 + 1).read_to_end(&mut output).await;
    read.map_err(|fault| Failed::unclear(format!("its output can't be read: {fault}")))?;
    if output.len() > max {
        let why = format!("its output is longer than {max} bytes; raise max_output, or write less");
        return Err(Failed::unclear(why));
    }
    Ok(output)
}

/// What the program says on its standard error.
struct Said {
    lines: Option<BufReader<ChildStderr>>,
    last: std::collections::VecDeque<String>,
    told: Option<Instant>,
}

impl Said {
    fn of(stderr: Option<ChildStderr>) -> Self {
        Self { lines: stderr.map(BufReader::new), last: Default::default(), told: None }
    }

    /// The next line that is to be told; of many at once the first. Never, once there are none.
    async fn next(&mut self) -> String {
        while let Some(line) = self.read().await {
            if self.told.is_none_or(|told| told.elapsed() >= BETWEEN) {
                self.told = Some(Instant::now());
                return line;
            }
        }
        std::future::pending().await
    }

    /// Reads what is left for the last words, as far as it is there already.
    async fn rest(&mut self) {
        let reading = async { while self.read().await.is_some() {} };
        drop(tokio::time::timeout(Duration::from_millis(200), reading).await);
    }

    async fn read(&mut self) -> Option<String> {
        let lines = self.lines.as_mut()?;
        let mut line = Vec::new();
        loop {
            // A line without end is told in pieces: it must not fill the memory.
            let available = match lines.fill_buf().await {
                Ok([]) | Err(_) => {
                    self.lines = None;
                    break;
                }
                Ok(bytes) => bytes,
            };
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            line.extend_from_slice(&available[..taken]);
            lines.consume(taken);
            if end.is_some() || line.len() > 4 * MAX_LINE {
                break;
            }
        }
        let text: String = String::from_utf8_lossy(&line).trim_end().chars().take(MAX_LINE).collect();
        if text.is_empty() && self.lines.is_none() {
            return None;
        }
        self.last.push_back(text.clone());
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
        }
        Some(text)
    }

    fn last_words(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { "it said nothing".into() } else { lines.join("\n") }
    }
}

/// The JSON Schema of such a file.
pub(crate) fn schema() -> Value {
    let own = json!({
        "command": {
            "description": "The program and its arguments.",
            "type": "array",
            "items": { "type": "string" },
            "minItems": 1,
        },
        "folder": { "description": "Where it works, from the folder of this file.", "type": "string" },
        "environment": {
            "description": "Variables of the worker's environment that it gets besides PATH, HOME, LANG, TMPDIR and TZ.",
            "type": "array",
            "items": { "type": "string" },
        },
        "max_output": { "description": "The most bytes of its result.", "type": "integer", "minimum": 0 },
    });
    outside::schema("command", "command", own)
}
