//! Several machines, simulated with network namespaces: a remote worker claims work, more workers take less time, and a
//! run on three machines survives partitions, kills and restarts.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{AttemptEvent, Event, Submission};
use millrace_protocol::registry::{ProcessRole as Kind, RunSummary};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_runtime::Bus;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{
    ClusterSetup, NamedProcesses, ProcessRole, TestCluster, remove_millrace_variables, wait_for_exit,
};
use millrace_tests::history::{History, TaskOutcome};
use millrace_tests::machine::{lock_machine, share_machine};
use millrace_tests::machines::{NetworkPartition, TestMachines};
use millrace_tests::measure::{self, to_measured_task, with_start_lines};
use millrace_tests::nats_cluster::{NatsCluster, NatsIdentities, ServerAddress};
use millrace_tests::plans::{
    fan_out_submission, layered_submission, run_id, submit_run, wait_for_run_end, wait_for_run_history,
};
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);
const TASK: Duration = Duration::from_millis(100);

/// Creates so many machines, or prints why they can't be created here.
fn create_machines(count: usize) -> Option<TestMachines> {
    TestMachines::new(count)
        .inspect_err(|why| {
            println!("passed over: no network namespaces here ({why}); they need root and iproute2")
        })
        .ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_on_another_machine_claims_work() {
    let _shared = share_machine();
    let Some(machines) = create_machines(1) else { return };
    let mut setup = ClusterSetup::default();
    setup.server.host = Some(machines.host_address());
    let cluster = TestCluster::start_with_workers(setup, 0);
    let bus = cluster.connect_bus().await;
    let url = &cluster.server.url;
    let arguments =
        ["worker", "--nats", url, "--capability", "research", "--capability", "echo", "--id", "far-1"];
    let mut far = machines.command_on_machine(0, millrace_program());
    far.args(arguments).stdin(Stdio::null());
    for (name, value) in cluster.millrace_command().get_envs() {
        match value {
            Some(value) => far.env(name, value),
            None => far.env_remove(name),
        };
    }
    let mut far = far.stderr(Stdio::null()).spawn().unwrap();

    let run = run_id("far");
    submit_run(&bus, &run, &fan_out_submission(40, &json!({"steps": 2}))).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    kill_process(Pid::from_child(&far), Signal::TERM).unwrap();
    assert!(wait_for_exit("the far worker", &mut far).success());
    history.assert_consistent();
    let workers =
        history.folded_plan().tasks().iter().flat_map(|task| &task.attempts).map(|attempt| &attempt.worker);
    let workers: Vec<_> = workers.flatten().map(|worker| worker.as_str()).collect();
    assert_eq!(workers, vec!["far-1"; 40]);
    let names = millrace_runtime::work::registry::read_capability_names(&bus).await.unwrap();
    assert!(names.iter().any(|name| name.as_str() == "research"), "it provides research too: {names:?}");
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn twice_the_workers_halve_the_time() {
    let _alone = lock_machine();
    let tasks = std::env::var("MILLRACE_MACHINES_TASKS").ok().and_then(|tasks| tasks.parse().ok());
    let tasks: u32 = tasks.unwrap_or(40);
    for workers in [1, 2, 4] {
        let cluster =
            TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, workers);
        let (bus, run) = (cluster.connect_bus().await, run_id("shared"));
        cluster.wait_for_heartbeats(&bus, Kind::Worker, workers as usize).await;
        submit_run(&bus, &run, &fan_out_submission(tasks, &json!({"delay_ms": TASK.as_millis()}))).await;
        let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
        let plan = history.folded_plan();
        let (start, end) = (plan.run.start.as_ref().unwrap().at, plan.run.end.as_ref().unwrap().at);
        let (took, ideal) = (end.duration_since(start).unsigned_abs(), TASK * tasks / workers);
        println!(
            "{workers} workers of one slot: {tasks} tasks of {} ms in {:.2} s; {:.2} s is ideal",
            TASK.as_millis(),
            took.as_secs_f64(),
            ideal.as_secs_f64()
        );
        assert!(took < ideal * 3 / 2 + Duration::from_millis(200), "{workers} workers took {took:?}");
        history.assert_consistent();
        cluster.stop_all();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn process_waiting_for_a_leaderless_cluster_can_be_stopped() {
    let _shared = share_machine();
    let mut setup = ClusterSetup::default();
    // One of two servers, of which the other never starts: there is no majority to elect a leader.
    setup.server.more =
        "server_name: a\ncluster { name: two, listen: 127.0.0.1:-1, routes: [nats://127.0.0.1:1] }\n".into();
    let mut cluster = TestCluster::with_server_only(setup);
    for (role, name) in [
        (ProcessRole::Supervisor, "supervisor-1"),
        (ProcessRole::Worker, "worker-1"),
        (ProcessRole::Critic, "critic-1"),
    ] {
        cluster.start_process(role, name, &[]);
    }
    for name in ["supervisor-1", "worker-1", "critic-1"] {
        cluster.wait_for_log(name, "the cluster is not available yet; retrying", TIMEOUT).await;
        let (status, took) = cluster.stop_process(name);
        assert!(status.success(), "{name} exited with {status}:\n{}", cluster.read_log(name));
        assert!(took < Duration::from_secs(2), "{name} took {took:?} to exit");
    }
    cluster.stop_all();
}

/// The duration of a partition: longer than any lease and than a leader election.
const CUT: Duration = Duration::from_secs(14);
/// The leases of supervisors on lanes and of workers on work.
const LEASE: Duration = Duration::from_secs(3);
/// The grace period for in-flight work when its worker is stopped.
const GRACE: Duration = Duration::from_secs(2);
const LAYERS: u64 = 10;
const WIDTH: u64 = 50;
/// The factor by which tasks take longer than `layered_submission` makes them.
const SLOWER: u64 = 10;

/// Three machines with a complete deployment: a NATS server each, two supervisors, six workers of two capabilities and
/// two critics, each with the identity and permissions of its role.
struct ThreeMachineDeployment {
    machines: TestMachines,
    identities: NatsIdentities,
    servers: NatsCluster,
    processes: NamedProcesses,
}

/// The processes of the deployment: role, name, machine, identity.
const DEPLOYED: [(ProcessRole, &str, usize, &str); 10] = [
    (ProcessRole::Supervisor, "supervisor-a", 0, "supervisor"),
    (ProcessRole::Supervisor, "supervisor-b", 1, "supervisor"),
    (ProcessRole::Critic, "critic-a", 1, "critic"),
    (ProcessRole::Critic, "critic-b", 2, "critic"),
    (ProcessRole::Worker, "echo-a", 0, "worker-echo"),
    (ProcessRole::Worker, "echo-b", 1, "worker-echo"),
    (ProcessRole::Worker, "echo-c", 2, "worker-echo"),
    (ProcessRole::Worker, "measure-a", 0, "worker-measure"),
    (ProcessRole::Worker, "measure-b", 1, "worker-measure"),
    (ProcessRole::Worker, "measure-c", 2, "worker-measure"),
];

impl ThreeMachineDeployment {
    async fn start(machines: TestMachines) -> Self {
        let hosts = [0, 1, 2].map(|machine| machines.machine_address(machine).to_string());
        let mut arguments = vec!["--worker", "echo", "--worker", "measure"];
        arguments.extend(hosts.iter().flat_map(|host| ["--host", host]));
        let identities = NatsIdentities::generate(&arguments);
        let servers = NatsCluster::start_three_servers(
            &identities,
            [0, 1, 2].map(|machine| ServerAddress::on_machine(&machines, machine)),
        )
        .await;
        let mut deployment = Self { machines, identities, servers, processes: NamedProcesses::default() };
        for (role, name, machine, identity) in DEPLOYED {
            deployment.start_process_on_machine(role, name, machine, identity);
        }
        for (role, name, ..) in DEPLOYED {
            deployment.processes.wait_for_log(name, ready_log_line(role), TIMEOUT).await;
        }
        deployment
    }

    fn start_process_on_machine(&mut self, role: ProcessRole, name: &str, machine: usize, identity: &str) {
        let (namespace, url) = (self.machines.namespace_name(machine), self.servers.server_urls());
        let environment = self.identities.connection_environment("millrace", identity);
        let (documents, measure) = (
            self.processes.test_folder().join("documents"),
            measure::write_capability_file(self.processes.test_folder()),
        );
        let is_echo = identity == "worker-echo";
        self.processes.start_process(role, name, move |id| {
            let mut command = remove_millrace_variables(millrace_tests::machines::command_in_namespace(
                &namespace,
                millrace_program(),
            ));
            command.envs(environment.clone()).env("MILLRACE_NATS_URL", &url);
            command.env("MILLRACE_DOCUMENT_CACHE", &documents);
            let (lease, grace) = (format!("{}s", LEASE.as_secs()), format!("{}s", GRACE.as_secs()));
            match role {
                ProcessRole::Supervisor => command
                    .args(["supervisor", "--replicas", "3", "--lanes", "1"])
                    .args(["--lane-lease", &lease, "--work-lease", &lease]),
                ProcessRole::Worker if is_echo => command.args(["worker", "--capability", "echo"]),
                ProcessRole::Worker => command.args(["worker", "--capability"]).arg(&measure),
                ProcessRole::Critic => command.arg("critic"),
            };
            if role != ProcessRole::Supervisor {
                command.args(["--slots", "2", "--grace", &grace]);
            }
            command.args(["--id", id]);
            command
        });
    }

    /// A client's connection from this machine.
    async fn connect_bus(&self) -> Bus {
        let connection =
            self.identities.connection_settings(&self.servers.server_urls(), "millrace", "client");
        Bus::join_existing_cluster(&connection, "test", Duration::from_secs(30))
            .await
            .expect("the cluster can be joined")
    }

    /// Disconnects a machine for longer than the leases, and waits until its server has caught up.
    async fn disconnect_beyond_leases(&self, machine: usize, kind: NetworkPartition) {
        self.machines.disconnect_machine(machine, kind);
        tokio::time::sleep(CUT).await;
        self.machines.reconnect_machine(machine);
        self.servers.wait_until_healthy().await;
    }

    /// Kills the server that leads the lane's stream, and restarts it after the others have elected a new leader.
    async fn kill_stream_leader(&mut self, bus: &Bus) {
        let leader = self.wait_for_stream_leader(bus).await;
        self.servers.kill_server(leader);
        tokio::time::sleep(2 * LEASE).await;
        wait_for_value(TIMEOUT, "another leader", async || {
            let current = find_stream_leader(bus).await?;
            (current != leader).then_some(())
        })
        .await;
        self.servers.restart_server(leader);
        self.servers.wait_until_healthy().await;
    }

    async fn wait_for_stream_leader(&self, bus: &Bus) -> usize {
        wait_for_value(TIMEOUT, "a leader", async || find_stream_leader(bus).await).await
    }

    /// Restarts all processes one after another; each must exit within its grace period.
    async fn restart_all_processes(&mut self) {
        for (role, name, ..) in DEPLOYED {
            let before = self.processes.read_log(name).matches(ready_log_line(role)).count();
            let (status, took) = self.processes.stop_process(name);
            assert!(status.success(), "{name} exited with {status}:\n{}", self.processes.read_log(name));
            assert!(took < GRACE + Duration::from_secs(5), "{name} took {took:?} to exit");
            self.processes.restart_process(name);
            self.processes.wait_for_log_again(name, ready_log_line(role), before, TIMEOUT).await;
        }
    }
}

/// The log line of a process that is up.
fn ready_log_line(role: ProcessRole) -> &'static str {
    match role {
        ProcessRole::Supervisor => "supervising",
        ProcessRole::Worker | ProcessRole::Critic => "ready",
    }
}

/// The number of the server that leads the lane's stream, as reported by the server that the test is connected to.
async fn find_stream_leader(bus: &Bus) -> Option<usize> {
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream("LANE_0").await.ok()?;
    stream.cached_info().cluster.as_ref()?.leader.as_ref()?.strip_prefix("nats-")?.parse().ok()
}

/// Five hundred tasks in layers, of two capabilities: some fail sometimes, some are reviewed and sometimes rejected.
/// Their durations are multiplied by `slower`; with 0 they take no time.
fn five_hundred_tasks(slower: u64) -> Submission {
    let mut submission = layered_submission(5, LAYERS, WIDTH);
    for (number, task) in submission.tasks.iter_mut().map(Arc::make_mut).enumerate() {
        let delay = task.parameters["delay_ms"].as_u64().unwrap() * slower;
        task.parameters.insert("delay_ms".into(), json!(delay));
        if number % 3 == 0 && task.review.is_none() {
            *task = to_measured_task(task.clone(), Duration::from_millis(delay));
        }
    }
    submission
}

/// The ends and results of a run's tasks.
fn task_endings(history: &History) -> BTreeMap<TaskId, (TaskOutcome, Option<InlineOrStoredBytes>)> {
    let mut results = history.accepted_results();
    let task_outcomes = history.task_outcomes().into_iter();
    task_outcomes.map(|(task, fate)| (task.clone(), (fate, results.remove(&task)))).collect()
}

/// The number of attempts that ended in each two seconds of a run.
fn attempts_per_two_seconds(history: &History) -> String {
    let start = history.folded_plan().run.start.as_ref().unwrap().at;
    let mut ended: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, event) in history.timed_events() {
        if matches!(event, Event::Attempt(AttemptEvent::Finished { .. } | AttemptEvent::Errored { .. })) {
            *ended.entry(at.duration_since(start).unsigned_abs().as_secs() / 2).or_default() += 1;
        }
    }
    let last = ended.last_key_value().map_or(0, |(last, _)| *last);
    let counts = (0..=last).map(|at| ended.get(&at).copied().unwrap_or(0).to_string());
    counts.collect::<Vec<_>>().join(" ")
}

/// The ends of the same runs without faults and delays.
async fn run_without_faults(
    runs: &[RunId],
) -> Vec<BTreeMap<TaskId, (TaskOutcome, Option<InlineOrStoredBytes>)>> {
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 32, ..ClusterSetup::default() }, 1);
    let file = measure::write_capability_file(cluster.test_folder());
    cluster.start_process(ProcessRole::Worker, "measure", &["--capability", &file.display().to_string()]);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 2).await;
    let mut endings = Vec::new();
    for run in runs {
        submit_run(&bus, run, &five_hundred_tasks(0)).await;
        let history = wait_for_run_history(&bus, run, TIMEOUT).await;
        history.assert_consistent();
        assert_eq!(
            history.find_ledger_violations(&with_start_lines(&cluster.read_ledger(), &history)),
            Vec::<String>::new()
        );
        endings.push(task_endings(&history));
    }
    cluster.stop_all();
    endings
}

