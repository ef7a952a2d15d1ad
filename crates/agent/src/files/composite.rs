//! Combines several file backends: each path belongs to the backend with the longest matching folder. It stores nothing and only
//! translates paths. The read-only backends that are mounted so are here too: the documents of a run, with the paths of the document
//! tools, and the files of skills, with paths `/NAME/…` by the name of the skill.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::{
    FileContent, FileEntry, FilePath, Files, FilesError, OpenFile, StoredContent, WriteCondition, is_below,
};

use crate::corpus::{Corpus, Document};

use crate::skills::{PackagedFile, Skill};

/// A root backend, and other backends mounted on folders.
pub struct CompositeFiles {
    root: Arc<dyn Files>,
    /// Longest folder first.
    mounts: Vec<Mount>,
}

struct Mount {
    folder: FilePath,
    files: Arc<dyn Files>,
}

/// The backend of a path, and the path within it.
struct ResolvedBackend<'a> {
    files: &'a dyn Files,
    folder: Option<&'a FilePath>,
    path: FilePath,
}

impl CompositeFiles {
    /// A single backend for all paths.
    #[must_use]
    pub fn new(root: Arc<dyn Files>) -> Self {
        Self { root, mounts: Vec::new() }
    }

    /// Mounts another backend on a folder. Files of the root below that folder are hidden.
    #[must_use]
    pub fn with_mount(mut self, folder: FilePath, files: Arc<dyn Files>) -> Self {
        self.mounts.push(Mount { folder, files });
        self.mounts.sort_by_key(|mount| std::cmp::Reverse(mount.folder.as_str().len()));
        self
    }

    fn find_backend(&self, path: &FilePath) -> Result<ResolvedBackend<'_>, FilesError> {
        let mount = self.mounts.iter().find(|mount| is_below(path, mount.folder.as_str()));
        let Some(Mount { folder, files }) = mount else {
            return Ok(ResolvedBackend { files: self.root.as_ref(), folder: None, path: path.clone() });
        };
        let inner = FilePath::new(&path.as_str()[folder.as_str().len()..]);
        let path = inner.map_err(|invalid| FilesError::Broken(invalid.to_string()))?;
        Ok(ResolvedBackend { files: files.as_ref(), folder: Some(folder), path })
    }

    /// The index of the mount that a path belongs to; `None` for the root.
    fn find_mount_index(&self, path: &FilePath) -> Option<usize> {
        self.mounts.iter().position(|mount| is_below(path, mount.folder.as_str()))
    }

    async fn list_all(&self, folder: &str) -> Result<Vec<FileEntry>, FilesError> {
        let listed = folder.trim_end_matches('/');
        let mut all = self.root.list(folder).await?;
        all.retain(|entry| self.find_mount_index(&entry.path).is_none());
        for (number, Mount { folder: mounted, files }) in self.mounts.iter().enumerate() {
            let inner = match listed.strip_prefix(mounted.as_str()) {
                Some("") => "/",
                Some(rest) if rest.starts_with('/') => rest,
                Some(_) | None if is_below(mounted, folder) => "/",
                Some(_) | None => continue,
            };
            let entries =
                files.list(inner).await.map_err(|error| error_with_outer_path(error, Some(mounted)))?;
            let entries = entries.into_iter().map(|entry| entry_with_outer_path(entry, Some(mounted)));
            all.extend(entries.filter(|entry| self.find_mount_index(&entry.path) == Some(number)));
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(all)
    }
}

fn join_mount_path(path: FilePath, folder: Option<&FilePath>) -> FilePath {
    let whole = folder.and_then(|folder| FilePath::new(&format!("{folder}{path}")).ok());
    whole.unwrap_or(path)
}

fn entry_with_outer_path(entry: FileEntry, folder: Option<&FilePath>) -> FileEntry {
    FileEntry { path: join_mount_path(entry.path, folder), ..entry }
}

fn content_with_outer_path(content: FileContent, folder: Option<&FilePath>) -> FileContent {
    FileContent { entry: entry_with_outer_path(content.entry, folder), ..content }
}

