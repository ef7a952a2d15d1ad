//! What the world owes a plan, in the cases that a run alone does not show. That the effects of touched tasks add up
//! to all effects is checked at every step of `world`.

use std::collections::BTreeSet;

use millrace_protocol::plan::{Effect, Event, Fact, Plan, Scope, Work, due, in_hand, is_owed};
use millrace_protocol::result::{ErrorKind, MAX_MESSAGE, TaskError};

use crate::cast;
use crate::scene::Scene;

#[test]
fn a_plan_that_has_not_begun_is_owed_nothing() {
    assert_eq!(due(&Plan::default(), Scope::All), []);
}

#[test]
fn a_planners_turn_is_owed_whatever_is_asked_about() {
    let scene = Scene::submitted(cast::unplanned());
    let offer = Effect::Offer(Work::Planning { turn: 1, attempt: 1 });
    assert_eq!(due(&scene.plan, Scope::All), std::slice::from_ref(&offer));
    assert_eq!(due(&scene.plan, Scope::Tasks(&BTreeSet::new())), [offer]);
}

#[test]
fn a_run_that_has_ended_is_owed_its_close_and_nothing_else() {
    let mut scene = Scene::submitted(cast::submission(vec![cast::task("a", &[])]));
    scene.finish(&cast::task_id("a"), "w1");
    assert_eq!(due(&scene.plan, Scope::All), [Effect::Close]);
    assert_eq!(due(&scene.plan, Scope::Tasks(&BTreeSet::from([cast::task_id("a")]))), [Effect::Close]);
}

#[test]
fn only_the_named_tasks_are_looked_at_and_unknown_names_are_passed_over() {
    let scene = Scene::submitted(cast::submission(vec![cast::task("a", &[]), cast::task("b", &[])]));
    let named = BTreeSet::from([cast::task_id("b"), cast::task_id("nobody")]);
    let offer = |id: &str| Effect::Offer(cast::attempt(&cast::task_id(id), 1));
    assert_eq!(due(&scene.plan, Scope::Tasks(&named)), [offer("b")]);
    assert_eq!(due(&scene.plan, Scope::All), [offer("a"), offer("b")]);
}

#[test]
fn work_that_was_never_offered_is_never_withdrawn() {
    let tasks = vec![cast::task("a", &[]), cast::task("b", &["a"]), cast::task("c", &[])];
    let mut scene = Scene::submitted(cast::submission(tasks));
    scene.cluster(&cast::cluster(&[])).unwrap();
    // The clock of `b`, which has no attempt yet, runs out like that of `a`.
    scene.now = cast::after(scene.now, 3600);
    let late = scene.overdue();
    assert_eq!(late.len(), 3);
    scene.clock(&late[1]).unwrap();
    scene.clock(&late[0]).unwrap();
    let withdrawn: Vec<_> = due(&scene.plan, Scope::All);
    assert_eq!(
        withdrawn,
        [Effect::Withdraw(cast::attempt(&cast::task_id("a"), 1), cast::capability("echo"))]
    );
}

#[test]
fn work_is_owed_until_it_is_claimed_and_no_other_attempt_at_it_is() {
    let mut scene = Scene::submitted(cast::submission(vec![cast::task("a", &[]), cast::task("b", &["a"])]));
    let (a, b) = (cast::task_id("a"), cast::task_id("b"));
    let owed = |scene: &Scene, work: &Work| is_owed(&scene.plan, work);
    assert!(owed(&scene, &cast::attempt(&a, 1)));
    let others = [
        cast::attempt(&a, 2),
        cast::attempt(&b, 1),
        cast::attempt(&cast::task_id("nobody"), 1),
        Work::Review { task: a.clone(), attempt: 1, review: 1 },
        Work::Planning { turn: 1, attempt: 1 },
    ];
    for other in &others {
        assert!(!owed(&scene, other), "{other:?}");
    }
    scene.finish(&a, "w1");
    assert!(!owed(&scene, &cast::attempt(&a, 1)));
    assert!(owed(&scene, &cast::attempt(&b, 1)));
    scene.finish(&b, "w1");
    assert!(!owed(&scene, &cast::attempt(&b, 1)), "the run is over");
}

#[test]
fn work_is_in_hand_from_its_claim_to_its_end() {
    let mut scene = Scene::submitted(cast::submission(vec![cast::task("a", &[]), cast::task("b", &[])]));
    assert_eq!(in_hand(&scene.plan), []);
    scene.claim(&cast::task_id("a"), "w1");
    assert_eq!(in_hand(&scene.plan), [cast::attempt(&cast::task_id("a"), 1)]);
    scene.finish(&cast::task_id("a"), "w1");
    assert_eq!(in_hand(&scene.plan), []);
    let mut planned = Scene::submitted(cast::unplanned());
    assert_eq!(in_hand(&planned.plan), []);
    let turn = Work::Planning { turn: 1, attempt: 1 };
    planned.fact(&Fact::Claimed(turn.clone(), cast::worker("w1"))).unwrap();
    assert_eq!(in_hand(&planned.plan), [turn]);
}

#[test]
fn what_is_in_hand_is_claimed_and_not_ended() {
    let mut scene = Scene::submitted(cast::submission(vec![cast::task("a", &[]), cast::task("b", &["a"])]));
    let a = cast::task_id("a");
    assert_eq!(in_hand(&scene.plan), []);
    scene.claim(&a, "w1");
    assert_eq!(in_hand(&scene.plan), [cast::attempt(&a, 1)]);
    scene.finish(&a, "w1");
    assert_eq!(in_hand(&scene.plan), []);
    scene.claim(&cast::task_id("b"), "w1");
    scene.finish(&cast::task_id("b"), "w1");
    assert_eq!(in_hand(&scene.plan), [], "the run is over");
}

#[test]
fn a_planners_turn_is_in_hand_until_it_has_ended() {
    let mut scene = Scene::submitted(cast::unplanned());
    let work = Work::Planning { turn: 1, attempt: 1 };
    scene.fact(&Fact::Claimed(work.clone(), cast::worker("p1"))).unwrap();
    assert_eq!(in_hand(&scene.plan), [work]);
    let outcome = Err(cast::error(millrace_protocol::result::ErrorKind::Model, "overloaded"));
    scene.fact(&Fact::Planned { turn: 1, attempt: 1, outcome }).unwrap();
    assert_eq!(in_hand(&scene.plan), []);
}

#[test]
fn of_a_long_error_the_plan_keeps_what_a_person_reads() {
    let error =
        |kind| Err(TaskError { produced: Some("x".into()), ..cast::error(kind, &"ä".repeat(100_000)) });
    let mut scene = Scene::submitted(cast::submission(vec![cast::task("a", &[]), cast::task("b", &[])]));
    for (task, kind) in [("a", ErrorKind::Tool), ("b", ErrorKind::Unclear)] {
        scene.claim(&cast::task_id(task), "w1");
        let events = scene.fact(&cast::ended(&cast::task_id(task), 1, "w1", error(kind))).unwrap();
        let written = serde_json::to_string(&events).unwrap();
        assert!(written.chars().count() < 3 * MAX_MESSAGE && !written.contains("produced"), "{kind:?}");
        let ends = events.iter().any(|event| matches!(event, Event::TaskFailed { .. }));
        assert_eq!(
            ends,
            kind == ErrorKind::Unclear,
            "what may have taken effect is not tried again by itself"
        );
    }
}
