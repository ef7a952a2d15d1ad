//! Crashes do not change the end of a run: supervisors, workers, critics and the server are killed at seeded random
//! times, one at a time and several at once. Nor does any run of many stand still when users send random commands
//! meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{CommandAction, Edit, RunCommand, Submission, TaskPatch};
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_runtime::Bus;
use millrace_runtime::log::publish_message;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::crashes::{crash_one_at_random, crash_processes_at_random};
use millrace_tests::history::{History, TaskOutcome};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    SeededRandom, echo_task, layered_submission, run_id, submit_run, wait_for_run_end, wait_for_run_history,
};
use serde_json::json;

const LAYERS: u64 = 10;
const WIDTH: u64 = 20;
/// The timeouts of a run without and with crashes.
const CALM_TIMEOUT: Duration = Duration::from_secs(120);
const CRASH_TIMEOUT: Duration = Duration::from_secs(120);

/// The end of a run: the ends and results of its tasks, and the reason with the deliverable's task.
type RunEnding = (BTreeMap<TaskId, (TaskOutcome, Option<InlineOrStoredBytes>)>, String);

fn seed_count() -> u64 {
    std::env::var("MILLRACE_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20)
}

fn first_seed() -> u64 {
    std::env::var("MILLRACE_CHAOS_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

fn run_ending(history: &History) -> RunEnding {
    let end = history.folded_plan().run.end.as_ref().expect("the run is over");
    let mut results = history.accepted_results();
    let tasks = history.task_outcomes().into_iter();
    let tasks = tasks.map(|(task, fate)| {
        let result = results.remove(&task);
        (task, (fate, result))
    });
    (tasks.collect(), format!("{} {:?}", end.reason, end.deliverable))
}

fn run_id_of_seed(seed: u64) -> RunId {
    run_id(&format!("chaos-{seed}"))
}

/// Runs all seeds without crashes, side by side.
async fn run_without_crashes(seeds: &[u64]) -> BTreeMap<u64, RunEnding> {
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 64, ..ClusterSetup::default() }, 2);
    let bus = cluster.connect_bus().await;
    for &seed in seeds {
        submit_run(&bus, &run_id_of_seed(seed), &layered_submission(seed, LAYERS, WIDTH)).await;
    }
    let mut endings = BTreeMap::new();
    for &seed in seeds {
        let history = wait_for_run_history(
            &bus,
            &run_id_of_seed(seed),
            CALM_TIMEOUT + Duration::from_secs(seeds.len() as u64),
        )
        .await;
        history.assert_consistent();
        assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
        endings.insert(seed, run_ending(&history));
    }
    cluster.stop_all();
    endings
}

/// The observations in a run with crashes.
struct CrashedRun {
    ending: RunEnding,
    crashes: usize,
    takeovers: usize,
    continued: usize,
    took: Duration,
}

async fn run_with_crashes(seed: u64) -> CrashedRun {
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let bus = cluster.connect_bus().await;
    let started = Instant::now();
    submit_run(&bus, &run_id_of_seed(seed), &layered_submission(seed, LAYERS, WIDTH)).await;
    let crashes = crash_processes_at_random(&mut cluster, seed, &async || {
        is_run_over(&bus, &run_id_of_seed(seed)).await
    })
    .await;
    // A process that was started while the server was down exits at once with an error.
    while !is_run_over(&bus, &run_id_of_seed(seed)).await && started.elapsed() < CRASH_TIMEOUT {
        cluster.restart_exited();
        sleep_milliseconds(50).await;
    }
    let took = started.elapsed();
    let history = wait_for_run_history(&bus, &run_id_of_seed(seed), Duration::from_secs(1)).await;
    history.assert_consistent();
    assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new(), "seed {seed}");
    cluster.stop_all();
    let (takeovers, continued) = (history.takeover_count(), history.continued_attempt_count());
    CrashedRun { ending: run_ending(&history), crashes, takeovers, continued, took }
}

/// `true` if the run is known to be over; the server may be down.
async fn is_run_over(bus: &Bus, run: &RunId) -> bool {
    registry::read_summary(bus, run).await.ok().flatten().is_some_and(|summary| summary.end.is_some())
}

