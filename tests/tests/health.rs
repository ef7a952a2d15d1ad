//! The HTTP pages of real processes with a real server: liveness, readiness and metrics. `chaos.rs` shows that a killed
//! process loses no work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{JournalKey, ReviewPolicy, Submission, TaskSpec};
use millrace_protocol::subject::{Topic, parse_lane_subject};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::ops::metrics::names::{ALL, ProcessKind};
use millrace_runtime::{Bus, Fault};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster, remove_millrace_variables};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::nats_cluster::{NatsCluster, NatsIdentities, ServerAddress};
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, wait_for_run_history};
use millrace_tests::program::millrace_program;
use millrace_tests::{NatsServer, ServerOptions, wait_for_value, web};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);
/// More seconds than an iteration of a main loop may take.
const OUTAGE: u64 = 35;

/// The address of a process's pages.
#[derive(Clone, Copy)]
struct ProcessPages(u16);

impl ProcessPages {
    fn on_free_port() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self(listener.local_addr().unwrap().port())
    }

    fn address(self) -> String {
        format!("127.0.0.1:{}", self.0)
    }

    async fn http_get(self, path: &str) -> Option<(u16, String)> {
        web::http_get(Ipv4Addr::LOCALHOST, self.0, path).await
    }

    async fn is_alive(self) -> bool {
        self.http_get("/livez").await.is_some_and(|(status, _)| status == 200)
    }

    /// Waits until `/readyz` returns this status and a body that contains the text.
    async fn wait_for_readyz(self, status: u16, text: &str) -> String {
        wait_for_value(TIMEOUT, &format!("{status} {text:?} of /readyz"), async || {
            let (found, body) = self.http_get("/readyz").await?;
            (found == status && body.contains(text)).then_some(body)
        })
        .await
    }

    /// Waits until `/readyz` reports that the server has been down for so long.
    async fn wait_for_outage(self, seconds: u64) {
        wait_for_value(TIMEOUT, "a long outage", async || {
            let (status, body) = self.http_get("/readyz").await?;
            let (_, rest) = body.split_once("[-]log no response for ")?;
            let away: u64 = rest.split(' ').next()?.parse().ok()?;
            (status == 503 && away >= seconds).then_some(())
        })
        .await;
    }

    async fn wait_until_ready(self) {
        self.wait_for_readyz(200, "readyz check passed").await;
    }

    /// All series of the metrics page by name and labels.
    async fn read_series(self) -> BTreeMap<String, f64> {
        self.try_read_series().await.unwrap()
    }

    async fn try_read_series(self) -> Option<BTreeMap<String, f64>> {
        let (_, page) = self.http_get("/metrics").await.filter(|(status, _)| *status == 200)?;
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.map(|line| line.rsplit_once(' ').unwrap());
        Some(lines.map(|(series, value)| (series.into(), value.parse().unwrap())).collect())
    }

    /// Waits until a series has a value.
    async fn wait_for_series(self, series: &str, value: f64) {
        let mut last = None;
        let shown = async || {
            last = self.try_read_series().await?.get(series).copied();
            last.is_some_and(|last| (last - value).abs() < 1e-9).then_some(())
        };
        let what = format!("{series} at {value}");
        wait_for_value(TIMEOUT, &what, shown).await;
    }
}

/// A cluster with one process of each role, and their pages.
struct ObservedCluster {
    cluster: TestCluster,
    supervisor: ProcessPages,
    worker: ProcessPages,
    critic: ProcessPages,
}

impl ObservedCluster {
    fn start(setup: ClusterSetup, worker: &[&str]) -> Self {
        Self::with_cluster(TestCluster::with_server_only(setup), worker)
    }

    fn with_cluster(mut cluster: TestCluster, worker: &[&str]) -> Self {
        let [supervisor, critic, at] = [(); 3].map(|()| ProcessPages::on_free_port());
        cluster.start_process(ProcessRole::Supervisor, "supervisor", &["--http", &supervisor.address()]);
        cluster.start_process(ProcessRole::Critic, "critic", &["--http", &critic.address()]);
        let at_address = at.address();
        let arguments: Vec<&str> = worker.iter().copied().chain(["--http", at_address.as_str()]).collect();
        cluster.start_process(ProcessRole::Worker, "worker", &arguments);
        Self { cluster, supervisor, worker: at, critic }
    }

