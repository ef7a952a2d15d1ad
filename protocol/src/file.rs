//! The files of a run's workspace: their paths, and the versions that the log of files holds. It reads and writes
//! nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::wire::Blob;

/// The most bytes of a file.
pub const MAX_FILE: u64 = 32 * 1024 * 1024;
/// The most bytes of a path.
pub const MAX_PATH: usize = 512;

/// Where a file is: absolute, `/` between parts, no part empty, `.` or `..`. A text without the leading `/`, or
/// with `./` instead, means the same file as with it. Other dots are fine: `a..b` is a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(String);

/// A text that is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no path here: {reason}")]
pub struct InvalidPath {
    /// The text, cut to 200 characters.
    pub text: String,
    /// What is wrong, and what is allowed.
    pub reason: &'static str,
}

impl FilePath {
    /// Validates a path.
    ///
    /// # Errors
    /// It leaves its root, is no path of this kind, or is too long.
    pub fn new(text: &str) -> Result<Self, InvalidPath> {
        let refuse = |reason| InvalidPath { text: text.chars().take(200).collect(), reason };
        let relative = text.strip_prefix('/').or_else(|| text.strip_prefix("./")).unwrap_or(text);
        let bytes = relative.as_bytes();
        if relative.is_empty() || relative.ends_with('/') {
            return Err(refuse("it names a folder, not a file"));
        }
        if text.len() > MAX_PATH {
            return Err(refuse("it is longer than 512 bytes"));
        }
        if relative.starts_with('~') {
            return Err(refuse("'~' is no folder here; paths begin with '/'"));
        }
        if bytes.len() > 1 && bytes[1] == b':' && bytes[0].is_ascii_alphabetic() {
            return Err(refuse("paths have no drives; they begin with '/'"));
        }
        if relative.contains('\\') {
            return Err(refuse("parts are separated by '/'"));
        }
        if relative.contains(breaks_a_line) {
            return Err(refuse("it has a control character"));
        }
        for part in relative.split('/') {
            match part {
                "" => return Err(refuse("a part of it is empty")),
                "." | ".." => return Err(refuse("'.' and '..' are not allowed as parts")),
                _ => {}
            }
        }
        Ok(Self(format!("/{relative}")))
    }

    /// The path, with its leading `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parts between the `/`.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0[1..].split('/')
    }
}

/// Characters that end a line of text or turn its direction round: a name with one could pass for something else.
fn breaks_a_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for FilePath {
    type Err = InvalidPath;
    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        Self::new(text)
    }
}

impl TryFrom<String> for FilePath {
    type Error = InvalidPath;
    fn try_from(text: String) -> Result<Self, InvalidPath> {
        Self::new(&text)
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> String {
        path.0
    }
}

impl schemars::JsonSchema for FilePath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FilePath".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_PATH })
    }
}

/// What a writer expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever there is.
    Anything,
    /// No file.
    Nothing,
    /// This very version.
    Version(u64),
}

/// One version of a file, as it stands in the log of files. Versions are never changed and never removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// Its number, from 1; a deletion counts as one.
    pub version: u64,
    /// Who wrote it, such as `task draft`.
    pub author: String,
    /// What wrote it: a second write with the same key is the first.
    pub key: String,
    /// The size of the content in bytes; 0 for a deletion.
    pub size: u64,
    /// The content; `None` says that the file was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Blob>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_its_root_whatever_is_tried() {
        let long = format!("/{}", "x".repeat(MAX_PATH));
        let refused = [
            ("", "it names a folder, not a file"),
            ("/", "it names a folder, not a file"),
            ("a/", "it names a folder, not a file"),
            ("..", "'.' and '..' are not allowed as parts"),
            ("../a", "'.' and '..' are not allowed as parts"),
            ("/a/../b", "'.' and '..' are not allowed as parts"),
            ("/a/./b", "'.' and '..' are not allowed as parts"),
            ("a/..", "'.' and '..' are not allowed as parts"),
            ("./../a", "'.' and '..' are not allowed as parts"),
            ("//etc/passwd", "a part of it is empty"),
            ("a//b", "a part of it is empty"),
            ("~", "'~' is no folder here; paths begin with '/'"),
            ("~/x", "'~' is no folder here; paths begin with '/'"),
            ("/~root/x", "'~' is no folder here; paths begin with '/'"),
            ("C:/x", "paths have no drives; they begin with '/'"),
            ("/c:x", "paths have no drives; they begin with '/'"),
            ("C:\\x", "paths have no drives; they begin with '/'"),
            ("a\\b", "parts are separated by '/'"),
            ("\\\\host\\share", "parts are separated by '/'"),
            ("..\\a", "parts are separated by '/'"),
            ("a\0b", "it has a control character"),
            ("a\nb", "it has a control character"),
            ("a\u{7f}", "it has a control character"),
            ("a\u{85}b", "it has a control character"),
            ("a\u{2028}b", "it has a control character"),
            ("gpj.\u{202e}exe", "it has a control character"),
            (long.as_str(), "it is longer than 512 bytes"),
        ];
        for (text, reason) in refused {
            assert_eq!(FilePath::new(text).map_err(|refusal| refusal.reason), Err(reason), "{text:?}");
        }
    }

    #[test]
    fn names_that_only_look_strange_are_names() {
        for (text, path) in [
            ("a", "/a"),
            ("./a", "/a"),
            ("/a/b.md", "/a/b.md"),
            ("a..b", "/a..b"),
            ("..a", "/..a"),
            ("/a/...", "/a/..."),
            ("a.", "/a."),
            ("dir./x", "/dir./x"),
            (".hidden/.x", "/.hidden/.x"),
            ("a ~b", "/a ~b"),
            ("/a/~b", "/a/~b"),
            (" a ", "/ a "),
            ("%2e%2e/a", "/%2e%2e/a"),
            ("*.md", "/*.md"),
            // Not the dots and slashes that they resemble: nobody normalises them.
            ("\u{ff0e}\u{ff0e}/a", "/\u{ff0e}\u{ff0e}/a"),
            ("\u{2025}/a", "/\u{2025}/a"),
            ("a\u{2215}b", "/a\u{2215}b"),
            // Composed and decomposed are two names.
            ("\u{e9}", "/\u{e9}"),
            ("e\u{301}", "/e\u{301}"),
        ] {
            assert_eq!(FilePath::new(text).expect(text).as_str(), path, "{text:?}");
        }
        assert!(FilePath::new(&"x".repeat(MAX_PATH)).is_ok());
    }
}
