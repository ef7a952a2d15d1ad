//! Answers from the run's documents: text with citations, and the cited passages. A strong model gives each passage by its
//! document and lines, and may copy the words; a small one writes its answer with the labels of lines, which
//! [`super::labels`] turns into the same. Each quotation is looked up in its document, so that a model can't invent one;
//! the result's sources are the quoted documents.
//!
//! # Invariants
//!
//! - I29: A model can quote nothing that is not in a document.
//!   (`crates/agent/src/answers/findings.rs::a_quotation_that_is_not_in_the_document_is_rejected`)

use std::collections::BTreeMap;

use millrace_protocol::result::{
    Quotation, Source, SourceKind, SourceLines, StatementVerdict, TaskResult, VerifiedStatement,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::content;
use crate::citations::{self, collapse_whitespace};

use crate::corpus::{Corpus, Document};

use crate::model::{AnswerSchema, ModelAbility};

use crate::spec::AnswerForm;
use crate::tool::{schema_of, unknown_document_error};

use crate::turn::{Answer, parse_json_answer};

/// The most tokens of an answer. It stops small models that repeat themselves endlessly.
pub(crate) const MAX_OUTPUT_TOKENS: u32 = 4_096;
/// The most lines of one quotation.
const MAX_LINES: usize = 60;
/// The share of common words above which an inexact copy is accepted as the lines that it names.
const MIN_SIMILARITY: f64 = 0.8;
/// The most documents that the schema lists by name.
const MAX_NAMED: usize = 100;
/// The most mistakes in one correction.
const MAX_MISTAKES: usize = 5;
/// The most characters of a text that a correction quotes.
const MAX_SHOWN: usize = 160;
/// The most tokens of a small model's answer.
pub(crate) const MAX_OUTPUT_TOKENS_SMALL: u32 = 1_200;

/// An answer from documents, as the model writes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Findings {
    /// The passages that support the answer; they are numbered from 1 in this order.
    #[schemars(length(max = 60))]
    pub quotations: Vec<Passage>,
    /// The labels of cited lines, such as `P2:8`, in the form for small models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub citations: Vec<String>,
    /// The answer in Markdown. Each statement is followed by the number of its quotation: [1], [2].
    #[schemars(length(min = 1, max = 400_000))]
    pub output: String,
    /// The answer in one or two sentences.
    #[schemars(length(min = 1, max = 4_000))]
    pub summary: String,
    /// Anything that was searched for and not found; null if there is nothing.
    #[schemars(length(max = 40_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// `false` if the documents do not answer the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<bool>,
    /// If they do not answer it: other words for the question, for a second search.
    #[schemars(length(max = 400))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_words: Option<String>,
    /// The verdicts on its statements.
    #[serde(skip)]
    pub statements: Vec<VerifiedStatement>,
}

/// A passage of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Passage {
    /// The document's path.
    pub document: String,
    /// The number of its first line, as shown by read_document.
    #[schemars(range(min = 1))]
    pub first_line: u32,
    /// The number of its last line.
    #[schemars(range(min = 1))]
    pub last_line: u32,
    /// The one or two relevant sentences, copied word for word; null to quote the complete lines.
    #[schemars(length(max = 20_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Answer for Findings {
    fn answer_schema(name: &str) -> Option<AnswerSchema> {
        let mut schema = schema_of::<Self>();
        schema["required"] = json!(["quotations", "output", "summary"]);
        Some(AnswerSchema { name: name.to_owned(), schema })
    }

    fn is_other_form(value: &Value, schema: &Value) -> bool {
        let has = |name: &str| value.get(name).is_some_and(Value::is_array);
        match schema["properties"].get("quotations").is_some() {
            true => has("citations") && !has("quotations"),
            false => has("quotations") || has("citations"),
        }
    }

    fn parse_answer(text: &str) -> Result<Self, String> {
        let findings: Self = parse_json_answer(text)?;
        if content::is_blank(&findings.output) {
            return Err("'output' is empty.".into());
        }
        Ok(findings)
    }
}

