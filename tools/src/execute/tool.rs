//! The tool's side of `execute`: it opens the confinement that can be had, starts a launcher for each command, gathers
//! what the command says, and ends it in time.

use std::fs;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec, read_arguments, schema_of};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{info, warn};

use super::launcher::{Confinement, EXECUTE, Launcher, Order, Report};
use super::output::{Capture, MAX_OUTPUT};
use super::settings::{Confined, MAX_TIMEOUT, Settings};

/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The longest command, in bytes: the system takes no longer argument.
pub(super) const MAX_COMMAND: usize = 100_000;
/// How long the launcher may take to confine itself and `true`, and to end what a command has left behind.
const STARTING: Duration = Duration::from_secs(20);
const ENDING: Duration = Duration::from_secs(10);
/// The exit code of what was not done in time, as `timeout` has it.
const TIMED_OUT: i32 = 124;

/// The tool `execute`.
pub struct Execute {
    settings: Settings,
    launcher: Launcher,
    folder: Folder,
    environment: Vec<(String, String)>,
    confinement: Confinement,
}

/// Why no command can be run.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder is not there, or can't be made.
    #[error("the folder {} can't be used: {error}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A setting is outside its bounds.
    #[error("timeout_s is {0}; it must be 1 to {MAX_TIMEOUT}")]
    Timeout(u32),
    /// The launcher does not start, or not even `true` comes to its end in it.
    #[error("commands can't be started by {}: {reason}", launcher.display())]
    Launcher {
        /// The launcher.
        launcher: PathBuf,
        /// What it says.
        reason: String,
    },
    /// The worker runs as root, and the kernel does not limit how many processes root has.
    #[error(
        "this worker runs as root, and this kernel does not limit root's processes (Linux 6.14 does, with \
         namespaces): run the worker as another user, or set `require: []` to go without any guarantee"
    )]
    Root,
    /// This machine lacks what the settings require.
    #[error(
        "this machine can't confine commands as required: there is {found}, and {missing:?} is missing ({reason}); \
         run the worker where the kernel has it, or leave it out of `require`"
    )]
    NotConfined {
        /// What there is.
        found: Confinement,
        /// What is not.
        missing: Confined,
        /// What the launcher says of it.
        reason: String,
    },
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A command for /bin/sh, in one text.
    command: String,
    /// Seconds until it is killed, 3600 at most.
    timeout: Option<i64>,
}

/// A working folder. One that was made for the tool goes with it.
struct Folder {
    path: PathBuf,
    own: bool,
}

impl Folder {
    fn open(named: Option<&PathBuf>) -> Result<Self, OpenError> {
        let path = named.cloned().unwrap_or_else(|| {
            std::env::temp_dir().join(format!("millrace-execute-{}", uuid::Uuid::new_v4().simple()))
        });
        let made = match named {
            Some(path) => fs::canonicalize(path),
            None => fs::DirBuilder::new().mode(0o700).create(&path).and_then(|()| fs::canonicalize(&path)),
        };
        let found = made.and_then(|real| match fs::metadata(&real)?.is_dir() && real.parent().is_some() {
            true => Ok(real),
            false => Err(io::Error::other("it is no folder, or the root of all")),
        });
        match found {
            Ok(path) => Ok(Self { path, own: named.is_none() }),
            Err(error) => Err(OpenError::Folder { path, error }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.own
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            warn!(folder = %self.path.display(), %error, "the folder of execute is left behind");
        }
    }
}

/// How a command ended.
pub(super) enum End {
    Itself { code: i32, signal: Option<i32>, crowded: bool },
    InTime(Duration),
}

impl Execute {
    /// The tool, confined by as much as this machine has, which is tried out here.
    ///
    /// # Errors
    /// See [`OpenError`]; what the settings require is not there, above all.
    pub async fn open(settings: Settings, launcher: Launcher) -> Result<Self, OpenError> {
        if !(1..=MAX_TIMEOUT).contains(&settings.timeout_s) {
            return Err(OpenError::Timeout(settings.timeout_s));
        }
        let folder = Folder::open(settings.folder.as_ref())?;
        let home = folder.path.to_string_lossy().into_owned();
        let named = settings.env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        let environment = [("PATH".to_owned(), PATH.to_owned()), ("HOME".to_owned(), home)]
            .into_iter()
            .chain(named)
            .collect();
        let network = super::Network::Open;
        let confinement =
            Confinement { landlock: false, namespaces: true, signals: false, processes: false, network };
        let mut tool = Self { settings, launcher, folder, environment, confinement };
        tool.confine().await?;
        info!(confinement = %tool.confinement, folder = %tool.folder.path.display(), "commands can be executed");
        Ok(tool)
    }

