//! The container images, tested without a container engine: the root file systems that the Dockerfile's script creates
//! are complete and reproducible, and their programs complete a run as set up in `deploy/compose/compose.yaml`: each on
//! a simulated machine, with a read-only root and an unprivileged user.
//!
//! The programs are those of the other tests, with the libraries of this machine; what the script's flags do is shown by a small
//! program. `just images` builds the programs as they are released, which takes long, and runs the same tests with them;
//! `MILLRACE_IMAGE_ROOTS` names a folder with existing roots to test instead.
//!
//! # Invariants
//!
//! - I55: An image contains what is listed, is reproducible byte for byte, and runs without root on a read-only file system.
//!   (`tests/tests/image.rs::images_contain_exactly_the_listed_files`,
//!   `tests/tests/image.rs::images_are_reproducible_and_contain_no_build_paths`,
//!   `tests/tests/image.rs::programs_in_images_can_write_their_caches_only`)
//! - I71: A package contains the program, its manual pages and completions, is reproducible, and runs where it is installed.
//!   (`tests/tests/image/packages.rs::packages_are_reproducible`,
//!   `tests/tests/image/packages.rs::packages_are_installed_and_their_programs_run`)

mod cluster;
mod compose;
mod conformity;
mod container;
mod names;
mod packages;
mod roots;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cluster::ComposeCluster;
use container::EmulatedContainer;
use millrace_tests::machine::share_machine;
use millrace_tests::machines::TestMachines;
use roots::{
    EPOCH, IMAGES, ImageRoots, build_profile, repository_folder, rootfs_script, run_and_read_output,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The largest size of a released image.
const LARGEST: u64 = 40_000_000;

/// The expected content of an image as listed by `tar --list --verbose`: mode, owner and name.
fn expected_image_files(program: &str) -> BTreeSet<String> {
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
fn images_contain_exactly_the_listed_files() {
    let roots = ImageRoots::get_or_create_shared();
    for (image, program) in IMAGES {
        let archive = roots.root_archive(image);
        let mut tar = Command::new("tar");
        tar.args(["--list", "--verbose", "--numeric-owner", "--full-time", "--utc", "--file"]).arg(&archive);
        let text = run_and_read_output(&mut tar);
        let mut listing = BTreeSet::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[3..5], ["2025-06-15", "15:06:40"], "{image}: {line}");
            assert!(listing.insert([words[0], words[1], words[5]].join(" ")), "{image}: twice: {line}");
        }
        assert_eq!(listing, expected_image_files(program), "{image}");
        if is_root() {
            // The folder that the Dockerfile copies has the same content, times, owners and modes.
            run_and_read_output(
                Command::new("tar")
                    .arg("--compare")
                    .arg("--file")
                    .arg(&archive)
                    .arg("--directory")
                    .arg(roots.root_folder(image)),
            );
        }
        let size = archive.metadata().unwrap().len();
        println!("{image}: {:.1} MB uncompressed, profile {:?}", size as f64 / 1e6, build_profile());
        let is_delivered = build_profile().is_some_and(|profile| profile == "image");
        assert!(!is_delivered || size < LARGEST, "{image} has {size} bytes");
    }
}

#[test]
fn images_are_reproducible_and_contain_no_build_paths() {
    let (first, second) = (ImageRoots::get_or_create_shared(), ImageRoots::build_all_roots());
    for (image, program) in IMAGES {
        let same =
            fs::read(first.root_archive(image)).unwrap() == fs::read(second.root_archive(image)).unwrap();
        assert!(same, "two archives of {image} differ");
        if build_profile().is_some() {
            assert_names_no_build_path(&first.root_folder(image).join("usr/bin").join(program));
        }
    }
}

fn assert_names_no_build_path(program: &Path) {
    let home = std::env::home_dir().unwrap_or_default().join(".cargo");
    let cargo = std::env::var_os("CARGO_HOME").map_or(home, PathBuf::from);
    let bytes = fs::read(program).unwrap();
    for path in [&repository_folder(), &cargo] {
        assert!(!contains_path(&bytes, path), "{} names {}", program.display(), path.display());
    }
}