/// Returns the schema of an answer from these documents. If there are few, that for strong models lists their paths. That
/// for small models has the answer, whose statements carry the labels of lines, and with `has_tools`, which read lines outside
/// of the passages, a list of labels.
pub(crate) fn findings_schema(
    corpus: Option<&Corpus>,
    ability: ModelAbility,
    has_tools: bool,
) -> Option<AnswerSchema> {
    if ability.is_small() {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "output": {"type": "string", "minLength": 1, "maxLength": 1_500},
                "notes": {"type": "string", "maxLength": 400},
                "answered": {"type": "boolean"},
                "other_words": {"type": "string", "maxLength": 200},
            },
            "required": ["output"],
            "additionalProperties": false,
        });
        if has_tools {
            let label = json!({"type": "string", "maxLength": 160});
            schema["properties"]["citations"] = json!({"type": "array", "items": label, "maxItems": 8});
        }
        return Some(AnswerSchema { name: AnswerForm::Findings.name().to_owned(), schema });
    }
    let mut schema = Findings::answer_schema(AnswerForm::Findings.name())?;
    if let Some(documents) = corpus.map(Corpus::documents).filter(|all| (1..=MAX_NAMED).contains(&all.len()))
    {
        let paths: Vec<&str> = documents.iter().map(|document| document.path.as_str()).collect();
        let document = &mut schema.schema["properties"]["quotations"]["items"]["properties"]["document"];
        document["enum"] = Value::from(paths);
    }
    Some(schema)
}

/// Converts an answer into a result. The text of quotations is taken from the documents.
pub(crate) fn resolve_findings(findings: &Findings, corpus: Option<&Corpus>) -> Result<TaskResult, String> {
    let mut mistakes = Vec::new();
    let mut quoted: Vec<(&Document, Quotation)> = Vec::new();
    for (at, passage) in findings.quotations.iter().enumerate() {
        match look_up_passage(passage, corpus) {
            Ok(quotation) => quoted.push(quotation),
            Err(mistake) => mistakes.push(format!("Quotation {}: {mistake}", at + 1)),
        }
    }
    if mistakes.is_empty() {
        mistakes.extend(unknown_citations(findings, &quoted));
    }
    if !mistakes.is_empty() {
        mistakes.truncate(MAX_MISTAKES);
        return Err(mistakes.join(" "));
    }
    Ok(build_result(findings, quoted))
}

impl Findings {
    /// `true` if the sources do not answer the question.
    pub(crate) fn says_absence(&self) -> bool {
        self.answered == Some(false)
    }
}

/// `true` if an answer quotes nothing although there are sources, and does not say what is missing.
pub(super) fn lacks_quotations(findings: &Findings, corpus: Option<&Corpus>) -> bool {
    let has_notes = findings.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
    findings.quotations.is_empty() && corpus.is_some_and(Corpus::has_sources) && !has_notes
}

/// Keeps the verdicts, and cites the lines that were found for statements without marks.
pub(super) fn cite_found_lines(mut findings: Findings, statements: Vec<VerifiedStatement>) -> Findings {
    let place =
        |at: u32| findings.output.char_indices().nth(at as usize).map_or(findings.output.len(), |(at, _)| at);
    let uncited = statements.iter().filter(|one| {
        let is_said = matches!(one.verdict, StatementVerdict::Supported | StatementVerdict::Partly);
        is_said
            && !one.lines.is_empty()
            && !citations::has_citations(&findings.output[place(one.start)..place(one.end)])
    });
    let found: Vec<(usize, Vec<SourceLines>)> =
        uncited.map(|one| (place(one.end), one.lines.clone())).collect();
    let mut marks: Vec<(usize, String)> = Vec::new();
    for (end, lines) in found {
        let number = |lines: SourceLines| {
            let SourceLines { source: document, first_line, last_line } = lines;
            number_of(&mut findings.quotations, Passage { document, first_line, last_line, text: None })
        };
        marks.push((end, lines.into_iter().map(number).map(|number| format!("[{number}]")).collect()));
    }
    for (end, marks) in marks.into_iter().rev() {
        let sentence = findings.output[..end].trim_end_matches(['.', '!', '?', '。', '！', '？', '।']);
        let (words, blanks_end) = (sentence.trim_end().len(), sentence.len());
        findings.output.replace_range(words..blanks_end, &format!(" {marks}"));
    }
    Findings { statements, ..findings }
}