    /// What confines the commands.
    #[must_use]
    pub fn confinement(&self) -> Confinement {
        self.confinement
    }

    /// Whether to do without namespaces although there are some: commands then run as on a machine that has none.
    #[doc(hidden)]
    pub fn without_namespaces(&mut self, without: bool) {
        self.confinement.namespaces &= !without;
    }

    /// Finds out what confines commands here, by running one: with namespaces, else without.
    async fn confine(&mut self) -> Result<(), OpenError> {
        let mut reason = "the kernel does not offer it".to_owned();
        let found = match self.try_out(true).await {
            Ok(found) => found,
            Err(without) => {
                let failed = |also| format!("{without}; and without namespaces: {also}");
                let launcher = self.launcher.executable().to_owned();
                let found = self.try_out(false).await;
                let found = found.map_err(|also| OpenError::Launcher { launcher, reason: failed(also) })?;
                reason = without;
                found
            }
        };
        self.confinement = found;
        if !found.processes && !self.settings.require.is_empty() {
            return Err(OpenError::Root);
        }
        let there = |wanted: &&Confined| match wanted {
            Confined::Landlock => found.landlock,
            Confined::Namespace => found.namespaces,
        };
        match self.settings.require.iter().find(|wanted| !there(wanted)) {
            Some(missing) => Err(OpenError::NotConfined { found, missing: *missing, reason }),
            None => Ok(()),
        }
    }

    async fn try_out(&self, namespaces: bool) -> Result<Confinement, String> {
        let order = self.order("true".into(), namespaces);
        let running = Running::start(self, &order).map_err(|e| e.to_string())?;
        match running.finish(STARTING).await? {
            (Some(confinement), End::Itself { code: 0, .. }, _) => Ok(confinement),
            (_, End::Itself { code, .. }, said) => Err(format!("`true` ended with exit code {code} {said}")),
            (_, End::InTime(_), said) => Err(format!("`true` did not end {said}")),
        }
    }

    fn order(&self, command: String, namespaces: bool) -> Order {
        Order {
            command,
            folder: self.folder.path.clone(),
            read: self.settings.read.clone(),
            network: self.settings.network,
            limits: self.settings.limits,
            namespaces,
        }
    }

    async fn run(&self, arguments: Arguments, call: &Call) -> Result<String, ToolError> {
        let limit = self.limit(arguments.timeout, call)?;
        if arguments.command.len() > MAX_COMMAND || arguments.command.contains('\0') {
            let text = format!(
                "a command is a text of at most {MAX_COMMAND} bytes without NUL; write longer ones \
                                to a file and run that"
            );
            return Err(ToolError::Refused(text));
        }
        let not_run =
            |detail: String| ToolError::Failed { told: "the command could not be run".into(), detail };
        let (end, said) = self.finish(arguments.command, limit).await.map_err(not_run)?;
        Ok(show(&said, &end, self.settings.limits.processes))
    }

    /// Runs a command of the shell: how it ended, and what it said.
    pub(super) async fn finish(&self, command: String, limit: Duration) -> Result<(End, String), String> {
        let order = self.order(command, self.confinement.namespaces);
        let running = Running::start(self, &order).map_err(|error| error.to_string())?;
        let (_, end, said) = running.finish(limit).await?;
        Ok((end, said))
    }

    /// The folder that commands work in.
    pub(super) fn folder(&self) -> &Path {
        &self.folder.path
    }

