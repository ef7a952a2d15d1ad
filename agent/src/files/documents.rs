//! The documents of a run as files, for reading. Their paths are those that the document tools use, below whatever
//! folder they are mounted on.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::{Content, Entry, Expected, FilePath, Files, FilesError, is_below};
use crate::corpus::{Corpus, Document};

/// The documents of a run. A document whose path is none here is left out.
pub struct Documents(Arc<Corpus>);

impl Documents {
    /// The documents of a corpus.
    #[must_use]
    pub fn new(corpus: Arc<Corpus>) -> Self {
        Self(corpus)
    }
}

fn entry(document: &Document) -> Option<Entry> {
    let path = FilePath::new(&document.path).ok()?;
    Some(Entry { path, size: document.text().len() as u64, version: 1, author: "the run's documents".into() })
}

fn read_only<T: Send + 'static>() -> BoxFuture<'static, Result<T, FilesError>> {
    ready(Err(FilesError::Denied("the run's documents can be read only; write to another path".into())))
        .boxed()
}

impl Files for Documents {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<Entry>, FilesError>> {
        let entries = self.0.documents().iter().filter_map(entry);
        let mut entries: Vec<Entry> = entries.filter(|entry| is_below(&entry.path, folder)).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        ready(Ok(entries)).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<Content>, FilesError>> {
        let relative = path.as_str().trim_start_matches('/');
        let found = self.0.document(relative).or_else(|| self.0.document(path.as_str()));
        let content = found.and_then(|document| {
            Some(Content { entry: entry(document)?, bytes: document.text().as_bytes().to_vec() })
        });
        ready(Ok(content)).boxed()
    }

    fn write<'a>(
        &'a self,
        _: &'a FilePath,
        _: Vec<u8>,
        _: Expected,
        _: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        read_only()
    }

    fn delete<'a>(
        &'a self,
        _: &'a FilePath,
        _: Expected,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        read_only()
    }
}
