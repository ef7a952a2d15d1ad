//! Hooks of a capability file: programs that see, change and refuse the calls of an agent, against a real NATS server.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Cluster, build_order};
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::file::FilePath;
use millrace_protocol::ids::WorkerId;
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::log::append_message;
use millrace_runtime::store::workspace::RunWorkspace;
use millrace_worker::{
    Agent, AgentHostConfig, CancellationToken, Hook, HookContext, HookEvent, HookPoint, HookRefusal,
    WorkerConfig, file, run_worker,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The model writes a secret, reads it, writes where it may not, and repeats the secret. Without the mark of the hook in the system
/// prompt it answers that nobody guards it.
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

/// A hook in Rust that redacts replies and counts its calls by point.
#[derive(Default)]
struct CountingHook([AtomicUsize; 4]);

impl CountingHook {
    fn counts(&self) -> Vec<usize> {
        self.0.iter().map(|count| count.load(Ordering::SeqCst)).collect()
    }
}

impl Hook for CountingHook {
    fn name(&self) -> &str {
        "counting"
    }

    fn points(&self) -> &[HookPoint] {
        &HookPoint::ALL
    }

    fn call<'a>(
        &'a self,
        _: &'a HookContext,
        event: HookEvent<'a>,
    ) -> BoxFuture<'a, Result<(), HookRefusal>> {
        let at = HookPoint::ALL.iter().position(|point| *point == event.point()).unwrap();
        self.0[at].fetch_add(1, Ordering::SeqCst);
        if let HookEvent::AfterModel { reply, .. } = event {
            reply.text = reply.text.replace("hunter2", "[redacted]");
        }
        futures::future::ready(Ok(())).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_hook_is_not_called_for_recorded_steps() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = "rules: [{turns: [{calls: [now]}, {text: the key is hunter2}]}]";
    std::fs::write(folder.path().join("model.yaml"), script).unwrap();
    let hook = Arc::new(CountingHook::default());
    let model = format!("script:{}", folder.path().join("model.yaml").display());
    let agent =
        Agent::new("clerk", "x").instructions("Say it.").model(&model).built_in("now").hook(hook.clone());
    let host = AgentHostConfig { document_cache: None, ..AgentHostConfig::new(cluster.connection()) };
    let stop = CancellationToken::new();
    let running = run_worker(WorkerConfig { capabilities: vec![agent.build().unwrap()], host }, stop.clone());
    let done = tokio::spawn(async move { running.await.unwrap() });

    let order = build_order("clerk", "first", json!({}));
    cluster.publish_order(&order).await;
    assert_eq!(cluster.await_result(&order).await.1.output, "the key is [redacted]");
    assert_eq!(hook.counts(), [2, 2, 1, 1]);

    // Another attempt whose worker was lost after the same steps.
    let taken_over = build_order("clerk", "second", json!({}));
    let topic = Topic::journal_of_work(&taken_over.work());
    let claim = JournalEntry::Claimed { worker: WorkerId::new("lost").unwrap(), claim: 1, build: None };
    let steps = cluster.read_journal(&order).await.into_iter().map(|(_, entry)| entry);
    let steps = steps.filter(|entry| matches!(entry, JournalEntry::Step { .. }));
    let mut last = 0;
    for entry in std::iter::once(claim).chain(steps) {
        let lane = taken_over.lane;
        last = append_message(&cluster.bus, lane, &taken_over.run, &topic, &entry, last).await.unwrap();
    }
    cluster.publish_order(&taken_over).await;
    assert_eq!(cluster.await_result(&taken_over).await.1.output, "the key is [redacted]");
    assert_eq!(hook.counts(), [2, 2, 1, 1]);
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
