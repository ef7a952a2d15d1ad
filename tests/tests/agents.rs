//! Agents end to end: real processes, a real server, a scripted model, and tools that leave traces. When a worker is
//! killed, its attempt resumes after the last recorded step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{AttemptEnd, JournalKey, Plan, Submission, TaskSpec, TaskState};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history};
use millrace_tests::wait_for_value;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(180);
/// Replies of the model in one attempt; all but the last call tools.
const TURNS: usize = 12;
/// The number of concurrent attempts, each with a worker of its own.
const AT_ONCE: usize = 9;

/// The tool calls of a turn: one with effects, an idempotent one, a pure one, or two at once.
fn tool_calls_of_turn(turn: usize) -> String {
    let append = format!("{{execute: {{command: \"echo {turn} >> effects\"}}}}");
    let write = format!("{{write_file: {{file_path: /step-{turn}.txt, content: \"step {turn}\"}}}}");
    match turn % 4 {
        1 => append,
        2 => write,
        3 => "now".to_owned(),
        _ => format!("{append}, {write}"),
    }
}

/// `true` if a turn has a call with effects.
fn has_effectful_call(turn: usize) -> bool {
    turn < TURNS && matches!(turn % 4, 0 | 1)
}

/// The model's script. It depends on the turn only, so that an attempt can resume anywhere.
fn model_script() -> String {
    let turns = (1..TURNS).fold(String::new(), |mut text, turn| {
        writeln!(text, "  - {{calls: [{}], delay: 0.25}}", tool_calls_of_turn(turn)).unwrap();
        text
    });
    format!("rules:\n- turns:\n{turns}  - {{text: All steps are done., delay: 0.25}}\n")
}

fn capability_yaml(name: &str, folder: &Path) -> String {
    format!(
        "name: {name}\ndescription: Does twelve steps.\ninstructions: Do the steps.\nlimits: {{tool_calls: 40}}\n\
         tools:\n- now\n- write_file\n- execute: {{folder: {:?}, require: []}}\n",
        folder.display().to_string()
    )
}

fn steps_submission(capability: &str) -> Submission {
    let task = echo_task("steps", &json!({}));
    fixed_submission(vec![TaskSpec {
        capability: Capability::new(capability).unwrap(),
        is_final: true,
        ..task
    }])
}

async fn read_journal(bus: &Bus, run: &RunId, task: &str) -> Vec<JournalEntry> {
    let mut entries = Vec::new();
    for record in
        read_topic(bus, bus.lane_of_run(run), run, &Topic::Journal(JournalKey::Task(task_id(task), 1)))
            .await
            .unwrap_or_default()
    {
        entries.push(bus.decode_record::<JournalEntry>(&record).await.unwrap());
    }
    entries
}

