//! Files as an agent's tools see them: paths, contents and versions. It owns the interface; where files are kept is
//! behind it, in the files beside this one or with the cluster.
//!
//! ```text
//! Composite            several places as one, by the beginning of the path
//! ├─ (the workspace)   the run's own files, kept by the cluster
//! ├─ Folder            a folder of this machine
//! └─ Documents         the run's documents, for reading
//! ```
//! What an agent may do with them is said by [`permissions`].

mod composite;
mod documents;
mod folder;
mod nearest;
pub mod permissions;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use millrace_protocol::file::{Expected, FilePath, InvalidPath, MAX_FILE, MAX_PATH};

pub use composite::Composite;
pub use documents::Documents;
pub use folder::Folder;
pub use nearest::nearest;

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

    /// Writes a whole file, as what `key` names: a second write with the same key and the same expectation is the first,
    /// and changes nothing. Gives the version that was made.
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

    /// The version that a write or deletion with this key has made; `None` if there was none, or the place keeps no
    /// record of keys.
    ///
    /// # Errors
    /// See [`FilesError`].
    fn made<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        let _ = (path, key);
        futures::future::ready(Ok(None)).boxed()
    }
}

/// Whether a path lies below a folder (`/`, or a path without a trailing `/`).
#[must_use]
pub fn is_below(path: &FilePath, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.as_str().strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
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
