//! A run that was wound down and then resumed has its original plan again.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, CapabilityRegistry, CommandAction, Edit, EndReason, OnFailedDependency, OverdueInput, Refusal,
    ResourceAmounts, Submission, TaskPatch, TaskSpec, TaskState, suggest_larger_limits, tasks_without_budget,
};
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, Usage};

use crate::cast;
use crate::oracle;
use crate::scene::RunScene;

/// A run with the tasks `a`, `b` and `c` and a final task that depends on all three. The time limit is 100 s.
fn scene_with_final_task(policy: OnFailedDependency) -> RunScene {
    let budget = Budget { wall_time: Some(Duration::from_secs(100)), ..Budget::default() };
    let last = cast::echo_task("last", &["a", "b", "c"]);
    let last = TaskSpec { is_final: true, on_failed_dependency: policy, ..last };
    let tasks = vec![cast::echo_task("a", &[]), cast::echo_task("b", &[]), cast::echo_task("c", &[]), last];
    RunScene::from_submission(Submission { budget, ..cast::fixed_plan_submission(tasks) })
}

fn pass_time_limit(scene: &mut RunScene) {
    scene.now = cast::time_after(scene.now, 100);
    scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
}

fn resume_run_with_more_time(scene: &mut RunScene) {
    assert!(scene.plan.is_resumable());
    let budget = Some(Budget { wall_time: Some(Duration::from_secs(1_000)), ..Budget::default() });
    scene.decide_fact(&cast::command_fact("more", CommandAction::Resume { budget })).unwrap();
    oracle::check_invariants_after_decision(&scene.plan);
}

fn fail_task(scene: &mut RunScene, task: &TaskId) {
    let attempt = scene.plan.task(task).unwrap().attempt;
    let broken = cast::task_error(ErrorKind::InvalidTask, "it can't be done");
    scene.decide_fact(&cast::attempt_ended_fact(task, attempt, "w1", Err(broken))).unwrap();
    oracle::check_invariants_after_decision(&scene.plan);
}

fn state_and_policy_of_final_task(scene: &RunScene) -> (TaskState, OnFailedDependency) {
    let last = scene.plan.task(&cast::task_id("last")).unwrap();
    (last.state(), last.spec.on_failed_dependency)
}

#[test]
fn final_task_waits_for_all_its_dependencies_again_after_resume() {
    let [a, b, c] = ["a", "b", "c"].map(cast::task_id);
    for policy in [OnFailedDependency::Cancel, OnFailedDependency::Ask, OnFailedDependency::Skip] {
        let mut scene = scene_with_final_task(policy);
        scene.claim_task(&a, "w1");
        pass_time_limit(&mut scene);
        scene.decide_fact(&cast::attempt_ended_fact(&a, 1, "w1", Ok(cast::finished_result(9)))).unwrap();
        assert_eq!(
            state_and_policy_of_final_task(&scene),
            (TaskState::Ready, OnFailedDependency::Skip),
            "it runs with the results that exist"
        );
        scene.claim_and_finish_task(&cast::task_id("last"), "w1");
        resume_run_with_more_time(&mut scene);
        assert_eq!(
            state_and_policy_of_final_task(&scene),
            (TaskState::Pending, policy),
            "it depends on all of them again"
        );
        scene.claim_and_finish_task(&b, "w1");
        scene.claim_task(&c, "w1");
        fail_task(&mut scene, &c);
        let expected = match policy {
            OnFailedDependency::Cancel => TaskState::Cancelled,
            OnFailedDependency::Skip => TaskState::Ready,
            OnFailedDependency::Ask => TaskState::Pending,
        };
        assert_eq!(
            state_and_policy_of_final_task(&scene),
            (expected, policy),
            "its own policy applies to lost dependencies"
        );
    }
}

#[test]
fn resumed_final_task_skips_dependencies_that_are_lost_for_good() {
    let [a, b, c] = ["a", "b", "c"].map(cast::task_id);
    let mut scene = scene_with_final_task(OnFailedDependency::Cancel);
    scene.claim_task(&a, "w1");
    scene.claim_task(&b, "w1");
    pass_time_limit(&mut scene);
    fail_task(&mut scene, &b);
    scene.decide_fact(&cast::attempt_ended_fact(&a, 1, "w1", Ok(cast::finished_result(9)))).unwrap();
    scene.claim_and_finish_task(&cast::task_id("last"), "w1");
    resume_run_with_more_time(&mut scene);
    assert_eq!(
        state_and_policy_of_final_task(&scene),
        (TaskState::Pending, OnFailedDependency::Skip),
        "otherwise it would wait forever"
    );
    scene.claim_and_finish_task(&c, "w1");
    assert_eq!(state_and_policy_of_final_task(&scene), (TaskState::Ready, OnFailedDependency::Skip));
    scene.claim_and_finish_task(&cast::task_id("last"), "w1");
    assert!(scene.plan.run.end.is_some());
}