async fn sleep_milliseconds(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_do_not_change_the_end_of_a_run() {
    let _shared = share_machine();
    let seeds: Vec<u64> = (first_seed()..first_seed() + seed_count()).collect();
    let expected = run_without_crashes(&seeds).await;
    let (mut crashes, mut continued) = (0, 0);
    for &seed in &seeds {
        let run = run_with_crashes(seed).await;
        println!(
            "seed {seed}: {} crashes, {} takeovers of work, {} attempts continued after a step, {:.1} s",
            run.crashes,
            run.takeovers,
            run.continued,
            run.took.as_secs_f64()
        );
        assert_same_ending(seed, &expected[&seed], &run.ending);
        crashes += run.crashes;
        continued += run.continued;
    }
    assert!(crashes >= seeds.len(), "only {crashes} crashes in {} runs", seeds.len());
    assert!(seeds.len() < 10 || continued > 0, "no attempt was ever continued after a step");
}

fn assert_same_ending(seed: u64, expected: &RunEnding, actual: &RunEnding) {
    let differs = |task: &&TaskId| expected.0.get(*task) != actual.0.get(*task);
    let different: Vec<_> = expected.0.keys().filter(differs).collect();
    let lines: Vec<String> = different
        .iter()
        .take(5)
        .map(|&task| format!("{task}: {:?}, without crashes {:?}", actual.0.get(task), expected.0.get(task)))
        .collect();
    assert!(different.is_empty(), "seed {seed}: {} tasks differ:\n{}", different.len(), lines.join("\n"));
    assert_eq!(actual.1, expected.1, "seed {seed}");
}

/// The number of runs of the storm that are open at a time.
const STORM_WINDOW: usize = 40;
/// The time after which a run of the storm that is not over counts as stranded.
const STORM_TIMEOUT: Duration = Duration::from_secs(180);

/// An open run of the storm.
struct StormRun {
    id: RunId,
    submission: Submission,
    submitted: Instant,
}

impl StormRun {
    async fn submit(bus: &Bus, seed: u64, number: u64) -> Self {
        let id = run_id(&format!("storm-{seed}-{number}"));
        let submission = layered_submission(seed ^ number, 3, 3);
        submit_run(bus, &id, &submission).await;
        Self { id, submission, submitted: Instant::now() }
    }

    /// Sends a command without waiting for the decision; most come too late or are refused for another reason.
    async fn send_random_command(&self, bus: &Bus, random: &mut SeededRandom) {
        let place = random.next_below(self.submission.tasks.len() as u64);
        let task =
            self.submission.tasks[usize::try_from(place).expect("the number of tasks is small")].id.clone();
        let control = match random.next_below(20) {
            0 => CommandAction::CancelRun { reason: "storm".into() },
            1 | 2 => CommandAction::Pause,
            3..=6 => CommandAction::Resume { budget: None },
            7..=10 => CommandAction::CancelTask { task, reason: "storm".into() },
            11..=14 => CommandAction::Edit(Edit::Retry { task, feedback: None, changes: None }),
            15..=17 => CommandAction::Edit(Edit::Patch(TaskPatch {
                parameters: [("delay_ms".to_owned(), json!(random.next_below(100)))].into_iter().collect(),
                ..TaskPatch::without_changes(task)
            })),
            _ => {
                let mut added =
                    echo_task(&format!("added-{}", random.next_below(4)), &json!({"delay_ms": 5}));
                added.depends_on = vec![task];
                CommandAction::Edit(Edit::Add(vec![added]))
            }
        };
        self.send_command(bus, control).await;
    }

    async fn send_command(&self, bus: &Bus, control: CommandAction) {
        let id = uuid::Uuid::now_v7().simple().to_string();
        let command = RunCommand { id: id.clone(), by: "storm".into(), control };
        let lane = bus.lane_of_run(&self.id);
        // A run that is over and archived takes no command.
        drop(publish_message(bus, lane, &self.id, &Topic::Control, &command, &id).await);
    }
}

/// Removes the runs that are over. Runs that were paused are resumed after a while.
async fn remove_ended_runs(bus: &Bus, open: &mut Vec<StormRun>, slowest: &mut Duration) {
    let mut still_open = Vec::new();
    for run in open.drain(..) {
        let age = run.submitted.elapsed();
        if is_run_over(bus, &run.id).await {
            *slowest = age.max(*slowest);
            continue;
        }
        if age > STORM_TIMEOUT / 6 {
            run.send_command(bus, CommandAction::Resume { budget: None }).await;
        }
        if age > STORM_TIMEOUT {
            wait_for_run_end(bus, &run.id, Duration::ZERO).await;
        }
        still_open.push(run);
    }
    *open = still_open;
}

/// `MILLRACE_STORM_RUNS=5000` is the long form.
#[tokio::test(flavor = "multi_thread")]
async fn random_commands_and_kills_strand_no_run() {
    let _shared = share_machine();
    let count: u64 =
        std::env::var("MILLRACE_STORM_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(60);
    let seed = first_seed();
    let mut random = SeededRandom::new(seed ^ 0x57_0e_11);
    let setup = ClusterSetup { lanes: 4, slots: 16, ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 4);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    cluster.start_process(ProcessRole::Critic, "critic-2", &[]);
    let bus = cluster.connect_bus().await;
    let (mut submitted, mut kills, mut commands) = (0, 0, 0);
    let (mut open, mut slowest) = (Vec::new(), Duration::ZERO);
    let (mut next_kill, started) = (Instant::now(), Instant::now());
    while submitted < count || !open.is_empty() {
        while open.len() < STORM_WINDOW && submitted < count {
            open.push(StormRun::submit(&bus, seed, submitted).await);
            submitted += 1;
        }
        for _ in 0..10.min(open.len()) {
            let place = random.next_below(open.len() as u64);
            open[usize::try_from(place).unwrap()].send_random_command(&bus, &mut random).await;
            commands += 1;
        }
        if Instant::now() >= next_kill && submitted < count {
            crash_one_at_random(&mut cluster, &mut random).await;
            next_kill = Instant::now() + Duration::from_millis(500 + random.next_below(2_500));
            kills += 1;
        }
        cluster.restart_exited();
        sleep_milliseconds(50).await;
        remove_ended_runs(&bus, &mut open, &mut slowest).await;
    }
    println!(
        "seed {seed}: {count} runs, {commands} commands, {kills} kills in {:.0} s; the slowest run took {:.1} s",
        started.elapsed().as_secs_f64(),
        slowest.as_secs_f64()
    );
    for number in 0..count {
        let run = run_id(&format!("storm-{seed}-{number}"));
        wait_for_run_history(&bus, &run, STORM_TIMEOUT).await.assert_consistent();
    }
    assert!(kills > 0);
    cluster.stop_all();
}
