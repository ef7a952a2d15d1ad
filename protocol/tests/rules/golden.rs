//! Golden files, reviewed together with the tests. `UPDATE_GOLDEN=1` rewrites them; otherwise a difference fails the test.

use std::path::{Path, PathBuf};

/// Returns the path of a file below `protocol/tests/`.
pub fn golden_file_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Compares a text with a golden file below `protocol/tests/`.
pub fn compare_with_golden_file(name: &str, text: &str) {
    let path = golden_file_path(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 writes it", path.display()));
    if let Some((number, (is, should))) = (1..)
        .zip(lines_with_end_marker(text).zip(lines_with_end_marker(&golden)))
        .find(|(_, (is, should))| is != should)
    {
        panic!(
            "{}:{number} differs; UPDATE_GOLDEN=1 rewrites it\n  golden: {should}\n  now:    {is}",
            path.display()
        );
    }
}

/// Returns the lines of a text and a final marker, so that a truncated text differs.
fn lines_with_end_marker(text: &str) -> impl Iterator<Item = &str> {
    text.lines().chain(std::iter::once("(end of the text)"))
}
