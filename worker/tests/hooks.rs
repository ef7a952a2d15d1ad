//! Hooks of a capability file: programs that see, change and refuse the calls of an agent, against a real NATS server.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use millrace_protocol::file::FilePath;
use millrace_protocol::ids::WorkerId;
use millrace_protocol::work::WorkOutcome;
use millrace_runtime::store::workspace::RunWorkspace;
use millrace_worker::{AgentHostConfig, CancellationToken, WorkerConfig, file, run_worker};
use serde_json::{Value, json};
use support::{Cluster, build_order};
use tempfile::TempDir;

/// The model writes a secret, reads it, writes where it may not, and repeats the secret. Without the mark of the hook in the system
/// prompt it says so.
const SCRIPT: &str = "\
rules:
- when: {system: GUARDED}
  turns:
  - {calls: [{write_file: {file_path: /notes.txt, content: the key is hunter2}}]}
  - {calls: [{read_file: {file_path: /notes.txt}}, {write_file: {file_path: /forbidden.txt, content: x}}]}
  - {text: The key is hunter2.}
- turns:
  - {text: nobody guards me}
";

const GUARD: &str = r#"
import json, sys
call = json.load(sys.stdin)
with open("calls.jsonl", "a") as log:
    log.write(json.dumps(call) + "\n")
answer = {}
if call["event"] == "before_model":
    answer = {"system": call["system"] + " GUARDED", "texts": [m["text"] for m in call["messages"]]}
elif call["event"] == "after_model" and "hunter2" in call["text"]:
    answer = {"text": call["text"].replace("hunter2", "[redacted]")}
elif call["event"] == "before_tool" and "forbidden" in json.dumps(call["arguments"]):
    answer = {"refuse": "that file is not yours"}
elif call["event"] == "after_tool":
    answer = {"text": call["text"].replace("hunter2", "[redacted]")}
if answer:
    print(json.dumps(answer))
"#;

async fn start_worker(
    cluster: &Cluster,
    folder: &TempDir,
    hooks: &Value,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("model.yaml"), SCRIPT).unwrap();
    std::fs::write(path("guard.py"), GUARD).unwrap();
    let capability = json!({
        "name": "clerk", "description": "x", "instructions": "Keep the notes.", "hooks": hooks,
        "model": format!("script:{}", path("model.yaml").display()), "tools": ["write_file", "read_file"],
    });
    std::fs::write(path("clerk.yaml"), capability.to_string()).unwrap();
    let offered = file::open_capability_by_name(path("clerk.yaml").to_str().unwrap()).await.unwrap();
    let host = AgentHostConfig {
        id: Some(WorkerId::new("guarded").unwrap()),
        document_cache: None,
        ..AgentHostConfig::new(cluster.connection())
    };
    let stop = CancellationToken::new();
    let running = run_worker(WorkerConfig { capabilities: vec![offered], host }, stop.clone());
    (stop, tokio::spawn(async move { running.await.unwrap() }))
}

/// The calls that the program of the hook saw.
fn seen_calls(folder: &TempDir) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.path().join("calls.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_redacts_and_refuses_calls() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let on = ["before_model", "after_model", "before_tool", "after_tool"];
    let hooks = json!([{"on": on, "command": ["python3", "guard.py"]}]);
    let (stop, done) = start_worker(&cluster, &folder, &hooks).await;
    let order = build_order("clerk", "notes", json!({}));
    cluster.publish_order(&order).await;
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(result.output, "The key is [redacted].");

    let workspace = RunWorkspace::new(&cluster.bus, &order.run);
    let read = async |path: &str| workspace.read_file(&FilePath::new(path).unwrap()).await.unwrap();
    assert_eq!(read("/notes.txt").await.unwrap().bytes, b"the key is hunter2");
    assert!(read("/forbidden.txt").await.is_none(), "a refused call does not run");

    let calls = seen_calls(&folder);
    let events: Vec<&str> = calls.iter().map(|call| call["event"].as_str().unwrap()).collect();
    let count = |event: &str| events.iter().filter(|it| **it == event).count();
    assert_eq!((count("before_model"), count("after_model")), (3, 3), "{events:?}");
    assert_eq!((count("before_tool"), count("after_tool")), (3, 2), "{events:?}");
    let attempt = format!("{}/notes/1", order.run);
    let is_own = |call: &Value| call["capability"] == "clerk" && call["attempt"] == attempt.as_str();
    assert!(calls.iter().all(is_own), "{attempt}: {calls:#?}");
    let last = calls.iter().rfind(|call| call["event"] == "before_model").unwrap();
    let texts: Vec<&str> = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["text"].as_str().unwrap())
        .collect();
    assert!(!texts.iter().any(|text| text.contains("hunter2")), "{texts:?}");
    let refused = "write_file did not run: the hook python3 refused it: that file is not yours";
    assert!(texts.iter().any(|text| text.contains(refused)), "{texts:?}");
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_that_fails_refuses_its_call() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let broken = ["sh", "-c", "cat > /dev/null; echo it broke >&2; exit 3"];
    let hooks = json!([
        {"on": ["before_model"], "command": ["python3", "guard.py"]},
        {"on": ["before_tool"], "tools": ["write_file"], "command": broken},
    ]);
    let (stop, done) = start_worker(&cluster, &folder, &hooks).await;
    let order = build_order("clerk", "notes", json!({}));
    cluster.publish_order(&order).await;
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(result.output, "The key is hunter2.", "no hook sees the replies");
    let workspace = RunWorkspace::new(&cluster.bus, &order.run);
    assert!(workspace.list_files(None).await.unwrap().is_empty(), "no write passes a broken guard");
    let last = seen_calls(&folder).pop().unwrap();
    let refused = "the hook sh refused it: sh failed: exit status: 3: it broke";
    assert!(last["messages"].to_string().contains(refused), "{last:#}");
    stop.cancel();
    done.await.unwrap();

    let hooks = json!([{"on": ["before_model"], "command": ["sleep", "60"], "timeout_s": 0.2}]);
    let (stop, done) = start_worker(&cluster, &folder, &hooks).await;
    let order = build_order("clerk", "again", json!({}));
    cluster.publish_order(&order).await;
    let (_, outcome) = cluster.await_outcome(&order).await;
    let WorkOutcome::Errored(error) = outcome else { panic!("{outcome:?}") };
    assert!(error.message.contains("the hook sleep refused it: sleep failed: it timed out"), "{error:?}");
    stop.cancel();
    done.await.unwrap();
}

#[test]
fn mistakes_in_hooks_are_located() {
    for (hook, expected) in [
        (json!({"on": [], "command": ["x"]}), "\"on\" must name a point"),
        (json!({"on": ["before_lunch"], "command": ["x"]}), "before_lunch"),
        (
            json!({"on": ["after_tool"], "command": []}),
            "\"command\" must be a list that begins with a program",
        ),
        (
            json!({"on": ["after_tool"], "command": ["x"], "timeout_s": 0}),
            "\"timeout_s\" must be more than 0",
        ),
        (json!({"on": ["after_tool"], "command": ["x"], "timout_s": 1}), "timout_s"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        let text = json!({"name": "a", "description": "x", "instructions": "x", "hooks": [hook]});
        std::fs::write(&path, text.to_string()).unwrap();
        let error = file::describe_capability_file(&path).unwrap_err();
        let error = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |why| format!("{error}: {why}"));
        assert!(error.contains(expected), "{error}");
    }
}
