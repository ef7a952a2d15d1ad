//! The documents of a run: read to text, split into passages, searched by words (BM25) and, if they have vectors, by meaning too. It owns the readable formats and the
//! line numbers; it fetches nothing: the caller provides the bytes.
//!
//! Opening a corpus is CPU-bound: call it where blocking is allowed. Searching and reading take milliseconds.

mod document;
mod index;
mod language;
pub mod pages;
mod reading;
mod search;
mod store;
mod tokens;
mod vectors;
mod walk;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use document::{Document, DocumentPlace, WebPage};
pub(crate) use language::Language;
pub(crate) use reading::encode_hex;
pub(crate) use reading::{BinaryContent, normalize_text, read_binary_content};
pub use reading::{InputFile, MAX_LINE, read_document};
pub use reading::{MAX_BYTES, SUPPORTED, SkipReason, SkippedFile};
pub use search::{SearchHit, SearchQuery, SearchResults, WordDocumentCount};
pub(crate) use store::{lock_cache_entry, write_atomically};
pub(crate) use tokens::{Token, fold_words, has_complex_breaks, tokenize, tokenize_query};
pub use vectors::PassageVectors;
pub use walk::{FolderWalkError, ListedFile, list_folder_files};

use millrace_protocol::result::{Source, SourceKind};

use index::CorpusIndex;
use pages::PageSet;
use search::IndexedDocuments;

/// The documents of a run and the web pages of an attempt, ready for searching and reading. A clone shares them.
#[derive(Clone)]
pub struct Corpus {
    run: Arc<RunDocuments>,
    pages: Arc<PageSet>,
    /// `true` if web pages can be sources.
    reads_web: bool,
    /// The vectors of the passages of the run's documents, if they are embedded.
    vectors: Option<Arc<PassageVectors>>,
}

/// The documents of a run.
struct RunDocuments {
    documents: Vec<Document>,
    skipped: Vec<SkippedFile>,
    by_path: HashMap<String, usize>,
    index: CorpusIndex,
}

