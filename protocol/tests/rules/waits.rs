//! The current wait of a run in its summary.

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{
    CommandAction, Fact, JournalKey, RunCommand, RunWait, RunWaitKind, Submission, TaskSpec, Work,
};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::wait::{ProviderStatus, Wait};

use crate::cast;
use crate::scene::RunScene;

/// A run with these tasks, of which the first ones are claimed.
fn scene_of(tasks: &[&str], claimed: usize) -> RunScene {
    let tasks: Vec<TaskSpec> = tasks.iter().map(|name| cast::echo_task(name, &[])).collect();
    let names: Vec<_> = tasks.iter().take(claimed).map(|task| task.id.clone()).collect();
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    names.iter().for_each(|name| scene.claim_task(name, "w1"));
    scene
}

fn park(scene: &mut RunScene, task: &str, waits: Vec<Wait>) {
    scene.decide_fact(&cast::parked_fact(&cast::task_id(task), 1, "w1", waits)).unwrap();
}

fn delegate(scene: &mut RunScene, child: &str) {
    let children = vec![cast::echo_task(child, &[])];
    scene.decide_fact(&cast::delegated_fact(&cast::task_id("a"), 1, "w1", children)).unwrap();
}

fn command(scene: &mut RunScene, control: CommandAction) {
    scene.decide_fact(&Fact::Control(RunCommand { id: "c1".into(), by: "bob".into(), control })).unwrap();
}

fn wait_of(scene: &RunScene) -> (Option<RunWait>, Option<String>) {
    let run = RunId::new("r1").unwrap();
    let summary = RunSummary::from_plan(&run, Lane(0), &scene.plan, scene.now).unwrap();
    (summary.wait, summary.waiting_for)
}

fn kind_of(scene: &RunScene) -> Option<&'static str> {
    wait_of(scene).0.map(|wait| wait.kind.name())
}

#[test]
fn run_waits_while_nothing_is_in_progress() {
    let mut scene = scene_of(&["a", "b"], 1);
    assert_eq!(wait_of(&scene), (None, None), "a worker has one of the tasks");
    park(&mut scene, "a", vec![cast::time_wait("s", 90_000)]);
    let (wait, text) = wait_of(&scene);
    let work = Work::Task { task: cast::task_id("b"), attempt: 1 };
    let order = Some((cast::capability_name("echo"), work));
    assert_eq!(wait, Some(RunWait { kind: RunWaitKind::Worker, order }));
    assert_eq!(text.as_deref(), Some("b waits for a worker that provides echo"));
    scene.claim_task(&cast::task_id("b"), "w1");
    assert_eq!(wait_of(&scene), (None, None));
    park(&mut scene, "b", vec![cast::approval_wait("q", None)]);
    let (wait, text) = wait_of(&scene);
    assert_eq!(wait, Some(RunWait { kind: RunWaitKind::Question, order: None }));
    assert!(text.is_some_and(|text| text.starts_with("b waits for ")), "a person can answer");
}

#[test]
fn every_condition_is_a_wait_of_its_kind() {
    let kind = |waits: Vec<Wait>| {
        let mut scene = scene_of(&["a"], 1);
        park(&mut scene, "a", waits);
        kind_of(&scene)
    };
    assert_eq!(kind(vec![cast::time_wait("s", 90_000)]), Some("time"));
    assert_eq!(kind(vec![cast::event_wait("e", "go", None)]), Some("event"));
    assert_eq!(kind(vec![cast::input_wait("q", None)]), Some("question"));
    assert_eq!(kind(vec![cast::time_wait("s", 90_000), cast::input_wait("q", None)]), Some("question"));
}

#[test]
fn run_with_delegated_work_in_progress_waits_for_a_sub_agent() {
    let mut scene = scene_of(&["a", "b"], 2);
    delegate(&mut scene, "child");
    assert_eq!(kind_of(&scene), None, "another task of the plan is in progress");
    park(&mut scene, "b", vec![cast::time_wait("s", 90_000)]);
    let text = wait_of(&scene).1;
    assert_eq!(
        (kind_of(&scene), text.as_deref()),
        (Some("worker"), Some("child waits for a worker that provides echo"))
    );
    scene.claim_task(&cast::task_id("child"), "w2");
    let text = wait_of(&scene).1;
    assert_eq!((kind_of(&scene), text.as_deref()), (Some("sub_agent"), Some("a waits for the task child")));
    let waits = vec![cast::input_wait("q", None)];
    scene.decide_fact(&cast::parked_fact(&cast::task_id("child"), 1, "w2", waits)).unwrap();
    assert_eq!(kind_of(&scene), Some("question"), "the question of a sub-agent is a question of the run");
}

#[test]
fn provider_that_is_away_is_a_wait_only_without_other_work() {
    let mut scene = scene_of(&["a", "b"], 2);
    let report = |scene: &mut RunScene, task: &str| {
        let status = ProviderStatus::Waiting(cast::provider_wait("away"));
        scene.decide_fact(&Fact::Provider(JournalKey::Task(cast::task_id(task), 1), status)).unwrap();
    };
    report(&mut scene, "a");
    assert_eq!(kind_of(&scene), None, "b is in progress");
    report(&mut scene, "b");
    let text = wait_of(&scene).1;
    assert_eq!(
        (kind_of(&scene), text.as_deref()),
        (Some("provider"), Some("a waits for the provider of openai:m"))
    );
}

#[test]
fn paused_held_and_ended_runs_have_states_instead() {
    let mut scene = scene_of(&["a"], 0);
    assert_eq!(kind_of(&scene), Some("worker"));
    command(&mut scene, CommandAction::Pause);
    assert_eq!(wait_of(&scene), (None, None));
    let submission = cast::fixed_plan_submission(vec![cast::echo_task("a", &[])]);
    let scene = RunScene::from_submission(Submission { approve_plan: true, ..submission });
    assert_eq!(kind_of(&scene), Some("question"), "a person must approve the plan");
}
