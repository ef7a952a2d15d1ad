//! The passages of documents, which are the unit of search, and the BM25 index over them: for each field, the words of each of its
//! units with their positions. Borders of passages are those of paragraphs unless these are too long; a passage is a range of whole
//! lines. Passages are referenced by document and lines, and their text stays with the documents. It is plain data, which the
//! cache stores.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Document;
use super::language::Language;
use super::tokens::{split_into_words, stem_word};

/// The usual constants of BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009).
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The index of a list of documents.
#[derive(Serialize, Deserialize)]
pub(super) struct CorpusIndex {
    /// The languages of the documents, each once.
    pub languages: Vec<Language>,
    /// The passages in the order of the documents and their lines.
    pub passages: Vec<IndexedPassage>,
    /// The words of each passage.
    pub text: IndexedField,
    /// The words of the path and the title of each document.
    pub about: IndexedField,
}

/// A passage of a document, which is referenced by its number in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexedPassage {
    pub document: usize,
    pub lines: Passage,
}

impl CorpusIndex {
    pub fn build<'a>(documents: impl IntoIterator<Item = &'a Document>) -> Self {
        let (mut text, mut about) = (FieldBuilder::default(), FieldBuilder::default());
        let (mut passages, mut languages) = (Vec::new(), Vec::new());
        for (number, document) in documents.into_iter().enumerate() {
            let language = Language::detect(document.text());
            if !languages.contains(&language) {
                languages.push(language);
            }
            about.add_unit(&[&document.path, &document.title], language);
            for lines in split_into_passages(document) {
                text.add_unit(&[document.line_range(lines.first, lines.last)], language);
                passages.push(IndexedPassage { document: number, lines });
            }
        }
        Self { languages, passages, text: text.finish(), about: about.finish() }
    }

    /// The numbers of the passages of a document.
    pub fn passages_of_document(&self, document: usize) -> Range<usize> {
        let first_of = |document| self.passages.partition_point(|passage| passage.document < document);
        first_of(document)..first_of(document + 1)
    }

    /// `true` if the passages and the units are those of this number of documents, as far as their numbers tell.
    pub fn fits_documents(&self, documents: usize) -> bool {
        self.about.lengths.len() == documents
            && self.text.lengths.len() == self.passages.len()
            && self.passages.is_sorted_by_key(|passage| passage.document)
            && self.passages.last().is_none_or(|last| last.document < documents)
    }
}

/// The inverted index of a field. A unit, which is a passage or a document, is referenced by its number.
#[derive(Serialize, Deserialize)]
pub(super) struct IndexedField {
    /// The stems in ascending order, without separators.
    stems: String,
    /// For each stem, its end in `stems` and the end of its postings in `postings`.
    ends: Vec<(usize, usize)>,
    /// For each unit that contains the stem: its number, the number of positions, and the positions; ascending numbers as
    /// differences, in bytes of seven bits each, the lowest first.
    #[serde(with = "serde_bytes")]
    postings: Vec<u8>,
    /// The number of words of each unit, without stop words.
    lengths: Vec<u32>,
}

impl IndexedField {
    pub fn length_of(&self, unit: usize) -> u32 {
        self.lengths.get(unit).copied().unwrap_or_default()
    }

    pub fn statistics(&self) -> FieldStatistics {
        let words = self.lengths.iter().map(|&length| u64::from(length)).sum();
        FieldStatistics { units: self.lengths.len() as u64, words }
    }

