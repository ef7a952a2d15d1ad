//! Properties of every run, tested on random ones: with any inputs, and in a fair world, where every run must end.
//!
//! By default, some thousands of sequences are tested; a hundred thousand with
//! `cargo test -p millrace-protocol -- --ignored hundred_thousand`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_protocol::plan::{
    CommandAction, Decision, DecisionInput, DeliverableRule, EndReason, Event, Fact, GraphEvent,
    MAX_IDLE_TURNS, Plan, PlanningEvent, RunEvent, TaskEvent, TaskState, apply, apply_decision, decide,
    suggest_larger_limits,
};
use millrace_protocol::wire;
use proptest::prelude::*;

use crate::cast;
use crate::oracle;
use crate::random::{self, RandomDraws, RegisteredTestCapabilities};
use crate::scene::{RunScene, is_plan_unchanged};
use crate::world::{self, SimulatedWorld};

/// A run with any inputs, valid and invalid, in any order, at times that may go backwards.
pub fn random_run(seed: u64, steps: usize) -> RunScene {
    let mut draws = RandomDraws(seed);
    let mut offers = RegisteredTestCapabilities::ALL;
    let mut scene = RunScene::from_submission(random::random_submission(&mut draws));
    for _ in 0..steps {
        let before = scene.plan.clone();
        match draws.draw_below(10) {
            0 => {
                scene.now = cast::time_after(cast::test_start_time(), draws.draw_below(20_000) as u64);
                for overdue in scene.overdue_inputs_now() {
                    let _ = scene.decide_overdue_input(&overdue);
                    oracle::check_invariants_after_decision(&scene.plan);
                }
                // This makes several decisions, each of which may open something again; `world` checks those.
                continue;
            }
            1 => {
                offers.change_randomly(&mut draws);
                let _ = scene.decide_registry_change(&offers.to_registry());
            }
            _ => {
                let fact = random::random_fact(&mut draws, &scene.plan);
                if scene.decide_fact(&fact).is_err() {
                    assert!(
                        is_plan_unchanged(&before, &scene.plan),
                        "this was refused and changed the plan: {fact:?}"
                    );
                }
                check_repeated_command_is_refused(&mut scene, &fact);
            }
        }
        oracle::check_invariants_after_decision(&scene.plan);
        oracle::check_ended_tasks_stay_ended(&before, &scene.plan, &scene.last_events());
    }
    scene
}

/// Checks that a command that was applied is refused when it is repeated.
fn check_repeated_command_is_refused(scene: &mut RunScene, fact: &Fact) {
    let Fact::Control(command) = fact else { return };
    if scene.plan.run.commands.contains(&command.id) {
        assert!(
            decide(&scene.plan, &DecisionInput::Fact(fact), scene.now).is_err(),
            "{command:?} was applied twice"
        );
    }
}

/// Encodes and decodes a decision, as the log does.
fn encode_and_decode(decision: &Decision) -> Decision {
    let sealed = wire::encode_with_inline_body::<Decision>(&wire::encode_body(decision));
    wire::decode_message(&sealed, wire::Encoding::MessagePack).unwrap()
}

fn fold_decisions_onto(onto: Plan, decisions: &[Decision]) -> Plan {
    decisions.iter().fold(onto, |mut plan, decision| {
        apply_decision(&mut plan, &encode_and_decode(decision));
        plan
    })
}

/// Checks that the log of a run folds to the live plan, in one go and in two.
fn check_log_folds_to_live_plan(scene: &RunScene, cut: usize) {
    assert_eq!(fold_decisions_onto(Plan::default(), &scene.log), scene.plan);
    let half = fold_decisions_onto(Plan::default(), &scene.log[..cut]);
    assert_eq!(fold_decisions_onto(half, &scene.log[cut..]), scene.plan);
}

/// A run in a world that is chaotic for `chaos` steps and then fair.
fn run_random_world(seed: u64, chaos: usize) -> SimulatedWorld {
    let mut world = SimulatedWorld::from_seed(seed);
    world.run_until_end(chaos);
    check_end_of_run(&world);
    world
}

