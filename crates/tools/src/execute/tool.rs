//! The tool `execute` itself: it detects the available confinement, chooses the limits of a command, and words its outcome
//! for the model.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec, read_arguments, schema_of};
use millrace_protocol::secrets::{SecretRedactor, remember_secrets};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tracing::{info, warn};

use super::host_limits::{HostLimits, MIB};

use super::launch_message::{Confinement, ExceededLimit, LaunchRequest, NetworkAccess};

use super::launcher::Launcher;
use super::running_command::MAX_OUTPUT;
use super::running_command::{CommandEnd, RunningCommand};

use super::settings::{ByteLimits, ConfinementKind, ExecuteSettings, MAX_TIMEOUT};

use super::usage::FolderUsage;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Maximum length of a command in bytes, close to the system's limit for arguments.
pub(super) const MAX_COMMAND: usize = 100_000;
/// The timeout for testing the confinement with `true`.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The exit code after a timeout, as used by the program `timeout`.
const TIMED_OUT_EXIT_CODE: i32 = 124;

pub struct ExecuteTool {
    settings: ExecuteSettings,
    launcher: Launcher,
    folder: MeasuredFolder,
    bytes: ByteLimits,
    environment: Vec<(String, String)>,
    confinement: Confinement,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The working folder does not exist or cannot be created.
    #[error("cannot use the working folder {}: {error}", path.display())]
    WorkFolder { path: PathBuf, error: io::Error },
    #[error("timeout_s is {0}; it must be 1 to {MAX_TIMEOUT}")]
    Timeout(u32),
    /// Both a folder of the machine and the files of the agent are asked for.
    #[error(
        "`folder` and `files` can't be used together: `files` gives commands a folder of their own; remove one"
    )]
    FilesInFolder,
    /// The launcher cannot be started, or cannot even run `true`.
    #[error("{} cannot run commands: {reason}", launcher.display())]
    Launcher { launcher: PathBuf, reason: String },
    /// The worker runs as root, and the kernel does not limit the number of root's processes.
    #[error(
        "this worker runs as root, and this kernel does not limit root's processes (Linux 6.14 does, with \
         namespaces): run the worker as another user, or set `require: []` to go without any guarantee"
    )]
    Root,
    /// The required confinement is not available on this machine.
    #[error(
        "this machine cannot confine commands as required: it supports {detected}; {missing:?} is missing ({reason}); \
         run the worker on a kernel that supports it, or remove it from `require`"
    )]
    NotConfined { detected: Confinement, missing: ConfinementKind, reason: String },
    /// Commands must not have network access, and this machine cannot take it from them.
    #[error(
        "this machine cannot run commands without network access: it supports {detected}; run the worker on a kernel \
         with seccomp filters or user namespaces, or set `network: true` to accept access to the network"
    )]
    OpenNetwork { detected: Confinement },
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The command for /bin/sh.
    pub(super) command: String,
    /// Timeout in seconds, at most 3600.
    timeout: Option<i64>,
}

/// A working folder. A temporary one is removed on drop.
pub(super) struct WorkFolder {
    path: PathBuf,
    is_temporary: bool,
}

pub(super) struct MeasuredFolder {
    folder: WorkFolder,
    usage: FolderUsage,
}

impl MeasuredFolder {
    pub(super) fn path(&self) -> &Path {
        &self.folder.path
    }
}

impl WorkFolder {
    fn open(configured: Option<&PathBuf>) -> Result<Self, ExecuteError> {
        let path = configured.cloned().unwrap_or_else(|| {
            std::env::temp_dir().join(format!("millrace-execute-{}", uuid::Uuid::new_v4().simple()))
        });
        let canonical = match configured {
            Some(path) => fs::canonicalize(path),
            None => fs::DirBuilder::new().mode(0o700).create(&path).and_then(|()| fs::canonicalize(&path)),
        };
        let detected =
            canonical.and_then(|real| match fs::metadata(&real)?.is_dir() && real.parent().is_some() {
                true => Ok(real),
                false => Err(io::Error::other("it is not a folder, or it is the root folder")),
            });
        match detected {
            Ok(path) => Ok(Self { path, is_temporary: configured.is_none() }),
            Err(error) => Err(ExecuteError::WorkFolder { path, error }),
        }
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if self.is_temporary
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            warn!(folder = %self.path.display(), %error, "removing the working folder of execute failed");
        }
    }
}

