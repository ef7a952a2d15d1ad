//! More than one machine: a worker in a network namespace of its own takes work from the cluster, more workers take less
//! time, and three machines that are cut off, killed and restarted one after another carry a run to the end it would
//! have had.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Event, Submission};
use millrace_protocol::registry::Role as Kind;
use millrace_protocol::wire::Blob;
use millrace_runtime::{Bus, registry};
use millrace_tests::cluster::{Cluster, Fleet, Role, Setup, alone, clean, wait_for};
use millrace_tests::eventually;
use millrace_tests::history::{Fate, History};
use millrace_tests::machines::{Cut, Machines};
use millrace_tests::measure::{self, measured, with_beginnings};
use millrace_tests::plans::{ended, fan_out, finished, layered, run, submit};
use millrace_tests::program::millrace;
use millrace_tests::trio::{Identities, Place, Trio};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);
const TASK: Duration = Duration::from_millis(100);

/// So many machines, or word that there can't be any here.
fn machines(count: usize) -> Option<Machines> {
    Machines::new(count)
        .inspect_err(|why| {
            println!("passed over: no network namespaces here ({why}); they need root and iproute2")
        })
        .ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_another_machine_takes_work_from_the_cluster() {
    let _alone = alone();
    let Some(machines) = machines(1) else { return };
    let mut setup = Setup::default();
    setup.server.host = Some(machines.here());
    let cluster = Cluster::start(setup, 0);
    let bus = cluster.bus().await;
    let url = &cluster.server.url;
    let arguments =
        ["worker", "--nats", url, "--capability", "research", "--capability", "echo", "--id", "far-1"];
    let mut far = machines.command(0, millrace());
    far.args(arguments).stdin(Stdio::null());
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

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waits_for_servers_without_a_leader_can_be_stopped() {
    let _alone = alone();
    let mut setup = Setup::default();
    // One of two servers, of which the other never comes: there is nobody to choose a leader with.
    setup.server.more =
        "server_name: a\ncluster { name: two, listen: 127.0.0.1:-1, routes: [nats://127.0.0.1:1] }\n".into();
    let mut cluster = Cluster::new(setup);
    for (role, name) in
        [(Role::Supervisor, "supervisor-1"), (Role::Worker, "worker-1"), (Role::Critic, "critic-1")]
    {
        cluster.add(role, name, &[]);
    }
    for name in ["supervisor-1", "worker-1", "critic-1"] {
        cluster.heard(name, "the cluster is not there yet; asking again", PATIENCE).await;
        let (status, took) = cluster.stop(name);
        assert!(status.success(), "{name} ended with {status}:\n{}", cluster.log(name));
        assert!(took < Duration::from_secs(2), "{name} took {took:?} to end");
    }
    cluster.end();
}

/// How long a machine is cut off: longer than any lease, and than it takes the other servers to choose their leaders.
const CUT: Duration = Duration::from_secs(14);
/// How long a silent supervisor keeps its lane, and a silent worker its work.
const LEASE: Duration = Duration::from_secs(3);
/// How long work in hand may go on when its worker is told to stop.
const GRACE: Duration = Duration::from_secs(2);
const LAYERS: u64 = 10;
const WIDTH: u64 = 50;
/// How much longer tasks take than `layered` makes them.
const SLOWER: u64 = 10;

/// Three machines with all that is deployed on them: a NATS server each, two supervisors, six workers of two capabilities
/// and two critics, each with an identity of its role and no right beyond it.
struct Site {
    machines: Machines,
    identities: Identities,
    trio: Trio,
    fleet: Fleet,
}

/// The processes of the site: role, name, machine, identity.
const DEPLOYED: [(Role, &str, usize, &str); 10] = [
    (Role::Supervisor, "supervisor-a", 0, "supervisor"),
    (Role::Supervisor, "supervisor-b", 1, "supervisor"),
    (Role::Critic, "critic-a", 1, "critic"),
    (Role::Critic, "critic-b", 2, "critic"),
    (Role::Worker, "echo-a", 0, "worker-echo"),
    (Role::Worker, "echo-b", 1, "worker-echo"),
    (Role::Worker, "echo-c", 2, "worker-echo"),
    (Role::Worker, "measure-a", 0, "worker-measure"),
    (Role::Worker, "measure-b", 1, "worker-measure"),
    (Role::Worker, "measure-c", 2, "worker-measure"),
];

impl Site {
    async fn start(machines: Machines) -> Self {
        let hosts = [0, 1, 2].map(|machine| machines.address(machine).to_string());
        let mut arguments = vec!["--worker", "echo", "--worker", "measure"];
        arguments.extend(hosts.iter().flat_map(|host| ["--host", host]));
        let identities = Identities::write(&arguments);
        let trio = Trio::start(&identities, [0, 1, 2].map(|machine| Place::on(&machines, machine))).await;
        let mut site = Self { machines, identities, trio, fleet: Fleet::default() };
        for (role, name, machine, identity) in DEPLOYED {
            site.deploy(role, name, machine, identity);
        }
        for (role, name, ..) in DEPLOYED {
            site.fleet.heard(name, is_up(role), PATIENCE).await;
        }
        site
    }

    fn deploy(&mut self, role: Role, name: &str, machine: usize, identity: &str) {
        let (namespace, url) = (self.machines.namespace(machine), self.trio.url());
        let environment = self.identities.environment("millrace", identity);
        let (documents, measure) =
            (self.fleet.folder().join("documents"), measure::file(self.fleet.folder()));
        let is_echo = identity == "worker-echo";
        self.fleet.launch(role, name, move |id| {
            let mut command = clean(millrace_tests::machines::on(&namespace, millrace()));
            command.envs(environment.clone()).env("MILLRACE_NATS_URL", &url);
            command.env("MILLRACE_DOCUMENT_CACHE", &documents);
            let (lease, grace) = (format!("{}s", LEASE.as_secs()), format!("{}s", GRACE.as_secs()));
            match role {
                Role::Supervisor => command.args(["supervisor", "--replicas", "3", "--lanes", "1"]).args([
                    "--lane-lease",
                    &lease,
                    "--work-lease",
                    &lease,
                ]),
                Role::Worker if is_echo => command.args(["worker", "--capability", "echo"]),
                Role::Worker => command.args(["worker", "--capability"]).arg(&measure),
                Role::Critic => command.arg("critic"),
            };
            if role != Role::Supervisor {
                command.args(["--slots", "2", "--grace", &grace]);
            }
            command.args(["--id", id]);
            command
        });
    }

    /// A connection as somebody who hands runs in has it, from this machine.
    async fn bus(&self) -> Bus {
        let connection = self.identities.connection(&self.trio.url(), "millrace", "client");
        Bus::join(&connection, "test", Duration::from_secs(30)).await.expect("the cluster can be joined")
    }

    /// Cuts a machine off for longer than the leases, and waits until its server is in step again.
    async fn cut_off(&self, machine: usize, how: Cut) {
        self.machines.cut(machine, how);
        tokio::time::sleep(CUT).await;
        self.machines.heal(machine);
        self.trio.is_whole().await;
    }

    /// Kills the server that leads the lane, and starts it again when the others have had to do without it.
    async fn kill_the_leader(&mut self, bus: &Bus) {
        let leader = self.leader(bus).await;
        self.trio.kill(leader);
        tokio::time::sleep(2 * LEASE).await;
        eventually(PATIENCE, "another leader", async || {
            let found = find_leader(bus).await?;
            (found != leader).then_some(())
        })
        .await;
        self.trio.restart(leader);
        self.trio.is_whole().await;
    }

    async fn leader(&self, bus: &Bus) -> usize {
        eventually(PATIENCE, "a leader", async || find_leader(bus).await).await
    }

    /// Stops every process and starts it again, one after another; each has to end well within its grace.
    async fn restart_all(&mut self) {
        for (role, name, ..) in DEPLOYED {
            let before = self.fleet.log(name).matches(is_up(role)).count();
            let (status, took) = self.fleet.stop(name);
            assert!(status.success(), "{name} ended with {status}:\n{}", self.fleet.log(name));
            assert!(took < GRACE + Duration::from_secs(5), "{name} took {took:?} to end");
            self.fleet.restart(name);
            self.fleet.heard_again(name, is_up(role), before, PATIENCE).await;
        }
    }
}

/// What a process says when it is up.
fn is_up(role: Role) -> &'static str {
    match role {
        Role::Supervisor => "supervising",
        Role::Worker | Role::Critic => "ready",
    }
}

/// The number of the server that leads the lane, by the word of the server that the test is connected to.
async fn find_leader(bus: &Bus) -> Option<usize> {
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream("LANE_0").await.ok()?;
    stream.cached_info().cluster.as_ref()?.leader.as_ref()?.strip_prefix("nats-")?.parse().ok()
}

/// Five hundred tasks in layers, of two capabilities: some fail now and then, some are reviewed and rejected now and
/// then. They take `slower` times as long as they might; 0 is no time at all.
fn five_hundred(slower: u64) -> Submission {
    let mut submission = layered(5, LAYERS, WIDTH);
    for (number, task) in submission.tasks.iter_mut().enumerate() {
        let delay = task.parameters["delay_ms"].as_u64().unwrap() * slower;
        task.parameters.insert("delay_ms".into(), json!(delay));
        if number % 3 == 0 && task.review.is_none() {
            *task = measured(task.clone(), Duration::from_millis(delay));
        }
    }
    submission
}

/// How a run ended: how its tasks fared and what they brought.
fn ending(history: &History) -> BTreeMap<TaskId, (Fate, Option<Blob>)> {
    let mut results = history.results();
    let fates = history.fates().into_iter();
    fates.map(|(task, fate)| (task.clone(), (fate, results.remove(&task)))).collect()
}

/// How many attempts ended in each two seconds of a run.
fn pace(history: &History) -> String {
    let start = history.plan().start.as_ref().unwrap().at;
    let mut ended: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, event) in history.events() {
        if matches!(event, Event::AttemptFinished { .. } | Event::AttemptErrored { .. }) {
            *ended.entry(at.duration_since(start).unsigned_abs().as_secs() / 2).or_default() += 1;
        }
    }
    let last = ended.last_key_value().map_or(0, |(last, _)| *last);
    let counts = (0..=last).map(|at| ended.get(&at).copied().unwrap_or(0).to_string());
    counts.collect::<Vec<_>>().join(" ")
}

