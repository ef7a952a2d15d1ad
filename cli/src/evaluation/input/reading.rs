//! Reads question files and claim files as text, and names the items and documents in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::exit::CommandError;

/// The maximum size of a question file or a claim file in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The place of an item in the files, by which a part of them is drawn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemOrigin {
    /// The name of its file among several; empty for a single file.
    pub file: String,
    /// Its id in the file.
    pub id: String,
}

/// The name of a file without its ending.
pub fn file_stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The names of several files, by their stems; the name of a single file is empty.
pub fn file_names(paths: &[PathBuf]) -> Vec<String> {
    match paths {
        [_] => vec![String::new()],
        paths => {
            let mut used = BTreeSet::new();
            paths.iter().map(|path| unique_name(&file_stem(path), &mut used)).collect()
        }
    }
}

/// A name of an item or a document, after that of its file.
pub fn name_in_file(file: &str, separator: char, name: &str) -> String {
    if file.is_empty() { name.to_owned() } else { format!("{file}{separator}{name}") }
}

/// A name, with a number if it is used already.
pub fn unique_name(name: &str, used: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !used.contains(name));
    let free = free.expect("there is always another number");
    used.insert(free.clone());
    free
}

/// Reads a file as text.
pub fn read_input_text(path: &Path, content: &str) -> Result<String, CommandError> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| refused!("cannot read {shown}: {error}");
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_BYTES {
        return Err(refused!("{shown} is larger than {} MiB; split it", MAX_BYTES >> 20));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| refused!("{shown} is no text in UTF-8; convert it"))?;
    match text.trim().is_empty() {
        true => Err(refused!("{shown} is empty; it should have {content}")),
        false => Ok(text.trim_start_matches('\u{feff}').to_owned()),
    }
}

/// The message of a JSON error without its position.
pub fn json_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}
