//! Scaling of one capability's workers from none to many and back by their queue, as KEDA does with the settings in
//! `deploy/kubernetes`. No work is lost when workers are removed, and workers of other capabilities are not affected.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_protocol::plan::{EndReason, Submission};
use millrace_protocol::registry::ProcessRole as Kind;
use millrace_runtime::Bus;
use millrace_runtime::work::registry;
use millrace_tests::autoscaler::{Autoscaler, ScalingConfig, fetch_queue_lag};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::measure::{self, to_measured_task, with_start_lines};
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, wait_for_run_history};
use millrace_tests::{ServerOptions, wait_for_value};
use rustix::process::Signal;
use serde_json::json;

/// The number of tasks in a burst.
const TASKS: u32 = 2_000;
/// The number of long tasks among them: they are in flight when the queue shrinks and workers are removed.
const LONG: u32 = 10;
/// The number of slots of a worker.
const SLOTS: u32 = 4;
/// The largest number of workers.
const MOST: u32 = 8;
/// The factor by which durations are sped up.
const FASTER: u32 = 40;
/// The timeout of a burst, from its first task to its last worker.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The workers of a capability, as Kubernetes manages them: the desired number, and those that are terminating.
struct ScaledWorkers {
    scaler: Autoscaler,
    running: Vec<String>,
    terminating: Vec<String>,
    started: u32,
}

impl ScaledWorkers {
    /// Starts and stops workers to reach the desired number. Workers are stopped gracefully.
    fn scale_to(&mut self, cluster: &mut TestCluster, desired: u32) {
        let desired = desired as usize;
        while self.running.len() < desired {
            self.started += 1;
            let name = format!("echo-{}", self.started);
            cluster.start_process(ProcessRole::Worker, &name, &["--capability", "echo"]);
            self.running.push(name);
        }
        for name in self.running.drain(desired..) {
            cluster.send_signal(&name, Signal::TERM);
            self.terminating.push(name);
        }
        self.terminating.retain(|name| match cluster.exit_status(name) {
            Some(status) => {
                assert!(status.success(), "{name} exited with {status}:\n{}", cluster.read_log(name));
                false
            }
            None => true,
        });
    }
}

/// Many short tasks and a few long ones, each in steps.
fn burst_submission() -> Submission {
    let task = |number: u32| {
        let (delay, steps) = if number < TASKS - LONG { (40, 1) } else { (10_000, 20) };
        echo_task(&format!("t{number}"), &json!({"delay_ms": delay, "steps": steps}))
    };
    fixed_submission((0..TASKS).map(task).collect())
}

/// The state of the queue and the workers at a point in time.
struct ScalingSample {
    at: Duration,
    pods: u32,
    lag: u64,
}

/// Submits a burst and scales until it is done and no worker is left. Returns the curve and the history.
async fn run_burst(
    cluster: &mut TestCluster,
    bus: &Bus,
    port: u16,
    workers: &mut ScaledWorkers,
    scaling: &ScalingConfig,
    name: &str,
) -> (History, Vec<ScalingSample>) {
    let run = run_id(name);
    submit_run(bus, &run, &burst_submission()).await;
    let started = Instant::now();
    let mut curve = Vec::new();
    loop {
        let at = started.elapsed();
        assert!(at < TIMEOUT, "the burst takes too long:\n{}", format_scaling_curve(&curve));
        if let Some(lag) = fetch_queue_lag(&[(Ipv4Addr::LOCALHOST, port)], "$G", "WORK", "echo").await {
            let pods = workers.scaler.update_pod_count(at, lag);
            workers.scale_to(cluster, pods);
            curve.push(ScalingSample { at, pods, lag });
        }
        let is_over = async || {
            let summary = registry::read_summary(bus, &run).await.ok().flatten();
            summary.is_some_and(|summary| summary.end.is_some())
        };
        if workers.running.is_empty() && workers.terminating.is_empty() && is_over().await {
            break;
        }
        tokio::time::sleep(scaling.polling).await;
    }
    (wait_for_run_history(bus, &run, TIMEOUT).await, curve)
}

