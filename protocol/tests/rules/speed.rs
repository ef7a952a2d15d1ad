//! How fast the rules are. What is measured and printed wants a release build:
//! `cargo test -p millrace-protocol --release -- --ignored --nocapture fold`. What is tried always is that nothing takes
//! time by the square of a plan's tasks: there, minutes stand against a second.

#![expect(clippy::disallowed_methods, reason = "it measures, and decides nothing")]

use std::time::{Duration, Instant};

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Amounts, Budget, Control, Decision, Event, Fact, Occasion, Overdue, Plan, Submission, TaskSpec,
    TaskState, Work, apply, apply_decision,
};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::wire;

use crate::cast;
use crate::scene::Scene;

const TASKS: u32 = 100_000;
const LAYER: u32 = 1_000;

/// A layered plan, of which every second task is reviewed.
fn submitted() -> Scene {
    let name = |at: u32| format!("task-{at:06}");
    let tasks = (0..TASKS).map(|at| {
        let above = at.checked_sub(LAYER).map(|above| [name(above), name(above / LAYER * LAYER)]);
        let mut above: Vec<&str> = above.iter().flatten().map(String::as_str).collect();
        above.dedup();
        if at % 2 == 0 { cast::task(&name(at), &above) } else { cast::reviewed(&name(at), &above) }
    });
    Scene::submitted(cast::submission(tasks.collect()))
}

/// Its log, a decision a fact: claim and result of each task, and the verdicts.
fn log() -> Vec<Decision> {
    let mut scene = submitted();
    let ids: Vec<TaskId> = scene.plan.tasks().iter().map(|task| task.spec.id.clone()).collect();
    for (at, id) in ids.iter().enumerate() {
        scene.finish(id, "worker-1");
        if at % 2 == 1 {
            scene.judge(id, true);
        }
    }
    assert!(scene.plan.end.is_some());
    scene.log
}

