//! Locates the `millrace` program under test, built from the current sources, and never an installed one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the program under test: `$MILLRACE_TEST_PROGRAM`, or the one in this test's target folder, built first if its
/// sources are newer.
///
/// # Panics
/// It can't be built.
#[must_use]
pub fn millrace_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| named_program().unwrap_or_else(|| role_program("millrace")))
}

fn named_program() -> Option<PathBuf> {
    std::env::var_os("MILLRACE_TEST_PROGRAM").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The program of a role on its own, such as `millrace-worker`: the one beside `$MILLRACE_TEST_PROGRAM`, or in the target folder
/// that this test is from, built first if its sources are newer.
///
/// # Panics
/// It can't be built.
#[must_use]
pub fn role_program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let beside = || Some(named_program()?.parent()?.to_owned());
    FOLDER.get_or_init(|| beside().unwrap_or_else(build_programs)).join(name)
}

/// The environment variable of a test that runs in a process of its own.
const CHILD_VARIABLE: &str = "MILLRACE_TEST_CHILD";

/// Runs a test of this program, named by its path with the crate, once more in a process of its own: it measures the process.
/// Returns `false` in that process.
///
/// # Panics
/// The test fails there.
#[must_use]
pub fn run_in_own_process(test: &str) -> bool {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        return false;
    }
    let (_, test) = test.split_once("::").expect("a path with the crate");
    let mut child = Command::new(std::env::current_exe().expect("the path of this program"));
    child.args(["--exact", test, "--nocapture"]).env(CHILD_VARIABLE, "1");
    let output = child.output().expect("this program can be started");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

/// Builds all programs, which takes half a second if nothing has changed, and returns their folder: `target/debug`.
///
/// One test belongs to the build because Cargo then selects the same features of dependencies as for `cargo test --workspace`;
/// with others most dependencies would be built a second time.
fn build_programs() -> PathBuf {
    let folder = profile_folder();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = folder.parent().expect("a profile's folder is in the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    // Set by `cargo test`. Some build scripts depend on them, so that each of the two commands would build anew what the other built.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            cargo.env_remove(&variable);
        }
    }
    let built = cargo
        .args([
            "build",
            "--quiet",
            "--locked",
            "--workspace",
            "--bins",
            "--test",
            "repository",
            "--profile",
            profile,
        ])
        .arg("--target-dir")
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "building the programs failed");
    folder
}

/// `target/debug`, from `target/debug/deps/chaos-1f3a`.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("a test's program is in a subfolder of the profile folder");
    folder.to_owned()
}
