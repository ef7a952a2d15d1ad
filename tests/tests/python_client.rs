//! The Python client in `clients/python`: its own tests in a clean virtual environment, with a real cluster.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use millrace_tests::machine::share_machine;
use millrace_tests::pages::repository_folder;
use millrace_tests::processes::remove_millrace_variables;
use millrace_tests::program::millrace_program;
use millrace_tests::python::create_python_environment;

/// The packages without which the client can't be built, run or tested. If they can't be installed, there is no package index.
const PACKAGES: [&str; 4] = ["hatchling==1.33.0", "wheel==0.45.1", "httpx==0.28.1", "pytest==9.2.0"];

fn run_python(python: &Path, arguments: &[&str]) -> Output {
    let mut command = remove_millrace_variables(Command::new(python));
    command
        .args(arguments)
        .current_dir(repository_folder().join("clients/python"))
        .env("MILLRACE_PROGRAM", millrace_program())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn python_client_passes_its_tests_in_a_clean_environment() {
    let folder = tempfile::tempdir().unwrap();
    let python = match create_python_environment(&folder.path().join("environment"), &PACKAGES) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let installed = run_python(
        &python,
        &["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-build-isolation", ".[test]"],
    );
    assert!(installed.status.success(), "{}", text_of(&installed));
    let tested = run_python(&python, &["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    let text = text_of(&tested);
    assert!(tested.status.success(), "{text}");
    assert!(!text.contains("SKIPPED"), "{text}");
}
