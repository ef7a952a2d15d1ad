//! What holds of every run, tried on random ones: any inputs at all, and a fair world in which every run must end.
//!
//! By default some thousands of sequences are tried; all hundred thousand with
//! `cargo test -p millrace-protocol -- --ignored hundred_thousand`.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_protocol::plan::{
    Decision, EndReason, Event, Fact, FinalRung, Input, MAX_IDLE_TURNS, Plan, TaskState, apply,
    apply_decision, decide,
};
use millrace_protocol::wire;
use proptest::prelude::*;

use crate::cast;
use crate::oracle;
use crate::random::{self, Draws, Offers};
use crate::scene::{Scene, is_unchanged};
use crate::world::{self, World};

/// Any inputs at all, likely ones and wild ones, in any order, at times that may go backwards.
fn any_run(seed: u64, steps: usize) -> Scene {
    let mut draws = Draws(seed);
    let mut offers = Offers::ALL;
    let mut scene = Scene::submitted(random::submission(&mut draws));
    for _ in 0..steps {
        let before = scene.plan.clone();
        match draws.below(10) {
            0 => {
                scene.now = cast::after(cast::start(), draws.below(20_000) as u64);
                for overdue in scene.overdue() {
                    let _ = scene.clock(&overdue);
                    oracle::check_decided(&scene.plan);
                }
                // Several decisions, each of which may open something again: those are looked at in `world`.
                continue;
            }
            1 => {
                offers.change(&mut draws);
                let _ = scene.cluster(&offers.cluster());
            }
            _ => {
                let fact = random::fact(&mut draws, &scene.plan);
                if scene.fact(&fact).is_err() {
                    assert!(is_unchanged(&before, &scene.plan), "refused, this changed the plan: {fact:?}");
                }
                check_applied_once(&mut scene, &fact);
            }
        }
        oracle::check_decided(&scene.plan);
        oracle::check_ended_stays(&before, &scene.plan, &scene.last_events());
    }
    scene
}

