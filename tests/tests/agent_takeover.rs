//! Takeovers after every message of the log of an agent that uses everything an agent keeps between two turns: a skill, a web page, a
//! state with a veto, a change of the phase, memory, a file, a program that wrote one, and a summary of its conversation. After
//! each append the worker is killed, and another process continues the attempt. The end is that of the undisturbed run, and the
//! model is asked once for each reply.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use millrace_protocol::file::{FilePath, WriteCondition};
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{EndReason, JournalKey, Submission, TaskSpec};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id};
use millrace_tests::waits::{read_ended_run, wait_for_append_or_end};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The number of clusters that run at the same time: most of a recovery is the wait for a lease to expire.
const CLUSTERS: usize = 4;
/// The program that the agent runs: its result depends on the file that the agent wrote.
const PROGRAM: &str = "wc -w < notes.md > count.txt; echo counted";

/// The capability of the agent.
fn capability(port: u16, ledger: &Path) -> Value {
    json!({
        "name": "clerk", "description": "Does all that an agent can do.",
        "instructions": "Keep the mill. The phase is {{ phase }}; the mood is {{ state.mood }}.",
        "model": {"name": format!("script:{}", ledger.join("model.yaml").display()), "context_window": 12_000},
        "skills": ["./skills"], "memory": ["/memories/mill.md"],
        "state": {"mood": {
            "schema": {"type": "string"}, "default": "", "access": "readwrite",
            "policies": [{"matches": "^(calm|glad)$", "message": "A mood is calm or glad."}],
        }},
        "phases": [{"from": "look", "to": "work", "when": "state.mood == 'glad'"}],
        "tools": [
            "read_file", "compact_conversation", {"write_file": {"when": "phase == 'work'"}}, {"execute": {"require": []}},
            {"fetch_url": {"ports": [port], "allow_private": ["127.0.0.1/32"]}},
        ],
    })
}

/// The script of the model: each reply follows from the newest tool result, so that it is the same after a summary.
fn script(port: u16) -> Value {
    let after = |tool: &str, call: Value| json!({"when": {"tool": tool, "failed": false}, "reply": {"calls": [call], "delay": 0.05}});
    json!({"ledger": "requests.log", "rules": [
        {"when": {"system": "You summarise the older part"}, "reply": {"text": "The mood is glad; notes and count are written."}},
        {"when": {"turn": 1}, "reply": {"calls": [{"read_file": {"file_path": "/skills/milling/SKILL.md"}}]}},
        after("read_file", json!({"fetch_url": {"url": format!("http://127.0.0.1:{port}/mill")}})),
        after("fetch_url", json!({"set_mood": {"value": "furious"}})),
        {"when": {"tool": "set_mood", "failed": true}, "reply": {"calls": [{"set_mood": {"value": "glad"}}]}},
        {"when": {"last": "phase", "offered": "write_file"}, "reply": {"calls": [
            {"write_file": {"file_path": "/notes.md", "content": "the mill turns slowly"}},
        ]}},
        after("write_file", json!({"execute": {"command": PROGRAM}})),
        {"when": {"tool": "execute", "failed": true}, "reply": {"calls": [{"execute": {"command": PROGRAM}}]}},
        after("execute", json!({"compact_conversation": {}})),
        {"reply": {"text": "The mill was kept."}},
    ]})
}

/// Serves a long page on a port of this machine, and counts the requests.
async fn serve_page() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests: Arc<AtomicUsize> = Arc::default();
    let counted = requests.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let mut head = vec![0; 4_096];
            let _ = stream.read(&mut head).await;
            let body = format!(
                "<title>The mill</title>{}",
                "<p>The wheel of the mill turns in the river.</p>".repeat(500)
            );
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            drop(stream.write_all((head + &body).as_bytes()).await);
        }
    });
    (port, requests)
}

fn submission() -> Submission {
    let mut task =
        TaskSpec { capability: Capability::new("clerk").unwrap(), ..echo_task("mill", &json!({})) };
    (task.limits.max_attempts, task.is_final) = (1, true);
    fixed_submission(vec![task])
}

/// A cluster with one worker, whose agent this is, and a memory.
async fn start_cluster(port: u16) -> TestCluster {
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let folder = cluster.test_folder().to_owned();
    fs::create_dir_all(folder.join("skills/milling")).unwrap();
    let skill = "---\nname: milling\ndescription: How to mill.\n---\nTurn the wheel.\n";
    fs::write(folder.join("skills/milling/SKILL.md"), skill).unwrap();
    fs::write(folder.join("model.yaml"), script(port).to_string()).unwrap();
    let file = folder.join("clerk.yaml").display().to_string();
    fs::write(&file, capability(port, &folder).to_string()).unwrap();
    let bus = cluster.connect_bus().await;
    let author = FileAuthor { author: "a test", key: "memory" };
    let path = FilePath::new("/mill.md").unwrap();
    let memory = b"The mill belongs to Ada.".to_vec();
    RunWorkspace::of_memories(&bus).write_file(&path, memory, WriteCondition::Absent, author).await.unwrap();
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", &file]);
    cluster
}

