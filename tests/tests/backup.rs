//! Backup and restore, with the real programs and servers: a cluster that works is copied, thrown away, and goes on
//! elsewhere as if nothing had happened; whatever is wrong with a backup or a target is refused in words.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_protocol::file::{Expected, FilePath};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Budget, Control, EndReason, Submission, TaskState};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::Blob;
use millrace_runtime::backup::{self, Error, Restored, Wish};
use millrace_runtime::blobs::sha256;
use millrace_runtime::connection::Credentials;
use millrace_runtime::topology::Wanted;
use millrace_runtime::workspace::{Workspace, Writer};
use millrace_runtime::{Bus, Connection, archive, log, registry};
use millrace_tests::cluster::{Cluster, Fleet, Role, Setup, alone, clean, wait_for};
use millrace_tests::history::{Fate, History};
use millrace_tests::plans::{changeable_settings, echo, ended, finished, fixed, id, layered, run, submit};
use millrace_tests::program::millrace;
use millrace_tests::{NatsServer, Options, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(120);
const SEED: u64 = 11;

/// How a run ended: how its tasks fared and what they brought, and the reason with the deliverable's task.
type Ending = (BTreeMap<TaskId, (Fate, Option<Blob>)>, String);

fn setup() -> Setup {
    Setup { linger: Duration::from_millis(200), lanes: 2, ..Setup::default() }
}

/// Two hundred tasks in layers, some of which bring more than a message holds.
fn large() -> Submission {
    let mut submission = layered(SEED, 10, 20);
    for task in submission.tasks.iter_mut().step_by(9) {
        task.parameters.insert("bytes".into(), json!(400_000));
    }
    submission
}

fn ending(history: &History) -> Ending {
    let end = history.plan().end.as_ref().expect("the run is over");
    let mut results = history.results();
    let tasks = history.fates().into_iter().map(|(task, fate)| {
        let result = results.remove(&task);
        (task, (fate, result))
    });
    (tasks.collect(), format!("{} {:?}", end.reason, end.deliverable))
}

/// How the large run ends that nobody disturbs.
async fn undisturbed() -> Ending {
    let cluster = Cluster::start(setup(), 2);
    let bus = cluster.bus().await;
    submit(&bus, &run("large"), &large()).await;
    let history = finished(&bus, &run("large"), PATIENCE).await;
    history.assert_holds();
    cluster.end();
    ending(&history)
}

async fn summary(bus: &Bus, run: &RunId) -> Option<RunSummary> {
    registry::summary(bus, run).await.ok().flatten()
}

async fn until(bus: &Bus, run: &RunId, what: &str, is_so: impl Fn(&RunSummary) -> bool) -> RunSummary {
    let waited = format!("{run} to be {what}");
    eventually(PATIENCE, &waited, async || summary(bus, run).await.filter(&is_so)).await
}

async fn tell(bus: &Bus, run: &RunId, control: Control) {
    let command =
        millrace_protocol::plan::Command { id: uuid::Uuid::new_v4().to_string(), by: "test".into(), control };
    log::tell(bus, bus.lane(run), run, &Topic::Control, &command, &command.id).await.unwrap();
}

/// Runs in every state: one in the archive, one that is paused, one whose budget is used up, one under way.
async fn all_kinds(bus: &Bus) {
    submit(bus, &run("done"), &fixed(vec![echo("a", &json!({"bytes": 500_000, "steps": 3}))])).await;
    until(bus, &run("done"), "archived", |summary| summary.archived).await;

    let mut behind = echo("behind", &json!({"steps": 1}));
    behind.depends_on = vec![id("first")];
    let row = vec![echo("first", &json!({"delay_ms": 3_000})), behind];
    submit(bus, &run("paused"), &fixed(row.clone())).await;
    let runs = |summary: &RunSummary| summary.counts[TaskState::Running as usize] == 1;
    until(bus, &run("paused"), "begun", runs).await;
    tell(bus, &run("paused"), Control::Pause).await;
    until(bus, &run("paused"), "paused", |summary| summary.is_paused && summary.progress().1 == 1).await;

    let budget = Budget { wall_time: Some(Duration::from_millis(300)), ..Budget::default() };
    submit(bus, &run("spent"), &Submission { budget, ..fixed(row) }).await;
    until(bus, &run("spent"), "at its end", |summary| summary.end == Some(EndReason::BudgetExhausted)).await;

    submit(bus, &run("large"), &large()).await;
}

/// Writes files of a run, again and again, until it is told to stop. Each version says which one it is.
async fn write_files(bus: Bus, run: RunId, stop: CancellationToken) -> u64 {
    let files = Workspace::new(&bus, &run);
    let mut round = 0;
    while !stop.is_cancelled() {
        round += 1;
        for path in ["/notes.md", "/data/large.csv"] {
            let path: FilePath = path.parse().unwrap();
            let key = format!("{path} {round}");
            let writer = Writer { author: "test", key: &key };
            let expected = if round == 1 { Expected::Nothing } else { Expected::Version(round - 1) };
            let Ok(version) = files.write(&path, content(&path, round), expected, writer).await else {
                return round;
            };
            assert_eq!(version, round);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    round
}

/// What stands in a version of a file: much or little.
fn content(path: &FilePath, version: u64) -> Vec<u8> {
    let line = format!("{path} {version}\n");
    if path.as_str().ends_with(".csv") { line.repeat(6_000).into() } else { line.into() }
}

/// Every version of every file is there up to the last, with its content. Gives how many there are.
async fn check_files(bus: &Bus, run: &RunId) -> u64 {
    let files = Workspace::new(bus, run);
    let mut count = 0;
    for entry in files.list(None).await.unwrap() {
        let versions = files.versions(&entry.path).await.unwrap();
        let numbers: Vec<u64> = versions.iter().map(|version| version.version).collect();
        assert_eq!(numbers, (1..=entry.version).collect::<Vec<_>>(), "{}", entry.path);
        for version in numbers {
            let file = files.read_version(&entry.path, version).await.unwrap().unwrap();
            assert_eq!(file.bytes, content(&entry.path, version), "{} #{version}", entry.path);
            count += 1;
        }
    }
    count
}

fn done(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must end well, and reads what it prints as JSON.
fn json_of(command: &mut Command) -> Value {
    let output = done(command);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `millrace`, talking to a server.
fn at(url: &str, words: &[&str]) -> Command {
    let mut command = clean(Command::new(millrace()));
    command.args(words).args(["--nats", url]);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What the run had written down by the moment of the backup.
async fn steps(bus: &Bus, run: &RunId) -> BTreeSet<String> {
    let history = History::read(bus, run).await.unwrap();
    let broken = history.broken();
    assert!(broken.is_empty(), "{run} as restored: {}", broken.join("\n"));
    history.steps().into_iter().map(|(step, _)| step).collect()
}

/// Starts everybody on a restored cluster, and shows that all runs go on where they were.
async fn goes_on(
    bus: &Bus,
    expected: &Ending,
    fleet: &mut Fleet,
    start: impl Fn(&mut Fleet, Role, &'static str),
    mut show: Command,
) {
    let before = steps(bus, &run("large")).await;
    assert!(!before.is_empty(), "the run was under way");
    let files = check_files(bus, &run("large")).await;
    assert!(files > 0, "there are files");
    for (role, name) in [
        (Role::Supervisor, "supervisor-1"),
        (Role::Supervisor, "supervisor-2"),
        (Role::Critic, "critic-1"),
        (Role::Worker, "worker-1"),
        (Role::Worker, "worker-2"),
    ] {
        start(fleet, role, name);
    }
    let history = finished(bus, &run("large"), PATIENCE).await;
    history.assert_holds();
    let found = ending(&history);
    let differs = expected.0.iter().find(|(task, fate)| found.0.get(*task) != Some(fate));
    assert!(differs.is_none(), "{differs:?} became {:?}", differs.and_then(|(task, _)| found.0.get(task)));
    assert_eq!(found.1, expected.1);
    let again: Vec<String> =
        fleet.ledger_text().lines().filter(|line| before.contains(*line)).map(str::to_owned).collect();
    assert!(again.is_empty(), "steps that were in the backup were done again: {again:?}");
    assert_eq!(check_files(bus, &run("large")).await, files);

    let paused = until(bus, &run("paused"), "known", |_| true).await;
    assert!(paused.is_paused && paused.progress() == (2, 1) && paused.end.is_none(), "{paused:?}");
    tell(bus, &run("paused"), Control::Resume { budget: None }).await;
    assert_eq!(reason(bus, "paused").await, EndReason::Completed);

    assert_eq!(summary(bus, &run("spent")).await.unwrap().end, Some(EndReason::BudgetExhausted));
    let budget = Budget { wall_time: Some(Duration::from_secs(3_600)), ..Budget::default() };
    tell(bus, &run("spent"), Control::Resume { budget: Some(budget) }).await;
    until(bus, &run("spent"), "done", |summary| summary.end == Some(EndReason::Completed)).await;

    assert_eq!(reason(bus, "done").await, EndReason::Completed);
    let lane = log::read_run(bus, bus.lane(&run("done")), &run("done"), 1).await.unwrap();
    assert!(lane.is_empty(), "the archived run is in the archive alone");
    let shown = json_of(show.args(["show", "done", "--json"]));
    let output = shown["result"]["output"].as_str().unwrap_or_default();
    assert_eq!(output.len(), 500_000, "the result of the archived run, which is a blob");
}

async fn reason(bus: &Bus, name: &str) -> EndReason {
    let history = finished(bus, &run(name), PATIENCE).await;
    history.assert_holds();
    history.plan().end.as_ref().unwrap().reason
}

/// A cluster in mid-run is copied while everything runs. Gives the backup; the cluster is gone.
async fn backed_up(home: &Path) -> PathBuf {
    let folder = home.join("backup");
    let mut cluster = Cluster::start(setup(), 2);
    let bus = cluster.bus().await;
    all_kinds(&bus).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write_files(bus.clone(), run("large"), stop.clone()));
    until(&bus, &run("large"), "under way", |summary| summary.progress().1 >= 60).await;
    let started = Instant::now();
    let taken = json_of(cluster.command().args(["backup", text(&folder), "--json"]));
    println!("{} bytes in {:?}: {}", taken["bytes"], started.elapsed(), taken["parts"]);
    assert!(summary(&bus, &run("large")).await.unwrap().end.is_none(), "the run went on behind the backup");
    stop.cancel();
    assert!(writer.await.unwrap() > 1, "files were written meanwhile");
    let verified =
        json_of(clean(Command::new(millrace())).args(["backup", "--verify", text(&folder), "--json"]));
    assert_eq!(verified, taken);
    cluster.server.kill();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_was_lost_in_mid_run_goes_on_from_its_backup_as_if_nothing_had_happened() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let expected = undisturbed().await;
    let folder = backed_up(home.path()).await;
    let mut cluster = Cluster::new(setup());
    let started = Instant::now();
    let restored = json_of(cluster.command().args(["restore", text(&folder), "--json"]));
    println!("restored in {:?}", started.elapsed());
    assert_eq!((&restored["missing"], &restored["archived_runs"]), (&json!([]), &json!(1)));
    assert_eq!(restored["live_runs"], json!(["large", "paused", "spent"]));
    let (bus, show, url) = (cluster.bus().await, cluster.command(), cluster.server.url.clone());
    goes_on(&bus, &expected, &mut cluster, |fleet, role, name| launch(fleet, role, name, &url, None), show)
        .await;
    cluster.end();
}

/// Starts a process that finds its server there, as whoever it is by the seeds in a folder.
fn launch(fleet: &mut Fleet, role: Role, name: &'static str, url: &str, seeds: Option<&Path>) {
    let (identity, more): (_, &[&str]) = match role {
        Role::Supervisor => ("supervisor", &[]),
        Role::Worker => ("worker-echo", &["--capability", "echo"]),
        Role::Critic => ("critic", &[]),
    };
    let (url, seed) = (url.to_owned(), seeds.map(|seeds| seeds.join(format!("{identity}.nk"))));
    fleet.launch(role, name, move |id| {
        let mut command = clean(Command::new(millrace()));
        command.env("MILLRACE_NATS_URL", &url).args(setup().arguments(role, id)).args(more);
        command.envs(seed.iter().map(|seed| ("MILLRACE_NATS_NKEY", seed)));
        command
    });
}

/// Three servers of one NATS cluster, which let in whoever stands in this text.
fn three(accounts: &str) -> [NatsServer; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    drop(listeners);
    let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
    [0, 1, 2].map(|number| {
        let port = ports[number];
        let cluster =
            format!("cluster {{ name: three, host: 127.0.0.1, port: {port}, routes: [{routes}] }}\n");
        let more = format!("server_name: n{number}\n{cluster}{accounts}");
        NatsServer::with(&Options { more, ..Options::default() })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_one_server_goes_on_with_three_copies_on_three_that_know_each_identity() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let expected = undisturbed().await;
    let folder = backed_up(home.path()).await;
    let identities = home.path().join("identities");
    let made =
        done(clean(Command::new(millrace())).args(["nats-config", "--no-tls", "--worker", "echo"]).args([
            "--lanes",
            "2",
            "--out",
            text(&identities),
        ]));
    assert!(made.status.success(), "{}", said(&made));
    let servers = three(&fs::read_to_string(identities.join("accounts.conf")).unwrap());
    let url = servers.each_ref().map(|server| server.url.clone()).join(",");
    let seeds = identities.join("seeds/millrace");
    let as_whom = |identity: &str, words: &[&str]| {
        let mut command = at(&url, words);
        command.env("MILLRACE_NATS_NKEY", seeds.join(format!("{identity}.nk")));
        command
    };

    // The servers need a moment to find each other; until then they answer nobody.
    let forbidden = eventually(PATIENCE, "three servers that are one", async || {
        let output = done(&mut as_whom("client", &["restore", text(&folder)]));
        (!said(&output).contains("asking for JetStream")).then_some(output)
    })
    .await;
    assert_eq!(forbidden.status.code(), Some(4), "{}", said(&forbidden));
    assert!(said(&forbidden).contains("does not let this identity do that"), "{}", said(&forbidden));
    let restore = ["restore", text(&folder), "--replicas", "3", "--json"];
    let restored = json_of(&mut as_whom("backup", &restore));
    assert_eq!((&restored["missing"], &restored["settings"]["replicas"]), (&json!([]), &json!(3)));

    let connection = Connection {
        credentials: Credentials::NkeyFile(seeds.join("client.nk")),
        ..Connection::open(url.clone())
    };
    let bus = Bus::join(&connection, "test", Duration::ZERO).await.unwrap();
    let mut fleet = Fleet::default();
    let start = |fleet: &mut Fleet, role, name| launch(fleet, role, name, &url, Some(&seeds));
    let mut show = clean(Command::new(millrace()));
    show.env("MILLRACE_NATS_URL", &url).env("MILLRACE_NATS_NKEY", seeds.join("client.nk"));
    goes_on(&bus, &expected, &mut fleet, start, show).await;
    let again = home.path().join("again");
    let taken = json_of(&mut as_whom("backup", &["backup", text(&again), "--json"]));
    assert_eq!(taken["settings"]["replicas"], json!(3), "three copies are backed up as one");
    fleet.end();
}

/// Runs that come and go all the time, each with a large result and a file. Gives those that were over when it was
/// asked to stop.
async fn coming_and_going(bus: Bus, rests: Arc<AtomicBool>, stop: CancellationToken) -> Vec<RunId> {
    let mut all = Vec::new();
    for number in 0.. {
        while rests.load(Ordering::Relaxed) && !stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if stop.is_cancelled() {
            break;
        }
        let name = run(&format!("r-{number}"));
        let large = json!({"bytes": 300_000, "steps": 3, "delay_ms": 30});
        let mut last = echo("last", &json!({"steps": 2}));
        last.depends_on = vec![id("large")];
        // These stand in the lane as they are, which so has more than one block.
        let inline = (0..4).map(|n| echo(&format!("inline-{n}"), &json!({"bytes": 200_000})));
        let files = Workspace::new(&bus, &name);
        submit(&bus, &name, &fixed(inline.chain([echo("large", &large), last]).collect())).await;
        for path in ["/notes.md", "/data/large.csv"] {
            let path: FilePath = path.parse().unwrap();
            let writer = Writer { author: "test", key: path.as_str() };
            files.write(&path, content(&path, 1), Expected::Nothing, writer).await.unwrap();
        }
        all.push(name);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    all
}

/// A restore into a server of its own.
async fn restored(folder: &Path) -> (NatsServer, Bus, Restored) {
    let server = NatsServer::start();
    let connection = Connection::open(server.url.clone());
    let wish = Wish { folder: folder.to_owned(), ..Wish::default() };
    let restored = backup::restore(&connection, &wish, &CancellationToken::new(), &|_| {}).await.unwrap();
    let bus = Bus::join(&connection, "test", Duration::ZERO).await.unwrap();
    (server, bus, restored)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_taken_while_runs_come_and_go_is_whole_every_time() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let rounds: u32 = std::env::var("MILLRACE_BACKUPS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let cluster = Cluster::start(Setup { linger: Duration::from_millis(20), ..setup() }, 2);
    let bus = cluster.bus().await;
    let stop = CancellationToken::new();
    let rests = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(coming_and_going(bus.clone(), Arc::clone(&rests), stop.clone()));
    until(&bus, &run("r-3"), "archived", |summary| summary.archived).await;
    let (mut in_archive, mut in_lanes) = (0, 0);
    for round in 0..rounds {
        // What is read back takes longer the more there is: only while a copy is taken runs come and go.
        let known = registry::runs(&bus).await.unwrap().len();
        rests.store(false, Ordering::Relaxed);
        eventually(PATIENCE, "runs that come", async || {
            (registry::runs(&bus).await.unwrap().len() >= known + 4).then_some(())
        })
        .await;
        let archived_before: Vec<RunId> = registry::runs(&bus)
            .await
            .unwrap()
            .into_iter()
            .filter(|it| it.archived)
            .map(|it| it.run)
            .collect();
        let folder = home.path().join(format!("backup-{round}"));
        backup::take(&bus, &folder, &|_| {}).await.unwrap();
        rests.store(true, Ordering::Relaxed);
        let (_server, there, restored) = restored(&folder).await;
        assert_eq!(restored.missing, vec![], "round {round}");
        assert!(restored.archived >= archived_before.len(), "round {round}");
        // Those that were archived last are those of which something may have been removed meanwhile.
        for run in archived_before.iter().rev().take(40).chain(&restored.live) {
            let history = History::read(&there, run).await.unwrap();
            let broken = history.broken();
            assert!(broken.is_empty(), "round {round}, {run}: {}", broken.join("\n"));
            let is_archived = archived_before.contains(run);
            assert!(!is_archived || history.plan().end.is_some(), "round {round}: {run} lost its end");
            assert!(!history.records().is_empty(), "round {round}: {run} is lost");
            check_files(&there, run).await;
        }
        in_archive += restored.archived;
        in_lanes += restored.live.len();
        fs::remove_dir_all(&folder).unwrap();
    }
    stop.cancel();
    let all = load.await.unwrap();
    println!(
        "{} runs, {rounds} backups; in them {in_archive} in the archive, {in_lanes} in lanes",
        all.len()
    );
    assert!(in_lanes > 0, "no backup was taken while a run was in its lane");
    ended(&bus, all.last().unwrap(), PATIENCE).await;
    cluster.end();
}

/// A server with a small cluster, which nobody works on, and a backup of it.
async fn small(home: &TempDir) -> (NatsServer, PathBuf) {
    let server = NatsServer::start();
    let connection = Connection::open(server.url.clone());
    let bus = Bus::connect(&connection, "test", &Wanted::default()).await.unwrap();
    submit(&bus, &run("waits"), &fixed(vec![echo("a", &json!({}))])).await;
    bus.blobs().put(&vec![7; 1_000_000]).await.unwrap();
    let folder = home.path().join("backup");
    backup::take(&bus, &folder, &|_| {}).await.unwrap();
    (server, folder)
}

async fn streams(server: &NatsServer) -> Vec<String> {
    use futures::TryStreamExt;
    let client = async_nats::connect(&server.url).await.unwrap();
    async_nats::jetstream::new(client).stream_names().try_collect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_backup_or_its_target_is_said_and_nothing_is_touched() {
    let home = tempfile::tempdir().unwrap();
    let (server, folder) = small(&home).await;
    let refused = |url: &str, folder: &Path, words: &str| {
        let output = done(&mut at(url, &["restore", text(folder)]));
        let text = said(&output);
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
    refused(&empty.url, &short, "OBJ_blobs.snapshot is damaged: it has");
    let verified = done(clean(Command::new(millrace())).args(["backup", "--verify", text(&short)]));
    assert_eq!(verified.status.code(), Some(2), "{}", said(&verified));

    let foreign = home.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "mine").unwrap();
    refused(&empty.url, &foreign, "is no backup: there is no manifest.json in it");
    refused(&empty.url, &home.path().join("nowhere"), "is no backup");
    assert_eq!(streams(&empty).await, Vec::<String>::new(), "nothing was written");

    refused(&server.url, &folder, "is not empty: it has FILES, KV_beats");
    let again = done(&mut at(&server.url, &["backup", text(&folder)]));
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("is there already"), "{}", said(&again));

    // What is not ours in the account stays as it is.
    let context = async_nats::jetstream::new(async_nats::connect(&empty.url).await.unwrap());
    context.create_stream("ORDERS").await.unwrap();
    let restored = done(&mut at(&empty.url, &["restore", text(&folder)]));
    assert!(restored.status.success(), "{}", said(&restored));
    assert!(streams(&empty).await.contains(&"ORDERS".to_owned()));
    refused(&empty.url, &folder, "is not empty");
}

/// Waits for the first sign that a command is at work, sends it a signal, and says how it ended.
async fn struck(
    mut child: Child,
    signal: Signal,
    sign: &str,
    is_at_work: impl AsyncFn() -> bool,
) -> Option<i32> {
    eventually(PATIENCE, sign, async || is_at_work().await.then_some(())).await;
    kill_process(Pid::from_child(&child), signal).unwrap();
    wait_for(sign, &mut child).code()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_or_restore_that_is_broken_off_leaves_nothing_or_can_be_done_again() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let (server, _) = small(&home).await;
    let bus = Bus::join(&Connection::open(server.url.clone()), "test", Duration::ZERO).await.unwrap();
    for seed in 0..6_u64 {
        // Bytes that don't compress.
        let mut random = millrace_tests::plans::Random::new(seed);
        let bytes: Vec<u8> = (0..1_000_000).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        bus.blobs().put(&bytes).await.unwrap();
    }
    let folder = home.path().join("large/backup");
    let spawn =
        |words: &[&str], url: &str| at(url, words).stdin(Stdio::null()).spawn().expect("the program starts");
    let entries = || fs::read_dir(home.path().join("large")).map_or(0, Iterator::count);
    let backup = ["backup", text(&folder)];
    let code = struck(spawn(&backup, &server.url), Signal::INT, "a folder", async || entries() > 0).await;
    assert_eq!((code, entries()), (Some(130), 0), "nothing is left of a backup that was broken off");

    assert!(done(&mut at(&server.url, &backup)).status.success());
    assert_eq!(entries(), 1);
    let target = NatsServer::start();
    let restore = ["restore", text(&folder)];
    let has_begun = async || streams(&target).await.iter().any(|name| name == "LANE_0");
    let code = struck(spawn(&restore, &target.url), Signal::INT, "a stream", has_begun).await;
    let left = streams(&target).await;
    assert_eq!((code, left), (Some(130), Vec::new()), "nothing is left of a restore, either");

    let code = struck(spawn(&restore, &target.url), Signal::KILL, "a stream", has_begun).await;
    assert_eq!(code, None, "it was killed");
    let refused = done(&mut at(&target.url, &restore));
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("remove what it left with --again"), "{}", said(&refused));
    let supervisor = done(&mut at(&target.url, &["supervisor"]));
    assert!(said(&supervisor).contains("only what is restored so far"), "{}", said(&supervisor));
    let again = done(&mut at(&target.url, &["restore", text(&folder), "--again"]));
    assert!(again.status.success(), "{}", said(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_named_and_not_there_is_told_when_it_is_restored() {
    let home = tempfile::tempdir().unwrap();
    let server = NatsServer::start();
    let connection = Connection::open(server.url.clone());
    let bus = Bus::connect(&connection, "test", &Wanted::default()).await.unwrap();
    let files = Workspace::new(&bus, &run("r"));
    let path: FilePath = "/large.bin".parse().unwrap();
    let writer = Writer { author: "test", key: "k" };
    files.write(&path, vec![3; 200_000], Expected::Nothing, writer).await.unwrap();
    let stream = async_nats::jetstream::new(bus.client().clone()).get_stream("OBJ_blobs").await.unwrap();
    stream.purge().filter("$O.blobs.C.>").await.unwrap();
    let folder = home.path().join("backup");
    backup::take(&bus, &folder, &|_| {}).await.unwrap();
    let target = NatsServer::start();
    let output = done(&mut at(&target.url, &["restore", text(&folder)]));
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(
        said(&output).contains("(200000 bytes) is missing, and named by files.r.large=2ebin"),
        "{}",
        said(&output)
    );
}

/// Writes the manifest of a backup anew, changed.
fn rewrite(folder: &Path, change: impl FnOnce(&mut Value)) {
    let file = folder.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut manifest);
    let text = manifest.to_string();
    fs::write(folder.join("manifest.json.sha256"), sha256(text.as_bytes())).unwrap();
    fs::write(file, text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_each_run_either_the_lane_or_the_archive_counts_and_files_are_no_newer_than_their_lane() {
    let home = tempfile::tempdir().unwrap();
    let server = NatsServer::start();
    let connection = Connection::open(server.url.clone());
    let bus = Bus::connect(&connection, "test", &Wanted::default()).await.unwrap();
    let lane = millrace_protocol::ids::Lane(0);
    let path: FilePath = "/notes.md".parse().unwrap();
    let write = async |run: &RunId, version: u64| {
        let key = version.to_string();
        let writer = Writer { author: "test", key: &key };
        Workspace::new(&bus, run)
            .write(&path, content(&path, version), Expected::Anything, writer)
            .await
            .unwrap();
    };
    // Both are in the lane and in the archive, as while they are moved; of one a part of the lane is gone, as in a
    // copy that was taken at that moment.
    for (name, is_archived) in [("moved", true), ("moving", false)] {
        let name = run(name);
        submit(&bus, &name, &fixed(vec![echo("a", &json!({}))])).await;
        tell(&bus, &name, Control::Pause).await;
        let records = log::read_run(&bus, lane, &name, 1).await.unwrap();
        assert_eq!(
            archive::write(&bus, lane, &name, records[1].sequence).await.unwrap(),
            records[1].sequence
        );
        write(&name, 1).await;
        let summary = json!({
            "run": name, "lane": 0, "objective": "", "end": "completed", "started": 0, "updated": 0,
            "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "archived": is_archived,
        });
        registry::summarise(&bus, &serde_json::from_value(summary).unwrap()).await.unwrap();
        if is_archived {
            log::purge_run(&bus, lane, &name, records[0].sequence).await.unwrap();
        }
    }
    write(&run("moved"), 2).await;
    write(&run("moving"), 2).await;
    let folder = home.path().join("backup");
    backup::take(&bus, &folder, &|_| {}).await.unwrap();
    // As if the lane had been copied behind the second version that was written at all.
    rewrite(&folder, |manifest| manifest["files_through"] = json!([2]));
    let (_server, there, restored) = restored(&folder).await;
    assert_eq!((restored.archived, restored.live), (1, vec![run("moving")]));
    let in_lane = async |name| log::read_run(&there, lane, &run(name), 1).await.unwrap().len();
    let in_archive =
        async |name| archive::read(&there, &run(name)).await.unwrap().map(|records| records.len());
    assert_eq!((in_lane("moved").await, in_archive("moved").await), (0, Some(2)));
    assert_eq!((in_lane("moving").await, in_archive("moving").await), (2, None));
    assert_eq!(check_files(&there, &run("moved")).await, 2, "an archived run keeps all of its files");
    assert_eq!(check_files(&there, &run("moving")).await, 1, "the second version came behind its lane");
    let sequences = |bus: &Bus| {
        let bus = bus.clone();
        async move {
            log::read_run(&bus, lane, &run("moving"), 1).await.unwrap().into_iter().map(|it| it.sequence)
        }
    };
    assert!(sequences(&bus).await.eq(sequences(&there).await), "sequences are what they were");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_restores_into_one_account_one_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (_server, folder) = small(&home).await;
    for _ in 0..5 {
        let target = NatsServer::start();
        let restore = async || {
            let wish = Wish { folder: folder.clone(), ..Wish::default() };
            let connection = Connection::open(target.url.clone());
            backup::restore(&connection, &wish, &CancellationToken::new(), &|_| {}).await
        };
        let (one, two) = tokio::join!(restore(), restore());
        let refused = |end: &Result<Restored, Error>| {
            matches!(end, Err(Error::Occupied { .. } | Error::Unfinished { .. }))
        };
        assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
        assert!(refused(&one) || refused(&two), "{one:?} {two:?}");
        assert!(Bus::join(&Connection::open(target.url.clone()), "test", Duration::ZERO).await.is_ok());
    }
}

/// The settings' bucket as it is while something is restored: only those of a cluster that is made are fixed.
fn not_fixed(made: async_nats::jetstream::stream::Config) -> async_nats::jetstream::stream::Config {
    async_nats::jetstream::stream::Config { discard_new_per_subject: false, ..made }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_was_killed_before_it_claimed_the_account_leaves_none_that_is_occupied() {
    let home = tempfile::tempdir().unwrap();
    let (server, folder) = small(&home).await;
    let context = async_nats::jetstream::new(async_nats::connect(&server.url).await.unwrap());
    for name in streams(&server).await.into_iter().filter(|name| name != "KV_cluster") {
        context.delete_stream(&name).await.unwrap();
    }
    let config = context.get_stream("KV_cluster").await.unwrap().cached_info().config.clone();
    let restore = || done(&mut at(&server.url, &["restore", text(&folder)]));
    let refused = restore();
    assert!(
        said(&refused).contains("is not empty: it has KV_cluster"),
        "a cluster says so: {}",
        said(&refused)
    );
    context.delete_stream("KV_cluster").await.unwrap();
    context.create_stream(not_fixed(config)).await.unwrap();
    let restored = restore();
    assert!(restored.status.success(), "{}", said(&restored));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_unfinished_restore_has_left_is_told_as_such_until_the_last_of_it_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let (_server, folder) = small(&home).await;
    // As where a removal gets no answer: it never comes to the stream, but by another name.
    let more =
        r#"mappings { "$JS.API.STREAM.DELETE.LANE_0": nowhere, "remove": "$JS.API.STREAM.DELETE.LANE_0" }"#;
    let target = NatsServer::with(&Options { more: more.into(), ..Options::default() });
    let restore = async |again: bool| {
        let wish = Wish { folder: folder.clone(), again, ..Wish::default() };
        let connection = Connection::open(target.url.clone());
        backup::restore(&connection, &wish, &CancellationToken::new(), &|_| {}).await
    };
    restore(false).await.unwrap();
    let client = async_nats::connect(&target.url).await.unwrap();
    let settings = changeable_settings(&async_nats::jetstream::new(client.clone())).await;
    let mut unfinished: Value =
        serde_json::from_slice(&settings.get("settings").await.unwrap().unwrap()).unwrap();
    unfinished["version"] = json!(0);
    settings.put("settings", unfinished.to_string().into()).await.unwrap();

    let error = restore(true).await.unwrap_err();
    assert!(error.to_string().contains("LANE_0"), "{error}");
    let error = restore(false).await.unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }), "what is left says what it is: {error}");
    client.request("remove", "".into()).await.unwrap();
    restore(true).await.unwrap();
}
