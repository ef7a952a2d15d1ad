//! Backup and restore with real programs and servers: a busy cluster is backed up, destroyed, and continues elsewhere;
//! invalid backups and targets are rejected with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_protocol::file::{FilePath, WriteCondition};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Budget, CommandAction, EndReason, Submission, TaskState};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::store::archive;
use millrace_runtime::store::backup::{self, BackupError, RestoreOptions, RestoreReport};
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, ConnectionSettings, log};
use millrace_tests::cluster::{
    ClusterSetup, NamedProcesses, ProcessRole, TestCluster, remove_millrace_variables, wait_for_exit,
};
use millrace_tests::history::{History, TaskOutcome};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    echo_task, fixed_submission, layered_submission, make_settings_writable, run_id, submit_run, task_id,
    wait_for_archive, wait_for_run_end, wait_for_run_history,
};
use millrace_tests::program::millrace_program;
use millrace_tests::{NatsServer, ServerOptions, wait_for_value};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(120);
const SEED: u64 = 11;

/// The end of a run: the ends and results of its tasks, and the reason with the deliverable's task.
type RunEnding = (BTreeMap<TaskId, (TaskOutcome, Option<InlineOrStoredBytes>)>, String);

fn cluster_setup() -> ClusterSetup {
    ClusterSetup { linger: Duration::from_millis(200), lanes: 2, ..ClusterSetup::default() }
}

/// Two hundred tasks in layers, some with results that are too large for a message.
fn large_submission() -> Submission {
    let mut submission = layered_submission(SEED, 10, 20);
    for task in submission.tasks.iter_mut().step_by(9).map(Arc::make_mut) {
        task.parameters.insert("bytes".into(), json!(400_000));
    }
    submission
}

fn run_ending(history: &History) -> RunEnding {
    let end = history.folded_plan().run.end.as_ref().expect("the run is over");
    let mut results = history.accepted_results();
    let tasks = history.task_outcomes().into_iter().map(|(task, fate)| {
        let result = results.remove(&task);
        (task, (fate, result))
    });
    (tasks.collect(), format!("{} {:?}", end.reason, end.deliverable))
}

/// The end of the large run without a backup.
async fn run_without_backup() -> RunEnding {
    let cluster = TestCluster::start_with_workers(cluster_setup(), 2);
    let bus = cluster.connect_bus().await;
    submit_run(&bus, &run_id("large"), &large_submission()).await;
    let history = wait_for_run_history(&bus, &run_id("large"), TIMEOUT).await;
    history.assert_consistent();
    cluster.stop_all();
    run_ending(&history)
}

async fn read_run_summary(bus: &Bus, run: &RunId) -> Option<RunSummary> {
    registry::read_summary(bus, run).await.ok().flatten()
}

async fn wait_for_summary(
    bus: &Bus,
    run: &RunId,
    what: &str,
    is_so: impl Fn(&RunSummary) -> bool,
) -> RunSummary {
    let waited = format!("{run} to be {what}");
    wait_for_value(TIMEOUT, &waited, async || read_run_summary(bus, run).await.filter(&is_so)).await
}

async fn send_command(bus: &Bus, run: &RunId, control: CommandAction) {
    let command = millrace_protocol::plan::RunCommand {
        id: uuid::Uuid::new_v4().to_string(),
        by: "test".into(),
        control,
    };
    log::publish_message(bus, bus.lane_of_run(run), run, &Topic::Control, &command, &command.id)
        .await
        .unwrap();
}

/// Submits runs in every state: archived, paused, out of budget, and running.
async fn submit_runs_in_all_states(bus: &Bus) {
    submit_run(
        bus,
        &run_id("done"),
        &fixed_submission(vec![echo_task("a", &json!({"bytes": 500_000, "steps": 3}))]),
    )
    .await;
    wait_for_archive(bus, &run_id("done"), TIMEOUT).await;

    let mut behind = echo_task("behind", &json!({"steps": 1}));
    behind.depends_on = vec![task_id("first")];
    let row = vec![echo_task("first", &json!({"delay_ms": 3_000})), behind];
    submit_run(bus, &run_id("paused"), &fixed_submission(row.clone())).await;
    let runs = |summary: &RunSummary| summary.counts[TaskState::Running as usize] == 1;
    wait_for_summary(bus, &run_id("paused"), "begun", runs).await;
    send_command(bus, &run_id("paused"), CommandAction::Pause).await;
    wait_for_summary(bus, &run_id("paused"), "paused", |summary| {
        summary.is_paused && summary.completed_and_total_tasks().1 == 1
    })
    .await;

    let budget = Budget { wall_time: Some(Duration::from_millis(300)), ..Budget::default() };
    submit_run(bus, &run_id("spent"), &Submission { budget, ..fixed_submission(row) }).await;
    wait_for_summary(bus, &run_id("spent"), "at its end", |summary| {
        summary.end == Some(EndReason::BudgetExhausted)
    })
    .await;

    submit_run(bus, &run_id("large"), &large_submission()).await;
}

