//! Locates the `millrace` program under test, built from the current sources, and never an installed one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Returns the program under test: `$MILLRACE_TEST_PROGRAM`, or the one in this test's target folder, which is built if
/// it is older than its sources.
///
/// # Panics
/// It can't be built.
#[must_use]
pub fn millrace_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = std::env::var_os("MILLRACE_TEST_PROGRAM").filter(|path| !path.is_empty());
        path.map_or_else(|| build_program_if_stale("millrace"), PathBuf::from)
    })
}

/// The program of a role on its own, such as `millrace-worker`: the one in the target folder that this test is from,
/// built first if it is older than its sources.
///
/// # Panics
/// It can't be built.
#[must_use]
pub fn role_program(name: &str) -> PathBuf {
    build_program_if_stale(name)
}

/// Package and program have the same name.
fn build_program_if_stale(name: &str) -> PathBuf {
    let folder = profile_folder();
    let program = folder.join(name);
    if !is_up_to_date(&program) {
        run_cargo_build(name, &folder);
    }
    program
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

fn run_cargo_build(name: &str, folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = folder.parent().expect("a profile's folder is in the target folder");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", name, "--bin", name, "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "building the millrace program failed");
}

/// `true` if the program exists and is not older than any source that cargo lists for it.
fn is_up_to_date(program: &Path) -> bool {
    let Some(built_at) = modified_time(program) else { return false };
    let Ok(sources) = fs::read_to_string(program.with_extension("d")) else { return false };
    parse_dependency_file(&sources)
        .iter()
        .all(|source| modified_time(Path::new(source)).is_some_and(|at| at <= built_at))
}

fn modified_time(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The sources in a file in make's format: `program: source source`, with backslashes before spaces in names.
fn parse_dependency_file(rules: &str) -> Vec<String> {
    let Some((_, sources)) = rules.lines().next().and_then(|rule| rule.split_once(": ")) else {
        return Vec::new();
    };
    let sources = sources.replace("\\ ", "\0");
    sources.split(' ').filter(|source| !source.is_empty()).map(|source| source.replace('\0', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_names_may_contain_spaces() {
        assert_eq!(
            parse_dependency_file("/t/millrace: /a/b.rs /with\\ space/c.rs\n"),
            ["/a/b.rs", "/with space/c.rs"]
        );
        assert!(parse_dependency_file("").is_empty());
    }

    #[test]
    fn program_is_stale_if_a_source_is_newer_or_missing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("program.d"), format!("x: {}\n", at("source.rs").display())).unwrap();
        fs::write(at("program"), "").unwrap();
        assert!(!is_up_to_date(&at("program")), "the source is missing");
        let source = fs::File::create(at("source.rs")).unwrap();
        source.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(is_up_to_date(&at("program")));
        source.set_modified(SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
        assert!(!is_up_to_date(&at("program")));
    }
}
