//! Several places as one: each path belongs to the place with the longest folder that it lies below. It keeps nothing
//! and only translates paths.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Content, Entry, Expected, FilePath, Files, FilesError, is_below};

/// A place for everything, and other places mounted on folders of it.
pub struct Composite {
    root: Arc<dyn Files>,
    /// The longest folder first.
    mounts: Vec<Mount>,
}

struct Mount {
    folder: FilePath,
    files: Arc<dyn Files>,
}

/// The place of a path, and what the path is called there.
struct Place<'a> {
    files: &'a dyn Files,
    folder: Option<&'a FilePath>,
    path: FilePath,
}

impl Composite {
    /// One place for everything.
    #[must_use]
    pub fn new(root: Arc<dyn Files>) -> Self {
        Self { root, mounts: Vec::new() }
    }

    /// Another place, on a folder. What the root holds below that folder is hidden.
    #[must_use]
    pub fn mount(mut self, folder: FilePath, files: Arc<dyn Files>) -> Self {
        self.mounts.push(Mount { folder, files });
        self.mounts.sort_by_key(|mount| std::cmp::Reverse(mount.folder.as_str().len()));
        self
    }

    fn place(&self, path: &FilePath) -> Result<Place<'_>, FilesError> {
        let mount = self.mounts.iter().find(|mount| is_below(path, mount.folder.as_str()));
        let Some(Mount { folder, files }) = mount else {
            return Ok(Place { files: self.root.as_ref(), folder: None, path: path.clone() });
        };
        let inner = FilePath::new(&path.as_str()[folder.as_str().len()..]);
        let path = inner.map_err(|invalid| FilesError::Broken(invalid.to_string()))?;
        Ok(Place { files: files.as_ref(), folder: Some(folder), path })
    }

    /// Which place's own a path is, by the number of its mount.
    fn owner(&self, path: &FilePath) -> Option<usize> {
        self.mounts.iter().position(|mount| is_below(path, mount.folder.as_str()))
    }

    async fn list_all(&self, folder: &str) -> Result<Vec<Entry>, FilesError> {
        let asked = folder.trim_end_matches('/');
        let mut all = self.root.list(folder).await?;
        all.retain(|entry| self.owner(&entry.path).is_none());
        for (number, Mount { folder: mounted, files }) in self.mounts.iter().enumerate() {
            let inner = match asked.strip_prefix(mounted.as_str()) {
                Some("") => "/",
                Some(rest) if rest.starts_with('/') => rest,
                Some(_) | None if is_below(mounted, folder) => "/",
                Some(_) | None => continue,
            };
            let entries = files.list(inner).await.map_err(|error| outside(error, Some(mounted)))?;
            let entries = entries.into_iter().map(|entry| outer(entry, Some(mounted)));
            all.extend(entries.filter(|entry| self.owner(&entry.path) == Some(number)));
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(all)
    }
}

fn outer_path(path: FilePath, folder: Option<&FilePath>) -> FilePath {
    let whole = folder.and_then(|folder| FilePath::new(&format!("{folder}{path}")).ok());
    whole.unwrap_or(path)
}

fn outer(entry: Entry, folder: Option<&FilePath>) -> Entry {
    Entry { path: outer_path(entry.path, folder), ..entry }
}

fn outer_content(content: Content, folder: Option<&FilePath>) -> Content {
    Content { entry: outer(content.entry, folder), ..content }
}

/// An error in the words of whoever asked.
fn outside(error: FilesError, folder: Option<&FilePath>) -> FilesError {
    match error {
        FilesError::Stale { path, current } => FilesError::Stale {
            path: outer_path(path, folder),
            current: current.map(|current| Box::new(outer_content(*current, folder))),
        },
        FilesError::TooLarge { path, size, max } => {
            FilesError::TooLarge { path: outer_path(path, folder), size, max }
        }
        FilesError::Denied(_) | FilesError::Broken(_) | FilesError::Unavailable(_) => error,
    }
}

impl Files for Composite {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<Entry>, FilesError>> {
        self.list_all(folder).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<Content>, FilesError>> {
        async move {
            let place = self.place(path)?;
            let read = place.files.read(&place.path).await;
            read.map(|found| found.map(|content| outer_content(content, place.folder)))
                .map_err(|error| outside(error, place.folder))
        }
        .boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        async move {
            let place = self.place(path)?;
            let written = place.files.write(&place.path, bytes, expected, key).await;
            written.map_err(|error| outside(error, place.folder))
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        async move {
            let place = self.place(path)?;
            let deleted = place.files.delete(&place.path, expected, key).await;
            deleted.map_err(|error| outside(error, place.folder))
        }
        .boxed()
    }

    fn made<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        async move {
            let place = self.place(path)?;
            place.files.made(&place.path, key).await.map_err(|error| outside(error, place.folder))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Folder;

    fn path(text: &str) -> FilePath {
        FilePath::new(text).unwrap()
    }

    #[tokio::test]
    async fn each_path_belongs_to_the_place_with_the_longest_folder() {
        let (a, b, c) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = |at: &tempfile::TempDir| Arc::new(Folder::open(at.path()).unwrap());
        let all =
            Composite::new(folder(&a)).mount(path("/mnt"), folder(&b)).mount(path("/mnt/deep"), folder(&c));
        for text in ["/x", "/mnt/x", "/mnt/deep/x", "/mntx"] {
            all.write(&path(text), text.into(), Expected::Nothing, text).await.unwrap();
        }
        assert!(a.path().join("mntx").is_file() && b.path().join("x").is_file());
        assert!(c.path().join("x").is_file());
        // What stands where another place is mounted is hidden.
        std::fs::create_dir_all(b.path().join("deep")).unwrap();
        std::fs::write(b.path().join("deep/hidden"), "x").unwrap();
        let list = async |folder: &str| -> Vec<String> {
            all.list(folder).await.unwrap().into_iter().map(|entry| entry.path.to_string()).collect()
        };
        assert_eq!(list("/").await, ["/mnt/deep/x", "/mnt/x", "/mntx", "/x"]);
        assert_eq!(list("/mnt").await, ["/mnt/deep/x", "/mnt/x"]);
        assert_eq!(list("/mnt/deep/").await, ["/mnt/deep/x"]);
        assert_eq!(list("/mn").await, Vec::<String>::new());
        let read = all.read(&path("/mnt/deep/x")).await.unwrap().unwrap();
        assert_eq!((read.entry.path, read.bytes), (path("/mnt/deep/x"), b"/mnt/deep/x".to_vec()));
        match all.write(&path("/mnt/x"), vec![], Expected::Nothing, "k").await {
            Err(FilesError::Stale { path: at, current }) => {
                assert_eq!((at, current.unwrap().entry.path), (path("/mnt/x"), path("/mnt/x")));
            }
            other => panic!("{other:?}"),
        }
    }
}