fn check_end_of_run(world: &SimulatedWorld) {
    let plan = &world.scene.plan;
    let end = plan.run.end.as_ref().unwrap();
    let count = |is_it: fn(&Event) -> bool| {
        world::all_events_of_log(&world.scene).filter(|event| is_it(event)).count()
    };
    let ends = count(|event| matches!(event, Event::Run(RunEvent::Ended { .. })));
    assert_eq!(
        ends,
        1 + count(|event| matches!(event, Event::Run(RunEvent::Reopened))),
        "each resumption has its end"
    );
    assert!(
        plan.planning.turn.is_none() && plan.budget.reserved.is_empty(),
        "an ended run starts and reserves nothing"
    );
    assert!(!end.is_resumable || world.unwanted_orders_in_queue().is_empty(), "orders are left in queues");
    if !matches!(plan.run.winding_down, Some((EndReason::Cancelled, _))) {
        check_chosen_deliverable(plan);
    }
    check_end_reason(plan, end.reason);
    check_suggested_limits(plan);
}

/// Checks that a run that ended because of its budget continues with the limits that are suggested.
fn check_suggested_limits(plan: &Plan) {
    let end = plan.run.end.as_ref().unwrap();
    let suggested = suggest_larger_limits(plan);
    if !end.is_resumable || !end.reason.needs_larger_budget() {
        return;
    }
    let limits = suggested.expect("a run without budget has a suggestion");
    let mut scene = RunScene::new();
    (scene.plan, scene.now, scene.is_checked) = (plan.clone(), end.at, false);
    let resume = CommandAction::Resume { budget: Some(limits.clone()) };
    scene.decide_fact(&cast::command_fact("suggested", resume)).unwrap();
    // The limits of the run do not raise those of a task.
    let has_own_limits = |event: &Event| {
        event
            .task()
            .is_some_and(|task| scene.plan.task(task).is_some_and(|task| !task.spec.budget.is_empty()))
    };
    let shortage = scene.last_events().into_iter().filter(|event| !has_own_limits(event)).find(|event| {
        let mut exhausted = format!("{event:?}");
        exhausted.make_ascii_lowercase();
        exhausted.contains("budget is exhausted") || exhausted.contains("time limit")
    });
    assert_eq!(shortage, None, "resumed with {limits:?}: {plan:#?}");
}

/// Checks that the reason of an end is true.
fn check_end_reason(plan: &Plan, reason: EndReason) {
    let (open, lost) = (
        plan.open_task_count(),
        plan.planned_task_count_in_state(TaskState::Failed)
            + plan.planned_task_count_in_state(TaskState::Cancelled),
    );
    let has = |is_there: bool, why: &str| assert!(is_there, "the run ended {reason}, but {why}: {plan:#?}");
    has(open == 0 || reason == EndReason::NoProgress, "tasks are open");
    has(open == plan.task_count_in_state(TaskState::Pending), "tasks are in flight");
    match reason {
        EndReason::Completed => {
            has(
                plan.final_task().is_none_or(|task| task.state() == TaskState::Completed),
                "its final task is not completed",
            );
            has(plan.final_task().is_some() || lost == 0, "a task is lost");
        }
        EndReason::CompletedPartial => {
            has(plan.planned_task_count_in_state(TaskState::Completed) > 0, "nothing is completed")
        }
        EndReason::Failed | EndReason::Cancelled => {}
        EndReason::NoProgress => {
            has(
                open > 0
                    || plan.planning.idle_turns.max(plan.planning.repeated_turns) >= MAX_IDLE_TURNS
                    || lost > 0,
                "it could have continued",
            );
        }
        EndReason::PlannerUnavailable => has(plan.planning.lost.is_some(), "the planner is available"),
        EndReason::BudgetExhausted => has(
            plan.run.start.as_ref().unwrap().budget != Default::default()
                || plan.default_token_limit().is_some(),
            "it has no budget",
        ),
        EndReason::MaxSteps => has(plan.planning.turns >= plan.max_planning_turns(), "it has steps left"),
    }
}

/// Checks that the deliverable is the final task's result, or else the newest with text beyond its summary, or else the
/// newest producer's, or else the newest completed; and that there is one if any task is completed.
fn check_chosen_deliverable(plan: &Plan) {
    use millrace_protocol::plan::{AttemptEnd, Task};
    let is_completed = |task: &&Task| task.state() == TaskState::Completed && !task.spec.is_child();
    let completed = || plan.tasks().iter().filter(is_completed);
    let is_detailed = |task: &&Task| {
        let end = task.current_attempt().and_then(|attempt| attempt.end.as_ref());
        matches!(end, Some(AttemptEnd::Finished { is_detailed: true, .. }))
    };
    let expected = completed()
        .find(|task| task.spec.is_final)
        .map(|task| (task, DeliverableRule::Final))
        .or_else(|| completed().rfind(is_detailed).map(|task| (task, DeliverableRule::Detailed)))
        .or_else(|| {
            let mut producers = completed().filter(|task| task.spec.capability.as_str() == "producer");
            producers.next_back().map(|task| (task, DeliverableRule::Producer))
        })
        .or_else(|| completed().next_back().map(|task| (task, DeliverableRule::Any)));
    let deliverable = plan.run.end.as_ref().unwrap().deliverable.clone();
    assert_eq!(deliverable, expected.map(|(task, rung)| (task.spec.id.clone(), rung)));
}

