//! Traces of a real cluster: a gateway exports them to a receiver, and the command shows the same.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millrace_protocol::plan::{CommandAction, Edit, Submission};
use millrace_tests::cluster::{ClusterSetup, TestCluster, create_file};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    apply_command, echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_archive,
    wait_for_run_history,
};
use millrace_tests::python::install_python_packages;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(120);
/// A receiver of OTLP that prints the spans.
const RECEIVER: &str = "oteltap==1.0.0";
/// The span in which the run is submitted.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns a port that nobody uses at the moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns the spans that a command prints: their names and ids.
fn spans_of_command(cluster: &TestCluster, run: &str) -> Vec<Value> {
    let output = cluster.millrace_command().args(["trace", run, "--otlp", "-"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    json["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

/// Starts a receiver that prints spans; [`received`] returns its text.
fn start_receiver(cluster: &TestCluster, python: &Path, port: u16, options: &[&str]) -> Killed {
    let mut receiver = Command::new(python);
    receiver.args(["-m", "oteltap", "--port", &port.to_string()]).args(options);
    receiver.env("PYTHONUNBUFFERED", "1").stdout(create_file(cluster.test_folder(), "received"));
    Killed(receiver.stdin(Stdio::null()).spawn().unwrap())
}

fn received(cluster: &TestCluster) -> String {
    fs::read_to_string(cluster.test_folder().join("received")).unwrap()
}

/// Starts a gateway that exports spans to a port.
fn start_gateway(cluster: &TestCluster, port: u16) -> Killed {
    let mut gateway = cluster.millrace_command();
    gateway
        .args(["serve", "--api", "127.0.0.1:0"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .stderr(create_file(cluster.test_folder(), "gateway.log"));
    Killed(gateway.spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_exports_the_spans_that_the_command_shows() {
    let python = match install_python_packages(&[RECEIVER]) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run, port) = (cluster.connect_bus().await, run_id("traced"), free_port());
    let mut receiver = start_receiver(&cluster, &python, port, &["--await-span", "^run ended$"]);
    let gateway = start_gateway(&cluster, port);

    let tasks = vec![
        echo_task("first", &json!({"steps": 2})),
        echo_task("second", &json!({"steps": 1, "park_ms": 300})),
    ];
    let submission = Submission { trace_parent: CALLER.parse().ok(), ..fixed_submission(tasks) };
    submit_run(&bus, &run, &submission).await;
    wait_for_run_history(&bus, &run, TIMEOUT).await;
    let status = wait_for_value(TIMEOUT, "the last span", async || receiver.0.try_wait().unwrap()).await;
    assert!(status.success(), "{}", fs::read_to_string(cluster.test_folder().join("gateway.log")).unwrap());

    let text = received(&cluster);
    let spans = spans_of_command(&cluster, "traced");
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    for span in &spans {
        let id = span["spanId"].as_str().unwrap();
        assert!(text.contains(id), "{span:#} was not received:\n{text}");
    }
    for name in ["invoke_workflow", "invoke_agent echo", "step", "wait for a time", "run ended"] {
        assert!(names.contains(&name), "{names:?}");
        assert!(text.contains(&format!("\"{name}\"")), "{name} was not received:\n{text}");
    }
    assert_eq!(spans[0]["links"][0]["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736", "{:#}", spans[0]);

    let shown = cluster.millrace_command().args(["trace", "traced"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("invoke_agent echo [second]") && shown.contains("run ended"), "{shown}");
    drop(gateway);
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_parts_of_a_reopened_run_are_exported() {
    let python = match install_python_packages(&[RECEIVER]) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let (bus, run, port) = (cluster.connect_bus().await, run_id("again"), free_port());
    let _receiver = start_receiver(&cluster, &python, port, &[]);
    let gateway = start_gateway(&cluster, port);
    // Runs that were archived before the first export are left out.
    wait_for_value(TIMEOUT, "the start of the export", async || {
        let log = fs::read_to_string(cluster.test_folder().join("gateway.log")).ok()?;
        log.contains("exporting traces").then_some(())
    })
    .await;
    let are_received = |count: usize| {
        let spans = spans_of_command(&cluster, "again");
        let text = received(&cluster);
        let attempts = spans.iter().filter(|span| span["name"] == "invoke_agent echo").count();
        let is_all = spans.iter().all(|span| text.contains(span["spanId"].as_str().unwrap()));
        (attempts == count && is_all).then_some(())
    };
    submit_run(&bus, &run, &fixed_submission(vec![echo_task("say", &json!({"steps": 1}))])).await;
    wait_for_archive(&bus, &run, TIMEOUT).await;
    wait_for_value(TIMEOUT, "the spans of the first part", async || are_received(1)).await;
    let retry = Edit::Retry { task: task_id("say"), feedback: None, changes: None };
    apply_command(&bus, &run, CommandAction::Edit(retry), TIMEOUT).await;
    wait_for_value(TIMEOUT, "the spans of both parts", async || are_received(2)).await;
    drop(gateway);
    cluster.stop_all();
}
