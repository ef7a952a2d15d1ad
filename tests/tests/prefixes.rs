//! Recovery from the log alone: a run whose log is cut after any message, with nothing else left of its cluster,
//! recovers to the same end. In process, on a real server, with an isolated account for each cut.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{PlanTime, ReviewPolicy, StartEvent, Submission, TaskSpec};
use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    build_publish_headers, echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history,
};
use millrace_tests::waits::answer_every_question;
use millrace_tests::{NatsServer, ServerOptions};
use millrace_worker::builtin::EchoCapability;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The number of accounts: more than this run has messages.
const ACCOUNTS: usize = 400;
/// The number of cuts that are recovered at the same time.
const AT_ONCE: usize = 6;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Twelve tasks in three layers, with steps, reviews, failures and rejections.
fn sample_submission() -> Submission {
    let mut tasks = Vec::new();
    for n in 0..12 {
        let (fail_rate, reject_rate) =
            (if n % 4 == 1 { 0.6 } else { 0.0 }, if n % 3 == 0 { 0.5 } else { 0.0 });
        let steps = n % 3;
        let parameters = json!({
            "steps": steps, "delay_ms": steps * 2, "fail_rate": fail_rate, "reject_rate": reject_rate, "seed": 5,
        });
        let mut task = echo_task(&format!("t{n}"), &parameters);
        task.limits.max_attempts = 20;
        task.limits.backoff = Duration::from_millis(10);
        task.is_final = n == 11;
        if n % 3 == 0 {
            task.review = ReviewPolicy::critic(Vec::new());
        }
        if n >= 4 {
            task.depends_on = vec![task_id(&format!("t{}", n - 4)), task_id(&format!("t{}", n - 3))];
        }
        tasks.push(task);
    }
    fixed_submission(tasks)
}

/// A server with isolated accounts.
fn start_server_with_accounts() -> NatsServer {
    let accounts = (0..ACCOUNTS).fold(String::new(), |mut text, n| {
        let _ = writeln!(text, "  A{n}: {{ jetstream: enabled, users: [{{ user: a{n}, password: a }}] }}");
        text
    });
    NatsServer::start_with_options(&ServerOptions {
        more: format!("accounts {{\n{accounts}}}\n"),
        ..ServerOptions::default()
    })
}

fn account_connection(server: &NatsServer, account: usize) -> ConnectionSettings {
    let credentials = Credentials::Password { user: format!("a{account}"), password: "a".into() };
    ConnectionSettings { credentials, ..ConnectionSettings::unauthenticated(server.url.clone()) }
}

fn cluster_options() -> ClusterOptions {
    ClusterOptions {
        lanes: Some(1),
        lane_lease: Some(Duration::from_secs(5)),
        work_lease: Some(Duration::from_secs(5)),
        ..ClusterOptions::default()
    }
}

/// A supervisor, a worker and a critic in this process.
struct InProcessRoles {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl InProcessRoles {
    fn start(connection: &ConnectionSettings, ledger: PathBuf) -> Self {
        let stop = CancellationToken::new();
        let supervisor = millrace_supervisor::SupervisorConfig {
            connection: connection.clone(),
            id: None,
            wanted: cluster_options(),
            linger: TIMEOUT,
            http: None,
        };
        let mut worker = millrace_worker::WorkerConfig::new(
            connection.clone(),
            vec![Arc::new(EchoCapability::with_ledger(ledger))],
        );
        worker.host.document_cache = None;
        let mut critic = millrace_critic::CriticConfig::new(connection.clone());
        critic.host.document_cache = None;
        let (a, b, c) = (stop.clone(), stop.clone(), stop.clone());
        let tasks = vec![
            tokio::spawn(async {
                millrace_supervisor::run_supervisor(supervisor, a).await.expect("the supervisor runs")
            }),
            tokio::spawn(async { millrace_worker::run_worker(worker, b).await.expect("the worker runs") }),
            tokio::spawn(async { millrace_critic::run_critic(critic, c).await.expect("the critic runs") }),
        ];
        Self { stop, tasks }
    }

