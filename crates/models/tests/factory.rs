//! Complete models without a provider, from a selection to a reply: scripts, cassettes, fallbacks, and errors.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_models::cassette::CallLabels;
use millrace_models::factory::check_selection;
use millrace_models::model::{Delta, DeltaListener, Message, Model, ModelAbility, ModelError, Reply};
use millrace_models::provider::ModelNameError;
use millrace_models::{CreateModelError, ModelFactory, ModelSelection};

use crate::support::{FakeModel, bad_request, reply, request, request_of};

fn none(_: &str) -> Option<Arc<dyn Model>> {
    None
}

/// Returns a factory whose environment has only these variables.
fn factory_with(variables: &[(&str, &str)]) -> ModelFactory {
    let set: Vec<(String, String)> =
        variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let look_up =
        move |name: &str| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    ModelFactory { environment: Arc::new(look_up), ..ModelFactory::default() }
}

fn refused(selection: &str, variables: &[(&str, &str)]) -> String {
    let selection = ModelSelection::parse(selection).unwrap();
    match factory_with(variables).create(&selection, &none) {
        Ok(model) => panic!("{} was created", model.name()),
        Err(error) => error.to_string(),
    }
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn names_are_checked_without_keys() {
    let built_in =
        |name: &str| (name == "builtin:puppet").then(|| FakeModel::new([reply("")]) as Arc<dyn Model>);
    let check = |selection: &str| check_selection(&ModelSelection::parse(selection).unwrap(), &built_in);
    for good in [
        "openai:gpt-6-sol, anthropic:claude-opus-5-5",
        "builtin:puppet",
        "script:nowhere.yaml",
        "openai-compatible:qwen@http://127.0.0.1:8081/v1",
    ] {
        check(good).unwrap();
    }
    let typo = check("openai:gpt-6-sol, antropic:claude").unwrap_err().to_string();
    assert!(typo.contains("\"antropic:claude\"; did you mean anthropic?"), "{typo}");
    assert!(matches!(
        check("builtin:other"),
        Err(CreateModelError::Name(ModelNameError::UnknownProvider { .. }))
    ));
    assert!(
        millrace_models::factory::check_selection(&ModelSelection { models: Vec::new() }, &built_in).is_err()
    );
}

#[test]
fn every_hosted_provider_works_with_its_key() {
    let tail = "gemini vertex bedrock groq xai deepseek cohere mistral together fireworks nebius zai moonshot github";
    for name in tail.split(' ') {
        let name = format!("{name}:m");
        // Vertex AI has no address without a project.
        let project = ("VERTEX_PROJECT_ID", "p");
        let refused = refused(&name, &[project]);
        let variable = refused.split("set ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        factory_with(&[(variable, "k"), project])
            .create(&ModelSelection::parse(&name).unwrap(), &none)
            .unwrap();
    }
}

#[test]
fn errors_name_what_is_missing() {
    assert!(refused("openai:gpt-6-sol", &[]).contains("set OPENAI_API_KEY"));
    let stand_in = refused("openai:gpt-6-sol, anthropic:x", &[("OPENAI_API_KEY", "k")]);
    assert!(stand_in.contains("set ANTHROPIC_API_KEY"), "{stand_in}");
    assert!(refused("script:/nowhere/x.yaml", &[]).contains("/nowhere/x.yaml"));
    assert!(refused("replay:/nowhere/x.jsonl", &[]).contains("/nowhere/x.jsonl"));
    let prices = [("OPENAI_API_KEY", "k"), ("MILLRACE_PRICES", "/nowhere/p.yaml")];
    assert!(refused("openai:gpt-6-sol", &prices).contains("/nowhere/p.yaml"));
}

#[tokio::test]
async fn models_of_one_script_share_its_rule_counts() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "rules:\n- times: 1\n  reply: {text: first}\n- reply: {text: second}\n";
    let file = write(folder.path(), "script.yaml", rules);
    let factory = factory_with(&[]);
    let selection = ModelSelection::parse(&format!("script:{file}")).unwrap();
    for expected in ["first", "second", "second"] {
        let model = factory.clone().create(&selection, &none).unwrap();
        assert_eq!(model.name(), format!("script:{file}"));
        assert_eq!(model.reply(&request(), &()).await.unwrap().text, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn scripted_errors_are_retried_only_with_tries() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "rules:\n- times: 2\n  reply: {error: overloaded}\n- reply: {text: well}\n";
    let once = write(folder.path(), "once.yaml", rules);
    let often = write(folder.path(), "often.yaml", &format!("tries: 5\n{rules}"));
    let ask = async |file: &str| {
        let model = factory_with(&[])
            .create(&ModelSelection::parse(&format!("script:{file}")).unwrap(), &none)
            .unwrap();
        model.reply(&request(), &()).await
    };
    assert!(matches!(ask(&once).await, Err(ModelError::Overloaded { .. })));
    assert_eq!(ask(&often).await.unwrap().text, "well");
}

#[tokio::test]
async fn a_fallback_answers_if_the_first_model_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let first = write(folder.path(), "a.yaml", "rules: [{reply: {error: authentication}}]");
    let other = write(folder.path(), "b.yaml", "rules: [{reply: {text: here}}]");
    let selection = ModelSelection::parse(&format!("script:{first}, script:{other}")).unwrap();
    let reply = factory_with(&[]).create(&selection, &none).unwrap().reply(&request(), &()).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.model), ("here", Some(format!("script:{other}"))));
}

