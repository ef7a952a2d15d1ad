//! What holds of every run, tried on random ones: any inputs at all, and a fair world in which every run must end.

use millrace_protocol::plan::{
    Decision, Event, Fact, FinalRung, Plan, TaskState, apply, apply_decision, decide,
};
use millrace_protocol::wire;
use proptest::prelude::*;

use crate::cast;
use crate::oracle;
use crate::scene::Scene;
use crate::world::{self, Draws, World};

/// Any inputs at all, likely ones and wild ones, in any order, at times that may go backwards.
fn any_run(seed: u64, steps: usize) -> Scene {
    let mut draws = Draws(seed);
    let mut scene = Scene::submitted(world::random_plan(&mut draws));
    for _ in 0..steps {
        let before = scene.plan.clone();
        match draws.below(10) {
            0 => {
                scene.now = cast::after(cast::start(), draws.below(20_000) as u64);
                for overdue in scene.overdue() {
                    let _ = scene.clock(&overdue);
                }
            }
            1 => {
                let names = ["echo", "search", "producer"];
                let known = names.into_iter().filter(|_| draws.chance(70)).map(cast::capability).collect();
                let _ = scene.capabilities(&known);
            }
            _ => {
                let fact = world::random_fact(&mut draws, &scene);
                let _ = scene.fact(&fact);
            }
        }
        oracle::check_decided(&scene.plan);
        oracle::check_ended_stays(&before, &scene.plan);
    }
    scene
}

/// A decision as it comes back from the log.
fn from_log(decision: &Decision) -> Decision {
    let sealed = wire::seal::<Decision>(&wire::body(decision));
    wire::open(&sealed, wire::Encoding::MessagePack).unwrap()
}

fn fold(onto: Plan, decisions: &[Decision]) -> Plan {
    decisions.iter().fold(onto, |mut plan, decision| {
        apply_decision(&mut plan, &from_log(decision));
        plan
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_inputs_keep_what_is_derived_true_and_what_is_ended_ended(seed: u64, steps in 0_usize..60) {
        any_run(seed, steps);
    }

    #[test]
    fn the_log_folds_to_the_live_plan_in_one_go_and_in_two(seed: u64, cut: prop::sample::Index) {
        let scene = any_run(seed, 40);
        let cut = cut.index(scene.log.len() + 1);
        prop_assert_eq!(&fold(Plan::default(), &scene.log), &scene.plan);
        let half = fold(Plan::default(), &scene.log[..cut]);
        prop_assert_eq!(&fold(half, &scene.log[cut..]), &scene.plan);
    }

    #[test]
    fn whoever_takes_over_at_any_point_decides_the_same(seed: u64, cut: prop::sample::Index) {
        let mut scene = any_run(seed, 20);
        let cut = cut.index(scene.log.len());
        scene.log.truncate(cut);
        scene.plan = fold(Plan::default(), &scene.log);
        let refolded = fold(Plan::default(), &scene.log);
        let mut draws = Draws(seed ^ 1);
        for _ in 0..10 {
            let fact = world::random_fact(&mut draws, &scene);
            let input = millrace_protocol::plan::Input::Fact(&fact);
            prop_assert_eq!(decide(&scene.plan, &input, scene.now), decide(&refolded, &input, scene.now));
        }
    }

    #[test]
    fn times_finer_than_the_log_keeps_leave_no_trace(seed: u64, nanos in 0_i32..1_000_000) {
        let mut scene = any_run(seed, 0);
        for step in 0_i32..12 {
            scene.now = cast::start() + jiff::SignedDuration::new(i64::from(step), nanos + step);
            for task in scene.plan.tasks().to_vec() {
                let work = cast::attempt(&task.spec.id, task.attempt);
                let _ = scene.fact(&Fact::Claimed(work, cast::worker("w1")));
                let broken = cast::error(millrace_protocol::result::ErrorKind::Tool, "broken");
                let _ = scene.fact(&cast::ended(&task.spec.id, task.attempt, "w1", Err(broken)));
            }
            for overdue in scene.overdue() {
                let _ = scene.clock(&overdue);
            }
        }
        prop_assert_eq!(&fold(Plan::default(), &scene.log), &scene.plan);
    }

    #[test]
    fn every_run_of_a_fair_world_ends_and_its_end_is_true(seed: u64, chaos in 0_usize..120) {
        let mut world = World::of(seed);
        world.run(chaos);
        let plan = &world.scene.plan;
        let end = plan.end.as_ref().unwrap();
        let ends = world::events(&world.scene).filter(|event| matches!(event, Event::RunEnded { .. })).count();
        prop_assert_eq!(ends, 1);
        check_deliverable(plan);
        let open = plan.open();
        prop_assert_eq!(open > 0, end.reason == millrace_protocol::plan::EndReason::NoProgress);
        prop_assert_eq!(open, plan.count(TaskState::Pending));
        prop_assert_eq!(&fold(Plan::default(), &world.scene.log), plan);
    }

    #[test]
    fn the_same_seed_gives_the_same_log(seed: u64) {
        let log = || {
            let mut world = World::of(seed);
            world.run(40);
            world.scene.log.iter().map(wire::body).collect::<Vec<_>>()
        };
        prop_assert_eq!(log(), log());
    }
}

/// The deliverable is the final task's, else the newest producer's, else the newest that is completed; and there is
/// one wherever anything is completed.
fn check_deliverable(plan: &Plan) {
    let completed = || plan.tasks().iter().filter(|task| task.state == TaskState::Completed);
    let expected = completed()
        .find(|task| task.spec.is_final)
        .map(|task| (task, FinalRung::Final))
        .or_else(|| {
            let mut producers = completed().filter(|task| task.spec.capability.as_str() == "producer");
            producers.next_back().map(|task| (task, FinalRung::Producer))
        })
        .or_else(|| completed().next_back().map(|task| (task, FinalRung::Any)));
    let found = plan.end.as_ref().unwrap().deliverable.clone();
    assert_eq!(found, expected.map(|(task, rung)| (task.spec.id.clone(), rung)));
}

#[test]
fn a_usage_that_nobody_can_have_had_overflows_nothing() {
    let mut scene = Scene::submitted(cast::submission(vec![cast::task("a", &[]), cast::task("b", &[])]));
    let absurd = millrace_protocol::result::Usage {
        model_calls: u64::MAX,
        tool_calls: u64::MAX,
        input_tokens: u64::MAX,
        output_tokens: u64::MAX,
        ..Default::default()
    };
    for id in ["a", "b"] {
        let id = cast::task_id(id);
        scene.claim(&id, "w1");
        let outcome = millrace_protocol::plan::Finished { usage: absurd, ..cast::finished(1) };
        scene.fact(&cast::ended(&id, 1, "w1", Ok(outcome))).unwrap();
    }
    assert_eq!(scene.plan.usage, absurd);
}

#[test]
fn events_fold_alike_one_by_one_and_by_the_decision() {
    let scene = any_run(7, 40);
    let mut plan = Plan::default();
    for decision in &scene.log {
        for event in &decision.events {
            apply(&mut plan, event, decision.at);
        }
    }
    plan.through = scene.plan.through;
    assert_eq!(plan, scene.plan);
}
