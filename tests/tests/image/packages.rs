//! The packages of `packaging/pack`, made of the image's program, installed and run: a Debian package and a Python
//! wheel. Skipped, with a message, where dpkg or Python's venv is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::roots::{ImageRoots, repository_folder, run_and_read_output};

const VERSION: &str = concat!("millrace ", env!("CARGO_PKG_VERSION"), "\n");

/// Packs a program, and returns the names of the files. Completions and manual pages are those of `millrace`.
fn pack_into(folder: &Path, program: &Path, millrace: &Path) -> BTreeSet<String> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut pack = Command::new(repository_folder().join("packaging/pack"));
    pack.args(["--target", &target, "--compression", "fast", "--out"]).arg(folder);
    pack.arg("--program").arg(program).arg("--runner").arg(millrace);
    run_and_read_output(&mut pack).lines().map(str::to_owned).collect()
}

fn image_program(roots: &ImageRoots) -> PathBuf {
    roots.root_folder("millrace").join("usr/bin/millrace")
}

fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn packages_are_reproducible() {
    if !has_program("python3") {
        return println!("skipped: no python3");
    }
    let roots = ImageRoots::get_or_create_shared();
    let millrace = image_program(&roots);
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1"), folder.path().join("2"));
    // Any program serves, and a small one is packed faster.
    let program = folder.path().join("program");
    fs::copy("/bin/true", &program).unwrap();
    let names = pack_into(&first, &program, &millrace);
    assert_eq!(pack_into(&second, &program, &millrace), names);
    for name in &names {
        assert!(
            fs::read(first.join(name)).unwrap() == fs::read(second.join(name)).unwrap(),
            "two {name} differ"
        );
    }
    let sums = fs::read_to_string(first.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), names.len(), "{sums}");
}

#[test]
fn packages_are_installed_and_their_programs_run() {
    if !has_program("python3") {
        return println!("skipped: no python3");
    }
    let roots = ImageRoots::get_or_create_shared();
    let millrace = image_program(&roots);
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join("packages");
    let names = pack_into(&packages, &millrace, &millrace);
    let find = |end: &str| names.iter().find(|name| name.ends_with(end)).map(|name| packages.join(name));

    let archive = find(".tar.gz").unwrap();
    run_and_read_output(Command::new("tar").arg("-xzf").arg(&archive).current_dir(folder.path()));
    let name = archive.file_name().unwrap().to_str().unwrap().trim_end_matches(".tar.gz");
    let unpacked = folder.path().join(name);
    assert_eq!(run_and_read_output(Command::new(unpacked.join("millrace")).arg("--version")), VERSION);
    assert!(
        unpacked.join("man/millrace-run.1").is_file() && unpacked.join("completions/_millrace").is_file()
    );

    install_wheel(&find(".whl").unwrap(), &folder.path().join("venv"));
    match find(".deb") {
        Some(package) => install_debian_package(&package, &folder.path().join("debian")),
        None => println!("skipped: no dpkg-deb"),
    }
}

fn install_wheel(wheel: &Path, environment: &Path) {
    let made = Command::new("python3").args(["-m", "venv"]).arg(environment).output().unwrap();
    if !made.status.success() {
        return println!("skipped: no venv: {}", String::from_utf8_lossy(&made.stderr));
    }
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(wheel);
    run_and_read_output(&mut pip);
    let program = environment.join("bin/millrace");
    assert_eq!(run_and_read_output(Command::new(program).arg("--version")), VERSION);
    let mut shown = Command::new(environment.join("bin/pip"));
    let shown =
        run_and_read_output(shown.args(["show", "--files", "millrace", "--disable-pip-version-check"]));
    assert!(shown.contains("License: Apache-2.0") && shown.contains("bin/millrace"), "{shown}");
}

/// Installs the package below a folder that is otherwise empty.
fn install_debian_package(package: &Path, root: &Path) {
    let fields = run_and_read_output(Command::new("dpkg-deb").arg("--field").arg(package));
    for field in ["Package: millrace", concat!("Version: ", env!("CARGO_PKG_VERSION")), "Architecture: "] {
        assert!(fields.contains(field), "{field}: {fields}");
    }
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    fs::write(root.join("var/lib/dpkg/available"), "").unwrap();
    let mut dpkg = Command::new("dpkg");
    dpkg.arg("--root").arg(root).args(["--force-not-root", "--install"]).arg(package);
    run_and_read_output(&mut dpkg);
    let program = root.join("usr/bin/millrace");
    assert_eq!(run_and_read_output(Command::new(program).arg("--version")), VERSION);
    for file in [
        "usr/share/man/man1/millrace-run.1.gz",
        "usr/share/bash-completion/completions/millrace",
        "usr/share/zsh/vendor-completions/_millrace",
        "usr/share/fish/vendor_completions.d/millrace.fish",
        "usr/share/doc/millrace/copyright",
    ] {
        assert!(root.join(file).metadata().is_ok_and(|file| file.len() > 0), "{file}");
    }
}
