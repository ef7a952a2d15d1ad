//! The log is enough: a run whose log was cut behind any message, with nothing else left of its cluster, goes on to the
//! same end. In process, on a real server; each cut has an account of its own on it, which is a server to itself.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Review, Submission};
use millrace_runtime::connection::Credentials;
use millrace_runtime::record::Record;
use millrace_runtime::topology::Wanted;
use millrace_runtime::{Bus, Connection};
use millrace_tests::cluster::alone;
use millrace_tests::history::History;
use millrace_tests::plans::{appended, echo, finished, fixed, id, run, submit};
use millrace_tests::{NatsServer, Options};
use millrace_worker::builtin::Echo;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// More accounts than a run of this size has messages.
const ACCOUNTS: usize = 400;
/// How many cuts are recovered at the same time.
const AT_ONCE: usize = 6;
const PATIENCE: Duration = Duration::from_secs(60);

/// Twelve tasks in three layers: steps, reviews, some that fail and some that are rejected on the way.
fn submission() -> Submission {
    let mut tasks = Vec::new();
    for n in 0..12 {
        let (fail_rate, reject_rate) =
            (if n % 4 == 1 { 0.6 } else { 0.0 }, if n % 3 == 0 { 0.5 } else { 0.0 });
        let steps = n % 3;
        let parameters = json!({
            "steps": steps, "delay_ms": steps * 2, "fail_rate": fail_rate, "reject_rate": reject_rate, "seed": 5,
        });
        let mut task = echo(&format!("t{n}"), &parameters);
        task.limits.max_attempts = 20;
        task.limits.backoff = Duration::from_millis(10);
        task.is_final = n == 11;
        if n % 3 == 0 {
            task.review = Review::critic(Vec::new());
        }
        if n >= 4 {
            task.depends_on = vec![id(&format!("t{}", n - 4)), id(&format!("t{}", n - 3))];
        }
        tasks.push(task);
    }
    fixed(tasks)
}

/// A server with accounts that know nothing of each other.
fn server() -> NatsServer {
    let accounts = (0..ACCOUNTS).fold(String::new(), |mut text, n| {
        let _ = writeln!(text, "  A{n}: {{ jetstream: enabled, users: [{{ user: a{n}, password: a }}] }}");
        text
    });
    NatsServer::with(&Options { more: format!("accounts {{\n{accounts}}}\n"), ..Options::default() })
}

fn connection(server: &NatsServer, account: usize) -> Connection {
    let credentials = Credentials::Password { user: format!("a{account}"), password: "a".into() };
    Connection { credentials, ..Connection::open(server.url.clone()) }
}

fn wanted() -> Wanted {
    Wanted {
        lanes: Some(1),
        lane_lease: Some(Duration::from_secs(5)),
        work_lease: Some(Duration::from_secs(5)),
        ..Wanted::default()
    }
}

