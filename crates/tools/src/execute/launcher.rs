//! The launcher process: how the tool starts it, and its entry point. The messages between the two are in `launch_message`,
//! the confinement in `root_fs` and `sandbox`, the supervision of the command in `supervisor`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use super::launch_message::{
    LaunchRequest, LauncherReport, SUPERVISE_ARGUMENT, SUPERVISE_IN_NAMESPACES_ARGUMENT,
};

/// The exit code of a launcher that failed; the tool reads the reason from the socket.
const NOT_STARTED_EXIT_CODE: u8 = 126;

/// `true` if the `main` of this process called [`launcher`].
static MAIN_CALLS_LAUNCHER: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Clone)]
pub struct Launcher {
    executable: PathBuf,
}

impl Launcher {
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Self { executable: std::env::current_exe()? })
    }

    pub fn this_program() -> Option<Self> {
        MAIN_CALLS_LAUNCHER.load(Ordering::Relaxed).then(|| Self::of_this_process().ok()).flatten()
    }

    pub fn at(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into() }
    }
    pub fn executable(&self) -> &Path {
        &self.executable
    }
}

/// Runs as a launcher if this process was started as one; returns `None` immediately otherwise. Must be the first call in
/// `main`, before any threads exist, including those of a runtime: so not inside `#[tokio::main]`.
pub fn launcher() -> Option<ExitCode> {
    if let Some(code) = crate::program::run_as_keeper(std::env::args_os()) {
        return Some(code);
    }
    let mut arguments = std::env::args_os().skip(1);
    let argument = arguments.next();
    let supervisor = match argument.as_ref().and_then(|argument| argument.to_str()) {
        Some(SUPERVISE_ARGUMENT) => false,
        Some(SUPERVISE_IN_NAMESPACES_ARGUMENT) => true,
        Some(_) | None => {
            MAIN_CALLS_LAUNCHER.store(true, Ordering::Relaxed);
            return None;
        }
    };
    Some(run_launch_request(supervisor, arguments.next()).unwrap_or_else(|error| {
        eprintln!("millrace: {error}");
        ExitCode::from(NOT_STARTED_EXIT_CODE)
    }))
}

fn parse_launch_request(request: Option<OsString>) -> io::Result<LaunchRequest> {
    let text = request.and_then(|request| request.into_string().ok());
    text.and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| io::Error::other("invalid arguments for an internal command"))
}

#[cfg(target_os = "linux")]
fn run_launch_request(supervisor: bool, request: Option<OsString>) -> io::Result<ExitCode> {
    let request = parse_launch_request(request)?;
    let mut tool = super::supervisor::ReportSocket::from_stdin()?;
    let result = if supervisor || !request.namespaces {
        super::supervisor::supervise_command(&request, supervisor, &mut tool)
    } else {
        super::supervisor::start_in_namespaces(&request)
    };
    result.or_else(|error| {
        tool.send_report(&LauncherReport::Failed(error.to_string()))?;
        Ok(ExitCode::from(NOT_STARTED_EXIT_CODE))
    })
}

#[cfg(not(target_os = "linux"))]
fn run_launch_request(_: bool, request: Option<OsString>) -> io::Result<ExitCode> {
    parse_launch_request(request)?;
    Err(io::Error::other("commands are supported on Linux only"))
}
