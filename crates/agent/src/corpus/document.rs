//! A document: its text in numbered lines, and the pages, slides, sheets or sections that these belong to.
//!
//! # Invariants
//!
//! - I136: A citation of a document with pages, slides, sheets or sections names the one that has its lines.
//!   (`crates/documents/tests/formats.rs::pdf_files_have_pages`,
//!   `crates/agent/src/corpus/reading.rs::parts_of_a_document_are_places_of_its_lines`,
//!   `crates/agent/tests/pages.rs::pages_of_a_fetched_document_are_in_the_citations_after_any_takeover`)

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Image;

/// A document as text. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredDocument", into = "StoredDocument")]
pub struct Document {
    /// Its path below the documents' folder, readable and safe to cite: see `readable_paths`.
    pub path: String,
    /// Its title: from its content, otherwise from its name.
    pub title: String,
    /// The SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
    /// The web page that it is, if it is one.
    pub page: Option<WebPage>,
    /// What a model that sees images is shown, if it is an image, or a PDF file whose pages have no text. Without its bytes.
    pub image: Option<Image>,
    text: String,
    /// The offset of each line in `text`.
    starts: Vec<usize>,
    /// Its pages, slides, sheets or sections, by their first lines.
    places: Vec<DocumentPlace>,
}

/// A page, slide, sheet or section of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentPlace {
    /// Its name, such as `page 3`.
    pub name: String,
    /// Its first line.
    pub first_line: usize,
}

/// A kept web page, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebPage {
    /// The address that it was read from, after redirects.
    pub url: String,
    /// The address that was requested, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_url: Option<String>,
    /// The name by which it is cited: its address, with a number if the attempt has read other versions of it before.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The time at which it was read.
    pub accessed_at: Timestamp,
    /// The SHA-256 of its text in lines, in hexadecimal: the name of the blob.
    pub sha256: String,
    /// Its pages, slides, sheets or sections, if it is a document in a format that has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<DocumentPlace>,
}

/// A document without the fields derived from its text.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct StoredDocument {
    pub path: String,
    pub title: String,
    pub sha256: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<DocumentPlace>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

impl From<StoredDocument> for Document {
    fn from(stored: StoredDocument) -> Self {
        let StoredDocument { path, title, sha256, text, places, image } = stored;
        let ends = text.match_indices('\n').map(|(at, _)| at + 1).filter(|&at| at < text.len());
        let starts = std::iter::once(0).chain(ends).collect();
        Self { path, title, sha256, page: None, image, text, starts, places }
    }
}

impl From<Document> for StoredDocument {
    fn from(document: Document) -> Self {
        let Document { path, title, sha256, page: _, image, text, starts: _, places } = document;
        Self { path, title, sha256, text, places, image }
    }
}

impl Document {
    /// The number of lines; at least 1.
    pub fn line_count(&self) -> usize {
        self.starts.len()
    }

    /// The whole text, its lines ending in `\n`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A line without its line end; `None` if there is no such line.
    pub fn nth_line(&self, number: usize) -> Option<&str> {
        let start = *self.starts.get(number.checked_sub(1)?)?;
        let end = self.starts.get(number).copied().unwrap_or(self.text.len());
        Some(self.text[start..end].trim_end_matches('\n'))
    }

    /// The lines from `first` to `last`, inclusive.
    pub fn line_range(&self, first: usize, last: usize) -> &str {
        let Some(&start) = first.checked_sub(1).and_then(|at| self.starts.get(at)) else {
            return "";
        };
        let end = self.starts.get(last).copied().unwrap_or(self.text.len());
        self.text[start..end.max(start)].trim_end_matches('\n')
    }

    /// Returns the name of the page, slide, sheet or section of these lines, or the names of the first and the last one;
    /// `None` if the format has none.
    pub fn place_of_lines(&self, first: usize, last: usize) -> Option<String> {
        let place = |line: usize| {
            let after = self.places.partition_point(|place| place.first_line <= line);
            self.places.get(after.checked_sub(1)?).map(|place| place.name.as_str())
        };
        match (place(first)?, place(last)?) {
            (first, last) if first == last => Some(first.to_owned()),
            (first, last) => Some(format!("{first} to {last}")),
        }
    }

    /// Returns the pages, slides, sheets or sections that begin in these lines.
    pub fn places_in_lines(&self, first: usize, last: usize) -> &[DocumentPlace] {
        let from = self.places.partition_point(|place| place.first_line < first);
        let to = self.places.partition_point(|place| place.first_line <= last);
        &self.places[from..to.max(from)]
    }

    /// Returns the document with this text.
    #[must_use]
    pub fn from_text(path: &str, title: &str, sha256: &str, text: String) -> Self {
        let (path, title, sha256) = (path.to_owned(), title.to_owned(), sha256.to_owned());
        StoredDocument { path, title, sha256, text, places: Vec::new(), image: None }.into()
    }

    /// Returns the document that a web page is: its text in lines, under the name by which it is cited.
    #[must_use]
    pub fn from_web_page(page: WebPage, text: &str) -> Self {
        let stored = StoredDocument {
            path: page.name.clone(),
            title: page.title.clone().unwrap_or_else(|| page.url.clone()),
            sha256: page.sha256.clone(),
            text: text.to_owned(),
            places: page.places.clone(),
            image: None,
        };
        Self { page: Some(page), ..stored.into() }
    }
}
