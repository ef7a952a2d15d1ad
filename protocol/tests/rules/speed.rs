//! The speed of the rules. Measurements need a release build:
//! `cargo test -p millrace-protocol --release -- --ignored --nocapture fold`. The tests that always run prove that nothing
//! is quadratic in the tasks of a plan: that would take minutes instead of a second.

#![expect(clippy::disallowed_methods, reason = "it measures time and decides nothing")]

use std::time::{Duration, Instant};

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, CommandAction, Decision, Event, Fact, OverdueInput, Plan, PlannerTrigger, PlanningEvent,
    ResourceAmounts, Submission, TaskSpec, TaskState, Work, apply, apply_decision,
};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::wire;

use crate::cast;
use crate::scene::RunScene;

const TASKS: u32 = 100_000;
const LAYER: u32 = 1_000;

/// A layered plan in which every second task is reviewed.
fn submitted_layered_plan() -> RunScene {
    let name = |at: u32| format!("task-{at:06}");
    let tasks = (0..TASKS).map(|at| {
        let above = at.checked_sub(LAYER).map(|above| [name(above), name(above / LAYER * LAYER)]);
        let mut above: Vec<&str> = above.iter().flatten().map(String::as_str).collect();
        above.dedup();
        if at % 2 == 0 {
            cast::echo_task(&name(at), &above)
        } else {
            cast::reviewed_echo_task(&name(at), &above)
        }
    });
    RunScene::from_submission(cast::fixed_plan_submission(tasks.collect()))
}

/// Its log, with one decision per fact: claim and result of each task, and the verdicts.
fn log_of_layered_plan() -> Vec<Decision> {
    let mut scene = submitted_layered_plan();
    let ids: Vec<TaskId> = scene.plan.tasks().iter().map(|task| task.spec.id.clone()).collect();
    for (at, id) in ids.iter().enumerate() {
        scene.claim_and_finish_task(id, "worker-1");
        if at % 2 == 1 {
            scene.finish_review(id, true);
        }
    }
    assert!(scene.plan.run.end.is_some());
    scene.log
}

