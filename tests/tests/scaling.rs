//! Workers of one capability are scaled from none to many and back by what waits for them, as KEDA does it by what
//! `deploy/kubernetes` says; nothing is lost where one is sent away, and workers of another capability notice nothing.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_protocol::plan::{EndReason, Submission};
use millrace_protocol::registry::Role as Kind;
use millrace_runtime::{Bus, registry};
use millrace_tests::cluster::{Cluster, Role, Setup, alone};
use millrace_tests::history::History;
use millrace_tests::keda::{Autoscaler, Scaling, lag};
use millrace_tests::measure::{self, measured, with_beginnings};
use millrace_tests::plans::{echo, finished, fixed, run, submit};
use millrace_tests::{Options, eventually};
use rustix::process::Signal;
use serde_json::json;

/// How many tasks come at once.
const TASKS: u32 = 2_000;
/// How many of them take long: they are in hand when there is less to do, and workers go.
const LONG: u32 = 10;
/// How many tasks a worker does at once.
const SLOTS: u32 = 4;
/// The most workers.
const MOST: u32 = 8;
/// How much faster everything goes than in a cluster.
const FASTER: u32 = 40;
/// How long a burst may take, from its first task to its last worker.
const PATIENCE: Duration = Duration::from_secs(90);

/// The workers of a capability, as Kubernetes keeps them: as many as are wanted, and those that are on their way out.
struct Workers {
    scaler: Autoscaler,
    running: Vec<String>,
    leaving: Vec<String>,
    started: u32,
}

impl Workers {
    /// Starts and stops as many as it takes; who goes is told so and may take its time.
    fn scale(&mut self, cluster: &mut Cluster, wanted: u32) {
        let wanted = wanted as usize;
        while self.running.len() < wanted {
            self.started += 1;
            let name = format!("echo-{}", self.started);
            cluster.add(Role::Worker, &name, &["--capability", "echo"]);
            self.running.push(name);
        }
        for name in self.running.drain(wanted..) {
            cluster.signal(&name, Signal::TERM);
            self.leaving.push(name);
        }
        self.leaving.retain(|name| match cluster.ended(name) {
            Some(status) => {
                assert!(status.success(), "{name} ended with {status}:\n{}", cluster.log(name));
                false
            }
            None => true,
        });
    }
}

/// Many short tasks and a few long ones, each in steps.
fn burst() -> Submission {
    let task = |number: u32| {
        let (delay, steps) = if number < TASKS - LONG { (40, 1) } else { (10_000, 20) };
        echo(&format!("t{number}"), &json!({"delay_ms": delay, "steps": steps}))
    };
    fixed((0..TASKS).map(task).collect())
}

/// What the queue and the workers were like at a moment.
struct Moment {
    at: Duration,
    pods: u32,
    lag: u64,
}

/// Hands a burst in and scales until it is done and nobody is there any more; gives how it went.
async fn ride(
    cluster: &mut Cluster,
    bus: &Bus,
    port: u16,
    workers: &mut Workers,
    scaling: &Scaling,
    name: &str,
) -> (History, Vec<Moment>) {
    let run = run(name);
    submit(bus, &run, &burst()).await;
    let started = Instant::now();
    let mut curve = Vec::new();
    loop {
        let at = started.elapsed();
        assert!(at < PATIENCE, "the burst takes too long:\n{}", table(&curve));
        if let Some(lag) = lag(&[(Ipv4Addr::LOCALHOST, port)], "$G", "WORK", "echo").await {
            let pods = workers.scaler.look(at, lag);
            workers.scale(cluster, pods);
            curve.push(Moment { at, pods, lag });
        }
        let is_over = async || {
            let summary = registry::summary(bus, &run).await.ok().flatten();
            summary.is_some_and(|summary| summary.end.is_some())
        };
        if workers.running.is_empty() && workers.leaving.is_empty() && is_over().await {
            break;
        }
        tokio::time::sleep(scaling.polling).await;
    }
    (finished(bus, &run, PATIENCE).await, curve)
}

