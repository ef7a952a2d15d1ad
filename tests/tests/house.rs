//! The house as ARCHITECTURE.md draws it: dependencies point one way, the rules stay pure, and what the page says of
//! tests and subjects is so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").to_owned()
}

/// Which packages of the house each one depends on, tests of its own left out.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("cargo speaks JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().expect("there are packages");
    packages
        .iter()
        .map(|package| {
            let all = package["dependencies"].as_array().expect("a list");
            let names =
                all.iter().filter(|one| one["kind"].as_str() != Some("dev")).map(|one| text(&one["name"]));
            (text(&package["name"]), names.collect())
        })
        .collect()
}

/// What a worker may know; a critic reads no files that people write.
const WORKER: [&str; 7] = [
    "millrace-protocol",
    "millrace-runtime",
    "millrace-models",
    "millrace-agent",
    "millrace-seat",
    "millrace-tools",
    "millrace-forms",
];

#[test]
fn dependencies_point_down_the_table_only() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("millrace-protocol", &[][..]),
        ("millrace-runtime", &["millrace-protocol"]),
        ("millrace-forms", &[]),
        ("millrace-models", &["millrace-protocol"]),
        ("millrace-agent", &["millrace-protocol", "millrace-models", "millrace-forms"]),
        ("millrace-tools", &["millrace-protocol", "millrace-agent"]),
        ("millrace-seat", &["millrace-protocol", "millrace-runtime", "millrace-models", "millrace-agent"]),
        ("millrace-supervisor", &["millrace-protocol", "millrace-runtime"]),
        ("millrace-worker", &WORKER),
        ("millrace-critic", &WORKER[..6]),
    ]);
    let dependencies = dependencies();
    for (package, allowed) in allowed {
        let found = dependencies[package].iter().filter(|name| name.starts_with("millrace"));
        for name in found {
            assert!(allowed.contains(&name.as_str()), "{package} depends on {name}");
        }
    }
}

#[test]
fn the_rules_know_no_sockets_and_the_agents_no_nats() {
    let dependencies = dependencies();
    for (package, banned) in [
        ("millrace-protocol", &["tokio", "async-nats", "ractor", "tracing", "rand"][..]),
        ("millrace-forms", &["tokio", "async-nats", "reqwest"][..]),
        ("millrace-models", &["async-nats", "ractor"][..]),
        ("millrace-agent", &["async-nats", "ractor", "reqwest"][..]),
        ("millrace-tools", &["async-nats", "ractor"][..]),
        ("millrace-supervisor", &["async-nats", "millrace-agent"][..]),
    ] {
        for name in banned {
            assert!(!dependencies[package].contains(*name), "{package} depends on {name}");
        }
    }
}

#[test]
fn every_test_that_the_architecture_names_is_there() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    let mut named = 0;
    for line in page.lines().filter(|line| line.starts_with("| I")) {
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.contains("::")) {
            let (file, test) = name.split_once("::").expect("it has both");
            let path = root().join(file);
            let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {test}(")), "{file} has no test {test}");
            named += 1;
        }
    }
    assert!(named >= 20, "the page names {named} tests only");
}

#[test]
fn the_capability_that_the_readme_shows_is_one() {
    let page = std::fs::read_to_string(root().join("README.md")).expect("the page is there");
    let shown =
        page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it shows one");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("analyst.yaml");
    std::fs::write(&file, shown).expect("a file in a temporary folder");
    assert_eq!(millrace_worker::file::check(&file).expect("it is a capability file"), "analyst");
}

#[test]
fn nothing_is_left_for_somebody() {
    let listed =
        Command::new("git").args(["ls-files", "*.rs"]).current_dir(root()).output().expect("git runs");
    let files = String::from_utf8(listed.stdout).expect("names are text");
    let words = ["TO", "DO"].concat();
    for file in files.lines() {
        // A file may be listed and, in a work tree that is being changed, not there.
        let Ok(source) = std::fs::read_to_string(root().join(file)) else { continue };
        // To-do lists of agents are no leftovers.
        let is_left = source.replace(&format!("{words}S"), "").contains(&words);
        assert!(!is_left, "{file} leaves something for somebody");
    }
}
