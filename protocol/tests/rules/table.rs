//! Every state of a task × every input: what becomes of it, or why nothing does. The whole is one golden text,
//! `tests/table.txt`; and the moves in it are those that the documentation of the plan lists, no more and no fewer.

use std::collections::BTreeSet;
use std::fmt::Write;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, Clock, Cluster, Control, Edit, Fact, Limits, OnFailedDependency, Overdue, Patch, Plan, Refusal,
    Submission, TaskState, Work, apply,
};
use millrace_protocol::result::{CapabilityDescription, ErrorKind, ModelUsage, Usage};

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
    // A time that no situation takes but those in which it is over.
    let budget = Budget { wall_time: Some(std::time::Duration::from_secs(86_400)), ..Budget::default() };
    Scene::submitted(Submission { budget, ..cast::submission(vec![before, task, behind, beside]) })
}

fn t() -> TaskId {
    cast::task_id("t")
}

fn all_known() -> Cluster {
    cast::cluster(&["echo", "search"])
}

fn none_that_t_needs() -> Cluster {
    cast::cluster(&["echo"])
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
        scene.cluster(&none_that_t_needs()).unwrap();
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
                    scene.now = cast::after(scene.now, 2);
                    scene.clock(&Overdue::RetryReview(t())).unwrap();
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
    .into_iter()
    .chain(later_situations())
    .collect()
}

/// Those that come of changed plans, budgets and users.
fn later_situations() -> Vec<(&'static str, Scene)> {
    let rejected = |scene: &mut Scene| scene.judge(&t(), false);
    let mistaken = |scene: &mut Scene| {
        scene.cluster(&strict()).unwrap();
    };
    let edited = |scene: &mut Scene, edit: Edit| {
        scene.fact(&cast::command("c3", Control::Edit(edit))).unwrap();
    };
    let done = || with(needs_review(2), |scene| scene.judge(&t(), true));
    vec![
        (
            "needs_review, between two tries",
            with(needs_review(2), |scene| {
                let lost = cast::error(ErrorKind::Model, "no critic");
                scene.fact(&cast::judged(&t(), 1, 1, "c1", Err(lost))).unwrap();
            }),
        ),
        ("errored, was pending, waits for parameters", with(scene(2, true), mistaken)),
        ("errored, was ready, waits for parameters", with(ready(2, true), mistaken)),
        ("errored, was rerun, waits for parameters", with(with(needs_review(3), rejected), mistaken)),
        (
            "ready, the run is paused",
            with(ready(2, true), |scene| {
                scene.fact(&cast::command("c3", Control::Pause)).unwrap();
            }),
        ),
        ("ready, patched", with(ready(2, true), |scene| edited(scene, otherwise()))),
        ("ready, opened again", with(errored(2, ErrorKind::InvalidTask), |scene| edited(scene, again(t())))),
        (
            "pending, what it was built on runs again",
            with(done(), |scene| edited(scene, again(cast::task_id("d")))),
        ),
        (
            "cancelled, lost with what it depends on",
            with(scene(2, true), |scene| {
                let d = cast::task_id("d");
                scene.claim(&d, "w0");
                let broken = cast::error(ErrorKind::InvalidTask, "broken");
                scene.fact(&cast::ended(&d, 1, "w0", Err(broken))).unwrap();
            }),
        ),
        (
            "failed, what it depends on runs again",
            with(errored(2, ErrorKind::InvalidTask), |scene| edited(scene, again(cast::task_id("d")))),
        ),
        ("running, the run comes to its end", with(running(2, true), spend)),
        ("needs_review, the run comes to its end", with(needs_review(2), spend)),
        ("cancelled, the run has ended and can be gone on with", with(ready(2, true), spend)),
    ]
}

/// The time that the run may take is over.
fn spend(scene: &mut Scene) {
    scene.now = cast::after(scene.now, 90_000);
    scene.clock(&Overdue::WallTime).unwrap();
}