/// The recorded steps of the attempt, by name.
async fn read_steps(bus: &Bus, run: &RunId) -> Vec<String> {
    let topic = Topic::Journal(JournalKey::Task(task_id("mill"), 1));
    let mut steps = Vec::new();
    for record in read_topic(bus, bus.lane_of_run(run), run, &topic).await.unwrap() {
        if let JournalEntry::Step { name, .. } = bus.decode_record(&record).await.unwrap() {
            steps.push(name);
        }
    }
    steps
}

/// The end of a run: its task's outcome, and its files.
async fn summarise(bus: &Bus, run: &RunId, history: &History) -> String {
    let workspace = RunWorkspace::new(bus, run);
    let mut files = BTreeMap::new();
    for entry in workspace.list_files(None).await.unwrap() {
        let file = workspace.read_file(&entry.path).await.unwrap().unwrap();
        // The history of the conversation names the run.
        let is_history = entry.path.as_str().starts_with("/conversation_history");
        let text = String::from_utf8_lossy(&file.bytes).into_owned();
        files.insert(entry.path.to_string(), (entry.version, if is_history { String::new() } else { text }));
    }
    format!("{:?}\n{files:#?}", history.task_outcomes())
}

/// The number of requests that the scripted model has answered.
fn count_requests(cluster: &TestCluster) -> usize {
    fs::read_to_string(cluster.test_folder().join("requests.log")).unwrap_or_default().lines().count()
}

/// The undisturbed run.
struct ExpectedRun {
    summary: String,
    steps: Vec<String>,
    requests: usize,
}

/// A run whose worker is killed after the append `count`; returns its differences from the undisturbed one.
async fn run_with_kill(cluster: &mut TestCluster, expected: &ExpectedRun, count: usize) -> Option<String> {
    let (bus, run) = (cluster.connect_bus().await, run_id(&format!("kill-{count}")));
    let before = count_requests(cluster);
    submit_run(&bus, &run, &submission()).await;
    wait_for_append_or_end(&bus, &run, count).await;
    cluster.kill_process("worker-1");
    cluster.restart_process("worker-1");
    let history = read_ended_run(&bus, &run).await;
    let mut violations = history.find_violations();
    let summary = summarise(&bus, &run, &history).await;
    if summary != expected.summary {
        violations.push(format!("its end differs:\n{summary}\n{}", expected.summary));
    }
    let steps = read_steps(&bus, &run).await;
    // A program that was running at the kill is not run again by itself: the model is told, and calls it once more.
    let is_called_again = steps.iter().filter(|step| step.starts_with("begin.")).count() == 2;
    if steps != expected.steps && !is_called_again {
        violations.push(format!("its steps differ: {steps:?}\n{:?}", expected.steps));
    }
    // The reply that was under way at the kill is requested again.
    let (least, requests) =
        (expected.requests + usize::from(is_called_again), count_requests(cluster) - before);
    if !(least..=least + 1).contains(&requests) {
        violations.push(format!("the model was asked {requests} times instead of {least}"));
    }
    (!violations.is_empty()).then(|| format!("{run}: {}", violations.join("; ")))
}

#[tokio::test(flavor = "multi_thread")]
async fn takeover_after_any_append_continues_with_all_that_the_agent_has() {
    let _shared = share_machine();
    let started = Instant::now();
    let (port, pages) = serve_page().await;
    let mut clusters = Vec::new();
    for _ in 0..CLUSTERS {
        clusters.push(start_cluster(port).await);
    }
    let (bus, run) = (clusters[0].connect_bus().await, run_id("undisturbed"));
    submit_run(&bus, &run, &submission()).await;
    let history = read_ended_run(&bus, &run).await;
    history.assert_consistent();
    let end = history.folded_plan().run.end.clone().unwrap();
    assert_eq!(end.reason, EndReason::Completed, "{end:?}");
    let appends = history.records().len();
    let expected = ExpectedRun {
        summary: summarise(&bus, &run, &history).await,
        steps: read_steps(&bus, &run).await,
        requests: count_requests(&clusters[0]),
    };
    for part in ["/conversation_history", "\"4\\n\"", "the mill turns slowly"] {
        assert!(expected.summary.contains(part), "{part}: {}", expected.summary);
    }
    for part in ["context.0", "files.5.0.execute", "tool.1.0.fetch_url", "tool.4.0.write_file"] {
        assert!(expected.steps.iter().any(|step| step == part), "{part}: {:?}", expected.steps);
    }
    assert_eq!(pages.load(Ordering::SeqCst), 1);

    let sweeps = clusters.iter_mut().enumerate().map(|(first, cluster)| {
        let expected = &expected;
        async move {
            let mut failures = Vec::new();
            for count in (1..appends).skip(first).step_by(CLUSTERS) {
                failures.extend(Box::pin(run_with_kill(cluster, expected, count)).await);
            }
            failures
        }
    });
    let failures: Vec<String> = futures::future::join_all(sweeps).await.into_iter().flatten().collect();
    println!("{} kills in {:.0?}", appends - 1, started.elapsed());
    assert!(failures.is_empty(), "{} of {} kills:\n{}", failures.len(), appends - 1, failures.join("\n"));
    // At most one page is fetched again: by the worker that was killed before it had recorded it.
    let again = pages.load(Ordering::SeqCst) - appends;
    assert!(again <= 2, "{again} pages were fetched again");
    clusters.into_iter().for_each(TestCluster::stop_all);
}
