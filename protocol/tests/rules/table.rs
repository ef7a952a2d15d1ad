//! Every state of a task × every input: what becomes of it, or why nothing does. The whole is one golden text,
//! `tests/table.txt`; and the moves in it are those that the documentation of the plan lists, no more and no fewer.

use std::collections::BTreeSet;
use std::fmt::Write;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Clock, Control, Fact, Limits, OnFailedDependency, Overdue, Plan, Refusal, TaskState, Work, apply,
};
use millrace_protocol::result::ErrorKind;

use crate::scene::{Scene, is_unchanged};
use crate::{cast, golden, show};

/// Task `t` depends on `d`, and `z` on `t`; `t` has so many attempts, and a review or none. Task `o` stands beside them,
/// so that the run goes on whatever becomes of `t`.
fn scene(max_attempts: u32, is_reviewed: bool) -> Scene {
    let mut task = if is_reviewed { cast::reviewed("t", &["d"]) } else { cast::task("t", &["d"]) };
    task.capability = cast::capability("search");
    task.limits = Limits { max_attempts, ..Limits::default() };
    task.on_failed_dependency = OnFailedDependency::Cancel;
    let (before, behind, beside) = (cast::task("d", &[]), cast::task("z", &["t"]), cast::task("o", &[]));
    Scene::submitted(cast::submission(vec![before, task, behind, beside]))
}

fn t() -> TaskId {
    cast::task_id("t")
}

fn all_known() -> BTreeSet<millrace_protocol::ids::Capability> {
    cast::capabilities(&["echo", "search"])
}

fn none_that_t_needs() -> BTreeSet<millrace_protocol::ids::Capability> {
    cast::capabilities(&["echo"])
}

fn ready(max_attempts: u32, is_reviewed: bool) -> Scene {
    let mut scene = scene(max_attempts, is_reviewed);
    scene.finish(&cast::task_id("d"), "w0");
    scene
}

fn running(max_attempts: u32, is_reviewed: bool) -> Scene {
    let mut scene = ready(max_attempts, is_reviewed);
    scene.claim(&t(), "w1");
    scene
}

fn needs_review(max_attempts: u32) -> Scene {
    let mut scene = ready(max_attempts, true);
    scene.finish(&t(), "w1");
    scene
}

fn errored(max_attempts: u32, kind: ErrorKind) -> Scene {
    let mut scene = running(max_attempts, true);
    scene.fact(&cast::ended(&t(), 1, "w1", Err(cast::error(kind, "broken")))).unwrap();
    scene
}

fn with(mut scene: Scene, change: impl FnOnce(&mut Scene)) -> Scene {
    change(&mut scene);
    scene
}

/// A name, and the run in which `t` is in that situation; each came about by inputs, none is made by hand.
fn situations() -> Vec<(&'static str, Scene)> {
    let rejected = |scene: &mut Scene| scene.judge(&t(), false);
    let lose = |scene: &mut Scene| {
        scene.capabilities(&none_that_t_needs()).unwrap();
    };
    vec![
        ("pending", scene(2, true)),
        ("ready", ready(2, true)),
        ("ready, the last attempt", ready(1, true)),
        ("running", running(2, true)),
        ("running, the last attempt", running(1, true)),
        ("running, no review asked for", running(2, false)),
        ("needs_review", needs_review(2)),
        ("needs_review, the last attempt", needs_review(1)),
        (
            "needs_review, the last try",
            with(needs_review(2), |scene| {
                for review in [1, 2] {
                    let lost = cast::error(ErrorKind::Model, "no critic");
                    scene.fact(&cast::judged(&t(), 1, review, "c1", Err(lost))).unwrap();
                }
            }),
        ),
        ("completed", with(needs_review(2), |scene| scene.judge(&t(), true))),
        ("rerun", with(needs_review(3), rejected)),
        ("rerun, the last attempt", with(needs_review(2), rejected)),
        ("errored, waits for its next attempt", errored(2, ErrorKind::Model)),
        ("errored, was pending, waits for its capability", with(scene(2, true), lose)),
        ("errored, was ready, waits for its capability", with(ready(2, true), lose)),
        ("failed", errored(2, ErrorKind::InvalidTask)),
        (
            "cancelled",
            with(running(2, true), |scene| {
                scene.fact(&cancel(Control::CancelTask { task: t(), reason: "enough".into() })).unwrap();
            }),
        ),
    ]
}

fn cancel(control: Control) -> Fact {
    Fact::Control(control)
}

/// What is done to a situation; `scene` tells the current attempt and try.
type Try = fn(&mut Scene) -> Result<Vec<millrace_protocol::plan::Event>, Refusal>;

fn current(plan: &Plan) -> (u32, u32) {
    plan.task(&t()).map(|task| (task.attempt, task.review)).unwrap()
}

fn outcome(scene: &mut Scene, kind: ErrorKind) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, _) = current(&scene.plan);
    scene.fact(&cast::ended(&t(), attempt, "w1", Err(cast::error(kind, "broken"))))
}

