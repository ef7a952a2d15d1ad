//! Lists the files of the dashboard as a table for `src/dashboard.rs`: `(path, bytes)`, sorted by path.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The files and folders that a browser needs.
const SERVED: [&str; 8] = [
    "index.html",
    "theme.js",
    "icon.svg",
    "app",
    "style",
    "vendor/vendor.mjs",
    "vendor/vendor.css",
    "vendor/LICENSES.txt",
];

fn main() -> io::Result<()> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("dashboard");
    let mut files = Vec::new();
    for entry in SERVED {
        println!("cargo::rerun-if-changed=dashboard/{entry}");
        add_files(&folder.join(entry), &mut files)?;
    }
    files.sort();
    let mut table = String::from("[");
    for file in files {
        let path =
            file.strip_prefix(&folder).expect("it is in the folder").to_string_lossy().replace('\\', "/");
        writeln!(table, "({path:?}, include_bytes!({file:?}).as_slice()),").expect("a text takes any length");
    }
    table.push(']');
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("dashboard.rs"), table)
}

/// Adds a file, or all files below a folder.
fn add_files(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        add_files(&entry?.path(), files)?;
    }
    Ok(())
}