/// A command that was carried out is refused when it comes again.
fn check_applied_once(scene: &mut Scene, fact: &Fact) {
    let Fact::Control(command) = fact else { return };
    if scene.plan.commands.contains(&command.id) {
        assert!(
            decide(&scene.plan, &Input::Fact(fact), scene.now).is_err(),
            "{command:?} is carried out twice"
        );
    }
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

/// The log of a run folds to the live plan, in one go and in two.
fn check_folds(scene: &Scene, cut: usize) {
    assert_eq!(fold(Plan::default(), &scene.log), scene.plan);
    let half = fold(Plan::default(), &scene.log[..cut]);
    assert_eq!(fold(half, &scene.log[cut..]), scene.plan);
}

/// A run in a world that is chaotic for so many steps, and fair after them.
fn any_world(seed: u64, chaos: usize) -> World {
    let mut world = World::of(seed);
    world.run(chaos);
    check_end(&world);
    world
}

fn check_end(world: &World) {
    let plan = &world.scene.plan;
    let end = plan.end.as_ref().unwrap();
    let count = |is_it: fn(&Event) -> bool| world::events(&world.scene).filter(|event| is_it(event)).count();
    let ends = count(|event| matches!(event, Event::RunEnded { .. }));
    assert_eq!(ends, 1 + count(|event| matches!(event, Event::RunReopened)), "each end has its beginning");
    assert!(
        plan.planning.is_none() && plan.reserved.is_empty(),
        "a run that has ended asks and reserves nothing"
    );
    assert!(!end.is_resumable || world.left_in_queues().is_empty(), "orders are left in queues");
    if !matches!(plan.winding_down, Some((EndReason::Cancelled, _))) {
        check_deliverable(plan);
    }
    check_reason(plan, end.reason);
}

/// The reason of an end says what is so.
fn check_reason(plan: &Plan, reason: EndReason) {
    let (open, lost) = (plan.open(), plan.count(TaskState::Failed) + plan.count(TaskState::Cancelled));
    let has = |is_there: bool, why: &str| assert!(is_there, "the run ended {reason}, but {why}: {plan:#?}");
    has(open == 0 || reason == EndReason::NoProgress, "tasks are open");
    has(open == plan.count(TaskState::Pending), "tasks are under way");
    match reason {
        EndReason::Completed => {
            has(
                plan.final_task().is_none_or(|task| task.state == TaskState::Completed),
                "its final task is not",
            );
            has(plan.final_task().is_some() || lost == 0, "something is lost");
        }
        EndReason::CompletedPartial => has(plan.count(TaskState::Completed) > 0, "nothing is completed"),
        EndReason::Failed | EndReason::Cancelled => {}
        EndReason::NoProgress => {
            has(open > 0 || plan.idle_turns >= MAX_IDLE_TURNS || lost > 0, "it could have gone on");
        }
        EndReason::PlannerUnavailable => has(plan.planner_lost.is_some(), "the planner is there"),
        EndReason::BudgetExhausted => {
            has(plan.start.as_ref().unwrap().budget != Default::default(), "it has none")
        }
        EndReason::MaxSteps => has(plan.turns >= plan.steps(), "it has steps left"),
    }
}

/// The deliverable is the final task's, else the newest with text beyond its summary, else the newest producer's, else
/// the newest that is completed; and there is one wherever anything is completed.
fn check_deliverable(plan: &Plan) {
    use millrace_protocol::plan::{AttemptEnd, Task};
    let completed = || plan.tasks().iter().filter(|task| task.state == TaskState::Completed);
    let is_detailed = |task: &&Task| {
        let end = task.current().and_then(|attempt| attempt.end.as_ref());
        matches!(end, Some(AttemptEnd::Finished { is_detailed: true, .. }))
    };
    let expected = completed()
        .find(|task| task.spec.is_final)
        .map(|task| (task, FinalRung::Final))
        .or_else(|| completed().rfind(is_detailed).map(|task| (task, FinalRung::Detailed)))
        .or_else(|| {
            let mut producers = completed().filter(|task| task.spec.capability.as_str() == "producer");
            producers.next_back().map(|task| (task, FinalRung::Producer))
        })
        .or_else(|| completed().next_back().map(|task| (task, FinalRung::Any)));
    let found = plan.end.as_ref().unwrap().deliverable.clone();
    assert_eq!(found, expected.map(|(task, rung)| (task.spec.id.clone(), rung)));
}

/// Tries a property on seeds from 0 on, on as many threads as there are cores. Which seed failed is said; `SEED=n` tries
/// that one alone.
fn on_seeds(count: u64, property: impl Fn(u64) + Sync) {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        return property(seed);
    }
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| property(seed)));
                    if let Err(panic) = tried {
                        eprintln!("it was seed {seed}");
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
    });
}

fn any_inputs(seed: u64) {
    let scene = any_run(seed, 4 + seed as usize % 40);
    if seed.is_multiple_of(8) {
        check_folds(&scene, seed as usize % (scene.log.len() + 1));
    }
}

fn a_fair_world(seed: u64) {
    let world = any_world(seed, seed as usize % 120);
    if seed.is_multiple_of(8) {
        check_folds(&world.scene, seed as usize % (world.scene.log.len() + 1));
    }
}

#[test]
fn any_inputs_keep_what_is_derived_true_and_what_is_ended_ended() {
    on_seeds(3_000, any_inputs);
}

#[test]
fn every_run_of_a_fair_world_ends_and_its_end_is_true() {
    on_seeds(400, a_fair_world);
}

#[test]
#[ignore = "minutes; the same with a few thousand is tried always"]
fn a_hundred_thousand_random_sequences_keep_every_invariant() {
    on_seeds(80_000, |seed| any_inputs(seed + 1_000_000));
    on_seeds(20_000, |seed| a_fair_world(seed + 1_000_000));
    on_seeds(2_000, |seed| any_log(seed + 1_000_000));
}