    /// The units that contain any of these stems, in order, each with the number of their positions.
    pub fn count_stems(&self, stems: &[String]) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for posting in stems.iter().flat_map(|stem| self.postings(stem)) {
            *counts.entry(posting.unit).or_default() += posting.count;
        }
        counts
    }

    /// The units that contain a stem, in order.
    pub fn postings(&self, stem: &str) -> Postings<'_> {
        let range = |at: usize| {
            let (stem_start, start) =
                at.checked_sub(1).and_then(|at| self.ends.get(at)).copied().unwrap_or_default();
            let (stem_end, end) = self.ends.get(at).copied()?;
            Some((self.stems.get(stem_start..stem_end)?, self.postings.get(start..end)?))
        };
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match range(middle) {
                Some((found, bytes)) if found == stem => return Postings { bytes, next: 0 },
                Some((found, _)) if found < stem => low = middle + 1,
                Some(_) | None => high = middle,
            }
        }
        Postings { bytes: &[], next: 0 }
    }
}

/// The size of a field, in one index or in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FieldStatistics {
    /// The number of units.
    pub units: u64,
    /// The number of their words.
    pub words: u64,
}

impl FieldStatistics {
    pub fn plus(self, other: Self) -> Self {
        Self { units: self.units + other.units, words: self.words + other.words }
    }

    /// The weight of a word that `containing` units contain: a word in few of them has a high one.
    pub fn compute_word_weight(self, containing: u64) -> f64 {
        let (units, containing) = (self.units as f64, containing as f64);
        (1.0 + (units - containing + 0.5) / (containing + 0.5)).ln()
    }

    /// The factor of a word that occurs `count` times in a unit of `length` words.
    pub fn compute_frequency_factor(self, count: usize, length: u32) -> f64 {
        let average = self.words as f64 / self.units.max(1) as f64;
        let (count, length) = (count as f64, f64::from(length));
        count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / average.max(1.0)))
    }
}

/// The units that contain a stem.
pub(super) struct Postings<'a> {
    bytes: &'a [u8],
    next: usize,
}

/// A unit that contains a stem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Posting<'a> {
    pub unit: usize,
    /// The number of its positions.
    pub count: usize,
    positions: &'a [u8],
}

impl<'a> Iterator for Postings<'a> {
    type Item = Posting<'a>;

    fn next(&mut self) -> Option<Posting<'a>> {
        let unit = self.next + take_number(&mut self.bytes)?;
        let count = take_number(&mut self.bytes)?;
        let from = self.bytes;
        for _ in 0..count {
            take_number(&mut self.bytes)?;
        }
        self.next = unit;
        Some(Posting { unit, count, positions: &from[..from.len() - self.bytes.len()] })
    }
}

impl Posting<'_> {
    /// The positions of the stem in the unit, ascending.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        let (mut bytes, mut position) = (self.positions, 0);
        std::iter::from_fn(move || {
            position += take_number(&mut bytes)?;
            Some(position)
        })
    }
}

/// Takes a number from the front; `None` at the end.
fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let (mut number, mut shift) = (0_usize, 0);
    loop {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
        shift += 7;
    }
}