/// Tests a property on `count` seeds, in parallel. Prints the seed that failed; `SEED=n` runs that one alone.
fn test_property_on_seeds(count: u64, property: impl Fn(u64) + Sync) {
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
                        eprintln!("failed with seed {seed}");
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
    });
}

fn check_random_inputs(seed: u64) {
    let scene = random_run(seed, 4 + seed as usize % 40);
    if seed.is_multiple_of(8) {
        check_log_folds_to_live_plan(&scene, seed as usize % (scene.log.len() + 1));
    }
}

fn check_fair_world(seed: u64) {
    let world = run_random_world(seed, seed as usize % 120);
    if seed.is_multiple_of(8) {
        check_log_folds_to_live_plan(&world.scene, seed as usize % (world.scene.log.len() + 1));
    }
}

#[test]
fn invariants_hold_for_any_inputs() {
    test_property_on_seeds(3_000, check_random_inputs);
}

#[test]
fn every_run_of_a_fair_world_ends_for_a_true_reason() {
    test_property_on_seeds(400, check_fair_world);
}

#[test]
#[ignore = "takes minutes; the same with a few thousand runs by default"]
fn a_hundred_thousand_random_sequences_keep_every_invariant() {
    test_property_on_seeds(80_000, |seed| check_random_inputs(seed + 1_000_000));
    test_property_on_seeds(20_000, |seed| check_fair_world(seed + 1_000_000));
    test_property_on_seeds(2_000, |seed| check_random_log(seed + 1_000_000));
}

/// Replaces the numbers of an event by extreme ones. Because events of several runs are mixed, capabilities become the
/// same, and deliverables are removed.
fn randomize_event_numbers(draws: &mut RandomDraws, event: &Event) -> Event {
    let number = |draws: &mut RandomDraws, so_far: u32| {
        let any = [0, 1, 7, u32::MAX - 1, u32::MAX];
        if draws.draw_chance(30) { any[draws.draw_below(any.len())] } else { so_far }
    };
    let mut event = event.clone();
    if let Event::Task(
        TaskEvent::Ready { attempt, .. }
        | TaskEvent::Rerun { attempt, .. }
        | TaskEvent::Reopened { attempt, .. }
        | TaskEvent::Invalidated { attempt, .. },
    )
    | Event::Graph(GraphEvent::TaskPatched { attempt, .. }) = &mut event
    {
        *attempt = number(draws, *attempt);
    }
    if let Event::Planning(
        PlanningEvent::ProposalAccepted { turn, .. } | PlanningEvent::Requested { turn, .. },
    ) = &mut event
    {
        *turn = number(draws, *turn);
    }
    if let Event::Graph(GraphEvent::TaskAdded { spec, .. } | GraphEvent::TaskPatched { spec, .. }) =
        &mut event
    {
        let spec = Arc::make_mut(spec);
        spec.capability = cast::capability_name("echo");
        spec.is_final = false;
        spec.limits.max_attempts = number(draws, spec.limits.max_attempts);
        if draws.draw_chance(20) {
            spec.depends_on.push(cast::task_id(&format!("t{}", draws.draw_below(20))));
        }
    }
    event
}

/// Folds the events of several runs in any order and number, as one log.
fn check_random_log(seed: u64) {
    let mut draws = RandomDraws(seed);
    let runs = (0..4).map(|at| random_run(seed.wrapping_add(at).wrapping_mul(4), 30));
    let decisions = runs.flat_map(|scene| scene.log);
    let events: Vec<Event> = decisions.flat_map(|decision| decision.events).collect();
    let begins = |event: &Event| matches!(event, Event::Run(RunEvent::Started { .. }));
    let mut plan = Plan::default();
    apply(&mut plan, events.iter().find(|event| begins(event)).unwrap(), cast::test_start_time());
    let rest: Vec<&Event> = events.iter().filter(|event| !begins(event)).collect();
    for _ in 0..400 {
        let Some(event) = draws.pick_random(rest.iter().copied()) else { return };
        let event = randomize_event_numbers(&mut draws, event);
        let at = cast::time_after(cast::test_start_time(), draws.draw_below(20_000) as u64);
        apply(&mut plan, &event, at);
        oracle::check_invariants(&plan);
        assert_eq!(plan.with_recounted_index(), plan, "after {event:?}");
    }
}

