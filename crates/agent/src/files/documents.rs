//! The documents of a run as read-only files. Their paths are those of the document tools, below the folder that they are
//! mounted on.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::{FileContent, FileEntry, FilePath, Files, FilesError, WriteCondition, is_below};
use crate::corpus::{Corpus, Document};

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

fn read_only_error<T: Send + 'static>() -> BoxFuture<'static, Result<T, FilesError>> {
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
        read_only_error()
    }

    fn delete<'a>(
        &'a self,
        _: &'a FilePath,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        read_only_error()
    }
}
