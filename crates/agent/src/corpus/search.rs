//! The search in one index or in several as if they were one. It owns the query syntax, the ranking and its tie-break:
//! equal scores are in the order of the documents and their lines, so that a search has one result on any machine.
//!
//! A query with a vector ranks the passages twice: by BM25, and by the cosine of their vectors with it. The two rankings are
//! fused by reciprocal rank fusion: a passage scores the sum of 1 / (k + its rank) over the rankings that have it (Cormack, Clarke and
//! Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning Methods, SIGIR 2009).

use std::collections::{BTreeMap, BTreeSet};

use super::Document;
use super::index::Passage;
use super::index::{CorpusIndex, FieldStatistics, IndexedField};
use super::language::Language;

use super::tokens::tokenize_query;
use super::vectors::PassageVectors;

/// The weight of a word in a document's path or title, relative to one in the passage.
const ABOUT_WEIGHT: f64 = 0.4;
/// The maximum number of words of a query that are used.
const MAX_QUERY_WORDS: usize = 128;
/// The constant k of reciprocal rank fusion, as its authors chose it.
const FUSION_K: f64 = 60.0;
/// The number of passages that are ranked by their vectors. Every passage has some cosine with a query; far down it says nothing.
const MAX_NEAREST: usize = 100;

/// A query: its text, and its vector if its meaning is searched for too.
#[derive(Debug, Clone, Copy)]
pub struct SearchQuery<'q> {
    pub text: &'q str,
    pub vector: Option<&'q [f32]>,
}

impl<'q> From<&'q str> for SearchQuery<'q> {
    fn from(text: &'q str) -> Self {
        Self { text, vector: None }
    }
}

impl<'q> From<&'q String> for SearchQuery<'q> {
    fn from(text: &'q String) -> Self {
        text.as_str().into()
    }
}

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
    pub document: &'a Document,
    /// Its first line, from 1.
    pub first_line: usize,
    pub last_line: usize,
    /// The relevance score; only the order is meaningful. Of a search by words and meaning it is at most 2.
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

pub(super) struct IndexedDocuments<'a> {
    index: &'a CorpusIndex,
    documents: Vec<&'a Document>,
    vectors: Option<&'a PassageVectors>,
}

impl<'a> IndexedDocuments<'a> {
    pub fn new(index: &'a CorpusIndex, documents: impl IntoIterator<Item = &'a Document>) -> Self {
        Self { index, documents: documents.into_iter().collect(), vectors: None }
    }

    pub fn with_vectors(self, vectors: Option<&'a PassageVectors>) -> Self {
        Self { vectors, ..self }
    }
}

/// Searches documents with several indices: scores are computed from the statistics of all of them.
pub(super) fn search<'a>(
    parts: &[IndexedDocuments<'a>],
    SearchQuery { text: query, vector }: SearchQuery<'_>,
    limit: usize,
    per_document: usize,
) -> SearchResults<'a> {
    let languages = list_languages(parts);
    let words = split_query_words(query, &languages);
    let mut scores: Vec<PartScores> = parts.iter().map(PartScores::new).collect();
    let mut counts: Vec<(usize, WordDocumentCount)> = Vec::with_capacity(words.len());
    for (stems, QueryWord { start, written }) in words {
        let documents = score_word(parts, &stems, &mut scores);
        counts.push((start, WordDocumentCount { word: written, documents }));
    }
    counts.sort_by_key(|(start, _)| *start);
    for (part, scores) in parts.iter().zip(&mut scores) {
        if let (Some(vector), Some(vectors)) = (vector, part.vectors) {
            fuse_rankings(&mut scores.passages, &vectors.list_nearest(vector, MAX_NEAREST));
        }
    }

    let phrases = parse_phrases(query, &languages);
    let mut hits = Vec::new();
    let mut without = Vec::new();
    for (part, scores) in parts.iter().zip(&scores) {
        hits.extend(part.list_best_passages(scores, &phrases, per_document));
        let unmatched = part.documents.iter().zip(&scores.has_word).filter(|(_, has_word)| !**has_word);
        without.extend(unmatched.map(|(document, _)| *document));
    }
    sort_best_first(&mut hits);
    hits.truncate(limit);
    SearchResults { hits, words: counts.into_iter().map(|(_, count)| count).collect(), without }
}

/// Replaces scores by those of the ranking that they make and of another one, which lists passages, best first. A passage that is
/// first in both scores 2.
fn fuse_rankings(scores: &mut [f64], nearest: &[usize]) {
    let mut matching: Vec<usize> = (0..scores.len()).filter(|passage| scores[*passage] > 0.0).collect();
    matching.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    scores.fill(0.0);
    for ranking in [matching.as_slice(), nearest] {
        for (rank, passage) in (1_u32..).zip(ranking) {
            scores[*passage] += (FUSION_K + 1.0) / (FUSION_K + f64::from(rank));
        }
    }
}