fn append_number(mut number: usize, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Collects the postings of a field, unit by unit.
#[derive(Default)]
struct FieldBuilder<'a> {
    /// For each language, the number of the stem of each word as written; `None` for a stop word.
    words: Vec<(Language, HashMap<&'a str, Option<usize>>)>,
    /// For each stem, its number.
    stems: HashMap<String, usize>,
    postings: Vec<StemPostings>,
    lengths: Vec<u32>,
}

/// The encoded postings of a stem, and the last unit in them.
#[derive(Default)]
struct StemPostings {
    bytes: Vec<u8>,
    last: usize,
}

impl<'a> FieldBuilder<'a> {
    fn add_unit(&mut self, texts: &[&'a str], language: Language) {
        let unit = self.lengths.len();
        let mut occurrences: Vec<(usize, usize)> = Vec::new();
        let mut position = 0;
        for text in texts {
            for (start, end) in split_into_words(text) {
                let stem = self.find_or_add_stem(&text[start..end], language);
                occurrences.extend(stem.map(|stem| (stem, position)));
                position += 1;
            }
        }
        self.lengths.push(u32::try_from(occurrences.len()).unwrap_or(u32::MAX));
        occurrences.sort_unstable();
        for same in occurrences.chunk_by(|(one, _), (other, _)| one == other) {
            let StemPostings { bytes, last } = &mut self.postings[same[0].0];
            append_number(unit - *last, bytes);
            append_number(same.len(), bytes);
            let mut before = 0;
            for &(_, position) in same {
                append_number(position - before, bytes);
                before = position;
            }
            *last = unit;
        }
    }

    fn find_or_add_stem(&mut self, word: &'a str, language: Language) -> Option<usize> {
        let known = self.words.iter().position(|(other, _)| *other == language);
        let at = known.unwrap_or_else(|| {
            self.words.push((language, HashMap::new()));
            self.words.len() - 1
        });
        let words = &mut self.words[at].1;
        if let Some(known) = words.get(word) {
            return *known;
        }
        let number = stem_word(word, language).map(|stem| {
            *self.stems.entry(stem).or_insert_with(|| {
                self.postings.push(StemPostings::default());
                self.postings.len() - 1
            })
        });
        words.insert(word, number);
        number
    }

    fn finish(self) -> IndexedField {
        let mut sorted: Vec<(String, usize)> = self.stems.into_iter().collect();
        sorted.sort_unstable();
        let mut field = IndexedField {
            stems: String::new(),
            ends: Vec::with_capacity(sorted.len()),
            postings: Vec::with_capacity(self.postings.iter().map(|postings| postings.bytes.len()).sum()),
            lengths: self.lengths,
        };
        for (stem, number) in sorted {
            field.stems.push_str(&stem);
            field.postings.extend(&self.postings[number].bytes);
            field.ends.push((field.stems.len(), field.postings.len()));
        }
        field
    }
}

/// A passage of this many characters takes no further paragraphs.
const MIN_PASSAGE_SIZE: usize = 800;
/// The maximum number of characters of a passage, unless a single line has more.
const MAX_PASSAGE_SIZE: usize = 1_200;

/// An inclusive range of lines, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Passage {
    pub first: usize,
    pub last: usize,
}

/// The passages of a document in order. Together they contain each non-blank line exactly once.
pub(super) fn split_into_passages(document: &Document) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let mut open: Option<(Passage, usize)> = None;
    for (block, size) in split_into_paragraphs(document) {
        open = Some(match open {
            Some((passage, so_far)) if so_far < MIN_PASSAGE_SIZE && so_far + size <= MAX_PASSAGE_SIZE => {
                (Passage { last: block.last, ..passage }, so_far + size)
            }
            Some((passage, _)) => {
                passages.push(passage);
                (block, size)
            }
            None => (block, size),
        });
    }
    passages.extend(open.map(|(passage, _)| passage));
    passages
}