/// The reason that a corpus can't be opened. An unreadable document is not such an error: it is skipped and listed.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The cache folder can't be used.
    #[error("cannot use the document cache {path}: {source}")]
    Cache {
        /// The folder or file.
        path: String,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl Corpus {
    /// The cache key of a set of documents: it depends on all paths and contents, not on their order.
    #[must_use]
    pub fn cache_key<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
        let mut all: Vec<(&str, &str)> = documents.into_iter().collect();
        all.sort_unstable();
        let mut hash = Sha256::new();
        hash.update(format!("millrace corpus {}\n", store::FORMAT));
        for (path, sha256) in all {
            hash.update(format!("{}:{path}{sha256}\n", path.len()));
        }
        reading::encode_hex(&hash.finalize())
    }

    /// Reads and indexes files. With a cache folder, the result is stored there under its [`Corpus::cache_key`], and an existing
    /// one is used; any number of processes may do so concurrently.
    pub fn build_or_load(files: Vec<InputFile>, cache: Option<&Path>) -> Result<Self, CorpusError> {
        match cache {
            None => {
                let (documents, skipped) = reading::read_documents(files);
                let index = CorpusIndex::build(&documents);
                Ok(Self::new(documents, skipped, index))
            }
            Some(cache) => store::open_or_build_corpus(files, cache),
        }
    }

    /// Loads the corpus of these documents (path and SHA-256 of each) from the cache; `None` if it is not there, so that
    /// [`Corpus::build_or_load`] is needed.
    #[must_use]
    pub fn load_from_cache<'a>(
        documents: impl IntoIterator<Item = (&'a str, &'a str)>,
        cache: &Path,
    ) -> Option<Self> {
        store::load_corpus(&cache.join(Self::cache_key(documents)))
    }

    fn new(documents: Vec<Document>, skipped: Vec<SkippedFile>, index: CorpusIndex) -> Self {
        let by_path =
            documents.iter().enumerate().map(|(at, document)| (document.path.clone(), at)).collect();
        let run = Arc::new(RunDocuments { documents, skipped, by_path, index });
        Self { run, pages: Arc::default(), reads_web: false, vectors: None }
    }

    /// Returns the same documents with these web pages.
    pub fn with_pages(&self, pages: Vec<Arc<Document>>) -> Self {
        self.with_page_set(Arc::new(PageSet::new(pages)))
    }

    fn with_page_set(&self, pages: Arc<PageSet>) -> Self {
        Self { pages, reads_web: true, ..self.clone() }
    }

    /// Returns the same documents with vectors of their passages; `None` if these are not as many as the passages.
    #[must_use]
    pub fn with_vectors(&self, vectors: PassageVectors) -> Option<Self> {
        let fits = vectors.len() == self.run.index.passages.len();
        fits.then(|| Self { vectors: Some(Arc::new(vectors)), ..self.clone() })
    }

    /// The number of dimensions of the vectors that a search compares a query with; `None` if it compares words alone. Web pages
    /// have no vectors, so that a search among them does.
    pub fn searched_dimensions(&self) -> Option<usize> {
        let vectors = self.vectors.as_ref().filter(|_| self.pages.documents.is_empty());
        vectors.map(|vectors| vectors.dimensions())
    }

    /// The texts of the passages of each document of the run, in order.
    pub fn passage_texts(&self) -> impl Iterator<Item = (&Document, Vec<&str>)> {
        let RunDocuments { documents, index, .. } = self.run.as_ref();
        documents.iter().enumerate().map(|(number, document)| {
            let passages = &index.passages[index.passages_of_document(number)];
            let texts = passages.iter().map(|it| document.line_range(it.lines.first, it.lines.last));
            (document, texts.collect())
        })
    }

    /// The readable documents, by path.
    pub fn documents(&self) -> &[Document] {
        &self.run.documents
    }

    /// The documents and the web pages.
    pub fn documents_and_pages(&self) -> impl Iterator<Item = &Document> {
        self.run.documents.iter().chain(self.web_pages())
    }

    /// `true` if there is anything to cite, or there may be.
    pub fn has_sources(&self) -> bool {
        self.reads_web || !self.run.documents.is_empty()
    }

    /// `true` if web pages can be sources.
    pub fn reads_web(&self) -> bool {
        self.reads_web
    }

    /// The skipped files, by path, each with the reason.
    pub fn skipped_files(&self) -> &[SkippedFile] {
        &self.run.skipped
    }

    /// The document at a path, or the web page with a name.
    pub fn find_document(&self, path: &str) -> Option<&Document> {
        let of_run = self.run.by_path.get(path).map(|&at| &self.run.documents[at]);
        of_run.or_else(|| self.web_pages().find(|page| page.is_named(path)))
    }

    fn web_pages(&self) -> impl Iterator<Item = &Document> {
        self.pages.documents.iter().map(AsRef::as_ref)
    }

    /// The document that a source is: by its path, or by its content if it is a web page. `None` if it is not here, or of a
    /// kind that is not read here.
    pub fn find_source(&self, source: &Source) -> Option<&Document> {
        match source.kind {
            SourceKind::Document => self.find_document(&source.location),
            SourceKind::Web => {
                let mut pages = self.web_pages();
                pages.find(|page: &&Document| source.sha256.as_deref() == Some(&page.sha256))
            }
            SourceKind::Code | SourceKind::Data | SourceKind::Other => None,
        }
    }

    /// The best passages of documents and pages for a query, best first, at most `limit` in total and `per_document` from one document. Words
    /// match by stem; words in double quotes must be adjacent. If the query has a vector and the passages have too, their meaning
    /// counts as much as their words.
    pub fn search<'q>(
        &self,
        query: impl Into<SearchQuery<'q>>,
        limit: usize,
        per_document: usize,
    ) -> SearchResults<'_> {
        let mut query = query.into();
        query.vector = query.vector.filter(|vector| self.searched_dimensions() == Some(vector.len()));
        let of_run = IndexedDocuments::new(&self.run.index, self.run.documents.iter())
            .with_vectors(self.vectors.as_deref());
        let of_pages = (!self.pages.documents.is_empty())
            .then(|| IndexedDocuments::new(self.pages.index(), self.web_pages()));
        let parts: Vec<IndexedDocuments<'_>> = [of_run].into_iter().chain(of_pages).collect();
        search::search(&parts, query, limit, per_document)
    }
}
