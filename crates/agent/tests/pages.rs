//! Web pages as sources: a page that a tool has read is kept, cited by line like a document, and the same after a takeover,
//! also if the page has changed.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_agent::corpus::pages::{PageContent, PageText};
use millrace_agent::model::ModelFactory;
use millrace_agent::session::{AgentHost, AgentSession, HostSettings, SessionEnvironment, SessionError};
use millrace_agent::sources::{OrderInputError, OrderInputs};
use millrace_agent::spec::{AgentSpec, ToolNames};
use millrace_agent::tool::{Call, Output, Tool, ToolError, ToolSpec};
use millrace_agent::turn::{Host, JournalStep, MemoryHost};
use millrace_documents::TextPart;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{SourceKind, StatementVerdict, TaskError, TaskResult};
use millrace_protocol::work::{InputResult, Order};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const URL: &str = "https://mills.example/wheel";
const READER: &str = "\
name: reader
description: Reads the web.
answer: findings
instructions: Read.
tools: [fetch_url, search_documents, read_document]
";

/// Blobs by their SHA-256, shared by all workers of a run.
#[derive(Clone, Default)]
struct Blobs(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl OrderInputs for Blobs {
    fn read_result<'a>(&'a self, _: &'a InputResult) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        ready(Err(OrderInputError::Broken("no results".into()))).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        let blob = self.0.lock().unwrap().get(sha256).cloned();
        ready(blob.ok_or_else(|| OrderInputError::Broken("not there".into()))).boxed()
    }
}

/// A journal in memory with a blob store.
#[derive(Default)]
struct StoringJournal {
    journal: MemoryHost,
    blobs: Blobs,
}

impl Host for StoringJournal {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        self.journal.replay(names)
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        self.journal.peek()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        self.journal.record(name, value)
    }

    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), TaskError>> {
        let name = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.blobs.0.lock().unwrap().insert(name, bytes);
        ready(Ok(())).boxed()
    }
}

/// A page that says something else each time it is read.
#[derive(Default)]
struct ChangingPage(AtomicUsize);