    async fn stop(self) {
        self.stop.cancel();
        for task in self.tasks {
            task.await.expect("a role ends well");
        }
    }
}

/// The run without a cut.
async fn run_uncut(server: &NatsServer, ledger: PathBuf, run: &RunId, submission: &Submission) -> History {
    let connection = account_connection(server, 0);
    let roles = InProcessRoles::start(&connection, ledger);
    let bus = Bus::join_existing_cluster(&connection, "test", TIMEOUT).await.expect("the cluster is made");
    submit_run(&bus, run, submission).await;
    let (history, ()) =
        tokio::join!(wait_for_run_history(&bus, run, TIMEOUT), answer_every_question(&bus, run));
    roles.stop().await;
    history
}

/// The run as recovered from a cut.
struct RecoveredRun {
    history: History,
    ledger: String,
}

async fn recover_from_cut(
    server: &NatsServer,
    folder: &Path,
    run: &RunId,
    records: &[StreamRecord],
) -> RecoveredRun {
    let account = records.len();
    let connection = account_connection(server, account);
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &cluster_options())
        .await
        .expect("a cluster is made");
    restore_messages(&bus, records).await;
    let ledger = folder.join(format!("ledger-{account}"));
    let roles = InProcessRoles::start(&connection, ledger.clone());
    let (history, ()) =
        tokio::join!(wait_for_run_history(&bus, run, TIMEOUT), answer_every_question(&bus, run));
    roles.stop().await;
    RecoveredRun { history, ledger: std::fs::read_to_string(ledger).unwrap_or_default() }
}

/// Writes messages into an empty lane, with their original sequence numbers.
async fn restore_messages(bus: &Bus, records: &[StreamRecord]) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut acknowledgements = Vec::new();
    for record in records {
        let (subject, payload) = (record.subject.clone(), record.payload.clone());
        let sent = context.publish_with_headers(subject, build_publish_headers(), payload).await;
        acknowledgements.push((record.sequence, sent.expect("the message is sent")));
    }
    for (sequence, acknowledgement) in acknowledgements {
        let acknowledged = acknowledgement.await.expect("the lane takes the message");
        assert_eq!(acknowledged.sequence, sequence, "the lane has the same sequence numbers");
    }
}

fn check_recovered_run(cut: usize, uncut: &History, recovered: &RecoveredRun) -> Result<(), String> {
    let RecoveredRun { history, ledger } = recovered;
    let violations = history.find_violations();
    if !violations.is_empty() {
        return Err(format!("cut after {cut}: {}", violations.join("; ")));
    }
    if history.task_outcomes() != uncut.task_outcomes()
        || history.accepted_results() != uncut.accepted_results()
    {
        return Err(format!("cut after {cut}: tasks fared otherwise: {:?}", history.task_outcomes()));
    }
    let end = |history: &History| {
        history.folded_plan().run.end.as_ref().map(|end| (end.reason, end.deliverable.clone()))
    };
    if end(history) != end(uncut) {
        return Err(format!("cut after {cut}: it ended with {:?}", end(history)));
    }
    let ledger_lines: BTreeSet<&str> = ledger.lines().collect();
    let written = uncut.recorded_echo_steps().into_iter().filter(|(_, sequence)| *sequence <= cut as u64);
    match written.map(|(step, _)| step).find(|step| ledger_lines.contains(step.as_str())) {
        Some(step) => Err(format!("cut after {cut}: step {step:?} was in the log and was done again")),
        None => Ok(()),
    }
}