/// The number of a passage from 1; a new one is added.
fn number_of(passages: &mut Vec<Passage>, passage: Passage) -> usize {
    match passages.iter().position(|known| *known == passage) {
        Some(at) => at + 1,
        None => {
            passages.push(passage);
            passages.len()
        }
    }
}

/// Removes the quotations that are not in the documents, and their citations: the fallback after the last correction.
/// `None` if no quotation is left.
pub(crate) fn remove_unverified_quotations(findings: &Findings, corpus: Option<&Corpus>) -> Option<Findings> {
    let is_verified: Vec<bool> =
        findings.quotations.iter().map(|passage| look_up_passage(passage, corpus).is_ok()).collect();
    let verified = |upto: usize| is_verified[..upto].iter().filter(|is_verified| **is_verified).count();
    if verified(is_verified.len()) == 0 {
        return None;
    }
    let citation = |number: usize| -> Option<String> {
        let is_kept = (1..=is_verified.len()).contains(&number) && is_verified[number - 1];
        is_kept.then(|| format!("[{}]", verified(number)))
    };
    let quotations = findings.quotations.iter().zip(&is_verified).filter(|(_, is_verified)| **is_verified);
    Some(Findings {
        quotations: quotations.map(|(passage, _)| passage.clone()).collect(),
        citations: Vec::new(),
        output: replace_citations(&citations::split_combined_citations(&findings.output), citation),
        summary: replace_citations(&citations::split_combined_citations(&findings.summary), citation),
        notes: findings.notes.clone(),
        answered: findings.answered,
        ..Findings::default()
    })
}

/// Moves each quotation whose words are in another document, and only there, to that document.
pub(crate) fn relocate_quotations(mut findings: Findings, corpus: Option<&Corpus>) -> Findings {
    let Some(corpus) = corpus else { return findings };
    for passage in &mut findings.quotations {
        let copied = passage.text.as_deref().map(collapse_whitespace).filter(|text| !text.is_empty());
        let Some(copied) = copied.filter(|_| look_up_passage(passage, Some(corpus)).is_err()) else {
            continue;
        };
        let mut places = corpus.documents_and_pages().filter_map(|document| {
            let (first, last) = find_text_near_line(document, &copied, 1)?;
            Some((document.path.clone(), u32::try_from(first).ok()?, u32::try_from(last).ok()?))
        });
        if let (Some((document, first_line, last_line)), None) = (places.next(), places.next()) {
            *passage = Passage { document, first_line, last_line, text: passage.text.take() };
        }
    }
    findings
}

/// Replaces each citation `[1]`, `[2]` in a text by `citation` of its number; `None` removes it.
fn replace_citations(text: &str, citation: impl Fn(usize) -> Option<String>) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        replaced.push_str(before);
        let number = after.split_once(']').and_then(|(inside, rest)| Some((inside.parse().ok()?, rest)));
        match number {
            Some((number, after)) => {
                replaced.push_str(&citation(number).unwrap_or_default());
                rest = after;
            }
            None => {
                replaced.push('[');
                rest = after;
            }
        }
    }
    replaced + rest
}

/// Looks a passage up in its document.
fn look_up_passage<'c>(
    passage: &Passage,
    corpus: Option<&'c Corpus>,
) -> Result<(&'c Document, Quotation), String> {
    let corpus = corpus.ok_or("there are no documents to quote from; remove it.")?;
    let document = find_document(corpus, &passage.document)
        .ok_or_else(|| format!("{}.", unknown_document_error(corpus, &passage.document)))?;
    let count = document.line_count();
    let (first, last) = (passage.first_line as usize, passage.last_line as usize);
    let (first, last) = (first.min(last), first.max(last).min(count));
    if first == 0 || first > count {
        let path = &document.path;
        return Err(format!("{path} has lines 1 to {count}; there is no line {first}."));
    }
    let copied = passage.text.as_deref().map(collapse_whitespace).filter(|text| !text.is_empty());
    let (text, first, last) = match copied {
        Some(text) => verify_copied_text(document, text, first, last)?,
        None => quote_whole_lines(document, first, last)?,
    };
    let line = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let place = document.place_of_lines(first, last);
    let quotation =
        Quotation { source: String::new(), text, first_line: line(first), last_line: line(last), place };
    Ok((document, quotation))
}

