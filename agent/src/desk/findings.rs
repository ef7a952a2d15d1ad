//! The answer of whoever works from the run's documents: text that cites quotations, and the quotations by document and
//! line. It owns what turns such an answer into a result: every quotation is looked up in its document, so that no
//! model can make one up, and the sources follow from the quotations. It judges nothing else.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::{Quotation, Source, SourceKind, TaskResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::marks;
use crate::citations::{self, fold};
use crate::corpus::{Corpus, Document};
use crate::model::AnswerSchema;
use crate::spec::AnswerForm;
use crate::tool::{no_document, schema_of};
use crate::turn::Answer;

/// The most tokens of an answer: small models that begin to repeat themselves would not end by themselves.
pub(super) const MAX_OUTPUT_TOKENS: u32 = 4_096;
/// The most lines of one quotation.
const MAX_LINES: usize = 60;
/// The share of common words from which on a text that was copied badly means the lines that it names.
const ALIKE: f64 = 0.8;
/// The most documents that the schema names one by one.
const MAX_NAMED: usize = 100;
/// The most mistakes that are told at once.
const MAX_MISTAKES: usize = 5;
/// How much of a text is shown in a mistake, in characters.
const SHOWN: usize = 300;

/// An answer from documents, as a model gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Findings {
    /// The passages that the answer rests on; they are numbered from 1 in this order.
    #[schemars(length(max = 60))]
    pub quotations: Vec<Passage>,
    /// The answer in Markdown. Behind each statement stands the number of its quotation: [1], [2].
    #[schemars(length(min = 1))]
    pub output: String,
    /// The answer in one or two sentences.
    #[schemars(length(min = 1))]
    pub summary: String,
    /// What was looked for and not found; null if nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

/// A passage of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Passage {
    /// The document's path.
    pub document: String,
    /// Its first line, as read_document numbers it.
    #[schemars(range(min = 1))]
    pub first_line: u32,
    /// Its last line.
    #[schemars(range(min = 1))]
    pub last_line: u32,
    /// The one or two sentences that say it, copied word for word; null for the whole lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Answer for Findings {
    fn schema(name: &str) -> Option<AnswerSchema> {
        let mut schema = schema_of::<Self>();
        schema["required"] = json!(["quotations", "output", "summary"]);
        Some(AnswerSchema { name: name.to_owned(), schema })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let findings: Self = super::read(text)?;
        if findings.output.trim().is_empty() {
            return Err("'output' is empty.".into());
        }
        Ok(findings)
    }
}

/// The schema of an answer from these documents: where they are few, only theirs can be named.
pub(super) fn schema(corpus: Option<&Corpus>) -> Option<AnswerSchema> {
    let mut schema = Findings::schema(AnswerForm::Findings.name())?;
    if let Some(documents) = corpus.map(Corpus::documents).filter(|all| (1..=MAX_NAMED).contains(&all.len()))
    {
        let paths: Vec<&str> = documents.iter().map(|document| document.path.as_str()).collect();
        let document = &mut schema.schema["properties"]["quotations"]["items"]["properties"]["document"];
        document["enum"] = Value::from(paths);
    }
    Some(schema)
}

/// The result that an answer makes: each quotation as it stands in its document, each document a source.
///
/// # Errors
/// What is wrong with it, for the model that is to mend it.
pub(super) fn resolve(findings: &Findings, corpus: Option<&Corpus>) -> Result<TaskResult, String> {
    let has_documents = corpus.is_some_and(|corpus| !corpus.documents().is_empty());
    let says_why = findings.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
    if findings.quotations.is_empty() && has_documents && !says_why {
        return Err("The answer quotes nothing. Give the passages it rests on in 'quotations' (document, first_line, \
                    last_line) and cite them in 'output' as [1], [2]; or, if the documents are silent, say in 'notes' \
                    what you looked for and did not find."
            .into());
    }
    let mut mistakes = Vec::new();
    let mut quoted: Vec<(&Document, Quotation)> = Vec::new();
    for (at, passage) in findings.quotations.iter().enumerate() {
        match stand(passage, corpus) {
            Ok(found) => quoted.push(found),
            Err(mistake) => mistakes.push(format!("Quotation {}: {mistake}", at + 1)),
        }
    }
    if mistakes.is_empty() {
        mistakes.extend(unknown_marks(findings, &quoted));
    }
    if !mistakes.is_empty() {
        mistakes.truncate(MAX_MISTAKES);
        return Err(mistakes.join(" "));
    }
    Ok(result(findings, quoted))
}