/// Paragraphs with their sizes; those longer than a passage are split.
fn split_into_paragraphs(document: &Document) -> Vec<(Passage, usize)> {
    let mut blocks: Vec<(Passage, usize)> = Vec::new();
    let mut continues = false;
    for number in 1..=document.line_count() {
        let line = document.nth_line(number).unwrap_or_default();
        if line.trim().is_empty() {
            continues = false;
            continue;
        }
        let size = line.chars().count() + 1;
        match blocks.last_mut() {
            Some((block, so_far)) if continues && *so_far + size <= MAX_PASSAGE_SIZE => {
                block.last = number;
                *so_far += size;
            }
            Some(_) | None => blocks.push((Passage { first: number, last: number }, size)),
        }
        continues = true;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use millrace_protocol::wire;

    use super::*;
    use crate::corpus::{Corpus, InputFile};

    fn sample_documents() -> Vec<Document> {
        let text = |number: usize| {
            let words: Vec<String> = (0..900).map(|at| format!("w{}", (at * at + number) % 257)).collect();
            words.chunks(9).map(|line| line.join(" ") + "\n").collect::<String>()
        };
        (0..5).map(|number| Document::from_text(&format!("d{number}"), "title", "", text(number))).collect()
    }

    #[test]
    fn postings_are_the_positions_in_the_text() {
        let documents = sample_documents();
        let index = CorpusIndex::build(&documents);
        let mut found = 0;
        for word in ["w0", "w1", "w130", "w256"] {
            let mut units = Vec::new();
            for posting in index.text.postings(word) {
                let IndexedPassage { document, lines } = index.passages[posting.unit];
                let text = documents[document].line_range(lines.first, lines.last);
                let words = split_into_words(text);
                for position in posting.positions() {
                    let (start, end) = words[position];
                    assert_eq!(&text[start..end], word);
                    found += 1;
                }
                assert_eq!(posting.positions().count(), posting.count);
                units.push(posting.unit);
            }
            assert!(units.is_sorted() && !units.is_empty(), "{word} {units:?}");
        }
        let written: Vec<&str> =
            documents.iter().flat_map(|document| document.text().split_whitespace()).collect();
        assert_eq!(found, written.iter().filter(|word| ["w0", "w1", "w130", "w256"].contains(word)).count());
        assert_eq!(index.text.statistics().words as usize, written.len());
        assert_eq!(index.text.postings("w257").count(), 0);
    }

    #[test]
    fn the_same_documents_give_the_same_bytes() {
        let build = || wire::encode_body(&CorpusIndex::build(&sample_documents()));
        assert_eq!(build(), build());
    }

    #[test]
    fn a_damaged_index_is_searched_without_a_panic() {
        let bytes = wire::encode_body(&CorpusIndex::build(&sample_documents()));
        for at in (0..bytes.len()).step_by(37) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            let Ok(index) = wire::decode_message_pack::<CorpusIndex>(&damaged, "index") else { continue };
            if index.fits_documents(5) {
                let found = index.text.postings("w1").chain(index.text.postings("w256"));
                assert!(
                    found.flat_map(|posting| posting.positions().collect::<Vec<_>>()).count() < bytes.len()
                );
            }
        }
        assert!(!CorpusIndex::build(&sample_documents()).fits_documents(4));
    }

    fn split_file_into_passages(text: &str) -> (Vec<Passage>, Corpus) {
        let file = InputFile { path: "a.txt".into(), bytes: text.as_bytes().to_vec() };
        let corpus = Corpus::build_or_load(vec![file], None).unwrap();
        (split_into_passages(&corpus.documents()[0]), corpus)
    }

    #[test]
    fn short_paragraphs_share_a_passage_with_their_borders() {
        let paragraph = "x".repeat(49) + "\n" + &"y".repeat(49) + "\n\n";
        let (passages, corpus) = split_file_into_passages(&paragraph.repeat(40));
        let document = &corpus.documents()[0];
        assert!(passages.len() > 3);
        for passage in &passages {
            let size = document.line_range(passage.first, passage.last).chars().count();
            assert!(
                (700..=MAX_PASSAGE_SIZE).contains(&size) || passage.last == document.line_count(),
                "{size}"
            );
            assert!(document.nth_line(passage.first).unwrap().starts_with('x'), "begins with a paragraph");
            assert!(document.nth_line(passage.last).unwrap().starts_with('y'), "ends with one");
        }
    }

    #[test]
    fn each_non_blank_line_is_in_exactly_one_passage() {
        let text = format!("\n\na\n{}\n\n\nb\n{}\n\nc\n", "long ".repeat(700), "line\n".repeat(2_000));
        let (passages, corpus) = split_file_into_passages(&text);
        let document = &corpus.documents()[0];
        for number in 1..=document.line_count() {
            let holding = passages.iter().filter(|p| (p.first..=p.last).contains(&number)).count();
            let blank = document.nth_line(number).unwrap().is_empty();
            assert!(holding == 1 || (blank && holding <= 1), "line {number}");
        }
    }
}
