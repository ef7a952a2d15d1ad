//! The researcher role: searches in several wordings, reads around the best passages, quotes the answers. It owns the
//! queries and the wording of the findings; `ranking` selects the sentences.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::Quotation;
use millrace_protocol::safe_text::markdown_line;
use serde_json::json;

use super::conversation::{self, PassageHit, ToolExchange, has_tool, list_tool_exchanges};
use super::question::Question;
use super::ranking::{self, CandidateSentence, SelectedSentences};
use crate::answers::{Findings, Passage};
use crate::citations;
use crate::model::{Reply, Request};
use crate::roles::WorkTask;

const SEARCH: &str = "search_documents";
const READ: &str = "read_document";

/// The number of searches for the whole question; those for single terms follow, in the order of the terms.
const GENERAL_SEARCHES: usize = 2;
/// The maximum number of searches for single terms.
const SINGLE_SEARCHES: usize = 4;
/// The maximum number of searches and reads together: one less than a researcher's limit.
const MAX_CALLS: usize = 19;
/// The maximum length of a query, in characters; slightly below that of the tool.
const MAX_QUERY: usize = 900;
/// The number of lines read before and after a passage, which often belong to it.
const MARGIN: (usize, usize) = (40, 60);
/// The maximum number of quotations of one answer.
const MAX_QUOTATIONS: usize = 20;
/// The maximum number of documents that are read because a passage names them.
const MAX_REFERENCES: usize = 3;
/// The maximum number of documents listed in a note.
const MAX_NAMED: usize = 30;

pub(super) fn reply_to_research_task(request: &Request, task: &WorkTask) -> Reply {
    let question = Question::parse(&task.objective);
    let exchanges = list_tool_exchanges(request);
    let searches: Vec<&ToolExchange<'_>> =
        exchanges.iter().filter(|exchange| exchange.tool == SEARCH).collect();
    let readings: Vec<&ToolExchange<'_>> =
        exchanges.iter().filter(|exchange| exchange.tool == READ).collect();
    if searches.is_empty() && has_tool(request, SEARCH) && !question.terms.is_empty() {
        return conversation::reply_with_calls(request, build_search_calls(&question));
    }
    if readings.is_empty() && has_tool(request, READ) {
        let passages = select_passages_to_read(&question, &searches);
        if !passages.is_empty() {
            return conversation::reply_with_calls(request, passages.iter().map(build_read_call).collect());
        }
    }
    if has_tool(request, READ) {
        let referenced = select_references_to_read(task, &question, &searches, &readings);
        if !referenced.is_empty() {
            return conversation::reply_with_calls(request, referenced);
        }
    }
    conversation::reply_with_answer(&answer_question(task, &question, &searches, &readings))
}

/// Searches for the question as written, then with synonyms, then term by term.
fn build_search_calls(question: &Question) -> Vec<(&'static str, serde_json::Value)> {
    let every: Vec<&str> = question.terms.iter().flat_map(|term| &term.words).map(String::as_str).collect();
    let mut calls = vec![
        (SEARCH, json!({"query": join_query_words(&question.list_words()), "limit": 20, "per_document": 2})),
        (SEARCH, json!({"query": join_query_words(&every), "limit": 20, "per_document": 2})),
    ];
    calls.extend(
        question
            .terms
            .iter()
            .take(SINGLE_SEARCHES)
            .map(|term| (SEARCH, json!({"query": term.words.join(" "), "limit": 20, "per_document": 1}))),
    );
    calls
}

/// Joins words to a query, as many as fit.
fn join_query_words(words: &[&str]) -> String {
    let mut query = String::new();
    for word in words {
        if query.chars().count() + word.chars().count() < MAX_QUERY {
            query.push_str(word);
            query.push(' ');
        }
    }
    query.trim_end().to_owned()
}

fn build_read_call(passage: &PassageHit) -> (&'static str, serde_json::Value) {
    let first = passage.first_line.saturating_sub(MARGIN.0).max(1);
    let last = passage.last_line + MARGIN.1;
    (READ, json!({"path": passage.path, "first_line": first, "last_line": last}))
}

