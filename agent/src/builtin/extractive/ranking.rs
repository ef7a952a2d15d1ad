//! Which sentences answer a question, by words alone. It owns the score and the choice: the best of each document
//! first, then the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::conversation::Passage;
use super::question::{Kind, Question};
use super::sentences::{self, Sentence};
use crate::citations;
use crate::corpus::terms;

/// A sentence that says less of a question than this share is no answer to it.
const LEAST_COVER: f64 = 0.34;
/// A sentence must cover this share of what the best one covers.
const COVER_OF_BEST: f64 = 0.7;
/// A further sentence of a document must be nearly as good as its best.
const FURTHER_OF_BEST: f64 = 0.85;
/// The most sentences of one document.
const PER_DOCUMENT: usize = 3;
/// The longest sentence that is quoted without a penalty, in characters.
const COMFORTABLE: usize = 900;
/// A sentence of fewer words is a heading or a fragment.
const FEW_WORDS: usize = 6;

/// Words by which a sentence lays something down.
const BINDING: &[&str] =
    &["shall", "must", "may", "will", "hereby", "cannot", "grants", "requires", "provided", "only"];

/// Words that take something out of what a sentence is about.
const EXCLUSIONS: &[&str] = &["other than", "excluding", "not limited to"];

/// A sentence that may be quoted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    pub path: String,
    pub title: String,
    pub sentence: Sentence,
    /// Where it stands among the sentences of its passage, and on which line that begins.
    pub place: (usize, usize),
    /// What introduces the list that the sentence is an item of.
    pub introduction: Option<Sentence>,
    /// Which of the question's terms it has, by their places.
    pub covers: BTreeSet<usize>,
    /// The weighted share of the question's terms that it has, from 0 to 1.
    pub cover: f64,
    pub score: f64,
}

/// How much each term of a question counts: a word that stands in every document says little, one that stands in few
/// says much. `documents` holds for each term in how many of how many documents it stands.
pub(super) fn weights(documents: &[(usize, usize)]) -> Vec<f64> {
    documents
        .iter()
        .map(|&(some, all)| if some == 0 || all == 0 { 1.0 } else { 0.3 + (all as f64 / some as f64).ln() })
        .collect()
}

/// The sentences of a passage with their scores.
pub(super) fn candidates(question: &Question, weights: &[f64], passage: &Passage<'_>) -> Vec<Candidate> {
    let sentences = whole_sentences(passage);
    let mut candidates = Vec::new();
    for (at, sentence) in sentences.iter().enumerate() {
        let introduction = sentence.introduction.and_then(|at| sentences.get(at)).cloned();
        let own = Words::of(question, &sentence.text);
        let around = introduction.as_ref().map(|sentence| Words::of(question, &sentence.text).covers);
        if own.covers.is_empty() {
            continue;
        }
        let covers: BTreeSet<usize> = own.covers.iter().chain(around.iter().flatten()).copied().collect();
        let cover = share(&covers, weights);
        let score = cover + bonus(question, weights, sentence, introduction.as_ref(), &own);
        candidates.push(Candidate {
            path: passage.path.to_owned(),
            title: passage.title.to_owned(),
            sentence: sentence.clone(),
            place: (passage.first_line(), at),
            introduction,
            covers,
            cover,
            score,
        });
    }
    candidates
}

/// What was chosen to answer a question.
pub(super) struct Choice {
    /// The sentences, those of one document together, the document with the best one first.
    pub quoted: Vec<Candidate>,
    /// Whether they answer the question, as far as words tell, or are merely the nearest there is.
    pub to_the_point: bool,
}