#[test]
fn indices_match_the_tasks_after_any_log() {
    test_property_on_seeds(120, check_random_log);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn log_folds_to_the_live_plan_in_one_go_and_in_two(seed: u64, cut: prop::sample::Index) {
        let scene = random_run(seed, 40);
        check_log_folds_to_live_plan(&scene, cut.index(scene.log.len() + 1));
    }

    #[test]
    fn successor_decides_the_same_at_any_point(seed: u64, steps in 0_usize..40) {
        let scene = random_run(seed, steps);
        let refolded = fold_decisions_onto(Plan::default(), &scene.log);
        let mut draws = RandomDraws(seed ^ 1);
        let cluster = RegisteredTestCapabilities { known: [true, false, true], is_strict: true }.to_registry();
        let unknown_status = millrace_protocol::plan::UnknownCapabilityStatus::Missing;
        let inputs = [DecisionInput::Settle, DecisionInput::WallTime, DecisionInput::Cluster(&cluster, unknown_status)];
        for input in &inputs {
            prop_assert_eq!(decide(&scene.plan, input, scene.now), decide(&refolded, input, scene.now));
        }
        for _ in 0..10 {
            let fact = random::random_fact(&mut draws, &scene.plan);
            let input = DecisionInput::Fact(&fact);
            prop_assert_eq!(decide(&scene.plan, &input, scene.now), decide(&refolded, &input, scene.now));
        }
    }

    #[test]
    fn nanoseconds_are_truncated_before_they_are_used(seed: u64, nanos in 0_i32..1_000_000) {
        let mut scene = random_run(seed, 0);
        for step in 0_i32..12 {
            scene.now = cast::test_start_time() + jiff::SignedDuration::new(i64::from(step), nanos + step);
            if step == 3 || step == 7 {
                let control = if step == 3 {
                    millrace_protocol::plan::CommandAction::Pause
                } else {
                    millrace_protocol::plan::CommandAction::Resume { budget: None }
                };
                let _ = scene.decide_fact(&cast::command_fact(&format!("c{step}"), control));
            }
            for task in scene.plan.tasks().to_vec() {
                let work = cast::attempt_work(&task.spec.id, task.attempt);
                let _ = scene.decide_fact(&Fact::Claimed(work, cast::worker_id("w1"), None));
                let broken = cast::task_error(millrace_protocol::result::ErrorKind::Tool, "broken");
                let _ = scene.decide_fact(&cast::attempt_ended_fact(&task.spec.id, task.attempt, "w1", Err(broken)));
            }
            for overdue in scene.overdue_inputs_now() {
                let _ = scene.decide_overdue_input(&overdue);
            }
        }
        prop_assert_eq!(&fold_decisions_onto(Plan::default(), &scene.log), &scene.plan);
    }

    #[test]
    fn same_seed_gives_the_same_log(seed: u64) {
        let log = || {
            let mut world = SimulatedWorld::from_seed(seed);
            world.run_until_end(40);
            world.scene.log.iter().map(wire::encode_body).collect::<Vec<_>>()
        };
        prop_assert_eq!(log(), log());
    }
}

#[test]
fn impossible_usage_does_not_overflow() {
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![
        cast::echo_task("a", &[]),
        cast::echo_task("b", &[]),
    ]));
    let absurd = millrace_protocol::result::Usage {
        model_calls: u64::MAX,
        tool_calls: u64::MAX,
        input_tokens: u64::MAX,
        output_tokens: u64::MAX,
        ..Default::default()
    };
    for id in ["a", "b"] {
        let id = cast::task_id(id);
        scene.claim_task(&id, "w1");
        let outcome = millrace_protocol::plan::AttemptResult { usage: absurd, ..cast::finished_result(1) };
        scene.decide_fact(&cast::attempt_ended_fact(&id, 1, "w1", Ok(outcome))).unwrap();
    }
    assert_eq!(scene.plan.budget.spend.total, absurd);
}

#[test]
fn events_fold_alike_one_by_one_and_as_a_decision() {
    let scene = random_run(7, 40);
    let mut plan = Plan::default();
    for decision in &scene.log {
        for event in &decision.events {
            apply(&mut plan, event, decision.at);
        }
    }
    plan.run.through = scene.plan.run.through;
    assert_eq!(plan, scene.plan);
}