/// Records a fake model on a cassette.
async fn record(file: &Path, outcomes: Vec<(&str, Result<Reply, ModelError>)>) {
    let factory = ModelFactory { record_file: Some(file.to_owned()), ..factory_with(&[]) };
    let (texts, outcomes): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
    let fake = FakeModel::new(outcomes);
    let built_in = |_: &str| Some(fake.clone() as Arc<dyn Model>);
    let model = factory.create(&ModelSelection::parse("a:fake").unwrap(), &built_in).unwrap();
    let model = factory.record(model, CallLabels::default());
    for text in texts {
        let _ = model.reply(&request_of(text), &()).await;
    }
}

fn player(file: &Path) -> Arc<dyn Model> {
    factory_with(&[])
        .create(&ModelSelection::parse(&format!("replay:{}", file.display())).unwrap(), &none)
        .unwrap()
}

#[tokio::test]
async fn recorded_replies_and_errors_are_replayed_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.jsonl");
    record(&file, vec![("a", bad_request("no")), ("b", reply("b1"))]).await;
    record(&file, vec![("a", reply("a2")), ("a", reply("a3"))]).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 4);
    let player = player(&file);
    let play = async |text: &str| {
        let outcome = player.reply(&request_of(text), &()).await;
        outcome.map_or_else(|error| error.to_string(), |reply| reply.text)
    };
    assert!(play("a").await.contains("no"));
    for (text, answer) in [("a", "a2"), ("b", "b1"), ("a", "a3"), ("a", "a3"), ("b", "b1")] {
        assert_eq!(play(text).await, answer);
    }
}

#[tokio::test]
async fn an_unrecorded_request_is_compared_with_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.jsonl");
    record(&file, vec![("far away", reply("1")), ("the question of patents in 2024", reply("2"))]).await;
    let player = player(&file);
    let error =
        player.reply(&request_of("the question of patents in 2025"), &()).await.unwrap_err().to_string();
    assert!(error.contains("differs first in messages[0].text from character 31"), "{error}");
    assert!(error.contains("in 2024\", requested") && error.contains("in 2025\""), "{error}");
    let mut longer = request_of("the question of patents in 2024");
    longer.messages.push(Message::User { text: "more".into() });
    let error = player.reply(&longer, &()).await.unwrap_err().to_string();
    assert!(
        error.contains("line 2 and differs first in messages[1]: recorded nothing, requested"),
        "{error}"
    );
    assert!(!ModelError::is_transient(&player.reply(&longer, &()).await.unwrap_err()));
}