/// The answer without the passages that stand nowhere, and without their marks: what is left when a model was told often
/// enough. `None` if nothing is left to rest on.
pub(super) fn without_what_stands_nowhere(findings: &Findings, corpus: Option<&Corpus>) -> Option<Findings> {
    let stands: Vec<bool> =
        findings.quotations.iter().map(|passage| stand(passage, corpus).is_ok()).collect();
    let kept = |upto: usize| stands[..upto].iter().filter(|stands| **stands).count();
    if kept(stands.len()) == 0 {
        return None;
    }
    let mark = |number: usize| -> Option<String> {
        let is_kept = (1..=stands.len()).contains(&number) && stands[number - 1];
        is_kept.then(|| format!("[{}]", kept(number)))
    };
    let quotations = findings.quotations.iter().zip(&stands).filter(|(_, stands)| **stands);
    Some(Findings {
        quotations: quotations.map(|(passage, _)| passage.clone()).collect(),
        output: remarked(&citations::single(&findings.output), mark),
        summary: remarked(&citations::single(&findings.summary), mark),
        notes: findings.notes.clone(),
    })
}

/// A text with its marks `[1]`, `[2]` as `mark` gives them.
fn remarked(text: &str, mark: impl Fn(usize) -> Option<String>) -> String {
    let mut remarked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('[') {
        remarked.push_str(before);
        let number = behind.split_once(']').and_then(|(inside, rest)| Some((inside.parse().ok()?, rest)));
        match number {
            Some((number, behind)) => {
                remarked.push_str(&mark(number).unwrap_or_default());
                rest = behind;
            }
            None => {
                remarked.push('[');
                rest = behind;
            }
        }
    }
    remarked + rest
}

/// A passage as it stands in its document.
fn stand<'c>(passage: &Passage, corpus: Option<&'c Corpus>) -> Result<(&'c Document, Quotation), String> {
    let corpus = corpus.ok_or("there are no documents to quote from; leave it out.")?;
    let document = named(corpus, &passage.document)
        .ok_or_else(|| format!("{}.", no_document(corpus, &passage.document)))?;
    let count = document.line_count();
    let (first, last) = (passage.first_line as usize, passage.last_line as usize);
    let (first, last) = (first.min(last), first.max(last).min(count));
    if first == 0 || first > count {
        let path = &document.path;
        return Err(format!("{path} has the lines 1 to {count}, and no line {first}."));
    }
    let given = passage.text.as_deref().map(fold).filter(|text| !text.is_empty());
    let (text, first, last) = match given {
        Some(text) => given_text(document, text, first, last)?,
        None => whole_lines(document, first, last)?,
    };
    let line = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let quotation = Quotation { source: String::new(), text, first_line: line(first), last_line: line(last) };
    Ok((document, quotation))
}

/// The document of a path, where its letters are large or small, and whether it begins with `/`, does not matter.
fn named<'c>(corpus: &'c Corpus, path: &str) -> Option<&'c Document> {
    let path = path.trim();
    let path = path.strip_prefix("/documents/").or_else(|| path.strip_prefix('/')).unwrap_or(path);
    corpus.document(path).or_else(|| {
        let mut same = corpus.documents().iter().filter(|document| document.path.eq_ignore_ascii_case(path));
        same.next().filter(|_| same.next().is_none())
    })
}

fn given_text(
    document: &Document,
    text: String,
    first: usize,
    last: usize,
) -> Result<(String, usize, usize), String> {
    if fold(document.lines(first, last)).contains(&text) {
        return Ok((text, first, last));
    }
    if let Some((first, last)) = place(document, &text, first) {
        return Ok((text, first, last));
    }
    if likeness(&text, &fold(document.lines(first, last))) >= ALIKE {
        // It is these lines that were meant, and they are quoted as they stand.
        return whole_lines(document, first, last);
    }
    let (path, is, said) = (&document.path, cut(&fold(document.lines(first, last))), cut(&text));
    Err(format!(
        "the text “{said}” does not stand in {path}; its lines {first} to {last} are “{is}”. Copy the words exactly, \
         or leave 'text' out to quote the lines as they are."
    ))
}

/// Which share of the words of one text stand in another.
fn likeness(text: &str, lines: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        // Numbers are mostly those of lines, which small models copy along.
        let words = parts.filter(|word| !word.bytes().all(|byte| byte.is_ascii_digit()));
        words.map(str::to_lowercase).collect()
    };
    let there: BTreeSet<String> = words(lines).into_iter().collect();
    let said = words(text);
    let common = said.iter().filter(|word| there.contains(*word)).count();
    common as f64 / said.len().max(1) as f64
}

