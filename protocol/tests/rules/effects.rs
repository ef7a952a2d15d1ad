//! Pending effects of a plan, in cases that a single run does not cover. `world` checks at every step that the effects of
//! touched tasks add up to all effects.

use std::collections::BTreeSet;

use millrace_protocol::plan::{
    Effect, EffectScope, Event, Fact, Plan, TaskEvent, Work, is_order_pending, pending_effects,
    work_in_flight,
};
use millrace_protocol::result::{ErrorKind, MAX_MESSAGE, TaskError};

use crate::cast;
use crate::scene::RunScene;

#[test]
fn plan_without_a_start_has_no_effects() {
    assert_eq!(pending_effects(&Plan::default(), EffectScope::All), []);
}

#[test]
fn planning_turn_is_pending_in_every_scope() {
    let scene = RunScene::from_submission(cast::planner_submission());
    let offer = Effect::Offer(Work::Planning { turn: 1, attempt: 1 });
    assert_eq!(pending_effects(&scene.plan, EffectScope::All), std::slice::from_ref(&offer));
    assert_eq!(pending_effects(&scene.plan, EffectScope::Tasks(&BTreeSet::new())), [offer]);
}

#[test]
fn ended_run_has_the_close_effect_only() {
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![cast::echo_task("a", &[])]));
    scene.claim_and_finish_task(&cast::task_id("a"), "w1");
    assert_eq!(pending_effects(&scene.plan, EffectScope::All), [Effect::Close]);
    assert_eq!(
        pending_effects(&scene.plan, EffectScope::Tasks(&BTreeSet::from([cast::task_id("a")]))),
        [Effect::Close]
    );
}

#[test]
fn scope_limits_effects_to_known_tasks() {
    let scene = RunScene::from_submission(cast::fixed_plan_submission(vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &[]),
    ]));
    let named = BTreeSet::from([cast::task_id("b"), cast::task_id("nobody")]);
    let offer = |id: &str| Effect::Offer(cast::attempt_work(&cast::task_id(id), 1));
    assert_eq!(pending_effects(&scene.plan, EffectScope::Tasks(&named)), [offer("b")]);
    assert_eq!(pending_effects(&scene.plan, EffectScope::All), [offer("a"), offer("b")]);
}

#[test]
fn work_that_was_never_offered_is_never_withdrawn() {
    let tasks = vec![cast::echo_task("a", &[]), cast::echo_task("b", &["a"]), cast::echo_task("c", &[])];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    scene.decide_registry_change(&cast::registry_of_capabilities(&[])).unwrap();
    // The clock of `b`, which has no attempt yet, runs out at the same time as that of `a`.
    scene.now = cast::time_after(scene.now, 3600);
    let late = scene.overdue_inputs_now();
    assert_eq!(late.len(), 3);
    scene.decide_overdue_input(&late[1]).unwrap();
    scene.decide_overdue_input(&late[0]).unwrap();
    let withdrawn: Vec<_> = pending_effects(&scene.plan, EffectScope::All);
    assert_eq!(
        withdrawn,
        [Effect::Withdraw(cast::attempt_work(&cast::task_id("a"), 1), cast::capability_name("echo"))]
    );
}

#[test]
fn attempt_is_pending_until_it_is_claimed() {
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &["a"]),
    ]));
    let (a, b) = (cast::task_id("a"), cast::task_id("b"));
    let owed = |scene: &RunScene, work: &Work| is_order_pending(&scene.plan, work);
    assert!(owed(&scene, &cast::attempt_work(&a, 1)));
    let others = [
        cast::attempt_work(&a, 2),
        cast::attempt_work(&b, 1),
        cast::attempt_work(&cast::task_id("nobody"), 1),
        Work::Review { task: a.clone(), attempt: 1, review: 1 },
        Work::Planning { turn: 1, attempt: 1 },
    ];
    for other in &others {
        assert!(!owed(&scene, other), "{other:?}");
    }
    scene.claim_and_finish_task(&a, "w1");
    assert!(!owed(&scene, &cast::attempt_work(&a, 1)));
    assert!(owed(&scene, &cast::attempt_work(&b, 1)));
    scene.claim_and_finish_task(&b, "w1");
    assert!(!owed(&scene, &cast::attempt_work(&b, 1)), "the run has ended");
}

#[test]
fn claimed_work_is_in_flight() {
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &[]),
    ]));
    assert_eq!(work_in_flight(&scene.plan), []);
    scene.claim_task(&cast::task_id("a"), "w1");
    assert_eq!(work_in_flight(&scene.plan), [cast::attempt_work(&cast::task_id("a"), 1)]);
    scene.claim_and_finish_task(&cast::task_id("a"), "w1");
    assert_eq!(work_in_flight(&scene.plan), []);
    let mut planned = RunScene::from_submission(cast::planner_submission());
    assert_eq!(work_in_flight(&planned.plan), []);
    let turn = Work::Planning { turn: 1, attempt: 1 };
    planned.decide_fact(&Fact::Claimed(turn.clone(), cast::worker_id("w1"), None)).unwrap();
    assert_eq!(work_in_flight(&planned.plan), [turn]);
}

#[test]
fn work_is_in_flight_from_its_claim_to_its_end() {
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &["a"]),
    ]));
    let a = cast::task_id("a");
    assert_eq!(work_in_flight(&scene.plan), []);
    scene.claim_task(&a, "w1");
    assert_eq!(work_in_flight(&scene.plan), [cast::attempt_work(&a, 1)]);
    scene.claim_and_finish_task(&a, "w1");
    assert_eq!(work_in_flight(&scene.plan), []);
    scene.claim_task(&cast::task_id("b"), "w1");
    scene.claim_and_finish_task(&cast::task_id("b"), "w1");
    assert_eq!(work_in_flight(&scene.plan), [], "the run has ended");
}

#[test]
fn planning_turn_is_in_flight_until_it_has_ended() {
    let mut scene = RunScene::from_submission(cast::planner_submission());
    let work = Work::Planning { turn: 1, attempt: 1 };
    scene.decide_fact(&Fact::Claimed(work.clone(), cast::worker_id("p1"), None)).unwrap();
    assert_eq!(work_in_flight(&scene.plan), [work]);
    let outcome = Err(cast::task_error(millrace_protocol::result::ErrorKind::Model, "overloaded"));
    scene.decide_fact(&Fact::Planned { turn: 1, attempt: 1, outcome }).unwrap();
    assert_eq!(work_in_flight(&scene.plan), []);
}

#[test]
fn plan_keeps_a_truncated_error_message() {
    let error =
        |kind| Err(TaskError { produced: Some("x".into()), ..cast::task_error(kind, &"ä".repeat(100_000)) });
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &[]),
    ]));
    for (task, kind) in [("a", ErrorKind::Tool), ("b", ErrorKind::Unclear)] {
        scene.claim_task(&cast::task_id(task), "w1");
        let events =
            scene.decide_fact(&cast::attempt_ended_fact(&cast::task_id(task), 1, "w1", error(kind))).unwrap();
        let written = serde_json::to_string(&events).unwrap();
        assert!(written.chars().count() < 3 * MAX_MESSAGE && !written.contains("produced"), "{kind:?}");
        let ends = events.iter().any(|event| matches!(event, Event::Task(TaskEvent::Failed { .. })));
        assert_eq!(ends, kind == ErrorKind::Unclear, "an attempt that may have had an effect is not retried");
    }
}
