//! The architecture as described in ARCHITECTURE.md: dependencies point one way, the rules have no I/O, and each invariant
//! in the docs of a module names its tests.

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
    "millrace-host",
    "millrace-tools",
    "millrace-documents",
    "millrace-strict-yaml",
];

#[test]
fn dependencies_follow_the_table() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("millrace-api-form", &[][..]),
        ("millrace-protocol", &["millrace-api-form"]),
        ("millrace-process-privacy", &[]),
        ("millrace-runtime", &["millrace-protocol", "millrace-process-privacy"]),
        ("millrace-strict-yaml", &["millrace-protocol"]),
        ("millrace-models", &["millrace-protocol"]),
        ("millrace-documents", &[]),
        ("millrace-figures", &[]),
        ("millrace-verification", &["millrace-figures", "millrace-models", "millrace-protocol"]),
        (
            "millrace-agent",
            &[
                "millrace-protocol",
                "millrace-models",
                "millrace-documents",
                "millrace-strict-yaml",
                "millrace-verification",
            ],
        ),
        ("millrace-address-policy", &[]),
        (
            "millrace-tools",
            &["millrace-protocol", "millrace-address-policy", "millrace-agent", "millrace-documents"],
        ),
        ("millrace-host", &["millrace-protocol", "millrace-runtime", "millrace-models", "millrace-agent"]),
        ("millrace-supervisor", &["millrace-protocol", "millrace-runtime", "millrace-client"]),
        ("millrace-worker", &WORKER),
        ("millrace-critic", &WORKER[..7]),
        ("millrace-client", &["millrace-protocol", "millrace-runtime"]),
        (
            "millrace-plan-file",
            &["millrace-protocol", "millrace-runtime", "millrace-agent", "millrace-strict-yaml"],
        ),
        (
            "millrace-views",
            &[
                "millrace-api-form",
                "millrace-protocol",
                "millrace-runtime",
                "millrace-agent",
                "millrace-client",
                "millrace-verification",
            ],
        ),
        (
            "millrace-traces",
            &[
                "millrace-api-form",
                "millrace-protocol",
                "millrace-runtime",
                "millrace-agent",
                "millrace-client",
                "millrace-views",
            ],
        ),
        (
            "millrace-gateway",
            &[
                "millrace-protocol",
                "millrace-runtime",
                "millrace-address-policy",
                "millrace-agent",
                "millrace-api-form",
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
                "millrace-host",
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

/// The Rust sources of the repository, with their paths.
fn read_sources() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "*.rs"])
        .current_dir(workspace_folder())
        .output()
        .expect("git runs");
    let files = String::from_utf8(output.stdout).expect("names are text");
    // In a modified work tree a listed file may be missing.
    let read =
        |file: &str| Some((file.to_owned(), std::fs::read_to_string(workspace_folder().join(file)).ok()?));
    files.lines().filter_map(read).collect()
}

/// The items of the section `# Invariants` in the docs of a module, each as one line.
fn find_invariants(source: &str) -> Vec<String> {
    let docs = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut items: Vec<String> = Vec::new();
    for line in docs.skip_while(|line| *line != " # Invariants").skip(1) {
        match (line.strip_prefix(" - "), items.last_mut()) {
            (Some(start), _) => items.push(start.to_owned()),
            (None, Some(item)) => item.push_str(line),
            (None, None) => {}
        }
    }
    items
}

/// The number of an invariant, and its tests, each with its file.
fn parse_invariant(item: &str) -> Option<(u32, Vec<(&str, &str)>)> {
    let (number, text) = item.strip_prefix('I')?.split_once(": ")?;
    let tests = text.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::"));
    Some((number.parse().ok()?, tests.collect()))
}

#[test]
fn every_invariant_names_existing_tests() {
    let mut places = BTreeMap::new();
    for (place, source) in read_sources() {
        for item in find_invariants(&source) {
            let (number, tests) =
                parse_invariant(&item).unwrap_or_else(|| panic!("{place}: no number: {item}"));
            if let Some(other) = places.insert(number, place.clone()) {
                panic!("I{number} is in {other} and in {place}");
            }
            assert!(!tests.is_empty(), "{place}: I{number} names no test");
            for (file, test) in tests {
                let source = std::fs::read_to_string(workspace_folder().join(file))
                    .unwrap_or_else(|error| panic!("{place}: I{number}: {file}: {error}"));
                assert!(
                    source.contains(&format!("fn {test}(")),
                    "{place}: I{number}: {file} has no test {test}"
                );
            }
        }
    }
    assert!(!places.is_empty(), "no module has invariants");
}

#[test]
fn sources_contain_no_todo_comments() {
    let words = ["TO", "DO"].concat();
    for (file, source) in read_sources() {
        // To-do lists of agents are a feature.
        let is_left = source.replace(&format!("{words}S"), "").contains(&words);
        assert!(!is_left, "{file} has a to-do comment");
    }
}

/// The functions that make administrative changes without recording them. The client records each change.
#[test]
fn surfaces_make_administrative_changes_through_the_client() {
    let changes = [
        "set_limit(bus",
        "set_limit(&",
        "remove_limit(bus",
        "remove_limit(&gateway",
        "set_caps(bus",
        "set_caps(&gateway",
        "create_token(bus",
        "create_token(&",
        "revoke_token(bus",
        "revoke_token(&",
        "set_rule(",
        "remove_rule(",
        "set_sweep_settings(bus",
        "set_sweep_settings(&gateway",
        "request_sweep(bus",
        "request_sweep(&gateway",
        "request_deletion(",
        "request_deletions(",
        "write_webhook(",
        "remove_webhook(",
    ];
    let output = Command::new("git")
        .args(["ls-files", "cli/src", "gateway/src"])
        .current_dir(workspace_folder())
        .output()
        .expect("git runs");
    let files = String::from_utf8(output.stdout).expect("names are text");
    assert!(files.lines().count() > 100, "{files}");
    for file in files.lines().filter(|file| file.ends_with(".rs")) {
        let Ok(source) = std::fs::read_to_string(workspace_folder().join(file)) else { continue };
        // A change of the client is a method of an administrator.
        for change in changes {
            let found = source.match_indices(change).find(|(at, _)| !source[..*at].ends_with(['.', '_']));
            assert!(found.is_none(), "{file} makes the change {change} without a record of it");
        }
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