impl ExecuteTool {
    /// Creates the tool with the best confinement available on this machine, which is tested here.
    pub async fn open(settings: ExecuteSettings, launcher: Launcher) -> Result<Self, ExecuteError> {
        if !(1..=MAX_TIMEOUT).contains(&settings.timeout_s) {
            return Err(ExecuteError::Timeout(settings.timeout_s));
        }
        if settings.folder.is_some() && settings.files.is_some() {
            return Err(ExecuteError::FilesInFolder);
        }
        let folder = WorkFolder::open(settings.folder.as_ref())?;
        let configured =
            settings.env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        let configured: Vec<(String, String)> = configured.collect();
        let mut secrets = SecretRedactor::default();
        configured.iter().for_each(|(name, value)| secrets.add_named(name, value));
        remember_secrets(&secrets);
        let environment = [("PATH".to_owned(), PATH.to_owned())].into_iter().chain(configured).collect();
        let network = NetworkAccess::Open;
        let confinement = Confinement {
            landlock: false,
            seccomp: false,
            namespaces: true,
            signals: false,
            processes: false,
            network,
        };
        let host = HostLimits::detect(&folder.path)
            .map_err(|error| ExecuteError::WorkFolder { path: folder.path.clone(), error })?;
        let bytes = settings.limits.in_bytes(host, folder.is_temporary);
        let folder = measure_folder(folder, bytes).await;
        let mut tool = Self { settings, launcher, folder, bytes, environment, confinement };
        tool.detect_confinement().await?;
        info!(
            confinement = %tool.confinement,
            folder = %tool.folder.path().display(),
            memory_mb = tool.bytes.total_memory / MIB,
            disk_mb = tool.bytes.total_disk / MIB,
            "execute is available"
        );
        Ok(tool)
    }

    pub fn confinement(&self) -> Confinement {
        self.confinement
    }

    /// Disables namespaces if `without`, to run commands as on a machine without them.
    #[doc(hidden)]
    pub fn without_namespaces(&mut self, without: bool) {
        self.confinement.namespaces &= !without;
    }

    /// Sets the limits on all commands of this process together, in bytes, as this tool enforces them.
    #[doc(hidden)]
    pub fn set_shared_limits(&mut self, memory: u64, disk: u64) {
        (self.bytes.shared_memory, self.bytes.shared_disk) = (memory, disk);
        self.folder.usage.set_shared_limit(disk);
    }

    /// Detects the available confinement by running a command with namespaces and, if that fails, without.
    async fn detect_confinement(&mut self) -> Result<(), ExecuteError> {
        let mut reason = "not supported by the kernel".to_owned();
        let detected = match self.try_confinement(true).await {
            Ok(detected) => detected,
            Err(without) => {
                let failed = |also| format!("{without}; and without namespaces: {also}");
                let launcher = self.launcher.executable().to_owned();
                let detected = self.try_confinement(false).await;
                let detected =
                    detected.map_err(|also| ExecuteError::Launcher { launcher, reason: failed(also) })?;
                reason = without;
                detected
            }
        };
        self.confinement = detected;
        check_confinement(&self.settings, detected, reason)
    }

    async fn try_confinement(&self, namespaces: bool) -> Result<Confinement, String> {
        let request = self.launch_request("true".into(), &self.folder, namespaces);
        let running = self.start_command(&request).map_err(|e| e.to_string())?;
        match running.wait_for_end(START_TIMEOUT, &self.bytes, &self.folder.usage).await? {
            (Some(confinement), CommandEnd::Exited { code: 0, .. }, _) => Ok(confinement),
            (_, CommandEnd::Exited { code, .. }, output) => {
                Err(format!("`true` ended with exit code {code} {}", to_one_line(&output)))
            }
            (_, CommandEnd::TimedOut(_), output) => {
                Err(format!("`true` did not end {}", to_one_line(&output)))
            }
        }
    }

