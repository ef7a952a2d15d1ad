//! Files as an agent's tools see them: paths, contents and versions. It owns the interface; the backends are in the other
//! files of this folder or in the cluster.
//!
//! ```text
//! CompositeFiles       combines several backends by path prefix
//! ├─ (the workspace)   the run's own files, stored by the cluster
//! ├─ Folder            a local folder
//! ├─ Documents         the run's documents, read-only
//! └─ SkillFiles        the agent's skills, read-only
//! ```
//! [`permissions`] define what an agent may do with them; a [`WorkingCopy`] gives them to a program.

mod composite;
mod documents;
mod folder;
mod local_file;
mod nearest;
pub mod permissions;
mod program_files;
mod skills;
mod stream;
mod working_copy;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use millrace_protocol::file::{FilePath, InvalidFilePath, MAX_FILE, MAX_PATH, WriteCondition};

pub use composite::CompositeFiles;
pub use documents::DocumentFiles;
pub use folder::FolderFiles;
pub use nearest::find_nearest_names;
pub use program_files::{MaxFiles, MaxMegabytes, PathPatterns, ProgramFiles};
pub use skills::SkillFiles;
pub use stream::{ContentStream, InMemoryContent, OpenFile, StoredContent, read_whole_content};
pub use working_copy::{AgentFiles, FileChange, FileChanges, FileDigest, WorkingCopy, sha256_hex};

/// A file without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: FilePath,
    /// Its size in bytes.
    pub size: u64,
    /// Its version, from 1; a deletion counts as one.
    pub version: u64,
    /// The author: the task, or what the backend knows.
    pub author: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub entry: FileEntry,
    pub bytes: Vec<u8>,
}

/// A backend that stores files.
pub trait Files: Send + Sync {
    /// Lists all files, or those below a folder (`/` or a path without a trailing `/`), by path.
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>>;

    /// Reads a file of at most [`MAX_FILE`] bytes; `None` if there is none.
    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>>;

    /// Opens a file of any size to read it part by part; `None` if there is none. The default reads it as a whole.
    fn open<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<OpenFile>, FilesError>> {
        async move {
            let content = self.read(path).await?;
            Ok(content.map(|FileContent { entry, bytes }| OpenFile {
                entry,
                content: Box::new(InMemoryContent::new(bytes)),
            }))
        }
        .boxed()
    }

    /// Like [`Files::write`], with a content of any size that the cluster has stored already. The default writes it as a
    /// whole.
    fn write_stored<'a>(
        &'a self,
        path: &'a FilePath,
        mut stored: StoredContent,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        async move {
            if stored.blob.size > MAX_FILE {
                let (path, size) = (path.clone(), stored.blob.size);
                return Err(FilesError::TooLarge { path, size, max: MAX_FILE });
            }
            let bytes = read_whole_content(stored.content.as_mut(), MAX_FILE).await?;
            self.write(path, bytes, expected, key).await
        }
        .boxed()
    }

    /// Writes a whole file idempotently under `key`: a second write with the same key and the same expectation has no
    /// effect. Returns the new version.
    ///
    /// # Errors
    /// [`FilesError::Stale`] if the current version is not the expected one; see the others there.
    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>>;

    /// Deletes a file idempotently under `key`.
    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>>;

    /// Returns the version that a write or deletion with this key made; `None` if there was none, or the backend does not
    /// record keys.
    fn find_version_by_key<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        let _ = (path, key);
        futures::future::ready(Ok(None)).boxed()
    }
}

/// `true` if a path is below a folder (`/`, or a path without a trailing `/`).
#[must_use]
pub fn is_below(path: &FilePath, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.as_str().strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The reason that a file operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// The file was changed by someone else.
    #[error("{path} was changed since, by {}", current.as_ref().map_or("a deletion", |current| current.entry.author.as_str()))]
    Stale {
        path: FilePath,
        /// The current content, empty if it has more than [`MAX_FILE`] bytes; `None` if it was deleted.
        current: Option<Box<FileContent>>,
    },
    /// The operation is not permitted. The text says what is not allowed.
    #[error("{0}")]
    Denied(String),
    /// The file is too large to be read or written in this way.
    #[error("{path} is too large: {size} bytes; the maximum is {max}, and only programs use larger files")]
    TooLarge {
        path: FilePath,
        size: u64,
        /// The maximum.
        max: u64,
    },
    /// The file can't be read or written: it is not a file, or damaged.
    #[error("{0}")]
    Broken(String),
    /// The backend is unavailable. A retry may succeed.
    #[error("{0}")]
    Unavailable(String),
}