/// An event as no rule would have made it: with numbers that nobody reaches, and otherwise as it was. Where events of
/// several runs come together, names stand for one capability and for no deliverable.
fn made_wild(draws: &mut Draws, event: &Event) -> Event {
    let number = |draws: &mut Draws, so_far: u32| {
        let any = [0, 1, 7, u32::MAX - 1, u32::MAX];
        if draws.chance(30) { any[draws.below(any.len())] } else { so_far }
    };
    let mut event = event.clone();
    if let Event::TaskReady { attempt, .. }
    | Event::TaskRerun { attempt, .. }
    | Event::TaskReopened { attempt, .. }
    | Event::TaskInvalidated { attempt, .. }
    | Event::TaskPatched { attempt, .. } = &mut event
    {
        *attempt = number(draws, *attempt);
    }
    if let Event::ProposalAccepted { turn, .. } | Event::PlanningAsked { turn, .. } = &mut event {
        *turn = number(draws, *turn);
    }
    let spec = if let Event::TaskAdded { spec, .. } = &mut event {
        Some(spec)
    } else if let Event::TaskPatched { spec, .. } = &mut event {
        Some(&mut **spec)
    } else {
        None
    };
    if let Some(spec) = spec {
        spec.capability = cast::capability("echo");
        spec.is_final = false;
        spec.limits.max_attempts = number(draws, spec.limits.max_attempts);
        if draws.chance(20) {
            spec.depends_on.push(cast::task_id(&format!("t{}", draws.below(20))));
        }
    }
    event
}

/// The events of several runs in any order and number, as one log.
fn any_log(seed: u64) {
    let mut draws = Draws(seed);
    let runs = (0..4).map(|at| any_run(seed.wrapping_add(at).wrapping_mul(4), 30));
    let decisions = runs.flat_map(|scene| scene.log);
    let events: Vec<Event> = decisions.flat_map(|decision| decision.events).collect();
    let begins = |event: &Event| matches!(event, Event::RunStarted { .. });
    let mut plan = Plan::default();
    apply(&mut plan, events.iter().find(|event| begins(event)).unwrap(), cast::start());
    let rest: Vec<&Event> = events.iter().filter(|event| !begins(event)).collect();
    for _ in 0..400 {
        let Some(event) = draws.pick(rest.iter().copied()) else { return };
        let event = made_wild(&mut draws, event);
        let at = cast::after(cast::start(), draws.below(20_000) as u64);
        apply(&mut plan, &event, at);
        oracle::check(&plan);
        assert_eq!(plan.recounted(), plan, "after {event:?}");
    }
}

#[test]
fn whatever_a_log_says_what_is_kept_beside_the_tasks_is_what_they_say() {
    on_seeds(120, any_log);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_log_folds_to_the_live_plan_in_one_go_and_in_two(seed: u64, cut: prop::sample::Index) {
        let scene = any_run(seed, 40);
        check_folds(&scene, cut.index(scene.log.len() + 1));
    }

    #[test]
    fn whoever_takes_over_at_any_point_decides_the_same(seed: u64, steps in 0_usize..40) {
        let scene = any_run(seed, steps);
        let refolded = fold(Plan::default(), &scene.log);
        let mut draws = Draws(seed ^ 1);
        let cluster = Offers { known: [true, false, true], is_strict: true }.cluster();
        let may_be_missing = millrace_protocol::plan::MayBeMissing::Yes;
        let inputs = [Input::Settle, Input::WallTime, Input::Cluster(&cluster, may_be_missing)];
        for input in &inputs {
            prop_assert_eq!(decide(&scene.plan, input, scene.now), decide(&refolded, input, scene.now));
        }
        for _ in 0..10 {
            let fact = random::fact(&mut draws, &scene.plan);
            let input = Input::Fact(&fact);
            prop_assert_eq!(decide(&scene.plan, &input, scene.now), decide(&refolded, &input, scene.now));
        }
    }

    #[test]
    fn times_finer_than_the_log_keeps_leave_no_trace(seed: u64, nanos in 0_i32..1_000_000) {
        let mut scene = any_run(seed, 0);
        for step in 0_i32..12 {
            scene.now = cast::start() + jiff::SignedDuration::new(i64::from(step), nanos + step);
            if step == 3 || step == 7 {
                let control = if step == 3 {
                    millrace_protocol::plan::Control::Pause
                } else {
                    millrace_protocol::plan::Control::Resume { budget: None }
                };
                let _ = scene.fact(&cast::command(&format!("c{step}"), control));
            }
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
    fn the_same_seed_gives_the_same_log(seed: u64) {
        let log = || {
            let mut world = World::of(seed);
            world.run(40);
            world.scene.log.iter().map(wire::body).collect::<Vec<_>>()
        };
        prop_assert_eq!(log(), log());
    }
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
    assert_eq!(scene.plan.spend.total, absurd);
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