/// Writes files of a run repeatedly until it is stopped. Each version contains its number.
async fn write_files_until_stopped(bus: Bus, run: RunId, stop: CancellationToken) -> u64 {
    let files = RunWorkspace::new(&bus, &run);
    let mut round = 0;
    while !stop.is_cancelled() {
        round += 1;
        for path in ["/notes.md", "/data/large.csv"] {
            let path: FilePath = path.parse().unwrap();
            let key = format!("{path} {round}");
            let writer = FileAuthor { author: "test", key: &key };
            let expected =
                if round == 1 { WriteCondition::Absent } else { WriteCondition::Version(round - 1) };
            let Ok(version) = files.write_file(&path, file_content(&path, round), expected, writer).await
            else {
                return round;
            };
            assert_eq!(version, round);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    round
}

/// The content of a version of a file, large or small.
fn file_content(path: &FilePath, version: u64) -> Vec<u8> {
    let line = format!("{path} {version}\n");
    if path.as_str().ends_with(".csv") { line.repeat(6_000).into() } else { line.into() }
}

/// Checks that every version of every file exists, with its content. Returns the number of versions.
async fn check_file_versions(bus: &Bus, run: &RunId) -> u64 {
    let files = RunWorkspace::new(bus, run);
    let mut count = 0;
    for entry in files.list_files(None).await.unwrap() {
        let versions = files.list_versions(&entry.path).await.unwrap();
        let numbers: Vec<u64> = versions.iter().map(|version| version.version).collect();
        assert_eq!(numbers, (1..=entry.version).collect::<Vec<_>>(), "{}", entry.path);
        for version in numbers {
            let file = files.read_file_version(&entry.path, version).await.unwrap().unwrap();
            assert_eq!(file.bytes, file_content(&entry.path, version), "{} #{version}", entry.path);
            count += 1;
        }
    }
    count
}

fn run_command(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the program starts")
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed, and parses its output as JSON.
fn run_and_parse_json(command: &mut Command) -> Value {
    let output = run_command(command);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}{printed}", stderr_text(&output));
    serde_json::from_str(&printed).unwrap()
}

/// A `millrace` command for a server.
fn millrace_command_at(url: &str, words: &[&str]) -> Command {
    let mut command = remove_millrace_variables(Command::new(millrace_program()));
    command.args(words).args(["--nats", url]);
    command
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The steps of the run that the backup contains.
async fn read_recorded_steps(bus: &Bus, run: &RunId) -> BTreeSet<String> {
    let history = History::read_from_log(bus, run).await.unwrap();
    let violations = history.find_violations();
    assert!(violations.is_empty(), "{run} as restored: {}", violations.join("\n"));
    history.recorded_steps().into_iter().map(|(step, _)| step).collect()
}

/// Starts all processes on a restored cluster, and checks that all runs continue where they were.
async fn assert_runs_continue(
    bus: &Bus,
    expected: &RunEnding,
    processes: &mut NamedProcesses,
    start: impl Fn(&mut NamedProcesses, ProcessRole, &'static str),
    mut show: Command,
) {
    let before = read_recorded_steps(bus, &run_id("large")).await;
    assert!(!before.is_empty(), "the run was in progress");
    let files = check_file_versions(bus, &run_id("large")).await;
    assert!(files > 0, "there are files");
    for (role, name) in [
        (ProcessRole::Supervisor, "supervisor-1"),
        (ProcessRole::Supervisor, "supervisor-2"),
        (ProcessRole::Critic, "critic-1"),
        (ProcessRole::Worker, "worker-1"),
        (ProcessRole::Worker, "worker-2"),
    ] {
        start(processes, role, name);
    }
    let history = wait_for_run_history(bus, &run_id("large"), TIMEOUT).await;
    history.assert_consistent();
    let actual = run_ending(&history);
    let differs = expected.0.iter().find(|(task, fate)| actual.0.get(*task) != Some(fate));
    assert!(differs.is_none(), "{differs:?} became {:?}", differs.and_then(|(task, _)| actual.0.get(task)));
    assert_eq!(actual.1, expected.1);
    let again: Vec<String> =
        processes.read_ledger().lines().filter(|line| before.contains(*line)).map(str::to_owned).collect();
    assert!(again.is_empty(), "steps in the backup were repeated: {again:?}");
    assert_eq!(check_file_versions(bus, &run_id("large")).await, files);

    let paused = wait_for_summary(bus, &run_id("paused"), "known", |_| true).await;
    assert!(
        paused.is_paused && paused.completed_and_total_tasks() == (2, 1) && paused.end.is_none(),
        "{paused:?}"
    );
    send_command(bus, &run_id("paused"), CommandAction::Resume { budget: None }).await;
    assert_eq!(read_end_reason(bus, "paused").await, EndReason::Completed);

    assert_eq!(read_run_summary(bus, &run_id("spent")).await.unwrap().end, Some(EndReason::BudgetExhausted));
    let budget = Budget { wall_time: Some(Duration::from_secs(3_600)), ..Budget::default() };
    send_command(bus, &run_id("spent"), CommandAction::Resume { budget: Some(budget) }).await;
    wait_for_summary(bus, &run_id("spent"), "done", |summary| summary.end == Some(EndReason::Completed))
        .await;

    assert_eq!(read_end_reason(bus, "done").await, EndReason::Completed);
    let lane = log::read_run(bus, bus.lane_of_run(&run_id("done")), &run_id("done"), 1).await.unwrap();
    assert!(lane.is_empty(), "the archived run is only in the archive");
    let shown = run_and_parse_json(show.args(["show", "done", "--json"]));
    let output = shown["result"]["output"].as_str().unwrap_or_default();
    assert_eq!(output.len(), 500_000, "the result of the archived run, a blob");
}

async fn read_end_reason(bus: &Bus, name: &str) -> EndReason {
    let history = wait_for_run_history(bus, &run_id(name), TIMEOUT).await;
    history.assert_consistent();
    history.folded_plan().run.end.as_ref().unwrap().reason
}

/// Backs up a busy cluster during a run. Returns the backup; the cluster is gone.
async fn back_up_busy_cluster(home: &Path) -> PathBuf {
    let folder = home.join("backup");
    let mut cluster = TestCluster::start_with_workers(cluster_setup(), 2);
    let bus = cluster.connect_bus().await;
    submit_runs_in_all_states(&bus).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write_files_until_stopped(bus.clone(), run_id("large"), stop.clone()));
    wait_for_summary(&bus, &run_id("large"), "under way", |summary| {
        summary.completed_and_total_tasks().1 >= 60
    })
    .await;
    let started = Instant::now();
    let backup =
        run_and_parse_json(cluster.millrace_command().args(["backup", path_text(&folder), "--json"]));
    println!("{} bytes in {:?}: {}", backup["bytes"], started.elapsed(), backup["parts"]);
    assert!(
        read_run_summary(&bus, &run_id("large")).await.unwrap().end.is_none(),
        "the run continued after the backup"
    );
    stop.cancel();
    assert!(writer.await.unwrap() > 1, "files were written meanwhile");
    let verified = run_and_parse_json(remove_millrace_variables(Command::new(millrace_program())).args([
        "backup",
        "--verify",
        path_text(&folder),
        "--json",
    ]));
    assert_eq!(verified, backup);
    cluster.server.kill();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_cluster_continues_from_its_backup() {
    let _shared = share_machine();
    let home = tempfile::tempdir().unwrap();
    let expected = run_without_backup().await;
    let folder = back_up_busy_cluster(home.path()).await;
    let mut cluster = TestCluster::with_server_only(cluster_setup());
    let started = Instant::now();
    let restored =
        run_and_parse_json(cluster.millrace_command().args(["restore", path_text(&folder), "--json"]));
    println!("restored in {:?}", started.elapsed());
    assert_eq!((&restored["missing"], &restored["archived_runs"]), (&json!([]), &json!(1)));
    assert_eq!(restored["live_runs"], json!(["large", "paused", "spent"]));
    let (bus, show, url) =
        (cluster.connect_bus().await, cluster.millrace_command(), cluster.server.url.clone());
    assert_runs_continue(
        &bus,
        &expected,
        &mut cluster,
        |processes, role, name| start_role_process(processes, role, name, &url, None),
        show,
    )
    .await;
    cluster.stop_all();
}

/// Starts a process for a server, with the identity of its role from a folder with seeds.
fn start_role_process(
    processes: &mut NamedProcesses,
    role: ProcessRole,
    name: &'static str,
    url: &str,
    seeds: Option<&Path>,
) {
    let (identity, more): (_, &[&str]) = match role {
        ProcessRole::Supervisor => ("supervisor", &[]),
        ProcessRole::Worker => ("worker-echo", &["--capability", "echo"]),
        ProcessRole::Critic => ("critic", &[]),
    };
    let (url, seed) = (url.to_owned(), seeds.map(|seeds| seeds.join(format!("{identity}.nk"))));
    processes.start_process(role, name, move |id| {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command.env("MILLRACE_NATS_URL", &url).args(cluster_setup().role_arguments(role, id)).args(more);
        command.envs(seed.iter().map(|seed| ("MILLRACE_NATS_NKEY", seed)));
        command
    });
}

/// Three servers of one NATS cluster, which let in whoever stands in this text.
fn start_three_servers(accounts: &str) -> [NatsServer; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    drop(listeners);
    let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
    [0, 1, 2].map(|number| {
        let port = ports[number];
        let cluster =
            format!("cluster {{ name: three, host: 127.0.0.1, port: {port}, routes: [{routes}] }}\n");
        let more = format!("server_name: n{number}\n{cluster}{accounts}");
        NatsServer::start_with_options(&ServerOptions { more, ..ServerOptions::default() })
    })
}

/// A webhook of a receiver that no test reaches. Returns its secret.
fn add_webhook(cluster: &TestCluster) -> Value {
    let add = ["webhook", "add", "https://receiver.example/", "--event", "task_failed", "--json"];
    run_and_parse_json(cluster.millrace_command().args(add))["secret"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_made_before_a_prune_restores_everything() {
    let _shared = share_machine();
    let home = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start_with_workers(cluster_setup(), 1);
    let bus = cluster.connect_bus().await;
    let secret = add_webhook(&cluster);
    let run = run_id("old");
    // One result is in a message, and the other one is a blob.
    let tasks = vec![echo_task("small", &json!({})), echo_task("large", &json!({"bytes": 400_000}))];
    submit_run(&bus, &run, &fixed_submission(tasks)).await;
    let files = RunWorkspace::new(&bus, &run);
    let path: FilePath = "/data/large.csv".parse().unwrap();
    let writer = FileAuthor { author: "test", key: "k" };
    files.write_file(&path, file_content(&path, 1), WriteCondition::Absent, writer).await.unwrap();
    let before = run_ending(&wait_for_run_history(&bus, &run, TIMEOUT).await);
    wait_for_archive(&bus, &run, TIMEOUT).await;
    let folder = home.path().join("backup");
    run_and_parse_json(cluster.millrace_command().args(["backup", path_text(&folder), "--json"]));

    wait_for_value(TIMEOUT, "the run to be deleted", async || {
        let prune = ["prune", "--older-than", "1s", "--json"];
        run_and_parse_json(cluster.millrace_command().args(prune));
        read_run_summary(&bus, &run).await.is_none().then_some(())
    })
    .await;
    wait_for_value(TIMEOUT, "its file to be deleted", async || {
        files.list_files(None).await.unwrap().is_empty().then_some(())
    })
    .await;
    cluster.stop_all();

    let (_server, restored, report) = restore_into_new_server(&folder).await;
    assert!(report.missing.is_empty(), "{:?}", report.missing);
    assert_eq!(run_ending(&wait_for_run_history(&restored, &run, TIMEOUT).await), before);
    assert_eq!(check_file_versions(&restored, &run).await, 1);
    let results = History::read_from_log(&restored, &run).await.unwrap().accepted_results();
    for result in results.values() {
        restored.blobs().read_inline_or_stored(result).await.unwrap();
    }
    // The receiver of a webhook verifies messages by the secret that it knows.
    let webhooks = millrace_runtime::store::webhooks::read_webhooks(&restored).await.unwrap();
    let secrets: Vec<String> = webhooks.iter().map(|entry| entry.value.secret.reveal()).collect();
    assert_eq!(json!(secrets), json!([secret]));
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_of_one_server_restores_to_three_replicas() {
    let _shared = share_machine();
    let home = tempfile::tempdir().unwrap();
    let expected = run_without_backup().await;
    let folder = back_up_busy_cluster(home.path()).await;
    let identities = home.path().join("identities");
    let made = run_command(
        remove_millrace_variables(Command::new(millrace_program()))
            .args(["nats-config", "--no-tls", "--worker", "echo"])
            .args(["--lanes", "2", "--out", path_text(&identities)]),
    );
    assert!(made.status.success(), "{}", stderr_text(&made));
    let servers = start_three_servers(&fs::read_to_string(identities.join("accounts.conf")).unwrap());
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let seeds = identities.join("seeds/millrace");
    let as_whom = |identity: &str, words: &[&str]| {
        let mut command = millrace_command_at(&url, words);
        command.env("MILLRACE_NATS_NKEY", seeds.join(format!("{identity}.nk")));
        command
    };

    // The servers need a moment to find each other; until then they do not reply.
    let forbidden = wait_for_value(TIMEOUT, "three servers that are one", async || {
        let output = run_command(&mut as_whom("client", &["restore", path_text(&folder)]));
        (!stderr_text(&output).contains("checking for JetStream")).then_some(output)
    })
    .await;
    assert_eq!(forbidden.status.code(), Some(4), "{}", stderr_text(&forbidden));
    assert!(
        stderr_text(&forbidden).contains("permission denied by the NATS server"),
        "{}",
        stderr_text(&forbidden)
    );
    let restore = ["restore", path_text(&folder), "--replicas", "3", "--json"];
    let restored = run_and_parse_json(&mut as_whom("backup", &restore));
    assert_eq!((&restored["missing"], &restored["cluster"]["replicas"]), (&json!([]), &json!(3)));

    let connection = ConnectionSettings {
        credentials: Credentials::NkeyFile(seeds.join("client.nk")),
        ..ConnectionSettings::unauthenticated(url.clone())
    };
    let bus = Bus::join_existing_cluster(&connection, "test", Duration::ZERO).await.unwrap();
    let mut processes = NamedProcesses::default();
    let start = |processes: &mut NamedProcesses, role, name| {
        start_role_process(processes, role, name, &url, Some(&seeds))
    };
    let mut show = remove_millrace_variables(Command::new(millrace_program()));
    show.env("MILLRACE_NATS_URL", &url).env("MILLRACE_NATS_NKEY", seeds.join("client.nk"));
    assert_runs_continue(&bus, &expected, &mut processes, start, show).await;
    let again = home.path().join("again");
    let taken = run_and_parse_json(&mut as_whom("backup", &["backup", path_text(&again), "--json"]));
    assert_eq!(taken["cluster"]["replicas"], json!(3), "the replicas are backed up once");
    processes.stop_all();
}

/// Submits runs continuously, each with a large result and a file. Returns those that had ended when it was stopped.
async fn submit_continuously(bus: Bus, rests: Arc<AtomicBool>, stop: CancellationToken) -> Vec<RunId> {
    let mut all = Vec::new();
    for number in 0.. {
        while rests.load(Ordering::Relaxed) && !stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if stop.is_cancelled() {
            break;
        }
        let name = run_id(&format!("r-{number}"));
        let large = json!({"bytes": 300_000, "steps": 3, "delay_ms": 30});
        let mut last = echo_task("last", &json!({"steps": 2}));
        last.depends_on = vec![task_id("large")];
        // These are stored in the lane itself, so that it has more than one block.
        let inline = (0..4).map(|n| echo_task(&format!("inline-{n}"), &json!({ "bytes": 200_000 })));
        let files = RunWorkspace::new(&bus, &name);
        submit_run(
            &bus,
            &name,
            &fixed_submission(inline.chain([echo_task("large", &large), last]).collect()),
        )
        .await;
        for path in ["/notes.md", "/data/large.csv"] {
            let path: FilePath = path.parse().unwrap();
            let writer = FileAuthor { author: "test", key: path.as_str() };
            files.write_file(&path, file_content(&path, 1), WriteCondition::Absent, writer).await.unwrap();
        }
        all.push(name);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    all
}

/// Restores a backup into a new server.
async fn restore_into_new_server(folder: &Path) -> (NatsServer, Bus, RestoreReport) {
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let wish = RestoreOptions { folder: folder.to_owned(), ..RestoreOptions::default() };
    let restored =
        backup::restore_backup(&connection, &wish, &CancellationToken::new(), &|_| {}).await.unwrap();
    let bus = Bus::join_existing_cluster(&connection, "test", Duration::ZERO).await.unwrap();
    (server, bus, restored)
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_during_many_runs_is_always_complete() {
    let _shared = share_machine();
    let home = tempfile::tempdir().unwrap();
    let rounds: u32 = std::env::var("MILLRACE_BACKUPS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let cluster = TestCluster::start_with_workers(
        ClusterSetup { linger: Duration::from_millis(20), ..cluster_setup() },
        2,
    );
    let bus = cluster.connect_bus().await;
    let stop = CancellationToken::new();
    let rests = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(submit_continuously(bus.clone(), Arc::clone(&rests), stop.clone()));
    wait_for_archive(&bus, &run_id("r-3"), TIMEOUT).await;
    let (mut in_archive, mut in_lanes) = (0, 0);
    for round in 0..rounds {
        // Verification takes longer the more runs there are, so runs are submitted only during backups.
        let registered = registry::read_run_summaries(&bus).await.unwrap().len();
        rests.store(false, Ordering::Relaxed);
        wait_for_value(TIMEOUT, "new runs", async || {
            (registry::read_run_summaries(&bus).await.unwrap().len() >= registered + 4).then_some(())
        })
        .await;
        let archived_before: Vec<RunId> = registry::read_run_summaries(&bus)
            .await
            .unwrap()
            .into_iter()
            .filter(|it| it.archived)
            .map(|it| it.run)
            .collect();
        let folder = home.path().join(format!("backup-{round}"));
        backup::take_backup(&bus, &folder, &|_| {}).await.unwrap();
        rests.store(true, Ordering::Relaxed);
        let (_server, there, restored) = restore_into_new_server(&folder).await;
        assert_eq!(restored.missing, vec![], "round {round}");
        assert!(restored.archived >= archived_before.len(), "round {round}");
        // The runs that were archived last may have been removed from their lane during the backup.
        for run in archived_before.iter().rev().take(40).chain(&restored.live) {
            let history = History::read_from_log(&there, run).await.unwrap();
            let violations = history.find_violations();
            assert!(violations.is_empty(), "round {round}, {run}: {}", violations.join("\n"));
            let is_archived = archived_before.contains(run);
            assert!(
                !is_archived || history.folded_plan().run.end.is_some(),
                "round {round}: {run} lost its end"
            );
            assert!(!history.records().is_empty(), "round {round}: {run} is lost");
            check_file_versions(&there, run).await;
        }
        in_archive += restored.archived;
        in_lanes += restored.live.len();
        fs::remove_dir_all(&folder).unwrap();
    }
    stop.cancel();
    let all = load.await.unwrap();
    println!(
        "{} runs, {rounds} backups with {in_archive} runs in the archive, {in_lanes} in lanes",
        all.len()
    );
    assert!(in_lanes > 0, "no backup contains a run in its lane");
    wait_for_run_end(&bus, all.last().unwrap(), TIMEOUT).await;
    cluster.stop_all();
}

/// A server with a small idle cluster, and a backup of it.
async fn back_up_small_cluster(home: &TempDir) -> (NatsServer, PathBuf) {
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default()).await.unwrap();
    submit_run(&bus, &run_id("waits"), &fixed_submission(vec![echo_task("a", &json!({}))])).await;
    bus.blobs().put_blob(&vec![7; 1_000_000]).await.unwrap();
    let folder = home.path().join("backup");
    backup::take_backup(&bus, &folder, &|_| {}).await.unwrap();
    (server, folder)
}

async fn list_streams(server: &NatsServer) -> Vec<String> {
    use futures::TryStreamExt;
    let client = async_nats::connect(&server.url).await.unwrap();
    async_nats::jetstream::new(client).stream_names().try_collect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_backup_or_target_is_rejected_without_changes() {
    let home = tempfile::tempdir().unwrap();
    let (server, folder) = back_up_small_cluster(&home).await;
    let refused = |url: &str, folder: &Path, words: &str| {
        let output = run_command(&mut millrace_command_at(url, &["restore", path_text(folder)]));
        let text = stderr_text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(words), "{words:?} is not in {text:?}");
    };
    let copy = |name: &str| {
        let to = home.path().join(name);
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        to
    };
    let empty = NatsServer::start();

    let damaged = copy("damaged");
    let mut bytes = fs::read(damaged.join("LANE_0.snapshot")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(damaged.join("LANE_0.snapshot"), bytes).unwrap();
    refused(&empty.url, &damaged, "LANE_0.snapshot is damaged: its SHA-256 is");

    let short = copy("short");
    let bytes = fs::read(short.join("OBJ_blobs.snapshot")).unwrap();
    fs::write(short.join("OBJ_blobs.snapshot"), &bytes[..bytes.len() - 1]).unwrap();
    refused(&empty.url, &short, "OBJ_blobs.snapshot is damaged: its size is");
    let verified = run_command(remove_millrace_variables(Command::new(millrace_program())).args([
        "backup",
        "--verify",
        path_text(&short),
    ]));
    assert_eq!(verified.status.code(), Some(2), "{}", stderr_text(&verified));

    let foreign = home.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "mine").unwrap();
    refused(&empty.url, &foreign, "is not a backup: it contains no manifest.json");
    refused(&empty.url, &home.path().join("nowhere"), "is not a backup");
    assert_eq!(list_streams(&empty).await, Vec::<String>::new(), "nothing was written");

    refused(&server.url, &folder, "is not empty: it has FILES, KV_audit, KV_beats");
    let again = run_command(&mut millrace_command_at(&server.url, &["backup", path_text(&folder)]));
    assert_eq!(again.status.code(), Some(2), "{}", stderr_text(&again));
    assert!(stderr_text(&again).contains("exists already"), "{}", stderr_text(&again));

    // Other data in the account is not changed.
    let context = async_nats::jetstream::new(async_nats::connect(&empty.url).await.unwrap());
    context.create_stream("ORDERS").await.unwrap();
    let restored = run_command(&mut millrace_command_at(&empty.url, &["restore", path_text(&folder)]));
    assert!(restored.status.success(), "{}", stderr_text(&restored));
    assert!(list_streams(&empty).await.contains(&"ORDERS".to_owned()));
    refused(&empty.url, &folder, "is not empty");
}

/// Waits until a command has started its work, sends it a signal, and returns its exit code.
async fn signal_during_work(
    mut child: Child,
    signal: Signal,
    sign: &str,
    is_at_work: impl AsyncFn() -> bool,
) -> Option<i32> {
    wait_for_value(TIMEOUT, sign, async || is_at_work().await.then_some(())).await;
    kill_process(Pid::from_child(&child), signal).unwrap();
    wait_for_exit(sign, &mut child).code()
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_backup_or_restore_can_be_repeated() {
    let _shared = share_machine();
    let home = tempfile::tempdir().unwrap();
    let (server, _) = back_up_small_cluster(&home).await;
    let bus = Bus::join_existing_cluster(
        &ConnectionSettings::unauthenticated(server.url.clone()),
        "test",
        Duration::ZERO,
    )
    .await
    .unwrap();
    for seed in 0..6_u64 {
        // Incompressible bytes.
        let mut random = millrace_tests::plans::SeededRandom::new(seed);
        let bytes: Vec<u8> = (0..1_000_000).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        bus.blobs().put_blob(&bytes).await.unwrap();
    }
    let folder = home.path().join("large/backup");
    let spawn = |words: &[&str], url: &str| {
        millrace_command_at(url, words).stdin(Stdio::null()).spawn().expect("the program starts")
    };
    let entries = || fs::read_dir(home.path().join("large")).map_or(0, Iterator::count);
    let backup = ["backup", path_text(&folder)];
    let code =
        signal_during_work(spawn(&backup, &server.url), Signal::INT, "a folder", async || entries() > 0)
            .await;
    assert_eq!((code, entries()), (Some(130), 0), "an interrupted backup leaves nothing");

    assert!(run_command(&mut millrace_command_at(&server.url, &backup)).status.success());
    assert_eq!(entries(), 1);
    let target = NatsServer::start();
    let restore = ["restore", path_text(&folder)];
    let has_begun = async || list_streams(&target).await.iter().any(|name| name == "LANE_0");
    let code = signal_during_work(spawn(&restore, &target.url), Signal::INT, "a stream", has_begun).await;
    let left = list_streams(&target).await;
    assert_eq!((code, left), (Some(130), Vec::new()), "an interrupted restore leaves nothing");

    let code = signal_during_work(spawn(&restore, &target.url), Signal::KILL, "a stream", has_begun).await;
    assert_eq!(code, None, "it was killed");
    let refused = run_command(&mut millrace_command_at(&target.url, &restore));
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_text(&refused));
    assert!(stderr_text(&refused).contains("remove its remains with --again"), "{}", stderr_text(&refused));
    let supervisor = run_command(&mut millrace_command_at(&target.url, &["supervisor"]));
    assert!(
        stderr_text(&supervisor).contains("a cluster that is being restored"),
        "{}",
        stderr_text(&supervisor)
    );
    let again =
        run_command(&mut millrace_command_at(&target.url, &["restore", path_text(&folder), "--again"]));
    assert!(again.status.success(), "{}", stderr_text(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_reports_missing_blobs() {
    let home = tempfile::tempdir().unwrap();
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default()).await.unwrap();
    let files = RunWorkspace::new(&bus, &run_id("r"));
    let path: FilePath = "/large.bin".parse().unwrap();
    let writer = FileAuthor { author: "test", key: "k" };
    files.write_file(&path, vec![3; 200_000], WriteCondition::Absent, writer).await.unwrap();
    let stream = async_nats::jetstream::new(bus.client().clone()).get_stream("OBJ_blobs").await.unwrap();
    stream.purge().filter("$O.blobs.C.>").await.unwrap();
    let folder = home.path().join("backup");
    backup::take_backup(&bus, &folder, &|_| {}).await.unwrap();
    let target = NatsServer::start();
    let output = run_command(&mut millrace_command_at(&target.url, &["restore", path_text(&folder)]));
    assert_eq!(output.status.code(), Some(3), "{}", stderr_text(&output));
    assert!(
        stderr_text(&output).contains("(200000 bytes) is missing but referenced by files.r.large=2ebin"),
        "{}",
        stderr_text(&output)
    );
}

/// Modifies the manifest of a backup.
fn rewrite_manifest(folder: &Path, change: impl FnOnce(&mut Value)) {
    let file = folder.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut manifest);
    let text = manifest.to_string();
    fs::write(folder.join("manifest.json.sha256"), sha256_hex(text.as_bytes())).unwrap();
    fs::write(file, text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_run_is_in_its_lane_or_the_archive_never_both() {
    let home = tempfile::tempdir().unwrap();
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default()).await.unwrap();
    let lane = millrace_protocol::ids::Lane(0);
    let path: FilePath = "/notes.md".parse().unwrap();
    let write = async |run: &RunId, version: u64| {
        let key = version.to_string();
        let writer = FileAuthor { author: "test", key: &key };
        RunWorkspace::new(&bus, run)
            .write_file(&path, file_content(&path, version), WriteCondition::Always, writer)
            .await
            .unwrap();
    };
    // Both runs are in the lane and in the archive, as during archiving. One has lost a part of its lane, as in a backup
    // that was taken at that moment.
    for (name, is_archived) in [("moved", true), ("moving", false)] {
        let name = run_id(name);
        submit_run(&bus, &name, &fixed_submission(vec![echo_task("a", &json!({}))])).await;
        send_command(&bus, &name, CommandAction::Pause).await;
        let records = log::read_run(&bus, lane, &name, 1).await.unwrap();
        assert_eq!(
            archive::archive_run(&bus, lane, &name, records[1].sequence, 0).await.unwrap().last,
            records[1].sequence
        );
        write(&name, 1).await;
        let summary = json!({
            "run": name, "lane": 0, "objective": "", "end": "completed", "started": 0, "updated": 0,
            "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "archived": is_archived, "is_resumable": false, "is_paused": false,
            "winding_down": null, "usage": {},
        });
        registry::write_summary(&bus, &serde_json::from_value(summary).unwrap()).await.unwrap();
        if is_archived {
            log::purge_run(&bus, lane, &name, records[0].sequence).await.unwrap();
        }
    }
    write(&run_id("moved"), 2).await;
    write(&run_id("moving"), 2).await;
    let folder = home.path().join("backup");
    backup::take_backup(&bus, &folder, &|_| {}).await.unwrap();
    // As if the lane had been backed up after the second version of all files.
    rewrite_manifest(&folder, |manifest| manifest["files_through"] = json!([2]));
    let (_server, there, restored) = restore_into_new_server(&folder).await;
    assert_eq!((restored.archived, restored.live), (1, vec![run_id("moving")]));
    let in_lane = async |name| log::read_run(&there, lane, &run_id(name), 1).await.unwrap().len();
    let in_archive = async |name| {
        archive::read_archived_run(&there, &run_id(name)).await.unwrap().map(|records| records.len())
    };
    assert_eq!((in_lane("moved").await, in_archive("moved").await), (0, Some(2)));
    assert_eq!((in_lane("moving").await, in_archive("moving").await), (2, None));
    assert_eq!(
        check_file_versions(&there, &run_id("moved")).await,
        2,
        "an archived run keeps all of its files"
    );
    assert_eq!(
        check_file_versions(&there, &run_id("moving")).await,
        1,
        "the second version is newer than the lane"
    );
    let sequences = |bus: &Bus| {
        let bus = bus.clone();
        async move {
            log::read_run(&bus, lane, &run_id("moving"), 1).await.unwrap().into_iter().map(|it| it.sequence)
        }
    };
    assert!(sequences(&bus).await.eq(sequences(&there).await), "sequence numbers are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_restores_into_one_account_conflict() {
    let home = tempfile::tempdir().unwrap();
    let (_server, folder) = back_up_small_cluster(&home).await;
    for _ in 0..5 {
        let target = NatsServer::start();
        let restore = async || {
            let wish = RestoreOptions { folder: folder.clone(), ..RestoreOptions::default() };
            let connection = ConnectionSettings::unauthenticated(target.url.clone());
            backup::restore_backup(&connection, &wish, &CancellationToken::new(), &|_| {}).await
        };
        let (one, two) = tokio::join!(restore(), restore());
        let refused = |end: &Result<RestoreReport, BackupError>| {
            matches!(end, Err(BackupError::Occupied { .. } | BackupError::Unfinished { .. }))
        };
        assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
        assert!(refused(&one) || refused(&two), "{one:?} {two:?}");
        assert!(
            Bus::join_existing_cluster(
                &ConnectionSettings::unauthenticated(target.url.clone()),
                "test",
                Duration::ZERO
            )
            .await
            .is_ok()
        );
    }
}

/// The settings' bucket during a restore: it becomes write-once only when the cluster is complete.
fn with_writable_settings(
    made: async_nats::jetstream::stream::Config,
) -> async_nats::jetstream::stream::Config {
    async_nats::jetstream::stream::Config { discard_new_per_subject: false, ..made }
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_killed_before_its_claim_leaves_the_account_free() {
    let home = tempfile::tempdir().unwrap();
    let (server, folder) = back_up_small_cluster(&home).await;
    let context = async_nats::jetstream::new(async_nats::connect(&server.url).await.unwrap());
    for name in list_streams(&server).await.into_iter().filter(|name| name != "KV_cluster") {
        context.delete_stream(&name).await.unwrap();
    }
    let config = context.get_stream("KV_cluster").await.unwrap().cached_info().config.clone();
    let restore = || run_command(&mut millrace_command_at(&server.url, &["restore", path_text(&folder)]));
    let refused = restore();
    assert!(
        stderr_text(&refused).contains("is not empty: it has KV_cluster"),
        "the error names the cluster: {}",
        stderr_text(&refused)
    );
    context.delete_stream("KV_cluster").await.unwrap();
    context.create_stream(with_writable_settings(config)).await.unwrap();
    let restored = restore();
    assert!(restored.status.success(), "{}", stderr_text(&restored));
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_restore_is_reported_until_it_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let (_server, folder) = back_up_small_cluster(&home).await;
    // As if the reply to a delete were lost: the request is mapped away, and the stream can be deleted by another name.
    let more =
        r#"mappings { "$JS.API.STREAM.DELETE.LANE_0": nowhere, "remove": "$JS.API.STREAM.DELETE.LANE_0" }"#;
    let target =
        NatsServer::start_with_options(&ServerOptions { more: more.into(), ..ServerOptions::default() });
    let restore = async |again: bool| {
        let wish = RestoreOptions { folder: folder.clone(), again, ..RestoreOptions::default() };
        let connection = ConnectionSettings::unauthenticated(target.url.clone());
        backup::restore_backup(&connection, &wish, &CancellationToken::new(), &|_| {}).await
    };
    restore(false).await.unwrap();
    let client = async_nats::connect(&target.url).await.unwrap();
    let settings = make_settings_writable(&async_nats::jetstream::new(client.clone())).await;
    let mut unfinished: Value =
        serde_json::from_slice(&settings.get("settings").await.unwrap().unwrap()).unwrap();
    unfinished["version"] = json!(u16::MAX);
    settings.put("settings", unfinished.to_string().into()).await.unwrap();

    let error = restore(true).await.unwrap_err();
    assert!(error.to_string().contains("LANE_0"), "{error}");
    let error = restore(false).await.unwrap_err();
    assert!(
        matches!(error, BackupError::Unfinished { .. }),
        "the leftovers are reported as unfinished: {error}"
    );
    client.request("remove", "".into()).await.unwrap();
    restore(true).await.unwrap();
}