fn per_second(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// The memory of this process, in MiB; 0 where the system does not tell.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[test]
#[ignore = "a measurement, not a proof; it wants a release build"]
fn fold_at_speed() {
    measure_live_plan();
    let began = Instant::now();
    let log = log();
    let events: usize = log.iter().map(|decision| decision.events.len()).sum();
    println!("{TASKS} tasks: {} decisions, {events} events", log.len());
    println!("decide and apply: {:.0} decisions/s", per_second(log.len(), began));

    let bodies: Vec<Vec<u8>> = log.iter().map(wire::body).collect();
    let bytes: usize = bodies.iter().map(Vec::len).sum();
    println!("the log: {:.1} MiB, {} bytes an event", bytes as f64 / 1_048_576.0, bytes / events);

    // All tasks are added by the first decision; the rest is the typical mix.
    let mut plan = Plan::default();
    let began = Instant::now();
    apply_decision(&mut plan, &log[0]);
    println!("fold of the first decision: {:.0} events/s", per_second(log[0].events.len(), began));
    let began = Instant::now();
    for decision in &log[1..] {
        apply_decision(&mut plan, decision);
    }
    let mixed = events - log[0].events.len();
    println!("fold of the rest: {:.0} events/s", per_second(mixed, began));
    assert!(plan.tasks().len() == TASKS as usize && plan.end.is_some());

    let began = Instant::now();
    let read: Vec<Decision> = bodies.iter().map(|body| wire::open_body(body).unwrap()).collect();
    println!("reading alone: {:.0} decisions/s", per_second(read.len(), began));
}

/// A run of so many tasks side by side under a budget, each claimed and finished: nothing in it may grow with the
/// square of its tasks, however the budget is cut.
fn run_with_budget(count: u32, budget: &Budget, own: Amounts) -> f64 {
    let task = |at: u32| TaskSpec { budget: own, ..cast::task(&format!("task-{at:06}"), &[]) };
    let began = Instant::now();
    let tasks = (0..count).map(task).collect();
    let mut scene = Scene::new();
    scene.is_checked = false;
    let submission = Submission { budget: budget.clone(), ..cast::submission(tasks) };
    scene.fact(&Fact::Submitted(Box::new(submission))).unwrap();
    let usage = millrace_protocol::result::Usage { input_tokens: 5, model_calls: 1, ..Default::default() };
    loop {
        let Some((Work::Task { task, .. }, _)) = scene.plan.reserved.iter().next() else { break };
        let task = task.clone();
        scene.claim(&task, "worker-1");
        let finished = millrace_protocol::plan::Finished { usage, ..cast::finished(9) };
        scene.fact(&cast::ended(&task, 1, "worker-1", Ok(finished))).unwrap();
    }
    assert_eq!(scene.plan.count(TaskState::Completed), count);
    began.elapsed().as_secs_f64()
}

fn tokens(tokens: u64) -> Amounts {
    Amounts { tokens: Some(tokens), ..Amounts::default() }
}

fn whole(count: u64) -> Budget {
    Budget { amounts: tokens(count * 20), ..Budget::default() }
}

#[test]
#[ignore = "a measurement, not a proof; it wants a release build"]
fn budgets_at_speed() {
    type Cut = (&'static str, fn(u64) -> (Budget, Amounts));
    let cuts: [Cut; 4] = [
        ("an attempt takes what is said", |count| {
            (Budget { attempt: tokens(10), ..whole(count) }, Amounts::default())
        }),
        ("an attempt takes a share", |count| (whole(count), Amounts::default())),
        ("of a capability", |count| {
            let own = [(cast::capability("echo"), tokens(count * 20))];
            (Budget { capabilities: own.into(), ..Budget::default() }, Amounts::default())
        }),
        ("of each task", |_| (Budget::default(), tokens(100))),
    ];
    for (name, cut) in cuts {
        for count in [2_500, 10_000, 40_000] {
            let (budget, own) = cut(u64::from(count));
            let took = run_with_budget(count, &budget, own);
            println!("{name}: {count} tasks in {took:.2} s, {:.1} µs a task", took * 1e6 / f64::from(count));
        }
    }
}

/// What a plan of live tasks takes; first, while the process has no freed memory to use again.
fn measure_live_plan() {
    let events = submitted().log.swap_remove(0).events;
    let decision = Decision {
        by: cast::worker("s1"),
        previous: 0,
        at: cast::start(),
        answers: Vec::new(),
        // Read back from bytes, as a plan that is taken over: no name is shared with another copy.
        events: wire::read(&wire::body(&events), "events").unwrap(),
    };
    drop(events);
    let before = memory();
    let mut live = Plan::default();
    apply_decision(&mut live, &decision);
    println!("a plan of {} live tasks: at most {:.0} MiB of {:.0}", live.open(), memory() - before, memory());
}

/// So many that their square is too many for a test.
const MANY: usize = 20_000;

fn name(at: usize) -> String {
    format!("task-{at:06}")
}

/// A run whose time is over after 100 s.
fn timed(tasks: Vec<TaskSpec>) -> Scene {
    let budget = Budget { wall_time: Some(Duration::from_secs(100)), ..Budget::default() };
    Scene::submitted(Submission { budget, ..cast::submission(tasks) })
}

fn fails(scene: &mut Scene, task: &TaskId) {
    let broken = cast::error(ErrorKind::InvalidTask, "it can't be done");
    scene.fact(&cast::ended(task, 1, "w1", Err(broken))).unwrap();
}

fn winds_down(scene: &mut Scene) {
    scene.now = cast::after(scene.now, 100);
    scene.clock(&Overdue::WallTime).unwrap();
}

/// How long it takes to go on with a run that has ended.
fn gone_on_with(scene: &mut Scene) -> Duration {
    assert!(scene.plan.is_resumable());
    let budget = Some(Budget { wall_time: Some(Duration::from_secs(1_000)), ..Budget::default() });
    let began = Instant::now();
    scene.fact(&cast::command("more", Control::Resume { budget })).unwrap();
    began.elapsed()
}

#[track_caller]
fn is_no_square(took: Duration) {
    assert!(took < Duration::from_secs(40), "it took {took:?}, which grows with the square of the tasks");
}

#[test]
fn thousands_that_one_task_builds_on_are_opened_again_at_once() {
    let all: Vec<String> = (0..MANY).map(name).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut tasks: Vec<TaskSpec> = all.iter().map(|id| cast::task(id, &[])).collect();
    tasks.push(cast::task("sum", &all));
    tasks.push(TaskSpec {
        on_failed_dependency: millrace_protocol::plan::OnFailedDependency::Skip,
        ..cast::task("rest", &all)
    });
    let mut scene = timed(tasks);
    let last = cast::task_id(all[MANY - 1]);
    scene.claim(&last, "w1");
    fails(&mut scene, &last);
    winds_down(&mut scene);
    is_no_square(gone_on_with(&mut scene));
    let state = |id: &str| scene.plan.task(&cast::task_id(id)).unwrap();
    assert_eq!(scene.plan.count(TaskState::Ready) as usize, MANY - 1);
    assert_eq!(state("sum").state, TaskState::Cancelled, "it went with the one that is lost for good");
    assert_eq!((state("rest").state, state("rest").unmet as usize), (TaskState::Pending, MANY - 1));
}

#[test]
fn a_hundred_thousand_occasions_are_noted_at_once_and_each_of_them_once() {
    let mut plan = Scene::submitted(cast::unplanned()).plan;
    let began = Instant::now();
    for at in (0..100_000).chain(0..100_000) {
        let occasion = Occasion::Accepted { task: cast::task_id(&name(at)) };
        apply(&mut plan, &Event::OccasionRaised { occasion }, cast::start());
    }
    is_no_square(began.elapsed());
    assert_eq!(plan.occasions.len(), 100_000);
    crate::oracle::check(&plan);
    assert_eq!(plan.recounted(), plan);
}

#[test]
fn thousands_in_a_row_behind_one_that_is_lost_stay_lost_at_once() {
    let chain = (0..MANY).map(|at| match at.checked_sub(1) {
        None => cast::task(&name(at), &[]),
        Some(before) => cast::task(&name(at), &[&name(before)]),
    });
    let mut tasks: Vec<TaskSpec> = chain.collect();
    tasks.push(cast::task("apart", &[]));
    let mut scene = timed(tasks);
    let first = cast::task_id(&name(0));
    scene.claim(&first, "w1");
    winds_down(&mut scene);
    fails(&mut scene, &first);
    is_no_square(gone_on_with(&mut scene));
    assert_eq!(scene.plan.count(TaskState::Ready), 1, "the one that hangs on nothing");
    assert_eq!(scene.plan.count(TaskState::Cancelled) as usize, MANY - 1);
}
