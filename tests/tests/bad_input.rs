//! Invalid input and faulty environments: a clear error with the right exit code, no data lost, and no effect on other
//! runs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{
    CommandAction, Decision, EndReason, JournalKey, RunCommand as Wish, Submission, TaskState, Work,
};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{
    BlobRef, ENCODING_HEADER, ENCODING_JSON, WireMessage, encode_body, encode_with_inline_body,
    encode_with_stored_body,
};
use millrace_protocol::work::{JournalEntry, Order};
use millrace_runtime::Bus;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster, remove_millrace_variables};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    build_publish_headers, echo_task, fan_out_submission, fixed_submission, layered_submission, run_id,
    submit_run, task_id, wait_for_run_history,
};
use millrace_tests::program::millrace_program;
use millrace_tests::{NatsServer, ServerOptions, wait_for_value};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(120);
const LANE: Lane = Lane(0);
const REFUSED: i32 = 2;
const ENVIRONMENT: i32 = 4;

/// The command as a user calls it, in an empty folder.
fn millrace_command(folder: &Path) -> Command {
    let mut command = remove_millrace_variables(Command::new(millrace_program()));
    command.current_dir(folder).stdin(Stdio::null()).env("MILLRACE_DATA", folder.join("data"));
    command
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the command, which must exit with `code` and print each of `parts`.
fn assert_exit_and_output(command: &mut Command, code: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

// ---- command lines

#[test]
fn invalid_command_line_is_rejected_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["Usage"]),
        (&["fly"], &["unrecognized subcommand"]),
        (&["run", "x", "--wrokers", "3"], &["unexpected argument", "--workers"]),
        (&["run", "x", "--workers", "many"], &["invalid value"]),
        (&["run"], &["the objective is missing"]),
        (&["run", ""], &["the objective is empty"]),
        (&["run", " \n\t "], &["the objective is empty"]),
        (&["run", "x", "--docs", "nowhere"], &["nowhere"]),
        (&["run", "x", "--docs", "empty"], &["no readable documents", "empty"]),
        (&["run", "x", "--out", "empty"], &["empty is a folder"]),
        (&["run", "x", "--model", "gpt:x"], &["unknown model \"gpt:x\"", "openai:"]),
        (&["run", "x", "--model", "openai:a,"], &["names no model"]),
        (&["run", "x", "--capability", "nowhere.yaml"], &["nowhere.yaml"]),
        (&["run", "--plan", "nowhere.yaml"], &["nowhere.yaml"]),
        (&["supervisor", "--lanes", "0"], &["0 is not in 1..=1024"]),
        (&["supervisor", "--lane-lease", "soon"], &["write a number with a unit, such as 500ms"]),
        (&["worker", "--capability", "magic"], &["no built-in capability \"magic\"", "echo", "./magic.yaml"]),
        (&["worker", "--id", "a.b"], &["is not a valid worker id"]),
        (&["critic", "--slots", "0"], &["0"]),
    ];
    for (arguments, parts) in cases {
        assert_exit_and_output(millrace_command(folder.path()).args(*arguments), REFUSED, parts);
    }
    let mut without_key = millrace_command(folder.path());
    let without_key = without_key.env_remove("OPENAI_API_KEY").args(["run", "x", "--model", "gpt"]);
    assert_exit_and_output(without_key, ENVIRONMENT, &["openai:gpt needs a key", "OPENAI_API_KEY"]);
    assert!(!folder.path().join("data").exists(), "no data folder is created");
}