#[tokio::test]
async fn recordings_have_times_labels_and_calls_that_were_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.jsonl");
    let script = write(
        folder.path(),
        "slow.yaml",
        &format!(
            "rules:\n- when: {{last: slow}}\n  reply: {{text: {}, delay: 100, pieces: 1000}}\n- reply: {{text: quick}}\n",
            "x".repeat(1_000)
        ),
    );
    let factory = ModelFactory { record_file: Some(file.clone()), ..factory_with(&[]) };
    let inner = factory.create(&ModelSelection::parse(&format!("script:{script}")).unwrap(), &none).unwrap();
    let labels = CallLabels {
        run: Some("r".into()),
        role: Some("research".into()),
        task: Some("a".into()),
        attempt: Some(2),
    };
    let model = factory.record(inner, labels);
    assert_eq!(model.reply(&request_of("fast"), &()).await.unwrap().text, "quick");
    // The request is given up once the first part of its reply is there.
    let (slow, first) = (request_of("slow"), tokio::sync::Notify::new());
    let listener = FirstText(&first);
    tokio::select! {
        _ = model.reply(&slow, &listener) => panic!("the reply takes longer"),
        () = first.notified() => {}
    }
    let lines: Vec<serde_json::Value> = std::fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for line in &lines {
        let labels = (&line["run"], &line["role"], &line["task"], &line["attempt"]);
        assert_eq!(labels, (&"r".into(), &"research".into(), &"a".into(), &2.into()), "{line:#}");
        assert!(line["at"].is_string() && line["seconds"].is_number(), "{line:#}");
        assert!(line["first_token_seconds"].is_number(), "{line:#}");
    }
    assert_eq!(lines[0]["reply"]["text"], "quick");
    assert!(!lines[1]["cut_off"]["text"].as_str().unwrap().is_empty(), "{:#}", lines[1]);
    let player = player(&file);
    assert_eq!(player.reply(&request_of("fast"), &()).await.unwrap().text, "quick");
    assert!(player.reply(&slow, &()).await.is_err(), "a call without an outcome is not replayed");
}

/// Notifies of the first text of a reply.
struct FirstText<'a>(&'a tokio::sync::Notify);

impl DeltaListener for FirstText<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        if let Delta::Text(_) = delta {
            self.0.notify_one();
        }
    }
}

#[tokio::test]
async fn recordings_of_release_0_4_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let request = serde_json::to_value(request_of("a")).unwrap();
    let line = serde_json::json!({"model": "openai:x", "request": request, "reply": {"text": "old", "finish": "stop"}});
    let file = folder.path().join("tape.jsonl");
    std::fs::write(&file, format!("{line}\n")).unwrap();
    assert_eq!(player(&file).reply(&request_of("a"), &()).await.unwrap().text, "old");
}

#[tokio::test]
async fn a_call_ends_at_the_time_limit_of_the_process_unless_its_model_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let script = write(folder.path(), "slow.yaml", "rules:\n- reply: {text: x, delay: 600}\n");
    let factory = ModelFactory { call_timeout: Some(Duration::from_millis(30)), ..factory_with(&[]) };
    let mut selection = ModelSelection::parse(&format!("script:{script}")).unwrap();
    let ask = async |selection: &ModelSelection| {
        let model = factory.create(selection, &none).unwrap();
        model.reply(&request(), &()).await.unwrap_err()
    };
    assert_eq!(ask(&selection).await, ModelError::Timeout { after: Duration::from_millis(30) });
    selection.models[0].settings.timeout = Some(0.02);
    assert_eq!(ask(&selection).await, ModelError::Timeout { after: Duration::from_millis(20) });
}

#[tokio::test]
async fn incomplete_last_lines_are_ignored_and_invalid_ones_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.jsonl");
    record(&file, vec![("a", reply("1"))]).await;
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{whole}{}", &whole[..40])).unwrap();
    assert_eq!(player(&file).reply(&request_of("a"), &()).await.unwrap().text, "1");
    std::fs::write(&file, format!("{whole}nonsense\n{whole}")).unwrap();
    let refused = refused(&format!("replay:{}", file.display()), &[]);
    assert!(refused.contains("line 2"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_models_may_record_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.jsonl");
    let long = "x".repeat(100_000);
    let all = (0..8).map(|_| record(&file, (0..8).map(|_| (long.as_str(), reply(&long))).collect()));
    futures::future::join_all(all).await;
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 64);
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
}

