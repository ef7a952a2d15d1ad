//! The packages that the command compiles: how many, and which of them in several versions.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use toml::de::{DeTable, DeValue};

/// The maximum number of packages that the command compiles on Linux, its own among them. A commit that raises it names the crate, its
/// CPU seconds and its job.
const MAX_PACKAGES: usize = 474;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the versions of each package that the command compiles.
fn packages_of_the_command() -> BTreeMap<String, BTreeSet<String>> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--package", "millrace", "--edges", "normal,build", "--prefix", "none"]);
    tree.args(["--target", "x86_64-unknown-linux-gnu", "--format", "{p}"]).current_dir(workspace());
    let output = tree.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            packages.entry(name.into()).or_default().insert(version.trim_start_matches('v').into());
        }
    }
    packages
}

/// Returns the packages that `deny.toml` allows in several versions, without their versions.
fn allowed_duplicates() -> BTreeSet<String> {
    let text = std::fs::read_to_string(workspace().join("deny.toml")).unwrap();
    let file = DeTable::parse(&text).unwrap().into_inner();
    let DeValue::Table(bans) = file["bans"].get_ref() else { panic!("[bans] is no table") };
    let DeValue::Array(entries) = bans["skip"].get_ref() else { panic!("skip is no list") };
    let names = entries.iter().map(|entry| {
        let DeValue::Table(entry) = entry.get_ref() else { panic!("an entry of skip is no table") };
        entry["crate"].get_ref().as_str().unwrap()
    });
    names.map(|name| name.split_once('@').map_or(name, |(name, _)| name).to_owned()).collect()
}

#[test]
fn command_compiles_no_more_packages_than_allowed() {
    let count: usize = packages_of_the_command().values().map(BTreeSet::len).sum();
    assert!(count <= MAX_PACKAGES, "{count} packages, more than {MAX_PACKAGES}");
}

#[test]
fn packages_have_one_version_unless_deny_toml_names_them() {
    let several = packages_of_the_command().into_iter().filter(|(_, versions)| versions.len() > 1);
    let several: BTreeSet<String> = several.map(|(name, _)| name).collect();
    let allowed = allowed_duplicates();
    let new: Vec<_> = several.difference(&allowed).collect();
    assert!(new.is_empty(), "in several versions, and not in `skip` of deny.toml: {new:?}");
    let gone: Vec<_> = allowed.difference(&several).collect();
    assert!(gone.is_empty(), "in `skip` of deny.toml, and in one version only: {gone:?}");
}