/// Chooses at most `limit` sentences: of each document the best, then further ones that are nearly as good.
pub(super) fn choose(mut candidates: Vec<Candidate>, limit: usize) -> Choice {
    candidates.sort_by(|a, b| {
        let place = |c: &Candidate| (c.path.clone(), c.sentence.first_line, c.sentence.text.clone());
        b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b)))
    });
    let best = candidates.iter().map(|candidate| candidate.cover).fold(0.0, f64::max);
    let to_the_point = best >= LEAST_COVER;
    let least = if to_the_point { (best * COVER_OF_BEST).max(LEAST_COVER) } else { 0.0 };
    candidates.retain(|candidate| candidate.cover >= least - 1e-9);
    let (limit, per_document) = if to_the_point { (limit, PER_DOCUMENT) } else { (limit.min(3), 1) };

    let mut chosen: Vec<Candidate> = Vec::new();
    let mut bests: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for round in 0..per_document {
        for candidate in &candidates {
            let fits = match bests.get(&candidate.path) {
                None => round == 0,
                Some((best, taken)) => *taken == round && candidate.score >= best * FURTHER_OF_BEST,
            };
            if fits && chosen.len() < limit && !overlaps(&chosen, candidate) {
                bests.entry(candidate.path.clone()).or_insert((candidate.score, 0)).1 += 1;
                chosen.push(candidate.clone());
            }
        }
    }
    let order: Vec<String> = chosen.iter().map(|candidate| candidate.path.clone()).collect();
    chosen.sort_by_key(|candidate| {
        (order.iter().position(|path| *path == candidate.path), candidate.sentence.first_line)
    });
    Choice { quoted: chosen, to_the_point }
}

/// Whether the same words were chosen already: copies of a text are quoted once, and so are passages read twice.
fn overlaps(chosen: &[Candidate], candidate: &Candidate) -> bool {
    chosen.iter().any(|other| other.sentence.text == candidate.sentence.text)
}

/// The sentences of a passage without those that its borders may have cut off.
fn whole_sentences(passage: &Passage<'_>) -> Vec<Sentence> {
    let mut sentences = sentences::split(&passage.lines);
    let starts_inside =
        passage.first_line() > 1 && passage.lines.first().is_some_and(|(_, line)| !line.is_empty());
    if let Some(first) = sentences.first_mut()
        && starts_inside
    {
        // Its place stays, as others name their introduction by place.
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

/// The words of a sentence as far as the question asks for them.
struct Words {
    /// For each word of the sentence in order, the term of the question that it stands for.
    sequence: Vec<Option<usize>>,
    covers: BTreeSet<usize>,
}

impl Words {
    fn of(question: &Question, text: &str) -> Self {
        // A word that stands for two terms counts for the one that has it as its own.
        let place = |stem: &str| {
            let own = question.wanted.iter().position(|wanted| wanted.stem == stem);
            own.or_else(|| question.wanted.iter().position(|wanted| wanted.stems.contains(stem)))
        };
        let sequence: Vec<Option<usize>> = terms(text).iter().map(|term| place(&term.stem)).collect();
        let covers = sequence.iter().flatten().copied().collect();
        Self { sequence, covers }
    }

    /// How many pairs of neighbours in the question stand next to each other here too.
    fn neighbours(&self) -> usize {
        self.sequence
            .windows(2)
            .filter(|pair| matches!(pair, [Some(a), Some(b)] if a.abs_diff(*b) == 1))
            .count()
    }

    fn mentions(&self, term: usize) -> usize {
        self.sequence.iter().filter(|word| **word == Some(term)).count()
    }
}

/// The weighted share of the question's terms.
fn share(covers: &BTreeSet<usize>, weights: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let covered: f64 = covers.iter().filter_map(|&at| weights.get(at)).sum();
    if total > 0.0 { covered / total } else { 0.0 }
}

fn is_binding(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    words.any(|word| BINDING.contains(&word.to_lowercase().as_str()))
}

fn bonus(
    question: &Question,
    weights: &[f64],
    sentence: &Sentence,
    introduction: Option<&Sentence>,
    words: &Words,
) -> f64 {
    let text = &sentence.text;
    let lower: Vec<String> =
        text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect();
    let count = |of: &[&str]| lower.iter().filter(|word| of.contains(&word.as_str())).count();
    let mut bonus = 0.08 * words.neighbours().min(2) as f64;
    let heaviest = (0..weights.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b]));
    if let Some(heaviest) = heaviest {
        bonus += 0.03 * words.mentions(heaviest).saturating_sub(1).min(3) as f64;
    }
    bonus += 0.06 * count(question.kind.cues()).min(2) as f64;
    if question.kind == Kind::HowMany && text.contains(|c: char| c.is_ascii_digit()) {
        bonus += 0.1;
    }
    let introduced = introduction.is_some_and(|sentence| is_binding(&sentence.text));
    if introduced || is_binding(text) {
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
    if lower.len() < FEW_WORDS {
        bonus -= 0.4;
    }
    if !text.contains(char::is_lowercase) {
        bonus -= 0.15;
    }
    // What looks like a citation there would be read as one here.
    if citations::has_marks(text) {
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