/// Stands in for Cargo: compiles a small program with the flags of the script.
const SMALL_BUILD: &str = r#"#!/bin/sh
set -eu
while [ $# -gt 0 ]; do
    case $1 in
    --target) target=$2 ;;
    --target-dir) target_dir=$2 ;;
    esac
    shift
done
folder=$target_dir/$target/$FOLDER
mkdir -p "$folder"
IFS=$(printf '\037')
set -f
exec rustc --edition=2024 -Cstrip=symbols $CARGO_ENCODED_RUSTFLAGS -o "$folder/millrace-worker" "$SMALL_SOURCE"
"#;

/// Its source: it resolves a name, and contains its own path.
const SMALL_SOURCE: &str = r#"
use std::net::ToSocketAddrs;

fn main() {
    let name = std::env::args().nth(1).expect("a name");
    let address = (name, 80).to_socket_addrs().expect("it is resolved").next();
    println!("{} {:?}", file!(), address);
}
"#;

#[test]
fn flags_of_the_script_give_static_reproducible_programs_without_build_paths() {
    let target = repository_folder().join("target/image");
    fs::create_dir_all(&target).unwrap();
    let folder = tempfile::tempdir_in(&target).unwrap();
    let source = folder.path().join("small.rs");
    fs::write(&source, SMALL_SOURCE).unwrap();
    let cargo = folder.path().join("bin/cargo");
    fs::create_dir(cargo.parent().unwrap()).unwrap();
    fs::write(&cargo, SMALL_BUILD).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let builds = ["1", "2"].map(|number| {
        let out = folder.path().join(number);
        let mut script = rootfs_script(&out);
        script.args(["--profile", "image", "--target-dir"]).arg(out.join("target")).arg("worker");
        script.env("PATH", format!("{}:{path}", cargo.parent().unwrap().display()));
        // The script refuses programs that are not static.
        run_and_read_output(script.env("FOLDER", "image").env("SMALL_SOURCE", &source));
        out
    });
    let program = builds[0].join("worker/usr/bin/millrace-worker");
    let output = run_and_read_output(Command::new(&program).arg("localhost"));
    assert!(output.starts_with("/millrace/") && output.contains(":80"), "{output}");
    assert_names_no_build_path(&program);
    let archives = builds.map(|out| fs::read(out.join("worker.tar")).unwrap());
    assert!(archives[0] == archives[1], "two builds differ");
}

fn contains_path(bytes: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    bytes.windows(path.len()).any(|window| window == path)
}

