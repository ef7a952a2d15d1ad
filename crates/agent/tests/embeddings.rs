//! Search by meaning: what an attempt pays for, the notices if embeddings are unavailable or change, and a measurement of recall.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_agent::corpus::{Corpus, InputFile, PassageVectors, SearchQuery};
use millrace_agent::model::{Message, Model, ModelFactory, ModelSelection, Request, open_model};
use millrace_agent::turn::{JournalStep, MemoryHost};
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::TaskResult;
use serde_json::{Value, json};

use crate::answers::support::ScriptedTask;

/// The words of each dimension of the vectors.
const MEANINGS: [&[&str]; 3] = [&["heav", "weigh", "mass"], &["batter", "power"], &["firmware", "base unit"]];

/// A server of embeddings that knows a few meanings.
struct EmbeddingServer {
    address: String,
    texts: Arc<Mutex<Vec<String>>>,
    changes_after: Arc<AtomicUsize>,
}

impl EmbeddingServer {
    /// Starts a server that adds a dimension after a number of texts.
    fn start(changes_after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let texts: Arc<Mutex<Vec<String>>> = Arc::default();
        let changes_after = Arc::new(AtomicUsize::new(changes_after));
        let (seen, changes) = (texts.clone(), changes_after.clone());
        // It ends with the process.
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                answer(connection, &seen, changes.load(Ordering::Relaxed));
            }
        });
        Self { address, texts, changes_after }
    }

    fn model(&self, name: &str) -> String {
        format!("openai-compatible:{name}@{}", self.address)
    }

    /// Returns the texts since the last call.
    fn take_texts(&self) -> Vec<String> {
        std::mem::take(&mut self.texts.lock().unwrap())
    }
}

fn answer(mut connection: TcpStream, seen: &Mutex<Vec<String>>, changes_after: usize) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let request: Value = serde_json::from_slice(&body).unwrap();
    let texts: Vec<String> = serde_json::from_value(request["input"].clone()).unwrap();
    let mut seen = seen.lock().unwrap();
    let is_changed = seen.len() >= changes_after;
    let data = texts.iter().enumerate().map(|(index, text)| {
        let text = text.to_lowercase();
        let has = |words: &&[&str]| f64::from(u8::from(words.iter().any(|word| text.contains(word))));
        let mut vector: Vec<f64> = MEANINGS.iter().map(has).collect();
        vector.extend(is_changed.then_some(1.0));
        json!({"index": index, "embedding": vector})
    });
    let usage = json!({"prompt_tokens": 10 * texts.len()});
    let body = json!({"data": data.collect::<Vec<_>>(), "usage": usage}).to_string();
    seen.extend(texts);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    write!(connection, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
}

const OBJECTIVE: &str = "How heavy?";
const QUERY: &str = "heaviness";

/// A task whose words are not those of the documents, with a search in words that are not either.
fn task(embeddings: Option<String>) -> ScriptedTask<'static> {
    let search = json!({"calls": [{"search_documents": {"query": QUERY}}]});
    let quotation =
        json!({"document": "tarn.md", "first_line": 4, "last_line": 4, "text": "It weighs 1.4 kg."});
    let answer = json!({"quotations": [quotation], "output": "The Tarn 20 weighs 1.4 kg [tarn.md:4].", "summary": "1.4 kg"});
    let mut task = ScriptedTask::research("strong", OBJECTIVE, vec![search, answer]);
    task.embeddings = embeddings;
    task
}

/// The requests for replies.
fn requests(work: &ScriptedTask<'_>) -> Vec<Request> {
    work.requests().into_iter().filter(|request| !request.embeddings).collect()
}

/// The text of the search's result that the model sees.
fn search_result(work: &ScriptedTask<'_>) -> String {
    let all = requests(work);
    let mut results = all.iter().flat_map(|request| &request.messages).filter_map(Message::result);
    results.next_back().unwrap().text.clone()
}

fn step_names(work: &ScriptedTask<'_>) -> Vec<String> {
    work.journal.steps().iter().map(|step| step.name.clone()).collect()
}

