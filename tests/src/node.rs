//! A Node.js installation with packages, for tests that use JavaScript libraries: created once per machine, with the
//! installed node and npm.
//!
//! # Invariants
//!
//! - I181: The TypeScript client can call every operation of the API, and its streams deliver every event once whatever is cut.
//!   (`tests/tests/typescript_client.rs::typescript_client_passes_its_tests_with_a_real_gateway`)

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::cache_folder;

/// Returns a folder with these packages (`name@version`) for scripts placed in it. It is kept in the cache.
///
/// # Errors
/// There is no npm, or the packages can't be installed. The text says what is needed.
///
/// # Panics
/// The cache can't be written.
pub fn install_npm_packages(packages: &[&str]) -> Result<PathBuf, String> {
    let folder = cache_folder().join(format!("node-{}", packages.join("-").replace(['@', '/'], "_")));
    fs::create_dir_all(cache_folder()).expect("the cache folder");
    let lock = fs::File::create(cache_folder().join("node.test-lock")).expect("a lock file");
    lock.lock().expect("the lock of the cache");
    if folder.join("complete").is_file() {
        return Ok(folder);
    }
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).expect("the cache folder");
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix"]);
    let output = install.arg(&folder).args(packages).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run npm ({error}): install Node.js 20 or newer"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or_default().to_owned();
        return Err(format!(
            "npm cannot install {packages:?}: {last}; a reachable package registry is needed"
        ));
    }
    fs::write(folder.join("complete"), "").expect("the cache folder");
    Ok(folder)
}