impl Tool for ChangingPage {
    fn spec(&self) -> ToolSpec {
        let schema =
            json!({"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]});
        ToolSpec { name: "fetch_url".into(), description: "Fetches.".into(), schema: schema.into() }
    }

    fn reads_pages(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, arguments: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let text = PageText::from_text(&format!("# Wheel\n\nThe wheel number {number} turns.\nIt is old."));
        let page = PageContent {
            url: URL.into(),
            requested_url: arguments["url"].as_str().unwrap().to_owned(),
            title: Some("Of wheels".into()),
            accessed_at: Timestamp::UNIX_EPOCH,
            text: text.clone(),
        };
        ready(Ok(Output { page: Some(Box::new(page)), ..Output::from(text.lines) })).boxed()
    }
}

/// A manual of three pages in one file.
#[derive(Default)]
struct Manual(AtomicUsize);

impl Tool for Manual {
    fn spec(&self) -> ToolSpec {
        ChangingPage::default().spec()
    }

    fn reads_pages(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, arguments: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let part =
            |number: usize, text: &str| TextPart { place: Some(format!("page {number}")), text: text.into() };
        let parts = [
            part(1, "The manual of the wheel."),
            part(2, "Grease the bearing monthly.\nUse tallow."),
            part(3, "Stop the wheel in frost."),
        ];
        let page = PageContent {
            url: arguments["url"].as_str().unwrap().to_owned(),
            requested_url: arguments["url"].as_str().unwrap().to_owned(),
            title: Some("Manual".into()),
            accessed_at: Timestamp::UNIX_EPOCH,
            text: PageText::from_parts(&parts),
        };
        ready(Ok(Output { page: Some(Box::new(page)), ..Output::from("(long)".to_owned()) })).boxed()
    }
}

struct FetchName;

impl ToolNames for FetchName {
    fn names(&self) -> Vec<&str> {
        vec!["fetch_url", "read_document", "search_documents"]
    }

    fn has_settings(&self, _: &str) -> bool {
        true
    }
}

fn fetch(url: &str) -> Value {
    json!({"calls": [{"fetch_url": {"url": url}}]})
}

fn answer(document: &str, line: u32) -> Value {
    let quotation = json!({"document": document, "first_line": line, "last_line": line});
    json!({"answer": {"quotations": [quotation], "output": "It turns [1].", "summary": "It turns [1]."}})
}

/// Runs the reader with a script, from what a journal holds.
async fn run_reader(
    turns: &[Value],
    page: &Arc<impl Tool + 'static>,
    journal: &mut StoringJournal,
) -> Result<TaskResult, SessionError> {
    run_reader_of("strong", turns, page, journal).await
}

async fn run_reader_of(
    ability: &str,
    turns: &[Value],
    page: &Arc<impl Tool + 'static>,
    journal: &mut StoringJournal,
) -> Result<TaskResult, SessionError> {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("model.yaml");
    std::fs::write(&script, json!({"ability": ability, "rules": [{ "turns": turns }]}).to_string()).unwrap();
    let spec = AgentSpec::parse(READER.as_bytes(), &FetchName).unwrap();
    let run = RunId::new("r").unwrap();
    let work = Work::Task { task: TaskId::new("t").unwrap(), attempt: 1 };
    let order = Order {
        own_model: Some(format!("script:{}", script.display())),
        ..Order::new(run.clone(), run.lane(1), work, "Does the wheel turn?", spec.about.name.clone())
    };
    let host = AgentHost::new(HostSettings { factory: ModelFactory::default(), ..HostSettings::default() });
    let host = host.unwrap();
    let sources = Arc::new(journal.blobs.clone());
    let env = SessionEnvironment { tools: vec![page.clone()], ..SessionEnvironment::new(sources, journal) };
    AgentSession::prepare(&host, &spec, &order, env).await?.run_work().await
}

#[tokio::test]
async fn page_that_was_read_is_cited_by_line() {
    let (page, mut journal) = (Arc::<ChangingPage>::default(), StoringJournal::default());
    let turns = [fetch("https://mills.example/old-address"), answer(URL, 3)];
    let result = run_reader(&turns, &page, &mut journal).await.unwrap();
    let (source, quotation) = (&result.sources[0], &result.quotations[0]);
    assert_eq!(
        (source.kind, source.location.as_str(), source.title.as_str()),
        (SourceKind::Web, URL, "Of wheels")
    );
    assert_eq!(source.accessed_at, Some(Timestamp::UNIX_EPOCH));
    assert_eq!((quotation.text.as_str(), quotation.first_line), ("The wheel number 1 turns.", 3));
    let kept = journal.blobs.read_blob(source.sha256.as_deref().unwrap()).await.unwrap();
    assert_eq!(kept, b"# Wheel\n\nThe wheel number 1 turns.\nIt is old.\n");
    assert_eq!(result.output, "It turns [S1].");
}

#[tokio::test]
async fn requested_address_names_the_page_too() {
    let old = "https://mills.example/old-address";
    let (page, mut journal) = (Arc::<ChangingPage>::default(), StoringJournal::default());
    let result = run_reader(&[fetch(old), answer(old, 3)], &page, &mut journal).await.unwrap();
    assert_eq!(result.sources[0].location, URL);
}

#[tokio::test]
async fn lines_that_were_not_read_are_refused_and_never_cited() {
    let (page, mut journal) = (Arc::<ChangingPage>::default(), StoringJournal::default());
    let turns = [answer(URL, 3), answer("https://elsewhere.example/", 1), answer(URL, 9)];
    let error = run_reader(&turns, &page, &mut journal).await.unwrap_err().to_string();
    assert!(error.contains("no document"), "{error}");
    let without = json!({"answer": {"quotations": [], "output": "It turns.", "summary": "It turns."}});
    let error = run_reader(&[without], &page, &mut StoringJournal::default()).await.unwrap_err().to_string();
    assert!(error.contains("The answer cites nothing") && error.contains("its URL"), "{error}");
}

#[tokio::test]
async fn attempt_taken_over_after_any_step_cites_the_page_as_it_was_read() {
    let turns = [fetch(URL), answer(URL, 3)];
    let mut whole = StoringJournal::default();
    let expected = run_reader(&turns, &Arc::<ChangingPage>::default(), &mut whole).await.unwrap();
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    assert!(steps.len() >= 3, "{steps:?}");
    for taken in 0..=steps.len() {
        let page: Arc<ChangingPage> = Arc::default();
        let mut journal = StoringJournal {
            journal: MemoryHost::with_steps(steps[..taken].to_vec()),
            blobs: whole.blobs.clone(),
        };
        let result = run_reader(&turns, &page, &mut journal).await.unwrap();
        // Each run has a script of another name.
        let result =
            TaskResult { models: expected.models.clone(), author: expected.author.clone(), ..result };
        assert_eq!(result, expected, "after {taken} steps");
        let is_fetched = steps[..taken].iter().any(|step| step.name.starts_with("tool."));
        assert_eq!(page.0.load(Ordering::SeqCst), usize::from(!is_fetched), "after {taken} steps");
    }
}

#[tokio::test]
async fn versions_of_a_page_that_changes_are_told_apart() {
    let turns = [fetch(URL), fetch(URL), answer(&format!("{URL} (2)"), 3)];
    let mut journal = StoringJournal::default();
    let result = run_reader(&turns, &Arc::<ChangingPage>::default(), &mut journal).await.unwrap();
    assert_eq!(result.quotations[0].text, "The wheel number 2 turns.");
    assert_eq!(result.sources[0].location, URL, "the address is that of the page");
    let second = journal.journal.steps().iter().filter(|step| step.name.starts_with("tool.")).nth(1).unwrap();
    assert!(second.value["text"].as_str().unwrap().contains(&format!("cite this version as {URL} (2).")));
    let turns = [fetch(URL), fetch(URL), answer(URL, 3)];
    let first =
        run_reader(&turns, &Arc::<ChangingPage>::default(), &mut StoringJournal::default()).await.unwrap();
    assert_eq!(first.quotations[0].text, "The wheel number 1 turns.");
}

#[tokio::test]
async fn pages_of_a_fetched_document_are_in_the_citations_after_any_takeover() {
    let turns = [fetch(URL), answer(URL, 3)];
    let mut whole = StoringJournal::default();
    let expected = run_reader(&turns, &Arc::<Manual>::default(), &mut whole).await.unwrap();
    let quotation = &expected.quotations[0];
    assert_eq!(quotation.text, "Grease the bearing monthly.");
    assert_eq!(quotation.place.as_deref(), Some("page 2"));
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    for taken in 0..=steps.len() {
        let mut journal = StoringJournal {
            journal: MemoryHost::with_steps(steps[..taken].to_vec()),
            blobs: whole.blobs.clone(),
        };
        let manual = Arc::<Manual>::default();
        let result = run_reader(&turns, &manual, &mut journal).await.unwrap();
        assert_eq!(result.quotations, expected.quotations, "after {taken} steps");
    }
}

#[tokio::test]
async fn fetched_pages_are_searched_and_read_like_documents() {
    let search = json!({"calls": [{"search_documents": {"query": "bearing tallow zebra"}}]});
    let read = json!({"calls": [{"read_document": {"path": URL, "first_line": 6}}]});
    let mut journal = StoringJournal::default();
    let turns = [search.clone(), fetch(URL), search, read, answer(URL, 4)];
    run_reader(&turns, &Arc::<Manual>::default(), &mut journal).await.unwrap();
    let texts: Vec<&str> = journal
        .journal
        .steps()
        .iter()
        .filter(|step| step.name.starts_with("tool."))
        .map(|step| step.value["text"].as_str().unwrap())
        .collect();
    let [before, _, found, lines] = texts[..] else { panic!("{texts:?}") };
    assert!(before.contains("bearing in 0 of 0") && before.contains("No passage found"), "{before}");
    assert!(
        found.starts_with("Documents with the words: bearing in 1 of 1; tallow in 1 of 1; zebra in 0 of 1.")
    );
    assert!(found.contains(&format!("of {URL}, score")) && found.contains("\n4\tUse tallow.\n"), "{found}");
    assert!(lines.starts_with(&format!("== lines 6 to 6 of 6, {URL}: Manual, page 3\n6\tStop")), "{lines}");
}

/// An answer in the form for small models.
fn plain_answer(output: &str) -> Value {
    json!({"answer": {"output": output}})
}

/// The user messages of a journal after the first request.
fn corrections(journal: &StoringJournal) -> Vec<&str> {
    let steps = journal.journal.steps().iter().skip(1);
    steps.filter_map(|step| step.value["sent"]["user"][0].as_str()).collect()
}

#[tokio::test]
async fn answer_of_a_small_model_is_cited_by_the_lines_that_it_read_after_any_takeover() {
    let turns = [fetch(URL), plain_answer("The wheel number 1 turns.")];
    let mut whole = StoringJournal::default();
    let expected = run_reader_of("small", &turns, &Arc::<ChangingPage>::default(), &mut whole).await.unwrap();
    assert_eq!(expected.output, "The wheel number 1 turns [S1].");
    let (source, quotation) = (&expected.sources[0], &expected.quotations[0]);
    assert_eq!((source.kind, source.location.as_str()), (SourceKind::Web, URL));
    assert_eq!((quotation.text.as_str(), quotation.first_line), ("The wheel number 1 turns.", 3));
    assert_eq!(corrections(&whole), Vec::<&str>::new());
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    for taken in 0..=steps.len() {
        let mut journal = StoringJournal {
            journal: MemoryHost::with_steps(steps[..taken].to_vec()),
            blobs: whole.blobs.clone(),
        };
        let page = Arc::<ChangingPage>::default();
        let result = run_reader_of("small", &turns, &page, &mut journal).await.unwrap();
        let result =
            TaskResult { models: expected.models.clone(), author: expected.author.clone(), ..result };
        assert_eq!(result, expected, "after {taken} steps");
    }
}

#[tokio::test]
async fn small_model_cites_only_numbered_lines_that_it_saw() {
    let read = json!({"calls": [{"read_document": {"path": URL, "first_line": 3, "last_line": 3}}]});
    let right = plain_answer("Grease the bearing monthly.");
    let mut journal = StoringJournal::default();
    let result =
        run_reader_of("small", &[fetch(URL), read, right], &Arc::<Manual>::default(), &mut journal).await;
    let quotation = &result.unwrap().quotations[0];
    assert_eq!((quotation.text.as_str(), quotation.first_line), ("Grease the bearing monthly.", 3));
    assert_eq!(quotation.place.as_deref(), Some("page 2"));
}

#[tokio::test]
async fn statement_that_no_page_says_is_sent_back_and_keeps_its_verdict() {
    let invented = plain_answer("The wheel is 90 years old.");
    let mut read = StoringJournal::default();
    let page = Arc::<ChangingPage>::default();
    let turns = [fetch(URL), invented.clone(), invented.clone()];
    let result = run_reader_of("small", &turns, &page, &mut read).await.unwrap();
    assert_eq!(result.output, "The wheel is 90 years old.");
    assert_eq!(result.statements[0].verdict, StatementVerdict::Unsupported);
    let sent = corrections(&read);
    assert!(sent[0].contains("No source has “90 years”."), "{sent:?}");
    let mut nothing_read = StoringJournal::default();
    let turns = [invented.clone(), invented];
    let error = run_reader_of("small", &turns, &page, &mut nothing_read).await.unwrap_err().to_string();
    assert!(error.contains("The answer cites nothing"), "{error}");
}