/// Finds a document by its path, ignoring case and a leading `/`.
fn find_document<'c>(corpus: &'c Corpus, path: &str) -> Option<&'c Document> {
    let path = path.trim();
    let path = path.strip_prefix("/documents/").or_else(|| path.strip_prefix('/')).unwrap_or(path);
    corpus.find_document(path).or_else(|| {
        let mut same =
            corpus.documents_and_pages().filter(|document| document.path.eq_ignore_ascii_case(path));
        same.next().filter(|_| same.next().is_none())
    })
}

fn verify_copied_text(
    document: &Document,
    text: String,
    first: usize,
    last: usize,
) -> Result<(String, usize, usize), String> {
    if collapse_whitespace(document.line_range(first, last)).contains(&text) {
        return Ok((text, first, last));
    }
    if let Some((first, last)) = find_text_near_line(document, &text, first) {
        return Ok((text, first, last));
    }
    if content::share_of_common_words(&text, &collapse_whitespace(document.line_range(first, last)))
        >= MIN_SIMILARITY
    {
        // The model copied these lines inexactly; their original text is quoted.
        return quote_whole_lines(document, first, last);
    }
    let (path, copied) = (&document.path, shorten_text(&text));
    let nearest = content::nearest_line(document, &text).filter(|(_, share)| *share > 0.0);
    let hint = match nearest {
        Some((line, _)) => {
            let words = document.nth_line(line as usize).map(collapse_whitespace).unwrap_or_default();
            format!(
                "the nearest line is {line}: “{}”. Copy the words exactly, or cite another line",
                shorten_text(&words)
            )
        }
        None => "no line of it is like that. Cite another document, or leave the statement out".to_owned(),
    };
    Err(format!("the text “{copied}” is not in {path}; {hint}."))
}

fn quote_whole_lines(
    document: &Document,
    first: usize,
    last: usize,
) -> Result<(String, usize, usize), String> {
    if last - first >= MAX_LINES {
        let count = last - first + 1;
        return Err(format!(
            "{count} lines are too many; quote at most {MAX_LINES}: only the relevant ones."
        ));
    }
    match collapse_whitespace(document.line_range(first, last)) {
        text if text.is_empty() => Err(format!(
            "lines {first} to {last} of {} are empty; give the lines with the relevant text.",
            document.path
        )),
        text => Ok((text, first, last)),
    }
}

/// Finds a text in a document, ignoring line breaks; returns the lines of the occurrence nearest to the line `near`.
fn find_text_near_line(document: &Document, text: &str, near: usize) -> Option<(usize, usize)> {
    let mut folded = String::new();
    let mut starts: Vec<(usize, usize)> = Vec::new();
    for number in 1..=document.line_count() {
        for word in document.nth_line(number).unwrap_or_default().split_whitespace() {
            if !folded.is_empty() {
                folded.push(' ');
            }
            starts.push((folded.len(), number));
            folded.push_str(word);
        }
    }
    let line_at = |at: usize| starts[starts.partition_point(|(start, _)| *start <= at) - 1].1;
    let places = folded.match_indices(text).map(|(at, _)| (line_at(at), line_at(at + text.len() - 1)));
    places.min_by_key(|(first, _)| first.abs_diff(near))
}