fn strict() -> Cluster {
    let strict = CapabilityDescription {
        parameters: Some(serde_json::json!({ "type": "object", "required": ["q"] })),
        ..CapabilityDescription::new(cast::capability("search"), "it searches")
    };
    Cluster::of(&[strict, CapabilityDescription::new(cast::capability("echo"), "it says it again")])
}

fn otherwise() -> Edit {
    Edit::Patch(Patch { objective: Some("do it otherwise".into()), ..Patch::of(t()) })
}

fn again(task: TaskId) -> Edit {
    Edit::Retry { task, feedback: Some("harder".into()) }
}

fn after(tasks: &[&str]) -> Edit {
    let depends_on = tasks.iter().map(|id| cast::task_id(id)).collect();
    Edit::Patch(Patch { depends_on: Some(depends_on), ..Patch::of(t()) })
}

fn wants(scene: &mut Scene, edit: Edit) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    scene.fact(&cast::command("c2", Control::Edit(edit)))
}

fn cancel(control: Control) -> Fact {
    cast::command("c1", control)
}

fn steer(scene: &mut Scene, control: Control) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    scene.fact(&cast::command("c2", control))
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
        ("its capability is lost", |s| s.cluster(&none_that_t_needs())),
        ("its capability is found", |s| s.cluster(&all_known())),
        ("its parameters become wrong", |s| s.cluster(&strict())),
        ("a review's retry in time", |s| {
            s.now = cast::after(s.now, 1);
            s.clock(&Overdue::RetryReview(t()))
        }),
        ("the task is cancelled", |s| steer(s, Control::CancelTask { task: t(), reason: "enough".into() })),
        ("the run is cancelled", |s| steer(s, Control::CancelRun { reason: "enough".into() })),
        ("a user patches it", |s| wants(s, otherwise())),
        ("a user gives it to another capability", |s| {
            let echo = Some(cast::capability("echo"));
            wants(s, Edit::Patch(Patch { capability: echo, ..Patch::of(t()) }))
        }),
        ("a user lets it wait for o too", |s| wants(s, after(&["d", "o"]))),
        ("a user lets it wait for nothing", |s| wants(s, after(&[]))),
        ("a user wants it once more", |s| wants(s, again(t()))),
        ("a user wants d once more", |s| wants(s, again(cast::task_id("d")))),
        ("a user makes it final", |s| wants(s, Edit::MarkFinal { task: t() })),
        ("a user pauses the run", |s| steer(s, Control::Pause)),
        ("a user resumes the run", |s| steer(s, Control::Resume { budget: None })),
        ("a user gives the run more time", |s| {
            let more =
                Budget { wall_time: Some(std::time::Duration::from_secs(200_000)), ..Budget::default() };
            steer(s, Control::Resume { budget: Some(more) })
        }),
        ("the time of the run is over", |s| {
            s.now = cast::after(s.now, 90_000);
            s.clock(&Overdue::WallTime)
        }),
        ("the run is retired", |s| s.clock(&Overdue::Retire)),
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
    assert_eq!(never.cluster(&all_known()).unwrap_err(), Refusal::NotSubmitted);
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
        Event::TaskCancelled { task: t(), reason: "c".into(), with: None, usage: Usage::default() },
        Event::TaskAccepted { task: t(), attempt: 9 },
        Event::TaskPending { task: t() },
        Event::ReviewErrored {
            task: t(),
            attempt: 1,
            review: 1,
            error: "e".into(),
            again: true,
            retry_at: None,
            usage: Usage::default(),
            models: ModelUsage::new(),
        },
        Event::TaskAccepted { task: cast::task_id("nobody"), attempt: 1 },
        Event::PlanningErrored {
            turn: 4,
            attempt: 4,
            error: "e".into(),
            retry_at: None,
            outgrew: false,
            usage: Usage::default(),
            models: ModelUsage::new(),
        },
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