#[test]
fn partial_run_continues_with_a_larger_budget_of_the_capability_that_stopped_a_task() {
    let limit = |tokens| ResourceAmounts { tokens: Some(tokens), ..ResourceAmounts::default() };
    let search = cast::capability_name("search");
    let stopped = |pool: &str| {
        let mut budget = Budget::default();
        if pool == "capability" {
            budget.capabilities.insert(search.clone(), limit(1_000));
        }
        let found = TaskSpec { capability: search.clone(), ..cast::echo_task("found", &[]) };
        let found = TaskSpec { budget: if pool == "task" { limit(1_000) } else { found.budget }, ..found };
        let last = cast::echo_task("last", &["found"]);
        let last = TaskSpec { is_final: true, on_failed_dependency: OnFailedDependency::Skip, ..last };
        let mut scene = RunScene::from_submission(Submission {
            budget,
            ..cast::fixed_plan_submission(vec![found, last])
        });
        let (found, last) = (cast::task_id("found"), cast::task_id("last"));
        scene.claim_task(&found, "w1");
        let usage = Usage { model_calls: 1, input_tokens: 990, ..Usage::default() };
        let error = TaskError { usage, ..TaskError::new(ErrorKind::Model, "no reply") };
        scene.decide_fact(&cast::attempt_ended_fact(&found, 1, "w1", Err(error))).unwrap();
        if scene.plan.task(&found).unwrap().state() != TaskState::Failed {
            scene.now = cast::time_after(scene.now, 3_600);
            for overdue in scene.overdue_inputs_now() {
                scene.decide_overdue_input(&overdue).unwrap();
            }
        }
        if scene.plan.task(&found).unwrap().state() == TaskState::Ready {
            scene.claim_task(&found, "w1");
            fail_task(&mut scene, &found);
        }
        scene.claim_and_finish_task(&last, "w1");
        assert_eq!(scene.plan.run.end.as_ref().unwrap().reason, EndReason::CompletedPartial);
        scene
    };
    let mut scene = stopped("capability");
    let larger = suggest_larger_limits(&scene.plan).unwrap();
    assert_eq!(larger.capabilities[&search], limit(2_000));
    assert!(scene.plan.is_resumable());
    let as_it_is = cast::command_fact("same", CommandAction::Resume { budget: None });
    assert!(scene.decide_fact(&as_it_is).is_err(), "the task would fail again");
    let more = cast::command_fact("more", CommandAction::Resume { budget: Some(larger) });
    scene.decide_fact(&more).unwrap();
    oracle::check_invariants_after_decision(&scene.plan);
    let states = ["found", "last"].map(|id| scene.plan.task(&cast::task_id(id)).unwrap().state());
    assert_eq!(states, [TaskState::Ready, TaskState::Pending]);
    for id in ["found", "last"] {
        scene.claim_and_finish_task(&cast::task_id(id), "w1");
    }
    assert_eq!(scene.plan.run.end.as_ref().unwrap().reason, EndReason::Completed);
    // No budget of a run helps a task that failed for another reason, or used up its own budget.
    for pool in ["none", "task"] {
        let scene = stopped(pool);
        assert!(!scene.plan.is_resumable(), "{pool}");
        let spent = if pool == "task" { vec![cast::task_id("found")] } else { Vec::new() };
        assert_eq!(tasks_without_budget(&scene.plan), spent.iter().collect::<Vec<_>>());
    }
}

/// The states of the tasks `a`, `b`, `c` and `d` of a chain.
fn states_of_chain(scene: &RunScene) -> [TaskState; 4] {
    ["a", "b", "c", "d"].map(|id| scene.plan.task(&cast::task_id(id)).unwrap().state())
}

fn chain_scene(submission: impl FnOnce(Submission) -> Submission) -> RunScene {
    let last = TaskSpec { is_final: true, ..cast::echo_task("d", &["c"]) };
    let tasks =
        vec![cast::echo_task("a", &[]), cast::echo_task("b", &["a"]), cast::echo_task("c", &["b"]), last];
    RunScene::from_submission(submission(cast::fixed_plan_submission(tasks)))
}

fn retry_task(scene: &mut RunScene, id: &str) {
    let retry = Edit::Retry { task: cast::task_id(id), feedback: None, changes: None };
    let name = format!("retry-{id}-{}", scene.log.len());
    scene.decide_fact(&cast::command_fact(&name, CommandAction::Edit(retry))).unwrap();
    oracle::check_invariants_after_decision(&scene.plan);
}