#[test]
fn programs_in_images_can_write_their_caches_only() {
    let machines = match TestMachines::new(1) {
        Ok(machines) => machines,
        Err(why) => return println!("passed over: no network namespaces here: {why}"),
    };
    let roots = ImageRoots::get_or_create_shared();
    let views = tempfile::tempdir_in(roots.build_folder()).unwrap();
    let mut views = (0..).map(|number| views.path().join(format!("{number}")));
    let mut run = |image: &str, user: &str, command: &[&str]| {
        let container = EmulatedContainer {
            root: roots.root_folder(image),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            user: user.into(),
            temporary: vec![
                "/tmp:mode=1777".into(),
                "/var/cache/millrace:uid=65532,gid=65532,mode=0755".into(),
            ],
            ..EmulatedContainer::default()
        };
        container.command_on_machine(&machines, 0, &views.next().unwrap()).output().unwrap()
    };
    for (image, program) in IMAGES {
        let output = run(image, "65532:65532", &[&format!("/usr/bin/{program}"), "--version"]);
        let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
        assert!(String::from_utf8_lossy(&output.stdout).ends_with(version), "{program}: {output:?}");
    }
    let mut write = |user: &str, to: &str| {
        let output = run("millrace", user, &["/usr/bin/millrace", "nats-config", "--out", to]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for to in ["/tmp/x", "/var/cache/millrace/x"] {
        let (is_written, why) = write("65532:65532", to);
        assert!(is_written, "{to}: {why}");
    }
    for to in ["/x", "/etc/x", "/usr/bin/x", "/var/x"] {
        assert!(!write("65532:65532", to).0, "{to} can be written");
        // Not even by root: the file system is read-only.
        let (is_written, why) = write("0:0", to);
        assert!(!is_written && why.contains("Read-only file system"), "{to}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_cluster_completes_a_run_in_its_images() {
    let _shared = share_machine();
    let cluster = match ComposeCluster::start().await {
        Ok(cluster) => cluster,
        Err(why) => return println!("passed over: no network namespaces here: {why}"),
    };
    let question = "How do these licences treat patents, and when does a patent grant end?";
    let submitted = cluster.run_client(&["submit", question, "--docs", "/documents"]);
    let stdout = |output_of: &Output| String::from_utf8_lossy(&output_of.stdout).into_owned();
    assert!(submitted.status.success(), "{submitted:?}");
    let watched = cluster.run_client(&["watch", stdout(&submitted).trim()]);
    assert!(watched.status.success(), "{watched:?}");
    assert!(stdout(&watched).contains("patent"), "{watched:?}");

    // Supervisors use the hosts file, all other processes the DNS server.
    let queried_names = cluster.dns_server().queried_names();
    assert!(queried_names.contains("nats-1.nats"), "{queried_names:?}");
    for (name, answer) in cluster.get_from_all("/metrics").await {
        let (_, metrics) = answer.unwrap_or_else(|| panic!("{name} has no metrics"));
        assert!(metrics.contains("millrace_build_info{"), "{name}: {metrics}");
    }
    cluster.stop_all();
}

/// The version in a file that follows `before`.
fn version_after(file: &str, before: &str) -> String {
    let text = fs::read_to_string(repository_folder().join(file)).unwrap();
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before:?}"));
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap().to_owned()
}

#[test]
fn dockerfile_has_the_workspace_compiler_and_version() {
    let compiler = version_after("rust-toolchain.toml", "channel = \"");
    assert_eq!(version_after("deploy/image/Dockerfile", "ARG RUST=docker.io/library/rust:"), compiler);
    assert_eq!(version_after("deploy/image/Dockerfile", "ARG VERSION="), env!("CARGO_PKG_VERSION"));
}

#[test]
fn dockerignore_includes_all_sources_and_no_secret() {
    let ignored = fs::read_to_string(repository_folder().join(".dockerignore")).unwrap();
    let rules: BTreeSet<&str> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(rules.contains("*"), "files are excluded unless named");
    let metadata = run_and_read_output(
        Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
            .current_dir(repository_folder()),
    );
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let lets_in =
        |path: &Path| path.ancestors().any(|part| rules.contains(format!("!{}", part.display()).as_str()));
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let inside = manifest.strip_prefix(repository_folder()).unwrap();
        assert!(lets_in(inside), ".dockerignore excludes {}", inside.display());
        let folder = manifest.parent().unwrap().join("src");
        for included in included_files(&folder) {
            assert!(lets_in(&included), ".dockerignore excludes {}", included.display());
        }
    }
    for secret in ["**/*.nk", "**/*.creds", "**/*.key"] {
        assert!(rules.contains(secret), "{secret}");
    }
    assert!(!lets_in(Path::new("deploy/compose/secrets/accounts.conf")));
}

/// The files outside a folder that its sources include, relative to the repository.
fn included_files(sources: &Path) -> BTreeSet<PathBuf> {
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
                all.extend(named.strip_prefix(repository_folder()).ok().map(Path::to_owned));
            }
        }
    }
    all
}

/// Buildah with a storage folder of its own.
struct Buildah(TempDir);