/// The passages that rank best over all searches: the best of each document first, then others. Documents without the
/// heaviest term are left out.
fn select_passages_to_read(question: &Question, searches: &[&ToolExchange<'_>]) -> Vec<PassageHit> {
    let silent = TermStatistics::new(question, searches)
        .missing_in
        .map(|missing| missing.documents)
        .unwrap_or_default();
    let mut merit: BTreeMap<(String, usize, usize), f64> = BTreeMap::new();
    for (number, search) in searches.iter().enumerate() {
        // Searches for single terms are weak evidence.
        let weight = if number < GENERAL_SEARCHES { 1.0 } else { 0.3 };
        let hits =
            conversation::parse_search_hits(search).into_iter().filter(|hit| !silent.contains(&hit.path));
        for (rank, hit) in hits.enumerate() {
            *merit.entry((hit.path, hit.first_line, hit.last_line)).or_default() +=
                weight / (rank + 5) as f64;
        }
    }
    let mut ranked: Vec<(f64, PassageHit)> = merit
        .into_iter()
        .map(|((path, first_line, last_line), merit)| (merit, PassageHit { path, first_line, last_line }))
        .collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut seen = BTreeSet::new();
    let (best, others): (Vec<PassageHit>, Vec<PassageHit>) =
        ranked.into_iter().map(|(_, hit)| hit).partition(|hit| seen.insert(hit.path.clone()));
    let mut chosen: Vec<PassageHit> = Vec::new();
    for hit in best.into_iter().chain(others) {
        if !extend_nearby_passage(&mut chosen, &hit) && chosen.len() + searches.len() < MAX_CALLS {
            chosen.push(hit);
        }
    }
    chosen
}

/// The beginnings of documents that the best sentences name and that were not read. References are followed once: not from a
/// document that was read because of one.
fn select_references_to_read(
    task: &WorkTask,
    question: &Question,
    searches: &[&ToolExchange<'_>],
    readings: &[&ToolExchange<'_>],
) -> Vec<(&'static str, serde_json::Value)> {
    if readings.len() > select_passages_to_read(question, searches).len() {
        return Vec::new();
    }
    let terms = TermStatistics::new(question, searches);
    let choice = choose_sentences(task, question, &terms, readings);
    let is_read = |path: &str| readings.iter().any(|reading| reading.text_argument("path") == path);
    let mut paths: Vec<&str> = Vec::new();
    for path in choice.quoted.iter().flat_map(|candidate| list_references(task, candidate)) {
        if !is_read(path) && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let left = MAX_CALLS.saturating_sub(searches.len() + readings.len()).min(MAX_REFERENCES);
    paths.truncate(left);
    let read = |path: &str| (READ, json!({"path": path, "first_line": 1, "last_line": MARGIN.0 + MARGIN.1}));
    paths.into_iter().map(read).collect()
}

/// Extends a chosen passage if the new one is near it.
fn extend_nearby_passage(chosen: &mut [PassageHit], hit: &PassageHit) -> bool {
    const NEAR: usize = MARGIN.0 + MARGIN.1;
    let near = chosen.iter_mut().find(|other| {
        other.path == hit.path
            && hit.first_line <= other.last_line + NEAR
            && other.first_line <= hit.last_line + NEAR
    });
    if let Some(other) = near {
        other.first_line = other.first_line.min(hit.first_line);
        other.last_line = other.last_line.max(hit.last_line);
        return true;
    }
    false
}

/// Statistics of the question's terms from the searches.
struct TermStatistics {
    weights: Vec<f64>,
    /// Terms that are in no document.
    absent: Vec<String>,
    /// The heaviest term that some documents do not contain.
    missing_in: Option<UnmatchedTerm>,
}

/// A term and the documents that do not contain it: those listed, and their number.
#[derive(Clone)]
struct UnmatchedTerm {
    word: String,
    documents: Vec<String>,
    count: usize,
}

impl TermStatistics {
    fn new(question: &Question, searches: &[&ToolExchange<'_>]) -> Self {
        let counts =
            searches.first().map(|search| conversation::parse_word_counts(search)).unwrap_or_default();
        let all = counts.iter().map(|(_, _, all)| *all).max().unwrap_or_default();
        let mut documents = Vec::new();
        let mut missing: Vec<(f64, UnmatchedTerm)> = Vec::new();
        for (at, term) in question.terms.iter().enumerate() {
            let own = counts.iter().find(|(word, _, _)| *word == term.word).map_or(0, |(_, some, _)| *some);
            let without = searches
                .get(GENERAL_SEARCHES + at)
                .filter(|search| !search.result.is_error)
                .map(|search| conversation::parse_documents_without_matches(search));
            let having = without.as_ref().map_or(own, |(_, without)| all.saturating_sub(*without));
            documents.push((having, all));
            if let Some((named, count)) = without
                && count > 0
                && having > 0
            {
                let weight = ranking::compute_term_weights(&[(having, all)])[0];
                missing.push((weight, UnmatchedTerm { word: term.word.clone(), documents: named, count }));
            }
        }
        let heaviest = missing.into_iter().reduce(|best, next| if next.0 > best.0 { next } else { best });
        let absent =
            question.terms.iter().zip(&documents).filter(|(_, (having, all))| *having == 0 && *all > 0);
        Self {
            weights: ranking::compute_term_weights(&documents),
            absent: absent.map(|(term, _)| term.word.clone()).collect(),
            missing_in: heaviest.map(|(_, missing)| missing),
        }
    }
}

fn answer_question(
    task: &WorkTask,
    question: &Question,
    searches: &[&ToolExchange<'_>],
    readings: &[&ToolExchange<'_>],
) -> Findings {
    if searches.is_empty() && readings.is_empty() {
        return if task.documents.count == 0 {
            no_documents_findings(task)
        } else {
            no_search_terms_findings(task)
        };
    }
    let terms = TermStatistics::new(question, searches);
    let choice = choose_sentences(task, question, &terms, readings);
    let notes = write_notes(task, question, &terms, &choice);
    if choice.quoted.is_empty() {
        return Findings {
            summary: "The documents say nothing on the question.".into(),
            output: format!(
                "The documents say nothing on the question: {}\n\n{}\n",
                markdown_line(&task.objective),
                markdown_line(&notes)
            ),
            notes: Some(notes),
            answered: Some(false),
            ..Findings::default()
        };
    }
    let (quotations, output) = format_quotations(&choice);
    let mut paths: Vec<&str> = Vec::new();
    for quotation in &quotations {
        if !paths.contains(&quotation.document.as_str()) {
            paths.push(&quotation.document);
        }
    }
    let summary = write_summary(&choice, &paths);
    let answered = (!choice.has_answer()).then_some(false);
    let notes = (!notes.is_empty()).then_some(notes);
    Findings { summary, output, notes, quotations, answered, ..Findings::default() }
}

/// Selects sentences of the passages that were read, and the best one of each document that a selected sentence names.
fn choose_sentences(
    task: &WorkTask,
    question: &Question,
    terms: &TermStatistics,
    readings: &[&ToolExchange<'_>],
) -> SelectedSentences {
    let passages: Vec<_> =
        readings.iter().filter_map(|reading| conversation::parse_read_lines(reading)).collect();
    let none = BTreeSet::new();
    let candidates = passages
        .iter()
        .flat_map(|passage| ranking::score_sentences(question, &terms.weights, passage, &none));
    let mut choice = ranking::select_sentences(candidates.collect(), MAX_QUOTATIONS);
    let mut referring: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for candidate in &choice.quoted {
        for path in list_references(task, candidate) {
            referring.entry(path.to_owned()).or_default().extend(&candidate.covers);
        }
    }
    for (path, about) in referring {
        let is_quoted = choice.quoted.iter().any(|candidate| candidate.path == path);
        if is_quoted || choice.quoted.len() >= MAX_QUOTATIONS {
            continue;
        }
        let of_document = passages.iter().filter(|passage| passage.path == path);
        let candidates = of_document
            .flat_map(|passage| ranking::score_sentences(question, &terms.weights, passage, &about));
        // It must say more about the question than the sentence that refers to it.
        let candidates = candidates.filter(|candidate| !candidate.stated.is_subset(&about));
        choice.quoted.extend(candidates.max_by(|a, b| a.score.total_cmp(&b.score)));
    }
    choice
}

/// The documents that a sentence names by their path or file name.
fn list_references<'a>(task: &'a WorkTask, candidate: &CandidateSentence) -> Vec<&'a str> {
    let words: BTreeSet<&str> = candidate
        .sentence
        .text
        .split(|c: char| c.is_whitespace() || "`'\"()[]<>,;*".contains(c))
        .map(|word| word.trim_end_matches(['.', ':', '?', '!']))
        .collect();
    let names = |path: &str| path.rsplit('/').next().is_some_and(|name| words.contains(name));
    let paths = task.documents.paths.iter().map(String::as_str);
    paths.filter(|path| *path != candidate.path && (words.contains(path) || names(path))).collect()
}

/// The answer for a run without readable documents.
fn no_documents_findings(task: &WorkTask) -> Findings {
    let mut output = "There was nothing to read an answer from: the run was given no documents".to_owned();
    if task.documents.passed_over.is_empty() {
        output.push_str(".\n");
    } else {
        output.push_str(" that can be read. These were skipped:\n\n");
        output
            .extend(task.documents.passed_over.iter().map(|passed| format!("- {}\n", markdown_line(passed))));
    }
    let notes = "Without a language model the answer can only come from documents. Provide a folder of them with the \
                 run (--docs FOLDER; text, Markdown, reStructuredText and HTML are supported), or a language model \
                 (--model).";
    Findings {
        summary: "No documents were given, so there is nothing to answer from.".into(),
        output: format!("{output}\n{notes}\n"),
        notes: Some(notes.into()),
        answered: Some(false),
        ..Findings::default()
    }
}

/// The answer for a question without searchable words.
fn no_search_terms_findings(task: &WorkTask) -> Findings {
    let notes = "The question has no words to search the documents for. Use words that would occur in an answer, \
                 or name a language model (--model).";
    Findings {
        summary: "The question has no words to search for.".into(),
        output: format!("Nothing could be searched for: {}\n\n{notes}\n", markdown_line(&task.objective)),
        notes: Some(notes.into()),
        answered: Some(false),
        ..Findings::default()
    }
}

/// The quotations, and the text that shows each below its document with its number.
fn format_quotations(choice: &SelectedSentences) -> (Vec<Passage>, String) {
    let mut quotations: Vec<Passage> = Vec::new();
    let mut output = String::new();
    if !choice.is_relevant {
        output.push_str("No passage answers the question as a whole. The nearest are these.\n\n");
    }
    for candidate in join_adjacent_sentences(&choice.quoted) {
        if quotations.iter().all(|quotation| quotation.document != candidate.path) {
            output.push_str(&format!(
                "**{}** ({})\n\n",
                markdown_line(&candidate.path),
                markdown_line(&candidate.title)
            ));
        }
        for sentence in candidate.context.iter().chain([&candidate.sentence]) {
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
                let shown = Quotation {
                    source: number.clone(),
                    text: sentence.text.clone(),
                    first_line,
                    last_line,
                    place: None,
                };
                output.push_str(&citations::format_block_quote(&shown, &number));
                output.push('\n');
            }
        }
    }
    (quotations, output)
}

/// Joins adjacent sentences of a document to one quotation.
fn join_adjacent_sentences(candidates: &[CandidateSentence]) -> Vec<CandidateSentence> {
    let mut joined: Vec<CandidateSentence> = Vec::new();
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

fn write_summary(choice: &SelectedSentences, paths: &[&str]) -> String {
    let count = choice.quoted.len();
    let passages = if count == 1 { "1 sentence".to_owned() } else { format!("{count} sentences") };
    let verb = match (choice.is_relevant, count) {
        (true, 1) => "is relevant",
        (true, _) => "are relevant",
        (false, 1) => "is the nearest match",
        (false, _) => "are the nearest matches",
    };
    // The summary becomes a line of the report.
    let names: Vec<String> = paths.iter().map(|path| markdown_line(path)).collect();
    format!(
        "{passages} of {} {verb}: {}.",
        format_document_count(paths.len()),
        join_names(&names, names.len())
    )
}

fn format_document_count(documents: usize) -> String {
    if documents == 1 { "1 document".into() } else { format!("{documents} documents") }
}

/// Notes about terms that are in no document, terms that are not covered, and documents without matches.
fn write_notes(
    task: &WorkTask,
    question: &Question,
    terms: &TermStatistics,
    choice: &SelectedSentences,
) -> String {
    let mut notes: Vec<String> = Vec::new();
    if !terms.absent.is_empty() {
        notes.push(format!("In no document: {}.", quote_words(&terms.absent)));
    }
    let covered: BTreeSet<usize> =
        choice.quoted.iter().flat_map(|candidate| candidate.stated.iter().copied()).collect();
    let elsewhere: Vec<String> = question
        .terms
        .iter()
        .enumerate()
        .filter(|(at, term)| !covered.contains(at) && !terms.absent.contains(&term.word))
        .map(|(_, term)| term.word.clone())
        .collect();
    if !elsewhere.is_empty() {
        notes.push(format!("In the documents, but in no passage that answers: {}.", quote_words(&elsewhere)));
    }
    let silent: &[String] = match &terms.missing_in {
        Some(UnmatchedTerm { word, documents, count }) => {
            notes.push(format!("No word of “{word}” in: {}.", join_names(documents, *count)));
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
    if choice.is_relevant && !rest.is_empty() && task.documents.count <= MAX_NAMED {
        notes.push(format!("Nothing relevant was found in: {}.", join_names(&rest, rest.len())));
    }
    if !task.documents.passed_over.is_empty() {
        let passed = &task.documents.passed_over;
        notes.push(format!("Not read: {}.", join_names(passed, passed.len())));
    }
    notes.join(" ")
}

fn join_names(names: &[impl AsRef<str>], count: usize) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let more = count.saturating_sub(shown.len());
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn quote_words(words: &[String]) -> String {
    words.iter().map(|word| format!("“{word}”")).collect::<Vec<_>>().join(", ")
}
