//! A planner's draft: what it takes there is what is carried out, where the plan has stayed as it was; and what it is
//! refused there would be refused here.

use std::sync::Arc;

use millrace_protocol::plan::{
    DEFAULT_DEPTH, DEFAULT_TASKS, Draft, Edit, Event, Fact, Mode, Plan, Planned, Refusal, Submission,
    TaskSpec,
};
use millrace_protocol::result::{ModelUsage, Proposal, Usage};
use proptest::prelude::*;

use crate::cast;
use crate::random::{self, Draws, Offers};
use crate::scene::Scene;

/// A run that its planner is asked about, with a plan under way.
fn asked(draws: &mut Draws) -> Scene {
    let tasks = random::plan(draws);
    let mode = if draws.chance(20) { Mode::Fixed } else { Mode::Hybrid };
    let consult = Some(millrace_protocol::plan::Consult::Judgement);
    let mut scene = Scene::submitted(Submission { mode, consult, ..cast::submission(tasks) });
    for _ in 0..draws.below(30) {
        let fact = random::fact(draws, &scene.plan);
        let _ = scene.fact(&fact);
    }
    let text = "look".to_owned();
    let _ = scene.fact(&cast::command("ask", millrace_protocol::plan::Control::Message { text }));
    let _ = scene.fact(&cast::command("go on", millrace_protocol::plan::Control::Resume { budget: None }));
    scene
}

fn land(scene: &mut Scene, edits: Vec<Edit>) -> Vec<Event> {
    let (turn, attempt) =
        scene.plan.planning.as_ref().map(|planning| (planning.turn, planning.attempt)).unwrap();
    let proposal = Proposal { reasoning: "so it goes".into(), tasks: Vec::new(), edits };
    let planned = Planned { proposal, usage: Usage::default(), models: ModelUsage::new() };
    scene.fact(&Fact::Planned { turn, attempt, outcome: Ok(planned) }).unwrap()
}

