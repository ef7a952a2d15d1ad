//! Files as an agent's tools see them: paths, contents and versions. It owns the interface; where files are kept is
//! behind it.

use std::fmt;
use std::str::FromStr;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// The most bytes of a path.
pub const MAX_PATH: usize = 512;

/// Where a file is: absolute, `/` between parts, no part empty, `.` or `..`. A text without the leading `/` means the
/// same file as with it. Other dots are fine: `a..b` is a name.
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
        let relative = text.strip_prefix('/').unwrap_or(text);
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
        if let Some(c) = relative.chars().find(|c| c.is_control() || *c == '\\') {
            return Err(refuse(if c == '\\' {
                "parts are separated by '/'"
            } else {
                "it has a control character"
            }));
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

/// A file without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it is.
    pub path: FilePath,
    /// Its size in bytes.
    pub size: u64,
    /// Which version of it this is, from 1; a deletion counts as one.
    pub version: u64,
    /// Who wrote it: the task, or what the backend knows.
    pub author: String,
}

/// A file with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// What it is.
    pub entry: Entry,
    /// Its bytes.
    pub bytes: Vec<u8>,
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

/// A place where files are kept.
pub trait Files: Send + Sync {
    /// All files, or those below a folder (`/` or a path without a trailing `/`), by path.
    ///
    /// # Errors
    /// See [`FilesError`].
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<Entry>, FilesError>>;

    /// A file; `None` if there is none.
    ///
    /// # Errors
    /// See [`FilesError`].
    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<Content>, FilesError>>;

    /// Writes a whole file, as what `key` names: a second write with the same key is the first, and changes nothing.
    /// Gives the version that was made.
    ///
    /// # Errors
    /// [`FilesError::Stale`] if there is something else than `expected`; see the others there.
    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>>;

    /// Deletes a file, as what `key` names.
    ///
    /// # Errors
    /// As for [`Files::write`].
    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>>;
}

/// Why files can't be had or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// Somebody else wrote it since.
    #[error("{path} was changed since, by {}", current.as_ref().map_or("a deletion", |current| current.entry.author.as_str()))]
    Stale {
        /// Where.
        path: FilePath,
        /// What there is now; `None` if it is gone.
        current: Option<Box<Content>>,
    },
    /// It may not be touched in this way. The text says what is not allowed.
    #[error("{0}")]
    Denied(String),
    /// It is too large for what keeps it.
    #[error("{path} would have {size} bytes; at most {max} are kept")]
    TooLarge {
        /// Where.
        path: FilePath,
        /// Its size.
        size: u64,
        /// The most.
        max: u64,
    },
    /// It can't be read or written as it is: it is no file, or broken.
    #[error("{0}")]
    Broken(String),
    /// What keeps it does not answer. Another try may succeed.
    #[error("{0}")]
    Unavailable(String),
}
