//! A Python with packages, for tests that start what is written in it: made once for the machine, from whatever python3
//! is there.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::cache;

/// The interpreter of a virtual environment with these packages (`name==version`), which is kept in the cache.
///
/// # Errors
/// There is no python3 that can make one, or the packages can't be had: what to do about it.
///
/// # Panics
/// The cache can't be written.
pub fn python(packages: &[&str]) -> Result<PathBuf, String> {
    let place = cache().join(format!("python-{}", packages.join("-").replace("==", "-")));
    let interpreter = place.join("bin").join("python3");
    fs::create_dir_all(cache()).expect("the cache folder");
    let lock = fs::File::create(cache().join("python.test-lock")).expect("a lock file");
    lock.lock().expect("the lock of the cache");
    if place.join("complete").is_file() {
        return Ok(interpreter);
    }
    drop(fs::remove_dir_all(&place));
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    run(Command::new(&interpreter)
        .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
        .args(packages))?;
    fs::write(place.join("complete"), "").expect("the cache folder");
    Ok(interpreter)
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().last().unwrap_or_default();
    Err(format!(
        "{command:?} failed: {last}; python3 with venv and pip is needed, and a package index in reach"
    ))
}