/// The curve as a table: each moment at which the number of workers changed, and one a second besides.
fn table(curve: &[Moment]) -> String {
    let mut text = String::from("  seconds  workers  tasks waiting and in hand\n");
    let mut last = None;
    for Moment { at, pods, lag } in curve {
        if last != Some((*pods, at.as_secs())) {
            text += &format!("  {:7.1}  {pods:7}  {lag:6}\n", at.as_secs_f64());
        }
        last = Some((*pods, at.as_secs()));
    }
    text
}

/// How long after a run was handed in its first task was claimed.
fn first_claim(history: &History) -> Duration {
    let plan = history.plan();
    let claims = history.records().iter().filter(|record| record.subject.contains(".task."));
    let first = claims.map(|record| record.time).min().expect("something was claimed");
    first.duration_since(plan.start.as_ref().expect("it was started").at).unsigned_abs()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_one_capability_come_with_a_burst_and_go_with_it_and_nothing_is_lost() {
    let _alone = alone();
    let port = free_port();
    let server = Options { more: format!("http: 127.0.0.1:{port}\n"), ..Options::default() };
    let mut cluster = Cluster::new(Setup { slots: SLOTS, server, ..Setup::default() });
    cluster.add(Role::Supervisor, "supervisor-1", &[]);
    let file = measure::file(cluster.folder()).display().to_string();
    cluster.add(Role::Worker, "measure-1", &["--capability", &file]);
    // What the capability is, its first worker has said once.
    cluster.add(Role::Worker, "echo-0", &["--capability", "echo"]);
    let bus = cluster.bus().await;
    cluster.known(&bus, Kind::Worker, 2).await;
    cluster.stop("echo-0");
    let queue = async || lag(&[(Ipv4Addr::LOCALHOST, port)], "$G", "WORK", "echo").await;
    eventually(PATIENCE, "an empty queue", async || queue().await.filter(|lag| *lag == 0)).await;

    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/kubernetes/components/worker/scaled-object.yaml");
    let scaling = Scaling::of(&file, SLOTS, MOST, FASTER);
    println!("{scaling:?}");
    let other = run("other");
    let delay = Duration::from_millis(500);
    let tasks = (0..150).map(|number| measured(echo(&format!("m{number}"), &json!({})), delay));
    submit(&bus, &other, &fixed(tasks.collect())).await;
    let (pid, scaler) = (cluster.pid("measure-1"), Autoscaler::new(scaling.clone()));
    let mut workers = Workers { scaler, running: Vec::new(), leaving: Vec::new(), started: 0 };
    for name in ["first", "second"] {
        let (history, curve) = ride(&mut cluster, &bus, port, &mut workers, &scaling, name).await;
        let claimed = first_claim(&history).as_millis();
        println!("{name} burst of {TASKS} tasks: first claim after {claimed} ms\n{}", table(&curve));
        let (given_back, plan) = (history.takeovers(), history.plan());
        println!("{given_back} times somebody went on with the work of a worker that went\n");
        history.assert_holds();
        assert_eq!(history.broken_by_ledger(&cluster.ledger_text()), Vec::<String>::new());
        assert_eq!(plan.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
        assert!(plan.tasks().iter().all(|task| task.accepted().is_some() && task.attempts.len() == 1));
        assert_eq!(curve.iter().map(|moment| moment.pods).max(), Some(MOST), "as many as there may be");
        assert!(given_back > 0, "nobody went while there was work in hand");
    }
    let history = finished(&bus, &other, PATIENCE).await;
    history.assert_holds();
    let ledger = with_beginnings(&cluster.ledger_text(), &history);
    assert_eq!(history.broken_by_ledger(&ledger), Vec::<String>::new());
    assert_eq!(history.takeovers(), 0, "nobody took anything from the other capability's worker");
    assert!(cluster.is_running("measure-1"));
    assert_eq!((cluster.pid("measure-1"), cluster.log("measure-1").matches("ready").count()), (pid, 1));
    cluster.end();
}
