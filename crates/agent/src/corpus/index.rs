//! The BM25 index over the passages of a corpus. It owns the query syntax, the ranking and its tie-break; passages are
//! referenced by document and lines, and their text stays with the documents.

use std::collections::BTreeMap;
use std::path::Path;

use tantivy::collector::TopDocs;
use tantivy::directory::{MmapDirectory, RamDirectory};
use tantivy::query::{
    Bm25StatisticsProvider, BooleanQuery, BoostQuery, Occur, PhraseQuery, Query, TermQuery,
};
use tantivy::schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::TokenizerManager;
use tantivy::{
    DocSet, IndexBuilder, IndexReader, IndexSettings, ReloadPolicy, Searcher, TERMINATED, TantivyDocument,
    TantivyError, Term,
};

use super::Document;
use super::passage::split_into_passages;
use super::terms::{build_analyzer, split_into_terms};

const TOKENIZER: &str = "millrace";
/// Memory for building, in bytes; tantivy's minimum is 15 MB.
const BUILD_MEMORY: usize = 64_000_000;
/// The weight of a word in a document's path or title, relative to one in the passage.
const ABOUT_WEIGHT: f32 = 0.4;
/// The maximum number of words of a query that are used.
const MAX_QUERY_WORDS: usize = 64;

/// The results of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResults<'a> {
    /// The best passages, best first.
    pub hits: Vec<SearchHit<'a>>,
    /// Each word of the query with its document frequency, in the query's order.
    pub words: Vec<WordDocumentCount>,
    /// The documents that contain none of the words, by path.
    pub without: Vec<&'a Document>,
}

/// A matching passage.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit<'a> {
    /// Its document.
    pub document: &'a Document,
    /// Its first line, from 1.
    pub first_line: usize,
    /// Its last line.
    pub last_line: usize,
    /// The relevance score; only the order is meaningful.
    pub score: f32,
}

/// A word of a query and its document frequency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordDocumentCount {
    /// The word as written in the query.
    pub word: String,
    /// The number of documents that contain it, in any of its forms.
    pub documents: usize,
}

pub(super) struct CorpusIndex {
    reader: IndexReader,
    fields: IndexFields,
}

#[derive(Clone, Copy)]
struct IndexFields {
    text: Field,
    about: Field,
}

const DOCUMENT: &str = "document";
const FIRST: &str = "first";
const LAST: &str = "last";

impl CorpusIndex {
    pub fn in_memory<'a>(documents: impl IntoIterator<Item = &'a Document>) -> Result<Self, TantivyError> {
        Self::build_index(documents, RamDirectory::create())
    }

    pub fn on_disk(documents: &[Document], folder: &Path) -> Result<Self, TantivyError> {
        Self::build_index(documents, MmapDirectory::open(folder)?)
    }

    pub fn open(folder: &Path) -> Result<Self, TantivyError> {
        let mut index = tantivy::Index::open_in_dir(folder)?;
        index.set_tokenizers(build_tokenizers());
        Self::open_reader(&index)
    }

    /// Builds a single segment, so that the order of the passages is that of the documents on any machine.
    fn build_index<'a>(
        documents: impl IntoIterator<Item = &'a Document>,
        directory: impl tantivy::Directory,
    ) -> Result<Self, TantivyError> {
        let (schema, fields) = build_index_schema();
        let (document_field, first, last) =
            (schema.get_field(DOCUMENT)?, schema.get_field(FIRST)?, schema.get_field(LAST)?);
        let builder = IndexBuilder::new()
            .schema(schema)
            .settings(IndexSettings::default())
            .tokenizers(build_tokenizers());
        let mut writer = builder.single_segment_index_writer(directory, BUILD_MEMORY)?;
        for (number, document) in documents.into_iter().enumerate() {
            let about = format!("{} {}", document.path, document.title);
            for passage in split_into_passages(document) {
                let mut entry = TantivyDocument::default();
                entry.add_text(fields.text, document.line_range(passage.first, passage.last));
                entry.add_text(fields.about, &about);
                entry.add_u64(document_field, number as u64);
                entry.add_u64(first, passage.first as u64);
                entry.add_u64(last, passage.last as u64);
                writer.add_document(entry)?;
            }
        }
        Self::open_reader(&writer.finalize()?)
    }

    fn open_reader(index: &tantivy::Index) -> Result<Self, TantivyError> {
        let schema = index.schema();
        let fields = IndexFields { text: schema.get_field("text")?, about: schema.get_field("about")? };
        // The index never changes, so it needs no file watcher.
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        Ok(Self { reader, fields })
    }

    /// Matches any of the words in the text or, with a lower weight, in the title; quoted words must be adjacent in the
    /// text.
    fn build_query(&self, query: &str, words: &BTreeMap<String, QueryWord>) -> Option<Box<dyn Query>> {
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        for stem in words.keys() {
            clauses.push((Occur::Should, self.build_term_query(self.fields.text, stem)));
            let about = BoostQuery::new(self.build_term_query(self.fields.about, stem), ABOUT_WEIGHT);
            clauses.push((Occur::Should, Box::new(about)));
        }
        for phrase in query.split('"').skip(1).step_by(2) {
            let stems: Vec<Term> = split_into_terms(phrase)
                .iter()
                .take(MAX_QUERY_WORDS)
                .map(|word| Term::from_field_text(self.fields.text, &word.stem))
                .collect();
            if stems.len() > 1 {
                clauses.push((Occur::Must, Box::new(PhraseQuery::new(stems))));
            }
        }
        (!clauses.is_empty()).then(|| Box::new(BooleanQuery::new(clauses)) as Box<dyn Query>)
    }

    fn build_term_query(&self, field: Field, stem: &str) -> Box<dyn Query> {
        Box::new(TermQuery::new(Term::from_field_text(field, stem), IndexRecordOption::WithFreqs))
    }

    /// Marks the documents that contain a word.
    fn mark_documents_with(&self, stem: &str, marks: &mut [bool]) -> Result<(), TantivyError> {
        let searcher = self.reader.searcher();
        for segment in searcher.segment_readers() {
            let numbers = segment.fast_fields().u64(DOCUMENT)?;
            let inverted = segment.inverted_index(self.fields.text)?;
            let term = Term::from_field_text(self.fields.text, stem);
            let Some(mut postings) = inverted.read_postings(&term, IndexRecordOption::Basic)? else {
                continue;
            };
            while postings.doc() != TERMINATED {
                if let Some(mark) = numbers.first(postings.doc()).and_then(|n| marks.get_mut(n as usize)) {
                    *mark = true;
                }
                postings.advance();
            }
        }
        Ok(())
    }
}

