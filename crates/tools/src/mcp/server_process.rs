//! Starts the programs of MCP servers so that they end with this process, and logs their standard error.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tracing::info;

use super::settings::McpServer;
use crate::execute::Launcher;
use crate::program::{Program, RunningProgram};
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

/// Checks that the program of a server exists. A failed start says less.
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
    pub fn check_environment(&self) -> Result<(), String> {
        if self.command.is_none() {
            return Ok(());
        }
        let checked = check_program(self, &std::env::var_os("PATH").unwrap_or_default());
        checked.map_err(|error| format!("the MCP server {:?} can't start: {error}", self.name))
    }
}

pub(super) async fn start_server_process(
    server: &McpServer,
    launcher: Option<&Launcher>,
) -> Result<RunningProgram, StartError> {
    check_program(server, &std::env::var_os("PATH").unwrap_or_default())?;
    let name = server.command.clone().unwrap_or_default();
    let mut command = vec![name.clone().into_os_string()];
    command.extend(server.args.iter().map(Into::into));
    let program = Program { command, folder: server.cwd.clone(), ..Program::default() }
        .pass_variables(DEFAULT_VARIABLES.into_iter().chain(server.env.iter().map(String::as_str)));
    let started = RunningProgram::start(launcher, &program).await;
    let mut running = started.map_err(|error| StartError::Io { program: name, error })?;
    if let Some(stderr) = running.stderr.take() {
        tokio::spawn(log_stderr_lines(server.name.clone(), stderr));
    }
    Ok(running)
}

async fn log_stderr_lines(server: String, mut stderr: pipe::Receiver) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for line in String::from_utf8_lossy(&buffer[..count]).lines().filter(|line| !line.trim().is_empty()) {
            info!(server, "{}", one_line(line, MAX_LOG_LINE));
        }
    }
}
