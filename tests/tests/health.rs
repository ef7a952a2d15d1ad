//! What processes say of themselves over HTTP, real processes and a real server: whether they live, whether they are
//! ready, and what they have measured. That a process which is killed in mid-work loses nothing is shown by `chaos.rs`.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Review, Submission, TaskSpec};
use millrace_protocol::subject::{Topic, parse};
use millrace_protocol::work::{Entry, Outcome};
use millrace_runtime::metrics::names::{ALL, Process};
use millrace_runtime::topology::Wanted;
use millrace_runtime::{Bus, Fault};
use millrace_tests::cluster::{Cluster, Role, Setup, alone, clean};
use millrace_tests::history::History;
use millrace_tests::plans::{echo, finished, fixed, run, submit};
use millrace_tests::program::millrace;
use millrace_tests::trio::{Identities, Place, Trio};
use millrace_tests::{NatsServer, Options, eventually, web};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a main loop may take to turn, in seconds.
const OUTAGE: u64 = 35;

/// Where a process serves its pages.
#[derive(Clone, Copy)]
struct Page(u16);

impl Page {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self(listener.local_addr().unwrap().port())
    }

    fn address(self) -> String {
        format!("127.0.0.1:{}", self.0)
    }

    async fn get(self, path: &str) -> Option<(u16, String)> {
        web::get(Ipv4Addr::LOCALHOST, self.0, path).await
    }

    async fn is_alive(self) -> bool {
        self.get("/livez").await.is_some_and(|(status, _)| status == 200)
    }

    /// Waits until `/readyz` answers with this status and a line that holds the text.
    async fn says(self, status: u16, text: &str) -> String {
        eventually(PATIENCE, &format!("{status} {text:?} of /readyz"), async || {
            let (found, body) = self.get("/readyz").await?;
            (found == status && body.contains(text)).then_some(body)
        })
        .await
    }

    /// Waits until `/readyz` says that the server has been away for so long.
    async fn unanswered_for(self, seconds: u64) {
        eventually(PATIENCE, "a long outage", async || {
            let (status, body) = self.get("/readyz").await?;
            let (_, rest) = body.split_once("[-]log no answer for ")?;
            let away: u64 = rest.split(' ').next()?.parse().ok()?;
            (status == 503 && away >= seconds).then_some(())
        })
        .await;
    }

    async fn is_ready(self) {
        self.says(200, "readyz check passed").await;
    }

    /// All series of the page by their names and labels.
    async fn series(self) -> BTreeMap<String, f64> {
        self.try_series().await.unwrap()
    }

    async fn try_series(self) -> Option<BTreeMap<String, f64>> {
        let (_, page) = self.get("/metrics").await.filter(|(status, _)| *status == 200)?;
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.map(|line| line.rsplit_once(' ').unwrap());
        Some(lines.map(|(series, value)| (series.into(), value.parse().unwrap())).collect())
    }

    /// Waits until a series stands at a value.
    async fn shows(self, series: &str, value: f64) {
        let mut last = None;
        let shown = async || {
            last = self.try_series().await?.get(series).copied();
            last.is_some_and(|last| (last - value).abs() < 1e-9).then_some(())
        };
        let what = format!("{series} at {value}");
        eventually(PATIENCE, &what, shown).await;
    }
}

/// A cluster of one process of each role, with the pages of each.
struct Told {
    cluster: Cluster,
    supervisor: Page,
    worker: Page,
    critic: Page,
}

impl Told {
    fn new(setup: Setup, worker: &[&str]) -> Self {
        Self::on(Cluster::new(setup), worker)
    }

    fn on(mut cluster: Cluster, worker: &[&str]) -> Self {
        let [supervisor, critic, at] = [(); 3].map(|()| Page::new());
        cluster.add(Role::Supervisor, "supervisor", &["--http", &supervisor.address()]);
        cluster.add(Role::Critic, "critic", &["--http", &critic.address()]);
        let at_address = at.address();
        let arguments: Vec<&str> = worker.iter().copied().chain(["--http", at_address.as_str()]).collect();
        cluster.add(Role::Worker, "worker", &arguments);
        Self { cluster, supervisor, worker: at, critic }
    }