/// Translates the paths in an error to those of the caller.
fn error_with_outer_path(error: FilesError, folder: Option<&FilePath>) -> FilesError {
    match error {
        FilesError::Stale { path, current } => FilesError::Stale {
            path: join_mount_path(path, folder),
            current: current.map(|current| Box::new(content_with_outer_path(*current, folder))),
        },
        FilesError::TooLarge { path, size, max } => {
            FilesError::TooLarge { path: join_mount_path(path, folder), size, max }
        }
        FilesError::Denied(_) | FilesError::Broken(_) | FilesError::Unavailable(_) => error,
    }
}

impl Files for CompositeFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        self.list_all(folder).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        async move {
            let backend = self.find_backend(path)?;
            let read = backend.files.read(&backend.path).await;
            read.map(|content| content.map(|content| content_with_outer_path(content, backend.folder)))
                .map_err(|error| error_with_outer_path(error, backend.folder))
        }
        .boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        async move {
            let backend = self.find_backend(path)?;
            let written = backend.files.write(&backend.path, bytes, expected, key).await;
            written.map_err(|error| error_with_outer_path(error, backend.folder))
        }
        .boxed()
    }

    fn open<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<OpenFile>, FilesError>> {
        async move {
            let backend = self.find_backend(path)?;
            let opened = backend.files.open(&backend.path).await;
            opened
                .map(|file| {
                    file.map(|file| OpenFile {
                        entry: entry_with_outer_path(file.entry, backend.folder),
                        content: file.content,
                    })
                })
                .map_err(|error| error_with_outer_path(error, backend.folder))
        }
        .boxed()
    }

    fn write_stored<'a>(
        &'a self,
        path: &'a FilePath,
        stored: StoredContent,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        async move {
            let backend = self.find_backend(path)?;
            let written = backend.files.write_stored(&backend.path, stored, expected, key).await;
            written.map_err(|error| error_with_outer_path(error, backend.folder))
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        async move {
            let backend = self.find_backend(path)?;
            let deleted = backend.files.delete(&backend.path, expected, key).await;
            deleted.map_err(|error| error_with_outer_path(error, backend.folder))
        }
        .boxed()
    }

    fn find_version_by_key<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        async move {
            let backend = self.find_backend(path)?;
            backend
                .files
                .find_version_by_key(&backend.path, key)
                .await
                .map_err(|error| error_with_outer_path(error, backend.folder))
        }
        .boxed()
    }
}

/// The documents of a run. Documents whose path is not a valid file path are left out.
pub struct DocumentFiles(Arc<Corpus>);

impl DocumentFiles {
    /// The documents of a corpus.
    #[must_use]
    pub fn new(corpus: Arc<Corpus>) -> Self {
        Self(corpus)
    }
}

fn document_file_entry(document: &Document) -> Option<FileEntry> {
    let path = FilePath::new(&document.path).ok()?;
    Some(FileEntry {
        path,
        size: document.text().len() as u64,
        version: 1,
        author: "the run's documents".into(),
    })
}

fn documents_read_only_error<T: Send + 'static>() -> BoxFuture<'static, Result<T, FilesError>> {
    ready(Err(FilesError::Denied("the run's documents are read-only; write to another path".into()))).boxed()
}

impl Files for DocumentFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        let entries = self.0.documents().iter().filter_map(document_file_entry);
        let mut entries: Vec<FileEntry> = entries.filter(|entry| is_below(&entry.path, folder)).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        ready(Ok(entries)).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        let relative = path.as_str().trim_start_matches('/');
        let document = self.0.find_document(relative).or_else(|| self.0.find_document(path.as_str()));
        let content = document.and_then(|document| {
            Some(FileContent {
                entry: document_file_entry(document)?,
                bytes: document.text().as_bytes().to_vec(),
            })
        });
        ready(Ok(content)).boxed()
    }

    fn write<'a>(
        &'a self,
        _: &'a FilePath,
        _: Vec<u8>,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        documents_read_only_error()
    }

    fn delete<'a>(
        &'a self,
        _: &'a FilePath,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        documents_read_only_error()
    }
}

