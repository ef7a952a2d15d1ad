//! Images through processes: a worker that takes an attempt over sends the image that an earlier one has read, from the
//! blob store; the journal has only its hash.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use millrace_protocol::file::{FilePath, WriteCondition};
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{JournalKey, TaskSpec};
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history};
use millrace_tests::wait_for_value;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The delay of the second reply, in which the worker is killed.
const DELAY: Duration = Duration::from_secs(3);

/// A PNG image of 2 by 3 pixels, with 400 kB after its header.
fn png(filler: u8) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0".to_vec();
    bytes.resize(400_000, filler);
    bytes
}

/// A model behind OpenAI's chat completions that reads an image and describes it. It records the bodies of the requests.
async fn start_model(bodies: Arc<Mutex<Vec<Value>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_request(stream, bodies.clone()));
        }
    });
    format!("openai-compatible:stub@http://{address}/v1")
}

async fn answer_request(mut stream: TcpStream, bodies: Arc<Mutex<Vec<Value>>>) {
    let body = read_body(&mut stream).await;
    let turns =
        body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant").count();
    bodies.lock().unwrap().push(body);
    let read = |path: &str| {
        let function = json!({"name": "read_file", "arguments": json!({"file_path": path}).to_string()});
        let calls = json!([{"id": format!("call_{turns}"), "type": "function", "function": function}]);
        (json!({"role": "assistant", "content": null, "tool_calls": calls}), "tool_calls")
    };
    let (message, finish) = match turns {
        0 => read("/plot.png"),
        1 => {
            tokio::time::sleep(DELAY).await;
            read("/wheel.pdf")
        }
        _ => (json!({"role": "assistant", "content": "It is a plot."}), "stop"),
    };
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 2});
    let choice = json!({"index": 0, "message": message, "finish_reason": finish});
    let reply =
        json!({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        reply.len()
    );
    // The worker may have been killed.
    let _ = stream.write_all((head + &reply).as_bytes()).await;
}

async fn read_body(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        let mut part = vec![0; 65_536];
        let count = stream.read(&mut part).await.unwrap();
        bytes.extend_from_slice(&part[..count]);
        let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n").map(|at| at + 4) else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
        if bytes.len() >= end + length.trim().parse::<usize>().unwrap() {
            return serde_json::from_slice(&bytes[end..]).unwrap();
        }
    }
}

async fn read_steps(bus: &Bus, run: &RunId) -> Vec<(String, String)> {
    let topic = Topic::Journal(JournalKey::Task(task_id("look"), 1));
    let mut steps = Vec::new();
    for record in read_topic(bus, bus.lane_of_run(run), run, &topic).await.unwrap_or_default() {
        if let JournalEntry::Step { name, value, .. } = bus.decode_record(&record).await.unwrap() {
            let InlineOrStoredBytes::Inline(bytes) = value else { panic!("{name} is stored apart") };
            steps.push((name, String::from_utf8(bytes.to_vec()).unwrap()));
        }
    }
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_sent_by_the_worker_that_takes_over() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let bus = cluster.connect_bus().await;
    let bodies = Arc::default();
    let model = start_model(Arc::clone(&bodies)).await;
    let capability = json!({
        "name": "viewer",
        "description": "Looks at images.",
        "instructions": "Describe the plot.",
        "model": {"name": model, "images": true},
        "tools": ["read_file"],
    });
    let file = cluster.test_folder().join("viewer.yaml");
    fs::write(&file, capability.to_string()).unwrap();
    let file = file.display().to_string();
    let run = run_id("images");
    let workspace = RunWorkspace::new(&bus, &run);
    let path = FilePath::new("/plot.png").unwrap();
    let author = |key| FileAuthor { author: "test", key };
    workspace.write_file(&path, png(1), WriteCondition::Absent, author("a")).await.unwrap();

    // A document in a binary format is read as text with its pages.
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/documents/tests/fixtures/wheel.pdf");
    let pdf = FilePath::new("/wheel.pdf").unwrap();
    workspace
        .write_file(&pdf, fs::read(fixture).unwrap(), WriteCondition::Absent, author("c"))
        .await
        .unwrap();

    cluster.start_process(ProcessRole::Worker, "first", &["--capability", &file]);
    let task = TaskSpec { capability: Capability::new("viewer").unwrap(), ..echo_task("look", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![TaskSpec { is_final: true, ..task }])).await;
    let has_read = async || (read_steps(&bus, &run).await.len() >= 2).then_some(());
    wait_for_value(TIMEOUT, "the image is read", has_read).await;
    cluster.kill_process("first");
    workspace.write_file(&path, png(2), WriteCondition::Always, author("b")).await.unwrap();
    cluster.start_process(ProcessRole::Worker, "second", &["--capability", &file]);

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    let plan = history.folded_plan();
    let attempt = plan.tasks()[0].current_attempt().unwrap();
    assert_eq!((attempt.number, attempt.result_summary()), (1, Some("It is a plot.")));
    let bodies: Vec<Value> = bodies.lock().unwrap().clone();
    let last = bodies.last().unwrap()["messages"].to_string();
    let base64 = |filler| base64::engine::general_purpose::STANDARD.encode(png(filler));
    assert!(last.contains(&base64(1)), "the image as it was read");
    assert!(!last.contains(&base64(2)) && last.contains("image /plot.png, PNG 2×3, 400 kB"));
    assert!(last.contains("Grinding needs water") && last.contains("[page 1]") && last.contains("[page 3]"));
    let steps = read_steps(&bus, &run).await;
    let largest = steps.iter().map(|(_, value)| value.len()).max().unwrap();
    assert!(steps[1].1.contains("\"sha256\"") && largest < 20_000, "{largest} bytes in a step");
    cluster.stop_all();
}
