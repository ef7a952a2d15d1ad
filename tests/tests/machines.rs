//! More than one machine: a worker in a network namespace of its own takes work from the cluster, and more workers take
//! less time.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_protocol::registry::Role as Kind;
use millrace_tests::cluster::{Cluster, Setup, alone, wait_for};
use millrace_tests::plans::{fan_out, finished, run, submit};
use millrace_tests::program::millrace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);
const TASK: Duration = Duration::from_millis(100);

/// Another machine: a network namespace with a cable to this one. Gone when it is dropped.
struct Machine {
    name: String,
    cable: String,
    /// The address at which it reaches this machine.
    here: Ipv4Addr,
}

impl Machine {
    /// Makes one, or says why that can't be.
    fn new() -> Result<Self, String> {
        let number = std::process::id() % 250;
        let (name, cable) = (format!("millrace-{number}"), format!("mill-{number}"));
        let machine = Self { name, cable, here: Ipv4Addr::new(10, 213, number as u8, 1) };
        let there = Ipv4Addr::new(10, 213, number as u8, 2);
        let Self { name, cable, here } = &machine;
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {cable} type veth peer name {cable}-b netns {name}"))?;
        ip(&format!("addr add {here}/30 dev {cable}"))?;
        ip(&format!("link set {cable} up"))?;
        ip(&format!("-n {name} addr add {there}/30 dev {cable}-b"))?;
        ip(&format!("-n {name} link set {cable}-b up"))?;
        Ok(machine)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What was never made can't be removed.
        drop(ip(&format!("link del {}", self.cable)));
        drop(ip(&format!("netns del {}", self.name)));
    }
}

fn ip(words: &str) -> Result<(), String> {
    let said = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let text = || format!("ip {words}: {}", String::from_utf8_lossy(&said.stderr).trim());
    if said.status.success() { Ok(()) } else { Err(text()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_another_machine_takes_work_from_the_cluster() {
    let _alone = alone();
    let machine = match Machine::new() {
        Ok(machine) => machine,
        Err(why) => return println!("passed over: no network namespaces here: {why}"),
    };
    let mut setup = Setup::default();
    setup.server.host = Some(machine.here);
    let cluster = Cluster::start(setup, 0);
    let bus = cluster.bus().await;
    let url = &cluster.server.url;
    let arguments =
        ["worker", "--nats", url, "--capability", "research", "--capability", "echo", "--id", "far-1"];
    let mut far = Command::new("ip");
    far.args(["netns", "exec", &machine.name]).arg(millrace()).args(arguments).stdin(Stdio::null());
    for (name, value) in cluster.command().get_envs() {
        match value {
            Some(value) => far.env(name, value),
            None => far.env_remove(name),
        };
    }
    let mut far = far.stderr(Stdio::null()).spawn().unwrap();

    let run = run("far");
    submit(&bus, &run, &fan_out(40, &json!({"steps": 2}))).await;
    let history = finished(&bus, &run, PATIENCE).await;
    kill_process(Pid::from_child(&far), Signal::TERM).unwrap();
    assert!(wait_for("the far worker", &mut far).success());
    history.assert_holds();
    let workers =
        history.plan().tasks().iter().flat_map(|task| &task.attempts).map(|attempt| &attempt.worker);
    let workers: Vec<_> = workers.flatten().map(|worker| worker.as_str()).collect();
    assert_eq!(workers, vec!["far-1"; 40]);
    let names = millrace_runtime::registry::capability_names(&bus).await.unwrap();
    assert!(names.iter().any(|name| name.as_str() == "research"), "it offers research too: {names:?}");
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn twice_the_workers_take_half_the_time() {
    let _alone = alone();
    let tasks = std::env::var("MILLRACE_MACHINES_TASKS").ok().and_then(|tasks| tasks.parse().ok());
    let tasks: u32 = tasks.unwrap_or(40);
    for workers in [1, 2, 4] {
        let cluster = Cluster::start(Setup { slots: 1, ..Setup::default() }, workers);
        let (bus, run) = (cluster.bus().await, run("shared"));
        cluster.known(&bus, Kind::Worker, workers as usize).await;
        submit(&bus, &run, &fan_out(tasks, &json!({"delay_ms": TASK.as_millis()}))).await;
        let history = finished(&bus, &run, PATIENCE).await;
        let plan = history.plan();
        let (start, end) = (plan.start.as_ref().unwrap().at, plan.end.as_ref().unwrap().at);
        let (took, ideal) = (end.duration_since(start).unsigned_abs(), TASK * tasks / workers);
        println!(
            "{workers} workers of one slot: {tasks} tasks of {} ms in {:.2} s; {:.2} s is ideal",
            TASK.as_millis(),
            took.as_secs_f64(),
            ideal.as_secs_f64()
        );
        assert!(took < ideal * 3 / 2 + Duration::from_millis(200), "{workers} workers took {took:?}");
        history.assert_holds();
        cluster.end();
    }
}