fn notes(result: &TaskResult) -> &str {
    result.notes.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn documents_are_found_by_their_meaning() {
    let server = EmbeddingServer::start(usize::MAX);
    let mut plain = task(None);
    plain.run().await.unwrap();
    assert!(!step_names(&plain).contains(&"embeddings".to_owned()), "{:?}", step_names(&plain));
    assert!(search_result(&plain).contains("No passage found"), "{}", search_result(&plain));

    let mut work = task(Some(server.model("m")));
    let result = work.run().await.unwrap();
    assert!(
        search_result(&work).contains("\n== lines 1 to 5 of tarn.md, score 1.00\n"),
        "{}",
        search_result(&work)
    );
    let Message::User { text } = &requests(&work)[0].messages[0] else { panic!("the task comes first") };
    assert!(text.contains("It weighs 1.4 kg"), "the objective is searched for by its meaning too: {text}");
    assert_eq!(result.notes, None);
    // The objective, two passages at once, and the query, at 10 tokens a text.
    let model = server.model("m");
    let spent = &result.models[&model];
    assert_eq!((spent.model_calls, spent.input_tokens, spent.output_tokens), (3, 40, 0));
}

#[tokio::test]
async fn takeover_pays_for_no_embedding_again() {
    let server = EmbeddingServer::start(usize::MAX);
    let mut whole = task(Some(server.model("m")));
    let expected = whole.run().await.unwrap();
    let names = step_names(&whole);
    assert_eq!(names[..3], ["embeddings", "model.0", "tool.0.0.search_documents"], "{names:?}");
    assert_eq!(server.take_texts().len(), 4);
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    for taken in 0..=steps.len() {
        let mut work = task(Some(server.model("m")));
        work.journal = MemoryHost::with_steps(steps[..taken].to_vec());
        let result = work.run().await.unwrap();
        let embedded = server.take_texts();
        match taken {
            0 => assert_eq!(embedded.len(), 4),
            1 | 2 => assert_eq!(embedded, [QUERY], "after {taken} steps"),
            _ => assert_eq!(embedded, [""; 0], "after {taken} steps"),
        }
        assert_eq!(
            (&result.output, &result.usage),
            (&expected.output, &expected.usage),
            "after {taken} steps"
        );
    }
    // A worker without a model for embeddings takes over: it has the vectors, and no model for the query.
    let mut work = task(None);
    work.journal = MemoryHost::with_steps(steps[..1].to_vec());
    let result = work.run().await.unwrap();
    assert!(notes(&result).contains("not configured for this worker"), "{}", notes(&result));
    assert_eq!(result.models[&server.model("m")].model_calls, 2, "what was paid for is counted");
    // One with another model must not compare its queries with these vectors.
    let mut work = task(Some(server.model("other")));
    work.journal = MemoryHost::with_steps(steps[..1].to_vec());
    let result = work.run().await.unwrap();
    assert!(notes(&result).contains("but this worker embeds queries with"), "{}", notes(&result));
    assert_eq!(server.take_texts(), [""; 0]);
}

#[tokio::test]
async fn a_machine_embeds_a_document_once_per_model_and_dimension() {
    let server = EmbeddingServer::start(usize::MAX);
    let cache = tempfile::tempdir().unwrap();
    let embedded = async |change: &dyn Fn(&mut ScriptedTask<'static>)| {
        let mut work = task(Some(server.model("m")));
        work.cache = Some(cache.path().to_owned());
        change(&mut work);
        work.run().await.unwrap();
        server.take_texts().into_iter().filter(|text| text != OBJECTIVE && text != QUERY).count()
    };
    assert_eq!(embedded(&|_| {}).await, 2);
    assert_eq!(embedded(&|_| {}).await, 0);
    assert_eq!(
        embedded(&|work| work.documents[0].1 = "# Skua\n\nAnother text.\n").await,
        1,
        "one has changed"
    );
    assert_eq!(embedded(&|work| work.embeddings = Some(server.model("other"))).await, 2);
    server.changes_after.store(0, Ordering::Relaxed);
    assert_eq!(embedded(&|_| {}).await, 2, "the server has a model with another number of dimensions");
    server.changes_after.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(embedded(&|_| {}).await, 0, "its vectors have not replaced these");
    for file in walk(&cache.path().join("vectors")) {
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
    assert_eq!(embedded(&|_| {}).await, 2, "damaged files are replaced");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn search_goes_on_by_words_if_embeddings_are_away() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut work = task(Some(format!("openai-compatible:m@http://{unused}/v1")));
    let result = work.run().await.unwrap();
    let notes = notes(&result);
    assert!(notes.starts_with("The documents were searched by words alone, not by meaning: "), "{notes}");
    assert!(notes.contains("can't be reached"), "{notes}");
    assert_eq!(notes.matches("by words alone").count(), 1, "{notes}");
    assert!(search_result(&work).starts_with("Documents with the words: "), "{}", search_result(&work));
}

#[tokio::test]
async fn vectors_of_another_dimension_are_refused() {
    // After the objective and the passages, the server gets another model.
    let server = EmbeddingServer::start(3);
    let mut work = task(Some(server.model("m")));
    let result = work.run().await.unwrap();
    assert!(notes(&result).contains("gave vectors of 3 dimensions and now gives 4"), "{}", notes(&result));
    assert!(search_result(&work).contains("No passage found"), "words alone count");
    assert!(search_result(&work).contains("now gives 4"), "the model of the task knows it too");
    // Between the objective and the passages.
    let server = EmbeddingServer::start(1);
    let mut work = task(Some(server.model("m")));
    let result = work.run().await.unwrap();
    assert!(notes(&result).contains("gave vectors of 3 dimensions and now gives 4"), "{}", notes(&result));
    assert_eq!(result.models[&server.model("m")].model_calls, 2, "both were paid for");
}

#[tokio::test]
async fn embeddings_leave_half_of_the_reservation() {
    let server = EmbeddingServer::start(usize::MAX);
    let run = async |allowance: ResourceAmounts| {
        let mut work = task(Some(server.model("m")));
        work.allowance = allowance;
        let result = work.run().await.unwrap();
        (notes(&result).to_owned(), server.take_texts().len())
    };
    let calls = |calls| ResourceAmounts { model_calls: Some(calls), ..ResourceAmounts::default() };
    let (notes, texts) = run(calls(3)).await;
    assert!(notes.contains("the budget of the task does not pay for embedding them"), "{notes}");
    assert_eq!(texts, 1, "the objective alone");
    assert_eq!(run(calls(20)).await, (String::new(), 4));
    let cost = ResourceAmounts { cost_micros: Some(1_000_000), ..ResourceAmounts::default() };
    assert_eq!(run(cost).await.1, 4, "the cost of a model on one's own machine is known");
}

/// Measures the recall of search at 5 among the paragraphs of XQuAD, by words and by words and meaning. `MILLRACE_XQUAD` is its English
/// file, `MILLRACE_EMBEDDINGS` a model such as `openai-compatible:minilm@http://127.0.0.1:18200/v1`, `MILLRACE_QUESTIONS` a file with
/// other wordings of the questions by their ids, if there is one.
#[tokio::test]
#[ignore = "needs a model for embeddings, and data that is not in the repository"]
async fn recall_on_paragraphs() {
    let read = |variable: &str| -> Value {
        serde_json::from_slice(&std::fs::read(std::env::var(variable).unwrap()).unwrap()).unwrap()
    };
    let data = read("MILLRACE_XQUAD");
    let other_words =
        std::env::var("MILLRACE_QUESTIONS").map(|_| read("MILLRACE_QUESTIONS")).unwrap_or_default();
    let name = std::env::var("MILLRACE_EMBEDDINGS").unwrap();
    let model = open_model(&ModelSelection::parse(&name).unwrap(), &ModelFactory::default()).unwrap();
    let (mut files, mut questions) = (Vec::new(), Vec::new());
    let paragraphs =
        data["data"].as_array().unwrap().iter().flat_map(|it| it["paragraphs"].as_array().unwrap());
    for (number, paragraph) in paragraphs.enumerate() {
        let path = format!("{number:03}.txt");
        let bytes = paragraph["context"].as_str().unwrap().as_bytes().to_vec();
        files.push(InputFile { path: path.clone(), bytes });
        for question in paragraph["qas"].as_array().unwrap() {
            let id = question["id"].as_str().unwrap();
            questions.push((id.to_owned(), question["question"].as_str().unwrap().to_owned(), path.clone()));
        }
    }
    questions.sort();
    let step = questions.len() / 200;
    let questions: Vec<_> = questions.into_iter().step_by(step).take(200).collect();
    let plain = Corpus::build_or_load(files, None).unwrap();
    let texts: Vec<&str> = plain.passage_texts().flat_map(|(_, texts)| texts).collect();
    let (vectors, tokens, took) = embed(model.as_ref(), &texts).await;
    println!("{} passages, {tokens} tokens, {:.1} s", texts.len(), took.as_secs_f64());
    let mut all = PassageVectors::new(vectors[0].len());
    assert!(vectors.iter().all(|vector| all.push(vector)));
    let corpus = plain.with_vectors(all).unwrap();
    let mut wordings: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    wordings.insert("as asked", questions.iter().map(|(_, text, _)| text.clone()).collect());
    wordings
        .insert("without names and numbers", questions.iter().map(|(_, text, _)| drop_names(text)).collect());
    let other: Vec<String> =
        questions.iter().filter_map(|(id, _, _)| other_words[id].as_str().map(str::to_owned)).collect();
    if other.len() == questions.len() {
        wordings.insert("in other words", other);
    }
    for (wording, texts) in wordings {
        let (mut found, mut searches) = ([0; 2], [Duration::ZERO; 2]);
        let (mut tokens, mut waits) = (0, Vec::new());
        for (text, (_, _, path)) in texts.iter().zip(&questions) {
            let (vectors, used, took) = embed(model.as_ref(), &[text]).await;
            tokens += used;
            waits.push(took);
            for (at, vector) in [None, Some(vectors[0].as_slice())].into_iter().enumerate() {
                let began = Instant::now();
                let hits = corpus.search(SearchQuery { text, vector }, 5, 1).hits;
                searches[at] += began.elapsed();
                found[at] += usize::from(hits.iter().any(|hit| hit.document.path == *path));
            }
        }
        waits.sort();
        println!(
            "{wording}: recall at 5 of {}: {} by words, {} by words and meaning; search {:.2} and {:.2} ms, vector of a query \
             {:.0} ms in the middle and {:.0} ms at most, {tokens} tokens",
            texts.len(),
            found[0],
            found[1],
            searches[0].as_secs_f64() * 1e3 / texts.len() as f64,
            searches[1].as_secs_f64() * 1e3 / texts.len() as f64,
            waits[waits.len() / 2].as_secs_f64() * 1e3,
            waits[waits.len() - 1].as_secs_f64() * 1e3,
        );
    }
}

async fn embed(model: &dyn Model, texts: &[&str]) -> (Vec<Vec<f32>>, u64, Duration) {
    let (mut vectors, mut tokens, began) = (Vec::new(), 0, Instant::now());
    for batch in texts.chunks(32) {
        let reply = model.reply(&Request::for_embeddings(batch.iter().copied()), &()).await.unwrap();
        tokens += reply.usage.input_tokens;
        vectors.extend(reply.vectors);
    }
    (vectors, tokens, began.elapsed())
}

/// A question without the words that name something: those with digits, and those in upper case after the first.
fn drop_names(question: &str) -> String {
    let is_name = |word: &&str| {
        word.chars().any(|c| c.is_ascii_digit())
            || word.trim_start_matches('"').starts_with(char::is_uppercase)
    };
    let words: Vec<&str> = question.split_whitespace().collect();
    let kept = words.iter().enumerate().filter(|(at, word)| *at == 0 || !is_name(word));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}