#[test]
fn objective_that_is_too_long_or_empty_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let long = "why ".repeat(25_000);
    assert_exit_and_output(
        millrace_command(folder.path()).args(["run", &long]),
        REFUSED,
        &["100000 bytes", "at most 65536"],
    );
    // Operating systems reject arguments of 10 MB; a plan file may have that size.
    let huge = millrace_command(folder.path()).arg("run").arg("why ".repeat(2_500_000)).output();
    assert!(huge.is_err(), "the operating system rejects it");
    let plan = format!(
        "objective: {}\ntasks: [{{id: a, objective: b, capability: echo}}]\n",
        "why ".repeat(2_500_000)
    );
    fs::write(folder.path().join("huge.yaml"), plan).unwrap();
    assert_exit_and_output(
        millrace_command(folder.path()).args(["run", "--plan", "huge.yaml"]),
        REFUSED,
        &["at most 65536"],
    );
    let no_text = OsStr::from_bytes(b"what \xff\xfe is this");
    assert_exit_and_output(millrace_command(folder.path()).arg("run").arg(no_text), REFUSED, &["UTF-8"]);
    fs::write(folder.path().join("bytes.yaml"), b"objective: \xff\xfe\ntasks: []\n").unwrap();
    assert_exit_and_output(
        millrace_command(folder.path()).args(["run", "--plan", "bytes.yaml"]),
        REFUSED,
        &["bytes.yaml", "UTF-8"],
    );
    assert!(!folder.path().join("data").exists(), "no data folder is created");
}

#[test]
fn invalid_plan_file_error_names_the_file_and_expectation() {
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
        assert_exit_and_output(
            millrace_command(folder.path()).args(["run", "--plan", "plan.yaml"]),
            REFUSED,
            &parts,
        );
    }
    assert!(!folder.path().join("data").exists(), "no data folder is created");
}

// ---- unusable servers

fn role_command(folder: &TempDir, role: &str, url: &str) -> Command {
    let mut command = millrace_command(folder.path());
    command.args([role, "--nats", url]);
    command
}

#[test]
fn unusable_server_is_named_with_a_hint() {
    let _shared = share_machine();
    let folder = tempfile::tempdir().unwrap();
    let without = NatsServer::start_with_options(&ServerOptions {
        without_jetstream: true,
        ..ServerOptions::default()
    });
    let guarded = NatsServer::start_with_options(&ServerOptions {
        user: Some(("ann".into(), "secret".into())),
        ..ServerOptions::default()
    });
    let empty = NatsServer::start();
    let roles = ["supervisor", "worker", "critic"];
    // Each process waits for a server that may still be starting.
    std::thread::scope(|scope| {
        for role in roles {
            let mut away = role_command(&folder, role, "nats://127.0.0.1:1");
            scope.spawn(move || {
                assert_exit_and_output(&mut away, ENVIRONMENT, &["connecting to nats://127.0.0.1:1"])
            });
        }
    });
    for role in roles {
        assert_exit_and_output(
            &mut role_command(&folder, role, &without.url),
            ENVIRONMENT,
            &["no JetStream", &without.url],
        );
        let mut wrong = role_command(&folder, role, &guarded.url);
        wrong.env("MILLRACE_NATS_USER", "ann").env("MILLRACE_NATS_PASSWORD", "guess");
        assert_exit_and_output(&mut wrong, ENVIRONMENT, &["refuses these credentials", "MILLRACE_NATS_USER"]);
        let mut absent = role_command(&folder, role, &guarded.url);
        assert_exit_and_output(
            absent.env("MILLRACE_NATS_CREDS", "no-such.creds"),
            ENVIRONMENT,
            &["no-such.creds"],
        );
    }
    assert_exit_and_output(
        millrace_command(folder.path()).args(["list", "--nats", &empty.url]),
        ENVIRONMENT,
        &["no Millrace cluster", "millrace supervisor --nats"],
    );
    assert_exit_and_output(
        millrace_command(folder.path()).args(["watch", "latest"]),
        ENVIRONMENT,
        &["no cluster", "millrace up"],
    );
}

#[test]
fn settings_that_differ_from_the_cluster_s_are_rejected() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    drop(runtime.block_on(cluster.connect_bus()));
    let cases = [
        (vec!["--lanes", "4"], ["lane count", "is 1, requested 4"]),
        (vec!["--lane-lease", "9s"], ["lane lease", "is 1000 ms, requested 9000 ms"]),
        (vec!["--work-lease", "9s"], ["work lease", "is 1000 ms, requested 9000 ms"]),
    ];
    for (arguments, parts) in cases {
        assert_exit_and_output(
            cluster.millrace_command().arg("supervisor").args(arguments),
            ENVIRONMENT,
            &parts,
        );
    }
    assert!(cluster.is_running("supervisor-1"), "the supervisor with the right settings keeps running");
    cluster.stop_all();
}