    fn pages(&self) -> [Page; 3] {
        [self.supervisor, self.worker, self.critic]
    }

    async fn are_ready(&self) {
        for page in self.pages() {
            page.is_ready().await;
        }
    }
}

/// The process that measures the cluster as a whole. Dropping it kills it.
struct Measurer(Child, Page);

impl Measurer {
    fn start(cluster: &Cluster) -> Self {
        Self::of(cluster.command())
    }

    /// By the program as it finds its cluster.
    fn of(mut command: Command) -> Self {
        let page = Page::new();
        command.args(["metrics", "--http", &page.address()]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap(), page)
    }
}

impl Drop for Measurer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Tasks that take so long, named after their number.
fn slow(tasks: usize, milliseconds: u64) -> Submission {
    let parameters = json!({ "delay_ms": milliseconds });
    fixed((0..tasks).map(|n| echo(&format!("t{n}"), &parameters)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_is_ready_once_the_cluster_is_there_and_serves_its_three_paths() {
    let _alone = alone();
    let mut cluster = Cluster::new(Setup::default());
    let [worker, supervisor, critic] = [(); 3].map(|()| Page::new());
    cluster.add(Role::Worker, "worker", &["--capability", "echo", "--http", &worker.address()]);
    worker.says(503, "[-]log not joined yet").await;
    assert!(worker.is_alive().await, "it waits for the cluster to be made");

    cluster.add(Role::Supervisor, "supervisor", &["--http", &supervisor.address()]);
    cluster.add(Role::Critic, "critic", &["--http", &critic.address()]);
    let measurer = Measurer::start(&cluster);
    for (page, checks) in [
        (supervisor, "[+]running ok\n[+]lanes ok\n[+]log ok\n"),
        (worker, "[+]running ok\n[+]log ok\n[+]capabilities ok\n"),
        (critic, "[+]running ok\n[+]log ok\n[+]capabilities ok\n"),
        (measurer.1, "[+]running ok\n[+]log ok\n[+]figures ok\n"),
    ] {
        let body = page.says(200, "").await;
        assert_eq!(body, format!("{checks}readyz check passed\n"));
        assert_eq!(page.get("/livez").await.unwrap(), (200, "[+]loop ok\nlivez check passed\n".to_owned()));
        assert_eq!(page.get("/metrics").await.unwrap().0, 200);
        assert_eq!(page.get("/nothing").await.unwrap().0, 404);
        assert_eq!(page.get("/livez/more").await.unwrap().0, 404);
    }

    let taken = supervisor.address();
    let second = cluster.command().args(["worker", "--http", &taken]).output().unwrap();
    assert_eq!(second.status.code(), Some(4));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains(&taken) && said.contains("Address already in use"), "{said}");
    drop(measurer);
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_are_there_before_their_server_are_ready_when_it_has_come() {
    let _alone = alone();
    let mut cluster = Cluster::new(Setup::default());
    cluster.server.kill();
    let mut told = Told::on(cluster, &["--capability", "echo"]);
    let names = ["supervisor", "worker", "critic"];
    for (page, name) in told.pages().into_iter().zip(names) {
        page.says(503, "[-]log not joined yet").await;
        told.cluster.heard(name, "asking again", PATIENCE).await;
    }
    told.cluster.server.restart();
    told.are_ready().await;
    assert!(names.iter().all(|name| told.cluster.is_running(name)), "none had to be started again");
    told.cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_makes_processes_unready_and_leaves_them_alive() {
    let _alone = alone();
    let setup = Setup { lanes: 4, lane_lease: None, work_lease: None, ..Setup::default() };
    let mut told = Told::new(setup, &["--capability", "echo"]);
    let measurer = Measurer::start(&told.cluster);
    told.are_ready().await;
    measurer.1.is_ready().await;

    told.cluster.server.kill();
    let pages = [told.supervisor, told.worker, told.critic, measurer.1];
    for page in pages {
        page.unanswered_for(OUTAGE).await;
        page.shows("millrace_nats_connected", 0.0).await;
        let body = page.says(503, "[+]running ok").await;
        assert!(page.is_alive().await, "{body}");
    }

    told.cluster.server.restart();
    told.are_ready().await;
    measurer.1.is_ready().await;
    for page in pages {
        page.shows("millrace_nats_reconnects_total", 1.0).await;
        assert!(page.is_alive().await);
    }
    drop(measurer);
    told.cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_told_to_stop_while_the_server_is_away_ends_all_the_same() {
    let _alone = alone();
    let setup = Setup { lanes: 16, lane_lease: None, work_lease: None, ..Setup::default() };
    let mut told = Told::new(setup, &["--capability", "echo"]);
    told.are_ready().await;
    let mut busy = Measurer::start(&told.cluster);
    busy.1.is_ready().await;
    told.cluster.server.kill();
    busy.1.says(503, "[-]log").await;
    // It is in the middle of a reading, which it gives up only after twenty seconds.
    kill_process(Pid::from_child(&busy.0), Signal::TERM).unwrap();
    let told_to = Instant::now();
    let end = eventually(PATIENCE, "its end", async || busy.0.try_wait().unwrap()).await;
    let took = told_to.elapsed();
    assert!(end.success() && took < Duration::from_secs(5), "the measurer ended with {end} after {took:?}");
    told.supervisor.says(503, "[-]log").await;
    // One that has only just begun waits for the server, as the others do that have lost it.
    let mut measurer = Measurer::start(&told.cluster);
    measurer.1.says(503, "[-]log not joined yet").await;
    kill_process(Pid::from_child(&measurer.0), Signal::TERM).unwrap();
    let end = eventually(PATIENCE, "its end", async || measurer.0.try_wait().unwrap()).await;
    assert!(end.success(), "the measurer: {end}");
    for name in ["worker", "critic", "supervisor"] {
        let (status, took) = told.cluster.stop(name);
        assert!(status.success(), "{name}: {status}");
        assert!(took < Duration::from_secs(20), "{name} ended after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_is_told_to_stop_before_it_knows_what_the_cluster_can_do_ends_all_the_same() {
    let _alone = alone();
    let user = |name: &str, more: &str| format!("{{ user: {name}, password: secret{more} }}");
    // What is not permitted is not answered either.
    let deny = r#"permissions: { publish: { deny: "$JS.API.DIRECT.GET.KV_capabilities" } }"#;
    let users = [user("all", ""), user("deaf", &format!(", {deny}"))].join(", ");
    let server = NatsServer::with(&Options {
        more: format!("authorization {{ users: [ {users} ] }}\n"),
        ..Options::default()
    });
    let page = Page::new();
    let mut command = clean(Command::new(millrace()));
    command.args(["supervisor", "--nats", &server.url, "--http", &page.address()]);
    command.envs([("MILLRACE_NATS_USER", "deaf"), ("MILLRACE_NATS_PASSWORD", "secret")]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    page.says(503, "[+]log ok").await;
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let told_to = Instant::now();
    let end = eventually(PATIENCE, "its end", async || child.try_wait().unwrap()).await;
    let took = told_to.elapsed();
    assert!(end.success() && took < Duration::from_secs(5), "{end} after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_told_to_stop_is_unready_at_once_and_ends_its_work_within_its_grace() {
    let _alone = alone();
    let mut told = Told::new(Setup { slots: 2, ..Setup::default() }, &["--capability", "echo"]);
    told.are_ready().await;
    let bus = told.cluster.bus().await;
    let run = run("drained");
    submit(&bus, &run, &slow(3, 1_500)).await;
    told.worker.shows("millrace_slots_busy{capability=\"echo\"}", 2.0).await;

    told.cluster.signal("worker", Signal::TERM);
    let body = told.worker.says(503, "[-]running about to stop").await;
    assert!(body.contains("[+]log ok"), "{body}");
    assert!(told.worker.is_alive().await, "it goes on answering while work is in hand");
    assert_eq!(told.worker.series().await["millrace_ready{check=\"running\"}"], 0.0);
    assert_eq!(told.worker.series().await["millrace_slots_busy{capability=\"echo\"}"], 2.0);
    let told_to = Instant::now();
    let status = eventually(PATIENCE, "its end", async || told.cluster.ended("worker")).await;
    let took = told_to.elapsed();
    assert!(status.success() && took < Duration::from_secs(7), "{status} after {took:?}");

    // What was in hand has ended, and what was not goes on elsewhere.
    let second = Page::new();
    told.cluster.add(Role::Worker, "second", &["--capability", "echo", "--http", &second.address()]);
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    let attempts: Vec<u32> = history.plan().tasks().iter().map(|task| task.attempt).collect();
    assert_eq!(attempts, [1, 1, 1]);
    second.shows("millrace_attempts_total{capability=\"echo\",outcome=\"finished\"}", 1.0).await;
    told.cluster.end();
}

/// A model whose every reply has used the same, and whose first has to be asked for twice.
const MODEL: &str = "tries: 2\nrules:\n- times: 1\n  reply: {error: overloaded}\n- reply:\n    text: Done.\n    usage: \
                     {input_tokens: 1000, output_tokens: 100, cached_tokens: 250, cost_micros: 1500}\n";
const WRITER: &str = "name: writer\ndescription: Writes.\ninstructions: Write.\n";
/// Tasks of the run whose log is compared with the pages: each of the writer's asks the model once.
const WRITTEN: usize = 3;
const ECHOED: usize = 4;

fn counted() -> Submission {
    let task = |n: usize| TaskSpec {
        review: Review::critic(vec!["it is short".into()]),
        ..echo(&format!("e{n}"), &json!({}))
    };
    let written = (0..WRITTEN).map(|n| TaskSpec {
        capability: Capability::new("writer").unwrap(),
        review: Review::None,
        ..echo(&format!("w{n}"), &json!({}))
    });
    fixed((0..ECHOED).map(task).chain(written).collect())
}

/// What a run's log holds, by the names of the series that count it.
async fn in_the_log(bus: &Bus, history: &History) -> BTreeMap<(Process, String), f64> {
    let mut counts = BTreeMap::new();
    let mut count = |process, series: String| *counts.entry((process, series)).or_insert(0.0) += 1.0;
    for record in history.records() {
        let (_, _, topic) = parse(&record.subject).unwrap();
        let (process, topic, capability) = match &topic {
            Topic::Submitted => continue,
            Topic::Plan => {
                count(Process::Supervisor, "millrace_decisions_total".into());
                count(Process::Supervisor, appended("plan"));
                continue;
            }
            Topic::Task(task, _) => {
                let task = history.plan().task(task).unwrap();
                (Process::Worker, "task", task.spec.capability.to_string())
            }
            Topic::Review(..) => (Process::Critic, "review", "critic".to_owned()),
            Topic::Planning(..) | Topic::Control => panic!("nobody plans or steers"),
        };
        count(process, appended(topic));
        match bus.open::<Entry>(record).await.unwrap() {
            Entry::Outcome { outcome: Outcome::Finished { .. } | Outcome::Judged(_), .. } => {
                count(
                    process,
                    format!("millrace_attempts_total{{capability=\"{capability}\",outcome=\"finished\"}}"),
                );
                count(
                    process,
                    format!("millrace_orders_total{{capability=\"{capability}\",outcome=\"done\"}}"),
                );
                count(process, format!("millrace_attempt_seconds_count{{capability=\"{capability}\"}}"));
                count(Process::Supervisor, format!("millrace_offers_total{{capability=\"{capability}\"}}"));
            }
            Entry::Outcome { .. } => panic!("nothing fails"),
            Entry::Claimed { .. } | Entry::Step { .. } | Entry::Note { .. } | Entry::Released { .. } => {}
        }
    }
    counts
}

fn appended(topic: &str) -> String {
    format!("millrace_appends_total{{outcome=\"written\",topic=\"{topic}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_pages_count_is_what_the_log_says() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let (writer, model) = (at("writer.yaml", WRITER), format!("script:{}", at("model.yaml", MODEL)));
    let told =
        Told::new(Setup::default(), &["--capability", "echo", "--capability", &writer, "--model", &model]);
    told.are_ready().await;
    let first = format!("millrace_model_cost_dollars_total{{model=\"{model}\"}}");
    assert_eq!(told.worker.series().await.get(&first), Some(&0.0), "it is there before its first event");
    let bus = told.cluster.bus().await;
    let run = run("counted");
    submit(&bus, &run, &counted()).await;
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();

    let page = |process| match process {
        Process::Supervisor => told.supervisor,
        Process::Worker => told.worker,
        Process::Critic => told.critic,
        Process::Metrics => panic!("it is not part of this"),
    };
    let expected = in_the_log(&bus, &history).await;
    assert_eq!(expected[&(Process::Critic, appended("review"))], 2.0 * ECHOED as f64, "{expected:?}");
    for ((process, series), count) in &expected {
        page(*process).shows(series, *count).await;
        let took =
            series.replace("millrace_appends_total{outcome=\"written\",", "millrace_append_seconds_count{");
        page(*process).shows(&took, *count).await;
    }

    let usage = history.plan().spend.total;
    let of = |label: &str| format!("{label}model=\"{model}\"}}");
    let asked =
        |outcome: &str| format!("millrace_model_requests_total{{model=\"{model}\",outcome=\"{outcome}\"}}");
    let tokens = |direction: &str| {
        format!("millrace_model_tokens_total{{direction=\"{direction}\",model=\"{model}\"}}")
    };
    for (series, count) in [
        (asked("ok"), WRITTEN as f64),
        (asked("overloaded"), 1.0),
        (of("millrace_model_request_seconds_count{"), WRITTEN as f64 + 1.0),
        (tokens("input"), usage.input_tokens as f64),
        (tokens("output"), usage.output_tokens as f64),
        (tokens("cached"), usage.cached_tokens as f64),
        (of("millrace_model_cost_dollars_total{"), usage.cost_micros as f64 / 1_000_000.0),
    ] {
        told.worker.shows(&series, count).await;
    }
    assert_eq!(usage.cost_micros, 1_500 * WRITTEN as u64);

    for process in [Process::Supervisor, Process::Worker, Process::Critic] {
        are_its_own(page(process), process).await;
    }
    told.cluster.end();
}

/// All names of its table are on the page of a process, with their kind and words, and no other of ours.
async fn are_its_own(page: Page, process: Process) {
    let (_, text) = page.get("/metrics").await.unwrap();
    let declared: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let expected: BTreeSet<&str> =
        ALL.iter().filter(|one| one.on.contains(&process)).map(|one| one.name).collect();
    assert_eq!(declared, expected, "the page of a {process}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let one = ALL.iter().filter(|one| name.starts_with(one.name)).max_by_key(|one| one.name.len());
        let one = one.unwrap_or_else(|| panic!("{line} is in no table"));
        let labels = one.labels.iter().filter(|label| line.contains(&format!("{label}=\""))).count();
        assert_eq!(labels, one.labels.len(), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_measurer_shows_what_waits_in_a_queue_that_nobody_serves_and_what_is_in_hand() {
    let _alone = alone();
    let mut told = Told::new(Setup { lanes: 2, slots: 2, ..Setup::default() }, &["--capability", "echo"]);
    told.are_ready().await;
    assert!(told.cluster.stop("worker").0.success());
    let measurer = Measurer::start(&told.cluster);
    let page = measurer.1;
    let of_echo = |name: &str| format!("{name}{{capability=\"echo\"}}");
    page.shows(&of_echo("millrace_workers"), 0.0).await;
    page.shows(&of_echo("millrace_queue_oldest_seconds"), 0.0).await;

    let bus = told.cluster.bus().await;
    let run = run("waiting");
    submit(&bus, &run, &slow(3, 9_000)).await;
    page.shows(&of_echo("millrace_queue_pending"), 3.0).await;
    page.shows("millrace_runs{status=\"running\"}", 1.0).await;
    let series = page.series().await;
    for lane in 0..2 {
        assert_eq!(series[&format!("millrace_lane_owned{{lane=\"{lane}\"}}")], 1.0);
    }
    assert_eq!(series[&of_echo("millrace_queue_in_hand")], 0.0);
    assert!(series["millrace_stream_bytes{stream=\"WORK\"}"] > 0.0);
    assert!(series["millrace_store_used_bytes"] > series["millrace_stream_bytes{stream=\"WORK\"}"]);
    assert_eq!(series["millrace_processes{role=\"worker\"}"], 0.0);
    eventually(PATIENCE, "an order of an age", async || {
        let oldest = page.series().await[&of_echo("millrace_queue_oldest_seconds")];
        (oldest > 3.0).then_some(())
    })
    .await;

    told.cluster.add(Role::Worker, "slow", &["--capability", "echo"]);
    page.shows(&of_echo("millrace_queue_in_hand"), 2.0).await;
    for (name, value) in
        [("millrace_queue_pending", 1.0), ("millrace_workers", 1.0), ("millrace_capability_slots", 2.0)]
    {
        page.shows(&of_echo(name), value).await;
    }
    page.shows(&of_echo("millrace_capability_busy"), 2.0).await;
    finished(&bus, &run, PATIENCE).await.assert_holds();
    for name in ["millrace_queue_pending", "millrace_queue_in_hand", "millrace_queue_oldest_seconds"] {
        page.shows(&of_echo(name), 0.0).await;
    }
    page.shows("millrace_runs{status=\"completed\"}", 1.0).await;
    page.shows("millrace_runs{status=\"running\"}", 0.0).await;
    are_its_own(page, Process::Metrics).await;
    drop(measurer);
    told.cluster.end();
}

/// Fills the store of a cluster of three copies, slowly enough that its servers know of each other what they hold.
async fn fill(bus: &Bus) -> Fault {
    for number in 0_u64.. {
        let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(500_000).collect();
        if let Err(fault) = bus.blobs().put(&bytes).await {
            return fault;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    unreachable!("the store has a limit")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_of_three_copies_is_full_when_the_measurer_says_so() {
    const LIMIT: f64 = 40e6;
    let _alone = alone();
    let identities = Identities::write(&["--lanes", "1", "--max-store", "40000000"]);
    let trio = Trio::start(&identities, [(); 3].map(|()| Place::here())).await;
    let supervisor = identities.connection(&trio.url(), "millrace", "supervisor");
    let wanted = Wanted { lanes: Some(1), replicas: Some(3), ..Wanted::default() };
    Bus::connect(&supervisor, "test", &wanted).await.unwrap();
    let mut command = clean(Command::new(millrace()));
    command.env("MILLRACE_NATS_URL", trio.url()).envs(identities.environment("millrace", "metrics"));
    let measurer = Measurer::of(command);
    measurer.1.shows("millrace_store_limit_bytes", LIMIT).await;

    let client = identities.connection(&trio.url(), "millrace", "client");
    let refused = fill(&Bus::join(&client, "test", PATIENCE).await.unwrap()).await;
    assert!(refused.to_string().contains("resource limits exceeded"), "{refused}");
    eventually(PATIENCE, "a full store", async || {
        let series = measurer.1.try_series().await?;
        let (used, limit) = (series["millrace_store_used_bytes"], series["millrace_store_limit_bytes"]);
        (0.9..1.1).contains(&(used / limit)).then_some(())
    })
    .await;
}
