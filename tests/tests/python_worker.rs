//! The wire protocol is language-independent: the Python worker in `examples/python-worker` runs tasks of a real
//! cluster, and the message examples in `docs/wire.md` match the types.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{JournalKey, Plan, Submission, TaskSpec, TaskState};
use millrace_protocol::question::{Answer, RunAnswer};
use millrace_protocol::registry::{ClusterSettings, Heartbeat};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{JournalEntry, Order};
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster, remove_millrace_variables};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history};
use millrace_tests::python::install_python_packages;
use millrace_tests::wait_for_value;
use millrace_tests::waits::{answer_question, wait_for_questions};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The packages that the worker of `clients/python` needs.
const PACKAGES: [&str; 3] = ["nats-py[nkeys]==2.16.0", "msgpack==1.1.2", "httpx==0.28.1"];

fn repository_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A command that runs a worker program in Python against a cluster, with the package of `clients/python`.
fn python_command(python: &Path, program: &str, server: &str) -> Command {
    let mut command = remove_millrace_variables(Command::new(python));
    command
        .arg(repository_folder().join(program))
        .env("PYTHONPATH", repository_folder().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MILLRACE_NATS_URL", server);
    command
}

/// The worker process. Dropping it kills it.
struct PythonWorker(Child);

impl PythonWorker {
    fn start(python: &Path, cluster: &TestCluster) -> Self {
        let mut command = python_command(python, "examples/python-worker/worker.py", &cluster.server.url);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for PythonWorker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn word_count_submission(text: &str, pause: f64) -> Submission {
    let task = echo_task("count", &json!({ "text": text, "pause": pause }));
    fixed_submission(vec![TaskSpec {
        capability: Capability::new("wordcount").unwrap(),
        is_final: true,
        ..task
    }])
}

async fn read_journal(bus: &Bus, run: &millrace_protocol::ids::RunId) -> Vec<JournalEntry> {
    let mut entries = Vec::new();
    for record in
        read_topic(bus, bus.lane_of_run(run), run, &Topic::Journal(JournalKey::Task(task_id("count"), 1)))
            .await
            .unwrap()
    {
        entries.push(bus.decode_record::<JournalEntry>(&record).await.unwrap());
    }
    entries
}

fn step_names(entries: &[JournalEntry]) -> Vec<&str> {
    let names = entries.iter().filter_map(|entry| match entry {
        JournalEntry::Step { name, .. } => Some(name.as_str()),
        JournalEntry::Claimed { .. }
        | JournalEntry::Note { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Released { .. }
        | JournalEntry::Outcome { .. } => None,
    });
    names.collect()
}

fn word_count_summary(plan: &Plan) -> &str {
    let task = plan.task(&task_id("count")).unwrap();
    assert_eq!(task.state(), TaskState::Completed, "{task:?}");
    match &task.attempts.last().unwrap().end {
        Some(millrace_protocol::plan::AttemptEnd::Finished { summary, .. }) => summary,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn python_worker_runs_tasks_and_another_resumes_its_work() {
    let python = match install_python_packages(&PACKAGES) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup {
        linger: Duration::from_secs(60),
        ..ClusterSetup::default()
    });
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let bus = cluster.connect_bus().await;
    let mut worker = PythonWorker::start(&python, &cluster);

    let quick = run_id("quick");
    submit_run(&bus, &quick, &word_count_submission("one two\nthree", 0.0)).await;
    let history = wait_for_run_history(&bus, &quick, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(word_count_summary(history.folded_plan()), "3 words");

    let asking = run_id("asking");
    let mut submission = word_count_submission("one two", 0.0);
    Arc::make_mut(&mut submission.tasks[0]).parameters.insert("ask".into(), json!("Count them?"));
    submit_run(&bus, &asking, &submission).await;
    let open = wait_for_questions(&bus, &asking, 1).await;
    assert_eq!(open[0].text, "Count them?");
    answer_question(&bus, &asking, "ann", &open[0], Answer::Answer { value: "\"yes\"".into() }).await;
    let history = wait_for_run_history(&bus, &asking, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(word_count_summary(history.folded_plan()), "2 words");

    let delegating = run_id("delegating");
    let mut submission = word_count_submission("one two\n\nthree four five", 0.0);
    Arc::make_mut(&mut submission.tasks[0]).parameters.insert("delegate".into(), json!("wordcount"));
    submit_run(&bus, &delegating, &submission).await;
    let history = wait_for_run_history(&bus, &delegating, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(word_count_summary(history.folded_plan()), "5 words");
    assert_eq!(history.folded_plan().tasks().len(), 3, "a task for each paragraph");

    let slow = run_id("slow");
    submit_run(&bus, &slow, &word_count_submission(&"a b c\n".repeat(12), 0.25)).await;
    wait_for_value(TIMEOUT, "the third step", async || {
        (step_names(&read_journal(&bus, &slow).await).len() >= 3).then_some(())
    })
    .await;
    worker.0.kill().unwrap();
    worker.0.wait().unwrap();
    let before = step_names(&read_journal(&bus, &slow).await).len();
    assert!(before < 12, "it was killed before its end");
    let _next = PythonWorker::start(&python, &cluster);
    let history = wait_for_run_history(&bus, &slow, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(word_count_summary(history.folded_plan()), "36 words");
    let entries = read_journal(&bus, &slow).await;
    let claims = entries.iter().filter(|entry| matches!(entry, JournalEntry::Claimed { .. })).count();
    assert_eq!(claims, 2);
    let expected: Vec<String> = (0..12).map(|number| format!("line.{number}")).collect();
    assert_eq!(step_names(&entries), expected, "each step is recorded once and in order");
}

#[test]
fn examples_in_wire_md_match_the_types() {
    let page = std::fs::read_to_string(repository_folder().join("docs/wire.md")).unwrap();
    let mut count = 0;
    for block in page.split("```json ").skip(1) {
        let (kind, rest) = block.split_once('\n').unwrap();
        let text = rest.split("```").next().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let read = |value| -> Result<Value, serde_json::Error> {
            match kind.trim() {
                "settings" => serde_json::from_value::<ClusterSettings>(value).and_then(serde_json::to_value),
                "capability" => {
                    serde_json::from_value::<CapabilityDescription>(value).and_then(serde_json::to_value)
                }
                "beat" => serde_json::from_value::<Heartbeat>(value).and_then(serde_json::to_value),
                "order" => serde_json::from_value::<Order>(value).and_then(serde_json::to_value),
                "entry" => serde_json::from_value::<JournalEntry>(value).and_then(serde_json::to_value),
                "answer" => serde_json::from_value::<RunAnswer>(value).and_then(serde_json::to_value),
                "result" => serde_json::from_value::<TaskResult>(value).and_then(serde_json::to_value),
                other => panic!("unknown message kind {other:?}"),
            }
        };
        let again = read(value.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        for name in value.as_object().unwrap().keys() {
            assert!(again.get(name).is_some(), "{kind}: the type has no {name:?}");
        }
        count += 1;
    }
    assert!(count >= 9, "the page has only {count} examples");
}
