//! Python environments with packages, for tests that run Python programs, created with the installed python3.
//!
//! # Invariants
//!
//! - I180: Python workers killed after any append, alone or with the supervisor or the server, change nothing: no recorded step
//!   is executed again. (`tests/tests/python_takeover.rs::kill_of_python_workers_behind_any_append_changes_nothing`)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache_folder;

/// Returns the interpreter of a virtual environment with these packages (`name==version`). It is created once per machine, and kept
/// in the cache.
///
/// # Errors
/// python3 can't create one, or the packages can't be installed. The text lists the missing prerequisites.
///
/// # Panics
/// The cache can't be written.
pub fn install_python_packages(packages: &[&str]) -> Result<PathBuf, String> {
    let folder = cache_folder().join(format!("python-{}", packages.join("-").replace("==", "-")));
    fs::create_dir_all(cache_folder()).expect("the cache folder");
    let lock = fs::File::create(cache_folder().join("python.test-lock")).expect("a lock file");
    lock.lock().expect("the lock of the cache");
    if folder.join("complete").is_file() {
        return Ok(interpreter_of(&folder));
    }
    drop(fs::remove_dir_all(&folder));
    let interpreter = create_python_environment(&folder, packages)?;
    fs::write(folder.join("complete"), "").expect("the cache folder");
    Ok(interpreter)
}

/// Creates a virtual environment with these packages in a folder, and returns its interpreter.
///
/// # Errors
/// python3 can't create one, or the packages can't be installed. The text lists the missing prerequisites.
pub fn create_python_environment(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    run_setup_command(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let interpreter = interpreter_of(folder);
    run_setup_command(
        Command::new(&interpreter)
            .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
            .args(packages),
    )?;
    Ok(interpreter)
}

fn interpreter_of(environment: &Path) -> PathBuf {
    environment.join("bin").join("python3")
}

fn run_setup_command(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().last().unwrap_or_default();
    Err(format!(
        "{command:?} failed: {last}; python3 with venv and pip and a reachable package index are needed"
    ))
}