fn clock(scene: &mut Scene, clock: Clock) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, _) = current(&scene.plan);
    scene.clock(&Overdue::Clock(Work::Task { task: t(), attempt }, clock))
}

fn claim(scene: &mut Scene, by: &str, attempt: u32) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    scene.fact(&Fact::Claimed(cast::attempt(&t(), attempt), cast::worker(by)))
}

fn review(
    scene: &mut Scene,
    by: &str,
    outcome: Result<millrace_protocol::result::Verdict, millrace_protocol::result::TaskError>,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, review) = current(&scene.plan);
    scene.fact(&cast::judged(&t(), attempt, review, by, outcome))
}

fn inputs() -> Vec<(&'static str, Try)> {
    vec![
        ("a claim by its worker", |s| {
            let attempt = current(&s.plan).0;
            claim(s, "w1", attempt)
        }),
        ("a claim by another worker", |s| {
            let attempt = current(&s.plan).0;
            claim(s, "w2", attempt)
        }),
        ("a claim of the next attempt", |s| {
            let attempt = current(&s.plan).0 + 1;
            claim(s, "w1", attempt)
        }),
        ("a result", |s| {
            let attempt = current(&s.plan).0;
            s.fact(&cast::ended(&t(), attempt, "w1", Ok(cast::finished(9))))
        }),
        ("a result of the next attempt", |s| {
            let attempt = current(&s.plan).0 + 1;
            s.fact(&cast::ended(&t(), attempt, "w1", Ok(cast::finished(9))))
        }),
        ("an empty result", |s| {
            let (attempt, empty) = (
                current(&s.plan).0,
                millrace_protocol::plan::Finished { is_empty: true, ..cast::finished(9) },
            );
            s.fact(&cast::ended(&t(), attempt, "w1", Ok(empty)))
        }),
        ("an error", |s| outcome(s, ErrorKind::Tool)),
        ("an error that trying again can't mend", |s| outcome(s, ErrorKind::InvalidTask)),
        ("a critic's claim", |s| {
            let (attempt, review) = current(&s.plan);
            let work = Work::Review { task: t(), attempt, review };
            s.fact(&Fact::Claimed(work, cast::worker("c1")))
        }),
        ("a verdict: passed", |s| review(s, "c1", Ok(cast::verdict(true, None)))),
        ("a verdict: rejected", |s| review(s, "c1", Ok(cast::verdict(false, Some("more"))))),
        ("a verdict that contradicts itself", |s| review(s, "c1", Ok(cast::contradiction()))),
        ("a verdict by the author", |s| review(s, "w1", Ok(cast::verdict(true, None)))),
        ("a review's error", |s| review(s, "c1", Err(cast::error(ErrorKind::Model, "no answer")))),
        ("the clock: queue wait", |s| clock(s, Clock::QueueWait)),
        ("the clock: run time", |s| clock(s, Clock::RunTime)),
        ("the clock: silence", |s| clock(s, Clock::Silence)),
        ("the clock of its review", |s| {
            let (attempt, review) = current(&s.plan);
            s.clock(&Overdue::Clock(Work::Review { task: t(), attempt, review }, Clock::QueueWait))
        }),
        ("a retry too early", |s| s.clock(&Overdue::Retry(t()))),
        ("a retry in time", |s| {
            s.now = cast::after(s.now, 1);
            s.clock(&Overdue::Retry(t()))
        }),
        ("its dependency is accepted", |s| {
            s.fact(&Fact::Claimed(cast::attempt(&cast::task_id("d"), 1), cast::worker("w0")))?;
            s.fact(&cast::ended(&cast::task_id("d"), 1, "w0", Ok(cast::finished(9))))
        }),
        ("its dependency fails", |s| {
            let broken = cast::error(ErrorKind::InvalidTask, "broken");
            s.fact(&Fact::Claimed(cast::attempt(&cast::task_id("d"), 1), cast::worker("w0")))?;
            s.fact(&cast::ended(&cast::task_id("d"), 1, "w0", Err(broken)))
        }),
        ("its capability is lost", |s| s.capabilities(&none_that_t_needs())),
        ("its capability is found", |s| s.capabilities(&all_known())),
        ("the task is cancelled", |s| {
            s.fact(&cancel(Control::CancelTask { task: t(), reason: "enough".into() }))
        }),
        ("the run is cancelled", |s| s.fact(&cancel(Control::CancelRun { reason: "enough".into() }))),
    ]
}

fn state(scene: &Scene) -> TaskState {
    scene.plan.task(&t()).unwrap().state
}