/// Documents and their index.
pub(super) struct IndexedDocuments<'a> {
    index: &'a CorpusIndex,
    documents: Vec<&'a Document>,
}

impl<'a> IndexedDocuments<'a> {
    pub fn new(index: &'a CorpusIndex, documents: impl IntoIterator<Item = &'a Document>) -> Self {
        Self { index, documents: documents.into_iter().collect() }
    }
}

/// Searches documents with several indices as if they had one: scores are computed from the statistics of all of them.
pub(super) fn search<'a>(
    parts: &[IndexedDocuments<'a>],
    query: &str,
    limit: usize,
    per_document: usize,
) -> Result<SearchResults<'a>, TantivyError> {
    let words = split_query_words(query);
    let documents: Vec<&Document> = parts.iter().flat_map(|part| part.documents.iter().copied()).collect();
    let (counts, seen) = count_documents_with_words(parts, &words, documents.len())?;
    let without = documents.iter().zip(&seen).filter(|(_, seen)| !**seen).map(|(document, _)| *document);
    let statistics = JointStatistics(parts.iter().map(|part| part.index.reader.searcher()).collect());
    let (mut hits, mut first) = (Vec::new(), 0);
    for part in parts {
        if let Some(query) = part.index.build_query(query, &words) {
            let best = part.select_best_passages(query.as_ref(), &statistics, limit, per_document)?;
            hits.extend(best.into_iter().map(|(at, hit)| (first + at, hit)));
        }
        first += part.documents.len();
    }
    sort_best_first(&mut hits);
    let hits = hits.into_iter().map(|(_, hit)| hit).take(limit).collect();
    Ok(SearchResults { hits, words: counts, without: without.collect() })
}

