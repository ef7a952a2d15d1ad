//! Takeovers between Python workers: after each append of a run that uses every feature of an attempt, workers are killed with
//! SIGKILL, and in rotation the supervisor or the server with them. The run ends like the undisturbed one, and no recorded step
//! is executed again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{EndReason, JournalKey, Submission, TaskSpec};
use millrace_protocol::result::TaskResult;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::decode_task_result;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster, remove_millrace_variables};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id};
use millrace_tests::python::install_python_packages;
use millrace_tests::waits::{answer_every_question, end_run_with_kill, kill_and_restart, read_ended_run};
use serde_json::json;

/// The packages that the worker of `clients/python` needs.
const PACKAGES: [&str; 3] = ["nats-py[nkeys]==2.16.0", "msgpack==1.1.2", "httpx==0.28.1"];
/// The number of clusters that run at the same time: most of a recovery is the wait for a lease to expire.
const CLUSTERS: usize = 4;
const WORKERS: [&str; 2] = ["worker-1", "worker-2"];
/// The steps of the capability, in their order; `left` and `right` run at the same time.
const STEPS: [&str; 11] =
    ["one", "large", "left", "right", "pause", "which", "who", "two", "go", "children", "three"];

/// The killed processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Workers,
    WorkersAndSupervisor,
    OneWorker,
    WorkersAndServer,
}

impl Victim {
    const ALL: [Self; 4] =
        [Self::Workers, Self::WorkersAndSupervisor, Self::OneWorker, Self::WorkersAndServer];

    fn kill_and_restart(self, cluster: &mut TestCluster) {
        let processes: &[&str] = match self {
            Self::Workers | Self::WorkersAndServer => &WORKERS,
            Self::WorkersAndSupervisor => &["worker-1", "supervisor-1", "worker-2"],
            Self::OneWorker => &["worker-2"],
        };
        kill_and_restart(cluster, processes, self == Self::WorkersAndServer);
    }
}

fn start_cluster(python: &Path) -> TestCluster {
    // The journals are read from the lane after the end of the run.
    let setup = ClusterSetup { linger: Duration::from_secs(120), ..ClusterSetup::default() };
    let mut cluster = TestCluster::with_server_only(setup);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    for name in WORKERS {
        let (python, server): (PathBuf, String) = (python.into(), cluster.server.url.clone());
        let repository = millrace_tests::pages::repository_folder();
        let processes: &mut millrace_tests::cluster::NamedProcesses = &mut cluster;
        processes.start_process(ProcessRole::Worker, name, move |id| {
            let mut command = remove_millrace_variables(Command::new(&python));
            command.arg(repository.join("tests/fixtures/python_chaos_worker.py")).arg(id);
            command.env("PYTHONPATH", repository.join("clients/python/src"));
            command.env("PYTHONDONTWRITEBYTECODE", "1").env("MILLRACE_NATS_URL", &server);
            command
        });
    }
    cluster
}

fn submission() -> Submission {
    let mut task =
        TaskSpec { capability: Capability::new("py-chaos").unwrap(), ..echo_task("all", &json!({})) };
    (task.limits.max_attempts, task.is_final) = (1, true);
    fixed_submission(vec![task])
}

/// The result of the run: that of its task.
async fn read_result(bus: &Bus, history: &History) -> TaskResult {
    let stored = history.accepted_results().remove(&task_id("all")).expect("the task has a result");
    decode_task_result(&bus.blobs().read_inline_or_stored(&stored).await.unwrap()).unwrap()
}

/// The steps of the journal of a task, each with the claim that recorded it.
async fn read_steps(bus: &Bus, run: &RunId, task: &str) -> Vec<(String, u32)> {
    let (mut steps, mut current) = (Vec::new(), 0);
    let topic = Topic::Journal(JournalKey::Task(task_id(task), 1));
    for record in read_topic(bus, bus.lane_of_run(run), run, &topic).await.unwrap() {
        match bus.decode_record::<JournalEntry>(&record).await.unwrap() {
            JournalEntry::Claimed { claim, .. } => current = claim,
            JournalEntry::Step { name, .. } => steps.push((name, current)),
            JournalEntry::Note { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. }
            | JournalEntry::Outcome { .. } => {}
        }
    }
    steps
}