/// The table, and the moves of `t` that occur in it.
fn table() -> (String, BTreeSet<(TaskState, TaskState)>) {
    let (mut text, mut moves) = (String::new(), BTreeSet::new());
    text.push_str("Task t depends on d, and z on t; o stands beside them. What an input makes of t, and all that it decides.\n");
    for (at, (name, _)) in situations().iter().enumerate() {
        write!(text, "\n== {name}\n").unwrap();
        for (input, attempt) in inputs() {
            let (_, mut scene) = situations().swap_remove(at);
            let (before, decided) = (state(&scene), attempt(&mut scene));
            moves.insert((before, state(&scene)));
            let cell = match decided {
                Err(refusal) => format!("refused: {refusal}"),
                Ok(events) if events.is_empty() => "nothing to decide".into(),
                Ok(events) => {
                    let events: Vec<_> = events.iter().map(show::event).collect();
                    format!("{} | {}", state(&scene), events.join("; "))
                }
            };
            writeln!(text, "{input:38} -> {cell}").unwrap();
        }
    }
    moves.retain(|(from, to)| from != to);
    (text, moves)
}

#[test]
fn every_state_answers_every_input_as_the_golden_table_says() {
    let (text, _) = table();
    golden::compare("table.txt", &text);
}

#[test]
fn the_situations_are_what_their_names_say_and_cover_all_nine_states() {
    let mut seen = BTreeSet::new();
    for (name, scene) in situations() {
        let word = name.split(',').next().unwrap();
        assert_eq!(state(&scene).as_str(), word, "{name}");
        seen.insert(state(&scene));
    }
    assert_eq!(seen.len(), TaskState::ALL.len());
}

#[test]
fn the_moves_in_the_table_are_those_that_the_documentation_lists() {
    let (_, moves) = table();
    assert_eq!(moves, documented_moves());
}

#[test]
fn what_is_refused_decides_nothing_and_changes_nothing() {
    for (at, (name, before)) in situations().into_iter().enumerate() {
        for (input, attempt) in inputs() {
            let (_, mut scene) = situations().swap_remove(at);
            if attempt(&mut scene).is_err() {
                // Neighbours may have moved (a claim of `d` is part of two inputs); `t` and what it owes may not.
                assert_eq!(scene.plan.task(&t()), before.plan.task(&t()), "{name}: {input}");
            }
        }
    }
}

#[test]
fn nothing_counts_before_a_run_began_or_after_it_ended() {
    for (input, attempt) in inputs() {
        let mut over = running(2, true);
        over.fact(&cancel(Control::CancelRun { reason: "enough".into() })).unwrap();
        let before = over.plan.clone();
        let refused = attempt(&mut over).unwrap_err();
        assert!(matches!(refused, Refusal::RunAlreadyEnded(_)), "{input}: {refused}");
        assert!(is_unchanged(&before, &over.plan), "{input}");
    }
    let mut never = Scene::new();
    let refused = never.fact(&cancel(Control::CancelRun { reason: "enough".into() })).unwrap_err();
    assert_eq!(refused, Refusal::NotSubmitted);
    assert_eq!(never.capabilities(&all_known()).unwrap_err(), Refusal::NotSubmitted);
}

#[test]
fn a_log_of_moves_that_no_rule_makes_can_not_break_the_fold() {
    // Terminal, open and terminal again, a review of what was never finished, a task that never was.
    use millrace_protocol::plan::Event;
    let mut scene = running(2, true);
    let moves = [
        Event::TaskFailed { task: t(), reason: "a".into() },
        Event::TaskFailed { task: t(), reason: "b".into() },
        Event::TaskReady { task: t(), attempt: 7 },
        Event::TaskCancelled { task: t(), reason: "c".into() },
        Event::TaskAccepted { task: t(), attempt: 9 },
        Event::TaskPending { task: t() },
        Event::ReviewErrored { task: t(), attempt: 1, review: 1, error: "e".into(), again: true },
        Event::TaskAccepted { task: cast::task_id("nobody"), attempt: 1 },
        Event::PlanningErrored { turn: 4, attempt: 4, error: "e".into(), retry_at: None },
    ];
    for event in &moves {
        apply(&mut scene.plan, event, scene.now);
        crate::oracle::check(&scene.plan);
    }
}

/// The rows of the transition table in the documentation of `plan`, without those that add a task.
fn documented_moves() -> BTreeSet<(TaskState, TaskState)> {
    let mut moves = BTreeSet::new();
    let rows = include_str!("../../src/plan/mod.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    for row in rows.filter(|row| !row.starts_with("from |") && !row.starts_with("(new)")) {
        let mut cells = row.split(" | ");
        for from in states(cells.next().unwrap()) {
            for to in states(cells.clone().next().unwrap()) {
                moves.insert((from, to));
            }
        }
    }
    moves.retain(|(from, to)| from != to);
    moves
}

fn states(cell: &str) -> Vec<TaskState> {
    if cell == "any open state" {
        return TaskState::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
    }
    let named = |name: &str| TaskState::ALL.into_iter().find(|state| state.as_str() == name);
    cell.split(", ").map(|name| named(name).unwrap_or_else(|| panic!("{name:?} is no state"))).collect()
}
