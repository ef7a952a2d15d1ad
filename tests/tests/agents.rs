//! Agents as a whole: real processes, a real server, a model that answers by hand, and tools that leave traces. Whatever
//! kills a worker, its attempt goes on behind the last step that was written down.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{AttemptEnd, Plan, Submission, TaskSpec, TaskState};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::Entry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{Cluster, Role, Setup, alone};
use millrace_tests::eventually;
use millrace_tests::plans::{echo, finished, fixed, id, run, submit};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(180);
/// Replies of the model in one attempt; all but the last call tools.
const TURNS: usize = 12;
/// How many attempts are under way at once, each with a worker of its own.
const AT_ONCE: usize = 9;

/// The tools of a turn: something that changes the world, something that recognises its key, something that changes
/// nothing, and two at once.
fn calls(turn: usize) -> String {
    let append = format!("{{execute: {{command: \"echo {turn} >> effects\"}}}}");
    let write = format!("{{write_file: {{file_path: /step-{turn}.txt, content: \"step {turn}\"}}}}");
    match turn % 4 {
        1 => append,
        2 => write,
        3 => "now".to_owned(),
        _ => format!("{append}, {write}"),
    }
}

/// How many calls that change the world a turn has.
fn has_effect(turn: usize) -> bool {
    turn < TURNS && matches!(turn % 4, 0 | 1)
}

/// The model: it looks at the turn alone, so that an attempt is answered on wherever it goes on.
fn script() -> String {
    let turns = (1..TURNS).fold(String::new(), |mut text, turn| {
        writeln!(text, "  - {{calls: [{}], delay: 0.25}}", calls(turn)).unwrap();
        text
    });
    format!("rules:\n- turns:\n{turns}  - {{text: All steps are done., delay: 0.25}}\n")
}

fn capability(name: &str, folder: &Path) -> String {
    format!(
        "name: {name}\ndescription: Does twelve steps.\ninstructions: Do the steps.\nlimits: {{tool_calls: 40}}\n\
         tools:\n- now\n- write_file\n- execute: {{folder: {:?}, require: []}}\n",
        folder.display().to_string()
    )
}

fn task(capability: &str) -> Submission {
    let task = echo("steps", &json!({}));
    fixed(vec![TaskSpec { capability: Capability::new(capability).unwrap(), is_final: true, ..task }])
}

async fn journal(bus: &Bus, run: &RunId, task: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for record in read_topic(bus, bus.lane(run), run, &Topic::Task(id(task), 1)).await.unwrap_or_default() {
        entries.push(bus.open::<Entry>(&record).await.unwrap());
    }
    entries
}

fn steps(entries: &[Entry]) -> Vec<String> {
    let names = entries.iter().filter_map(|entry| match entry {
        Entry::Step { name, .. } => Some(name.clone()),
        Entry::Claimed { .. } | Entry::Note { .. } | Entry::Released { .. } | Entry::Outcome { .. } => None,
    });
    names.collect()
}

fn claims(entries: &[Entry]) -> usize {
    entries.iter().filter(|entry| matches!(entry, Entry::Claimed { .. })).count()
}

/// One attempt whose worker is killed behind one step.
struct Case {
    /// The step behind which the worker is killed, from 1; 0 kills none.
    behind: usize,
    name: String,
    run: RunId,
}

impl Case {
    fn new(behind: usize) -> Self {
        Self { behind, name: format!("steps-{behind}"), run: run(&format!("killed-{behind}")) }
    }

    fn start(&self, cluster: &mut Cluster) {
        let folder = cluster.folder().join(&self.name);
        fs::create_dir_all(folder.join("work")).unwrap();
        fs::write(folder.join("model.yaml"), script()).unwrap();
        let file = folder.join(format!("{}.yaml", self.name));
        fs::write(&file, capability(&self.name, &folder.join("work"))).unwrap();
        let model = format!("script:{}", folder.join("model.yaml").display());
        let (file, record) = (file.display().to_string(), folder.join("record").display().to_string());
        cluster.add(
            Role::Worker,
            &self.name,
            &["--capability", &file, "--model", &model, "--record", &record],
        );
    }

    /// Kills the worker when the step is written, and starts it again.
    async fn kill(&self, cluster: &mut Cluster, bus: &Bus) {
        let reached =
            async || (steps(&journal(bus, &self.run, "steps").await).len() >= self.behind).then_some(());
        eventually(PATIENCE, "a step to kill behind", reached).await;
        cluster.kill(&self.name);
        cluster.restart(&self.name);
    }

    fn effects(&self, cluster: &Cluster) -> BTreeMap<String, usize> {
        let file = cluster.folder().join(&self.name).join("work").join("effects");
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }

