//! Ranks sentences as answers to a question, by words alone. It owns the score and the selection: the best of each document
//! first, then others.

use std::collections::{BTreeMap, BTreeSet};

use super::conversation::NumberedLines;
use super::question::{Question, QuestionKind};
use super::sentences::{self, Sentence, SentenceKind};
use crate::citations;
use crate::corpus::{fold_words, tokenize};

/// The minimum share of a question that an answer covers.
const LEAST_COVER: f64 = 0.34;
/// The minimum cover of a sentence, as a share of the best cover.
const COVER_OF_BEST: f64 = 0.7;
/// The minimum score of a further sentence of a document, as a share of its best score.
const FURTHER_OF_BEST: f64 = 0.85;
/// The maximum number of sentences of one document.
const PER_DOCUMENT: usize = 3;
/// The length above which a sentence is penalised, in characters.
const COMFORTABLE: usize = 900;
/// A sentence with fewer words is a heading or a fragment.
const FEW_WORDS: usize = 6;
/// The part of a term's weight that counts for the score of a sentence if only a heading above it, or a sentence that
/// refers to its document, contains the term.
const CONTEXT_SHARE: f64 = 0.5;

/// Words of obligation and permission.
const BINDING: &[&str] =
    &["shall", "must", "may", "will", "hereby", "cannot", "grants", "requires", "provided", "only"];

/// Phrases of exclusion.
const EXCLUSIONS: &[&str] = &["other than", "excluding", "not limited to"];

/// A candidate for quotation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CandidateSentence {
    pub path: String,
    pub title: String,
    pub sentence: Sentence,
    /// The first line of its passage, and its index in the passage.
    pub place: (usize, usize),
    /// The sentences that belong to it: headings above it that contain terms of the question, the introduction of the list
    /// that it is an item of, the header row of its table.
    pub context: Vec<Sentence>,
    /// The indices of the question's terms that it contains, its context included.
    pub stated: BTreeSet<usize>,
    /// These, and the terms of the sentence that refers to its document.
    pub covers: BTreeSet<usize>,
    /// The weighted share of the question's terms that it contains, from 0 to 1.
    pub cover: f64,
    pub score: f64,
}

/// The weight of each term of a question: a word in every document has a low weight, a rare one a high weight. `documents`
/// has for each term its document frequency and the number of documents.
pub(super) fn compute_term_weights(documents: &[(usize, usize)]) -> Vec<f64> {
    documents
        .iter()
        .map(|&(some, all)| if some == 0 || all == 0 { 1.0 } else { 0.3 + (all as f64 / some as f64).ln() })
        .collect()
}

/// Scores the sentences of a passage. `referring` are the terms in a sentence of another document that refers to this one.
pub(super) fn score_sentences(
    question: &Question,
    weights: &[f64],
    passage: &NumberedLines<'_>,
    referring: &BTreeSet<usize>,
) -> Vec<CandidateSentence> {
    let sentences = list_complete_sentences(passage);
    let terms_of =
        |at: usize| sentences.get(at).map(|one| MatchedTerms::match_sentence(question, &one.text).covers);
    let mut candidates = Vec::new();
    for (at, sentence) in sentences.iter().enumerate() {
        let own = MatchedTerms::match_sentence(question, &sentence.text);
        if own.covers.is_empty() || sentence.kind == SentenceKind::TableHeader {
            continue;
        }
        let introduction = sentence.introduction.filter(|at| *at < sentences.len());
        let introducing = introduction.and_then(terms_of).unwrap_or_default();
        let near: BTreeSet<usize> = own.covers.union(&introducing).copied().collect();
        let mut stated = near.clone();
        let mut shown: Vec<usize> = introduction.into_iter().collect();
        // The innermost heading first: an outer one is shown only for terms that no inner one has.
        for heading in sentence.headings.iter().rev().copied() {
            let terms = terms_of(heading).unwrap_or_default();
            if !terms.is_subset(&stated) {
                stated.extend(terms);
                shown.push(heading);
            }
        }
        shown.sort_unstable();
        let covers: BTreeSet<usize> = stated.union(referring).copied().collect();
        let context: Vec<Sentence> = shown.into_iter().map(|at| sentences[at].clone()).collect();
        let cover = compute_weighted_coverage(&covers, weights);
        let near = compute_weighted_coverage(&near, weights);
        let introduction = introduction.map(|at| &sentences[at]);
        let score = near
            + CONTEXT_SHARE * (cover - near)
            + compute_score_bonus(question, weights, sentence, introduction, &own);
        candidates.push(CandidateSentence {
            path: passage.path.to_owned(),
            title: passage.title.to_owned(),
            sentence: sentence.clone(),
            place: (passage.first_line(), at),
            context,
            stated,
            covers,
            cover,
            score,
        });
    }
    candidates
}