#[test]
fn outdated_nats_server_is_named_with_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("bin/nats-server");
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::write(&old, "#!/bin/sh\necho 'nats-server: v2.9.10'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = millrace_command(folder.path());
    command.env_remove("MILLRACE_NATS_SERVER").env("PATH", folder.path().join("bin"));
    command.env("XDG_CACHE_HOME", folder.path().join("cache")).args([
        "run",
        "x",
        "--model",
        "builtin:extractive",
    ]);
    let parts = ["nats-server 2.9.10 at", "too old", "2.12.0 or newer", "MILLRACE_NATS_SERVER", "pip"];
    assert_exit_and_output(&mut command, ENVIRONMENT, &parts);
}

// ---- invalid messages

/// Publishes bytes on a subject of a stream.
async fn publish_bytes(bus: &Bus, subject: &str, payload: impl Into<Bytes>, is_json: bool) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut headers = build_publish_headers();
    if is_json {
        headers.insert(ENCODING_HEADER, ENCODING_JSON);
    }
    let sent = context.publish_with_headers(subject.to_owned(), headers, payload.into()).await;
    // A queue rejects a duplicate, as it should.
    drop(sent.expect("the message is sent").await);
}

/// An envelope of an unknown future version.
fn future_version_envelope<M: WireMessage>() -> Vec<u8> {
    let envelope = json!({"v": 9_000, "t": M::KIND, "b": [1, 2, 3]});
    rmp_serde::to_vec_named(&envelope).unwrap()
}

/// Publishes an `M` with every kind of fault that a message can have.
async fn publish_all_invalid_kinds<M: WireMessage>(bus: &Bus, subject: &str, good: &M) {
    let whole = encode_with_inline_body::<M>(&encode_body(good));
    publish_bytes(bus, subject, "", false).await;
    publish_bytes(bus, subject, "garbage", false).await;
    publish_bytes(bus, subject, whole[..whole.len() / 2].to_vec(), false).await;
    publish_bytes(bus, subject, [whole.as_slice(), b"more"].concat(), false).await;
    publish_bytes(bus, subject, encode_with_inline_body::<M>(b"\xc1\xc1"), false).await;
    publish_bytes(bus, subject, future_version_envelope::<M>(), false).await;
    publish_bytes(bus, subject, b"{\"v\": 1, \"t\"".to_vec(), true).await;
    publish_bytes(bus, subject, vec![0x91; 100_000], false).await;
    // A blob that was never stored.
    let missing = json!({"v": 1, "t": M::KIND, "s": {"sha256": "ab".repeat(32), "size": 5}});
    publish_bytes(bus, subject, rmp_serde::to_vec_named(&missing).unwrap(), false).await;
}

fn note_entry() -> JournalEntry {
    JournalEntry::Note { text: "out of nowhere".into(), provider: None }
}

fn sample_order(run: &RunId, work: Work) -> Order {
    let blank = json!({
        "run": run, "lane": 0, "work": work, "mission": "m", "objective": "o", "capability": "echo",
    });
    serde_json::from_value(blank).unwrap()
}

/// Publishes invalid messages on every subject of a run except `plan`.
async fn publish_invalid_facts(bus: &Bus, run: &RunId, submission: &Submission) {
    let on = |topic: &Topic| subject::topic_subject(LANE, run, topic);
    publish_all_invalid_kinds(bus, &on(&Topic::Submitted), submission).await;
    let cancel = CommandAction::CancelTask { task: task_id("no-such-task"), reason: "r".into() };
    let command = Wish { id: "c".into(), by: "ann".into(), control: cancel };
    publish_all_invalid_kinds(bus, &on(&Topic::Control), &command).await;
    for topic in [
        Topic::Journal(JournalKey::Task(task_id("l9-0"), 1)),
        Topic::Journal(JournalKey::Task(task_id("no-such-task"), 7)),
        Topic::Journal(JournalKey::Review(task_id("l9-1"), 1)),
        Topic::Journal(JournalKey::Planning(3, 4)),
    ] {
        publish_all_invalid_kinds(bus, &on(&topic), &note_entry()).await;
    }
    for more in ["nonsense", "task", "task.l0-0", "task.l0-0.none", "plan.more"] {
        publish_bytes(bus, &format!("lane.0.run.{run}.{more}"), "garbage", false).await;
    }
}

