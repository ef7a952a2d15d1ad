//! Ranks passages of sentences as answers to a question, by words alone. It owns the weight of a word, the score and the selection:
//! the best of each document first, then others. A word that most sentences have counts for little, in any language.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use millrace_verification::QUESTION_MARKS;

use super::conversation::{NumberedLines, PassageHit};
use super::question::Question;
use super::sentences::{self, Sentence, SentenceKind};
use crate::citations;
use crate::corpus::{Language, fold_words};

/// The minimum cover of a passage, as a share of the best cover.
const COVER_OF_BEST: f64 = 0.6;
/// The minimum score of a further passage of a document, as a share of its best score.
const FURTHER_OF_BEST: f64 = 0.75;
/// The maximum number of passages of one document.
const PER_DOCUMENT: usize = 3;
/// A sentence is shown with those around it, up to so many characters.
const PASSAGE: usize = 480;
/// The length above which a sentence is penalised, in characters.
const COMFORTABLE: usize = 900;
/// A sentence with fewer words is a heading or a fragment.
const FEW_WORDS: usize = 6;
/// The part of a term's weight that counts if only the context contains the term: the sentences around, a heading above, or a
/// sentence that refers to the document.
const CONTEXT_SHARE: f64 = 0.5;
/// The part of the score that is the relevance of the passage in the search.
const SEARCH_SHARE: f64 = 0.3;

/// The sentences of lines that were read, and the terms of the question in them.
pub(super) struct ReadSentences<'a> {
    lines: NumberedLines<'a>,
    sentences: Vec<Sentence>,
    /// For each sentence, the terms that its words match, in order.
    matches: Vec<Vec<Option<usize>>>,
    /// For each sentence, its terms.
    terms: Vec<BTreeSet<usize>>,
}

impl<'a> ReadSentences<'a> {
    pub fn new(question: &Question<'_>, lines: NumberedLines<'a>, language: Language) -> Self {
        let sentences = list_complete_sentences(&lines);
        let matches: Vec<Vec<Option<usize>>> =
            sentences.iter().map(|sentence| question.match_words(&sentence.text, language)).collect();
        let terms = matches.iter().map(|matches| matches.iter().flatten().copied().collect()).collect();
        Self { lines, sentences, matches, terms }
    }

    pub fn path(&self) -> &'a str {
        self.lines.path
    }

    /// The sentences that are shown with one: those around it in its paragraph, or below a heading, the ones with more weight first.
    fn passage_around(&self, at: usize, weights: &[f64]) -> Range<usize> {
        let length = |at: usize| self.sentences[at].text.chars().count() + 1;
        let is_text = |at: &usize| {
            self.sentences.get(*at).is_some_and(|one| one.kind == SentenceKind::Text && !one.text.is_empty())
        };
        let mut range = at..at + 1;
        let paragraph = match self.sentences[at].kind {
            SentenceKind::Text => Some(self.sentences[at].paragraph),
            SentenceKind::Heading(_) => None,
            SentenceKind::Row | SentenceKind::TableHeader => return range,
        };
        let belongs = |at: &usize| {
            is_text(at) && paragraph.is_none_or(|paragraph| self.sentences[*at].paragraph == paragraph)
        };
        let mut left = PASSAGE.saturating_sub(length(at));
        loop {
            let before = range.start.checked_sub(1).filter(|at| paragraph.is_some() && belongs(at));
            let after = Some(range.end).filter(belongs);
            let weight = |at: usize| self.terms[at].iter().filter_map(|&term| weights.get(term)).sum::<f64>();
            let fitting = [after, before].into_iter().flatten().filter(|&at| length(at) <= left);
            let Some(next) = fitting.reduce(|a, b| if weight(b) > weight(a) { b } else { a }) else {
                return range;
            };
            left -= length(next);
            range = range.start.min(next)..range.end.max(next + 1);
        }
    }

    /// The sentences of a range as one.
    fn join_sentences(&self, range: Range<usize>) -> Option<Sentence> {
        let (first, last) =
            (self.sentences.get(range.start)?, self.sentences.get(range.end.checked_sub(1)?)?);
        let texts: Vec<&str> = self.sentences[range].iter().map(|sentence| sentence.text.as_str()).collect();
        Some(Sentence { text: texts.join(" "), last_line: last.last_line, ..first.clone() })
    }
}