#[test]
fn retry_brings_back_dependents_that_have_failed_or_were_cancelled() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(cast::task_id);
    // Another task keeps the run open.
    let mut scene = chain_scene(|mut submission| {
        submission.tasks.push(Arc::new(cast::echo_task("other", &[])));
        submission
    });
    scene.claim_and_finish_task(&a, "w1");
    scene.claim_task(&b, "w1");
    fail_task(&mut scene, &b);
    use TaskState::{Cancelled, Completed, Failed, Pending, Ready};
    assert_eq!(states_of_chain(&scene), [Completed, Failed, Cancelled, Cancelled]);
    // A retry of `a` reopens the failed task `b`, and the tasks that were cancelled with `b`.
    retry_task(&mut scene, "a");
    assert_eq!(states_of_chain(&scene), [Ready, Pending, Pending, Pending]);
    for task in [&a, &b, &c, &d, &cast::task_id("other")] {
        scene.claim_and_finish_task(task, "w1");
    }
    assert_eq!(scene.plan.run.end.as_ref().unwrap().reason, EndReason::Completed);
}

#[test]
fn retry_leaves_dependents_that_miss_another_dependency_or_were_cancelled_by_a_user() {
    let tasks = vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &[]),
        cast::echo_task("c", &["a", "b"]),
        cast::echo_task("d", &["a"]),
    ];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    let cancel = CommandAction::CancelTask { task: cast::task_id("d"), reason: "not needed".into() };
    scene.decide_fact(&cast::command_fact("cancel", cancel)).unwrap();
    scene.now = cast::time_after(scene.now, 10);
    for id in ["a", "b"].map(cast::task_id) {
        scene.claim_task(&id, "w1");
        fail_task(&mut scene, &id);
    }
    use TaskState::{Cancelled, Failed, Pending, Ready};
    scene.now = cast::time_after(scene.now, 10);
    retry_task(&mut scene, "a");
    assert_eq!(states_of_chain(&scene), [Ready, Failed, Cancelled, Cancelled]);
    retry_task(&mut scene, "b");
    assert_eq!(states_of_chain(&scene), [Ready, Ready, Pending, Cancelled]);
}

#[test]
fn retry_brings_back_dependents_that_were_cancelled_with_the_end_of_the_run() {
    let mut scene = chain_scene(|submission| Submission { fail_fast: true, ..submission });
    let a = cast::task_id("a");
    scene.claim_task(&a, "w1");
    fail_task(&mut scene, &a);
    assert!(scene.plan.run.end.is_some());
    scene.now = cast::time_after(scene.now, 10);
    retry_task(&mut scene, "a");
    use TaskState::{Pending, Ready};
    assert_eq!(states_of_chain(&scene), [Ready, Pending, Pending, Pending]);
}

#[test]
fn failed_run_continues_with_the_tasks_that_a_user_adds() {
    let mut scene = chain_scene(|submission| submission);
    let a = cast::task_id("a");
    scene.claim_task(&a, "w1");
    fail_task(&mut scene, &a);
    assert_eq!(scene.plan.run.end.as_ref().unwrap().reason, EndReason::Failed);
    let more = vec![cast::echo_task("e", &[])];
    scene.decide_fact(&cast::command_fact("more", CommandAction::Edit(Edit::Add(more)))).unwrap();
    oracle::check_invariants_after_decision(&scene.plan);
    let state = |scene: &RunScene, id: &str| scene.plan.task(&cast::task_id(id)).unwrap().state();
    assert!(scene.plan.run.end.is_none());
    assert_eq!((state(&scene, "a"), state(&scene, "e")), (TaskState::Failed, TaskState::Ready));
    scene.claim_and_finish_task(&cast::task_id("e"), "w1");
    let end = scene.plan.run.end.as_ref().unwrap();
    assert_eq!(end.deliverable.as_ref().map(|(task, _)| task.as_str()), Some("e"), "{end:?}");

    let unknown = vec![cast::echo_task("f", &["missing"])];
    let mut failed = chain_scene(|submission| submission);
    failed.claim_task(&a, "w1");
    fail_task(&mut failed, &a);
    failed.decide_fact(&cast::command_fact("bad", CommandAction::Edit(Edit::Add(unknown)))).unwrap_err();
    assert!(failed.plan.run.end.is_some(), "a refused command reopens nothing");
}

/// Retries the task `b` with changes.
fn retry_with_changes(scene: &mut RunScene, changes: TaskPatch) -> Result<(), Refusal> {
    let retry = Edit::Retry {
        task: cast::task_id("b"),
        feedback: Some("again".into()),
        changes: Some(Box::new(changes)),
    };
    let name = format!("retry-with-{}", scene.log.len());
    let decided = scene.decide_fact(&cast::command_fact(&name, CommandAction::Edit(retry)));
    oracle::check_invariants_after_decision(&scene.plan);
    decided.map(drop)
}

