//! The images, without a container engine: the root file systems that the Dockerfile's script lays out hold what they
//! should, the same byte for byte each time, and their programs do a run in them, as `deploy/compose/compose.yaml` says:
//! each on a machine of its own, with a root that can't be written, as a user who may nothing.
//!
//! `MILLRACE_IMAGE_PROFILE=image` builds the programs as they are delivered, which takes long; `MILLRACE_IMAGE_ROOTS` names
//! a folder with roots that are to be tried instead.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

#[path = "image/cluster.rs"]
mod cluster;
#[path = "image/compose.rs"]
mod compose;
#[path = "image/conformity.rs"]
mod conformity;
#[path = "image/container.rs"]
mod container;
#[path = "image/names.rs"]
mod names;
#[path = "image/roots.rs"]
mod roots;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cluster::Cluster;
use container::Container;
use millrace_tests::cluster::alone;
use millrace_tests::machines::Machines;
use roots::{EPOCH, IMAGES, Roots, profile, repository, said};
use serde_json::{Value, json};
use tempfile::TempDir;

/// No image is larger than this when it is delivered.
const LARGEST: u64 = 40_000_000;

/// What is in an image, as `tar --list --verbose` says it: what it is and who may do what, the owner, and the name.
fn listed(program: &str) -> BTreeSet<String> {
    let folder = |name: &str| format!("drwxr-xr-x 0/0 ./{name}");
    let folders =
        ["", "etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/", "usr/share/", "usr/share/doc/"];
    let more = ["usr/share/doc/millrace/", "var/", "var/cache/"];
    let file = |name: &str| format!("-rw-r--r-- 0/0 ./{name}");
    let files = ["etc/group", "etc/nsswitch.conf", "etc/passwd", "etc/ssl/certs/ca-certificates.crt"];
    let mut all: BTreeSet<String> = folders.iter().chain(&more).map(|name| folder(name)).collect();
    all.extend(files.map(file));
    all.insert(file("usr/share/doc/millrace/LICENSE"));
    all.insert(format!("-rwxr-xr-x 0/0 ./usr/bin/{program}"));
    all.insert("drwxrwxrwt 0/0 ./tmp/".into());
    all.insert("drwxr-xr-x 65532/65532 ./var/cache/millrace/".into());
    all
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn an_image_holds_what_is_listed_and_nothing_else() {
    let roots = Roots::shared();
    for (image, program) in IMAGES {
        let archive = roots.archive(image);
        let mut tar = Command::new("tar");
        tar.args(["--list", "--verbose", "--numeric-owner", "--full-time", "--utc", "--file"]).arg(&archive);
        let text = said(&mut tar);
        let mut found = BTreeSet::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[3..5], ["2025-06-15", "15:06:40"], "{image}: {line}");
            assert!(found.insert([words[0], words[1], words[5]].join(" ")), "{image}: twice: {line}");
        }
        assert_eq!(found, listed(program), "{image}");
        if is_root() {
            // The folder that the Dockerfile copies is the same: content, times, owners and rights.
            said(
                Command::new("tar")
                    .arg("--compare")
                    .arg("--file")
                    .arg(&archive)
                    .arg("--directory")
                    .arg(roots.root(image)),
            );
        }
        let size = archive.metadata().unwrap().len();
        println!("{image}: {:.1} MB uncompressed, profile {}", size as f64 / 1e6, profile());
        assert!(profile() != "image" || size < LARGEST, "{image} has {size} bytes");
    }
}

#[test]
fn images_of_the_same_sources_are_the_same_byte_for_byte_and_tell_nothing_of_where_they_were_built() {
    let (first, second) = (Roots::shared(), Roots::lay_out());
    let home = std::env::home_dir().unwrap_or_default().join(".cargo");
    let cargo = std::env::var_os("CARGO_HOME").map_or(home, PathBuf::from);
    for (image, program) in IMAGES {
        let same = fs::read(first.archive(image)).unwrap() == fs::read(second.archive(image)).unwrap();
        assert!(same, "two archives of {image} differ");
        let bytes = fs::read(first.root(image).join("usr/bin").join(program)).unwrap();
        for path in [&repository(), &cargo] {
            assert!(!holds(&bytes, path), "{program} names {}", path.display());
        }
    }
}

fn holds(bytes: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    bytes.windows(path.len()).any(|window| window == path)
}