/// The curve as a table: each time at which the number of workers changed, and one row per second.
fn format_scaling_curve(curve: &[ScalingSample]) -> String {
    let mut text = String::from("  seconds  workers  tasks waiting and in hand\n");
    let mut last = None;
    for ScalingSample { at, pods, lag } in curve {
        if last != Some((*pods, at.as_secs())) {
            text += &format!("  {:7.1}  {pods:7}  {lag:6}\n", at.as_secs_f64());
        }
        last = Some((*pods, at.as_secs()));
    }
    text
}

/// The time from the submission of a run to its first claim.
fn time_to_first_claim(history: &History) -> Duration {
    let plan = history.folded_plan();
    let claims = history.records().iter().filter(|record| record.subject.contains(".task."));
    let first = claims.map(|record| record.time).min().expect("something was claimed");
    first.duration_since(plan.run.start.as_ref().expect("it was started").at).unsigned_abs()
}

fn find_free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_scale_up_and_down_with_a_burst_and_lose_nothing() {
    let _shared = share_machine();
    let port = find_free_port();
    let server = ServerOptions { more: format!("http: 127.0.0.1:{port}\n"), ..ServerOptions::default() };
    let mut cluster =
        TestCluster::with_server_only(ClusterSetup { slots: SLOTS, server, ..ClusterSetup::default() });
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let file = measure::write_capability_file(cluster.test_folder()).display().to_string();
    cluster.start_process(ProcessRole::Worker, "measure-1", &["--capability", &file]);
    // The first worker has registered the capability.
    cluster.start_process(ProcessRole::Worker, "echo-0", &["--capability", "echo"]);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 2).await;
    cluster.stop_process("echo-0");
    let queue = async || fetch_queue_lag(&[(Ipv4Addr::LOCALHOST, port)], "$G", "WORK", "echo").await;
    wait_for_value(TIMEOUT, "an empty queue", async || queue().await.filter(|lag| *lag == 0)).await;

    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/kubernetes/components/worker/scaled-object.yaml");
    let scaling = ScalingConfig::from_file(&file, SLOTS, MOST, FASTER);
    println!("{scaling:?}");
    let other = run_id("other");
    let delay = Duration::from_millis(500);
    let tasks = (0..150).map(|number| to_measured_task(echo_task(&format!("m{number}"), &json!({})), delay));
    submit_run(&bus, &other, &fixed_submission(tasks.collect())).await;
    let (pid, scaler) = (cluster.pid("measure-1"), Autoscaler::new(scaling.clone()));
    let mut workers = ScaledWorkers { scaler, running: Vec::new(), terminating: Vec::new(), started: 0 };
    for name in ["first", "second"] {
        let (history, curve) = run_burst(&mut cluster, &bus, port, &mut workers, &scaling, name).await;
        let claimed = time_to_first_claim(&history).as_millis();
        println!(
            "{name} burst of {TASKS} tasks: first claim after {claimed} ms\n{}",
            format_scaling_curve(&curve)
        );
        let (given_back, plan) = (history.takeover_count(), history.folded_plan());
        println!("{given_back} times a worker resumed the work of a worker that left\n");
        history.assert_consistent();
        assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
        assert_eq!(plan.run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
        assert!(plan.tasks().iter().all(|task| task.accepted_result().is_some() && task.attempts.len() == 1));
        assert_eq!(curve.iter().map(|sample| sample.pods).max(), Some(MOST), "the largest number of workers");
        assert!(given_back > 0, "no worker was removed with work in flight");
    }
    let history = wait_for_run_history(&bus, &other, TIMEOUT).await;
    history.assert_consistent();
    let ledger = with_start_lines(&cluster.read_ledger(), &history);
    assert_eq!(history.find_ledger_violations(&ledger), Vec::<String>::new());
    assert_eq!(history.takeover_count(), 0, "the other capability's work was not taken over");
    assert!(cluster.is_running("measure-1"));
    assert_eq!((cluster.pid("measure-1"), cluster.read_log("measure-1").matches("ready").count()), (pid, 1));
    cluster.stop_all();
}
