//! The researcher role: searches for the question, reads around the best passages, quotes them. It owns the
//! queries and the wording of the findings; `ranking` selects the passages.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::Quotation;
use millrace_protocol::safe_text::markdown_line;
use millrace_verification::Phrases;
use serde_json::json;

use super::conversation::{self, NumberedLines, PassageHit, ToolExchange, has_tool, list_tool_exchanges};
use super::question::Question;
use super::ranking::{self, CandidatePassage, ReadSentences};
use crate::answers::{Findings, Passage};
use crate::citations;
use crate::corpus::Language;
use crate::model::{Reply, Request};
use crate::roles::WorkTask;

const SEARCH: &str = "search_documents";
const READ: &str = "read_document";

/// The maximum number of searches and reads together: one less than a researcher's limit.
const MAX_CALLS: usize = 19;
/// The maximum length of a query, in characters; slightly below that of the tool.
const MAX_QUERY: usize = 900;
/// The number of lines read before and after a passage, which often belong to it.
const MARGIN: (usize, usize) = (40, 60);
/// The maximum number of quoted passages of one answer.
const MAX_QUOTATIONS: usize = 20;
/// The maximum number of documents that are read because a passage names them.
const MAX_REFERENCES: usize = 3;
/// The maximum number of documents listed in a note.
const MAX_NAMED: usize = 30;

pub(super) fn reply_to_research_task(request: &Request, task: &WorkTask) -> Reply {
    let exchanges = list_tool_exchanges(request);
    let search = exchanges.iter().find(|exchange| exchange.tool == SEARCH);
    let readings: Vec<&ToolExchange<'_>> =
        exchanges.iter().filter(|exchange| exchange.tool == READ).collect();
    if search.is_none() && has_tool(request, SEARCH) && task.objective.contains(char::is_alphanumeric) {
        return conversation::reply_with_calls(request, vec![build_search_call(&task.objective)]);
    }
    if !has_tool(request, READ) {
        return conversation::reply_with_answer(&answer_question(task, search, &[]));
    }
    let passages = search.map(|search| select_passages_to_read(search)).unwrap_or_default();
    if readings.is_empty() && !passages.is_empty() {
        return conversation::reply_with_calls(request, passages.iter().map(build_read_call).collect());
    }
    // References are followed once: not from a document that was read because of one.
    if readings.len() <= passages.len() {
        let referenced = select_references_to_read(task, search, &readings);
        if !referenced.is_empty() {
            return conversation::reply_with_calls(request, referenced);
        }
    }
    conversation::reply_with_answer(&answer_question(task, search, &readings))
}

/// The search for a question. Its quotation marks do not mean phrases.
fn build_search_call(question: &str) -> (&'static str, serde_json::Value) {
    let query: String = question.replace('"', " ").chars().take(MAX_QUERY).collect();
    (SEARCH, json!({"query": query, "limit": 20, "per_document": 3}))
}

fn build_read_call(passage: &PassageHit) -> (&'static str, serde_json::Value) {
    let first = passage.first_line.saturating_sub(MARGIN.0).max(1);
    let last = passage.last_line + MARGIN.1;
    (READ, json!({"path": passage.path, "first_line": first, "last_line": last}))
}

/// The passages to read: the best of each document first, then others.
fn select_passages_to_read(search: &ToolExchange<'_>) -> Vec<PassageHit> {
    let mut seen = BTreeSet::new();
    let (best, others): (Vec<PassageHit>, Vec<PassageHit>) =
        conversation::parse_search_hits(search).into_iter().partition(|hit| seen.insert(hit.path.clone()));
    let mut chosen: Vec<PassageHit> = Vec::new();
    for hit in best.into_iter().chain(others) {
        if !extend_nearby_passage(&mut chosen, &hit) && chosen.len() + 1 < MAX_CALLS {
            chosen.push(hit);
        }
    }
    chosen
}