/// A candidate for quotation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CandidatePassage {
    pub path: String,
    pub title: String,
    /// Its sentences as one.
    pub text: Sentence,
    /// The first of the lines that were read, and the indices of its sentences in them.
    place: (usize, Range<usize>),
    /// The sentences that belong to it: headings above it that contain terms of the question, the introduction of the list
    /// that it is an item of, the header row of its table.
    pub context: Vec<Sentence>,
    /// The indices of the question's terms that it contains, its context included.
    pub stated: BTreeSet<usize>,
    /// The weighted share of the question's terms that it contains or that the sentence that refers to its document contains,
    /// from 0 to 1.
    pub cover: f64,
    pub score: f64,
}

/// The weight of each term of a question by the number of sentences that contain it; 0 if none does.
pub(super) fn weigh_terms(question: &Question<'_>, read: &[ReadSentences<'_>]) -> Vec<f64> {
    let all: usize = read.iter().map(|read| read.sentences.len()).sum();
    let containing =
        |term: usize| read.iter().flat_map(|read| &read.terms).filter(|terms| terms.contains(&term)).count();
    (0..question.terms.len())
        .map(|term| match containing(term) {
            0 => 0.0,
            some => (1.0 + (all as f64 - some as f64 + 0.5) / (some as f64 + 0.5)).ln(),
        })
        .collect()
}

/// Scores the passages of sentences that were read. `referring` are the terms in a sentence of another document that refers to
/// this one; `hits` are the passages that the search found.
pub(super) fn score_passages(
    read: &ReadSentences<'_>,
    weights: &[f64],
    hits: &[PassageHit],
    referring: &BTreeSet<usize>,
) -> Vec<CandidatePassage> {
    let ReadSentences { sentences, terms, .. } = read;
    let mut candidates = Vec::new();
    for (at, sentence) in sentences.iter().enumerate() {
        let own = &terms[at];
        if own.is_empty() || sentence.kind == SentenceKind::TableHeader {
            continue;
        }
        let mut range = read.passage_around(at, weights);
        let mut shown: Vec<usize> = sentence.introduction.into_iter().collect();
        let near: BTreeSet<usize> =
            shown.iter().filter_map(|at| terms.get(*at)).flatten().chain(own).copied().collect();
        let mut stated: BTreeSet<usize> =
            terms[range.clone()].iter().flatten().chain(&near).copied().collect();
        // The innermost heading first: an outer one is shown only for terms that no inner one has.
        for heading in sentence.headings.iter().rev().copied() {
            if terms.get(heading).is_some_and(|terms| !terms.is_subset(&stated)) {
                stated.extend(&terms[heading]);
                shown.push(heading);
            }
        }
        if matches!(sentence.kind, SentenceKind::Heading(_)) && range.len() > 1 {
            shown.push(at);
            range.start += 1;
        }
        shown.sort_unstable();
        let cover = compute_weighted_coverage(&stated.union(referring).copied().collect(), weights);
        let near = compute_weighted_coverage(&near, weights);
        let score = near
            + CONTEXT_SHARE * (cover - near)
            + SEARCH_SHARE * find_relevance(read.path(), sentence, hits)
            + compute_score_bonus(sentence, &read.matches[at]);
        let place = (read.lines.first_line(), range.clone());
        let Some(text) = read.join_sentences(range) else { continue };
        candidates.push(CandidatePassage {
            path: read.path().to_owned(),
            title: read.lines.title.to_owned(),
            text,
            place,
            context: shown.into_iter().filter_map(|at| sentences.get(at)).cloned().collect(),
            stated,
            cover,
            score,
        });
    }
    candidates
}

/// The score of the passage that a sentence is in, as a share of the best one.
fn find_relevance(path: &str, sentence: &Sentence, hits: &[PassageHit]) -> f64 {
    let best = hits.iter().map(|hit| hit.score).fold(0.0, f64::max);
    let has_sentence = |hit: &&PassageHit| {
        hit.path == path && hit.first_line <= sentence.last_line && sentence.first_line <= hit.last_line
    };
    let own = hits.iter().filter(has_sentence).map(|hit| hit.score).fold(0.0, f64::max);
    if best > 0.0 { own / best } else { 0.0 }
}