    fn start_command(&self, request: &LaunchRequest) -> io::Result<RunningCommand> {
        let home = ("HOME".to_owned(), request.folder.to_string_lossy().into_owned());
        // A variable of the settings takes precedence.
        let environment: Vec<(String, String)> =
            [home].into_iter().chain(self.environment.iter().cloned()).collect();
        RunningCommand::start(&self.launcher, &environment, request)
    }

    fn launch_request(&self, command: String, folder: &MeasuredFolder, namespaces: bool) -> LaunchRequest {
        LaunchRequest {
            command,
            folder: folder.path().to_owned(),
            read: self.settings.read.clone(),
            network: self.settings.network,
            limits: self.settings.limits,
            bytes: self.bytes,
            namespaces,
        }
    }

    /// Creates a temporary working folder for the commands of one attempt.
    pub(super) async fn create_folder(&self) -> Result<MeasuredFolder, ExecuteError> {
        Ok(measure_folder(WorkFolder::open(None)?, self.bytes).await)
    }

    pub(super) fn settings(&self) -> &ExecuteSettings {
        &self.settings
    }

    /// Runs the command of a call in a folder, and returns its output and its end for the model.
    pub(super) async fn run_tool_call(
        &self,
        arguments: Arguments,
        folder: &MeasuredFolder,
        call: &Call,
    ) -> Result<String, ToolError> {
        let limit = self.timeout_for(arguments.timeout, call)?;
        if arguments.command.len() > MAX_COMMAND || arguments.command.contains('\0') {
            let text = format!(
                "a command may have at most {MAX_COMMAND} bytes and no NUL; write a longer one \
                                to a file and run the file"
            );
            return Err(ToolError::Refused(text));
        }
        let command_failed =
            |detail: String| ToolError::Failed { message: "the command could not be run".into(), detail };
        let (end, output) =
            self.run_in_folder(arguments.command, folder, limit).await.map_err(command_failed)?;
        Ok(self.format_output(&output, &end))
    }

    /// Runs a shell command and returns its outcome and its output.
    pub(super) async fn run_command_to_end(
        &self,
        command: String,
        limit: Duration,
    ) -> Result<(CommandEnd, String), String> {
        self.run_in_folder(command, &self.folder, limit).await
    }

    async fn run_in_folder(
        &self,
        command: String,
        folder: &MeasuredFolder,
        limit: Duration,
    ) -> Result<(CommandEnd, String), String> {
        let request = self.launch_request(command, folder, self.confinement.namespaces);
        let running = self.start_command(&request).map_err(|error| error.to_string())?;
        let (_, end, output) = running.wait_for_end(limit, &self.bytes, &folder.usage).await?;
        Ok((end, output))
    }

    pub(super) fn exceeded_text(&self, limit: ExceededLimit) -> String {
        let bytes = &self.bytes;
        match limit {
            ExceededLimit::Processes => {
                format!("more than {} concurrent processes", self.settings.limits.processes)
            }
            ExceededLimit::Memory => {
                format!("its processes used more than {} MiB of memory together", bytes.total_memory / MIB)
            }
            ExceededLimit::SharedMemory => format!(
                "all commands of this worker used more than {} MiB of memory together, and this one the most of it",
                bytes.shared_memory / MIB
            ),
            ExceededLimit::Disk => {
                format!("its working folder grew by more than {} MiB", bytes.total_disk / MIB)
            }
            ExceededLimit::SharedDisk => format!(
                "the working folders of this worker have more than {} MiB together, and this one the most of it",
                bytes.shared_disk / MIB
            ),
            ExceededLimit::FullDisk => "the disk of its working folder is nearly full".to_owned(),
        }
    }

    pub(super) fn work_folder(&self) -> &Path {
        self.folder.path()
    }

    fn timeout_for(&self, requested_seconds: Option<i64>, call: &Call) -> Result<Duration, ToolError> {
        let requested_seconds = requested_seconds.unwrap_or(i64::from(self.settings.timeout_s));
        let seconds =
            u32::try_from(requested_seconds).ok().filter(|seconds| (1..=MAX_TIMEOUT).contains(seconds));
        let Some(seconds) = seconds else {
            let text = format!("timeout is {requested_seconds}; it must be 1 to {MAX_TIMEOUT} seconds");
            return Err(ToolError::Refused(text));
        };
        let remaining =
            call.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        Ok(remaining.min(Duration::from_secs(seconds.into())))
    }
}