/// Submits the next run unless more than half of the tasks of the newest one are still open, so that every disturbance
/// finds work in flight however long the disturbances before it took.
async fn ensure_work_in_flight(bus: &Bus, runs: &mut Vec<RunId>) {
    if let Some(newest) = runs.last() {
        let summary = registry::read_summary(bus, newest).await.unwrap();
        // The summary of a run that was just submitted may not be written yet.
        let is_half_open = |summary: RunSummary| {
            let (tasks, completed) = summary.completed_and_total_tasks();
            summary.end.is_none() && completed <= tasks / 2
        };
        if summary.is_none_or(is_half_open) {
            return;
        }
    }
    let next = run_id(&format!("three-machines-{}", runs.len() + 1));
    submit_run(bus, &next, &five_hundred_tasks(SLOWER)).await;
    runs.push(next);
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_and_kills_on_three_machines_lose_no_task() {
    let _shared = share_machine();
    let Some(machines) = create_machines(3) else { return };
    let mut deployment = ThreeMachineDeployment::start(machines).await;
    let bus = deployment.connect_bus().await;
    let mut runs = Vec::new();
    let started = Instant::now();
    let say = |what: &str| println!("{:6.1} s: {what}", started.elapsed().as_secs_f64());

    for (machine, kind) in [
        (0, NetworkPartition::PacketLoss),
        (1, NetworkPartition::LinkDown),
        (2, NetworkPartition::PacketLoss),
    ] {
        ensure_work_in_flight(&bus, &mut runs).await;
        say(&format!("machine {machine} is disconnected ({kind:?})"));
        deployment.disconnect_beyond_leases(machine, kind).await;
    }
    ensure_work_in_flight(&bus, &mut runs).await;
    say("the server that leads the lane is killed");
    deployment.kill_stream_leader(&bus).await;
    ensure_work_in_flight(&bus, &mut runs).await;
    say("every process is restarted");
    deployment.restart_all_processes().await;
    say("nothing is disturbed any more");
    for run in &runs {
        wait_for_run_end(&bus, run, TIMEOUT).await;
    }
    say(&format!("{} runs are over", runs.len()));

    assert_eq!(deployment.processes.restart_exited(), Vec::<String>::new(), "no process exited by itself");
    let mut histories = Vec::new();
    for run in &runs {
        histories.push(wait_for_run_history(&bus, run, TIMEOUT).await);
    }
    let expected = run_without_faults(&runs).await;
    let mut takeovers = 0;
    for (history, expected) in histories.iter().zip(&expected) {
        history.assert_consistent();
        let ledger = with_start_lines(&deployment.processes.read_ledger(), history);
        assert_eq!(history.find_ledger_violations(&ledger), Vec::<String>::new());
        let ended = task_endings(history);
        println!(
            "{} times work was taken over, {} times behind a step",
            history.takeover_count(),
            history.continued_attempt_count()
        );
        println!("attempts that ended in each two seconds: {}", attempts_per_two_seconds(history));
        takeovers += history.takeover_count();
        let differs = |task: &&TaskId| ended.get(*task) != expected.get(*task);
        let show =
            |of: Option<&(TaskOutcome, Option<InlineOrStoredBytes>)>| of.map(|(fate, _)| format!("{fate:?}"));
        let different: Vec<_> = expected.keys().chain(ended.keys()).filter(differs).collect();
        let shown = different.iter().map(|&task| (task, show(ended.get(task)), show(expected.get(task))));
        assert!(
            different.is_empty(),
            "these differ from the run without faults: {:#?}",
            shown.collect::<Vec<_>>()
        );
    }
    for server in 0..3 {
        let log = deployment.servers.read_server_log(server);
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("iolation")).collect();
        assert!(refused.is_empty(), "server {server} rejected requests: {refused:#?}");
    }
    let refused = deployment.processes.read_all_logs();
    let refused: Vec<&str> = refused.lines().filter(|line| line.contains("permission denied")).collect();
    assert!(refused.is_empty(), "requests were rejected: {refused:#?}");
    assert!(takeovers > 0, "no work was ever taken over");
    deployment.processes.stop_all();
}
