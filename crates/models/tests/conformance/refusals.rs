//! Refusals of parameters in the words of real servers, from public bug reports: a server on loopback refuses each request that has the
//! parameter, and accepts any other one. The table is in `refusals/`; half of it was put aside before the code was written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millrace_models::model::{AnswerSchema, Message, Model, ModelError, Request};
use millrace_models::selection::ModelSettings;
use millrace_models::wire::WireProtocol;
use millrace_models::{ModelFactory, ModelSelection};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::stub::{StubAction, chunked, read, response};
use super::wires::{content_type, stream_bytes, tool};

/// A wording of a refusal, with the refused fields and the expected outcome.
#[derive(Debug, Clone, Deserialize)]
struct Wording {
    source: String,
    model: String,
    /// The contents of the request: `tools`, `answer`, `both` or `probabilities`.
    asks: String,
    /// The fields that together are refused, as JSON pointers.
    refuses: Vec<String>,
    /// The largest value that is accepted.
    at_most: Option<u64>,
    /// The request has the other name of the limit, because an earlier refusal demanded it.
    #[serde(default)]
    renamed: bool,
    status: u16,
    body: String,
    #[serde(default)]
    settings: ModelSettings,
    /// `recovers`, `accepted` at once, the setting by whose name the request fails, or the kind of its error.
    then: String,
}

impl Wording {
    fn refuses(&self, body: &Value) -> bool {
        let is_refused = |pointer: &String| match body.pointer(pointer) {
            None | Some(Value::Bool(false)) => pointer == "/store" && body.get("store").is_some(),
            Some(value) => self.at_most.is_none_or(|most| value.as_u64().is_some_and(|sent| sent > most)),
        };
        self.refuses.iter().all(is_refused)
    }

    fn request(&self) -> Request {
        let has = |what: &str| self.asks == what || self.asks == "both";
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": false});
        Request {
            system: "Be short.".into(),
            messages: vec![Message::User { text: "Where is it?".into() }],
            tools: if has("tools") { vec![tool("read", "Reads.")] } else { Vec::new() },
            answer: has("answer").then(|| AnswerSchema { name: "place".into(), schema }),
            max_output_tokens: 200_000,
            first_token_probabilities: self.asks == "probabilities",
            ..Request::default()
        }
    }
}

/// A server that refuses requests as a wording says. It runs until the test ends.
struct RefusingServer {
    address: String,
    wording: Arc<Mutex<Option<Wording>>>,
    seen: Arc<Mutex<Vec<Value>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for RefusingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RefusingServer {
    async fn start(wording: Option<Wording>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (wording, seen) = (Arc::new(Mutex::new(wording)), Arc::new(Mutex::new(Vec::new())));
        let (current, bodies) = (wording.clone(), seen.clone());
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let Some(request) = read(&mut stream).await else { continue };
                let body = request.json();
                let refusal = current.lock().unwrap().clone().filter(|wording| wording.refuses(&body));
                bodies.lock().unwrap().push(body.clone());
                for action in answer(&request.line, &body, refusal.as_ref()) {
                    if let StubAction::Send(bytes) = action {
                        stream.write_all(&bytes).await.unwrap();
                    }
                }
                let _ = stream.shutdown().await;
            }
        });
        Self { address, wording, seen, task }
    }

    fn take_seen(&self) -> Vec<Value> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn answer(line: &str, body: &Value, refusal: Option<&Wording>) -> Vec<StubAction> {
    match refusal {
        Some(Wording { status: 200, body, .. }) => chunked("text/event-stream", &[body.as_bytes()]),
        Some(Wording { status, body, .. }) => {
            let kind = if body.starts_with(['{', '[']) { "application/json" } else { "text/plain" };
            response(*status, &[("content-type", kind)], body)
        }
        None if body["stream"] == false => {
            let message = json!({"role": "assistant", "content": ANSWER});
            let reply = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
            response(200, &[("content-type", "application/json")], reply.to_string())
        }
        None => {
            let (wire, events) = accepted(line);
            chunked(content_type(wire), &[&stream_bytes(wire, &events)])
        }
    }
}

const ANSWER: &str = r#"{"city": "Bern"}"#;