/// The beginnings of documents that the best passages name and that were not read.
fn select_references_to_read(
    task: &WorkTask,
    search: Option<&ToolExchange<'_>>,
    readings: &[&ToolExchange<'_>],
) -> Vec<(&'static str, serde_json::Value)> {
    let chosen = ReadDocuments::new(task, search, readings).choose_passages(task);
    let is_read = |path: &str| readings.iter().any(|reading| reading.text_argument("path") == path);
    let mut paths: Vec<&str> = Vec::new();
    for path in chosen.iter().flat_map(|candidate| list_references(task, candidate)) {
        if !is_read(path) && !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths.truncate(MAX_CALLS.saturating_sub(1 + readings.len()).min(MAX_REFERENCES));
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

/// A question with the passages that were read for it.
struct ReadDocuments<'a> {
    question: Question<'a>,
    /// The terms that are in no document, by the search.
    absent: BTreeSet<usize>,
    hits: Vec<PassageHit>,
    sentences: Vec<ReadSentences<'a>>,
    weights: Vec<f64>,
}

impl<'a> ReadDocuments<'a> {
    fn new(task: &'a WorkTask, search: Option<&ToolExchange<'a>>, readings: &[&ToolExchange<'a>]) -> Self {
        let passages: Vec<(NumberedLines<'a>, Language)> = readings
            .iter()
            .filter_map(|reading| conversation::parse_read_lines(reading))
            .map(|lines| {
                let language = detect_language(&lines);
                (lines, language)
            })
            .collect();
        let mut languages: Vec<Language> = Vec::new();
        for (_, language) in &passages {
            if !languages.contains(language) {
                languages.push(*language);
            }
        }
        let question = Question::parse(&task.objective, &languages);
        let counts = search.map(conversation::parse_word_counts).unwrap_or_default();
        let is_absent =
            |word: &str| counts.iter().any(|(other, some, all)| other == word && *some == 0 && *all > 0);
        let absent = (0..question.terms.len()).filter(|&at| is_absent(question.terms[at].word)).collect();
        let hits = search.map(conversation::parse_search_hits).unwrap_or_default();
        let sentences: Vec<ReadSentences<'a>> = passages
            .into_iter()
            .map(|(lines, language)| ReadSentences::new(&question, lines, language))
            .collect();
        let weights = ranking::weigh_terms(&question, &sentences);
        Self { question, absent, hits, sentences, weights }
    }

    /// Selects passages, and the best one of each document that a selected passage names.
    fn choose_passages(&self, task: &WorkTask) -> Vec<CandidatePassage> {
        let score = |read: &ReadSentences<'_>, referring: &BTreeSet<usize>| {
            ranking::score_passages(read, &self.weights, &self.hits, referring)
        };
        let none = BTreeSet::new();
        let candidates = self.sentences.iter().flat_map(|read| score(read, &none));
        let mut chosen = ranking::select_passages(candidates.collect(), MAX_QUOTATIONS);
        let mut referring: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for candidate in &chosen {
            for path in list_references(task, candidate) {
                referring.entry(path.to_owned()).or_default().extend(&candidate.stated);
            }
        }
        for (path, about) in referring {
            let is_quoted = chosen.iter().any(|candidate| candidate.path == path);
            if is_quoted || chosen.len() >= MAX_QUOTATIONS {
                continue;
            }
            let of_document = self.sentences.iter().filter(|read| read.path() == path);
            let candidates = of_document.flat_map(|read| score(read, &about));
            // It must say more about the question than the passage that refers to it.
            let candidates = candidates.filter(|candidate| !candidate.stated.is_subset(&about));
            chosen.extend(candidates.max_by(|a, b| a.score.total_cmp(&b.score)));
        }
        chosen
    }

    /// Notes about terms that are in no document, terms that are in no quotation, and documents that were not read.
    fn write_notes(&self, task: &WorkTask, chosen: &[CandidatePassage]) -> String {
        let mut notes: Vec<String> = Vec::new();
        if !self.absent.is_empty() {
            notes.push(format!(
                "In no document: {}.",
                quote_words(&self.question.quote_terms(self.absent.clone()))
            ));
        }
        let quoted: BTreeSet<usize> =
            chosen.iter().flat_map(|candidate| &candidate.stated).copied().collect();
        // A word that most sentences have says little about any.
        let mean = self.weights.iter().sum::<f64>() / self.weights.len().max(1) as f64;
        let elsewhere = (0..self.weights.len())
            .filter(|at| !quoted.contains(at) && !self.absent.contains(at) && self.weights[*at] > mean / 2.0);
        let elsewhere = self.question.quote_terms(elsewhere);
        if !elsewhere.is_empty() {
            notes.push(format!("In the documents, but in no quotation: {}.", quote_words(&elsewhere)));
        }
        if !task.documents.passed_over.is_empty() {
            let passed = &task.documents.passed_over;
            notes.push(format!("Not read: {}.", join_names(passed)));
        }
        notes.join(" ")
    }
}

fn detect_language(lines: &NumberedLines<'_>) -> Language {
    let text: Vec<&str> = lines.lines.iter().map(|(_, line)| *line).collect();
    Language::detect(&text.join("\n"))
}

fn answer_question(
    task: &WorkTask,
    search: Option<&ToolExchange<'_>>,
    readings: &[&ToolExchange<'_>],
) -> Findings {
    if task.documents.count == 0 && readings.is_empty() {
        return no_documents_findings(task);
    }
    let read = ReadDocuments::new(task, search, readings);
    let chosen = read.choose_passages(task);
    let notes = read.write_notes(task, &chosen);
    if chosen.is_empty() {
        return no_passage_findings(&task.objective, &notes);
    }
    let (quotations, output) = format_quotations(&chosen);
    let mut paths: Vec<&str> = Vec::new();
    for quotation in &quotations {
        if !paths.contains(&quotation.document.as_str()) {
            paths.push(&quotation.document);
        }
    }
    let summary = write_summary(&chosen, &paths);
    let notes = (!notes.is_empty()).then_some(notes);
    Findings { summary, output, notes, quotations, ..Findings::default() }
}

/// The documents that a passage names by their path or file name.
fn list_references<'a>(task: &'a WorkTask, candidate: &CandidatePassage) -> Vec<&'a str> {
    let words: BTreeSet<&str> = candidate
        .text
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

/// The answer if no passage was found. Another wording may find one: a search by words can't know that the documents have no answer.
fn no_passage_findings(question: &str, notes: &str) -> Findings {
    let Phrases { no_passage, no_passage_advice, .. } = Phrases::choose(question, "");
    let notes =
        [notes, no_passage_advice].into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join(" ");
    Findings {
        summary: no_passage.clone(),
        output: format!("{no_passage}\n"),
        notes: Some(notes),
        answered: Some(false),
        ..Findings::default()
    }
}

/// The quotations, and the text that shows each below its document with its number.
fn format_quotations(chosen: &[CandidatePassage]) -> (Vec<Passage>, String) {
    let mut quotations: Vec<Passage> = Vec::new();
    let mut output = String::new();
    for candidate in chosen {
        if quotations.iter().all(|quotation| quotation.document != candidate.path) {
            output.push_str(&format!(
                "**{}** ({})\n\n",
                markdown_line(&candidate.path),
                markdown_line(&candidate.title)
            ));
        }
        for sentence in candidate.context.iter().chain([&candidate.text]) {
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

fn write_summary(chosen: &[CandidatePassage], paths: &[&str]) -> String {
    let passages = match chosen.len() {
        1 => "1 passage".to_owned(),
        count => format!("{count} passages"),
    };
    // The summary becomes a line of the report.
    let names: Vec<String> = paths.iter().map(|path| markdown_line(path)).collect();
    format!(
        "{passages} of {} with words of the question: {}.",
        format_document_count(paths.len()),
        join_names(&names)
    )
}

fn format_document_count(documents: usize) -> String {
    if documents == 1 { "1 document".into() } else { format!("{documents} documents") }
}

fn join_names(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(shown.len());
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn quote_words(words: &[&str]) -> String {
    words.iter().map(|word| format!("“{word}”")).collect::<Vec<_>>().join(", ")
}