/// Returns the correction for citations without a quotation.
fn unknown_citations(findings: &Findings, quoted: &[(&Document, Quotation)]) -> Option<String> {
    let quotations: Vec<Quotation> = quoted.iter().map(|(_, quotation)| quotation.clone()).collect();
    let texts = [&findings.output, &findings.summary].map(|text| citations::split_combined_citations(text));
    let marks = texts.iter().flat_map(|text| citations::find_citations(text, &quotations));
    let mut unknown: Vec<&str> = marks.filter(|mark| quotation_index(mark, quoted.len()).is_none()).collect();
    unknown.dedup();
    let listed: Vec<String> = unknown.iter().take(MAX_MISTAKES).map(|mark| format!("[{mark}]")).collect();
    (!unknown.is_empty()).then(|| {
        format!(
            "'output' or 'summary' cites {}, but there are {} quotations: cite them as [1] to [{}], each after the \
             statement it supports.",
            listed.join(", "),
            quoted.len(),
            quoted.len()
        )
    })
}

/// Returns the index of the quotation that a citation refers to.
fn quotation_index(mark: &str, count: usize) -> Option<usize> {
    let number: usize = mark.parse().ok()?;
    (1..=count).contains(&number).then(|| number - 1)
}

fn build_result(findings: &Findings, quoted: Vec<(&Document, Quotation)>) -> TaskResult {
    let mut sources: Vec<Source> = Vec::new();
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    let mut quotations = Vec::with_capacity(quoted.len());
    for (document, quotation) in quoted {
        let id = ids.entry(&document.path).or_insert_with(|| {
            sources.push(build_source(sources.len() + 1, document));
            format!("S{}", sources.len())
        });
        quotations.push(Quotation { source: id.clone(), ..quotation });
    }
    let name = |mark: &str| Some(quotations[quotation_index(mark, quotations.len())?].source.clone());
    let output = citations::split_combined_citations(&findings.output);
    let cited: Vec<usize> = citations::find_citations(&output, &quotations)
        .into_iter()
        .filter_map(|mark| quotation_index(mark, quotations.len()))
        .collect();
    let mut output =
        content::remove_repeated_citations(&citations::rename_citations(&output, &quotations, name));
    for (_, quotation) in quotations.iter().enumerate().filter(|(at, _)| !cited.contains(at)) {
        output.push_str(&format!(
            "\n\n{}",
            citations::format_block_quote(quotation, &quotation.source).trim_end()
        ));
    }
    let summary = match findings.summary.trim() {
        "" => summarize_output(&findings.output),
        summary => summary.to_owned(),
    };
    let summary =
        citations::rename_citations(&citations::split_combined_citations(&summary), &quotations, name);
    TaskResult {
        summary: content::remove_repeated_citations(&summary),
        output,
        notes: findings.notes.clone().filter(|notes| !notes.trim().is_empty()),
        sources,
        quotations: content::remove_duplicate_quotations(quotations),
        answered: findings.answered,
        ..TaskResult::default()
    }
}

/// The most characters of a summary that is taken from the output.
const MAX_SUMMARY: usize = 300;

/// Returns the first paragraph of an output that is not a heading, shortened: the summary of an answer that has none.
pub(crate) fn summarize_output(output: &str) -> String {
    let is_text = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let paragraph = output.lines().map(str::trim).find(is_text).unwrap_or_default();
    match paragraph.char_indices().nth(MAX_SUMMARY) {
        None => paragraph.to_owned(),
        Some((at, _)) => {
            let cut = &paragraph[..at];
            // Not within a mark.
            let end = cut.rfind([' ', ']']).map_or(at, |end| end + 1);
            format!("{}…", cut[..end].trim_end())
        }
    }
}

fn build_source(number: usize, document: &Document) -> Source {
    let source = Source {
        id: format!("S{number}"),
        kind: SourceKind::Document,
        title: document.title.clone(),
        location: document.path.clone(),
        sha256: Some(document.sha256.clone()),
        accessed_at: None,
    };
    match &document.page {
        None => source,
        Some(page) => Source {
            kind: SourceKind::Web,
            location: page.url.clone(),
            accessed_at: Some(page.accessed_at),
            ..source
        },
    }
}