/// The mistakes in the steps of a run: each is recorded once and in order, and none is done after it was recorded.
async fn find_repeated_steps(bus: &Bus, run: &RunId, ledger: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut tasks = vec!["all".to_owned()];
    tasks.extend((0..2).map(|number| format!("all-1-children-{number}")));
    for task in tasks {
        let steps = read_steps(bus, run, &task).await;
        let mut names: Vec<&str> = steps.iter().map(|(name, _)| name.as_str()).collect();
        // These two are recorded in the order in which they end.
        if let [.., left, right] = names.get_mut(..4).unwrap_or_default()
            && *left == "right"
        {
            std::mem::swap(left, right);
        }
        let expected: &[&str] = if task == "all" { &STEPS } else { &["child"] };
        if names != expected {
            mistakes.push(format!("the steps of {task} are {names:?}"));
        }
        let recorded: BTreeMap<&str, u32> =
            steps.iter().map(|(name, claim)| (name.as_str(), *claim)).collect();
        let mut done: BTreeMap<(&str, u32), u32> = BTreeMap::new();
        for line in ledger.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [of_run, of_task, step, claim] = words.as_slice() else { continue };
            if *of_run != run.as_str() || **of_task != *task {
                continue;
            }
            let claim: u32 = claim.parse().unwrap();
            *done.entry((step, claim)).or_default() += 1;
            if recorded.get(step).is_none_or(|recorded| claim > *recorded) {
                mistakes.push(format!("claim {claim} did the step {step} of {task} again"));
            }
        }
        mistakes.extend(
            done.iter().filter(|(_, count)| **count > 1).map(|(step, _)| format!("{step:?} was done twice")),
        );
    }
    mistakes
}

/// A run in which `victim` is killed after the append `count`; returns its differences from the undisturbed one.
async fn run_with_kill(
    cluster: &mut TestCluster,
    expected: &TaskResult,
    count: usize,
    victim: Victim,
) -> Option<String> {
    let (bus, run) = (cluster.connect_bus().await, run_id(&format!("kill-{count}-{victim:?}")));
    let kill = |cluster: &mut TestCluster| victim.kill_and_restart(cluster);
    let ended = end_run_with_kill(cluster, (&bus, &run), &submission(), count, kill).await;
    let Some(history) = ended else {
        return Some(format!("{run} does not end: {}", cluster.read_all_logs()));
    };
    let mut mistakes = history.find_violations();
    let end = history.folded_plan().run.end.as_ref().map(|end| end.reason);
    if end == Some(EndReason::Completed) {
        let result = read_result(&bus, &history).await;
        if result != *expected {
            mistakes.push(format!("its result is {:?}", result.summary));
        }
    } else {
        mistakes.push(format!("its end is {end:?}: {:?}", history.task_outcomes()));
    }
    mistakes.extend(find_repeated_steps(&bus, &run, &cluster.read_ledger()).await);
    (!mistakes.is_empty()).then(|| format!("{run}: {}", mistakes.join("; ")))
}

/// `MILLRACE_KILL_SWEEP=4` kills each set of processes after each append; by default one set per append, in rotation.
#[tokio::test(flavor = "multi_thread")]
async fn kill_of_python_workers_behind_any_append_changes_nothing() {
    let python = match install_python_packages(&PACKAGES) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let per_append: usize =
        std::env::var("MILLRACE_KILL_SWEEP").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
    let started = Instant::now();
    let mut clusters: Vec<TestCluster> = (0..CLUSTERS).map(|_| start_cluster(&python)).collect();
    let (bus, run) = (clusters[0].connect_bus().await, run_id("undisturbed"));
    submit_run(&bus, &run, &submission()).await;
    let (history, ()) = tokio::join!(read_ended_run(&bus, &run), answer_every_question(&bus, &run));
    history.assert_consistent();
    let expected = read_result(&bus, &history).await;
    assert_eq!(expected.output, "one left right two Which? Who? a b three True");
    let mistakes = find_repeated_steps(&bus, &run, &clusters[0].read_ledger()).await;
    assert_eq!(mistakes, Vec::<String>::new());
    let appends = history.records().len();

    let kills: Vec<(usize, Victim)> = (1..appends)
        .flat_map(|count| (0..per_append).map(move |more| (count, Victim::ALL[(count + more) % 4])))
        .collect();
    let sweeps = clusters.iter_mut().enumerate().map(|(first, cluster)| {
        let (kills, expected) = (&kills, &expected);
        async move {
            let mut failures = Vec::new();
            for &(count, victim) in kills.iter().skip(first).step_by(CLUSTERS) {
                failures.extend(Box::pin(run_with_kill(cluster, expected, count, victim)).await);
            }
            failures
        }
    });
    let failures: Vec<String> = futures::future::join_all(sweeps).await.into_iter().flatten().collect();
    println!("{} kills after {appends} appends in {:.0?}", kills.len(), started.elapsed());
    assert!(failures.is_empty(), "{} of {} kills:\n{}", failures.len(), kills.len(), failures.join("\n"));
    clusters.into_iter().for_each(TestCluster::stop_all);
}