fn step_names(entries: &[JournalEntry]) -> Vec<String> {
    let names = entries.iter().filter_map(|entry| match entry {
        JournalEntry::Step { name, .. } => Some(name.clone()),
        JournalEntry::Claimed { .. }
        | JournalEntry::Note { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Released { .. }
        | JournalEntry::Outcome { .. } => None,
    });
    names.collect()
}

fn count_claims(entries: &[JournalEntry]) -> usize {
    entries.iter().filter(|entry| matches!(entry, JournalEntry::Claimed { .. })).count()
}

/// An attempt whose worker is killed after one step.
struct KilledAttempt {
    /// The step after which the worker is killed, from 1; 0 kills none.
    behind: usize,
    name: String,
    run: RunId,
}

impl KilledAttempt {
    fn new(behind: usize) -> Self {
        Self { behind, name: format!("steps-{behind}"), run: run_id(&format!("killed-{behind}")) }
    }

    fn start_worker(&self, cluster: &mut TestCluster) {
        let folder = cluster.test_folder().join(&self.name);
        fs::create_dir_all(folder.join("work")).unwrap();
        fs::write(folder.join("model.yaml"), model_script()).unwrap();
        let file = folder.join(format!("{}.yaml", self.name));
        fs::write(&file, capability_yaml(&self.name, &folder.join("work"))).unwrap();
        let model = format!("script:{}", folder.join("model.yaml").display());
        let (file, record) = (file.display().to_string(), folder.join("record").display().to_string());
        cluster.start_process(
            ProcessRole::Worker,
            &self.name,
            &["--capability", &file, "--model", &model, "--record", &record],
        );
    }

    /// Kills the worker when the step is recorded, and restarts it.
    async fn kill_and_restart_worker(&self, cluster: &mut TestCluster, bus: &Bus) {
        let reached = async || {
            (step_names(&read_journal(bus, &self.run, "steps").await).len() >= self.behind).then_some(())
        };
        wait_for_value(TIMEOUT, "the step after which to kill", reached).await;
        cluster.kill_process(&self.name);
        cluster.restart_process(&self.name);
    }

    fn count_effects(&self, cluster: &TestCluster) -> BTreeMap<String, usize> {
        let file = cluster.test_folder().join(&self.name).join("work").join("effects");
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }

    fn count_recorded_replies(&self, cluster: &TestCluster) -> usize {
        fs::read_to_string(cluster.test_folder().join(&self.name).join("record"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Checks the ended attempt.
    async fn check_ended_attempt(&self, cluster: &TestCluster, bus: &Bus) {
        let history = wait_for_run_history(bus, &self.run, TIMEOUT).await;
        history.assert_consistent();
        assert_eq!(attempt_summary(history.folded_plan()), "All steps are done.", "after {}", self.behind);
        let entries = read_journal(bus, &self.run, "steps").await;
        let steps = step_names(&entries);
        let once: BTreeSet<&String> = steps.iter().collect();
        assert_eq!(once.len(), steps.len(), "after {}: a step is recorded twice: {steps:?}", self.behind);
        let replies = steps.iter().filter(|step| step.starts_with("model.")).count();
        assert_eq!(replies, TURNS, "after {}", self.behind);
        assert_eq!(
            self.count_recorded_replies(cluster),
            TURNS,
            "after {}: a model request was repeated",
            self.behind
        );
        // The outcome soon follows the last step: it may be recorded before the worker is killed.
        let is_last = self.behind == steps.len();
        let claims = count_claims(&entries);
        assert!(
            claims == if self.behind == 0 { 1 } else { 2 } || (is_last && claims == 1),
            "{claims} claims"
        );
        let effects = self.count_effects(cluster);
        assert!(effects.values().all(|times| *times == 1), "after {}: {effects:?}", self.behind);
        let unknown = self.calls_with_unknown_outcome(&entries);
        for turn in (1..TURNS).filter(|turn| has_effectful_call(*turn)) {
            let happened = effects.contains_key(&turn.to_string());
            let is_unknown = unknown.iter().any(|name| name.starts_with(&format!("tool.{}.", turn - 1)));
            assert!(happened || is_unknown, "after {}: the effect of turn {turn} is lost", self.behind);
        }
        assert!(unknown.len() <= usize::from(self.behind > 0), "after {}: {unknown:?}", self.behind);
    }

    /// The calls that were reported to the model with an unknown outcome.
    fn calls_with_unknown_outcome(&self, entries: &[JournalEntry]) -> Vec<String> {
        let text = |value: &millrace_protocol::wire::InlineOrStoredBytes| match value {
            millrace_protocol::wire::InlineOrStoredBytes::Inline(bytes) => {
                String::from_utf8_lossy(bytes).into_owned()
            }
            millrace_protocol::wire::InlineOrStoredBytes::Stored(_) => String::new(),
        };
        let named = entries.iter().filter_map(|entry| match entry {
            JournalEntry::Step { name, value, .. }
                if text(value).contains("It is unknown whether this call") =>
            {
                Some(name.clone())
            }
            JournalEntry::Step { .. }
            | JournalEntry::Claimed { .. }
            | JournalEntry::Note { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. }
            | JournalEntry::Outcome { .. } => None,
        });
        named.collect()
    }
}

fn attempt_summary(plan: &Plan) -> &str {
    let task = plan.tasks().first().unwrap();
    assert_eq!(task.state(), TaskState::Completed, "{task:?}");
    match &task.attempts.last().unwrap().end {
        Some(AttemptEnd::Finished { summary, .. }) => summary,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_killed_after_any_step_repeats_no_call() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_secs(600), ..ClusterSetup::default() };
    let mut cluster = TestCluster::with_server_only(setup);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let bus = cluster.connect_bus().await;

    let whole = KilledAttempt::new(0);
    whole.start_worker(&mut cluster);
    submit_run(&bus, &whole.run, &steps_submission(&whole.name)).await;
    whole.check_ended_attempt(&cluster, &bus).await;
    cluster.kill_process(&whole.name);
    let all = step_names(&read_journal(&bus, &whole.run, "steps").await).len();
    assert!(all >= 2 * TURNS, "{all} steps");

    let cases: Vec<KilledAttempt> = (1..=all).map(KilledAttempt::new).collect();
    for some in cases.chunks(AT_ONCE) {
        for case in some {
            case.start_worker(&mut cluster);
            submit_run(&bus, &case.run, &steps_submission(&case.name)).await;
        }
        let mut left: Vec<&KilledAttempt> = some.iter().collect();
        while !left.is_empty() {
            for case in std::mem::take(&mut left) {
                let reached = step_names(&read_journal(&bus, &case.run, "steps").await).len() >= case.behind;
                if reached { case.kill_and_restart_worker(&mut cluster, &bus).await } else { left.push(case) }
            }
        }
        for case in some {
            case.check_ended_attempt(&cluster, &bus).await;
            cluster.kill_process(&case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn non_repeatable_program_is_killed_and_not_rerun() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup {
        linger: Duration::from_secs(600),
        ..ClusterSetup::default()
    });
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let bus = cluster.connect_bus().await;
    let (folder, run) = (cluster.test_folder().join("once"), run_id("once"));
    fs::create_dir_all(&folder).unwrap();
    let program = "{kind: command, name: once, description: x, command: [sh, -c, 'echo $$ >> runs; sleep 600; echo done']}";
    let file = folder.join("once.yaml");
    fs::write(&file, program).unwrap();
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", &file.display().to_string()]);
    submit_run(&bus, &run, &steps_submission("once")).await;
    let runs = || fs::read_to_string(folder.join("runs")).ok().filter(|runs| runs.ends_with('\n'));
    let process = wait_for_value(TIMEOUT, "the program's beginning", async || runs()).await;
    cluster.kill_process("worker-1");
    wait_for_value(TIMEOUT, "the program's end", async || {
        let state = fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    cluster.restart_process("worker-1");
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let task = history.folded_plan().tasks().first().unwrap();
    assert_eq!((task.state(), task.attempt), (TaskState::Failed, 1), "{task:?}");
    assert_eq!(runs(), Some(process), "it ran once");
}