fn rate_per_second(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// Returns the memory of this process in MiB; 0 if the system does not report it.
fn resident_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[test]
#[ignore = "a measurement, not a test; it needs a release build"]
fn measure_fold_speed() {
    measure_live_plan();
    let began = Instant::now();
    let log = log_of_layered_plan();
    let events: usize = log.iter().map(|decision| decision.events.len()).sum();
    println!("{TASKS} tasks: {} decisions, {events} events", log.len());
    println!("decide and apply: {:.0} decisions/s", rate_per_second(log.len(), began));

    let bodies: Vec<Vec<u8>> = log.iter().map(wire::encode_body).collect();
    let bytes: usize = bodies.iter().map(Vec::len).sum();
    println!("the log: {:.1} MiB, {} bytes an event", bytes as f64 / 1_048_576.0, bytes / events);

    // All tasks are added by the first decision; the rest is the typical mix.
    let mut plan = Plan::default();
    let began = Instant::now();
    apply_decision(&mut plan, &log[0]);
    println!("fold of the first decision: {:.0} events/s", rate_per_second(log[0].events.len(), began));
    let began = Instant::now();
    for decision in &log[1..] {
        apply_decision(&mut plan, decision);
    }
    let mixed = events - log[0].events.len();
    println!("fold of the rest: {:.0} events/s", rate_per_second(mixed, began));
    assert!(plan.tasks().len() == TASKS as usize && plan.run.end.is_some());

    let began = Instant::now();
    let read: Vec<Decision> = bodies.iter().map(|body| wire::decode_body(body).unwrap()).collect();
    println!("reading alone: {:.0} decisions/s", rate_per_second(read.len(), began));
}

/// Runs a plan of `count` independent tasks under a budget; each is claimed and finished. No part of it may be quadratic,
/// no matter how the budget is divided.
fn time_run_with_budget(count: u32, budget: &Budget, own: ResourceAmounts) -> f64 {
    let task = |at: u32| TaskSpec { budget: own, ..cast::echo_task(&format!("task-{at:06}"), &[]) };
    let began = Instant::now();
    let tasks = (0..count).map(task).collect();
    let mut scene = RunScene::new();
    scene.is_checked = false;
    let submission = Submission { budget: budget.clone(), ..cast::fixed_plan_submission(tasks) };
    scene.decide_fact(&Fact::Submitted(Box::new(submission))).unwrap();
    let usage = millrace_protocol::result::Usage { input_tokens: 5, model_calls: 1, ..Default::default() };
    loop {
        let Some((Work::Task { task, .. }, _)) = scene.plan.budget.reserved.iter().next() else { break };
        let task = task.clone();
        scene.claim_task(&task, "worker-1");
        let finished = millrace_protocol::plan::AttemptResult { usage, ..cast::finished_result(9) };
        scene.decide_fact(&cast::attempt_ended_fact(&task, 1, "worker-1", Ok(finished))).unwrap();
    }
    assert_eq!(scene.plan.task_count_in_state(TaskState::Completed), count);
    began.elapsed().as_secs_f64()
}

fn token_amounts(tokens: u64) -> ResourceAmounts {
    ResourceAmounts { tokens: Some(tokens), ..ResourceAmounts::default() }
}

fn budget_for_tasks(count: u64) -> Budget {
    Budget { amounts: token_amounts(count * 20), ..Budget::default() }
}

#[test]
#[ignore = "a measurement, not a test; it needs a release build"]
fn measure_budget_speed() {
    type BudgetDivision = (&'static str, fn(u64) -> (Budget, ResourceAmounts));
    let cuts: [BudgetDivision; 4] = [
        ("fixed reservation per attempt", |count| {
            (Budget { attempt: token_amounts(10), ..budget_for_tasks(count) }, ResourceAmounts::default())
        }),
        ("share per attempt", |count| (budget_for_tasks(count), ResourceAmounts::default())),
        ("budget of a capability", |count| {
            let own = [(cast::capability_name("echo"), token_amounts(count * 20))];
            (Budget { capabilities: own.into(), ..Budget::default() }, ResourceAmounts::default())
        }),
        ("budget of each task", |_| (Budget::default(), token_amounts(100))),
    ];
    for (name, cut) in cuts {
        for count in [2_500, 10_000, 40_000] {
            let (budget, own) = cut(u64::from(count));
            let took = time_run_with_budget(count, &budget, own);
            println!("{name}: {count} tasks in {took:.2} s, {:.1} µs a task", took * 1e6 / f64::from(count));
        }
    }
}

/// Measures the memory of a live plan; first, while the process has no freed memory to reuse.
fn measure_live_plan() {
    let events = submitted_layered_plan().log.swap_remove(0).events;
    let decision = Decision {
        by: cast::worker_id("s1"),
        previous: 0,
        at: cast::test_start_time(),
        answers: Vec::new(),
        // Decoded from bytes, like a plan after a takeover: no name is shared with another copy.
        events: wire::decode_message_pack(&wire::encode_body(&events), "events").unwrap(),
    };
    drop(events);
    let before = resident_memory_mib();
    let mut live = Plan::default();
    apply_decision(&mut live, &decision);
    println!(
        "a plan of {} live tasks: at most {:.0} MiB of {:.0}",
        live.open_task_count(),
        resident_memory_mib() - before,
        resident_memory_mib()
    );
}

/// A number of tasks whose square is too large for a test.
const MANY: usize = 20_000;

fn task_name(at: usize) -> String {
    format!("task-{at:06}")
}

/// A run with a time limit of 100 s.
fn submitted_run_with_time_limit(tasks: Vec<TaskSpec>) -> RunScene {
    let budget = Budget { wall_time: Some(Duration::from_secs(100)), ..Budget::default() };
    RunScene::from_submission(Submission { budget, ..cast::fixed_plan_submission(tasks) })
}

fn fail_task(scene: &mut RunScene, task: &TaskId) {
    let broken = cast::task_error(ErrorKind::InvalidTask, "it can't be done");
    scene.decide_fact(&cast::attempt_ended_fact(task, 1, "w1", Err(broken))).unwrap();
}

fn pass_time_limit(scene: &mut RunScene) {
    scene.now = cast::time_after(scene.now, 100);
    scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
}

/// Measures how long it takes to resume a run that has ended.
fn measure_resume_time(scene: &mut RunScene) -> Duration {
    assert!(scene.plan.is_resumable());
    let budget = Some(Budget { wall_time: Some(Duration::from_secs(1_000)), ..Budget::default() });
    let began = Instant::now();
    scene.decide_fact(&cast::command_fact("more", CommandAction::Resume { budget })).unwrap();
    began.elapsed()
}

#[track_caller]
fn assert_not_quadratic(took: Duration) {
    assert!(took < Duration::from_secs(40), "it took {took:?}, so it is quadratic in the tasks");
}

#[test]
fn resume_with_thousands_of_dependencies_is_linear() {
    let all: Vec<String> = (0..MANY).map(task_name).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut tasks: Vec<TaskSpec> = all.iter().map(|id| cast::echo_task(id, &[])).collect();
    tasks.push(cast::echo_task("sum", &all));
    tasks.push(TaskSpec {
        on_failed_dependency: millrace_protocol::plan::OnFailedDependency::Skip,
        ..cast::echo_task("rest", &all)
    });
    let mut scene = submitted_run_with_time_limit(tasks);
    let last = cast::task_id(all[MANY - 1]);
    scene.claim_task(&last, "w1");
    fail_task(&mut scene, &last);
    pass_time_limit(&mut scene);
    assert_not_quadratic(measure_resume_time(&mut scene));
    let state = |id: &str| scene.plan.task(&cast::task_id(id)).unwrap();
    assert_eq!(scene.plan.task_count_in_state(TaskState::Ready) as usize, MANY - 1);
    assert_eq!(
        state("sum").state(),
        TaskState::Cancelled,
        "it was cancelled with the task that is lost for good"
    );
    assert_eq!((state("rest").state(), state("rest").unmet as usize), (TaskState::Pending, MANY - 1));
}

#[test]
fn recording_a_hundred_thousand_triggers_is_linear() {
    let mut plan = RunScene::from_submission(cast::planner_submission()).plan;
    let began = Instant::now();
    for at in (0..100_000).chain(0..100_000) {
        let trigger = PlannerTrigger::Accepted { task: cast::task_id(&task_name(at)) };
        apply(&mut plan, &Event::Planning(PlanningEvent::TriggerRaised { trigger }), cast::test_start_time());
    }
    assert_not_quadratic(began.elapsed());
    assert_eq!(plan.planning.triggers.len(), 100_000);
    crate::oracle::check_invariants(&plan);
    assert_eq!(plan.with_recounted_index(), plan);
}

#[test]
fn resume_with_a_long_chain_behind_a_lost_task_is_linear() {
    let chain = (0..MANY).map(|at| match at.checked_sub(1) {
        None => cast::echo_task(&task_name(at), &[]),
        Some(before) => cast::echo_task(&task_name(at), &[&task_name(before)]),
    });
    let mut tasks: Vec<TaskSpec> = chain.collect();
    tasks.push(cast::echo_task("apart", &[]));
    let mut scene = submitted_run_with_time_limit(tasks);
    let first = cast::task_id(&task_name(0));
    scene.claim_task(&first, "w1");
    pass_time_limit(&mut scene);
    fail_task(&mut scene, &first);
    assert_not_quadratic(measure_resume_time(&mut scene));
    assert_eq!(scene.plan.task_count_in_state(TaskState::Ready), 1, "the task without dependencies");
    assert_eq!(scene.plan.task_count_in_state(TaskState::Cancelled) as usize, MANY - 1);
}