pub(super) struct SelectedSentences {
    /// The sentences, grouped by document, the document with the best one first.
    pub quoted: Vec<CandidateSentence>,
    /// `true` if they answer the question, as far as words tell; `false` if they are only the nearest matches.
    pub is_relevant: bool,
}

impl SelectedSentences {
    /// `true` if a complete sentence answers the question: a heading that contains its words is no answer.
    pub(super) fn has_answer(&self) -> bool {
        self.is_relevant && self.quoted.iter().any(|candidate| is_statement(&candidate.sentence))
    }
}

/// `true` for a complete sentence or a row of a table, `false` for a heading or a fragment.
fn is_statement(sentence: &Sentence) -> bool {
    let text = &sentence.text;
    match sentence.kind {
        SentenceKind::Heading(_) | SentenceKind::TableHeader => false,
        SentenceKind::Row => true,
        SentenceKind::Text => {
            text.ends_with(['.', '!', '?', ';', ':', '"', '”', ')'])
                || text.split_whitespace().count() >= FEW_WORDS
                || text.contains(|c: char| c.is_ascii_digit())
        }
    }
}

/// Selects at most `limit` sentences: of each document the best, then further ones that are nearly as good.
pub(super) fn select_sentences(mut candidates: Vec<CandidateSentence>, limit: usize) -> SelectedSentences {
    candidates.sort_by(|a, b| {
        let place = |c: &CandidateSentence| (c.path.clone(), c.sentence.first_line, c.sentence.text.clone());
        b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b)))
    });
    let best = candidates.iter().map(|candidate| candidate.cover).fold(0.0, f64::max);
    let is_relevant = best >= LEAST_COVER;
    let least = if is_relevant { (best * COVER_OF_BEST).max(LEAST_COVER) } else { 0.0 };
    candidates.retain(|candidate| candidate.cover >= least - 1e-9);
    let (limit, per_document) = if is_relevant { (limit, PER_DOCUMENT) } else { (limit.min(3), 1) };

    let mut chosen: Vec<CandidateSentence> = Vec::new();
    let mut bests: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for round in 0..per_document {
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
    chosen.sort_by_key(|candidate| {
        (order.iter().position(|path| *path == candidate.path), candidate.sentence.first_line)
    });
    SelectedSentences { quoted: chosen, is_relevant }
}

/// `true` if the same text was selected already, from a copy of a document or a passage that was read twice.
fn overlaps_chosen(chosen: &[CandidateSentence], candidate: &CandidateSentence) -> bool {
    chosen.iter().any(|other| other.sentence.text == candidate.sentence.text)
}

/// The sentences of a passage, without those that its borders may have cut off.
fn list_complete_sentences(passage: &NumberedLines<'_>) -> Vec<Sentence> {
    let mut sentences = sentences::split_into_sentences(&passage.lines);
    let starts_inside =
        passage.first_line() > 1 && passage.lines.first().is_some_and(|(_, line)| !line.is_empty());
    if let Some(first) = sentences.first_mut()
        && starts_inside
    {
        // It keeps its index, since others refer to their introduction by index.
        first.text.clear();
    }
    let ends_inside = passage.lines.last().is_some_and(|(_, line)| !line.is_empty());
    if ends_inside
        && sentences.last().is_some_and(|last| !last.text.ends_with(['.', '!', '?', ';', ':', ')', '”', '"']))
    {
        sentences.pop();
    }
    sentences
}

