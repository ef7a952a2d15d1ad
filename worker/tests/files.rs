//! Capability files at work against a real NATS server: programs and services, what they get and give, and what becomes
//! of them when a worker is lost.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::work::{Entry, Outcome};
use millrace_tests::eventually;
use millrace_worker::{Agent, CancellationToken, Capability, Config, ToolError, WorkerId, file, run, tool};
use serde_json::json;
use support::{Cluster, PATIENCE, order};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn capability(folder: &TempDir, text: &str) -> Arc<dyn Capability> {
    let path = folder.path().join("own.yaml");
    std::fs::write(&path, text).unwrap();
    file::open(path.to_str().unwrap()).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A worker that offers one capability until the token is cancelled, or its task aborted.
fn work(
    cluster: &Cluster,
    id: &str,
    offered: Arc<dyn Capability>,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let config = Config {
        id: Some(WorkerId::new(id).unwrap()),
        document_cache: None,
        ..Config::new(cluster.connection(), vec![offered])
    };
    let stop = CancellationToken::new();
    let running = run(config, stop.clone());
    (stop, tokio::spawn(async move { running.await.unwrap() }))
}

async fn error(cluster: &Cluster, order: &millrace_protocol::work::Order) -> TaskError {
    match cluster.outcome(order).await.1 {
        Outcome::Errored(error) => error,
        other @ (Outcome::Finished { .. } | Outcome::Judged(_) | Outcome::Proposed { .. }) => {
            panic!("{other:?}")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_its_task_tells_its_progress_and_gives_its_result() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = "echo begun >&2; task=$(cat); echo \"$task\" > got.json; printf '{\"words\": 3}'";
    let text = format!(
        "{{kind: command, name: own, description: x, effect: pure, command: [sh, -c, {}], \
         output: {{type: object, required: [words]}}}}",
        json!(script)
    );
    let (stop, done) = work(&cluster, "w", capability(&folder, &text).await);
    let order = order("own", "count", json!({"text": "a b c"}));
    cluster.offer(&order).await;
    let (_, result) = cluster.result(&order).await;
    assert_eq!(result.data, Some(json!({"words": 3})));
    let got: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("got.json")).unwrap()).unwrap();
    assert_eq!(
        (&got["task"], &got["key"], &got["parameters"]["text"]),
        (&json!("count"), &json!("r/count/1"), &json!("a b c"))
    );
    let notes = cluster.journal(&order).await;
    assert!(notes.iter().any(|(_, entry)| matches!(entry, Entry::Note { text } if text == "begun")));
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_or_takes_too_long_ends_with_its_last_words_and_leaves_nothing_behind() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let failing =
        "{kind: command, name: own, description: x, command: [sh, -c, 'echo no mill here >&2; exit 3']}";
    let (stop, done) = work(&cluster, "w", capability(&folder, failing).await);
    let first = order("own", "failing", json!({}));
    cluster.offer(&first).await;
    let told = error(&cluster, &first).await;
    assert_eq!(told.kind, ErrorKind::Tool);
    assert!(told.message.contains("exit status: 3") && told.message.contains("no mill here"), "{told}");
    stop.cancel();
    done.await.unwrap();

    let slow = "{kind: command, name: slow, description: x, timeout: 1, command: [sh, -c, 'sleep 300 & echo $! > pid; wait']}";
    let (stop, done) = work(&cluster, "w2", capability(&folder, slow).await);
    let second = order("slow", "slow", json!({}));
    cluster.offer(&second).await;
    assert!(error(&cluster, &second).await.message.contains("did not end within 1s"));
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    eventually(PATIENCE, "the end of what the program started", async || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_begun_and_lost_is_told_and_not_run_again() {
    let cluster = Cluster::with_lease(std::time::Duration::from_secs(1)).await;
    let folder = tempfile::tempdir().unwrap();
    let text = "{kind: command, name: own, description: x, command: [sh, -c, 'echo run >> runs; sleep 300']}";
    let (_, lost) = work(&cluster, "lost", capability(&folder, text).await);
    let order = order("own", "once", json!({}));
    cluster.offer(&order).await;
    let runs = || std::fs::read_to_string(folder.path().join("runs")).unwrap_or_default();
    eventually(PATIENCE, "the program's beginning", async || (!runs().is_empty()).then_some(())).await;
    lost.abort();
    let (stop, done) = work(&cluster, "next", capability(&folder, text).await);
    let told = error(&cluster, &order).await;
    assert!(told.message.contains("lost before the outcome was known"), "{told}");
    assert!(!told.kind.is_retryable(), "another attempt would run it again");
    assert_eq!(runs(), "run\n");
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_must_not_run_twice_is_tried_again_only_where_it_said_that_it_failed() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    for (id, effect, script, settings, kind) in [
        ("says-so", "effect", "exit 3", "timeout: 20", ErrorKind::Tool),
        ("too-slow", "effect", "sleep 300", "timeout: 1", ErrorKind::Unclear),
        ("too-slow-pure", "pure", "sleep 300", "timeout: 1", ErrorKind::Tool),
        ("killed", "effect", "kill -9 $$", "timeout: 20", ErrorKind::Unclear),
        ("silent", "effect", "true", "timeout: 20", ErrorKind::Unclear),
        // Not after its time: as soon as it is known.
        ("loud", "effect", "trap '' PIPE; echo far too much; sleep 300", "max_output: 3", ErrorKind::Unclear),
    ] {
        let command = json!(["sh", "-c", script]);
        let text = format!(
            "{{kind: command, name: own, description: x, effect: {effect}, {settings}, command: {command}}}"
        );
        let (stop, done) = work(&cluster, id, capability(&folder, &text).await);
        let order = order("own", id, json!({}));
        cluster.offer(&order).await;
        let told = error(&cluster, &order).await;
        assert_eq!(told.kind, kind, "{id}: {told}");
        stop.cancel();
        done.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_leaves_behind_ends_with_it_and_is_not_waited_for() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = "{kind: command, name: own, description: x, command: [sh, -c, 'sleep 300 & echo $!']}";
    let (stop, done) = work(&cluster, "w", capability(&folder, text).await);
    let order = order("own", "leaves", json!({"text": "x".repeat(200_000)}));
    cluster.offer(&order).await;
    let pid = cluster.result(&order).await.1.output;
    eventually(PATIENCE, "the end of what the program started", async || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    stop.cancel();
    done.await.unwrap();
}

/// Answers each request with the next of these, and gives what was asked.
async fn serve(listener: TcpListener, answers: Vec<&'static str>) -> Vec<String> {
    let mut asked = Vec::new();
    for answer in answers {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !String::from_utf8_lossy(&request).contains("\"final\":") {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).await.unwrap();
            request.extend_from_slice(&buffer[..count]);
        }
        asked.push(String::from_utf8_lossy(&request).to_lowercase());
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_asked_again_with_the_same_key_until_it_answers() {
    let cluster = Cluster::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve(
        listener,
        vec![
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbusy",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 17\r\n\r\n{\"output\": \"done\"",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 18\r\n\r\n{\"output\": \"done\"}",
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 8\r\n\r\nno mills",
        ],
    ));
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{{kind: http, name: own, description: x, url: 'http://{address}/do?token=secret', headers: {{x-home: '${{HOME}}'}}}}"
    );
    let (stop, done) = work(&cluster, "w", capability(&folder, &text).await);
    let (first, second, third) =
        (order("own", "a", json!({})), order("own", "b", json!({})), order("own", "c", json!({})));
    cluster.offer(&first).await;
    // An answer that is no JSON is text: the service says what it says.
    assert_eq!(cluster.result(&first).await.1.output, "{\"output\": \"done\"");
    cluster.offer(&second).await;
    assert_eq!(cluster.result(&second).await.1.output, "done");
    cluster.offer(&third).await;
    let told = error(&cluster, &third).await.message;
    assert!(told.contains("400 Bad Request no mills") && !told.contains("secret"), "{told}");
    let asked = serving.await.unwrap();
    assert!(asked[..2].iter().all(|request| request.contains("idempotency-key: r/a/1\r\n")), "{asked:?}");
    assert!(asked[0].starts_with("post /do?token=secret http/1.1\r\n") && asked[0].contains("x-home: /"));
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_must_not_be_asked_twice_is_not_where_it_may_have_done_its_work() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    for (id, answer, kind) in [
        (
            "broken-off",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 99\r\n\r\n{",
            ErrorKind::Unclear,
        ),
        ("failing", "HTTP/1.1 500 Oh\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", ErrorKind::Unclear),
        ("silent", "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", ErrorKind::Unclear),
        ("refusing", "HTTP/1.1 400 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", ErrorKind::Tool),
        (
            "busy for ever",
            "HTTP/1.1 429 No\r\nconnection: close\r\nretry-after: 18446744073709551615\r\ncontent-length: 0\r\n\r\n",
            ErrorKind::Tool,
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let text =
            format!("{{kind: http, name: own, description: x, effect: effect, url: 'http://{address}'}}");
        let (stop, done) = work(&cluster, "w", capability(&folder, &text).await);
        let order = order("own", &id.replace(' ', "-"), json!({}));
        cluster.offer(&order).await;
        // A second request would find nobody, and be made again and again.
        serve(listener, vec![answer]).await;
        let told = error(&cluster, &order).await;
        assert_eq!(told.kind, kind, "{id}: {told}");
        stop.cancel();
        done.await.unwrap();
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_is_out_of_reach_for_a_moment_costs_no_attempt_and_no_reply() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    let turns = "{ledger: asked, rules: [{turns: [{calls: [find]}, {text: done}]}]}";
    std::fs::write(&script, turns).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let find = tool("find", "Finds.", move |Nothing {}: Nothing, _| {
        let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first { Err(ToolError::Unavailable("no answer".into())) } else { Ok("found".to_owned()) }
        }
    });
    let agent = Agent::new("own", "Finds.").instructions("Find it.").tool(find);
    let agent = agent.model(&format!("script:{}", script.display())).build().unwrap();
    let (stop, done) = work(&cluster, "w", agent);
    let order = order("own", "find", json!({}));
    cluster.offer(&order).await;
    assert_eq!(cluster.result(&order).await.1.output, "done");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    assert_eq!(asked.lines().count(), 2, "each reply is asked for once: {asked}");
    stop.cancel();
    done.await.unwrap();
}