impl Buildah {
    /// Checks that it is installed and may mount images.
    fn check_mount_support(&self) -> Result<(), String> {
        let listing =
            self.buildah_command(&["from", "scratch"]).output().map_err(|error| error.to_string())?;
        let container = String::from_utf8_lossy(&listing.stdout).trim().to_owned();
        let tried =
            self.buildah_command(&["mount", &container]).output().map_err(|error| error.to_string())?;
        let may = tried.status.success();
        if may { Ok(()) } else { Err(String::from_utf8_lossy(&tried.stderr).into_owned()) }
    }

    fn run_buildah(&self, words: &[&str]) -> String {
        run_and_read_output(&mut self.buildah_command(words))
    }

    fn buildah_command(&self, words: &[&str]) -> Command {
        let at = |name: &str| self.0.path().join(name);
        let mut command = Command::new("buildah");
        command.env("STORAGE_DRIVER", "vfs").env("BUILDAH_ISOLATION", "chroot");
        command.arg("--root").arg(at("root")).arg("--runroot").arg(at("run")).args(words);
        command.current_dir(repository_folder());
        command
    }

    /// Builds an image from existing roots: the Dockerfile's own build stage needs a compiler image.
    fn build_image(&self, roots: &ImageRoots, image: &str) {
        let built = format!("build={}", roots.build_folder().display());
        let epoch = EPOCH.to_string();
        let mut words = vec!["bud", "--format", "oci", "--timestamp", &epoch, "--build-context", &built];
        words.extend(["--build-arg", "REVISION=abc", "--target", image, "--tag", image]);
        self.run_buildah(&[&words, &["--file", "deploy/image/Dockerfile", "."][..]].concat());
    }

    /// The content of an image: mode, owner and name of each file.
    fn list_image_files(&self, image: &str) -> BTreeSet<String> {
        let container = self.run_buildah(&["from", "--pull-never", &format!("localhost/{image}")]);
        let folder = self.run_buildah(&["mount", container.trim()]);
        let mut find = Command::new("find");
        let listing = run_and_read_output(find.arg(folder.trim()).args([
            "-mindepth",
            "1",
            "-printf",
            "%M %U/%G ./%P\n",
        ]));
        listing.lines().map(str::to_owned).collect()
    }
}

#[test]
fn buildah_builds_the_images_from_the_same_roots() {
    let engine = Buildah(tempfile::tempdir().unwrap());
    if let Err(why) = engine.check_mount_support() {
        return println!("passed over: no buildah that works here (apt-get install buildah): {why}");
    }
    let roots = ImageRoots::get_or_create_shared();
    for (image, program) in IMAGES {
        engine.build_image(&roots, image);
        let description: Value =
            serde_json::from_str(&engine.run_buildah(&["inspect", "--type", "image", image])).unwrap();
        let config = &description["OCIv1"]["config"];
        assert_eq!(config["User"], "65532:65532", "{image}");
        assert_eq!(config["Entrypoint"], json!([format!("/usr/bin/{program}")]), "{image}");
        assert_eq!(config["Volumes"], json!({"/tmp": {}, "/var/cache/millrace": {}}), "{image}");
        let label = |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].clone();
        assert_eq!(label("version"), env!("CARGO_PKG_VERSION"), "{image}");
        assert_eq!((label("licenses"), label("revision")), (json!("Apache-2.0"), json!("abc")), "{image}");
        assert!(["title", "description", "source"].iter().all(|name| label(name).is_string()), "{image}");
        if is_root() {
            let without_slash = |line: &String| line.trim_end_matches('/').to_owned();
            let meant: BTreeSet<String> = expected_image_files(program).iter().map(without_slash).collect();
            let listing = engine.list_image_files(image).into_iter().chain(["drwxr-xr-x 0/0 .".to_owned()]);
            assert_eq!(listing.collect::<BTreeSet<_>>(), meant, "{image}");
        }
    }
}