/// The files of the skills of an attempt.
pub struct SkillFiles(Vec<Arc<Skill>>);

impl SkillFiles {
    /// The files of these skills.
    #[must_use]
    pub fn new(skills: Vec<Arc<Skill>>) -> Self {
        Self(skills)
    }

    fn all_files(&self) -> impl Iterator<Item = (FilePath, &Skill, &PackagedFile)> {
        self.0.iter().flat_map(|skill| {
            skill.package.files.iter().filter_map(move |file| {
                let path = FilePath::new(&format!("{}{}", skill.entry.name, file.path)).ok()?;
                Some((path, skill.as_ref(), file))
            })
        })
    }
}

fn skill_file_entry(path: FilePath, skill: &Skill, file: &PackagedFile) -> FileEntry {
    let author = format!("the skill {}", skill.entry.name);
    FileEntry { path, size: file.content.len() as u64, version: 1, author }
}

fn read_only_error<T: Send + 'static>(path: &FilePath) -> BoxFuture<'static, Result<T, FilesError>> {
    let text =
        format!("/skills{path} can't be changed: skills are read-only; write to a path outside of /skills");
    ready(Err(FilesError::Denied(text))).boxed()
}

impl Files for SkillFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        let entries = self.all_files().filter(|(path, ..)| is_below(path, folder));
        let mut entries: Vec<FileEntry> =
            entries.map(|(path, skill, file)| skill_file_entry(path, skill, file)).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        ready(Ok(entries)).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        let content = self.all_files().find(|(known, ..)| known == path).map(|(path, skill, file)| {
            FileContent { entry: skill_file_entry(path, skill, file), bytes: file.content.to_vec() }
        });
        ready(Ok(content)).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        _: Vec<u8>,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        read_only_error(path)
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        read_only_error(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FolderFiles;

    fn file_path(text: &str) -> FilePath {
        FilePath::new(text).unwrap()
    }

    #[tokio::test]
    async fn each_path_belongs_to_the_longest_mounted_folder() {
        let (a, b, c) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = |at: &tempfile::TempDir| Arc::new(FolderFiles::open(at.path()).unwrap());
        let all = CompositeFiles::new(folder(&a))
            .with_mount(file_path("/mnt"), folder(&b))
            .with_mount(file_path("/mnt/deep"), folder(&c));
        for text in ["/x", "/mnt/x", "/mnt/deep/x", "/mntx"] {
            all.write(&file_path(text), text.into(), WriteCondition::Absent, text).await.unwrap();
        }
        assert!(a.path().join("mntx").is_file() && b.path().join("x").is_file());
        assert!(c.path().join("x").is_file());
        // Files of the root below a mounted folder are hidden.
        std::fs::create_dir_all(b.path().join("deep")).unwrap();
        std::fs::write(b.path().join("deep/hidden"), "x").unwrap();
        let list = async |folder: &str| -> Vec<String> {
            all.list(folder).await.unwrap().into_iter().map(|entry| entry.path.to_string()).collect()
        };
        assert_eq!(list("/").await, ["/mnt/deep/x", "/mnt/x", "/mntx", "/x"]);
        assert_eq!(list("/mnt").await, ["/mnt/deep/x", "/mnt/x"]);
        assert_eq!(list("/mnt/deep/").await, ["/mnt/deep/x"]);
        assert_eq!(list("/mn").await, Vec::<String>::new());
        let read = all.read(&file_path("/mnt/deep/x")).await.unwrap().unwrap();
        assert_eq!((read.entry.path, read.bytes), (file_path("/mnt/deep/x"), b"/mnt/deep/x".to_vec()));
        match all.write(&file_path("/mnt/x"), vec![], WriteCondition::Absent, "k").await {
            Err(FilesError::Stale { path: at, current }) => {
                assert_eq!((at, current.unwrap().entry.path), (file_path("/mnt/x"), file_path("/mnt/x")));
            }
            other => panic!("{other:?}"),
        }
    }
}