/// Counts the documents that contain each word, and marks the documents that contain any of them.
fn count_documents_with_words(
    parts: &[IndexedDocuments<'_>],
    words: &BTreeMap<String, QueryWord>,
    documents: usize,
) -> Result<(Vec<WordDocumentCount>, Vec<bool>), TantivyError> {
    let mut seen = vec![false; documents];
    let mut counts = Vec::with_capacity(words.len());
    for (stem, word) in words {
        let (mut having, mut first) = (vec![false; documents], 0);
        for part in parts {
            let last = first + part.documents.len();
            part.index.mark_documents_with(stem, &mut having[first..last])?;
            first = last;
        }
        let count = having.iter().filter(|having| **having).count();
        seen.iter_mut().zip(&having).for_each(|(seen, having)| *seen |= having);
        counts.push((word.place, WordDocumentCount { word: word.written.clone(), documents: count }));
    }
    counts.sort_by_key(|(place, _)| *place);
    Ok((counts.into_iter().map(|(_, count)| count).collect(), seen))
}

/// The statistics of several indices with one schema.
struct JointStatistics(Vec<Searcher>);

impl Bm25StatisticsProvider for JointStatistics {
    fn total_num_tokens(&self, field: Field) -> Result<u64, TantivyError> {
        self.0.iter().map(|searcher| searcher.total_num_tokens(field)).sum()
    }

    fn total_num_docs(&self) -> Result<u64, TantivyError> {
        self.0.iter().map(Bm25StatisticsProvider::total_num_docs).sum()
    }

    fn doc_freq(&self, term: &Term) -> Result<u64, TantivyError> {
        self.0.iter().map(|searcher| searcher.doc_freq(term)).sum()
    }
}

/// A word of a query: its position and its original form.
struct QueryWord {
    place: usize,
    written: String,
}

/// The words of a query by stem.
fn split_query_words(query: &str) -> BTreeMap<String, QueryWord> {
    let mut words = BTreeMap::new();
    for term in split_into_terms(query) {
        if words.len() == MAX_QUERY_WORDS {
            break;
        }
        let written = query[term.start..term.end].to_owned();
        words.entry(term.stem).or_insert(QueryWord { place: term.start, written });
    }
    words
}

impl<'a> IndexedDocuments<'a> {
    /// The best passages with the numbers of their documents, at most `per_document` from one document.
    fn select_best_passages(
        &self,
        query: &dyn Query,
        statistics: &JointStatistics,
        limit: usize,
        per_document: usize,
    ) -> Result<Vec<(usize, SearchHit<'a>)>, TantivyError> {
        let searcher = self.index.reader.searcher();
        let all = searcher.num_docs() as usize;
        let mut fetch = (limit * 4 + 32).min(all.max(1));
        loop {
            let collector = TopDocs::with_limit(fetch).order_by_score();
            let top = searcher.search_with_statistics_provider(query, &collector, statistics)?;
            let exhausted = top.len() < fetch || fetch >= all;
            let mut hits = Vec::with_capacity(top.len());
            for (score, address) in top {
                let fields = searcher.segment_reader(address.segment_ord).fast_fields();
                let number = |name: &str| -> Result<usize, TantivyError> {
                    Ok(fields.u64(name)?.first(address.doc_id).unwrap_or_default() as usize)
                };
                let (at, first_line, last_line) = (number(DOCUMENT)?, number(FIRST)?, number(LAST)?);
                if let Some(document) = self.documents.get(at).copied() {
                    hits.push((at, SearchHit { document, first_line, last_line, score }));
                }
            }
            sort_best_first(&mut hits);
            let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
            hits.retain(|(at, _)| {
                let count = counts.entry(*at).or_default();
                *count += 1;
                *count <= per_document
            });
            hits.truncate(limit);
            if hits.len() == limit || exhausted {
                return Ok(hits);
            }
            fetch = (fetch * 8).min(all);
        }
    }
}

/// Sorts passages by their score; those with equal scores are in the order of the corpus.
fn sort_best_first(hits: &mut [(usize, SearchHit<'_>)]) {
    hits.sort_by(|(at, a), (bt, b)| {
        b.score.total_cmp(&a.score).then(at.cmp(bt)).then(a.first_line.cmp(&b.first_line))
    });
}

fn build_index_schema() -> (Schema, IndexFields) {
    let indexed = |option| {
        let indexing = TextFieldIndexing::default().set_tokenizer(TOKENIZER).set_index_option(option);
        TextOptions::default().set_indexing_options(indexing)
    };
    let mut builder = Schema::builder();
    let text = builder.add_text_field("text", indexed(IndexRecordOption::WithFreqsAndPositions));
    let about = builder.add_text_field("about", indexed(IndexRecordOption::WithFreqs));
    for number in [DOCUMENT, FIRST, LAST] {
        builder.add_u64_field(number, FAST);
    }
    (builder.build(), IndexFields { text, about })
}

fn build_tokenizers() -> TokenizerManager {
    let manager = TokenizerManager::default();
    manager.register(TOKENIZER, build_analyzer());
    manager
}

#[cfg(test)]
mod tests {
    use crate::corpus::{Corpus, InputFile};

    fn build_corpus(files: &[(&str, &str)]) -> Corpus {
        let files = files
            .iter()
            .map(|(path, text)| InputFile { path: (*path).into(), bytes: text.as_bytes().to_vec() });
        Corpus::build_or_load(files.collect(), None).unwrap()
    }

    fn search_paths_and_lines(
        corpus: &Corpus,
        query: &str,
        limit: usize,
        per_document: usize,
    ) -> Vec<(String, usize)> {
        let results = corpus.search(query, limit, per_document).unwrap();
        results.hits.iter().map(|hit| (hit.document.path.clone(), hit.first_line)).collect()
    }

    #[test]
    fn words_match_in_any_form_and_phrases_only_exactly() {
        let corpus = build_corpus(&[
            ("a.txt", "The licensing of patents.\n\nMore on something else."),
            ("b.txt", "A patent licence was granted."),
            ("c.txt", "Grant the licence, patent or not."),
        ]);
        let mut results = search_paths_and_lines(&corpus, "licenses patents", 10, 10);
        results.sort();
        assert_eq!(results.len(), 3);
        assert_eq!(search_paths_and_lines(&corpus, "\"patent license\"", 10, 10), [("b.txt".to_owned(), 1)]);
        let counts = corpus.search("granting zebra", 10, 10).unwrap();
        let shown: Vec<(&str, usize)> = counts.words.iter().map(|w| (w.word.as_str(), w.documents)).collect();
        assert_eq!(shown, [("granting", 2), ("zebra", 0)]);
        assert_eq!(counts.without.iter().map(|d| d.path.as_str()).collect::<Vec<_>>(), ["a.txt"]);
    }

    #[test]
    fn pages_are_ranked_with_the_documents_as_in_one_index() {
        let texts = [
            ("a.txt", "The wheel turns in the race, and the race turns the wheel."),
            ("b.txt", "A race of water."),
            ("c.txt", "The wheel of the upper mill is made of oak and iron, and it is old."),
            ("d.txt", "Nothing of the kind."),
        ];
        let scores = |corpus: &Corpus| -> Vec<(String, f32)> {
            let results = corpus.search("wheel race oak", 10, 10).unwrap();
            results.hits.iter().map(|hit| (hit.document.path.clone(), hit.score)).collect()
        };
        let page = |path: &str, text: &str| {
            let page = crate::corpus::pages::WebPage {
                url: path.into(),
                requested_url: None,
                name: path.into(),
                title: Some(path.into()),
                accessed_at: jiff::Timestamp::UNIX_EPOCH,
                sha256: String::new(),
                places: Vec::new(),
            };
            std::sync::Arc::new(crate::corpus::Document::from_web_page(page, &format!("{text}\n")))
        };
        let joint =
            build_corpus(&texts[..2]).with_pages(texts[2..].iter().map(|(p, t)| page(p, t)).collect());
        let whole = build_corpus(&texts).search("wheel race oak", 10, 10).unwrap().without.len();
        let results = joint.search("wheel race oak", 10, 10).unwrap();
        assert_eq!(results.without.len(), whole);
        assert_eq!(results.words[0].documents, 2);
        let (joint, whole) = (scores(&joint), scores(&build_corpus(&texts)));
        let order = |all: &[(String, f32)]| all.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
        assert_eq!(order(&joint), order(&whole));
        let is_equal = |((_, a), (_, b)): (&(String, f32), &(String, f32))| (a - b).abs() < 1e-4;
        assert!(joint.iter().zip(&whole).all(is_equal), "{joint:?} {whole:?}");
    }

    #[test]
    fn malformed_queries_are_harmless() {
        let corpus = build_corpus(&[("a.txt", "plain words")]);
        let endless = "word ".repeat(10_000);
        for query in
            ["", "\"", "\"\"", "+ - && ( [ * ? : ^ ~ \\", "text:a AND NOT (b", "\u{0} \u{202e}", &endless]
        {
            corpus.search(query, 5, 5).unwrap();
        }
    }

    #[test]
    fn one_document_does_not_crowd_out_the_others() {
        let long = "The lease ends at noon, as any lease does.\n\n".repeat(400);
        let corpus = build_corpus(&[
            ("a.txt", &long),
            ("b.txt", "A lease is mentioned once in all of these many words."),
        ]);
        let results = search_paths_and_lines(&corpus, "lease", 5, 2);
        assert_eq!(results.iter().filter(|(path, _)| path == "a.txt").count(), 2);
        assert!(results.iter().any(|(path, _)| path == "b.txt"));
        let first: Vec<usize> =
            results.iter().filter(|(path, _)| path == "a.txt").map(|(_, line)| *line).collect();
        assert!(first[0] < first[1], "equally good passages are in document order");
    }

    #[test]
    fn a_document_is_also_found_by_its_name() {
        let corpus = build_corpus(&[
            ("Apache-2.0.txt", "This text names nobody."),
            ("MIT.txt", "Neither does this one."),
        ]);
        assert_eq!(search_paths_and_lines(&corpus, "apache", 5, 5), [("Apache-2.0.txt".to_owned(), 1)]);
    }
}
