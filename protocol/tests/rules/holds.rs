//! Runs that wait before their first task: for their turn in a session, or for a place among the running runs.

use std::time::Duration;

use millrace_protocol::plan::{
    Budget, CommandAction, Edit, Effect, EffectScope, EndReason, HoldChange, PlanTime, PlanningMode, Refusal,
    RunHold, SessionTurn, Submission, TaskSpec, TaskState, pending_effects,
};
use millrace_protocol::registry::{QueuePlace, RunSummary};

use crate::cast;
use crate::oracle;
use crate::scene::RunScene;

/// The changes of a hold, with their names.
fn all_changes() -> [(&'static str, HoldChange); 4] {
    [
        ("wait", HoldChange::WaitForPlace(cast::test_start_time())),
        ("turn", cast::first_turn()),
        ("grant", HoldChange::PlaceGranted),
        ("refuse", HoldChange::PlaceRefused { waiting: 5 }),
    ]
}

fn submission(mode: PlanningMode) -> Submission {
    let tasks = vec![cast::echo_task("a", &[]), cast::echo_task("b", &["a"])];
    match mode {
        PlanningMode::Fixed => cast::fixed_plan_submission(tasks),
        PlanningMode::Llm | PlanningMode::Hybrid => cast::planner_submission(),
    }
}

fn held_by_session(mode: PlanningMode) -> RunScene {
    RunScene::from_submission(Submission { session: Some(cast::session()), ..submission(mode) })
}

fn held_by_both(mode: PlanningMode) -> RunScene {
    let mut scene = held_by_session(mode);
    scene.change_hold(&HoldChange::WaitForPlace(cast::test_start_time())).unwrap();
    scene
}

fn held_by_place(mode: PlanningMode) -> RunScene {
    let mut scene = held_by_both(mode);
    scene.change_hold(&cast::first_turn()).unwrap();
    scene
}

fn begun(mode: PlanningMode) -> RunScene {
    let mut scene = held_by_place(mode);
    scene.change_hold(&HoldChange::PlaceGranted).unwrap();
    scene
}

fn offers(scene: &RunScene) -> usize {
    let effects = pending_effects(&scene.plan, EffectScope::All);
    effects.iter().filter(|effect| matches!(effect, Effect::Offer(_))).count()
}

#[test]
fn every_change_in_every_state() {
    let cancelled = || {
        let mut scene = held_by_session(PlanningMode::Fixed);
        let cancel = CommandAction::CancelRun { reason: "enough".into() };
        scene.decide_fact(&cast::command_fact("c", cancel)).unwrap();
        scene
    };
    let unheld = || RunScene::from_submission(submission(PlanningMode::Fixed));
    type State<'a> = (&'a str, &'a dyn Fn() -> RunScene, &'a [&'a str]);
    let states: [State<'_>; 7] = [
        ("not submitted", &RunScene::new, &[]),
        ("never held", &unheld, &["wait"]),
        ("held by its session", &|| held_by_session(PlanningMode::Fixed), &["wait", "turn"]),
        ("held by both", &|| held_by_both(PlanningMode::Fixed), &["turn", "grant", "refuse"]),
        ("held by a place", &|| held_by_place(PlanningMode::Fixed), &["grant", "refuse"]),
        ("begun", &|| begun(PlanningMode::Fixed), &[]),
        ("cancelled", &cancelled, &[]),
    ];
    for (name, scene, accepted) in states {
        for (change_name, change) in all_changes() {
            let mut scene = scene();
            let before = scene.plan.clone();
            let decided = scene.change_hold(&change);
            assert_eq!(
                decided.is_ok(),
                accepted.contains(&change_name),
                "{name}: {change_name}: {decided:?}"
            );
            if decided.is_ok() {
                oracle::check_invariants_after_decision(&scene.plan);
                let again = scene.change_hold(&change);
                assert!(again.is_err(), "{name}: {change_name} twice");
            } else {
                assert_eq!(scene.plan, before, "{name}: {change_name} changes nothing");
            }
        }
    }
}

#[test]
fn held_run_dispatches_reserves_and_times_nothing() {
    for mode in [PlanningMode::Fixed, PlanningMode::Llm] {
        for scene in [held_by_session, held_by_both, held_by_place] {
            let mut scene = scene(mode);
            assert_eq!(offers(&scene), 0);
            scene.now = cast::time_after(scene.now, 90 * 86_400);
            assert_eq!(scene.overdue_inputs_now(), [], "no clock runs");
            assert_eq!(scene.plan.worked_time(scene.now).as_secs(), 0);
            assert_eq!(scene.plan.budget.reserved, Default::default(), "nothing is reserved");
        }
    }
}

#[test]
fn clocks_begin_when_the_last_hold_ends() {
    let budget = Budget { wall_time: Some(Duration::from_secs(100)), ..Budget::default() };
    let waiting = TaskSpec {
        not_before: Some(PlanTime::AfterStart(Duration::from_secs(2_000))),
        ..cast::echo_task("later", &[])
    };
    let tasks = vec![cast::echo_task("a", &[]), waiting];
    let session = Some(cast::session());
    let mut scene =
        RunScene::from_submission(Submission { budget, session, ..cast::fixed_plan_submission(tasks) });
    scene.now = cast::time_after(scene.now, 1_000);
    scene.decide_fact(&cast::command_fact("p", CommandAction::Pause)).unwrap();
    scene.now = cast::time_after(scene.now, 1_000);
    scene.change_hold(&cast::first_turn()).unwrap();
    scene.now = cast::time_after(scene.now, 1_000);
    scene.decide_fact(&cast::command_fact("r", CommandAction::Resume { budget: None })).unwrap();
    assert_eq!(offers(&scene), 1, "the other task has a start time");
    assert_eq!(scene.overdue_inputs_now(), []);
    scene.now = cast::time_after(scene.now, 99);
    assert_eq!(scene.plan.worked_time(scene.now).as_secs(), 99, "waits and pauses do not count");
    let later = scene.plan.task(&cast::task_id("later")).unwrap();
    assert_eq!(later.state(), TaskState::Waiting, "its time counts from the end of the hold");
}

#[test]
fn turn_adds_the_earlier_runs_and_their_documents() {
    let mut scene = held_by_session(PlanningMode::Llm);
    let earlier = vec![cast::earlier_run()];
    let documents = Some(cast::documents());
    let turn = SessionTurn { position: 2, earlier: earlier.clone(), documents: documents.clone() };
    scene.change_hold(&HoldChange::SessionTurn(Box::new(turn))).unwrap();
    let start = scene.plan.run.start.as_ref().unwrap();
    assert_eq!((&start.after, &start.documents), (&earlier, &documents));
    assert_eq!(scene.plan.run.holds.position, Some(2));
    assert_eq!(offers(&scene), 1, "the planner's turn is dispatched");
}

#[test]
fn every_command_to_a_held_run() {
    let more = CommandAction::Resume { budget: Some(Budget { steps: Some(9), ..Budget::default() }) };
    let add = CommandAction::Edit(Edit::Add(vec![cast::echo_task("c", &[])]));
    let cancel_task = CommandAction::CancelTask { task: cast::task_id("a"), reason: "no".into() };
    for (command, is_accepted, has_ended) in [
        (CommandAction::CancelRun { reason: "enough".into() }, true, true),
        (CommandAction::Pause, true, false),
        (CommandAction::Interrupt, true, false),
        (CommandAction::Resume { budget: None }, false, false),
        (more, true, false),
        (add, true, false),
        (cancel_task, true, true),
        (CommandAction::Message { text: "hurry".into() }, false, false),
        (CommandAction::Signal { name: "go".into(), data: String::new() }, true, false),
    ] {
        let mut scene = held_by_session(PlanningMode::Fixed);
        let decided = scene.decide_fact(&cast::command_fact("c", command.clone()));
        assert_eq!(decided.is_ok(), is_accepted, "{command:?}: {decided:?}");
        assert_eq!(scene.plan.run.end.is_some(), has_ended, "{command:?}");
        assert_eq!(offers(&scene), 0, "{command:?}");
        oracle::check_invariants_after_decision(&scene.plan);
    }
}

#[test]
fn run_that_is_paused_while_it_waits_gets_its_place_after_it_is_resumed() {
    let mut scene = held_by_place(PlanningMode::Fixed);
    scene.decide_fact(&cast::command_fact("p", CommandAction::Pause)).unwrap();
    assert!(scene.change_hold(&HoldChange::PlaceGranted).is_err());
    scene.decide_fact(&cast::command_fact("r", CommandAction::Resume { budget: None })).unwrap();
    scene.change_hold(&HoldChange::PlaceGranted).unwrap();
    assert!(offers(&scene) > 0);
}

#[test]
fn refused_run_ends_with_the_reason_and_can_not_be_resumed() {
    for mode in [PlanningMode::Fixed, PlanningMode::Llm] {
        let mut scene = held_by_both(mode);
        scene.change_hold(&HoldChange::PlaceRefused { waiting: 5 }).unwrap();
        let end = scene.plan.run.end.as_ref().unwrap();
        assert_eq!((end.reason, end.is_resumable), (EndReason::Failed, false));
        assert!(end.detail.contains("5 runs wait for a place"), "{}", end.detail);
        assert_eq!(pending_effects(&scene.plan, EffectScope::All), [Effect::Close]);
        let again = scene.decide_fact(&cast::command_fact("r", CommandAction::Resume { budget: None }));
        assert!(matches!(again, Err(Refusal::RunAlreadyEnded(EndReason::Failed))));
    }
}

#[test]
fn summary_of_a_held_run_names_what_it_waits_for() {
    let summary_of = |scene: &RunScene| {
        let lane = millrace_protocol::ids::Lane(0);
        let run = millrace_protocol::ids::RunId::new("r3").unwrap();
        RunSummary::from_plan(&run, lane, &scene.plan, scene.now).unwrap()
    };
    let behind = Some(millrace_protocol::ids::RunId::new("r2").unwrap());
    let place = Some(QueuePlace { position: 2, behind });
    let scene = held_by_session(PlanningMode::Llm);
    let summary = summary_of(&scene);
    assert_eq!(summary.waiting_for.as_deref(), Some("the runs before it in its session"));
    let placed = summary.with_queue_place(place.clone());
    assert_eq!(placed.waiting_for.as_deref(), Some("run r2 in session chat-7, position 2"));
    let begun = summary_of(&begun(PlanningMode::Llm)).with_queue_place(place);
    assert_eq!((begun.waiting_for, begun.queue_place, begun.hold), (None, None, None));
    let waiting = summary_of(&held_by_place(PlanningMode::Fixed));
    assert_eq!(waiting.hold, Some(RunHold::Place));
    let waiting = waiting.with_queue_place(Some(QueuePlace { position: 7, behind: None }));
    assert_eq!(waiting.waiting_for.as_deref(), Some("a place among the running runs, position 7"));
}
