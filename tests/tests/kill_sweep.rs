//! Kills after every message of the log of a run that waits for everything an attempt can wait for: an approval, an input, a
//! child, a time and an event. Not random: after each append, of the lane and of each journal, one role is killed, or all
//! are. The run ends as the undisturbed one.

use std::time::{Duration, Instant};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{EndReason, PlanTime, ReviewPolicy, StartEvent, Submission, TaskSpec};
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id};
use millrace_tests::waits::{answer_every_question, end_run_with_kill, kill_and_restart, read_ended_run};
use serde_json::{Value, json};

/// The number of clusters that run at the same time: most of a recovery is the wait for a lease to expire.
const CLUSTERS: usize = 6;

/// The killed role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Worker,
    Supervisor,
    Critic,
    Server,
    All,
}

impl Victim {
    const ALL: [Self; 5] = [Self::Worker, Self::Supervisor, Self::Critic, Self::Server, Self::All];

    /// The names of its processes, without the server.
    fn processes(self) -> &'static [&'static str] {
        match self {
            Self::Worker => &["worker-1"],
            Self::Supervisor => &["supervisor-1"],
            Self::Critic => &["critic-1"],
            Self::Server => &[],
            Self::All => &["worker-1", "supervisor-1", "critic-1"],
        }
    }

    /// Kills it, and starts it again.
    fn kill_and_restart(self, cluster: &mut TestCluster) {
        kill_and_restart(cluster, self.processes(), matches!(self, Self::Server | Self::All));
    }
}

/// A chain of tasks, so that the messages of each run come in the same order.
fn chain_of_waits() -> Submission {
    let child = json!([{"parameters": {"steps": 1}}]);
    let waits: [(&str, Value); 5] = [
        ("approval", json!({"approve": true})),
        ("input", json!({"ask": ["Which?"], "steps": 1})),
        ("child", json!({"delegate": child, "steps": 1})),
        ("sleep", json!({"park_ms": 30, "steps": 1})),
        ("event", json!({"await_event": "go", "steps": 1})),
    ];
    let mut tasks: Vec<TaskSpec> = Vec::new();
    for (name, parameters) in waits {
        let mut task = echo_task(name, &parameters);
        task.limits.max_attempts = 1;
        task.depends_on = tasks.last().map(|before| before.id.clone()).into_iter().collect();
        tasks.push(task);
    }
    let mut last = echo_task("start", &json!({"steps": 1}));
    last.limits.max_attempts = 1;
    last.depends_on = vec![task_id("event")];
    last.not_before = Some(PlanTime::AfterStart(Duration::from_millis(10)));
    last.wait_for_event = Some(Box::new(StartEvent { name: "go".into(), expiry: None }));
    last.review = ReviewPolicy::critic(Vec::new());
    tasks.push(last);
    fixed_submission(tasks)
}

/// The end of a run: the ends of its tasks, and the numbers of its waits, questions and children. Not that of its signals: the person
/// signals an event again as long as no supervisor decides on it.
fn summarise(history: &History) -> String {
    let plan = history.folded_plan();
    let attempts = || plan.tasks().iter().flat_map(|task| &task.attempts);
    let waits: usize = attempts().map(|attempt| attempt.waits.len()).sum();
    let children = plan.tasks().iter().filter(|task| task.spec.is_child()).count();
    let end = plan.run.end.as_ref().map(|end| (end.reason, end.deliverable.clone()));
    format!(
        "{:?}\n{waits} waits, {} questions, {children} children, {end:?}",
        history.task_outcomes(),
        plan.run.question_count,
    )
}

/// Each recorded step was done. One may have been done twice: its worker was killed after it and before it was recorded.
fn find_repeated_effects(history: &History, ledger: &str, run: &RunId) -> Option<String> {
    let lines: Vec<&str> = ledger.lines().filter(|line| line.starts_with(&format!("{run} "))).collect();
    let recorded = history.recorded_echo_steps();
    let is_missing = |step: &&(String, u64)| !lines.contains(&step.0.as_str());
    if let Some((step, _)) = recorded.iter().find(is_missing) {
        return Some(format!("the step {step:?} was recorded and not done"));
    }
    (lines.len() > recorded.len() + 1).then(|| format!("{} steps were done: {lines:?}", lines.len()))
}

/// A run in which `victim` is killed after the append `count`; returns its differences from the undisturbed one.
async fn run_with_kill(
    cluster: &mut TestCluster,
    expected: &str,
    count: usize,
    victim: Victim,
) -> Option<String> {
    let (bus, run) = (cluster.connect_bus().await, run_id(&format!("kill-{count}-{victim:?}")));
    let kill = |cluster: &mut TestCluster| victim.kill_and_restart(cluster);
    let ended = end_run_with_kill(cluster, (&bus, &run), &chain_of_waits(), count, kill).await;
    let Some(history) = ended else {
        return Some(format!("{run} does not end"));
    };
    let mut violations = history.find_violations();
    violations.extend(find_repeated_effects(&history, &cluster.read_ledger(), &run));
    let found = summarise(&history);
    if found != expected {
        violations.push(format!("it differs from the undisturbed run:\n{found}\n{expected}"));
    }
    (!violations.is_empty()).then(|| format!("{run}: {}", violations.join("; ")))
}

/// `MILLRACE_KILL_SWEEP=5` kills each role after each append; the default kills one, each in turn.
#[tokio::test(flavor = "multi_thread")]
async fn kill_behind_any_append_changes_nothing() {
    let _shared = share_machine();
    let per_append: usize =
        std::env::var("MILLRACE_KILL_SWEEP").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
    let started = Instant::now();
    let mut clusters: Vec<TestCluster> = Vec::new();
    for _ in 0..CLUSTERS {
        clusters.push(TestCluster::start_with_workers(ClusterSetup::default(), 1));
    }
    let (bus, run) = (clusters[0].connect_bus().await, run_id("undisturbed"));
    submit_run(&bus, &run, &chain_of_waits()).await;
    let (history, ()) = tokio::join!(read_ended_run(&bus, &run), answer_every_question(&bus, &run));
    history.assert_consistent();
    assert_eq!(history.folded_plan().run.end.as_ref().unwrap().reason, EndReason::Completed);
    let (expected, appends) = (summarise(&history), history.records().len());
    assert!(expected.contains("7 waits, 2 questions, 1 children"), "{expected}");

    let kills: Vec<(usize, Victim)> = (1..appends)
        .flat_map(|count| (0..per_append).map(move |more| (count, Victim::ALL[(count + more) % 5])))
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
    println!("{} kills after {} appends in {:.0?}", kills.len(), appends, started.elapsed());
    assert!(failures.is_empty(), "{} of {} kills:\n{}", failures.len(), kills.len(), failures.join("\n"));
    clusters.into_iter().for_each(TestCluster::stop_all);
}
