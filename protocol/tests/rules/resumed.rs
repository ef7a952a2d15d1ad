//! A run that came to its end early and is gone on with is the run that was asked for.

use std::time::Duration;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, Control, OnFailedDependency, Overdue, Submission, TaskSpec, TaskState,
};
use millrace_protocol::result::ErrorKind;

use crate::cast;
use crate::oracle;
use crate::scene::Scene;

/// A run of `a`, `b` and `c`, whose final task builds on all three; its time is over after 100 s.
fn scene(policy: OnFailedDependency) -> Scene {
    let budget = Budget { wall_time: Some(Duration::from_secs(100)), ..Budget::default() };
    let last = cast::task("last", &["a", "b", "c"]);
    let last = TaskSpec { is_final: true, on_failed_dependency: policy, ..last };
    let tasks = vec![cast::task("a", &[]), cast::task("b", &[]), cast::task("c", &[]), last];
    Scene::submitted(Submission { budget, ..cast::submission(tasks) })
}

fn winds_down(scene: &mut Scene) {
    scene.now = cast::after(scene.now, 100);
    scene.clock(&Overdue::WallTime).unwrap();
}

fn goes_on(scene: &mut Scene) {
    assert!(scene.plan.is_resumable());
    let budget = Some(Budget { wall_time: Some(Duration::from_secs(1_000)), ..Budget::default() });
    scene.fact(&cast::command("more", Control::Resume { budget })).unwrap();
    oracle::check_decided(&scene.plan);
}

fn fails(scene: &mut Scene, task: &TaskId) {
    let attempt = scene.plan.task(task).unwrap().attempt;
    let broken = cast::error(ErrorKind::InvalidTask, "it can't be done");
    scene.fact(&cast::ended(task, attempt, "w1", Err(broken))).unwrap();
    oracle::check_decided(&scene.plan);
}

fn last(scene: &Scene) -> (TaskState, OnFailedDependency) {
    let last = scene.plan.task(&cast::task_id("last")).unwrap();
    (last.state, last.spec.on_failed_dependency)
}

#[test]
fn what_the_final_task_did_without_at_the_end_it_does_not_do_without_any_more() {
    let [a, b, c] = ["a", "b", "c"].map(cast::task_id);
    for policy in [OnFailedDependency::Cancel, OnFailedDependency::Ask, OnFailedDependency::Skip] {
        let mut scene = scene(policy);
        scene.claim(&a, "w1");
        winds_down(&mut scene);
        scene.fact(&cast::ended(&a, 1, "w1", Ok(cast::finished(9)))).unwrap();
        assert_eq!(
            last(&scene),
            (TaskState::Ready, OnFailedDependency::Skip),
            "it goes on with what is there"
        );
        scene.finish(&cast::task_id("last"), "w1");
        goes_on(&mut scene);
        assert_eq!(last(&scene), (TaskState::Pending, policy), "it builds on all of them again");
        scene.finish(&b, "w1");
        scene.claim(&c, "w1");
        fails(&mut scene, &c);
        let expected = match policy {
            OnFailedDependency::Cancel => TaskState::Cancelled,
            OnFailedDependency::Skip => TaskState::Ready,
            OnFailedDependency::Ask => TaskState::Pending,
        };
        assert_eq!(last(&scene), (expected, policy), "what is lost is lost as its policy says");
    }
}

#[test]
fn what_was_lost_for_good_at_the_end_the_final_task_goes_on_without() {
    let [a, b, c] = ["a", "b", "c"].map(cast::task_id);
    let mut scene = scene(OnFailedDependency::Cancel);
    scene.claim(&a, "w1");
    scene.claim(&b, "w1");
    winds_down(&mut scene);
    fails(&mut scene, &b);
    scene.fact(&cast::ended(&a, 1, "w1", Ok(cast::finished(9)))).unwrap();
    scene.finish(&cast::task_id("last"), "w1");
    goes_on(&mut scene);
    assert_eq!(last(&scene), (TaskState::Pending, OnFailedDependency::Skip), "it would wait for ever else");
    scene.finish(&c, "w1");
    assert_eq!(last(&scene), (TaskState::Ready, OnFailedDependency::Skip));
    scene.finish(&cast::task_id("last"), "w1");
    assert!(scene.plan.end.is_some());
}