#[test]
fn retry_takes_the_changes_of_a_live_plan_in_a_live_and_in_an_ended_run() {
    for is_ended in [false, true] {
        let mut scene = chain_scene(|mut submission| {
            if !is_ended {
                submission.tasks.push(Arc::new(cast::echo_task("other", &[])));
            }
            submission
        });
        let [a, b] = ["a", "b"].map(cast::task_id);
        scene.claim_and_finish_task(&a, "w1");
        scene.claim_task(&b, "w1");
        fail_task(&mut scene, &b);
        assert_eq!(scene.plan.run.end.is_some(), is_ended);
        let none = || TaskPatch::without_changes(b.clone());
        let before = scene.plan.clone();
        // A refused change leaves everything as it was.
        let cycle = TaskPatch { depends_on: Some(vec![cast::task_id("d")]), ..none() };
        let other = TaskPatch { objective: Some("else".into()), ..TaskPatch::without_changes(a.clone()) };
        for wrong in [cycle, other] {
            retry_with_changes(&mut scene, wrong).unwrap_err();
            assert_eq!(scene.plan.tasks(), before.tasks());
        }
        let parameters = [("url".to_owned(), serde_json::json!("https://example.org"))];
        let changed = TaskPatch {
            parameters: parameters.into_iter().collect(),
            objective: Some("Read it again.".into()),
            depends_on: Some(Vec::new()),
            ..none()
        };
        retry_with_changes(&mut scene, changed).unwrap();
        let task = scene.plan.task(&b).unwrap();
        assert_eq!(task.spec.parameters["url"], "https://example.org");
        assert_eq!((task.spec.objective.as_str(), task.spec.depends_on.len()), ("Read it again.", 0));
        assert_eq!((task.state(), task.attempt), (TaskState::Ready, 2));
        assert!(scene.plan.run.end.is_none());
        for id in ["b", "c", "d"] {
            scene.claim_and_finish_task(&cast::task_id(id), "w1");
        }
    }
}

/// A run whose task `b` has failed, and which has ended.
fn scene_with_failed_task() -> RunScene {
    let mut scene = chain_scene(|submission| submission);
    scene.claim_and_finish_task(&cast::task_id("a"), "w1");
    scene.claim_task(&cast::task_id("b"), "w1");
    fail_task(&mut scene, &cast::task_id("b"));
    scene
}

#[test]
fn retry_whose_changes_are_made_already_is_a_retry() {
    let b = cast::task_id("b");
    let none = || TaskPatch::without_changes(b.clone());
    let objective = scene_with_failed_task().plan.task(&b).unwrap().spec.objective.clone();
    for changes in [none(), TaskPatch { objective: Some(objective), ..none() }] {
        let mut scene = scene_with_failed_task();
        retry_with_changes(&mut scene, changes).unwrap();
        let task = scene.plan.task(&b).unwrap();
        assert_eq!((task.state(), task.attempt), (TaskState::Ready, 2));
    }
}

/// A retry with parameters that the capability refuses is mended by another retry.
#[test]
fn retry_mends_a_task_whose_parameters_were_refused() {
    let b = cast::task_id("b");
    let mut scene = scene_with_failed_task();
    let with_depth = |depth: serde_json::Value| TaskPatch {
        parameters: std::iter::once(("depth".to_owned(), depth)).collect(),
        ..TaskPatch::without_changes(b.clone())
    };
    let schema = serde_json::json!({"properties": {"depth": {"type": "integer"}}});
    let echo = CapabilityDescription {
        parameters: Some(schema),
        ..CapabilityDescription::new(cast::capability_name("echo"), "Repeats its task.")
    };
    let registry = CapabilityRegistry::from_descriptions(&[echo]);
    retry_with_changes(&mut scene, with_depth("deep".into())).unwrap();
    scene.decide_registry_change(&registry).unwrap();
    assert_eq!(scene.plan.task(&b).unwrap().state(), TaskState::Errored);
    let objective = TaskPatch { objective: Some("else".into()), ..TaskPatch::without_changes(b.clone()) };
    retry_with_changes(&mut scene, objective).unwrap_err();
    retry_with_changes(&mut scene, with_depth(7.into())).unwrap();
    assert_eq!(scene.decide_registry_change(&registry).unwrap(), Vec::new());
    let task = scene.plan.task(&b).unwrap();
    assert_eq!((task.state(), &task.spec.parameters["depth"]), (TaskState::Ready, &serde_json::json!(7)));
    for id in ["b", "c", "d"] {
        scene.claim_and_finish_task(&cast::task_id(id), "w1");
    }
    assert!(scene.plan.run.end.is_some());
}