    fn pages(&self) -> [ProcessPages; 3] {
        [self.supervisor, self.worker, self.critic]
    }

    async fn wait_until_ready(&self) {
        for page in self.pages() {
            page.wait_until_ready().await;
        }
    }
}

/// A `millrace metrics` process, which measures the whole cluster. Dropping it kills it.
struct MetricsProcess(Child, ProcessPages);

impl MetricsProcess {
    fn start_for_cluster(cluster: &TestCluster) -> Self {
        Self::from_command(cluster.millrace_command())
    }

    /// Starts it with a command that names its cluster.
    fn from_command(mut command: Command) -> Self {
        let page = ProcessPages::on_free_port();
        command.args(["metrics", "--http", &page.address()]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap(), page)
    }
}

impl Drop for MetricsProcess {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Tasks with this duration, named after their number.
fn slow_submission(tasks: usize, milliseconds: u64) -> Submission {
    let parameters = json!({ "delay_ms": milliseconds });
    fixed_submission((0..tasks).map(|n| echo_task(&format!("t{n}"), &parameters)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_serves_its_pages_and_becomes_ready() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    let [worker, supervisor, critic] = [(); 3].map(|()| ProcessPages::on_free_port());
    cluster.start_process(
        ProcessRole::Worker,
        "worker",
        &["--capability", "echo", "--http", &worker.address()],
    );
    worker.wait_for_readyz(503, "[-]log not joined yet").await;
    assert!(worker.is_alive().await, "it waits for the cluster to be created");

    cluster.start_process(ProcessRole::Supervisor, "supervisor", &["--http", &supervisor.address()]);
    cluster.start_process(ProcessRole::Critic, "critic", &["--http", &critic.address()]);
    let metrics = MetricsProcess::start_for_cluster(&cluster);
    for (page, checks) in [
        (supervisor, "[+]running ok\n[+]lanes ok\n[+]log ok\n"),
        (worker, "[+]running ok\n[+]log ok\n[+]capabilities ok\n"),
        (critic, "[+]running ok\n[+]log ok\n[+]capabilities ok\n"),
        (metrics.1, "[+]running ok\n[+]log ok\n[+]figures ok\n"),
    ] {
        let body = page.wait_for_readyz(200, "").await;
        assert_eq!(body, format!("{checks}readyz check passed\n"));
        assert_eq!(
            page.http_get("/livez").await.unwrap(),
            (200, "[+]loop ok\nlivez check passed\n".to_owned())
        );
        assert_eq!(page.http_get("/metrics").await.unwrap().0, 200);
        assert_eq!(page.http_get("/nothing").await.unwrap().0, 404);
        assert_eq!(page.http_get("/livez/more").await.unwrap().0, 404);
    }

    let taken = supervisor.address();
    let second = cluster.millrace_command().args(["worker", "--http", &taken]).output().unwrap();
    assert_eq!(second.status.code(), Some(4));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains(&taken) && stderr.contains("Address already in use"), "{stderr}");
    drop(metrics);
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_started_before_the_server_become_ready() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.server.kill();
    let mut observed = ObservedCluster::with_cluster(cluster, &["--capability", "echo"]);
    let names = ["supervisor", "worker", "critic"];
    for (page, name) in observed.pages().into_iter().zip(names) {
        page.wait_for_readyz(503, "[-]log not joined yet").await;
        observed.cluster.wait_for_log(name, "is not available yet; retrying", TIMEOUT).await;
    }
    observed.cluster.server.restart();
    observed.wait_until_ready().await;
    assert!(names.iter().all(|name| observed.cluster.is_running(name)), "no process exited");
    observed.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn server_outage_makes_processes_unready_but_not_dead() {
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: 4, lane_lease: None, work_lease: None, ..ClusterSetup::default() };
    let mut observed = ObservedCluster::start(setup, &["--capability", "echo"]);
    let metrics = MetricsProcess::start_for_cluster(&observed.cluster);
    observed.wait_until_ready().await;
    metrics.1.wait_until_ready().await;

    observed.cluster.server.kill();
    let pages = [observed.supervisor, observed.worker, observed.critic, metrics.1];
    for page in pages {
        page.wait_for_outage(OUTAGE).await;
        page.wait_for_series("millrace_nats_connected", 0.0).await;
        let body = page.wait_for_readyz(503, "[+]running ok").await;
        assert!(page.is_alive().await, "{body}");
    }

    observed.cluster.server.restart();
    observed.wait_until_ready().await;
    metrics.1.wait_until_ready().await;
    for page in pages {
        page.wait_for_series("millrace_nats_reconnects_total", 1.0).await;
        assert!(page.is_alive().await);
    }
    drop(metrics);
    observed.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn process_can_be_stopped_while_the_server_is_down() {
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: 16, lane_lease: None, work_lease: None, ..ClusterSetup::default() };
    let mut observed = ObservedCluster::start(setup, &["--capability", "echo"]);
    observed.wait_until_ready().await;
    let mut busy = MetricsProcess::start_for_cluster(&observed.cluster);
    busy.1.wait_until_ready().await;
    observed.cluster.server.kill();
    busy.1.wait_for_readyz(503, "[-]log").await;
    // It is in the middle of a request, which would time out only after 20 seconds.
    kill_process(Pid::from_child(&busy.0), Signal::TERM).unwrap();
    let told_to = Instant::now();
    let end = wait_for_value(TIMEOUT, "its end", async || busy.0.try_wait().unwrap()).await;
    let took = told_to.elapsed();
    assert!(
        end.success() && took < Duration::from_secs(5),
        "the metrics process exited with {end} after {took:?}"
    );
    observed.supervisor.wait_for_readyz(503, "[-]log").await;
    // A process that has just been started waits for the server like those that have lost it.
    let mut metrics = MetricsProcess::start_for_cluster(&observed.cluster);
    metrics.1.wait_for_readyz(503, "[-]log not joined yet").await;
    kill_process(Pid::from_child(&metrics.0), Signal::TERM).unwrap();
    let end = wait_for_value(TIMEOUT, "its end", async || metrics.0.try_wait().unwrap()).await;
    assert!(end.success(), "the metrics process: {end}");
    for name in ["worker", "critic", "supervisor"] {
        let (status, took) = observed.cluster.stop_process(name);
        assert!(status.success(), "{name}: {status}");
        assert!(took < Duration::from_secs(20), "{name} exited after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn supervisor_can_be_stopped_before_it_reads_the_registry() {
    let _shared = share_machine();
    let user = |name: &str, more: &str| format!("{{ user: {name}, password: secret{more} }}");
    // A request without permission gets no reply.
    let deny = r#"permissions: { publish: { deny: "$JS.API.DIRECT.GET.KV_capabilities" } }"#;
    let users = [user("all", ""), user("deaf", &format!(", {deny}"))].join(", ");
    let server = NatsServer::start_with_options(&ServerOptions {
        more: format!("authorization {{ users: [ {users} ] }}\n"),
        ..ServerOptions::default()
    });
    let page = ProcessPages::on_free_port();
    let mut command = remove_millrace_variables(Command::new(millrace_program()));
    command.args(["supervisor", "--nats", &server.url, "--http", &page.address()]);
    command.envs([("MILLRACE_NATS_USER", "deaf"), ("MILLRACE_NATS_PASSWORD", "secret")]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    page.wait_for_readyz(503, "[+]log ok").await;
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let told_to = Instant::now();
    let end = wait_for_value(TIMEOUT, "its end", async || child.try_wait().unwrap()).await;
    let took = told_to.elapsed();
    assert!(end.success() && took < Duration::from_secs(5), "{end} after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_process_is_unready_at_once_and_keeps_its_grace() {
    let _shared = share_machine();
    let mut observed = ObservedCluster::start(
        ClusterSetup { slots: 2, ..ClusterSetup::default() },
        &["--capability", "echo"],
    );
    observed.wait_until_ready().await;
    let bus = observed.cluster.connect_bus().await;
    let run = run_id("drained");
    submit_run(&bus, &run, &slow_submission(3, 1_500)).await;
    observed.worker.wait_for_series("millrace_slots_busy{capability=\"echo\"}", 2.0).await;

    observed.cluster.send_signal("worker", Signal::TERM);
    let body = observed.worker.wait_for_readyz(503, "[-]running stopping").await;
    assert!(body.contains("[+]log ok"), "{body}");
    assert!(observed.worker.is_alive().await, "it keeps answering while work is in flight");
    assert_eq!(observed.worker.read_series().await["millrace_ready{check=\"running\"}"], 0.0);
    assert_eq!(observed.worker.read_series().await["millrace_slots_busy{capability=\"echo\"}"], 2.0);
    let told_to = Instant::now();
    let status = wait_for_value(TIMEOUT, "its end", async || observed.cluster.exit_status("worker")).await;
    let took = told_to.elapsed();
    assert!(status.success() && took < Duration::from_secs(7), "{status} after {took:?}");

    // In-flight work has ended, and pending work continues elsewhere.
    let second = ProcessPages::on_free_port();
    observed.cluster.start_process(
        ProcessRole::Worker,
        "second",
        &["--capability", "echo", "--http", &second.address()],
    );
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let attempts: Vec<u32> = history.folded_plan().tasks().iter().map(|task| task.attempt).collect();
    assert_eq!(attempts, [1, 1, 1]);
    second.wait_for_series("millrace_attempts_total{capability=\"echo\",outcome=\"finished\"}", 1.0).await;
    observed.cluster.stop_all();
}

/// A model whose replies all have the same usage; its first request fails once.
const MODEL: &str = "tries: 2\nrules:\n- times: 1\n  reply: {error: overloaded}\n- reply:\n    text: Done.\n    usage: \
                     {input_tokens: 1000, output_tokens: 100, cached_tokens: 250, cost_micros: 1500}\n";
const WRITER: &str = "name: writer\ndescription: Writes.\ninstructions: Write.\n";
/// The tasks of the run whose log is compared with the metrics. Each task of the writer makes one model request.
const WRITTEN: usize = 3;
const ECHOED: usize = 4;

fn counted_submission() -> Submission {
    let task = |n: usize| TaskSpec {
        review: ReviewPolicy::critic(vec!["it is short".into()]),
        ..echo_task(&format!("e{n}"), &json!({}))
    };
    let written = (0..WRITTEN).map(|n| TaskSpec {
        capability: Capability::new("writer").unwrap(),
        review: ReviewPolicy::None,
        ..echo_task(&format!("w{n}"), &json!({}))
    });
    fixed_submission((0..ECHOED).map(task).chain(written).collect())
}

/// The expected values of the series that count a run's messages, from its log.
async fn expected_series(bus: &Bus, history: &History) -> BTreeMap<(ProcessKind, String), f64> {
    let mut counts = BTreeMap::new();
    let mut count = |process, series: String| *counts.entry((process, series)).or_insert(0.0) += 1.0;
    for record in history.records() {
        let (_, _, topic) = parse_lane_subject(&record.subject).unwrap();
        let (process, topic, capability) = match &topic {
            Topic::Submitted => continue,
            Topic::Plan => {
                count(ProcessKind::Supervisor, "millrace_decisions_total".into());
                count(ProcessKind::Supervisor, appends_series_name("plan"));
                continue;
            }
            Topic::Journal(JournalKey::Task(task, _)) => {
                let task = history.folded_plan().task(task).unwrap();
                (ProcessKind::Worker, "task", task.spec.capability.to_string())
            }
            Topic::Journal(JournalKey::Review(..)) => (ProcessKind::Critic, "review", "critic".to_owned()),
            Topic::Journal(JournalKey::Planning(..)) | Topic::Control | Topic::Answer => {
                panic!("the run has no planner and no commands")
            }
        };
        count(process, appends_series_name(topic));
        match bus.decode_record::<JournalEntry>(record).await.unwrap() {
            JournalEntry::Outcome {
                outcome: WorkOutcome::Finished { .. } | WorkOutcome::Judged(_), ..
            } => {
                count(
                    process,
                    format!("millrace_attempts_total{{capability=\"{capability}\",outcome=\"finished\"}}"),
                );
                count(
                    process,
                    format!("millrace_orders_total{{capability=\"{capability}\",outcome=\"done\"}}"),
                );
                count(process, format!("millrace_attempt_seconds_count{{capability=\"{capability}\"}}"));
                count(
                    ProcessKind::Supervisor,
                    format!("millrace_offers_total{{capability=\"{capability}\"}}"),
                );
            }
            JournalEntry::Outcome { .. } => panic!("no task fails"),
            JournalEntry::Claimed { .. }
            | JournalEntry::Step { .. }
            | JournalEntry::Note { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. } => {}
        }
    }
    counts
}

fn appends_series_name(topic: &str) -> String {
    format!("millrace_appends_total{{outcome=\"written\",topic=\"{topic}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_match_the_log() {
    let _shared = share_machine();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let (writer, model) = (at("writer.yaml", WRITER), format!("script:{}", at("model.yaml", MODEL)));
    let observed = ObservedCluster::start(
        // No work is taken over on a slow machine.
        ClusterSetup { work_lease: None, ..ClusterSetup::default() },
        &["--capability", "echo", "--capability", &writer, "--model", &model],
    );
    observed.wait_until_ready().await;
    let first = format!("millrace_model_cost_dollars_total{{model=\"{model}\"}}");
    assert_eq!(
        observed.worker.read_series().await.get(&first),
        Some(&0.0),
        "the series exists before its first event"
    );
    let bus = observed.cluster.connect_bus().await;
    let run = run_id("counted");
    submit_run(&bus, &run, &counted_submission()).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();

    let page = |process| match process {
        ProcessKind::Supervisor => observed.supervisor,
        ProcessKind::Worker => observed.worker,
        ProcessKind::Critic => observed.critic,
        ProcessKind::Metrics | ProcessKind::Gateway => panic!("not part of this test"),
    };
    let expected = expected_series(&bus, &history).await;
    assert_eq!(
        expected[&(ProcessKind::Critic, appends_series_name("review"))],
        2.0 * ECHOED as f64,
        "{expected:?}"
    );
    for ((process, series), count) in &expected {
        page(*process).wait_for_series(series, *count).await;
        let took =
            series.replace("millrace_appends_total{outcome=\"written\",", "millrace_append_seconds_count{");
        page(*process).wait_for_series(&took, *count).await;
    }

    let usage = history.folded_plan().budget.spend.total;
    let of = |label: &str| format!("{label}model=\"{model}\"}}");
    let requests =
        |outcome: &str| format!("millrace_model_requests_total{{model=\"{model}\",outcome=\"{outcome}\"}}");
    let tokens = |direction: &str| {
        format!("millrace_model_tokens_total{{direction=\"{direction}\",model=\"{model}\"}}")
    };
    for (series, count) in [
        (requests("ok"), WRITTEN as f64),
        (requests("overloaded"), 1.0),
        (of("millrace_model_request_seconds_count{"), WRITTEN as f64 + 1.0),
        (tokens("input"), usage.input_tokens as f64),
        (tokens("output"), usage.output_tokens as f64),
        (tokens("cached"), usage.cached_tokens as f64),
        (of("millrace_model_cost_dollars_total{"), usage.cost_micros as f64 / 1_000_000.0),
    ] {
        observed.worker.wait_for_series(&series, count).await;
    }
    assert_eq!(usage.cost_micros, 1_500 * WRITTEN as u64);

    for process in [ProcessKind::Supervisor, ProcessKind::Worker, ProcessKind::Critic] {
        assert_declared_metrics(page(process), process).await;
    }
    observed.cluster.stop_all();
}

/// Checks that the page of a process has exactly the metrics declared for it, with their types and help texts.
async fn assert_declared_metrics(page: ProcessPages, process: ProcessKind) {
    let (_, text) = page.http_get("/metrics").await.unwrap();
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
async fn metrics_show_pending_and_in_flight_orders_of_a_queue() {
    let _shared = share_machine();
    let mut observed = ObservedCluster::start(
        ClusterSetup { lanes: 2, slots: 2, ..ClusterSetup::default() },
        &["--capability", "echo"],
    );
    observed.wait_until_ready().await;
    assert!(observed.cluster.stop_process("worker").0.success());
    let metrics = MetricsProcess::start_for_cluster(&observed.cluster);
    let page = metrics.1;
    let of_echo = |name: &str| format!("{name}{{capability=\"echo\"}}");
    page.wait_for_series(&of_echo("millrace_workers"), 0.0).await;
    page.wait_for_series(&of_echo("millrace_queue_oldest_seconds"), 0.0).await;

    let bus = observed.cluster.connect_bus().await;
    let run = run_id("waiting");
    submit_run(&bus, &run, &slow_submission(3, 9_000)).await;
    page.wait_for_series(&of_echo("millrace_queue_pending"), 3.0).await;
    page.wait_for_series("millrace_runs{status=\"running\"}", 1.0).await;
    let series = page.read_series().await;
    for lane in 0..2 {
        assert_eq!(series[&format!("millrace_lane_owned{{lane=\"{lane}\"}}")], 1.0);
    }
    assert_eq!(series[&of_echo("millrace_queue_in_hand")], 0.0);
    assert!(series["millrace_stream_bytes{stream=\"WORK\"}"] > 0.0);
    assert!(series["millrace_store_used_bytes"] > series["millrace_stream_bytes{stream=\"WORK\"}"]);
    assert_eq!(series["millrace_processes{role=\"worker\"}"], 0.0);
    wait_for_value(TIMEOUT, "the age of an order", async || {
        let oldest = page.read_series().await[&of_echo("millrace_queue_oldest_seconds")];
        (oldest > 3.0).then_some(())
    })
    .await;

    observed.cluster.start_process(ProcessRole::Worker, "slow", &["--capability", "echo"]);
    page.wait_for_series(&of_echo("millrace_queue_in_hand"), 2.0).await;
    for (name, value) in
        [("millrace_queue_pending", 1.0), ("millrace_workers", 1.0), ("millrace_capability_slots", 2.0)]
    {
        page.wait_for_series(&of_echo(name), value).await;
    }
    page.wait_for_series(&of_echo("millrace_capability_busy"), 2.0).await;
    wait_for_run_history(&bus, &run, TIMEOUT).await.assert_consistent();
    for name in ["millrace_queue_pending", "millrace_queue_in_hand", "millrace_queue_oldest_seconds"] {
        page.wait_for_series(&of_echo(name), 0.0).await;
    }
    page.wait_for_series("millrace_runs{status=\"completed\"}", 1.0).await;
    page.wait_for_series("millrace_runs{status=\"running\"}", 0.0).await;
    assert_declared_metrics(page, ProcessKind::Metrics).await;
    drop(metrics);
    observed.cluster.stop_all();
}

/// Fills the store of a replicated cluster, slowly enough that its servers exchange their usage.
async fn fill_store_until_error(bus: &Bus) -> Fault {
    for number in 0_u64.. {
        let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(500_000).collect();
        if let Err(fault) = bus.blobs().put_blob(&bytes).await {
            return fault;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    unreachable!("the store has a limit")
}

#[tokio::test(flavor = "multi_thread")]
async fn replicated_store_is_full_when_the_metrics_say_so() {
    const LIMIT: f64 = 40e6;
    let _shared = share_machine();
    let identities = NatsIdentities::generate(&["--lanes", "1", "--max-store", "40000000"]);
    let servers =
        NatsCluster::start_three_servers(&identities, [(); 3].map(|()| ServerAddress::on_this_machine()))
            .await;
    let supervisor = identities.connection_settings(&servers.server_urls(), "millrace", "supervisor");
    let wanted = ClusterOptions { lanes: Some(1), replicas: Some(3), ..ClusterOptions::default() };
    Bus::connect_and_ensure_cluster(&supervisor, "test", &wanted).await.unwrap();
    let mut command = remove_millrace_variables(Command::new(millrace_program()));
    command
        .env("MILLRACE_NATS_URL", servers.server_urls())
        .envs(identities.connection_environment("millrace", "metrics"));
    let metrics = MetricsProcess::from_command(command);
    metrics.1.wait_for_series("millrace_store_limit_bytes", LIMIT).await;

    let client = identities.connection_settings(&servers.server_urls(), "millrace", "client");
    let refused =
        fill_store_until_error(&Bus::join_existing_cluster(&client, "test", TIMEOUT).await.unwrap()).await;
    assert!(refused.to_string().contains("resource limits exceeded"), "{refused}");
    wait_for_value(TIMEOUT, "a full store", async || {
        let series = metrics.1.try_read_series().await?;
        let (used, limit) = (series["millrace_store_used_bytes"], series["millrace_store_limit_bytes"]);
        (0.9..1.1).contains(&(used / limit)).then_some(())
    })
    .await;
}
