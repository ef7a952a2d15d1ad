//! Texts that a reviewer reads, kept beside the tests. `UPDATE_GOLDEN=1` rewrites them; otherwise a difference fails.

use std::path::{Path, PathBuf};

/// A file below `protocol/tests/`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Compares a text with the golden file of that name below `protocol/tests/`.
pub fn compare(name: &str, text: &str) {
    let path = path(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 writes it", path.display()));
    if let Some((number, (is, should))) =
        (1..).zip(lines(text).zip(lines(&golden))).find(|(_, (is, should))| is != should)
    {
        panic!(
            "{}:{number} differs; UPDATE_GOLDEN=1 rewrites it\n  golden: {should}\n  now:    {is}",
            path.display()
        );
    }
}

/// The lines of a text, and one more that says that it is over, so that a text that stops early differs.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().chain(std::iter::once("(end of the text)"))
}
