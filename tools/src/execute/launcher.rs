//! The launcher as seen from both sides: how the tool calls it, what the two say to each other, and what the new
//! process does first. What confines is in `root` and `fence`, what watches over the command in `inside`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::settings::Limits;

/// Arguments: an [`Order`] as JSON. Standard input is the socket to the tool, output and error are the command's.
pub(super) const EXECUTE: &str = "__execute";
/// As [`EXECUTE`], within the namespaces.
pub(super) const EXECUTE_INSIDE: &str = "__execute-inside";

/// The exit code of a launcher that could not do its work; the tool reads why from the socket.
const NOT_STARTED: u8 = 126;

/// Whether this process's `main` began with [`launcher`].
static LAUNCHES: AtomicBool = AtomicBool::new(false);

/// An executable whose `main` begins with [`launcher`].
#[derive(Debug, Clone)]
pub struct Launcher {
    executable: PathBuf,
}

impl Launcher {
    /// This process's own executable.
    ///
    /// # Errors
    /// The system doesn't say which it is.
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Self { executable: std::env::current_exe()? })
    }

    /// This process's own executable, if its `main` began with [`launcher`].
    #[must_use]
    pub fn this_program() -> Option<Self> {
        LAUNCHES.load(Ordering::Relaxed).then(|| Self::of_this_process().ok()).flatten()
    }

    /// Another executable: `millrace-launcher` is one that does nothing else.
    #[must_use]
    pub fn at(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into() }
    }

    /// The executable.
    #[must_use]
    pub fn executable(&self) -> &Path {
        &self.executable
    }
}

/// What is to be run, and how it is to be confined.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) command: String,
    /// Absolute, without symlinks.
    pub(super) folder: PathBuf,
    pub(super) read: Vec<PathBuf>,
    pub(super) network: bool,
    pub(super) limits: Limits,
    pub(super) namespaces: bool,
}

/// What the launcher says to the tool, one JSON text a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// The command runs.
    Started(Confinement),
    /// It does not, and why.
    Failed(String),
    /// It has ended, and what it started has too.
    Ended {
        /// As shells count: 128 and the signal's number, if one ended it.
        code: i32,
        /// Which signal ended it.
        signal: Option<i32>,
        /// It had more processes at once than it may.
        crowded: bool,
    },
}

/// What confines a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Landlock holds it: files outside of its own are closed to it.
    pub landlock: bool,
    /// It has namespaces: its own root, processes and, unless it may have the network, network.
    pub namespaces: bool,
    /// It can't signal what it has not started.
    pub signals: bool,
    /// The kernel holds how many processes it has at once. Where it does not, they are counted a few times a second.
    pub processes: bool,
    /// What it has of the network.
    pub network: Network,
}

/// What a command has of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// All of it.
    Open,
    /// All but TCP.
    NoTcp,
    /// Nothing.
    None,
}

impl std::fmt::Display for Confinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.landlock, self.namespaces, self.signals) {
            (true, true, _) => "landlock and namespaces (files, processes)",
            (true, false, true) => "landlock (files, signals)",
            (true, false, false) => "landlock (files)",
            (false, true, _) => "namespaces (files, processes)",
            (false, false, _) => "nothing but limits",
        })?;
        f.write_str(match self.network {
            Network::Open => "; the network is open",
            Network::NoTcp => "; no TCP",
            Network::None => "; no network",
        })
    }
}

/// Does what the tool asks of the new process, if this process was started for that; else returns `None` at once. To
/// be called first of all in `main`, before there are threads: a runtime's too, so not within `#[tokio::main]`.
#[must_use]
pub fn launcher() -> Option<ExitCode> {
    if let Some(code) = crate::bound::launch(std::env::args_os()) {
        return Some(code);
    }
    let mut arguments = std::env::args_os().skip(1);
    let asked = arguments.next();
    let inside = match asked.as_ref().and_then(|asked| asked.to_str()) {
        Some(EXECUTE) => false,
        Some(EXECUTE_INSIDE) => true,
        Some(_) | None => {
            LAUNCHES.store(true, Ordering::Relaxed);
            return None;
        }
    };
    Some(run(inside, arguments.next()).unwrap_or_else(|error| {
        eprintln!("millrace: {error}");
        ExitCode::from(NOT_STARTED)
    }))
}

fn parse(order: Option<OsString>) -> io::Result<Order> {
    let text = order.and_then(|order| order.into_string().ok());
    text.and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| io::Error::other("internal command with wrong arguments"))
}

#[cfg(target_os = "linux")]
fn run(inside: bool, order: Option<OsString>) -> io::Result<ExitCode> {
    let order = parse(order)?;
    let mut tool = super::inside::Lifeline::from_stdin()?;
    let done = if inside || !order.namespaces {
        super::inside::run(&order, inside, &mut tool)
    } else {
        super::inside::start_within_namespaces(&order)
    };
    done.or_else(|error| {
        tool.say(&Report::Failed(error.to_string()))?;
        Ok(ExitCode::from(NOT_STARTED))
    })
}

#[cfg(not(target_os = "linux"))]
fn run(_: bool, order: Option<OsString>) -> io::Result<ExitCode> {
    parse(order)?;
    Err(io::Error::other("commands can be run on Linux only"))
}