/// Selects at most `limit` passages, grouped by document, the document with the best one first: of each document the best, then
/// further ones that are nearly as good.
pub(super) fn select_passages(mut candidates: Vec<CandidatePassage>, limit: usize) -> Vec<CandidatePassage> {
    candidates.sort_by(|a, b| {
        let place = |c: &CandidatePassage| (c.path.clone(), c.text.first_line, c.text.text.clone());
        b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b)))
    });
    let best = candidates.iter().map(|candidate| candidate.cover).fold(0.0, f64::max);
    candidates.retain(|candidate| candidate.cover >= best * COVER_OF_BEST - 1e-9);

    let mut chosen: Vec<CandidatePassage> = Vec::new();
    let mut bests: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for round in 0..PER_DOCUMENT {
        for candidate in &candidates {
            let fits = match bests.get(&candidate.path) {
                None => round == 0,
                Some((best, taken)) => *taken == round && candidate.score >= best * FURTHER_OF_BEST,
            };
            if fits && chosen.len() < limit && !overlaps_chosen(&chosen, candidate) {
                bests.entry(candidate.path.clone()).or_insert((candidate.score, 0)).1 += 1;
                chosen.push(candidate.clone());
            }
        }
    }
    let order: Vec<String> = chosen.iter().map(|candidate| candidate.path.clone()).collect();
    chosen.sort_by_key(|candidate| order.iter().position(|path| *path == candidate.path));
    chosen
}

/// `true` if a part of the same text was selected already, in this document or in a copy of it.
fn overlaps_chosen(chosen: &[CandidatePassage], candidate: &CandidatePassage) -> bool {
    let (read, range) = &candidate.place;
    chosen.iter().any(|other| {
        let (other_read, other_range) = &other.place;
        let is_near = other.path == candidate.path && other_read == read;
        (is_near && range.start < other_range.end && other_range.start < range.end)
            || other.text.text == candidate.text.text
    })
}

/// The sentences of a passage, without those that its borders may have cut off.
fn list_complete_sentences(lines: &NumberedLines<'_>) -> Vec<Sentence> {
    let mut sentences = sentences::split_into_sentences(&lines.lines);
    let starts_inside =
        lines.first_line() > 1 && lines.lines.first().is_some_and(|(_, line)| !line.is_empty());
    if let Some(first) = sentences.first_mut()
        && starts_inside
    {
        // It keeps its index, since others refer to their introduction by index.
        first.text.clear();
    }
    let ends_inside =
        lines.last_line() < lines.line_count && lines.lines.last().is_some_and(|(_, line)| !line.is_empty());
    if ends_inside && sentences.last().is_some_and(|last| !sentences::ends_sentence(&last.text)) {
        sentences.pop();
    }
    sentences
}

/// The weighted share of the question's terms.
fn compute_weighted_coverage(covers: &BTreeSet<usize>, weights: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let covered: f64 = covers.iter().filter_map(|&at| weights.get(at)).sum();
    if total > 0.0 { covered / total } else { 0.0 }
}

fn compute_score_bonus(sentence: &Sentence, matches: &[Option<usize>]) -> f64 {
    let text = &sentence.text;
    let is_pair = |pair: &&[Option<usize>]| matches!(pair, [Some(a), Some(b)] if a.abs_diff(*b) == 1);
    let mut bonus = 0.08 * matches.windows(2).filter(is_pair).count().min(2) as f64;
    if text.ends_with(sentences::INTRODUCTION) {
        bonus -= 0.25;
    }
    let is_data = sentence.kind == SentenceKind::Row || text.contains(char::is_numeric);
    if fold_words(text).count() < FEW_WORDS && !is_data {
        bonus -= 0.4;
    }
    if matches!(sentence.kind, SentenceKind::Heading(_)) {
        bonus -= 0.4;
    }
    if text.contains(char::is_uppercase) && !text.contains(char::is_lowercase) {
        bonus -= 0.15;
    }
    // Text that looks like a citation would be misread as one.
    if citations::has_citations(text) {
        bonus -= 0.3;
    }
    if text.ends_with(QUESTION_MARKS) {
        bonus -= 0.1;
    }
    if text.chars().count() > COMFORTABLE {
        bonus -= 0.1;
    }
    bonus
}