    fn replies(&self, cluster: &Cluster) -> usize {
        fs::read_to_string(cluster.folder().join(&self.name).join("record"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// What must hold of the attempt when it has ended.
    async fn check(&self, cluster: &Cluster, bus: &Bus) {
        let history = finished(bus, &self.run, PATIENCE).await;
        history.assert_holds();
        assert_eq!(summary(history.plan()), "All steps are done.", "behind {}", self.behind);
        let entries = journal(bus, &self.run, "steps").await;
        let steps = steps(&entries);
        let once: BTreeSet<&String> = steps.iter().collect();
        assert_eq!(once.len(), steps.len(), "behind {}: a step is there twice: {steps:?}", self.behind);
        let replies = steps.iter().filter(|step| step.starts_with("model.")).count();
        assert_eq!(replies, TURNS, "behind {}", self.behind);
        assert_eq!(self.replies(cluster), TURNS, "behind {}: the model was asked again", self.behind);
        // Behind the last step the outcome is only a moment away: it may be written before the worker is killed.
        let is_last = self.behind == steps.len();
        let claims = claims(&entries);
        assert!(
            claims == if self.behind == 0 { 1 } else { 2 } || (is_last && claims == 1),
            "{claims} claims"
        );
        let effects = self.effects(cluster);
        assert!(effects.values().all(|times| *times == 1), "behind {}: {effects:?}", self.behind);
        let unknown = self.unknown(&entries);
        for turn in (1..TURNS).filter(|turn| has_effect(*turn)) {
            let happened = effects.contains_key(&turn.to_string());
            let is_unknown = unknown.iter().any(|name| name.starts_with(&format!("tool.{}.", turn - 1)));
            assert!(happened || is_unknown, "behind {}: the effect of turn {turn} is lost", self.behind);
        }
        assert!(unknown.len() <= usize::from(self.behind > 0), "behind {}: {unknown:?}", self.behind);
    }

    /// The calls whose outcome the model was told to be unknown.
    fn unknown(&self, entries: &[Entry]) -> Vec<String> {
        let text = |value: &millrace_protocol::wire::Blob| match value {
            millrace_protocol::wire::Blob::Inline(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            millrace_protocol::wire::Blob::Stored(_) => String::new(),
        };
        let named = entries.iter().filter_map(|entry| match entry {
            Entry::Step { name, value, .. } if text(value).contains("It is not known whether") => {
                Some(name.clone())
            }
            Entry::Step { .. }
            | Entry::Claimed { .. }
            | Entry::Note { .. }
            | Entry::Released { .. }
            | Entry::Outcome { .. } => None,
        });
        named.collect()
    }
}

fn summary(plan: &Plan) -> &str {
    let task = plan.tasks().first().unwrap();
    assert_eq!(task.state, TaskState::Completed, "{task:?}");
    match &task.attempts.last().unwrap().end {
        Some(AttemptEnd::Finished { summary, .. }) => summary,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_behind_any_step_asks_the_model_and_the_tools_for_nothing_again() {
    let _alone = alone();
    let setup = Setup { linger: Duration::from_secs(600), ..Setup::default() };
    let mut cluster = Cluster::new(setup);
    cluster.add(Role::Supervisor, "supervisor-1", &[]);
    let bus = cluster.bus().await;

    let whole = Case::new(0);
    whole.start(&mut cluster);
    submit(&bus, &whole.run, &task(&whole.name)).await;
    whole.check(&cluster, &bus).await;
    cluster.kill(&whole.name);
    let all = steps(&journal(&bus, &whole.run, "steps").await).len();
    assert!(all >= 2 * TURNS, "{all} steps");

    let cases: Vec<Case> = (1..=all).map(Case::new).collect();
    for some in cases.chunks(AT_ONCE) {
        for case in some {
            case.start(&mut cluster);
            submit(&bus, &case.run, &task(&case.name)).await;
        }
        let mut left: Vec<&Case> = some.iter().collect();
        while !left.is_empty() {
            for case in std::mem::take(&mut left) {
                let reached = steps(&journal(&bus, &case.run, "steps").await).len() >= case.behind;
                if reached { case.kill(&mut cluster, &bus).await } else { left.push(case) }
            }
        }
        for case in some {
            case.check(&cluster, &bus).await;
            cluster.kill(&case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_must_not_run_twice_dies_with_its_worker_and_is_not_run_again() {
    let _alone = alone();
    let mut cluster = Cluster::new(Setup { linger: Duration::from_secs(600), ..Setup::default() });
    cluster.add(Role::Supervisor, "supervisor-1", &[]);
    let bus = cluster.bus().await;
    let (folder, run) = (cluster.folder().join("once"), run("once"));
    fs::create_dir_all(&folder).unwrap();
    let program = "{kind: command, name: once, description: x, command: [sh, -c, 'echo $$ >> runs; sleep 600; echo done']}";
    let file = folder.join("once.yaml");
    fs::write(&file, program).unwrap();
    cluster.add(Role::Worker, "worker-1", &["--capability", &file.display().to_string()]);
    submit(&bus, &run, &task("once")).await;
    let runs = || fs::read_to_string(folder.join("runs")).ok().filter(|runs| runs.ends_with('\n'));
    let process = eventually(PATIENCE, "the program's beginning", async || runs()).await;
    cluster.kill("worker-1");
    eventually(PATIENCE, "the program's end", async || {
        let state = fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    cluster.restart("worker-1");
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    let task = history.plan().tasks().first().unwrap();
    assert_eq!((task.state, task.attempt), (TaskState::Failed, 1), "{task:?}");
    assert_eq!(runs(), Some(process), "it ran once");
}
