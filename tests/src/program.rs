//! Finds the `millrace` program that is under test, built from the sources as they stand, and nothing that was
//! installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The program under test: `$MILLRACE_TEST_PROGRAM`, or the one in the target folder that this test is from, built
/// first if it is older than its sources.
///
/// # Panics
/// It can't be built.
#[must_use]
pub fn millrace() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let named = std::env::var_os("MILLRACE_TEST_PROGRAM").filter(|path| !path.is_empty());
        named.map_or_else(built, PathBuf::from)
    })
}

fn built() -> PathBuf {
    let folder = profile_folder();
    let program = folder.join("millrace");
    if !is_fresh(&program) {
        build(&folder);
    }
    program
}

/// `target/debug`, from `target/debug/deps/chaos-1f3a`.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its program");
    let folder =
        test.parent().and_then(Path::parent).expect("a test's program is two folders below the target");
    folder.to_owned()
}

fn build(folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = folder.parent().expect("a profile's folder is in the target folder");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", "millrace", "--bin", "millrace", "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the millrace program can't be built");
}

/// Whether the program is there and newer than everything that cargo says it was made from.
fn is_fresh(program: &Path) -> bool {
    let Some(made) = modified(program) else { return false };
    let Ok(sources) = fs::read_to_string(program.with_extension("d")) else { return false };
    sources_in(&sources).iter().all(|source| modified(Path::new(source)).is_some_and(|at| at <= made))
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The sources in a file as make reads it: `program: source source`, with spaces in names behind a backslash.
fn sources_in(rules: &str) -> Vec<String> {
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
    fn sources_with_spaces_in_their_names_are_told_apart() {
        assert_eq!(sources_in("/t/millrace: /a/b.rs /with\\ space/c.rs\n"), ["/a/b.rs", "/with space/c.rs"]);
        assert!(sources_in("").is_empty());
    }

    #[test]
    fn a_program_is_stale_when_a_source_is_newer_or_gone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("program.d"), format!("x: {}\n", at("source.rs").display())).unwrap();
        fs::write(at("program"), "").unwrap();
        assert!(!is_fresh(&at("program")), "the source is gone");
        let source = fs::File::create(at("source.rs")).unwrap();
        source.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(is_fresh(&at("program")));
        source.set_modified(SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
        assert!(!is_fresh(&at("program")));
    }
}