#[test]
fn programs_run_in_their_images_and_write_nowhere_but_in_their_caches() {
    let machines = match Machines::new(1) {
        Ok(machines) => machines,
        Err(why) => return println!("passed over: no network namespaces here: {why}"),
    };
    let roots = Roots::shared();
    let views = tempfile::tempdir_in(roots.folder()).unwrap();
    let mut views = (0..).map(|number| views.path().join(format!("{number}")));
    let mut run = |image: &str, user: &str, command: &[&str]| {
        let container = Container {
            root: roots.root(image),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            user: user.into(),
            temporary: vec![
                "/tmp:mode=1777".into(),
                "/var/cache/millrace:uid=65532,gid=65532,mode=0755".into(),
            ],
            ..Container::default()
        };
        container.on(&machines, 0, &views.next().unwrap()).output().unwrap()
    };
    for (image, program) in IMAGES {
        let done = run(image, "65532:65532", &[&format!("/usr/bin/{program}"), "--version"]);
        let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
        assert!(String::from_utf8_lossy(&done.stdout).ends_with(version), "{program}: {done:?}");
    }
    let mut write = |user: &str, to: &str| {
        let done = run("millrace", user, &["/usr/bin/millrace", "nats-config", "--out", to]);
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for to in ["/tmp/x", "/var/cache/millrace/x"] {
        let (is_written, why) = write("65532:65532", to);
        assert!(is_written, "{to}: {why}");
    }
    for to in ["/x", "/etc/x", "/usr/bin/x", "/var/x"] {
        assert!(!write("65532:65532", to).0, "{to} can be written");
        // Not even by root: there is nothing to write to.
        let (is_written, why) = write("0:0", to);
        assert!(!is_written && why.contains("Read-only file system"), "{to}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_of_the_compose_file_does_a_run_in_its_images() {
    let _alone = alone();
    let cluster = match Cluster::start().await {
        Ok(cluster) => cluster,
        Err(why) => return println!("passed over: no network namespaces here: {why}"),
    };
    let question = "How do these licences treat patents, and when does a patent grant end?";
    let submitted = cluster.client(&["submit", question, "--docs", "/documents"]);
    let told = |said: &Output| String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(submitted.status.success(), "{submitted:?}");
    let watched = cluster.client(&["watch", told(&submitted).trim()]);
    assert!(watched.status.success(), "{watched:?}");
    assert!(told(&watched).contains("patent"), "{watched:?}");

    // By the file of hosts for supervisors, by the server of names for all others.
    let asked = cluster.names().asked();
    assert!(asked.contains("nats-1.nats"), "{asked:?}");
    for (name, answer) in cluster.ask("/metrics").await {
        let (_, metrics) = answer.unwrap_or_else(|| panic!("{name} has no metrics"));
        assert!(metrics.contains("millrace_build_info{"), "{name}: {metrics}");
    }
    cluster.end();
}

/// A version that stands in a file behind `before`.
fn version_in(file: &str, before: &str) -> String {
    let text = fs::read_to_string(repository().join(file)).unwrap();
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before:?}"));
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap().to_owned()
}

#[test]
fn the_dockerfile_names_the_compiler_and_the_version_of_the_workspace() {
    let compiler = version_in("rust-toolchain.toml", "channel = \"");
    assert_eq!(version_in("deploy/image/Dockerfile", "ARG RUST=docker.io/library/rust:"), compiler);
    assert_eq!(version_in("deploy/image/Dockerfile", "ARG VERSION="), env!("CARGO_PKG_VERSION"));
}

#[test]
fn images_are_built_from_all_that_they_need_and_from_no_secret() {
    let ignored = fs::read_to_string(repository().join(".dockerignore")).unwrap();
    let rules: BTreeSet<&str> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(rules.contains("*"), "what is not named is left out");
    let metadata = said(
        Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
            .current_dir(repository()),
    );
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let lets_in =
        |path: &Path| path.ancestors().any(|part| rules.contains(format!("!{}", part.display()).as_str()));
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let inside = manifest.strip_prefix(repository()).unwrap();
        assert!(lets_in(inside), ".dockerignore leaves {} out", inside.display());
        let folder = manifest.parent().unwrap().join("src");
        for included in included(&folder) {
            assert!(lets_in(&included), ".dockerignore leaves {} out", included.display());
        }
    }
    for secret in ["**/*.nk", "**/*.creds", "**/*.key"] {
        assert!(rules.contains(secret), "{secret}");
    }
    assert!(!lets_in(Path::new("deploy/compose/secrets/accounts.conf")));
}

/// The files outside a folder that sources below it are compiled with, from the repository's folder on.
fn included(sources: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut left = vec![sources.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for rest in text.split("include_str!(\"").chain(text.split("include_bytes!(\"")).skip(1) {
                let named = folder.join(rest.split('"').next().unwrap_or_default());
                let named = named.canonicalize().unwrap_or_default();
                all.extend(named.strip_prefix(repository()).ok().map(Path::to_owned));
            }
        }
    }
    all
}

