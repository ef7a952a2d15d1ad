//! A Node.js with packages, for tests that ask what is written for it: made once for the machine, from whatever node
//! and npm are there.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::cache;

/// A folder in which these packages (`name@version`) are installed, for scripts that lie in it; it is kept in the
/// cache.
///
/// # Errors
/// There is no npm, or the packages can't be had: what to do about it.
///
/// # Panics
/// The cache can't be written.
pub fn node(packages: &[&str]) -> Result<PathBuf, String> {
    let place = cache().join(format!("node-{}", packages.join("-").replace(['@', '/'], "_")));
    fs::create_dir_all(cache()).expect("the cache folder");
    let lock = fs::File::create(cache().join("node.test-lock")).expect("a lock file");
    lock.lock().expect("the lock of the cache");
    if place.join("complete").is_file() {
        return Ok(place);
    }
    drop(fs::remove_dir_all(&place));
    fs::create_dir_all(&place).expect("the cache folder");
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix"]);
    let done = install.arg(&place).args(packages).stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("npm can't be run ({error}): Node.js 20 or newer is needed"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().last().unwrap_or_default().to_owned();
        return Err(format!("npm can't install {packages:?}: {last}; a package registry in reach is needed"));
    }
    fs::write(place.join("complete"), "").expect("the cache folder");
    Ok(place)
}
