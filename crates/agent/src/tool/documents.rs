//! The tools with which an agent searches and reads the documents of its run. They own the output format: each line of a
//! document begins with its number and a tab, so that text from a document can't pass for anything else.

use std::fmt::Write;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Call, Output, Tool, ToolError, tool_with_output};
use crate::corpus::pages::AttemptPages;
use crate::corpus::{Corpus, Document, SearchHit, SearchQuery, SearchResults};
use crate::embeddings::{AttemptEmbeddings, EmbeddedQuery};

/// The maximum number of passages of one search.
pub const MAX_PASSAGES: u32 = 20;
/// The maximum number of lines of one read.
pub const MAX_READ_LINES: usize = 400;
/// The maximum number of characters of one read; whole lines are dropped from the end.
pub const MAX_READ_CHARS: usize = 48_000;

/// The name of the tool that searches.
const SEARCH: &str = "search_documents";
/// The name of the tool that reads.
const READ: &str = "read_document";
const DEFAULT_PASSAGES: u32 = 8;
const DEFAULT_READ_LINES: usize = 200;
/// The maximum number of documents listed when a search or a path finds nothing.
const MAX_NAMED: usize = 20;
/// The maximum length of a query, in characters.
const MAX_QUERY: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "SearchArguments")]
#[serde(deny_unknown_fields)]
struct SearchDocumentsArguments {
    /// The words to search for, in any form; words in double quotes must be adjacent.
    #[schemars(length(min = 1))]
    query: String,
    /// The maximum number of passages, 1 to 20; 8 by default.
    #[schemars(range(min = 1, max = 20))]
    limit: Option<u32>,
    /// The maximum number of passages per document, 1 to 20; no limit by default. Use 1 or 2 to see many documents.
    #[schemars(range(min = 1, max = 20))]
    per_document: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ReadArguments")]
#[serde(deny_unknown_fields)]
struct ReadDocumentArguments {
    /// The document's path, as returned by search_documents.
    path: String,
    /// The first line, from 1; 1 by default.
    #[schemars(range(min = 1))]
    first_line: Option<u32>,
    /// The last line; by default 199 after the first, at most 399 after it.
    #[schemars(range(min = 1))]
    last_line: Option<u32>,
}

/// The documents that an agent searches and reads.
#[derive(Clone)]
pub enum ReadableDocuments {
    /// Those of the run.
    OfRun(Arc<Corpus>),
    /// Those of the run, and the web pages that the attempt has read so far.
    WithPages(Arc<AttemptPages>),
}

impl ReadableDocuments {
    /// Returns the documents at this moment.
    fn current(&self) -> Corpus {
        match self {
            Self::OfRun(corpus) => corpus.as_ref().clone(),
            Self::WithPages(pages) => pages.list_sources(),
        }
    }
}

/// `search_documents{query, limit?, per_document?}`: the best passages, each with its document and numbered lines.
#[must_use]
pub fn search_documents_tool(
    documents: ReadableDocuments,
    embeddings: Option<Arc<AttemptEmbeddings>>,
) -> Arc<dyn Tool> {
    let searched = match documents {
        ReadableDocuments::OfRun(_) => "the documents of the run",
        ReadableDocuments::WithPages(_) => {
            "the documents of the run and all web pages that you have read, whole,"
        }
    };
    let description = format!(
        "Searches {searched} and returns the best passages, best first, each with its document's path \
         and its numbered lines. Also reports in how many documents each word occurs and which documents have none of \
         them. Try several wordings; read more around a passage with read_document."
    );
    tool_with_output(SEARCH, &description, move |arguments: SearchDocumentsArguments, call| {
        let (documents, embeddings) = (documents.clone(), embeddings.clone());
        async move { search_corpus(&documents.current(), &arguments, embeddings.as_deref(), &call).await }
    })
}

/// `read_document{path, first_line?, last_line?}`: lines of a document with their numbers.
#[must_use]
pub fn read_document_tool(documents: ReadableDocuments) -> Arc<dyn Tool> {
    let read = match documents {
        ReadableDocuments::OfRun(_) => "one document",
        ReadableDocuments::WithPages(_) => "one document, or of a web page that you have read, by its URL",
    };
    let description = format!(
        "Reads lines of {read}. Each line is prefixed with its number and a tab, which are not part of the text."
    );
    tool_with_output(READ, &description, move |arguments: ReadDocumentArguments, _| {
        let documents = documents.clone();
        async move { read_requested_lines(&documents.current(), &arguments) }
    })
}

async fn search_corpus(
    corpus: &Corpus,
    arguments: &SearchDocumentsArguments,
    embeddings: Option<&AttemptEmbeddings>,
    call: &Call,
) -> Result<Output, ToolError> {
    if arguments.query.chars().count() > MAX_QUERY {
        return Err(ToolError::Refused(format!("the query is longer than {MAX_QUERY} characters")));
    }
    let limit = arguments.limit.unwrap_or(DEFAULT_PASSAGES).clamp(1, MAX_PASSAGES) as usize;
    let per_document = arguments.per_document.unwrap_or(MAX_PASSAGES).max(1) as usize;
    let query = match embeddings {
        Some(embeddings) => embeddings.embed_query(corpus, &arguments.query, &call.budget).await,
        None => EmbeddedQuery::default(),
    };
    let EmbeddedQuery { vector, spent, notice } = query;
    let query = SearchQuery { text: &arguments.query, vector: vector.as_deref() };
    let results = corpus.search(query, limit, per_document);
    if results.words.is_empty() && vector.is_none() {
        let text = "the query has no searchable word: the most common words of a language are ignored";
        return Err(ToolError::Refused(text.into()));
    }
    let notice = notice.map(|notice| format!("{notice}\n")).unwrap_or_default();
    let text = format!("{notice}{}", format_search_results(corpus, &results));
    Ok(Output { usage: spent.usage, models: spent.models, ..Output::from(text) })
}

/// The best passages for a text, in the format of `search_documents`; `None` if there are none.
pub(crate) fn find_passages(corpus: &Corpus, query: SearchQuery<'_>, limit: usize) -> Option<String> {
    let text: String = query.text.chars().take(MAX_QUERY).collect();
    let text = text.replace('"', " ");
    let results = corpus.search(SearchQuery { text: &text, ..query }, limit, 2);
    (!results.hits.is_empty()).then(|| format_search_results(corpus, &results))
}

fn format_search_results(corpus: &Corpus, results: &SearchResults<'_>) -> String {
    let all = corpus.documents_and_pages().count();
    let words: Vec<String> =
        results.words.iter().map(|word| format!("{} in {} of {all}", word.word, word.documents)).collect();
    let mut text = format!("Documents with the words: {}.\n", words.join("; "));
    let without = results.without.len();
    if without > 0 {
        let named: Vec<&str> =
            results.without.iter().take(MAX_NAMED).map(|document| document.path.as_str()).collect();
        let more = if without > named.len() {
            format!(" and {} more", without - named.len())
        } else {
            String::new()
        };
        writeln!(text, "Documents with none of them: {}{more}.", named.join(" | ")).expect(TO_STRING);
    }
    if results.hits.is_empty() {
        text.push_str("No passage found. Try other words.\n");
    }
    for hit in &results.hits {
        let SearchHit { document, first_line, last_line, score } = hit;
        let place = format_place(document, *first_line, *last_line);
        writeln!(
            text,
            "\n== lines {first_line} to {last_line} of {}, score {score:.2}{place}",
            document.path
        )
        .expect(TO_STRING);
        append_numbered_lines(document, *first_line, *last_line, usize::MAX, &mut text);
    }
    text
}

fn read_requested_lines(corpus: &Corpus, arguments: &ReadDocumentArguments) -> Result<Output, ToolError> {
    let text = format_requested_lines(corpus, arguments)?;
    let document = corpus.find_document(&arguments.path);
    let image = document.and_then(|document| document.image.clone());
    Ok(Output { images: image.into_iter().collect(), ..Output::from(text) })
}

fn format_requested_lines(corpus: &Corpus, arguments: &ReadDocumentArguments) -> Result<String, ToolError> {
    let Some(document) = corpus.find_document(&arguments.path) else {
        return Err(ToolError::Refused(unknown_document_error(corpus, &arguments.path)));
    };
    let count = document.line_count();
    let first = arguments.first_line.map_or(1, |line| line as usize).max(1);
    let last = arguments.last_line.map_or(first + DEFAULT_READ_LINES - 1, |line| line as usize);
    if first > count {
        let text = format!("line {first} is past the end of {} ({count} lines)", document.path);
        return Err(ToolError::Refused(text));
    }
    if last < first {
        return Err(ToolError::Refused(format!("last_line {last} comes before first_line {first}")));
    }
    let last = last.min(count).min(first + MAX_READ_LINES - 1);
    let mut lines = String::new();
    let shown = append_numbered_lines(document, first, last, MAX_READ_CHARS, &mut lines);
    let place = format_place(document, first, shown);
    Ok(format!(
        "== lines {first} to {shown} of {count}, {}: {}{place}\n{lines}",
        document.path, document.title
    ))
}

/// Formats the page, slide, sheet or section of lines, if the document has any.
fn format_place(document: &Document, first: usize, last: usize) -> String {
    document.place_of_lines(first, last).map(|place| format!(", {place}")).unwrap_or_default()
}

/// Appends numbered lines, at least one, up to `limit` characters; returns the number of the last one.
fn append_numbered_lines(
    document: &Document,
    first: usize,
    last: usize,
    limit: usize,
    text: &mut String,
) -> usize {
    let mut characters = 0;
    for number in first..=last {
        let line = document.nth_line(number).unwrap_or_default();
        characters += line.chars().count();
        if characters > limit && number > first {
            return number - 1;
        }
        writeln!(text, "{number}\t{line}").expect(TO_STRING);
    }
    last
}

/// Returns the lines that a result of `search_documents` or `read_document` shows, by their document; none for other tools.
pub(crate) fn list_shown_lines(tool: &str, arguments: &Value, text: &str) -> Vec<(String, Vec<usize>)> {
    match tool {
        READ => {
            let path = arguments.get("path").and_then(Value::as_str);
            path.map(|path| (path.to_owned(), parse_numbered_lines(text))).into_iter().collect()
        }
        SEARCH => {
            // Lines of documents begin with a number, so that none passes for the header of a passage.
            let passage = |passage: &str| {
                let (header, lines) = passage.split_once('\n')?;
                let (path, _score) = header.split_once(" of ")?.1.rsplit_once(", score ")?;
                Some((path.to_owned(), parse_numbered_lines(lines)))
            };
            text.split("\n== lines ").skip(1).filter_map(passage).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the numbers of the lines of a text that begin with a number and a tab.
pub(crate) fn parse_numbered_lines(text: &str) -> Vec<usize> {
    text.lines().filter_map(|line| line.split_once('\t')?.0.parse().ok()).collect()
}

const TO_STRING: &str = "writing to a String can't fail";

/// The message for an unknown document, with the most similar paths.
pub(crate) fn unknown_document_error(corpus: &Corpus, path: &str) -> String {
    let wanted: String = path.chars().take(200).collect();
    let mut nearest: Vec<(usize, &str)> = corpus
        .documents_and_pages()
        .map(|document| {
            (path_distance(&wanted.to_lowercase(), &document.path.to_lowercase()), document.path.as_str())
        })
        .collect();
    nearest.sort_unstable();
    let named: Vec<String> = nearest.iter().take(3).map(|(_, path)| format!("'{path}'")).collect();
    match named.as_slice() {
        [] => format!("no document '{wanted}'; there are no documents"),
        [only] => format!("no document '{wanted}'; the nearest is {only}"),
        several => format!("no document '{wanted}'; the nearest are {}", several.join(", ")),
    }
}

/// The edit distance of two texts; a path that ends in the other counts as near.
fn path_distance(one: &str, other: &str) -> usize {
    if other.ends_with(one) || one.ends_with(other) {
        return one.len().abs_diff(other.len()).min(1);
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::corpus::InputFile;
    use crate::tool::Call;

    fn build_corpus() -> Arc<Corpus> {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        let files = vec![
            file("law/Apache-2.0.txt", "Apache License\n\nA patent grant ends.\nIt ends with a suit."),
            file("MIT.txt", "MIT License\n\nNothing is said of them."),
        ];
        Arc::new(Corpus::build_or_load(files, None).unwrap())
    }

    async fn call_and_expect_refusal(tool: &Arc<dyn Tool>, arguments: serde_json::Value) -> String {
        match tool.call(arguments, &Call::default()).await {
            Ok(output) => panic!("{}", output.text),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[tokio::test]
    async fn a_search_shows_numbered_lines_and_documents_without_matches() {
        let tool = search_documents_tool(ReadableDocuments::OfRun(build_corpus()), None);
        let text = tool.call(json!({"query": "patents zebra"}), &Call::default()).await.unwrap().text;
        assert!(
            text.starts_with("Documents with the words: patents in 1 of 2; zebra in 0 of 2.\n"),
            "{text}"
        );
        assert!(text.contains("Documents with none of them: MIT.txt.\n"), "{text}");
        assert!(text.contains("\n== lines 1 to 4 of law/Apache-2.0.txt, score "), "{text}");
        assert!(text.contains("\n3\tA patent grant ends.\n"), "{text}");
        let none = tool.call(json!({"query": "zebra"}), &Call::default()).await.unwrap().text;
        assert!(none.contains("No passage found."), "{none}");
        assert!(
            call_and_expect_refusal(&tool, json!({"query": "how the"})).await.contains("no searchable word")
        );
    }

    #[tokio::test]
    async fn shown_lines_are_read_back_from_results() {
        let documents = || ReadableDocuments::OfRun(build_corpus());
        let read_back = async |tool: Arc<dyn Tool>, arguments: serde_json::Value| {
            let text = tool.call(arguments.clone(), &Call::default()).await.unwrap().text;
            list_shown_lines(&tool.spec().name, &arguments, &text)
        };
        let search = json!({"query": "patent nothing"});
        let mut found = read_back(search_documents_tool(documents(), None), search).await;
        found.sort_unstable();
        let expected =
            [("MIT.txt".to_owned(), vec![1, 2, 3]), ("law/Apache-2.0.txt".to_owned(), vec![1, 2, 3, 4])];
        assert_eq!(found, expected);
        let lines =
            read_back(read_document_tool(documents()), json!({"path": "MIT.txt", "first_line": 2})).await;
        assert_eq!(lines, [("MIT.txt".to_owned(), vec![2, 3])]);
        assert_eq!(list_shown_lines("other", &json!({"path": "MIT.txt"}), "1\tx"), []);
    }

    #[tokio::test]
    async fn a_wrong_path_or_line_gets_the_valid_ones() {
        let tool = read_document_tool(ReadableDocuments::OfRun(build_corpus()));
        let table = [
            (
                json!({"path": "apache-2.0.txt"}),
                "no document 'apache-2.0.txt'; the nearest are 'law/Apache-2.0.txt', 'MIT.txt'",
            ),
            (json!({"path": "MIT.txt", "first_line": 900}), "line 900 is past the end of MIT.txt (3 lines)"),
            (
                json!({"path": "MIT.txt", "first_line": 3, "last_line": 2}),
                "last_line 2 comes before first_line 3",
            ),
        ];
        for (arguments, expected) in table {
            assert_eq!(call_and_expect_refusal(&tool, arguments).await, expected);
        }
    }

    #[tokio::test]
    async fn a_read_shows_the_requested_lines_within_its_limits() {
        let tool = read_document_tool(ReadableDocuments::OfRun(build_corpus()));
        let text = tool
            .call(json!({"path": "MIT.txt", "first_line": 2, "last_line": 99}), &Call::default())
            .await
            .unwrap()
            .text;
        assert_eq!(text, "== lines 2 to 3 of 3, MIT.txt: MIT License\n2\t\n3\tNothing is said of them.\n");

        let long =
            InputFile { path: "long.txt".into(), bytes: ("x".repeat(999) + "\n").repeat(1_000).into_bytes() };
        let corpus = Arc::new(Corpus::build_or_load(vec![long], None).unwrap());
        let tool = read_document_tool(ReadableDocuments::OfRun(corpus));
        let text =
            tool.call(json!({"path": "long.txt", "last_line": 1000}), &Call::default()).await.unwrap().text;
        assert!(text.starts_with("== lines 1 to 48 of 1000, long.txt"), "{}", &text[..60]);
        assert_eq!(text.lines().count(), 49);
    }
}