/// An engine that works in a folder of its own.
struct Buildah(TempDir);

impl Buildah {
    /// Whether it is there and may mount what it makes.
    fn can_mount(&self) -> Result<(), String> {
        let found = self.command(&["from", "scratch"]).output().map_err(|error| error.to_string())?;
        let container = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        let tried = self.command(&["mount", &container]).output().map_err(|error| error.to_string())?;
        let may = tried.status.success();
        if may { Ok(()) } else { Err(String::from_utf8_lossy(&tried.stderr).into_owned()) }
    }

    fn say(&self, words: &[&str]) -> String {
        said(&mut self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        let at = |name: &str| self.0.path().join(name);
        let mut command = Command::new("buildah");
        command.env("STORAGE_DRIVER", "vfs").env("BUILDAH_ISOLATION", "chroot");
        command.arg("--root").arg(at("root")).arg("--runroot").arg(at("run")).args(words);
        command.current_dir(repository());
        command
    }

    /// Builds an image from roots that were laid out already: its own stage for that needs an image of a compiler.
    fn build(&self, roots: &Roots, image: &str) {
        let built = format!("build={}", roots.folder().display());
        let epoch = EPOCH.to_string();
        let mut words = vec!["bud", "--format", "oci", "--timestamp", &epoch, "--build-context", &built];
        words.extend(["--build-arg", "REVISION=abc", "--target", image, "--tag", image]);
        self.say(&[&words, &["--file", "deploy/image/Dockerfile", "."][..]].concat());
    }

    /// What is in an image: what it is and who may do what, the owner, and the name.
    fn list(&self, image: &str) -> BTreeSet<String> {
        let container = self.say(&["from", "--pull-never", &format!("localhost/{image}")]);
        let folder = self.say(&["mount", container.trim()]);
        let mut find = Command::new("find");
        let found = said(find.arg(folder.trim()).args(["-mindepth", "1", "-printf", "%M %U/%G ./%P\n"]));
        found.lines().map(str::to_owned).collect()
    }
}

#[test]
fn an_engine_makes_the_images_from_the_same_roots() {
    let engine = Buildah(tempfile::tempdir().unwrap());
    if let Err(why) = engine.can_mount() {
        return println!("passed over: no buildah that works here (apt-get install buildah): {why}");
    }
    let roots = Roots::shared();
    for (image, program) in IMAGES {
        engine.build(&roots, image);
        let told: Value = serde_json::from_str(&engine.say(&["inspect", "--type", "image", image])).unwrap();
        let config = &told["OCIv1"]["config"];
        assert_eq!(config["User"], "65532:65532", "{image}");
        assert_eq!(config["Entrypoint"], json!([format!("/usr/bin/{program}")]), "{image}");
        assert_eq!(config["Volumes"], json!({"/tmp": {}, "/var/cache/millrace": {}}), "{image}");
        let label = |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].clone();
        assert_eq!(label("version"), env!("CARGO_PKG_VERSION"), "{image}");
        assert_eq!((label("licenses"), label("revision")), (json!("Apache-2.0"), json!("abc")), "{image}");
        assert!(["title", "description", "source"].iter().all(|name| label(name).is_string()), "{image}");
        if is_root() {
            let without_slash = |line: &String| line.trim_end_matches('/').to_owned();
            let meant: BTreeSet<String> = listed(program).iter().map(without_slash).collect();
            let found = engine.list(image).into_iter().chain(["drwxr-xr-x 0/0 .".to_owned()]);
            assert_eq!(found.collect::<BTreeSet<_>>(), meant, "{image}");
        }
    }
}