/// Returns the API that a request is for, and the events of a reply.
fn accepted(line: &str) -> (WireProtocol, Vec<Value>) {
    if line.contains("/responses") {
        let message = json!({"type": "message", "id": "m", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": ANSWER, "annotations": []}]});
        let done =
            json!({"type": "response.completed", "response": {"status": "completed", "output": [message]}});
        return (WireProtocol::OpenAiResponses, vec![done]);
    }
    if line.contains("/api/chat") {
        let done =
            json!({"message": {"role": "assistant", "content": ANSWER}, "done": true, "done_reason": "stop"});
        return (WireProtocol::Ollama, vec![done]);
    }
    if line.contains("GenerateContent") {
        let content = json!({"role": "model", "parts": [{"text": ANSWER}]});
        return (
            WireProtocol::Gemini,
            vec![json!({"candidates": [{"content": content, "finishReason": "STOP"}]})],
        );
    }
    if line.contains("/converse-stream") {
        let text = json!({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": ANSWER}}});
        let events = vec![
            json!({"messageStart": {"role": "assistant"}}),
            text,
            json!({"contentBlockStop": {"contentBlockIndex": 0}}),
            json!({"messageStop": {"stopReason": "end_turn"}}),
        ];
        return (WireProtocol::Bedrock, events);
    }
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": ANSWER}, "finish_reason": "stop"}]});
    (WireProtocol::OpenAiChat, vec![chunk])
}

fn model_at(wording: &Wording, address: &str, factory: &ModelFactory) -> Arc<dyn Model> {
    let mut selection = ModelSelection::parse(&format!("{}@{address}", wording.model)).unwrap();
    selection.models[0].settings = wording.settings.clone();
    factory.create(&selection, &|_| None).unwrap_or_else(|error| panic!("{}: {error}", wording.source))
}

fn factory() -> ModelFactory {
    ModelFactory {
        environment: Arc::new(|name| name.ends_with("_KEY").then(|| "k".into())),
        ..ModelFactory::default()
    }
}

/// Returns the outcome of a request, in the terms of the table, and the number of requests sent.
async fn outcome_of(wording: &Wording) -> (String, usize) {
    let server = RefusingServer::start(Some(wording.clone())).await;
    let model = model_at(wording, &server.address, &factory());
    if wording.renamed {
        let unsupported = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        let first = Wording {
            refuses: vec!["/max_tokens".into()],
            body: json!({"error": {"message": unsupported, "param": "max_tokens"}}).to_string(),
            ..wording.clone()
        };
        *server.wording.lock().unwrap() = Some(first);
        model.reply(&wording.request(), &()).await.unwrap();
        *server.wording.lock().unwrap() = Some(wording.clone());
        server.take_seen();
    }
    let reply = model.reply(&wording.request(), &()).await;
    let bodies = server.take_seen();
    let outcome = match reply {
        Ok(_) if wording.refuses(&bodies[0]) => "recovers".to_owned(),
        Ok(_) => "accepted".to_owned(),
        Err(ModelError::UnsupportedSetting { setting, .. }) => setting,
        Err(error) => error.error_kind_name().to_owned(),
    };
    (outcome, bodies.len())
}

/// Returns the wordings whose outcome differs from the table, each with its outcome, and the number of all wordings.
async fn failures_in(table: &str) -> (Vec<String>, usize) {
    let wordings: Vec<Wording> = serde_json::from_str(table).unwrap();
    let mut failures = Vec::new();
    let mut requests = BTreeMap::<usize, usize>::new();
    for wording in &wordings {
        let (outcome, sent) = outcome_of(wording).await;
        *requests.entry(sent).or_default() += 1;
        if outcome != wording.then {
            failures.push(format!(
                "{}: {} instead of {} ({sent} requests)",
                wording.source, outcome, wording.then
            ));
        }
    }
    println!("{} of {} wordings; requests: {requests:?}", wordings.len() - failures.len(), wordings.len());
    (failures, wordings.len())
}

#[tokio::test]
async fn public_wordings_of_refusals_lead_to_what_the_table_says() {
    let (failures, all) = failures_in(include_str!("refusals/at_hand.json")).await;
    assert!(failures.is_empty(), "{} of {all}:\n{}", failures.len(), failures.join("\n"));
}

/// Returns an invented wording that names a field.
fn naming(field: &str, model: &str, settings: ModelSettings) -> Wording {
    Wording {
        source: format!("made up for {field}"),
        model: model.into(),
        asks: if field == "response_format" { "answer".into() } else { "tools".into() },
        refuses: vec![format!("/{field}")],
        at_most: None,
        renamed: false,
        status: 400,
        body: json!({"oops": format!("Zork at line 1: the gnome ate \"{field}\" and wants no more")})
            .to_string(),
        settings,
        then: "recovers".into(),
    }
}

const SMALL: &str = "openai-compatible:qwen3-1.7b";

#[tokio::test]
async fn an_unknown_wording_that_names_a_parameter_recovers() {
    for field in ["tools", "response_format", "stream_options", "max_tokens", "temperature", "stream"] {
        let (outcome, sent) = outcome_of(&naming(field, SMALL, ModelSettings::default())).await;
        assert_eq!((outcome.as_str(), sent), ("recovers", 2), "{field}");
    }
}

#[tokio::test]
async fn what_was_learned_is_remembered_over_restarts_but_not_against_a_setting() {
    let cache = tempfile::tempdir().unwrap();
    let with_cache = || ModelFactory { cache: Some(cache.path().to_owned()), ..factory() };
    let wording = naming("temperature", SMALL, ModelSettings::default());
    let server = RefusingServer::start(Some(wording.clone())).await;
    let ask = async |wording: &Wording| {
        let model = model_at(wording, &server.address, &with_cache());
        let outcome = model.reply(&wording.request(), &()).await;
        (outcome, server.take_seen().len(), model.adaptations())
    };
    let (first, sent, adaptations) = ask(&wording).await;
    let learned = vec![format!("{SMALL}@{}: no `temperature`", server.address)];
    assert_eq!((first.is_ok(), sent, &adaptations), (true, 2, &learned));
    let (again, sent, adaptations) = ask(&wording).await;
    assert_eq!((again.is_ok(), sent, &adaptations), (true, 1, &learned), "another process knows it");
    let settings = ModelSettings { temperature: Some(0.7), ..ModelSettings::default() };
    let (refused, sent, _) = ask(&Wording { settings, ..wording }).await;
    assert!(
        matches!(refused, Err(ModelError::UnsupportedSetting { setting, .. }) if setting == "temperature")
    );
    assert_eq!(sent, 1, "a setting is sent although the server is known to refuse it");
}

/// The reply of a server without a parser for calls is text, and a call in it counts.
#[tokio::test]
async fn calls_are_requested_as_json_where_tools_are_refused() {
    let wording = naming("tools", SMALL, ModelSettings::default());
    let server = RefusingServer::start(Some(wording.clone())).await;
    let model = model_at(&wording, &server.address, &factory());
    model.reply(&wording.request(), &()).await.unwrap();
    let [refused, accepted] = &server.take_seen()[..] else { panic!("two requests") };
    assert!(refused.get("tools").is_some() && accepted.get("tools").is_none());
    assert!(accepted["messages"][0]["content"].as_str().unwrap().contains("TOOL \"read\""), "{accepted}");
    assert!(
        accepted["response_format"]["json_schema"]["schema"].to_string().contains("arguments"),
        "{accepted}"
    );
}

#[tokio::test]
async fn an_error_that_names_nothing_is_returned_if_the_least_request_fails_too() {
    let wording = Wording {
        refuses: vec!["/messages".into()],
        body: "{}".into(),
        ..naming("x", SMALL, ModelSettings::default())
    };
    let server = RefusingServer::start(Some(wording.clone())).await;
    let model = model_at(&wording, &server.address, &factory());
    for _ in 0..2 {
        assert!(matches!(model.reply(&wording.request(), &()).await, Err(ModelError::BadRequest { .. })));
    }
    assert_eq!(server.take_seen().len(), 4, "the least request is tried once for each");
    assert_eq!(model.adaptations(), Vec::<String>::new());
}

/// The half of the table that was put aside before the code was written.
#[tokio::test]
async fn wordings_that_were_put_aside_lead_to_what_the_table_says() {
    let (failures, all) = failures_in(include_str!("refusals/put_aside.json")).await;
    assert!(failures.is_empty(), "{} of {all}:\n{}", failures.len(), failures.join("\n"));
}

/// The page lists each wording by its source, with a mark for those that were put aside.
#[test]
fn page_of_refusals_lists_the_wordings_of_both_halves() {
    let sources = |table: &str, mark: &str| -> Vec<String> {
        let wordings: Vec<Wording> = serde_json::from_str(table).unwrap();
        wordings.into_iter().map(|wording| format!("{}{mark}", wording.source)).collect()
    };
    let at_hand = sources(include_str!("refusals/at_hand.json"), "");
    let mut tables = [at_hand, sources(include_str!("refusals/put_aside.json"), " ○")].concat();
    let page = include_str!("../../../../docs/refusals.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut listed: Vec<&str> =
        rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next()).map(str::trim).collect();
    tables.sort();
    listed.sort_unstable();
    assert_eq!(listed, tables);
}
