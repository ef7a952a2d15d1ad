//! Capability files of the kinds `command` and `http` against a real NATS server: input, output, failures, and what
//! happens to the work when a worker is lost.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Cluster, PATIENCE, build_order};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::wait::{EndedWait, WaitEnd};
use millrace_protocol::work::{JournalEntry, Order, WorkOutcome};
use millrace_tests::wait_for_value;
use millrace_worker::{
    Agent, AgentHostConfig, CancellationToken, Capability, ToolError, WorkerConfig, WorkerId, file,
    run_worker, tool,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn open_capability(folder: &TempDir, text: &str) -> Arc<dyn Capability> {
    let path = folder.path().join("own.yaml");
    std::fs::write(&path, text).unwrap();
    file::open_capability_by_name(path.to_str().unwrap()).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A worker that offers one capability until the token is cancelled, or its task aborted.
fn start_worker(
    cluster: &Cluster,
    id: &str,
    offered: Arc<dyn Capability>,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let host = AgentHostConfig {
        id: Some(WorkerId::new(id).unwrap()),
        document_cache: None,
        ..AgentHostConfig::new(cluster.connection())
    };
    let config = WorkerConfig { capabilities: vec![offered], host };
    let stop = CancellationToken::new();
    let running = run_worker(config, stop.clone());
    (stop, tokio::spawn(async move { running.await.unwrap() }))
}

async fn await_error(cluster: &Cluster, order: &Order) -> TaskError {
    match cluster.await_outcome(order).await.1 {
        WorkOutcome::Errored(error) => error,
        other @ (WorkOutcome::Finished { .. } | WorkOutcome::Judged(_) | WorkOutcome::Proposed { .. }) => {
            panic!("{other:?}")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_reads_its_task_and_writes_progress_and_result() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = "echo begun >&2; task=$(cat); echo \"$task\" > got.json; printf '{\"words\": 3}'";
    let text = format!(
        "{{kind: command, name: own, description: x, effect: pure, command: [sh, -c, {}], \
         output: {{type: object, required: [words]}}}}",
        json!(script)
    );
    let (stop, done) = start_worker(&cluster, "w", open_capability(&folder, &text).await);
    let order = build_order("own", "count", json!({"text": "a b c"}));
    cluster.publish_order(&order).await;
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(result.data, Some(json!({"words": 3})));
    let got: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("got.json")).unwrap()).unwrap();
    assert_eq!(
        (&got["task"], &got["key"], &got["parameters"]["text"]),
        (&json!("count"), &json!("r/count/1"), &json!("a b c"))
    );
    let notes = cluster.read_journal(&order).await;
    assert!(
        notes.iter().any(|(_, entry)| matches!(entry, JournalEntry::Note { text, .. } if text == "begun"))
    );
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_or_slow_program_is_killed_and_its_output_reported() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let failing =
        "{kind: command, name: own, description: x, command: [sh, -c, 'echo no mill here >&2; exit 3']}";
    let (stop, done) = start_worker(&cluster, "w", open_capability(&folder, failing).await);
    let first = build_order("own", "failing", json!({}));
    cluster.publish_order(&first).await;
    let failure = await_error(&cluster, &first).await;
    assert_eq!(failure.kind, ErrorKind::Tool);
    assert!(
        failure.message.contains("exit status: 3") && failure.message.contains("no mill here"),
        "{failure}"
    );
    stop.cancel();
    done.await.unwrap();

    let slow = "{kind: command, name: slow, description: x, timeout: 1, command: [sh, -c, 'sleep 300 & echo $! > pid; wait']}";
    let (stop, done) = start_worker(&cluster, "w2", open_capability(&folder, slow).await);
    let second = build_order("slow", "slow", json!({}));
    cluster.publish_order(&second).await;
    assert!(await_error(&cluster, &second).await.message.contains("timed out after 1s"));
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    wait_for_value(PATIENCE, "the end of the program's children", async || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_a_lost_worker_is_not_run_again() {
    let cluster = Cluster::start_with_lease(std::time::Duration::from_secs(1)).await;
    let folder = tempfile::tempdir().unwrap();
    let text = "{kind: command, name: own, description: x, command: [sh, -c, 'echo run >> runs; sleep 300']}";
    let (_, lost) = start_worker(&cluster, "lost", open_capability(&folder, text).await);
    let order = build_order("own", "once", json!({}));
    cluster.publish_order(&order).await;
    let runs = || std::fs::read_to_string(folder.path().join("runs")).unwrap_or_default();
    wait_for_value(PATIENCE, "the program's start", async || (!runs().is_empty()).then_some(())).await;
    lost.abort();
    let (stop, done) = start_worker(&cluster, "next", open_capability(&folder, text).await);
    let failure = await_error(&cluster, &order).await;
    assert!(failure.message.contains("lost before the outcome was recorded"), "{failure}");
    assert!(!failure.kind.is_retryable(), "another attempt would run it again");
    assert_eq!(runs(), "run\n");
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_with_effect_is_retried_only_after_a_reported_failure() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    for (id, effect, script, settings, kind) in [
        ("says-so", "effect", "exit 3", "timeout: 20", ErrorKind::Tool),
        ("too-slow", "effect", "sleep 300", "timeout: 1", ErrorKind::Unclear),
        ("too-slow-pure", "pure", "sleep 300", "timeout: 1", ErrorKind::Tool),
        ("killed", "effect", "kill -9 $$", "timeout: 20", ErrorKind::Unclear),
        ("silent", "effect", "true", "timeout: 20", ErrorKind::Unclear),
        // Fails as soon as the limit is exceeded, not at the timeout.
        ("loud", "effect", "trap '' PIPE; echo far too much; sleep 300", "max_output: 3", ErrorKind::Unclear),
    ] {
        let command = json!(["sh", "-c", script]);
        let text = format!(
            "{{kind: command, name: own, description: x, effect: {effect}, {settings}, command: {command}}}"
        );
        let (stop, done) = start_worker(&cluster, id, open_capability(&folder, &text).await);
        let order = build_order("own", id, json!({}));
        cluster.publish_order(&order).await;
        let failure = await_error(&cluster, &order).await;
        assert_eq!(failure.kind, kind, "{id}: {failure}");
        stop.cancel();
        done.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_program_are_killed_with_it() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = "{kind: command, name: own, description: x, command: [sh, -c, 'sleep 300 & echo $!']}";
    let (stop, done) = start_worker(&cluster, "w", open_capability(&folder, text).await);
    let order = build_order("own", "leaves", json!({ "text": "x".repeat(200_000) }));
    cluster.publish_order(&order).await;
    let pid = cluster.await_result(&order).await.1.output;
    wait_for_value(PATIENCE, "the end of the program's children", async || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    stop.cancel();
    done.await.unwrap();
}

/// Answers each request with the next response, and returns the requests.
async fn serve_responses(listener: TcpListener, responses: Vec<&'static str>) -> Vec<String> {
    let mut requests = Vec::new();
    for response in responses {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !String::from_utf8_lossy(&request).contains("\"final\":") {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).await.unwrap();
            request.extend_from_slice(&buffer[..count]);
        }
        requests.push(String::from_utf8_lossy(&request).to_lowercase());
        stream.write_all(response.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_retried_with_the_same_idempotency_key() {
    let cluster = Cluster::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve_responses(
        listener,
        vec![
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbusy",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 17\r\n\r\ndone without JSON",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 18\r\n\r\n{\"output\": \"done\"}",
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 8\r\n\r\nno mills",
        ],
    ));
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{{kind: http, name: own, description: x, url: 'http://{address}/do?token=secret', headers: {{x-home: '${{HOME}}'}}}}"
    );
    let (stop, done) = start_worker(&cluster, "w", open_capability(&folder, &text).await);
    let (first, second, third) = (
        build_order("own", "a", json!({})),
        build_order("own", "b", json!({})),
        build_order("own", "c", json!({})),
    );
    cluster.publish_order(&first).await;
    // A response that does not begin as JSON is text.
    assert_eq!(cluster.await_result(&first).await.1.output, "done without JSON");
    cluster.publish_order(&second).await;
    assert_eq!(cluster.await_result(&second).await.1.output, "done");
    cluster.publish_order(&third).await;
    let failure = await_error(&cluster, &third).await.message;
    assert!(failure.contains("400 Bad Request no mills") && !failure.contains("secret"), "{failure}");
    let requests = serving.await.unwrap();
    assert!(
        requests[..2].iter().all(|request| request.contains("idempotency-key: r/a/1\r\n")),
        "{requests:?}"
    );
    assert!(
        requests[0].starts_with("post /do?token=secret http/1.1\r\n") && requests[0].contains("x-home: /")
    );
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_after_a_wait_has_another_idempotency_key() {
    let cluster = Cluster::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve_responses(
        listener,
        vec![
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 40\r\n\r\n{\"wait_for\":{\"built\":{\"event\":\"built\"}}}",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\ndone",
        ],
    ));
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{{kind: http, name: own, description: x, url: 'http://{address}/do'}}");
    let (stop, done) = start_worker(&cluster, "w", open_capability(&folder, &text).await);
    let order = build_order("own", "a", json!({}));
    cluster.publish_order(&order).await;
    wait_for_value(PATIENCE, "the wait", async || {
        let journal = cluster.read_journal(&order).await;
        journal.iter().any(|(_, entry)| matches!(entry, JournalEntry::Parked { .. })).then_some(())
    })
    .await;
    let end = WaitEnd::Signalled { by: "ci".into(), data: String::new() };
    let ended_waits = vec![EndedWait { key: "built".into(), end }];
    cluster.publish_order(&Order { ended_waits, ..order.clone() }).await;
    assert_eq!(cluster.await_result(&order).await.1.output, "done");
    let requests = serving.await.unwrap();
    for (request, key) in requests.iter().zip(["r/a/1", "r/a/1/1"]) {
        assert!(request.contains(&format!("idempotency-key: {key}\r\n")), "{requests:?}");
    }
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_effect_is_not_retried_if_it_may_have_succeeded() {
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
        let (stop, done) = start_worker(&cluster, "w", open_capability(&folder, &text).await);
        let order = build_order("own", &id.replace(' ', "-"), json!({}));
        cluster.publish_order(&order).await;
        // The server is gone: a second request would be retried until the timeout.
        serve_responses(listener, vec![answer]).await;
        let failure = await_error(&cluster, &order).await;
        assert_eq!(failure.kind, kind, "{id}: {failure}");
        stop.cancel();
        done.await.unwrap();
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoParameters {}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_tool_costs_no_attempt_and_no_model_call() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    let turns = "{ledger: requests, rules: [{turns: [{calls: [find]}, {text: done}]}]}";
    std::fs::write(&script, turns).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let find = tool("find", "Finds.", move |NoParameters {}: NoParameters, _| {
        let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first { Err(ToolError::Unavailable("no answer".into())) } else { Ok("found".to_owned()) }
        }
    });
    let agent = Agent::new("own", "Finds.").instructions("Find it.").tool(find);
    let agent = agent.model(&format!("script:{}", script.display())).build().unwrap();
    let (stop, done) = start_worker(&cluster, "w", agent);
    let order = build_order("own", "find", json!({}));
    cluster.publish_order(&order).await;
    assert_eq!(cluster.await_result(&order).await.1.output, "done");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let ledger = std::fs::read_to_string(folder.path().join("requests")).unwrap();
    assert_eq!(ledger.lines().count(), 2, "each reply is requested once: {ledger}");
    stop.cancel();
    done.await.unwrap();
}