fn whole_lines(document: &Document, first: usize, last: usize) -> Result<(String, usize, usize), String> {
    if last - first >= MAX_LINES {
        let count = last - first + 1;
        return Err(format!("{count} lines are too many; quote at most {MAX_LINES}, those that say it."));
    }
    match fold(document.lines(first, last)) {
        text if text.is_empty() => Err(format!(
            "the lines {first} to {last} of {} are empty; name those that say it.",
            document.path
        )),
        text => Ok((text, first, last)),
    }
}

/// Where in a document a folded text stands, nearest to a line.
fn place(document: &Document, text: &str, near: usize) -> Option<(usize, usize)> {
    let mut folded = String::new();
    let mut starts: Vec<(usize, usize)> = Vec::new();
    for number in 1..=document.line_count() {
        for word in document.line(number).unwrap_or_default().split_whitespace() {
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

/// Marks in the text that no quotation stands behind.
fn unknown_marks(findings: &Findings, quoted: &[(&Document, Quotation)]) -> Option<String> {
    let quotations: Vec<Quotation> = quoted.iter().map(|(_, quotation)| quotation.clone()).collect();
    let texts = [&findings.output, &findings.summary].map(|text| citations::single(text));
    let marks = texts.iter().flat_map(|text| citations::citations(text, &quotations));
    let mut unknown: Vec<&str> = marks.filter(|mark| number(mark, quoted.len()).is_none()).collect();
    unknown.dedup();
    let named: Vec<String> = unknown.iter().take(MAX_MISTAKES).map(|mark| format!("[{mark}]")).collect();
    (!unknown.is_empty()).then(|| {
        format!(
            "'output' or 'summary' cites {}, and there are {} quotations: cite them as [1] to [{}], each behind what \
             it shows.",
            named.join(", "),
            quoted.len(),
            quoted.len()
        )
    })
}

/// Which quotation a mark means, from 0.
fn number(mark: &str, count: usize) -> Option<usize> {
    let number: usize = mark.parse().ok()?;
    (1..=count).contains(&number).then(|| number - 1)
}

fn result(findings: &Findings, quoted: Vec<(&Document, Quotation)>) -> TaskResult {
    let mut sources: Vec<Source> = Vec::new();
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    let mut quotations = Vec::with_capacity(quoted.len());
    for (document, quotation) in quoted {
        let id = ids.entry(&document.path).or_insert_with(|| {
            sources.push(source(sources.len() + 1, document));
            format!("S{}", sources.len())
        });
        quotations.push(Quotation { source: id.clone(), ..quotation });
    }
    let name = |mark: &str| Some(quotations[number(mark, quotations.len())?].source.clone());
    let output = citations::single(&findings.output);
    let cited: Vec<usize> = citations::citations(&output, &quotations)
        .into_iter()
        .filter_map(|mark| number(mark, quotations.len()))
        .collect();
    let mut output = marks::without_repeats(&citations::renumber(&output, &quotations, name));
    for (_, quotation) in quotations.iter().enumerate().filter(|(at, _)| !cited.contains(at)) {
        output.push_str(&format!("\n\n{}", citations::quote(quotation, &quotation.source).trim_end()));
    }
    let summary = citations::renumber(&citations::single(&findings.summary), &quotations, name);
    TaskResult {
        summary: marks::without_repeats(&summary),
        output,
        notes: findings.notes.clone().filter(|notes| !notes.trim().is_empty()),
        sources,
        quotations: marks::unique(quotations),
        ..TaskResult::default()
    }
}

fn source(number: usize, document: &Document) -> Source {
    Source {
        id: format!("S{number}"),
        kind: SourceKind::Document,
        title: document.title.clone(),
        location: document.path.clone(),
        sha256: Some(document.sha256.clone()),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::File;

    fn corpus() -> Corpus {
        let file = |path: &str, text: &str| File { path: path.into(), bytes: text.as_bytes().to_vec() };
        let files = vec![
            file(
                "law/Apache.txt",
                "Apache\n\nEach contributor grants\na patent  licence.\n\nIt ends with a suit.",
            ),
            file("MIT.txt", "MIT\n\nNo word of them [7]."),
        ];
        Corpus::open(files, None).unwrap()
    }

    fn passage(document: &str, first_line: u32, last_line: u32, text: Option<&str>) -> Passage {
        Passage { document: document.into(), first_line, last_line, text: text.map(str::to_owned) }
    }

    fn findings(output: &str, quotations: Vec<Passage>) -> Findings {
        Findings { summary: "s".into(), output: output.into(), quotations, notes: None }
    }

    #[test]
    fn quotations_are_taken_from_the_documents_and_sources_follow_from_them() {
        let answer = findings(
            "It grants [1], ends [2][1, 3] and is silent [3].",
            vec![
                passage("law/Apache.txt", 3, 4, None),
                passage("/LAW/apache.txt", 1, 1, Some("It ends\n with a suit.")),
                passage("MIT.txt", 3, 9, Some("No word of them [7].")),
            ],
        );
        let result = resolve(&answer, Some(&corpus())).unwrap();
        assert_eq!(result.output, "It grants [S1], ends [S1][S2] and is silent [S2].");
        let told: Vec<_> = result
            .quotations
            .iter()
            .map(|q| (q.source.as_str(), q.text.as_str(), q.first_line, q.last_line))
            .collect();
        assert_eq!(
            told,
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
    fn words_that_were_copied_badly_become_the_lines_they_were_copied_from() {
        let copied = "3. Each contributor grants 4. a patent license licence…";
        let answer = findings("It grants [1].", vec![passage("law/Apache.txt", 3, 4, Some(copied))]);
        let result = resolve(&answer, Some(&corpus())).unwrap();
        assert_eq!(result.quotations[0].text, "Each contributor grants a patent licence.");
    }

    #[test]
    fn what_is_quoted_and_not_cited_is_shown_below() {
        let answer = findings("It is so.", vec![passage("MIT.txt", 3, 3, None)]);
        let result = resolve(&answer, Some(&corpus())).unwrap();
        assert_eq!(result.output, "It is so.\n\n> No word of them [7]. [S1] (line 3)");
    }

    #[test]
    fn what_does_not_stand_in_a_document_is_told_and_never_becomes_a_result() {
        let corpus = corpus();
        let one = |passage: Passage| resolve(&findings("x [1]", vec![passage]), Some(&corpus)).unwrap_err();
        for (said, expected) in [
            (one(passage("Apache", 1, 1, None)), "Quotation 1: no document 'Apache'; the nearest are "),
            (
                one(passage("MIT.txt", 9, 9, None)),
                "Quotation 1: MIT.txt has the lines 1 to 3, and no line 9.",
            ),
            (
                one(passage("MIT.txt", 0, 0, None)),
                "Quotation 1: MIT.txt has the lines 1 to 3, and no line 0.",
            ),
            (one(passage("MIT.txt", 2, 2, None)), "Quotation 1: the lines 2 to 2 of MIT.txt are empty"),
            (
                one(passage("MIT.txt", 1, 1, Some("A word of them."))),
                "Quotation 1: the text “A word of them.” does not stand in MIT.txt; its lines 1 to 1 are “MIT”.",
            ),
            (resolve(&findings("x", vec![]), Some(&corpus)).unwrap_err(), "The answer quotes nothing."),
            (
                resolve(&findings("x [2] [S1]", vec![passage("MIT.txt", 1, 1, None)]), Some(&corpus))
                    .unwrap_err(),
                "'output' or 'summary' cites [2], [S1], and there are 1 quotations",
            ),
            (
                resolve(&findings("x", vec![passage("MIT.txt", 1, 1, None)]), None).unwrap_err(),
                "Quotation 1: there are no documents to quote from",
            ),
        ] {
            assert!(said.starts_with(expected), "{said}\n{expected}");
        }
        let silent = Findings { notes: Some("Nothing on patents.".into()), ..findings("Nothing.", vec![]) };
        assert!(resolve(&silent, Some(&corpus)).is_ok());
        assert!(
            resolve(&findings("Nothing.", vec![]), None).is_ok(),
            "without documents there is nothing to quote"
        );
    }

    #[test]
    fn what_stands_nowhere_is_left_out_with_its_marks_and_the_rest_keeps_its_own() {
        let corpus = corpus();
        let (stands, nowhere) = (passage("MIT.txt", 1, 1, None), passage("MIT.txt", 9, 9, None));
        let quoted = vec![nowhere.clone(), stands.clone(), nowhere.clone()];
        let answer = findings("It is [1] so [2], says [who] [3][4] in [2", quoted);
        let rest = without_what_stands_nowhere(&answer, Some(&corpus)).unwrap();
        assert_eq!(rest.output, "It is  so [1], says [who]  in [2");
        assert_eq!(rest.quotations, [stands]);
        assert!(resolve(&rest, Some(&corpus)).is_ok());
        let none = findings("It is [1] so.", vec![nowhere]);
        assert_eq!(without_what_stands_nowhere(&none, Some(&corpus)), None);
    }

    #[test]
    fn the_schema_names_the_documents_where_they_are_few() {
        let schema = schema(Some(&corpus())).unwrap().schema;
        let passage = &schema["properties"]["quotations"]["items"]["properties"];
        assert_eq!(passage["document"]["enum"], json!(["MIT.txt", "law/Apache.txt"]));
        assert_eq!(passage["first_line"]["minimum"], 1);
        assert_eq!(schema["required"], json!(["quotations", "output", "summary"]));
    }
}
