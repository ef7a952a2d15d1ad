//! A run that was wound down and then resumed has its original plan again.

use std::time::Duration;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, CommandAction, OnFailedDependency, OverdueInput, Submission, TaskSpec, TaskState,
};
use millrace_protocol::result::ErrorKind;

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
