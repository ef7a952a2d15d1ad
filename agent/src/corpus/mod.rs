//! The documents of a run: read to text, cut into passages, searched with BM25. It owns what counts as readable and
//! how lines are numbered; it fetches nothing: the bytes are brought by whoever has them.
//!
//! Opening is work for the processor: call it where blocking is allowed. Searching and reading take milliseconds.

mod index;
mod passage;
mod reading;
mod store;
mod terms;
mod walk;

use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest, Sha256};

pub use index::{Found, Hit, WordCount};
pub use reading::{Document, File, MAX_BYTES, MAX_LINE, SkipReason, Skipped};
pub(crate) use terms::terms;
pub use walk::{Listed, WalkError, walk};

use index::Index;

/// The documents of a run, ready to be searched and read.
pub struct Corpus {
    documents: Vec<Document>,
    skipped: Vec<Skipped>,
    by_path: HashMap<String, usize>,
    index: Index,
}

/// Why a corpus can't be opened. A document that can't be read is no such error: it is passed over and named.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The index can't be built or searched.
    #[error("the documents can't be indexed: {0}")]
    Index(#[from] tantivy::TantivyError),
    /// The cache folder can't be used.
    #[error("the document cache {path} can't be used: {source}")]
    Cache {
        /// The folder or file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Corpus {
    /// The name under which a set of documents is cached: it depends on each path and each content, not on order.
    #[must_use]
    pub fn key<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
        let mut all: Vec<(&str, &str)> = documents.into_iter().collect();
        all.sort_unstable();
        let mut hash = Sha256::new();
        hash.update(format!("millrace corpus {}\n", store::FORMAT));
        for (path, sha256) in all {
            hash.update(format!("{}:{path}{sha256}\n", path.len()));
        }
        reading::hex(&hash.finalize())
    }

    /// Reads and indexes files. With a cache folder, the outcome is kept there under its [`Corpus::key`], and what
    /// is there already is used; any number of processes may do so at once.
    ///
    /// # Errors
    /// The index can't be built, or the cache folder can't be written.
    pub fn open(files: Vec<File>, cache: Option<&Path>) -> Result<Self, CorpusError> {
        match cache {
            None => {
                let (documents, skipped) = reading::read_all(files);
                let index = Index::in_memory(&documents)?;
                Ok(Self::new(documents, skipped, index))
            }
            Some(cache) => store::open(files, cache),
        }
    }

    /// The corpus of these documents (path and SHA-256 of each) from the cache; `None` if it is not there, and the
    /// bytes are needed for [`Corpus::open`].
    #[must_use]
    pub fn cached<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>, cache: &Path) -> Option<Self> {
        store::load(&cache.join(Self::key(documents)))
    }

    fn new(documents: Vec<Document>, skipped: Vec<Skipped>, index: Index) -> Self {
        let by_path =
            documents.iter().enumerate().map(|(at, document)| (document.path.clone(), at)).collect();
        Self { documents, skipped, by_path, index }
    }

    /// The documents that can be read, by path.
    #[must_use]
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// The files that were passed over, by path, each with the reason.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The document at a path.
    #[must_use]
    pub fn document(&self, path: &str) -> Option<&Document> {
        self.by_path.get(path).map(|&at| &self.documents[at])
    }

    /// The best passages for a query, best first, at most `limit` of them and at most `per_document` of one
    /// document. Words are looked for in their stems; words in double quotes must stand together.
    ///
    /// # Errors
    /// The index can't be read.
    pub fn search(&self, query: &str, limit: usize, per_document: usize) -> Result<Found<'_>, CorpusError> {
        Ok(self.index.search(&self.documents, query, limit, per_document)?)
    }
}
