//! The researcher's part: search in several wordings, read around the best passages, quote what answers. It owns what
//! is looked for and how the finding is worded; the choice of sentences is in `ranking`.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::Quotation;
use serde_json::json;

use super::conversation::{self, Exchange, FoundPassage, exchanges, has_tool};
use super::question::Question;
use super::ranking::{self, Candidate, Choice};
use crate::citations;
use crate::desk::{Findings, Passage};
use crate::model::{Reply, Request};
use crate::roles::WorkTask;

const SEARCH: &str = "search_documents";
const READ: &str = "read_document";

/// The searches for the question as a whole; those for single terms follow, in the order of the terms.
const GENERAL_SEARCHES: usize = 2;
/// The most terms that are searched for one by one.
const SINGLE_SEARCHES: usize = 4;
/// The most searches and readings together: one less than a researcher has.
const MAX_CALLS: usize = 19;
/// The longest query, in characters; the search takes a few more.
const MAX_QUERY: usize = 900;
/// How many lines are read before and after a passage: what belongs to it often stands near it.
const MARGIN: (usize, usize) = (40, 60);
/// The most quotations of one answer.
const MAX_QUOTATIONS: usize = 20;
/// The most documents that are named in a note.
const MAX_NAMED: usize = 30;

pub(super) fn reply(request: &Request, task: &WorkTask) -> Reply {
    let question = Question::read(&task.objective);
    let exchanges = exchanges(request);
    let searches: Vec<&Exchange<'_>> = exchanges.iter().filter(|exchange| exchange.tool == SEARCH).collect();
    let readings: Vec<&Exchange<'_>> = exchanges.iter().filter(|exchange| exchange.tool == READ).collect();
    if searches.is_empty() && has_tool(request, SEARCH) && !question.wanted.is_empty() {
        return conversation::call(request, search(&question));
    }
    if readings.is_empty() && has_tool(request, READ) {
        let passages = passages_to_read(&question, &searches);
        if !passages.is_empty() {
            return conversation::call(request, passages.iter().map(read).collect());
        }
    }
    conversation::answer(&find(task, &question, &searches, &readings))
}

/// The question in its own words, then with the words that stand for them, then term by term.
fn search(question: &Question) -> Vec<(&'static str, serde_json::Value)> {
    let every: Vec<&str> =
        question.wanted.iter().flat_map(|wanted| &wanted.words).map(String::as_str).collect();
    let mut calls = vec![
        (SEARCH, json!({"query": query(&question.words()), "limit": 20, "per_document": 2})),
        (SEARCH, json!({"query": query(&every), "limit": 20, "per_document": 2})),
    ];
    calls.extend(
        question
            .wanted
            .iter()
            .take(SINGLE_SEARCHES)
            .map(|wanted| (SEARCH, json!({"query": wanted.words.join(" "), "limit": 20, "per_document": 1}))),
    );
    calls
}

/// Words as a query, as many as it may hold.
fn query(words: &[&str]) -> String {
    let mut query = String::new();
    for word in words {
        if query.chars().count() + word.chars().count() < MAX_QUERY {
            query.push_str(word);
            query.push(' ');
        }
    }
    query.trim_end().to_owned()
}

fn read(passage: &FoundPassage) -> (&'static str, serde_json::Value) {
    let first = passage.first_line.saturating_sub(MARGIN.0).max(1);
    let last = passage.last_line + MARGIN.1;
    (READ, json!({"path": passage.path, "first_line": first, "last_line": last}))
}