/// Tasks that sleep, wait for an event, ask two questions, need an approval, and start at a time and after an event, in two layers.
fn submission_with_waits() -> Submission {
    let first = [
        json!({"park_ms": 40, "steps": 1}),
        json!({"await_event": "go", "steps": 1}),
        json!({"ask": ["Which?", "When?"]}),
        json!({"approve": true}),
    ];
    let first = (0..).zip(first).map(|(n, parameters)| echo_task(&format!("w{n}"), &parameters));
    let starts = TaskSpec {
        not_before: Some(PlanTime::AfterStart(Duration::from_millis(60))),
        wait_for_event: Some(Box::new(StartEvent { name: "go".into(), expiry: None })),
        ..echo_task("w4", &json!({"steps": 1}))
    };
    let mut last = echo_task("last", &json!({"approve": true, "steps": 1}));
    last.depends_on = (0..5).map(|n| task_id(&format!("w{n}"))).collect();
    last.review = ReviewPolicy::critic(Vec::new());
    fixed_submission(first.chain([starts, last]).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn log_of_a_waiting_run_cut_after_any_message_recovers_to_the_same_end() {
    let _shared = share_machine();
    let (server, folder) = (start_server_with_accounts(), tempfile::tempdir().unwrap());
    let run = run_id("cut-while-waiting");
    let uncut = run_uncut(&server, folder.path().join("ledger"), &run, &submission_with_waits()).await;
    uncut.assert_consistent();
    let waits: usize =
        uncut.folded_plan().tasks().iter().flat_map(|task| &task.attempts).map(|it| it.waits.len()).sum();
    assert_eq!(waits, 8, "a sleep, an event, two inputs, two approvals, and two waits for a start");
    recover_from_every_cut(&server, folder.path(), &run, &uncut).await;
}

/// A task that delegates two tasks, of which one delegates a third, and one that is refused; and a task that uses its result.
fn submission_with_children() -> Submission {
    let children = json!([
        {"parameters": {"steps": 1}},
        {"parameters": {"steps": 1, "delegate": [{"parameters": {"steps": 1}}]}},
        {"capability": "critic"},
    ]);
    let parent = echo_task("parent", &json!({"delegate": children, "steps": 1}));
    let mut last = echo_task("last", &json!({"steps": 1}));
    last.depends_on = vec![task_id("parent")];
    last.review = ReviewPolicy::critic(Vec::new());
    fixed_submission(vec![parent, last])
}

#[tokio::test(flavor = "multi_thread")]
async fn log_of_a_run_with_children_cut_after_any_message_recovers_to_the_same_end() {
    let _shared = share_machine();
    let (server, folder) = (start_server_with_accounts(), tempfile::tempdir().unwrap());
    let run = run_id("cut-with-children");
    let uncut = run_uncut(&server, folder.path().join("ledger"), &run, &submission_with_children()).await;
    uncut.assert_consistent();
    let plan = uncut.folded_plan();
    let depths: Vec<u32> =
        plan.tasks().iter().filter_map(|task| Some(task.spec.parent.as_ref()?.depth)).collect();
    assert_eq!(depths, [1, 1, 2], "two children and a grandchild");
    let refused = &plan.task(&task_id("parent")).unwrap().attempts[0].refused_children;
    assert_eq!(refused.len(), 1, "{refused:?}");
    recover_from_every_cut(&server, folder.path(), &run, &uncut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_cut_after_any_message_recovers_to_the_same_end() {
    let _shared = share_machine();
    let (server, folder) = (start_server_with_accounts(), tempfile::tempdir().unwrap());
    let run = run_id("cut-me-anywhere");
    let uncut = run_uncut(&server, folder.path().join("ledger"), &run, &sample_submission()).await;
    uncut.assert_consistent();
    let attempts: Vec<_> = uncut.task_outcomes().into_values().flat_map(|outcome| outcome.attempts).collect();
    assert!(
        attempts.iter().any(|(_, end, _)| end.starts_with("errored")),
        "one attempt failed: {attempts:?}"
    );
    assert!(
        attempts.iter().any(|(_, _, passed)| *passed == Some(false)),
        "an attempt was rejected: {attempts:?}"
    );
    recover_from_every_cut(&server, folder.path(), &run, &uncut).await;
}

/// Cuts the log of a run after every message, and recovers each cut.
async fn recover_from_every_cut(server: &NatsServer, folder: &Path, run: &RunId, uncut: &History) {
    let records = uncut.records();
    assert!(records.len() < ACCOUNTS, "{} messages", records.len());
    assert!(
        records.iter().zip(1..).all(|(record, sequence)| record.sequence == sequence),
        "nothing else is there"
    );

    let cuts = futures::stream::iter(1..=records.len()).map(|cut| async move {
        check_recovered_run(cut, uncut, &recover_from_cut(server, folder, run, &records[..cut]).await)
    });
    let failures: Vec<String> =
        cuts.buffer_unordered(AT_ONCE).filter_map(async |checked| checked.err()).collect().await;
    assert!(failures.is_empty(), "{} of {} cuts:\n{}", failures.len(), records.len(), failures.join("\n"));
    println!("{} cuts", records.len());
}