async fn publish_invalid_orders(bus: &Bus, run: &RunId) {
    let echo = Capability::new("echo").unwrap();
    let work = |task: &str| Work::Task { task: task_id(task), attempt: 1 };
    for n in 0..9 {
        let good = sample_order(run, work(&format!("q{n}")));
        let subject = subject::order_subject(run, &echo, &good.work());
        let whole = encode_with_inline_body::<Order>(&encode_body(&good));
        let payload = match n {
            0 => Vec::new(),
            1 => b"garbage".to_vec(),
            2 => whole[..whole.len() / 2].to_vec(),
            3 => future_version_envelope::<Order>(),
            4 => encode_with_inline_body::<JournalEntry>(&encode_body(&note_entry())),
            // A valid order on a wrong subject.
            5 => encode_with_inline_body::<Order>(&encode_body(&sample_order(run, work("elsewhere")))),
            _ => whole,
        };
        publish_bytes(bus, &subject, payload, false).await;
    }
    for subject in ["work.critic.nobody.t.1", "work.planner.nobody.1.1", "work.echo", "work.echo.a.b.c.d.e"] {
        publish_bytes(bus, subject, "garbage", false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_messages_are_logged_and_skipped() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    cluster.start_process(ProcessRole::Worker, "worker-3", &["--capability", "planner"]);
    let bus = cluster.connect_bus().await;
    let (littered, other, unknown) = (run_id("littered"), run_id("other"), run_id("unknown"));
    let submission = layered_submission(1, 10, 10);
    submit_run(&bus, &littered, &submission).await;
    submit_run(&bus, &other, &fan_out_submission(200, &json!({"delay_ms": 50, "steps": 2}))).await;
    wait_for_value(TIMEOUT, "a running run", async || {
        registry::read_summary(&bus, &littered).await.ok().flatten().map(drop)
    })
    .await;

    publish_invalid_facts(&bus, &littered, &submission).await;
    publish_invalid_facts(&bus, &unknown, &submission).await;
    // Messages that are not decisions never stop a run; an unknown run may contain anything.
    let decision = Decision {
        by: WorkerId::new("nobody").unwrap(),
        previous: 0,
        at: jiff::Timestamp::UNIX_EPOCH,
        answers: Vec::new(),
        events: Vec::new(),
    };
    publish_bytes(&bus, &subject::topic_subject(LANE, &littered, &Topic::Plan), "garbage", false).await;
    publish_bytes(
        &bus,
        &subject::topic_subject(LANE, &littered, &Topic::Plan),
        encode_with_inline_body::<JournalEntry>(&encode_body(&note_entry())),
        false,
    )
    .await;
    publish_all_invalid_kinds(&bus, &subject::topic_subject(LANE, &unknown, &Topic::Plan), &decision).await;
    publish_bytes(&bus, "lane.0.nonsense", "garbage", false).await;
    publish_bytes(&bus, "lane.0.run.not!a!name.plan", "garbage", false).await;
    publish_invalid_orders(&bus, &unknown).await;
    for subject in [subject::stop_subject(&littered), subject::stop_subject(&other), "stop.not!a!name".into()]
    {
        // A redirected server reply is not even decoded.
        bus.client().publish(subject.clone(), "garbage".into()).await.unwrap();
        bus.client().publish_with_headers(subject, build_publish_headers(), "garbage".into()).await.unwrap();
    }

    for run in [&littered, &other] {
        let history = wait_for_run_history(&bus, run, TIMEOUT).await;
        history.assert_consistent();
        assert!(history.folded_plan().run.end.is_some());
        assert!(history.folded_plan().tasks().iter().all(|task| task.state().is_terminal()));
    }
    let reached = wait_for_run_history(&bus, &other, TIMEOUT)
        .await
        .folded_plan()
        .task_count_in_state(TaskState::Completed);
    assert_eq!(reached, 200, "the other run is not affected");
    let supervisor = cluster.read_log("supervisor-1");
    for text in [
        "lane.0.run.littered.submitted",
        "lane.0.run.littered.control",
        "lane.0.run.littered.task.l9-0.1",
        "lane.0.run.littered.nonsense",
        "was written by a newer release (format 9000;",
        "ignoring",
    ] {
        assert!(supervisor.contains(text), "the supervisor's log lacks {text:?}:\n{supervisor}");
    }
    let workers = cluster.read_log("worker-1") + &cluster.read_log("worker-2");
    for text in [
        "removing an invalid order from its queue",
        "work.echo.unknown.q3.1",
        "ignoring an invalid stop",
        "ignoring forged stop",
    ] {
        assert!(workers.contains(text), "the workers' logs lack {text:?}:\n{workers}");
    }

    // The next owner of the lane reads it from the start.
    cluster.kill_process("supervisor-1");
    cluster.restart_process("supervisor-1");
    let last = run_id("last");
    submit_run(&bus, &last, &fan_out_submission(5, &json!({}))).await;
    let history = wait_for_run_history(&bus, &last, TIMEOUT).await;
    assert_eq!(history.folded_plan().run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_an_invalid_submission_ends_with_the_reason() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    let mut circle = fixed_submission(vec![echo_task("a", &json!({})), echo_task("b", &json!({}))]);
    Arc::make_mut(&mut circle.tasks[0]).depends_on = vec![task_id("b")];
    Arc::make_mut(&mut circle.tasks[1]).depends_on = vec![task_id("a")];
    let empty = Submission { objective: " ".into(), ..fan_out_submission(1, &json!({})) };
    let long = Submission { objective: "x".repeat(10_000_000), ..fan_out_submission(1, &json!({})) };
    let mut parameters = fan_out_submission(1, &json!({"dealy_ms": 5}));
    Arc::make_mut(&mut parameters.tasks[0]).limits.queue_wait = Duration::from_secs(1);
    for (name, submission, part) in [
        ("circle", circle, "a"),
        ("empty", empty, "the objective is empty"),
        ("long", long, "10000000 bytes"),
        ("parameters", parameters, "dealy_ms"),
    ] {
        let run = run_id(name);
        submit_run(&bus, &run, &submission).await;
        let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
        let end = history.folded_plan().run.end.as_ref().unwrap();
        let attempts = history.folded_plan().tasks().iter().flat_map(|task| &task.attempts);
        let text = format!("{} {:?}", end.detail, attempts.map(|attempt| &attempt.end).collect::<Vec<_>>());
        assert_eq!(end.reason, EndReason::Failed, "{name}: {text}");
        assert!(text.contains(part), "{name}: {text}");
    }
    cluster.stop_all();
}

// ---- a full disk

/// A small disk; dropping it removes it.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(megabytes: u32) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        let mounted = mounted.map_err(|error| format!("mount: {error}"))?;
        if mounted.status.success() { Ok(Self(folder)) } else { Err(output_text(&mounted)) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.0.path()).status());
    }
}