/// A supervisor, a worker and a critic in this process.
struct Roles {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Roles {
    fn start(connection: &Connection, ledger: PathBuf) -> Self {
        let stop = CancellationToken::new();
        let supervisor = millrace_supervisor::Config {
            connection: connection.clone(),
            id: None,
            wanted: wanted(),
            linger: PATIENCE,
            http: None,
        };
        let mut worker =
            millrace_worker::Config::new(connection.clone(), vec![Arc::new(Echo::with_ledger(ledger))]);
        worker.document_cache = None;
        let mut critic = millrace_critic::Config::new(connection.clone());
        critic.document_cache = None;
        let (a, b, c) = (stop.clone(), stop.clone(), stop.clone());
        let tasks = vec![
            tokio::spawn(async {
                millrace_supervisor::run(supervisor, a).await.expect("the supervisor runs")
            }),
            tokio::spawn(async { millrace_worker::run(worker, b).await.expect("the worker runs") }),
            tokio::spawn(async { millrace_critic::run(critic, c).await.expect("the critic runs") }),
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

/// The run as it goes when nothing happens.
async fn whole(server: &NatsServer, ledger: PathBuf, run: &RunId) -> History {
    let connection = connection(server, 0);
    let roles = Roles::start(&connection, ledger);
    let bus = Bus::join(&connection, "test", PATIENCE).await.expect("the cluster is made");
    submit(&bus, run, &submission()).await;
    let history = finished(&bus, run, PATIENCE).await;
    roles.stop().await;
    history
}

/// What came of the run behind one cut.
struct Recovered {
    history: History,
    ledger: String,
}

async fn recover(server: &NatsServer, folder: &Path, run: &RunId, records: &[Record]) -> Recovered {
    let account = records.len();
    let connection = connection(server, account);
    let bus = Bus::connect(&connection, "test", &wanted()).await.expect("a cluster is made");
    lay_down(&bus, records).await;
    let ledger = folder.join(format!("ledger-{account}"));
    let roles = Roles::start(&connection, ledger.clone());
    let history = finished(&bus, run, PATIENCE).await;
    roles.stop().await;
    Recovered { history, ledger: std::fs::read_to_string(ledger).unwrap_or_default() }
}

/// Writes messages into an empty lane as they were, with the same sequences.
async fn lay_down(bus: &Bus, records: &[Record]) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let mut acknowledgements = Vec::new();
    for record in records {
        let (subject, payload) = (record.subject.clone(), record.payload.clone());
        let sent = context.publish_with_headers(subject, appended(), payload).await;
        acknowledgements.push((record.sequence, sent.expect("the message is sent")));
    }
    for (sequence, acknowledgement) in acknowledgements {
        let acknowledged = acknowledgement.await.expect("the lane takes the message");
        assert_eq!(acknowledged.sequence, sequence, "the lane has the same sequences");
    }
}

fn check(cut: usize, whole: &History, recovered: &Recovered) -> Result<(), String> {
    let Recovered { history, ledger } = recovered;
    let broken = history.broken();
    if !broken.is_empty() {
        return Err(format!("cut behind {cut}: {}", broken.join("; ")));
    }
    if history.fates() != whole.fates() || history.results() != whole.results() {
        return Err(format!("cut behind {cut}: tasks fared otherwise: {:?}", history.fates()));
    }
    let end =
        |history: &History| history.plan().end.as_ref().map(|end| (end.reason, end.deliverable.clone()));
    if end(history) != end(whole) {
        return Err(format!("cut behind {cut}: it ended with {:?}", end(history)));
    }
    let done: BTreeSet<&str> = ledger.lines().collect();
    let written = whole.steps().into_iter().filter(|(_, sequence)| *sequence <= cut as u64);
    match written.map(|(step, _)| step).find(|step| done.contains(step.as_str())) {
        Some(step) => Err(format!("cut behind {cut}: step {step:?} was in the log and was done again")),
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cut_behind_any_message_leads_to_the_same_end() {
    let _alone = alone();
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let run = run("cut-me-anywhere");
    let whole = whole(&server, folder.path().join("ledger"), &run).await;
    whole.assert_holds();
    let attempts: Vec<_> = whole.fates().into_values().flat_map(|fate| fate.attempts).collect();
    assert!(
        attempts.iter().any(|(_, end, _)| end.starts_with("errored")),
        "one attempt failed: {attempts:?}"
    );
    assert!(attempts.iter().any(|(_, _, passed)| *passed == Some(false)), "one was rejected: {attempts:?}");
    let records = whole.records();
    assert!(records.len() < ACCOUNTS, "{} messages", records.len());
    assert!(
        records.iter().zip(1..).all(|(record, sequence)| record.sequence == sequence),
        "nothing else is there"
    );

    let cuts = futures::stream::iter(1..=records.len()).map(|cut| {
        let (server, folder, run, whole) = (&server, folder.path(), &run, &whole);
        async move { check(cut, whole, &recover(server, folder, run, &records[..cut]).await) }
    });
    let failures: Vec<String> =
        cuts.buffer_unordered(AT_ONCE).filter_map(async |checked| checked.err()).collect().await;
    assert!(failures.is_empty(), "{} of {} cuts:\n{}", failures.len(), records.len(), failures.join("\n"));
    println!("{} cuts", records.len());
}