/// A word of a query: its start and its original form.
struct QueryWord {
    start: usize,
    written: String,
}

/// The languages of the documents of all indices, each once.
fn list_languages(parts: &[IndexedDocuments<'_>]) -> Vec<Language> {
    let mut languages: Vec<Language> = Vec::new();
    for language in parts.iter().flat_map(|part| &part.index.languages) {
        if !languages.contains(language) {
            languages.push(*language);
        }
    }
    languages
}

/// The words of a query by their stems.
fn split_query_words(query: &str, languages: &[Language]) -> BTreeMap<Vec<String>, QueryWord> {
    let mut words = BTreeMap::new();
    for token in tokenize_query(query, languages) {
        if words.len() == MAX_QUERY_WORDS {
            break;
        }
        let written = query[token.start..token.end].to_owned();
        words.entry(token.stems).or_insert(QueryWord { start: token.start, written });
    }
    words
}

/// The stems of words and their positions relative to the first one.
type Phrase = Vec<(Vec<String>, usize)>;

/// The parts of a query in double quotes that have more than one word.
fn parse_phrases(query: &str, languages: &[Language]) -> Vec<Phrase> {
    let quoted = query.split('"').skip(1).step_by(2).map(|part| tokenize_query(part, languages));
    let phrases = quoted.map(|tokens| {
        let first = tokens.first().map_or(0, |token| token.position);
        let tokens = tokens.into_iter().take(MAX_QUERY_WORDS);
        tokens.map(|token| (token.stems, token.position - first)).collect::<Phrase>()
    });
    phrases.filter(|phrase| phrase.len() > 1).collect()
}

/// The scores of an index's passages, and the documents that contain any word of the query in their text.
struct PartScores {
    passages: Vec<f64>,
    has_word: Vec<bool>,
}

impl PartScores {
    fn new(part: &IndexedDocuments<'_>) -> Self {
        Self { passages: vec![0.0; part.index.passages.len()], has_word: vec![false; part.documents.len()] }
    }
}

/// Adds the scores of a word; returns the number of documents that contain it in their text.
fn score_word(parts: &[IndexedDocuments<'_>], stems: &[String], scores: &mut [PartScores]) -> usize {
    let text = WordWeight::new(parts, stems, |index| &index.text);
    let about = WordWeight::new(parts, stems, |index| &index.about);
    let mut documents = 0;
    for (at, (IndexedDocuments { index, .. }, scores)) in parts.iter().zip(scores).enumerate() {
        let mut last = None;
        for (&unit, &count) in &text.counts[at] {
            let Some(passage) = index.passages.get(unit) else { continue };
            scores.passages[unit] += text.score(count, index.text.length_of(unit));
            if last.replace(passage.document) != Some(passage.document) {
                documents += 1;
                scores.has_word[passage.document] = true;
            }
        }
        for (&unit, &count) in &about.counts[at] {
            let score = ABOUT_WEIGHT * about.score(count, index.about.length_of(unit));
            scores.passages[index.passages_of_document(unit)].iter_mut().for_each(|sum| *sum += score);
        }
    }
    documents
}

/// The weight of a word in a field of all indices.
struct WordWeight {
    statistics: FieldStatistics,
    weight: f64,
    /// For each index, the units that contain the word.
    counts: Vec<BTreeMap<usize, usize>>,
}

impl WordWeight {
    fn new(
        parts: &[IndexedDocuments<'_>],
        stems: &[String],
        field: impl Fn(&CorpusIndex) -> &IndexedField,
    ) -> Self {
        let fields = || parts.iter().map(|part| field(part.index));
        let statistics =
            fields().map(IndexedField::statistics).fold(FieldStatistics::default(), FieldStatistics::plus);
        let counts: Vec<_> = fields().map(|field| field.count_stems(stems)).collect();
        let containing: usize = counts.iter().map(BTreeMap::len).sum();
        Self { statistics, weight: statistics.compute_word_weight(containing as u64), counts }
    }

    fn score(&self, count: usize, length: u32) -> f64 {
        self.weight * self.statistics.compute_frequency_factor(count, length)
    }
}

impl<'a> IndexedDocuments<'a> {
    /// The passages with a score that contain all phrases, in the order of the corpus by document; of each document the best
    /// `per_document`, best first.
    fn list_best_passages(
        &self,
        scores: &PartScores,
        phrases: &[Phrase],
        per_document: usize,
    ) -> Vec<SearchHit<'a>> {
        let with_phrase: Vec<BTreeSet<usize>> =
            phrases.iter().map(|phrase| find_passages_with_phrase(&self.index.text, phrase)).collect();
        let mut best = Vec::new();
        for (number, &document) in self.documents.iter().enumerate() {
            let mut hits = Vec::new();
            for at in self.index.passages_of_document(number) {
                let score = scores.passages[at] as f32;
                if score > 0.0 && with_phrase.iter().all(|passages| passages.contains(&at)) {
                    let Passage { first: first_line, last: last_line } = self.index.passages[at].lines;
                    hits.push(SearchHit { document, first_line, last_line, score });
                }
            }
            sort_best_first(&mut hits);
            best.extend(hits.into_iter().take(per_document));
        }
        best
    }
}

/// The passages in which the words of a phrase are adjacent.
fn find_passages_with_phrase(text: &IndexedField, phrase: &Phrase) -> BTreeSet<usize> {
    let mut starts: Option<BTreeSet<(usize, usize)>> = None;
    for (stems, offset) in phrase {
        let found = stems.iter().flat_map(|stem| text.postings(stem)).flat_map(|posting| {
            let positions = posting.positions().filter_map(|position| position.checked_sub(*offset));
            positions.map(move |start| (posting.unit, start)).collect::<Vec<_>>()
        });
        starts = Some(match starts {
            None => found.collect(),
            Some(before) => found.filter(|start| before.contains(start)).collect(),
        });
    }
    starts.unwrap_or_default().into_iter().map(|(passage, _)| passage).collect()
}

/// Sorts passages by their score; those with equal scores stay in their order.
fn sort_best_first(hits: &mut [SearchHit<'_>]) {
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let results = corpus.search(query, limit, per_document);
        results.hits.iter().map(|hit| (hit.document.path.clone(), hit.first_line)).collect()
    }

    #[test]
    fn words_match_in_any_form_and_phrases_only_exactly() {
        let corpus = build_corpus(&[
            ("a.txt", "The licensing of patents.\n\nMore on something else."),
            ("b.txt", "A patent license was granted."),
            ("c.txt", "Grant the license, patent or not."),
        ]);
        let mut results = search_paths_and_lines(&corpus, "licenses patents", 10, 10);
        results.sort();
        assert_eq!(results.len(), 3);
        assert_eq!(search_paths_and_lines(&corpus, "\"patent license\"", 10, 10), [("b.txt".to_owned(), 1)]);
        let counts = corpus.search("granting zebra", 10, 10);
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
            let results = corpus.search("wheel race oak", 10, 10);
            results.hits.iter().map(|hit| (hit.document.path.clone(), hit.score)).collect()
        };
        let page = |path: &str, text: &str| {
            let page = crate::corpus::WebPage {
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
        let whole = build_corpus(&texts).search("wheel race oak", 10, 10).without.len();
        let results = joint.search("wheel race oak", 10, 10);
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
            assert!(corpus.search(query, 5, 5).hits.len() <= 1, "{query}");
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

    fn score_documents(documents: &[Document], query: &str) -> Vec<(String, f32)> {
        let index = CorpusIndex::build(documents);
        let results = search(&[IndexedDocuments::new(&index, documents)], query.into(), 10, 10);
        results.hits.into_iter().map(|hit| (hit.document.path.clone(), hit.score)).collect()
    }

    /// Three passages of 3, 2 and 1 words, so that the average is 2; each name has 2 words.
    fn short_documents() -> [Document; 3] {
        [("p1", "one", "Lease, lease, noon"), ("p2", "two", "A lease ends"), ("p3", "lease", "Water")]
            .map(|(path, title, text)| Document::from_text(path, title, "", format!("{text}.\n")))
    }

    #[test]
    fn scores_are_those_of_bm25() {
        // In two of three passages: ln(1 + 1.5 / 2.5). Twice in 3 words: 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2)).
        let lease = 1.6_f64.ln();
        let twice = 4.4 / 3.65;
        // In one of three passages, or names: ln(1 + 2.5 / 1.5). Once in as many words as the average: 1.
        let rare = (1.0_f64 + 2.5 / 1.5).ln();
        let table = [
            ("lease", vec![("p1", lease * twice), ("p2", lease), ("p3", 0.4 * rare)]),
            ("leases end", vec![("p2", lease + rare), ("p1", lease * twice), ("p3", 0.4 * rare)]),
            ("water water", vec![("p3", rare * 2.2 / (1.0 + 1.2 * 0.625))]),
        ];
        for (query, expected) in table {
            let found = score_documents(&short_documents(), query);
            let paths = |all: &[(String, f32)]| all.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
            assert_eq!(paths(&found), expected.iter().map(|(path, _)| *path).collect::<Vec<_>>(), "{query}");
            for ((path, score), (_, by_hand)) in found.iter().zip(expected) {
                assert!((f64::from(*score) - by_hand).abs() < 1e-6, "{query} {path} {score} {by_hand}");
            }
        }
    }

    /// Three passages, of which the second has no word of the query and nearly its vector.
    fn embedded_corpus() -> Corpus {
        let corpus = build_corpus(&[
            ("a.txt", "The lease ends."),
            ("b.txt", "The tenancy is over."),
            ("c.txt", "Water is wet, as any lease may say."),
        ]);
        let vectors = [[0.5, 1.0, 0.0], [1.0, 0.1, 0.0], [0.0, 0.0, 1.0]];
        let mut all = crate::corpus::PassageVectors::new(3);
        vectors.iter().for_each(|vector| assert!(all.push(vector)));
        corpus.with_vectors(all).unwrap()
    }

    #[test]
    fn meaning_counts_as_much_as_words() {
        let corpus = embedded_corpus();
        let find = |vector: Option<&[f32]>, text: &str| {
            let results = corpus.search(SearchQuery { text, vector }, 5, 5);
            let hits = results.hits.iter().map(|hit| format!("{} {:.3}", hit.document.path, hit.score));
            hits.collect::<Vec<_>>()
        };
        // By words: a, c. By vectors: b, a, c.
        let score = |ranks: &[f64]| ranks.iter().map(|rank| 61.0 / (60.0 + rank)).sum::<f64>();
        let expected = [("a", score(&[1.0, 2.0])), ("c", score(&[2.0, 3.0])), ("b", score(&[1.0]))];
        let expected = expected.map(|(path, score)| format!("{path}.txt {score:.3}"));
        assert_eq!(find(Some(&[1.0, 0.0, 0.0]), "lease"), expected);
        assert_eq!(find(Some(&[1.0, 0.0, 0.0]), "zebra")[0], "b.txt 1.000", "no word matches");
        assert_eq!(find(None, "zebra"), [""; 0], "without a vector, words alone count");
        assert_eq!(find(Some(&[1.0, 0.0]), "zebra"), [""; 0], "vectors of other dimensions are not compared");
        let phrase = find(Some(&[1.0, 0.0, 0.0]), "\"lease ends\"");
        assert_eq!(phrase.len(), 1, "passages without a quoted phrase are left out: {phrase:?}");
    }

    #[test]
    fn vectors_must_be_as_many_as_the_passages() {
        let mut one = crate::corpus::PassageVectors::new(1);
        assert!(one.push(&[1.0]));
        assert!(embedded_corpus().with_vectors(one).is_none());
    }

    #[test]
    fn phrases_are_found_with_their_stop_words_only() {
        let corpus = build_corpus(&[
            ("a.txt", "The end of the lease."),
            ("b.txt", "The end: lease it."),
            ("c.txt", "The lease, and its end."),
        ]);
        assert_eq!(search_paths_and_lines(&corpus, "\"end of the lease\"", 5, 5), [("a.txt".to_owned(), 1)]);
        assert_eq!(search_paths_and_lines(&corpus, "\"end lease\"", 5, 5), [("b.txt".to_owned(), 1)]);
    }

    #[test]
    fn words_are_found_in_scripts_without_spaces() {
        let corpus = build_corpus(&[
            ("zh.txt", "租约在中午结束。合同每年续签一次。"),
            ("ja.txt", "賃貸契約は正午にサーバーで終わります。"),
            ("th.txt", "สัญญาเช่าสิ้นสุดตอนเที่ยง"),
        ]);
        let first =
            |query| search_paths_and_lines(&corpus, query, 5, 5).first().cloned().map(|(path, _)| path);
        assert_eq!(first("合同什么时候续签？").as_deref(), Some("zh.txt"));
        assert_eq!(first("サーバー").as_deref(), Some("ja.txt"));
        assert_eq!(first("สิ้นสุด").as_deref(), Some("th.txt"));
        assert_eq!(first("\"中午结束\"").as_deref(), Some("zh.txt"));
        assert_eq!(first("\"结束中午\""), None);
    }

    #[test]
    fn equal_passages_are_in_the_order_of_the_corpus() {
        let files: Vec<String> = (0..40).map(|number| format!("d{number:02}.txt")).collect();
        let corpus =
            build_corpus(&files.iter().map(|path| (path.as_str(), "A lease ends.")).collect::<Vec<_>>());
        let found = search_paths_and_lines(&corpus, "the end of leases", 40, 1);
        assert_eq!(found.into_iter().map(|(path, _)| path).collect::<Vec<_>>(), files);
    }
}
