//! The architecture as described in ARCHITECTURE.md: dependencies point one way, the rules have no I/O, and the tests
//! that the page names exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn workspace_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace").to_owned()
}

/// The dependencies of each package of the workspace, without dev-dependencies.
fn package_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
        .current_dir(workspace_folder())
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("cargo prints JSON");
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

/// The allowed dependencies of the worker. The critic reads no capability files.
const WORKER: [&str; 8] = [
    "millrace-protocol",
    "millrace-runtime",
    "millrace-models",
    "millrace-agent",
    "millrace-agent-nats",
    "millrace-tools",
    "millrace-documents",
    "millrace-strict-yaml",
];

#[test]
fn dependencies_follow_the_table() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("millrace-protocol", &[][..]),
        ("millrace-runtime", &["millrace-protocol"]),
        ("millrace-strict-yaml", &[]),
        ("millrace-models", &["millrace-protocol"]),
        ("millrace-documents", &[]),
        (
            "millrace-agent",
            &["millrace-protocol", "millrace-models", "millrace-documents", "millrace-strict-yaml"],
        ),
        ("millrace-address-policy", &[]),
        (
            "millrace-tools",
            &["millrace-protocol", "millrace-address-policy", "millrace-agent", "millrace-documents"],
        ),
        (
            "millrace-agent-nats",
            &["millrace-protocol", "millrace-runtime", "millrace-models", "millrace-agent"],
        ),
        ("millrace-supervisor", &["millrace-protocol", "millrace-runtime", "millrace-client"]),
        ("millrace-worker", &WORKER),
        ("millrace-critic", &WORKER[..7]),
        ("millrace-client", &["millrace-protocol", "millrace-runtime"]),
        (
            "millrace-plan-file",
            &["millrace-protocol", "millrace-runtime", "millrace-agent", "millrace-strict-yaml"],
        ),
        ("millrace-views", &["millrace-protocol", "millrace-runtime", "millrace-agent", "millrace-client"]),
        (
            "millrace-traces",
            &["millrace-protocol", "millrace-runtime", "millrace-agent", "millrace-client", "millrace-views"],
        ),
        (
            "millrace-gateway",
            &[
                "millrace-protocol",
                "millrace-runtime",
                "millrace-address-policy",
                "millrace-agent",
                "millrace-client",
                "millrace-models",
                "millrace-plan-file",
                "millrace-strict-yaml",
                "millrace-traces",
                "millrace-views",
            ],
        ),
        ("millrace-nats-config", &["millrace-protocol", "millrace-runtime", "millrace-worker"]),
        ("millrace-local-cluster", &["millrace-runtime", "millrace-strict-yaml", "millrace-worker"]),
        (
            "millrace-bench",
            &[
                "millrace-protocol",
                "millrace-runtime",
                "millrace-agent",
                "millrace-agent-nats",
                "millrace-client",
                "millrace-local-cluster",
            ],
        ),
    ]);
    let dependencies = package_dependencies();
    for (package, allowed) in allowed {
        let internal = dependencies[package].iter().filter(|name| name.starts_with("millrace"));
        for name in internal {
            assert!(allowed.contains(&name.as_str()), "{package} depends on {name}");
        }
    }
}

#[test]
fn rules_have_no_sockets_and_agents_no_nats() {
    let dependencies = package_dependencies();
    for (package, banned) in [
        ("millrace-protocol", &["tokio", "async-nats", "ractor", "tracing", "rand"][..]),
        ("millrace-documents", &["tokio", "async-nats", "reqwest"]),
        ("millrace-strict-yaml", &["tokio", "async-nats", "reqwest"][..]),
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
fn every_test_named_in_architecture_md_exists() {
    let page =
        std::fs::read_to_string(workspace_folder().join("ARCHITECTURE.md")).expect("the page can be read");
    let mut count = 0;
    for line in page.lines().filter(|line| line.starts_with("| I")) {
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.contains("::")) {
            let (file, test) = name.split_once("::").expect("a file and a test");
            let path = workspace_folder().join(file);
            let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {test}(")), "{file} has no test {test}");
            count += 1;
        }
    }
    assert!(count >= 20, "the page names only {count} tests");
}

#[test]
fn sources_contain_no_todo_comments() {
    let output = Command::new("git")
        .args(["ls-files", "*.rs"])
        .current_dir(workspace_folder())
        .output()
        .expect("git runs");
    let files = String::from_utf8(output.stdout).expect("names are text");
    let words = ["TO", "DO"].concat();
    for file in files.lines() {
        // In a modified work tree a listed file may be missing.
        let Ok(source) = std::fs::read_to_string(workspace_folder().join(file)) else { continue };
        // To-do lists of agents are a feature.
        let is_left = source.replace(&format!("{words}S"), "").contains(&words);
        assert!(!is_left, "{file} has a to-do comment");
    }
}

#[test]
fn only_the_view_prints() {
    let view = workspace_folder().join("cli/src/view");
    let mut folders = vec![workspace_folder().join("cli/src")];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            if path == view {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("a source is text");
            count += 1;
            for word in ["println!(", "print!(", "writeln!(std::io", "stdout().write", "stderr().write"] {
                assert!(!source.contains(word), "{} prints past cli/src/view: {word}", path.display());
            }
        }
    }
    assert!(count > 30, "only {count} sources were read");
}