/// Submits a run with large results and waits until it is running.
async fn start_large_run(cluster: &TestCluster, bus: &Bus, run: &RunId) {
    cluster.wait_for_heartbeats(bus, millrace_protocol::registry::ProcessRole::Worker, 2).await;
    submit_run(bus, run, &fan_out_submission(300, &json!({ "delay_ms": 150, "steps": 1, "bytes": 20_000 })))
        .await;
    wait_for_value(TIMEOUT, "progress", async || {
        let summary = registry::read_summary(bus, run).await.ok()??;
        (summary.completed_and_total_tasks().1 >= 30).then_some(())
    })
    .await;
}

/// Checks that the run ends as usual. Processes that exited meanwhile are restarted.
async fn assert_nothing_lost(mut cluster: TestCluster, bus: &Bus, run: &RunId) {
    let is_over = async || {
        registry::read_summary(bus, run).await.ok().flatten().is_some_and(|summary| summary.end.is_some())
    };
    wait_for_value(TIMEOUT, "the end of the run", async || {
        cluster.restart_exited();
        is_over().await.then_some(())
    })
    .await;
    let history = wait_for_run_history(bus, run, Duration::from_secs(5)).await;
    history.assert_consistent();
    assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
    assert_eq!(history.folded_plan().task_count_in_state(TaskState::Completed), 300);
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn full_store_is_reported_and_nothing_is_lost() {
    let _shared = share_machine();
    let mut setup = ClusterSetup::default();
    setup.server.max_store = Some(4 << 20);
    let mut cluster = TestCluster::start_with_workers(setup, 2);
    let (bus, run) = (cluster.connect_bus().await, run_id("no-room"));
    start_large_run(&cluster, &bus, &run).await;
    wait_for_value(TIMEOUT, "a log line about the store", async || {
        cluster.read_all_logs().contains("the NATS server has no room left").then_some(())
    })
    .await;
    cluster.server.restart_with_options(&ServerOptions::default());
    assert_nothing_lost(cluster, &bus, &run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_reported_and_nothing_is_lost() {
    let _shared = share_machine();
    let disk = match SmallDisk::mount(64) {
        Ok(disk) => disk,
        Err(why) => return println!("passed over: no small disk is to be had: {why}"),
    };
    let mut setup = ClusterSetup::default();
    setup.server.store = Some(disk.0.path().join("store"));
    let mut cluster = TestCluster::start_with_workers(setup, 2);
    let (bus, run) = (cluster.connect_bus().await, run_id("full"));
    start_large_run(&cluster, &bus, &run).await;
    // Another program fills the disk.
    let ballast = disk.0.path().join("ballast");
    assert!(fs::write(&ballast, vec![1; 80 << 20]).is_err(), "the disk is full");
    wait_for_value(TIMEOUT, "a log line about the disk", async || {
        cluster.read_all_logs().contains("if its disk was full").then_some(())
    })
    .await;
    fs::remove_file(&ballast).unwrap();
    cluster.server.restart();
    assert_nothing_lost(cluster, &bus, &run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn submission_with_an_unavailable_body_is_waited_for() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    submit_run(&bus, &run_id("before"), &fan_out_submission(1, &json!({}))).await;
    wait_for_run_history(&bus, &run_id("before"), TIMEOUT).await;
    let context = async_nats::jetstream::new(bus.client().clone());
    let store = context.get_stream("OBJ_blobs").await.unwrap().cached_info().config.clone();
    context.delete_stream("OBJ_blobs").await.unwrap();
    let body = encode_body(&fan_out_submission(3, &json!({})));
    let place = BlobRef { sha256: sha256_hex(&body), size: body.len() as u64 };
    let (late, behind) = (run_id("late"), run_id("behind"));
    let at = subject::topic_subject(LANE, &late, &Topic::Submitted);
    let sent = context.publish_with_headers(
        at,
        build_publish_headers(),
        encode_with_stored_body::<Submission>(place).into(),
    );
    sent.await.unwrap().await.unwrap();
    submit_run(&bus, &behind, &fan_out_submission(1, &json!({}))).await;
    cluster.wait_for_log("supervisor-1", "failed to read a message", TIMEOUT).await;
    // Between the two, the body is missing for good.
    cluster.send_signal("supervisor-1", Signal::STOP);
    context.create_stream(store).await.unwrap();
    bus.blobs().put_blob(&body).await.unwrap();
    cluster.send_signal("supervisor-1", Signal::CONT);
    for run in [&late, &behind] {
        let history = wait_for_run_history(&bus, run, TIMEOUT).await;
        history.assert_consistent();
        let end = history.folded_plan().run.end.as_ref().map(|end| end.reason);
        assert_eq!(end, Some(EndReason::Completed), "{run}");
    }
    assert!(!cluster.read_log("supervisor-1").contains("ignoring unreadable message"));
    cluster.stop_all();
}

/// The number of forged journal entries in a flood. FOUND.md's case has a million.
fn flood_size() -> u64 {
    let size = std::env::var("MILLRACE_FORGED_ENTRIES").ok().and_then(|text| text.parse().ok());
    size.unwrap_or(20_000)
}

/// Publishes two bytes to the journals of as many unsubmitted runs.
async fn publish_flood(bus: &Bus, entries: u64) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut in_flight = Vec::new();
    for number in 0..entries {
        let subject = format!("lane.0.run.g{number}.task.t.1");
        let sent = context.publish_with_headers(subject, build_publish_headers(), "{}".into()).await;
        in_flight.push(sent.unwrap());
        if in_flight.len() == 2_000 || number + 1 == entries {
            for acknowledgement in in_flight.drain(..) {
                acknowledgement.await.unwrap();
            }
        }
    }
}

/// The peak memory of a process in MiB.
fn peak_memory_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

async fn lane_messages(bus: &Bus) -> Option<u64> {
    let lane = async_nats::jetstream::new(bus.client().clone()).get_stream("LANE_0").await.ok()?;
    Some(lane.cached_info().state.messages)
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_unsubmitted_runs_cost_nothing_and_are_deleted() {
    let _shared = share_machine();
    let entries = flood_size();
    // The full flood is judged with the leases of a real cluster.
    let lane_lease = (entries <= 100_000).then(|| Duration::from_secs(1));
    let setup =
        ClusterSetup { lanes: 2, lane_lease, linger: Duration::from_secs(600), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let lane_of =
        |lane: u16| (0..).map(|n| run_id(&format!("r{n}"))).find(|run| bus.lane_of_run(run) == Lane(lane));
    let (flooded, other) = (lane_of(0).unwrap(), lane_of(1).unwrap());
    // A real run before the flood and one after it: neither is in the way of the other messages' deletion.
    submit_run(&bus, &flooded, &fan_out_submission(3, &json!({}))).await;
    wait_for_run_history(&bus, &flooded, TIMEOUT).await;
    let before = lane_messages(&bus).await.unwrap();
    publish_flood(&bus, entries).await;

    let crashed = cluster.read_log("supervisor-1").lines().count();
    cluster.kill_process("supervisor-1");
    cluster.restart_process("supervisor-1");
    let started = std::time::Instant::now();
    let is_taken_over = async || {
        let log = cluster.read_log("supervisor-1");
        let of_lane = |lane: &str| {
            log.lines().skip(crashed).any(|line| line.contains("lane taken over") && line.contains(lane))
        };
        (of_lane("lane=0") && of_lane("lane=1")).then_some(())
    };
    wait_for_value(TIMEOUT, "a takeover of both lanes", is_taken_over).await;
    println!("both lanes taken over {:?} after the start, with {entries} strays", started.elapsed());
    submit_run(&bus, &other, &fan_out_submission(3, &json!({}))).await;
    assert!(wait_for_run_history(&bus, &other, TIMEOUT).await.folded_plan().run.end.is_some());
    let patience = Duration::from_secs(300);
    let is_clean = async || (lane_messages(&bus).await? <= before).then_some(());
    wait_for_value(patience, "a lane without strays", is_clean).await;
    println!("the strays were deleted {:?} after the start", started.elapsed());

    let memory = peak_memory_mib(cluster.pid("supervisor-1").unwrap());
    println!("peak memory of the supervisor: {memory} MiB");
    assert!(memory < 200, "the supervisor needed {memory} MiB");
    // The server has deleted the messages before it responds to the supervisor.
    let is_logged =
        async || cluster.read_log("supervisor-1").contains("deleted stray messages").then_some(());
    wait_for_value(TIMEOUT, "a line about the deleted messages", is_logged).await;
    let log = cluster.read_log("supervisor-1");
    let minutes = 2 + started.elapsed().as_secs() / 60;
    for kind in ["of unsubmitted runs", "unreadable journal entries", "deleted stray messages"] {
        let lines = log.lines().filter(|line| line.contains(kind)).count() as u64;
        assert!((1..=2 * minutes).contains(&lines), "{lines} lines with {kind:?}:\n{log}");
    }
    assert!(!log.contains("stepping down"), "no lane lost its lease:\n{log}");
    assert!(History::read_from_log(&bus, &flooded).await.unwrap().folded_plan().run.end.is_some());
    cluster.stop_all();
}
