//! How fast a log folds. It measures and prints; run it in release:
//! `cargo test -p millrace-protocol --release -- --ignored --nocapture fold`.

use std::time::Instant;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Decision, Event, Plan, apply_decision};
use millrace_protocol::wire;

use crate::cast;
use crate::scene::Scene;

const TASKS: u32 = 100_000;
const LAYER: u32 = 1_000;

/// The log of a layered plan, a decision a fact: claim and result of each task, a verdict on every second.
fn log() -> Vec<Decision> {
    let name = |at: u32| format!("task-{at:06}");
    let tasks = (0..TASKS).map(|at| {
        let above = at.checked_sub(LAYER).map(|above| [name(above), name(above / LAYER * LAYER)]);
        let mut above: Vec<&str> = above.iter().flatten().map(String::as_str).collect();
        above.dedup();
        if at % 2 == 0 { cast::task(&name(at), &above) } else { cast::reviewed(&name(at), &above) }
    });
    let mut scene = Scene::submitted(cast::submission(tasks.collect()));
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
    drop((read, bodies, plan));

    let fresh: Vec<Event> = log.into_iter().next().unwrap().events;
    let before = memory();
    let mut live = Plan::default();
    let first = Decision { events: fresh, ..Decision::clone(&decision_of(&[])) };
    apply_decision(&mut live, &first);
    println!("a plan of {} live tasks: about {:.0} MiB", live.open(), memory() - before);
}

fn decision_of(events: &[Event]) -> Decision {
    Decision {
        by: cast::worker("s1"),
        previous: 0,
        at: cast::start(),
        answers: Vec::new(),
        events: events.to_vec(),
    }
}
