//! Starts the programs of MCP servers so that they end with this process, and logs their standard error.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use process_wrap::tokio::{CommandWrap, KillOnDrop, ProcessGroup};
use rmcp::transport::TokioChildProcess;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tracing::info;

use super::settings::McpServer;
use crate::child_process;
use crate::execute::Launcher;
use crate::untrusted::one_line;

/// Environment variables that are passed to all programs. Further ones are configured.
const DEFAULT_VARIABLES: [&str; 9] =
    ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// Maximum number of characters of a logged line.
const MAX_LOG_LINE: usize = 1_000;

/// The reason why the program of a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("no such program `{}`; install it, or set `command` to its path", .0.display())]
    NoProgram(PathBuf),
    #[error("the program `{}` is not executable", .0.display())]
    NotExecutable(PathBuf),
    #[error("its working folder `{}` does not exist", .0.display())]
    NoFolder(PathBuf),
    #[error("{}: {error}", program.display())]
    Io { program: PathBuf, error: io::Error },
}

/// Checks that the program of a server exists. The launcher, which starts it, could only report this as text.
fn check_program(server: &McpServer, search_path: &OsStr) -> Result<(), StartError> {
    if let Some(folder) = server.cwd.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(StartError::NoFolder(folder.clone()));
    }
    let program = server.command.clone().unwrap_or_default();
    let candidates: Vec<PathBuf> = if program.components().count() > 1 || program.is_absolute() {
        vec![server.cwd.as_ref().map_or_else(|| program.clone(), |folder| folder.join(&program))]
    } else {
        std::env::split_paths(search_path).map(|folder| folder.join(&program)).collect()
    };
    let files: Vec<&PathBuf> = candidates.iter().filter(|path| path.is_file()).collect();
    let is_executable =
        |path: &&PathBuf| path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    match (files.iter().any(is_executable), files.is_empty()) {
        (true, _) => Ok(()),
        (false, false) => Err(StartError::NotExecutable(program)),
        (false, true) => Err(StartError::NoProgram(program)),
    }
}

impl McpServer {
    /// Checks that the program of a server exists, and its working folder.
    ///
    /// # Errors
    /// A text that says which is missing.
    pub fn check_environment(&self) -> Result<(), String> {
        if self.command.is_none() {
            return Ok(());
        }
        let checked = check_program(self, &std::env::var_os("PATH").unwrap_or_default());
        checked.map_err(|error| format!("the MCP server {:?} can't start: {error}", self.name))
    }
}

/// Starts the program of a server. With a launcher, the kernel kills it when this process dies for any reason; without
/// one, the program itself must notice that its standard input was closed.
pub(super) async fn start_server_process(
    server: &McpServer,
    launcher: Option<&Launcher>,
) -> Result<TokioChildProcess, StartError> {
    check_program(server, &std::env::var_os("PATH").unwrap_or_default())?;
    let program = server.command.clone().unwrap_or_default();
    let io_error = |error| StartError::Io { program, error };
    let mut command = CommandWrap::from(server_command(server, launcher));
    command.wrap(KillOnDrop).wrap(ProcessGroup::leader());
    let builder = TokioChildProcess::builder(command).stderr(Stdio::piped());
    let spawned = child_process::run_on_spawn_thread(move || builder.spawn()).await;
    let (child, stderr) = spawned.and_then(|child| child).map_err(io_error)?;
    if let Some(stderr) = stderr {
        tokio::spawn(log_stderr_lines(server.name.clone(), stderr));
    }
    Ok(child)
}

fn server_command(server: &McpServer, launcher: Option<&Launcher>) -> Command {
    let mut command =
        child_process::command_bound_to_parent(server.command.clone().unwrap_or_default(), launcher);
    let names = DEFAULT_VARIABLES.into_iter().chain(server.env.iter().map(String::as_str));
    let environment = names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)));
    command.args(&server.args).env_clear().envs(environment);
    if let Some(folder) = &server.cwd {
        command.current_dir(folder);
    }
    command
}

async fn log_stderr_lines(server: String, mut stderr: ChildStderr) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for line in String::from_utf8_lossy(&buffer[..count]).lines().filter(|line| !line.trim().is_empty()) {
            info!(server, "{}", one_line(line, MAX_LOG_LINE));
        }
    }
}