    fn limit(&self, asked: Option<i64>, call: &Call) -> Result<Duration, ToolError> {
        let asked = asked.unwrap_or(i64::from(self.settings.timeout_s));
        let seconds = u32::try_from(asked).ok().filter(|seconds| (1..=MAX_TIMEOUT).contains(seconds));
        let Some(seconds) = seconds else {
            let text = format!("timeout is {asked}; it must be 1 to {MAX_TIMEOUT} seconds");
            return Err(ToolError::Refused(text));
        };
        let left = call.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        Ok(left.min(Duration::from_secs(seconds.into())))
    }
}

fn show(said: &str, end: &End, processes: u64) -> String {
    let ended = match end {
        End::Itself { code: 0, .. } => "[Command succeeded with exit code 0]".to_owned(),
        End::Itself { code, crowded: true, .. } => {
            format!("[Command failed with exit code {code}: it had more than {processes} processes at once]")
        }
        End::Itself { code, signal: Some(signal), .. } => {
            format!("[Command failed with exit code {code}: signal {signal} ended it]")
        }
        End::Itself { code, signal: None, .. } => format!("[Command failed with exit code {code}]"),
        End::InTime(limit) => format!(
            "[Command failed with exit code {TIMED_OUT}: it did not end within {} s and was killed]",
            limit.as_secs()
        ),
    };
    let said = said.trim_end_matches('\n');
    if said.is_empty() { ended } else { format!("{said}\n{ended}") }
}

/// A command that runs. Dropping it closes the lifeline, which ends the command and all that it started.
struct Running {
    reports: Lines<BufReader<UnixStream>>,
    launcher: Child,
    said: Arc<Mutex<Capture>>,
    gathering: JoinHandle<()>,
}

impl Running {
    fn start(tool: &Execute, order: &Order) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (reader, writer) = io::pipe()?;
        // Out and err are one pipe, so that what is said keeps its order.
        let launcher = Command::new(tool.launcher.executable())
            .arg(EXECUTE)
            .arg(serde_json::to_string(order)?)
            .env_clear()
            .envs(tool.environment.iter().cloned())
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(writer.try_clone()?))
            .stderr(Stdio::from(writer))
            .spawn()?;
        let said = Arc::new(Mutex::new(Capture::default()));
        let gathering = gather(reader, Arc::clone(&said))?;
        Ok(Self { reports: BufReader::new(UnixStream::from_std(ours)?).lines(), launcher, said, gathering })
    }

    /// Waits for the end, and brings it about when `limit` is over. What confined it, how it ended, what it said.
    async fn finish(mut self, limit: Duration) -> Result<(Option<Confinement>, End, String), String> {
        let mut confinement = None;
        let end = match timeout(limit, self.end(&mut confinement)).await {
            Ok(end) => end,
            Err(_) => Ok(End::InTime(limit)),
        };
        drop(self.reports);
        let all_gone = async {
            let _ = self.launcher.wait().await;
            let _ = (&mut self.gathering).await;
        };
        if timeout(ENDING, all_gone).await.is_err() {
            warn!("a command was ended, and something that it started holds on to its output");
            self.gathering.abort();
            let _ = self.launcher.start_kill();
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).text();
        match end {
            Ok(end) => Ok((confinement, end, said)),
            Err(reason) => Err(format!("{reason} {said}")),
        }
    }

    async fn end(&mut self, confinement: &mut Option<Confinement>) -> Result<End, String> {
        loop {
            let line = self.reports.next_line().await.map_err(|e| e.to_string())?;
            let line = line.ok_or("the launcher ended without a word")?;
            match serde_json::from_str(&line).map_err(|e| format!("the launcher said {line:?}: {e}"))? {
                Report::Started(found) => *confinement = Some(found),
                Report::Failed(reason) => return Err(reason),
                Report::Ended { code, signal, crowded } => return Ok(End::Itself { code, signal, crowded }),
            }
        }
    }
}

/// Reads a pipe to its end.
fn gather(reader: PipeReader, into: Arc<Mutex<Capture>>) -> io::Result<JoinHandle<()>> {
    let mut reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    Ok(tokio::spawn(async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            into.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
        }
    }))
}

impl Tool for Execute {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "execute".into(),
            description: format!(
                "Runs a command of /bin/sh in its working folder and gives back what it prints (at most {MAX_OUTPUT} \
                 bytes, head and tail) and its exit code. It can write to its working folder ($HOME) only, has \
                 no input, and nothing that it starts outlives it. Confined by {}. It is killed after {} s unless \
                 timeout says otherwise.",
                self.confinement, self.settings.timeout_s
            ),
            schema: schema_of::<Arguments>(),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move { Ok(self.run(read_arguments("execute", arguments)?, call).await?.into()) }.boxed()
    }
}
