//! The wire is for everybody: the worker in `examples/python-worker`, which knows nothing of our code, does tasks of a
//! real cluster, and what is shown of messages in `docs/wire.md` is what our types read.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Plan, Submission, TaskSpec, TaskState};
use millrace_protocol::registry::{Beat, ClusterSettings};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{Entry, Order};
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{Cluster, Role, Setup, alone};
use millrace_tests::eventually;
use millrace_tests::plans::{echo, finished, fixed, id, run, submit};
use millrace_tests::python::python;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const PACKAGES: [&str; 2] = ["nats-py==2.16.0", "msgpack==1.1.2"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The worker as a process, killed when it is dropped.
struct Worker(Child);

impl Worker {
    fn start(python: &PathBuf, cluster: &Cluster) -> Self {
        let mut command = Command::new(python);
        command.arg(root().join("examples/python-worker/worker.py")).env("NATS_URL", &cluster.server.url);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn count_words(text: &str, pause: f64) -> Submission {
    let task = echo("count", &json!({ "text": text, "pause": pause }));
    fixed(vec![TaskSpec { capability: Capability::new("wordcount").unwrap(), is_final: true, ..task }])
}

async fn journal(bus: &Bus, run: &millrace_protocol::ids::RunId) -> Vec<Entry> {
    let mut entries = Vec::new();
    for record in read_topic(bus, bus.lane(run), run, &Topic::Task(id("count"), 1)).await.unwrap() {
        entries.push(bus.open::<Entry>(&record).await.unwrap());
    }
    entries
}

fn steps(entries: &[Entry]) -> Vec<&str> {
    let names = entries.iter().filter_map(|entry| match entry {
        Entry::Step { name, .. } => Some(name.as_str()),
        Entry::Claimed { .. } | Entry::Note { .. } | Entry::Released { .. } | Entry::Outcome { .. } => None,
    });
    names.collect()
}

fn words(plan: &Plan) -> &str {
    let task = plan.task(&id("count")).unwrap();
    assert_eq!(task.state, TaskState::Completed, "{task:?}");
    match &task.attempts.last().unwrap().end {
        Some(millrace_protocol::plan::AttemptEnd::Finished { summary, .. }) => summary,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_another_language_does_tasks_and_another_goes_on_where_it_was_killed() {
    let python = match python(&PACKAGES) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _alone = alone();
    let mut cluster = Cluster::new(Setup { linger: Duration::from_secs(60), ..Setup::default() });
    cluster.add(Role::Supervisor, "supervisor-1", &[]);
    let bus = cluster.bus().await;
    let mut worker = Worker::start(&python, &cluster);

    let quick = run("quick");
    submit(&bus, &quick, &count_words("one two\nthree", 0.0)).await;
    let history = finished(&bus, &quick, PATIENCE).await;
    history.assert_holds();
    assert_eq!(words(history.plan()), "3 words");

    let slow = run("slow");
    submit(&bus, &slow, &count_words(&"a b c\n".repeat(12), 0.25)).await;
    eventually(PATIENCE, "the third step", async || {
        (steps(&journal(&bus, &slow).await).len() >= 3).then_some(())
    })
    .await;
    worker.0.kill().unwrap();
    worker.0.wait().unwrap();
    let before = steps(&journal(&bus, &slow).await).len();
    assert!(before < 12, "it was killed in the middle");
    let _next = Worker::start(&python, &cluster);
    let history = finished(&bus, &slow, PATIENCE).await;
    history.assert_holds();
    assert_eq!(words(history.plan()), "36 words");
    let entries = journal(&bus, &slow).await;
    let claims = entries.iter().filter(|entry| matches!(entry, Entry::Claimed { .. })).count();
    assert_eq!(claims, 2);
    let wanted: Vec<String> = (0..12).map(|number| format!("line.{number}")).collect();
    assert_eq!(steps(&entries), wanted, "each step is there once, in its order");
}

#[test]
fn what_the_description_of_the_wire_shows_is_what_our_types_read() {
    let page = std::fs::read_to_string(root().join("docs/wire.md")).unwrap();
    let mut shown = 0;
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
                "beat" => serde_json::from_value::<Beat>(value).and_then(serde_json::to_value),
                "order" => serde_json::from_value::<Order>(value).and_then(serde_json::to_value),
                "entry" => serde_json::from_value::<Entry>(value).and_then(serde_json::to_value),
                "result" => serde_json::from_value::<TaskResult>(value).and_then(serde_json::to_value),
                other => panic!("nobody reads a {other:?}"),
            }
        };
        let again = read(value.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        for name in value.as_object().unwrap().keys() {
            assert!(again.get(name).is_some(), "{kind}: our types know no {name:?}");
        }
        shown += 1;
    }
    assert!(shown >= 9, "the page shows {shown} messages only");
}

#[test]
fn the_worker_in_python_is_short() {
    let text = std::fs::read_to_string(root().join("examples/python-worker/worker.py")).unwrap();
    assert!(text.lines().count() < 80);
}