/// The words of a sentence that match the question.
struct MatchedTerms {
    /// For each word of the sentence in order, the term of the question that it matches.
    sequence: Vec<Option<usize>>,
    covers: BTreeSet<usize>,
}

impl MatchedTerms {
    fn match_sentence(question: &Question, text: &str) -> Self {
        // A word that matches two terms counts for the one with the same stem.
        let place = |stem: &str| {
            let own = question.terms.iter().position(|wanted| wanted.stem == stem);
            own.or_else(|| question.terms.iter().position(|wanted| wanted.stems.contains(stem)))
        };
        let sequence: Vec<Option<usize>> = tokenize(text).iter().map(|term| place(&term.stem)).collect();
        let covers = sequence.iter().flatten().copied().collect();
        Self { sequence, covers }
    }

    /// The number of adjacent pairs of terms in the question that are adjacent here too.
    fn count_adjacent_pairs(&self) -> usize {
        self.sequence
            .windows(2)
            .filter(|pair| matches!(pair, [Some(a), Some(b)] if a.abs_diff(*b) == 1))
            .count()
    }

    fn count_occurrences(&self, term: usize) -> usize {
        self.sequence.iter().filter(|word| **word == Some(term)).count()
    }
}

/// The weighted share of the question's terms.
fn compute_weighted_coverage(covers: &BTreeSet<usize>, weights: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let covered: f64 = covers.iter().filter_map(|&at| weights.get(at)).sum();
    if total > 0.0 { covered / total } else { 0.0 }
}

fn states_obligation(text: &str) -> bool {
    fold_words(text).any(|word| BINDING.contains(&word.as_str()))
}

fn compute_score_bonus(
    question: &Question,
    weights: &[f64],
    sentence: &Sentence,
    introduction: Option<&Sentence>,
    words: &MatchedTerms,
) -> f64 {
    let text = &sentence.text;
    let lower: Vec<String> = fold_words(text).collect();
    let count = |of: &[&str]| lower.iter().filter(|word| of.contains(&word.as_str())).count();
    let mut bonus = 0.08 * words.count_adjacent_pairs().min(2) as f64;
    let heaviest = (0..weights.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b]));
    if let Some(heaviest) = heaviest {
        bonus += 0.03 * words.count_occurrences(heaviest).saturating_sub(1).min(3) as f64;
    }
    bonus += 0.06 * count(question.kind.cue_words()).min(2) as f64;
    if question.kind == QuestionKind::HowMany && text.contains(|c: char| c.is_ascii_digit()) {
        bonus += 0.1;
    }
    let introduced = introduction.is_some_and(|sentence| states_obligation(&sentence.text));
    if introduced || states_obligation(text) {
        bonus += 0.12;
    }
    if EXCLUSIONS.iter().any(|exclusion| text.contains(exclusion)) {
        bonus -= 0.1;
    }
    if [" means ", " mean ", " shall mean "].iter().any(|verb| text.contains(verb))
        && text.contains(['"', '“', '‘'])
    {
        bonus -= 0.1;
    }
    if text.ends_with(':') {
        bonus -= 0.25;
    }
    let is_data = sentence.kind == SentenceKind::Row || text.contains(|c: char| c.is_ascii_digit());
    if lower.len() < FEW_WORDS && !is_data {
        bonus -= 0.4;
    }
    if matches!(sentence.kind, SentenceKind::Heading(_)) {
        bonus -= 0.4;
    }
    if !text.contains(char::is_lowercase) {
        bonus -= 0.15;
    }
    // Text that looks like a citation would be misread as one.
    if citations::has_citations(text) {
        bonus -= 0.3;
    }
    if text.ends_with('?') {
        bonus -= 0.1;
    }
    if text.chars().count() > COMFORTABLE {
        bonus -= 0.1;
    }
    bonus
}
