//! Files of a run's workspace: their paths, and their versions in the file log. No I/O. Also the names of
//! bytes in the blob store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// The maximum size of a file in bytes that is read or written as a whole: by the tools of an agent, or from memory.
pub const MAX_FILE: u64 = 32 * 1024 * 1024;
/// The maximum size of a file in bytes that is streamed: a file of a program, or a download.
pub const MAX_STREAMED_FILE: u64 = MAX_STREAMED_BLOB;
/// The maximum length of a path in bytes.
pub const MAX_PATH: usize = 512;

/// The path of a file: absolute, parts separated by `/`, no part empty, `.` or `..`. A text without the leading `/`, or
/// with `./` instead, is the same path. Other dots are fine: `a..b` is a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(String);

/// A text that is not a valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid path: {reason}")]
pub struct InvalidFilePath {
    /// The text, truncated to 200 characters.
    pub text: String,
    /// The reason, with the allowed form.
    pub reason: &'static str,
}

impl FilePath {
    /// Validates a path.
    /// Errors: the text leaves the workspace, is not a path of this form, or is too long.
    pub fn new(text: &str) -> Result<Self, InvalidFilePath> {
        let refuse = |reason| InvalidFilePath { text: text.chars().take(200).collect(), reason };
        let relative = text.strip_prefix('/').or_else(|| text.strip_prefix("./")).unwrap_or(text);
        let bytes = relative.as_bytes();
        if relative.is_empty() || relative.ends_with('/') {
            return Err(refuse("it names a folder, not a file"));
        }
        if text.len() > MAX_PATH {
            return Err(refuse("it is longer than 512 bytes"));
        }
        if relative.starts_with('~') {
            return Err(refuse("'~' is not supported; paths begin with '/'"));
        }
        if bytes.len() > 1 && bytes[1] == b':' && bytes[0].is_ascii_alphabetic() {
            return Err(refuse("drive letters are not supported; paths begin with '/'"));
        }
        if relative.contains('\\') {
            return Err(refuse("parts are separated by '/'"));
        }
        if relative.contains(breaks_line_or_changes_text_direction) {
            return Err(refuse("control characters are not allowed"));
        }
        for part in relative.split('/') {
            match part {
                "" => return Err(refuse("empty parts are not allowed")),
                "." | ".." => return Err(refuse("'.' and '..' are not allowed as parts")),
                _ => {}
            }
        }
        Ok(Self(format!("/{relative}")))
    }

    /// Returns the path, with its leading `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the parts between the `/`.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0[1..].split('/')
    }
}

/// `true` for characters that end a line or change the text direction: a path with one could imitate another path.
fn breaks_line_or_changes_text_direction(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for FilePath {
    type Err = InvalidFilePath;
    fn from_str(text: &str) -> Result<Self, InvalidFilePath> {
        Self::new(text)
    }
}

impl TryFrom<String> for FilePath {
    type Error = InvalidFilePath;
    fn try_from(text: String) -> Result<Self, InvalidFilePath> {
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

/// The condition under which a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// Always.
    Always,
    /// The file does not exist.
    Absent,
    /// The current version is this one.
    Version(u64),
}

/// A version of a file in the file log. Versions are never changed and never removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// Its number, from 1; a deletion is a version too.
    pub version: u64,
    /// The writer, such as `task draft`.
    pub author: String,
    /// The idempotency key of the write: a second write with the same key has no effect.
    pub key: String,
    /// The size of the content in bytes; 0 for a deletion.
    pub size: u64,
    /// The content; `None` for a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<InlineOrStoredBytes>,
}

/// The maximum size of a blob in bytes that is read as a whole: four times that of the largest document. A reader holds
/// such a blob in memory, and anyone who may write blobs can name any size.
pub const MAX_BLOB: u64 = 128 * 1024 * 1024;
/// The maximum size of a blob in bytes that is only streamed: 4 GiB.
pub const MAX_STREAMED_BLOB: u64 = 4 * 1024 * 1024 * 1024;

/// A value that is inline or in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InlineOrStoredBytes {
    /// Inline.
    Inline(ByteBuf),
    /// In the blob store.
    Stored(BlobRef),
}

/// The address of bytes in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// Their SHA-256 in hexadecimal, which is their name in the store.
    pub sha256: String,
    /// Their number.
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_never_leaves_the_workspace() {
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
            ("//etc/passwd", "empty parts are not allowed"),
            ("a//b", "empty parts are not allowed"),
            ("~", "'~' is not supported; paths begin with '/'"),
            ("~/x", "'~' is not supported; paths begin with '/'"),
            ("/~root/x", "'~' is not supported; paths begin with '/'"),
            ("C:/x", "drive letters are not supported; paths begin with '/'"),
            ("/c:x", "drive letters are not supported; paths begin with '/'"),
            ("C:\\x", "drive letters are not supported; paths begin with '/'"),
            ("a\\b", "parts are separated by '/'"),
            ("\\\\host\\share", "parts are separated by '/'"),
            ("..\\a", "parts are separated by '/'"),
            ("a\0b", "control characters are not allowed"),
            ("a\nb", "control characters are not allowed"),
            ("a\u{7f}", "control characters are not allowed"),
            ("a\u{85}b", "control characters are not allowed"),
            ("a\u{2028}b", "control characters are not allowed"),
            ("gpj.\u{202e}exe", "control characters are not allowed"),
            (long.as_str(), "it is longer than 512 bytes"),
        ];
        for (text, reason) in refused {
            assert_eq!(FilePath::new(text).map_err(|refusal| refusal.reason), Err(reason), "{text:?}");
        }
    }

    #[test]
    fn unusual_names_are_valid() {
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
            // They only look like dots and slashes; paths are not normalised.
            ("\u{ff0e}\u{ff0e}/a", "/\u{ff0e}\u{ff0e}/a"),
            ("\u{2025}/a", "/\u{2025}/a"),
            ("a\u{2215}b", "/a\u{2215}b"),
            // Composed and decomposed forms are two names.
            ("\u{e9}", "/\u{e9}"),
            ("e\u{301}", "/e\u{301}"),
        ] {
            assert_eq!(FilePath::new(text).expect(text).as_str(), path, "{text:?}");
        }
        assert!(FilePath::new(&"x".repeat(MAX_PATH)).is_ok());
    }
}
