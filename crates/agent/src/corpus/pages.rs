//! Web pages as documents. A page that a tool has fetched is kept by its content: its text in lines is a blob, and its
//! address, title and time are in the journal, so that every later reader sees the page as it was fetched.
//!
//! # Invariants
//!
//! - I137: A web page that an attempt has read is cited and checked as it was read, by any worker that takes the attempt over,
//!   also if the page has changed or is gone.
//!   (`crates/agent/tests/pages.rs::attempt_taken_over_after_any_step_cites_the_page_as_it_was_read`,
//!   `crates/agent/tests/pages.rs::versions_of_a_page_that_changes_are_told_apart`,
//!   `tests/tests/web_sources.rs::report_from_web_pages_is_checked_against_the_kept_text`)

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use millrace_documents::TextPart;
use sha2::{Digest, Sha256};

use super::index::CorpusIndex;
use super::reading::join_parts;
use super::{Corpus, CorpusError, Document, DocumentPlace, WebPage, encode_hex, normalize_text};
use crate::sources::{OrderInputError, OrderInputs};

/// A web page as a tool returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageContent {
    /// The address that it was read from, after redirects.
    pub url: String,
    /// The address that was requested.
    pub requested_url: String,
    pub title: Option<String>,
    /// The time at which it was read.
    pub accessed_at: Timestamp,
    /// Its text in the lines by which it is cited.
    pub text: PageText,
}

/// The text of a page in the lines by which it is cited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageText {
    /// The lines, each ending in `\n`.
    pub lines: String,
    /// The pages, slides, sheets or sections that the lines belong to.
    pub places: Vec<DocumentPlace>,
}

impl PageText {
    /// Splits a text.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self { lines: normalize_text(text), places: Vec::new() }
    }

    /// Joins the parts of a document.
    #[must_use]
    pub fn from_parts(parts: &[TextPart]) -> Self {
        let (lines, places) = join_parts(parts);
        Self { lines, places }
    }

    /// Returns the name of the place that begins with a line, if one does.
    pub fn place_that_begins_at(&self, line: usize) -> Option<&str> {
        let at = self.places.binary_search_by_key(&line, |place| place.first_line).ok()?;
        Some(&self.places[at].name)
    }
}

impl Document {
    /// `true` if it is a web page with this name or requested address. A fragment of an address is ignored.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let address = name.split('#').next().unwrap_or(name);
        let is_same =
            |known: &str| known == name || known.trim_end_matches('/') == address.trim_end_matches('/');
        let requested = self.page.as_ref().and_then(|page| page.requested_url.as_deref());
        is_same(&self.path) || requested.is_some_and(is_same)
    }
}

/// Web pages, and their index after the first search.
#[derive(Default)]
pub(super) struct PageSet {
    pub documents: Vec<Arc<Document>>,
    index: OnceLock<CorpusIndex>,
}

impl PageSet {
    pub fn new(documents: Vec<Arc<Document>>) -> Self {
        Self { documents, index: OnceLock::new() }
    }

    /// Returns the index of the pages, and builds it the first time.
    pub fn index(&self) -> &CorpusIndex {
        self.index.get_or_init(|| CorpusIndex::build(self.documents.iter().map(AsRef::as_ref)))
    }
}

/// The web pages that an attempt has read.
pub struct AttemptPages {
    sources: Arc<dyn OrderInputs>,
    /// The documents of the run.
    documents: Corpus,
    pages: Mutex<Arc<PageSet>>,
}

impl AttemptPages {
    /// Creates an empty list next to the documents of the run. The texts of recorded pages are read from `sources`.
    pub fn new(sources: Arc<dyn OrderInputs>, documents: Option<&Corpus>) -> Result<Self, CorpusError> {
        let documents =
            documents.map_or_else(|| Corpus::build_or_load(Vec::new(), None), |all| Ok(all.clone()))?;
        Ok(Self { sources, documents, pages: Mutex::default() })
    }

    /// Returns the document that a fetched page becomes. It is not added yet.
    pub fn name_page(&self, content: PageContent) -> Document {
        let PageContent { url, requested_url, title, accessed_at, text } = content;
        let PageText { lines, places } = text;
        let sha256 = encode_hex(&Sha256::digest(lines.as_bytes()));
        let pages = self.lock().clone();
        let versions =
            || pages.documents.iter().filter_map(|page| page.page.as_ref()).filter(|page| page.url == url);
        let name = match versions().find(|page| page.sha256 == sha256) {
            Some(same) => same.name.clone(),
            None => match versions().count() {
                0 => url.clone(),
                earlier => format!("{url} ({})", earlier + 1),
            },
        };
        let requested_url = Some(requested_url).filter(|requested| *requested != url);
        let page = WebPage { url, requested_url, name, title, accessed_at, sha256, places };
        Document::from_web_page(page, &lines)
    }

    pub fn add_page(&self, page: Document) {
        let mut pages = self.lock();
        if pages.documents.iter().all(|known| known.path != page.path) {
            let all = pages.documents.iter().cloned().chain([Arc::new(page)]);
            *pages = Arc::new(PageSet::new(all.collect()));
        }
    }

    /// Adds a page that the journal has recorded.
    pub async fn restore_page(&self, page: &WebPage) -> Result<(), OrderInputError> {
        self.add_page(read_page(page.clone(), self.sources.as_ref()).await?);
        Ok(())
    }

    /// Returns the documents of the run together with the pages so far.
    pub fn list_sources(&self) -> Corpus {
        self.documents.with_page_set(self.lock().clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<PageSet>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a kept page.
pub async fn read_page(page: WebPage, sources: &dyn OrderInputs) -> Result<Document, OrderInputError> {
    let broken = |why: &str| OrderInputError::Broken(format!("the kept text of {} {why}", page.url));
    if page.sha256.len() != 64 || !page.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(broken("has an invalid SHA-256"));
    }
    let bytes = sources.read_blob(&page.sha256).await?;
    if encode_hex(&Sha256::digest(&bytes)) != page.sha256 {
        return Err(broken("has another content"));
    }
    let text = String::from_utf8(bytes).map_err(|_| broken("is not UTF-8"))?;
    Ok(Document::from_web_page(page, &text))
}