fn states(plan: &Plan) -> Vec<(&TaskSpec, millrace_protocol::plan::TaskState, u32)> {
    plan.tasks().iter().map(|task| (&task.spec, task.state, task.attempt)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_draft_takes_is_carried_out_as_it_was_tried(seed: u64) {
        let mut draws = Draws(seed);
        let mut scene = asked(&mut draws);
        let is_asked = scene.plan.planning.as_ref().is_some_and(|planning| planning.retry_at.is_none());
        if !scene.plan.is_live() || !is_asked {
            return Ok(());
        }
        let cluster = Arc::new(Offers::ALL.cluster());
        let mut draft = Draft::new(scene.plan.clone(), cluster, scene.now);
        for _ in 0..draws.below(8) {
            let edit = random::edit(&mut draws, draft.plan());
            let before = states(draft.plan()).len();
            if draft.apply(edit).is_err() {
                prop_assert_eq!(states(draft.plan()).len(), before);
            }
        }
        let tried = draft.plan().clone();
        let edits = draft.into_edits();
        if edits.is_empty() {
            return Ok(());
        }
        let events = land(&mut scene, edits);
        let is_whole = |event: &Event| {
            matches!(event, Event::ProposalAccepted { refused, .. } if refused.is_empty())
        };
        prop_assert!(events.first().is_some_and(is_whole), "{:?}", events.first());
        let own = scene.log.last().unwrap().answers[0].events as usize;
        // What was settled behind it is another matter.
        if own == events.len() {
            prop_assert_eq!(states(&tried), states(&scene.plan));
        }
    }
}

#[test]
fn a_draft_takes_no_task_that_nobody_can_do() {
    let scene = Scene::submitted(cast::unplanned());
    let mut draft = Draft::new(scene.plan, Arc::new(cast::cluster(&["echo"])), scene.now);
    let search = TaskSpec { capability: cast::capability("search"), ..cast::task("a", &[]) };
    let refused = draft.apply(Edit::Add(vec![search])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "task a needs the capability search, which nobody offers; there are echo"
    );
    assert!(draft.edits().is_empty() && draft.plan().tasks().is_empty());
}

#[test]
fn a_finished_draft_takes_nothing_more() {
    let mut scene = Scene::submitted(Submission {
        mode: Mode::Hybrid,
        ..cast::submission(vec![TaskSpec { is_final: true, ..cast::task("a", &[]) }, cast::task("b", &[])])
    });
    scene.finish(&cast::task_id("a"), "w1");
    let mut draft = Draft::new(scene.plan, Arc::new(cast::cluster(&["echo"])), scene.now);
    draft.apply(Edit::Finish { reason: "it is there".into() }).unwrap();
    let refused = draft.apply(Edit::Add(vec![cast::task("c", &[])])).unwrap_err();
    assert!(matches!(refused, Refusal::WrongMoment(_)), "{refused}");
    assert_eq!(draft.edits().len(), 1);
}

/// Where a run says nothing of it, a planner may have a thousand tasks, and a hundred in a row.
#[test]
fn a_planner_that_wants_thousands_of_tasks_is_told_how_many_it_may_have() {
    let draft = || {
        let scene = Scene::submitted(cast::unplanned());
        Draft::new(scene.plan, Arc::new(cast::cluster(&["echo"])), scene.now)
    };
    let side_by_side =
        |count: u32| (0..count).map(|at| cast::task(&format!("t{at}"), &[])).collect::<Vec<_>>();
    assert!(draft().apply(Edit::Add(side_by_side(DEFAULT_TASKS))).is_ok());
    let refused = draft().apply(Edit::Add(side_by_side(DEFAULT_TASKS + 1))).unwrap_err();
    assert_eq!(refused.to_string(), "the plan would have 1001 tasks; at most 1000 are allowed in this run");
    let in_a_row = |count: u32| {
        let above = |at: u32| at.checked_sub(1).map(|above| format!("t{above}"));
        let task =
            |at| cast::task(&format!("t{at}"), &above(at).iter().map(String::as_str).collect::<Vec<_>>());
        (0..count).map(task).collect::<Vec<_>>()
    };
    assert!(draft().apply(Edit::Add(in_a_row(DEFAULT_DEPTH))).is_ok());
    let refused = draft().apply(Edit::Add(in_a_row(DEFAULT_DEPTH + 1))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the plan would have 101 tasks in a row; at most 100 are allowed in this run"
    );
    // A plan that a user has made deeper may still grow at its side.
    let deep = Submission { mode: Mode::Hybrid, ..cast::submission(in_a_row(DEFAULT_DEPTH + 5)) };
    let scene = Scene::submitted(deep);
    let mut draft = Draft::new(scene.plan, Arc::new(cast::cluster(&["echo"])), scene.now);
    assert!(draft.apply(Edit::Add(vec![cast::task("beside", &["t0"])])).is_ok());
    assert!(draft.apply(Edit::Add(vec![cast::task("below", &["t104"])])).is_err());
}

#[test]
fn a_turn_of_thousands_of_refused_changes_is_told_in_a_few_words() {
    let mut scene = Scene::submitted(Submission {
        mode: Mode::Hybrid,
        ..cast::submission(vec![cast::task("a", &[]), TaskSpec { is_final: true, ..cast::task("z", &["a"]) }])
    });
    let text = "look".to_owned();
    scene.fact(&cast::command("c1", millrace_protocol::plan::Control::Message { text })).unwrap();
    let cancel = |at: u32| Edit::Cancel { task: cast::task_id(&format!("nobody-{at}")), reason: "r".into() };
    let mut edits: Vec<Edit> = (0..5_000).map(cancel).collect();
    edits.push(Edit::Add(vec![cast::task("b", &[])]));
    let events = land(&mut scene, edits);
    let Event::ProposalAccepted { refused, .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!(refused.len(), 21);
    assert_eq!(refused[20], "and 4980 more");
    assert!(scene.plan.task(&cast::task_id("b")).is_some(), "what holds is carried out");
}