/// The same run left alone, where no task takes any time.
async fn undisturbed(run: &RunId) -> BTreeMap<TaskId, (Fate, Option<Blob>)> {
    let mut cluster = Cluster::start(Setup { slots: 32, ..Setup::default() }, 1);
    let file = measure::file(cluster.folder());
    cluster.add(Role::Worker, "measure", &["--capability", &file.display().to_string()]);
    let bus = cluster.bus().await;
    cluster.known(&bus, Kind::Worker, 2).await;
    submit(&bus, run, &five_hundred(0)).await;
    let history = finished(&bus, run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(
        history.broken_by_ledger(&with_beginnings(&cluster.ledger_text(), &history)),
        Vec::<String>::new()
    );
    cluster.end();
    ending(&history)
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_tasks_on_three_machines_end_as_undisturbed_whichever_is_cut_off_killed_or_restarted() {
    let _alone = alone();
    let Some(machines) = machines(3) else { return };
    let run = run("three-machines");
    let expected = undisturbed(&run).await;
    let mut site = Site::start(machines).await;
    let bus = site.bus().await;
    let started = Instant::now();
    let say = |what: &str| println!("{:6.1} s: {what}", started.elapsed().as_secs_f64());
    submit(&bus, &run, &five_hundred(SLOWER)).await;

    for (machine, how) in [(0, Cut::Silent), (1, Cut::Cable), (2, Cut::Silent)] {
        say(&format!("machine {machine} is cut off ({how:?})"));
        site.cut_off(machine, how).await;
    }
    say("the server that leads the lane is killed");
    site.kill_the_leader(&bus).await;
    say("every process is restarted");
    site.restart_all().await;
    say("nothing is disturbed any more");
    let summary = registry::summary(&bus, &run).await.unwrap().unwrap();
    assert!(summary.end.is_none(), "the run was over before the last process was restarted: {summary:?}");
    ended(&bus, &run, PATIENCE).await;
    say("the run is over");

    assert_eq!(site.fleet.keep(), Vec::<String>::new(), "nobody gave up");
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    let ledger = with_beginnings(&site.fleet.ledger_text(), &history);
    assert_eq!(history.broken_by_ledger(&ledger), Vec::<String>::new());
    let (found, (takeovers, continued)) = (ending(&history), (history.takeovers(), history.continued()));
    println!("{takeovers} times work was taken over, {continued} times behind a step");
    println!("attempts that ended in each two seconds: {}", pace(&history));
    let differs = |task: &&TaskId| found.get(*task) != expected.get(*task);
    let show = |of: Option<&(Fate, Option<Blob>)>| of.map(|(fate, _)| format!("{fate:?}"));
    let different: Vec<_> = expected.keys().chain(found.keys()).filter(differs).collect();
    let shown = different.iter().map(|&task| (task, show(found.get(task)), show(expected.get(task))));
    assert!(different.is_empty(), "undisturbed it was otherwise: {:#?}", shown.collect::<Vec<_>>());
    for server in 0..3 {
        let log = site.trio.log(server);
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("iolation")).collect();
        assert!(refused.is_empty(), "server {server} refused something: {refused:#?}");
    }
    let refused = site.fleet.logs();
    let refused: Vec<&str> = refused.lines().filter(|line| line.contains("does not let")).collect();
    assert!(refused.is_empty(), "something was refused: {refused:#?}");
    assert!(takeovers > 0, "no work was ever taken over");
    site.fleet.end();
}