async fn measure_folder(folder: WorkFolder, bytes: ByteLimits) -> MeasuredFolder {
    let max_shared = folder.is_temporary.then_some(bytes.shared_disk);
    let usage = FolderUsage::measure(folder.path.clone(), bytes.total_disk, max_shared).await;
    MeasuredFolder { folder, usage }
}

/// Checks that the available confinement meets the settings. `reason`: why something is missing.
fn check_confinement(
    settings: &ExecuteSettings,
    detected: Confinement,
    reason: String,
) -> Result<(), ExecuteError> {
    if !settings.network && detected.network != NetworkAccess::None {
        return Err(ExecuteError::OpenNetwork { detected });
    }
    if !detected.processes && !settings.require.is_empty() {
        return Err(ExecuteError::Root);
    }
    let is_available = |required: &&ConfinementKind| match required {
        ConfinementKind::Landlock => detected.landlock,
        ConfinementKind::Namespace => detected.namespaces,
        ConfinementKind::Seccomp => detected.seccomp,
    };
    match settings.require.iter().find(|required| !is_available(required)) {
        Some(missing) => Err(ExecuteError::NotConfined { detected, missing: *missing, reason }),
        None => Ok(()),
    }
}

impl ExecuteTool {
    fn format_output(&self, output: &str, end: &CommandEnd) -> String {
        let ended = match end {
            CommandEnd::Exited { code, exceeded: Some(limit), .. } => {
                format!("[Command failed with exit code {code}: {}]", self.exceeded_text(*limit))
            }
            CommandEnd::Exited { code: 0, .. } => "[Command succeeded with exit code 0]".to_owned(),
            CommandEnd::Exited { code, signal: Some(signal), .. } => {
                format!("[Command failed with exit code {code}: ended by signal {signal}]")
            }
            CommandEnd::Exited { code, signal: None, .. } => {
                format!("[Command failed with exit code {code}]")
            }
            CommandEnd::TimedOut(limit) => format!(
                "[Command failed with exit code {TIMED_OUT_EXIT_CODE}: timed out after {} s and was killed]",
                limit.as_secs()
            ),
        };
        let output = output.trim_end_matches('\n');
        if output.is_empty() { ended } else { format!("{output}\n{ended}") }
    }
}

impl Tool for ExecuteTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "execute".into(),
            description: format!(
                "Runs a /bin/sh command in its working folder and returns its output (at most {MAX_OUTPUT} \
                 bytes, head and tail) and its exit code. It can only write to its working folder ($HOME), has \
                 no input, and no process outlives it. Confined by {}. It is killed after {} s unless \
                 timeout is set.",
                self.confinement, self.settings.timeout_s
            )
            .into(),
            schema: schema_of::<Arguments>().into(),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            let arguments = read_arguments("execute", arguments)?;
            Ok(self.run_tool_call(arguments, &self.folder, call).await?.into())
        }
        .boxed()
    }
}

fn to_one_line(output: &str) -> String {
    output.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_runs_with_a_network_that_it_must_not_have() {
        let closed = ExecuteSettings { require: Vec::new(), ..ExecuteSettings::default() };
        let open = ExecuteSettings { network: true, ..closed.clone() };
        for (network, is_enough) in
            [(NetworkAccess::None, true), (NetworkAccess::NoTcp, false), (NetworkAccess::Open, false)]
        {
            let detected = Confinement {
                landlock: true,
                seccomp: false,
                namespaces: false,
                signals: true,
                processes: true,
                network,
            };
            let checked = check_confinement(&closed, detected, String::new());
            assert_eq!(checked.is_ok(), is_enough, "{network:?}");
            if let Err(error) = checked {
                let text = error.to_string();
                assert!(
                    text.contains("without network access") && text.contains("`network: true`"),
                    "{text}"
                );
            }
            assert!(check_confinement(&open, detected, String::new()).is_ok());
            let strict = ExecuteSettings { require: vec![ConfinementKind::Seccomp], ..open.clone() };
            assert!(check_confinement(&strict, detected, String::new()).is_err());
        }
    }
}