/// Starts a server that answers one request with status 401 and the received key; the thread returns the request.
fn refusing_server() -> (String, std::thread::JoinHandle<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut sent = String::new();
        let mut buffer = [0; 65_536];
        while !sent.ends_with('}') {
            let count = stream.read(&mut buffer).unwrap();
            sent.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        let body = r#"{"error":{"message":"Incorrect API key provided: sk-very-secret-0123456789","code":"invalid_api_key"}}"#;
        let head = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close\r\n";
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        sent
    });
    (address, server)
}

#[tokio::test]
async fn cassettes_contain_no_api_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tape.jsonl");
    let (address, server) = refusing_server();
    let set = [
        ("OPENAI_COMPATIBLE_API_KEY", "sk-very-secret-0123456789"),
        ("OPENAI_COMPATIBLE_BASE_URL", &address),
    ];
    let factory = ModelFactory { record_file: Some(file.clone()), ..factory_with(&set) };
    let model = factory.create(&ModelSelection::parse("openai-compatible:x").unwrap(), &none).unwrap();
    let model = factory.record(model, CallLabels::default());
    let error = model.reply(&request_of("hello"), &()).await.unwrap_err();
    assert!(matches!(error, ModelError::Authentication { .. }), "{error}");
    assert!(server.join().unwrap().contains("sk-very-secret-0123456789"), "the key was sent");
    let tape = std::fs::read_to_string(&file).unwrap();
    assert!(tape.contains("authentication") && !tape.contains("sk-very-secret"), "{tape}");
    assert!(!error.to_string().contains("sk-very-secret"), "{error}");
}

#[test]
fn file_of_models_sets_window_and_ability() {
    let folder = tempfile::tempdir().unwrap();
    let models = "providers:\n- {provider: openai, as_of: 2026-11-01, source: x, models: \
                  {gpt-6-sol: {context_window: 9000, prompts: small}}}\n";
    let file = write(folder.path(), "models.yaml", models);
    let open = |variables: &[(&str, &str)]| {
        let selection = ModelSelection::parse("openai:gpt-6-sol").unwrap();
        let model =
            factory_with(variables).create(&selection, &none).unwrap_or_else(|error| panic!("{error}"));
        (model.context_window(), model.ability())
    };
    let key = ("OPENAI_API_KEY", "k");
    assert_eq!(open(&[key]), (Some(400_000), ModelAbility::Strong));
    assert_eq!(open(&[key, ("MILLRACE_PRICES", &file)]), (Some(9_000), ModelAbility::Small));
    let set = [key, ("MILLRACE_PRICES", file.as_str()), ("MILLRACE_CONTEXT_WINDOW", "20000")];
    assert_eq!(open(&set), (Some(20_000), ModelAbility::Small), "the variable applies before the file");
}

#[test]
fn every_layer_names_the_model_whose_cost_is_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("script:{}", write(folder.path(), "model.yaml", "rules:\n- reply: {text: quick}\n"));
    let file = Some(folder.path().join("tape.jsonl"));
    let environment = factory_with(&[("OPENAI_API_KEY", "k"), ("OPENROUTER_API_KEY", "k")]);
    for (selection, uncounted) in [
        ("openai:unheard-of", Some("openai:unheard-of")),
        ("openai:gpt-4o, openai:unheard-of", Some("openai:unheard-of")),
        ("openai:unheard-of, openai:gpt-4o", Some("openai:unheard-of")),
        ("openai:gpt-4o", None),
        ("ollama:unheard-of", None),
        ("openrouter:unheard/of", None),
        (script.as_str(), None),
    ] {
        for record_file in [None, file.clone()] {
            let factory = ModelFactory { record_file, ..environment.clone() };
            let inner = factory.create(&ModelSelection::parse(selection).unwrap(), &none).unwrap();
            assert_eq!(inner.uncounted_cost(), uncounted, "{selection}");
            let recorded = factory.record(inner, CallLabels::default());
            assert_eq!(recorded.uncounted_cost(), uncounted, "{selection}");
        }
    }
}
