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
//!
//! Contents that are read part by part, because they may be larger than the memory of a worker.
//!
//! Suggestions for names that do not exist.

mod composite;
mod folder;
mod local_file;
pub mod permissions;
mod working_copy;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::wire::BlobRef;
use serde::{Deserialize, Serialize};
use strsim::osa_distance;

pub use composite::{CompositeFiles, DocumentFiles, SkillFiles};
pub use folder::FolderFiles;
pub use millrace_protocol::file::{FilePath, InvalidFilePath, MAX_FILE, MAX_PATH, WriteCondition};
pub use working_copy::{AgentFiles, FileChange, FileChanges, FileDigest, WorkingCopy, sha256_hex};
pub use working_copy::{MaxFiles, MaxMegabytes, PathPatterns, ProgramFiles};

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

/// A content that is read part by part.
pub trait ContentStream: Send {
    /// Returns the next part; `None` after the last one.
    ///
    /// # Errors
    /// The content is damaged, or reading failed. The caller discards the earlier parts.
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>>;
}

/// A file whose content is read part by part.
pub struct OpenFile {
    pub entry: FileEntry,
    pub content: Box<dyn ContentStream>,
}

/// A content that is in the blob store of the cluster.
pub struct StoredContent {
    /// Its address.
    pub blob: BlobRef,
    /// The content itself.
    pub content: Box<dyn ContentStream>,
}

/// A content in memory, as one part.
pub struct InMemoryContent(Option<Bytes>);

impl InMemoryContent {
    /// The content.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Some(Bytes::from(bytes)).filter(|bytes| !bytes.is_empty()))
    }
}

impl ContentStream for InMemoryContent {
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>> {
        ready(Ok(self.0.take())).boxed()
    }
}

/// Reads a content as a whole.
///
/// # Errors
/// It can't be read, or has more than `max` bytes: [`FilesError::Broken`].
pub async fn read_whole_content(content: &mut dyn ContentStream, max: u64) -> Result<Vec<u8>, FilesError> {
    let mut bytes = Vec::new();
    while let Some(part) = content.next_part().await? {
        if (bytes.len() + part.len()) as u64 > max {
            return Err(FilesError::Broken(format!("the content has more than {max} bytes")));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// The maximum number of suggestions.
const MOST: usize = 3;

/// Returns the names most similar to `wanted`, best first, at most three: those with the same last part, then those that
/// differ in few characters. Empty if nothing is similar.
#[must_use]
pub fn find_nearest_names<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let folded = wanted.to_lowercase();
    let mut near: Vec<(usize, &str)> =
        names.into_iter().filter_map(|name| Some((name_distance(&folded, name)?, name))).collect();
    near.sort_unstable();
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// The distance of a name from the wanted one; `None` if they are not similar.
fn name_distance(wanted: &str, name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    if last_path_part(&name) == last_path_part(wanted) {
        return Some(0);
    }
    let in_name = osa_distance(last_path_part(wanted), last_path_part(&name)) + 1;
    let near = osa_distance(wanted, &name).min(in_name);
    (near <= 1 + last_path_part(wanted).chars().count() / 4).then_some(near)
}

fn last_path_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["/notes/plan.md", "/report.md", "/data/table.csv", "/Report2.md"];
        for (wanted, expected) in [
            ("/plan.md", vec!["/notes/plan.md"]),
            ("/reprot.md", vec!["/report.md", "/Report2.md"]),
            ("/report.txt", vec!["/report.md"]),
            ("/REPORT.md", vec!["/report.md", "/Report2.md"]),
            ("/other", vec![]),
        ] {
            assert_eq!(find_nearest_names(wanted, names), expected, "{wanted}");
        }
    }
}