/// The passages that most searches found best: of each document the best first, then others. Documents without the
/// term that says most are left out.
fn passages_to_read(question: &Question, searches: &[&Exchange<'_>]) -> Vec<FoundPassage> {
    let silent =
        Terms::of(question, searches).missing_in.map(|missing| missing.documents).unwrap_or_default();
    let mut merit: BTreeMap<(String, usize, usize), f64> = BTreeMap::new();
    for (number, search) in searches.iter().enumerate() {
        // Single terms say little of the whole question.
        let weight = if number < GENERAL_SEARCHES { 1.0 } else { 0.3 };
        let found = conversation::found(search).into_iter().filter(|found| !silent.contains(&found.path));
        for (rank, found) in found.enumerate() {
            *merit.entry((found.path, found.first_line, found.last_line)).or_default() +=
                weight / (rank + 5) as f64;
        }
    }
    let mut ranked: Vec<(f64, FoundPassage)> = merit
        .into_iter()
        .map(|((path, first_line, last_line), merit)| (merit, FoundPassage { path, first_line, last_line }))
        .collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut seen = BTreeSet::new();
    let (best, others): (Vec<FoundPassage>, Vec<FoundPassage>) =
        ranked.into_iter().map(|(_, found)| found).partition(|found| seen.insert(found.path.clone()));
    let mut chosen: Vec<FoundPassage> = Vec::new();
    for found in best.into_iter().chain(others) {
        if !extend(&mut chosen, &found) && chosen.len() + searches.len() < MAX_CALLS {
            chosen.push(found);
        }
    }
    chosen
}

/// Widens a passage that is read anyway, if the new one is near it.
fn extend(chosen: &mut [FoundPassage], found: &FoundPassage) -> bool {
    const NEAR: usize = MARGIN.0 + MARGIN.1;
    let near = chosen.iter_mut().find(|other| {
        other.path == found.path
            && found.first_line <= other.last_line + NEAR
            && other.first_line <= found.last_line + NEAR
    });
    if let Some(other) = near {
        other.first_line = other.first_line.min(found.first_line);
        other.last_line = other.last_line.max(found.last_line);
        return true;
    }
    false
}

/// What the searches say of the question's terms.
struct Terms {
    weights: Vec<f64>,
    /// Terms that stand in no document.
    absent: Vec<String>,
    /// The term that says most, if some documents don't have it.
    missing_in: Option<Missing>,
}

/// A term and the documents that don't have it: as many as are named, and how many they are.
#[derive(Clone)]
struct Missing {
    word: String,
    documents: Vec<String>,
    count: usize,
}

impl Terms {
    fn of(question: &Question, searches: &[&Exchange<'_>]) -> Self {
        let counts = searches.first().map(|search| conversation::word_counts(search)).unwrap_or_default();
        let all = counts.iter().map(|(_, _, all)| *all).max().unwrap_or_default();
        let mut documents = Vec::new();
        let mut missing: Vec<(f64, Missing)> = Vec::new();
        for (at, wanted) in question.wanted.iter().enumerate() {
            let own = counts.iter().find(|(word, _, _)| *word == wanted.word).map_or(0, |(_, some, _)| *some);
            let without = searches
                .get(GENERAL_SEARCHES + at)
                .filter(|search| !search.result.is_error)
                .map(|search| conversation::silent_documents(search));
            let having = without.as_ref().map_or(own, |(_, without)| all.saturating_sub(*without));
            documents.push((having, all));
            if let Some((named, count)) = without
                && count > 0
                && having > 0
            {
                let weight = ranking::weights(&[(having, all)])[0];
                missing.push((weight, Missing { word: wanted.word.clone(), documents: named, count }));
            }
        }
        let heaviest = missing.into_iter().reduce(|best, next| if next.0 > best.0 { next } else { best });
        let absent =
            question.wanted.iter().zip(&documents).filter(|(_, (having, all))| *having == 0 && *all > 0);
        Self {
            weights: ranking::weights(&documents),
            absent: absent.map(|(wanted, _)| wanted.word.clone()).collect(),
            missing_in: heaviest.map(|(_, missing)| missing),
        }
    }
}

fn find(
    task: &WorkTask,
    question: &Question,
    searches: &[&Exchange<'_>],
    readings: &[&Exchange<'_>],
) -> Findings {
    if searches.is_empty() && readings.is_empty() {
        return if task.documents.count == 0 { nothing_to_read(task) } else { nothing_to_look_for(task) };
    }
    let terms = Terms::of(question, searches);
    let mut candidates: Vec<Candidate> = Vec::new();
    for passage in readings.iter().filter_map(|reading| conversation::reading(reading)) {
        candidates.extend(ranking::candidates(question, &terms.weights, &passage));
    }
    let choice = ranking::choose(candidates, MAX_QUOTATIONS);
    let notes = notes(task, question, &terms, &choice);
    if choice.quoted.is_empty() {
        return Findings {
            summary: "The documents say nothing on the question.".into(),
            output: format!(
                "The documents say nothing on the question: {}\n\n{}\n",
                citations::plain(&task.objective),
                citations::plain(&notes)
            ),
            notes: Some(notes),
            quotations: Vec::new(),
        };
    }
    let (quotations, output) = write(&choice);
    let mut paths: Vec<&str> = Vec::new();
    for quotation in &quotations {
        if !paths.contains(&quotation.document.as_str()) {
            paths.push(&quotation.document);
        }
    }
    let summary = summary(&choice, &paths);
    Findings { summary, output, notes: (!notes.is_empty()).then_some(notes), quotations }
}

/// The answer when the run came without documents that can be read.
fn nothing_to_read(task: &WorkTask) -> Findings {
    let mut output = "There was nothing to read an answer from: the run was given no documents".to_owned();
    if task.documents.passed_over.is_empty() {
        output.push_str(".\n");
    } else {
        output.push_str(" that can be read. Passed over were:\n\n");
        output.extend(
            task.documents.passed_over.iter().map(|passed| format!("- {}\n", citations::plain(passed))),
        );
    }
    let notes = "Without a language model the answer can only come from documents. Hand in a folder of them with the \
                 run (`--docs FOLDER`; text, Markdown, reStructuredText and HTML are read), or name a language model \
                 (`--model`).";
    Findings {
        summary: "No documents were given, so there is nothing to answer from.".into(),
        output: format!("{output}\n{notes}\n"),
        notes: Some(notes.into()),
        quotations: Vec::new(),
    }
}

/// The answer when the question has no word that a search could use.
fn nothing_to_look_for(task: &WorkTask) -> Findings {
    let notes = "The question has no words to search the documents for. Ask in words that would stand in an answer, \
                 or name a language model (`--model`).";
    Findings {
        summary: "The question has no words to search for.".into(),
        output: format!("Nothing could be looked for: {}\n\n{notes}\n", citations::plain(&task.objective)),
        notes: Some(notes.into()),
        quotations: Vec::new(),
    }
}

/// The quotations, and the text in which each stands under its document with its number.
fn write(choice: &Choice) -> (Vec<Passage>, String) {
    let mut quotations: Vec<Passage> = Vec::new();
    let mut output = String::new();
    if !choice.to_the_point {
        output.push_str("No passage answers the question as a whole. The nearest are these.\n\n");
    }
    for candidate in joined(&choice.quoted) {
        if quotations.iter().all(|known| known.document != candidate.path) {
            output.push_str(&format!(
                "**{}** ({})\n\n",
                citations::plain(&candidate.path),
                citations::plain(&candidate.title)
            ));
        }
        for sentence in candidate.introduction.iter().chain([&candidate.sentence]) {
            let (first_line, last_line) = (sentence.first_line as u32, sentence.last_line as u32);
            let quotation = Passage {
                document: candidate.path.clone(),
                first_line,
                last_line,
                text: Some(sentence.text.clone()),
            };
            if !quotations.contains(&quotation) {
                quotations.push(quotation);
                let number = quotations.len().to_string();
                let shown =
                    Quotation { source: number.clone(), text: sentence.text.clone(), first_line, last_line };
                output.push_str(&citations::quote(&shown, &number));
                output.push('\n');
            }
        }
    }
    (quotations, output)
}

/// Sentences that follow each other in a document become one quotation.
fn joined(candidates: &[Candidate]) -> Vec<Candidate> {
    let mut joined: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        let (passage, at) = candidate.place;
        match joined.last_mut() {
            Some(last) if last.path == candidate.path && last.place == (passage, at.wrapping_sub(1)) => {
                last.sentence.text = format!("{} {}", last.sentence.text, candidate.sentence.text);
                last.sentence.last_line = candidate.sentence.last_line;
                last.place = candidate.place;
            }
            Some(_) | None => joined.push(candidate.clone()),
        }
    }
    joined
}

fn summary(choice: &Choice, paths: &[&str]) -> String {
    let count = choice.quoted.len();
    let passages = if count == 1 { "1 sentence".to_owned() } else { format!("{count} sentences") };
    let verb = match (choice.to_the_point, count) {
        (true, 1) => "speaks to it",
        (true, _) => "speak to it",
        (false, 1) => "comes nearest to it",
        (false, _) => "come nearest to it",
    };
    format!("{passages} of {} {verb}: {}.", counted(paths.len()), named(paths, paths.len()))
}

fn counted(documents: usize) -> String {
    if documents == 1 { "1 document".into() } else { format!("{documents} documents") }
}

/// What the reader should know beside the quotations: which terms stand nowhere, which are not covered, and which
/// documents are silent.
fn notes(task: &WorkTask, question: &Question, terms: &Terms, choice: &Choice) -> String {
    let mut notes: Vec<String> = Vec::new();
    if !terms.absent.is_empty() {
        notes.push(format!("In no document: {}.", quoted(&terms.absent)));
    }
    let covered: BTreeSet<usize> =
        choice.quoted.iter().flat_map(|candidate| candidate.covers.iter().copied()).collect();
    let elsewhere: Vec<String> = question
        .wanted
        .iter()
        .enumerate()
        .filter(|(at, wanted)| !covered.contains(at) && !terms.absent.contains(&wanted.word))
        .map(|(_, wanted)| wanted.word.clone())
        .collect();
    if !elsewhere.is_empty() {
        notes.push(format!("In the documents, but in no passage that answers: {}.", quoted(&elsewhere)));
    }
    let silent: &[String] = match &terms.missing_in {
        Some(Missing { word, documents, count }) => {
            notes.push(format!("No word of “{word}” in: {}.", named(documents, *count)));
            documents
        }
        None => &[],
    };
    let rest: Vec<&String> = task
        .documents
        .paths
        .iter()
        .filter(|path| {
            !silent.contains(path) && choice.quoted.iter().all(|candidate| candidate.path != **path)
        })
        .collect();
    if choice.to_the_point && !rest.is_empty() && task.documents.count <= MAX_NAMED {
        notes.push(format!("Nothing to the point was found in: {}.", named(&rest, rest.len())));
    }
    if !task.documents.passed_over.is_empty() {
        let passed = &task.documents.passed_over;
        notes.push(format!("Not read: {}.", named(passed, passed.len())));
    }
    notes.join(" ")
}

fn named(names: &[impl AsRef<str>], count: usize) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let more = count.saturating_sub(shown.len());
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("“{word}”")).collect::<Vec<_>>().join(", ")
}
