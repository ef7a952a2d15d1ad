//! The sources of a text by line: the documents and pages of the run, with the lines that each mark of the text cites and those that
//! its author has read.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::{Quotation, Source, SourceLines};
use millrace_verification::{CitedLines, Sources};

use crate::corpus::{Corpus, Document};

/// The most passages that a search returns.
const MAX_HITS: usize = 12;

/// The sources of a text.
pub(crate) struct LineSources {
    pub corpus: Corpus,
    /// The lines that each mark cites.
    pub marks: BTreeMap<String, Vec<CitedLines>>,
    /// The documents and pages that the author has read, which are looked through first.
    pub read: Vec<String>,
}

/// The lines of a source that quotations name; the whole source if none does. `None` if it can't be read.
pub(crate) fn cited_lines(
    source: &Source,
    quotations: &[Quotation],
    corpus: &Corpus,
) -> Option<Vec<CitedLines>> {
    let location = corpus.find_source(source)?.path.clone();
    let own = quotations.iter().filter(|quotation| quotation.source == source.id);
    let lines = own.map(|quotation| SourceLines {
        source: location.clone(),
        first_line: quotation.first_line,
        last_line: quotation.last_line,
    });
    let lines: Vec<CitedLines> = lines.map(CitedLines::Lines).collect();
    Some(if lines.is_empty() { vec![CitedLines::Source(location)] } else { lines })
}

impl Sources for LineSources {
    fn cited(&self, mark: &str) -> Vec<CitedLines> {
        self.marks.get(mark).cloned().unwrap_or_default()
    }

    fn locations(&self) -> Vec<String> {
        let cited = self.marks.values().flatten().map(CitedLines::location);
        let first = cited.chain(self.read.iter().map(String::as_str));
        let all = self.corpus.documents_and_pages().map(|document| document.path.as_str());
        let mut listed = BTreeSet::new();
        first.chain(all).filter(|path| listed.insert(*path)).map(str::to_owned).collect()
    }

    fn text(&self, location: &str) -> Option<&str> {
        self.corpus.find_document(location).map(Document::text)
    }

    fn search(&self, text: &str, within: Option<&str>) -> Vec<SourceLines> {
        let limit = if within.is_some() { self.corpus.documents().len().max(1) * MAX_HITS } else { MAX_HITS };
        let found = self.corpus.search(&text.replace('"', " "), limit, MAX_HITS);
        let hits =
            found.hits.into_iter().filter(|hit| within.is_none_or(|location| hit.document.path == location));
        let line = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let lines = hits.map(|hit| SourceLines {
            source: hit.document.path.clone(),
            first_line: line(hit.first_line),
            last_line: line(hit.last_line),
        });
        lines.take(MAX_HITS).collect()
    }
}