fn shorten_text(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::InputFile;
    use crate::model::ModelAbility;

    fn build_corpus() -> Corpus {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        let files = vec![
            file(
                "law/Apache.txt",
                "Apache\n\nEach contributor grants\na patent  licence.\n\nIt ends with a suit.",
            ),
            file("MIT.txt", "MIT\n\nNo word of them [7]."),
        ];
        Corpus::build_or_load(files, None).unwrap()
    }

    fn build_passage(document: &str, first_line: u32, last_line: u32, text: Option<&str>) -> Passage {
        Passage { document: document.into(), first_line, last_line, text: text.map(str::to_owned) }
    }

    fn build_findings(output: &str, quotations: Vec<Passage>) -> Findings {
        Findings { summary: "s".into(), output: output.into(), quotations, ..Findings::default() }
    }

    #[test]
    fn quotations_and_sources_are_taken_from_the_documents() {
        let answer = build_findings(
            "It grants [1], ends [2][1, 3] and is silent [3].",
            vec![
                build_passage("law/Apache.txt", 3, 4, None),
                build_passage("/LAW/apache.txt", 1, 1, Some("It ends\n with a suit.")),
                build_passage("MIT.txt", 3, 9, Some("No word of them [7].")),
            ],
        );
        let result = resolve_findings(&answer, Some(&build_corpus())).unwrap();
        assert_eq!(result.output, "It grants [S1], ends [S1][S2] and is silent [S2].");
        let quotations: Vec<_> = result
            .quotations
            .iter()
            .map(|q| (q.source.as_str(), q.text.as_str(), q.first_line, q.last_line))
            .collect();
        assert_eq!(
            quotations,
            [
                ("S1", "Each contributor grants a patent licence.", 3, 4),
                ("S1", "It ends with a suit.", 6, 6),
                ("S2", "No word of them [7].", 3, 3),
            ]
        );
        assert_eq!(result.sources[1].location, "MIT.txt");
        assert_eq!(result.sources[0].sha256.as_ref().map(String::len), Some(64));
    }

    #[test]
    fn an_inexact_copy_is_replaced_by_the_original_lines() {
        let copied = "3. Each contributor grants 4. a patent license licence…";
        let answer =
            build_findings("It grants [1].", vec![build_passage("law/Apache.txt", 3, 4, Some(copied))]);
        let result = resolve_findings(&answer, Some(&build_corpus())).unwrap();
        assert_eq!(result.quotations[0].text, "Each contributor grants a patent licence.");
    }

    #[test]
    fn quotations_that_are_not_cited_are_appended() {
        let answer = build_findings("It is so.", vec![build_passage("MIT.txt", 3, 3, None)]);
        let result = resolve_findings(&answer, Some(&build_corpus())).unwrap();
        assert_eq!(result.output, "It is so.\n\n> No word of them \\[7\\]. [S1] (line 3)");
    }

    #[test]
    fn a_quotation_that_is_not_in_the_document_is_rejected() {
        let corpus = build_corpus();
        let one = |passage: Passage| {
            resolve_findings(&build_findings("x [1]", vec![passage]), Some(&corpus)).unwrap_err()
        };
        for (mistake, expected) in [
            (one(build_passage("Apache", 1, 1, None)), "Quotation 1: no document 'Apache'; the nearest are "),
            (
                one(build_passage("MIT.txt", 9, 9, None)),
                "Quotation 1: MIT.txt has lines 1 to 3; there is no line 9.",
            ),
            (
                one(build_passage("MIT.txt", 0, 0, None)),
                "Quotation 1: MIT.txt has lines 1 to 3; there is no line 0.",
            ),
            (one(build_passage("MIT.txt", 2, 2, None)), "Quotation 1: lines 2 to 2 of MIT.txt are empty"),
            (
                one(build_passage("MIT.txt", 1, 1, Some("A word of them."))),
                "Quotation 1: the text “A word of them.” is not in MIT.txt; the nearest line is 3: “No word of them [7].”. Copy the words exactly",
            ),
            (
                resolve_findings(
                    &build_findings("x [2] [S1]", vec![build_passage("MIT.txt", 1, 1, None)]),
                    Some(&corpus),
                )
                .unwrap_err(),
                "'output' or 'summary' cites [2], [S1], but there are 1 quotations",
            ),
            (
                resolve_findings(&build_findings("x", vec![build_passage("MIT.txt", 1, 1, None)]), None)
                    .unwrap_err(),
                "Quotation 1: there are no documents to quote from",
            ),
        ] {
            assert!(mistake.starts_with(expected), "{mistake}\n{expected}");
        }
        let silent =
            Findings { notes: Some("Nothing on patents.".into()), ..build_findings("Nothing.", vec![]) };
        assert!(resolve_findings(&silent, Some(&corpus)).is_ok());
        assert!(
            resolve_findings(&build_findings("Nothing.", vec![]), None).is_ok(),
            "without documents there is nothing to quote"
        );
    }

    #[test]
    fn unverified_quotations_are_removed_with_their_citations() {
        let corpus = build_corpus();
        let (verified, unverified) =
            (build_passage("MIT.txt", 1, 1, None), build_passage("MIT.txt", 9, 9, None));
        let quoted = vec![unverified.clone(), verified.clone(), unverified.clone()];
        let answer = build_findings("It is [1] so [2], says [who] [3][4] in [2", quoted);
        let rest = remove_unverified_quotations(&answer, Some(&corpus)).unwrap();
        assert_eq!(rest.output, "It is  so [1], says [who]  in [2");
        assert_eq!(rest.quotations, [verified]);
        assert!(resolve_findings(&rest, Some(&corpus)).is_ok());
        let none = build_findings("It is [1] so.", vec![unverified]);
        assert_eq!(remove_unverified_quotations(&none, Some(&corpus)), None);
    }

    #[test]
    fn words_of_another_document_are_found_there() {
        let corpus = build_corpus();
        let elsewhere = build_passage("MIT.txt", 1, 1, Some("It ends with a suit."));
        let answer = build_findings("It ends [1].", vec![elsewhere]);
        assert!(resolve_findings(&answer, Some(&corpus)).is_err());
        let result = resolve_findings(&relocate_quotations(answer, Some(&corpus)), Some(&corpus)).unwrap();
        let quotation = &result.quotations[0];
        assert_eq!((result.sources[0].location.as_str(), quotation.first_line), ("law/Apache.txt", 6));
        // Words of two documents stay where they are.
        let both = InputFile { path: "copy.txt".into(), bytes: b"It ends with a suit.".to_vec() };
        let third = InputFile { path: "a.txt".into(), bytes: b"It ends with a suit.".to_vec() };
        let corpus = Corpus::build_or_load(vec![both, third], None).unwrap();
        let answer =
            build_findings("x [1]", vec![build_passage("b.txt", 1, 1, Some("It ends with a suit."))]);
        assert_eq!(relocate_quotations(answer.clone(), Some(&corpus)), answer);
    }

    #[test]
    fn a_summary_is_taken_from_the_output_if_there_is_none() {
        assert_eq!(summarize_output("# Tarn\n\nIt weighs 1.4 kg [1].\n\nMore."), "It weighs 1.4 kg [1].");
        let long = summarize_output(&"word ".repeat(100));
        assert!(long.chars().count() <= MAX_SUMMARY + 1 && long.ends_with("word…"), "{long}");
    }

    #[test]
    fn every_text_of_the_forms_is_bounded() {
        for (ability, has_tools) in
            [(ModelAbility::Small, false), (ModelAbility::Small, true), (ModelAbility::Strong, true)]
        {
            let schema = findings_schema(Some(&build_corpus()), ability, has_tools).unwrap().schema;
            let properties = &schema["properties"];
            assert!(properties["output"]["maxLength"].is_u64() && properties["notes"]["maxLength"].is_u64());
            let list = if ability == ModelAbility::Small { "citations" } else { "quotations" };
            assert_eq!(properties[list]["maxItems"].is_u64(), has_tools, "marks are enough for passages");
        }
    }

    #[test]
    fn the_schema_lists_the_documents_if_there_are_few() {
        let schema = findings_schema(Some(&build_corpus()), ModelAbility::Strong, true).unwrap().schema;
        let passage = &schema["properties"]["quotations"]["items"]["properties"];
        assert_eq!(passage["document"]["enum"], json!(["MIT.txt", "law/Apache.txt"]));
        assert_eq!(passage["first_line"]["minimum"], 1);
        assert_eq!(schema["required"], json!(["quotations", "output", "summary"]));
    }
}
