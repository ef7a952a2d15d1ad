//! Drafts of planning turns: if the plan has not changed meanwhile, every edit that a draft accepts is applied, and every
//! edit that it rejects would be rejected.

use std::sync::Arc;

use millrace_protocol::plan::{
    DEFAULT_DEPTH, DEFAULT_TASKS, Edit, Event, Fact, Plan, PlanDraft, PlanningEvent, PlanningMode,
    PlanningResult, Refusal, Submission, TaskSpec,
};
use millrace_protocol::result::{ModelUsage, PlanProposal, Usage};
use proptest::prelude::*;

use crate::cast;
use crate::random::{self, RandomDraws, RegisteredTestCapabilities};
use crate::scene::RunScene;

/// A run with a plan and an open planning turn.
fn run_with_open_turn(draws: &mut RandomDraws) -> RunScene {
    let tasks = random::random_plan(draws);
    let mode = if draws.draw_chance(20) { PlanningMode::Fixed } else { PlanningMode::Hybrid };
    let consult = Some(millrace_protocol::plan::PlannerConsultMode::Judgement);
    let mut scene =
        RunScene::from_submission(Submission { mode, consult, ..cast::fixed_plan_submission(tasks) });
    for _ in 0..draws.draw_below(30) {
        let fact = random::random_fact(draws, &scene.plan);
        let _ = scene.decide_fact(&fact);
    }
    let text = "look".to_owned();
    let _ = scene
        .decide_fact(&cast::command_fact("ask", millrace_protocol::plan::CommandAction::Message { text }));
    let _ = scene.decide_fact(&cast::command_fact(
        "go on",
        millrace_protocol::plan::CommandAction::Resume { budget: None },
    ));
    scene
}

fn deliver_proposal(scene: &mut RunScene, edits: Vec<Edit>) -> Vec<Event> {
    let (turn, attempt) =
        scene.plan.planning.turn.as_ref().map(|planning| (planning.turn, planning.attempt)).unwrap();
    let proposal = PlanProposal { reasoning: "so it goes".into(), tasks: Vec::new(), edits, fallback: None };
    let planned = PlanningResult { proposal, usage: Usage::default(), models: ModelUsage::new() };
    scene.decide_fact(&Fact::Planned { turn, attempt, outcome: Ok(planned) }).unwrap()
}

fn task_specs_and_states(plan: &Plan) -> Vec<(&TaskSpec, millrace_protocol::plan::TaskState, u32)> {
    plan.tasks().iter().map(|task| (&*task.spec, task.state(), task.attempt)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepted_edits_are_applied_as_drafted(seed: u64) {
        let mut draws = RandomDraws(seed);
        let mut scene = run_with_open_turn(&mut draws);
        let is_asked = scene.plan.planning.turn.as_ref().is_some_and(|planning| planning.retry_at.is_none());
        if !scene.plan.is_live() || !is_asked {
            return Ok(());
        }
        let cluster = Arc::new(RegisteredTestCapabilities::ALL.to_registry());
        let mut draft = PlanDraft::new(scene.plan.clone(), cluster, scene.now);
        for _ in 0..draws.draw_below(8) {
            let edit = random::random_edit(&mut draws, draft.plan());
            let before = task_specs_and_states(draft.plan()).len();
            if draft.apply_edit(edit).is_err() {
                prop_assert_eq!(task_specs_and_states(draft.plan()).len(), before);
            }
        }
        let tried = draft.plan().clone();
        let edits = draft.into_edits();
        if edits.is_empty() {
            return Ok(());
        }
        let events = deliver_proposal(&mut scene, edits);
        let is_whole = |event: &Event| {
            matches!(event, Event::Planning(PlanningEvent::ProposalAccepted { refused, .. }) if refused.is_empty())
        };
        prop_assert!(events.first().is_some_and(is_whole), "{:?}", events.first());
        let own = scene.log.last().unwrap().answers[0].events as usize;
        // Settling may add further events.
        if own == events.len() {
            prop_assert_eq!(task_specs_and_states(&tried), task_specs_and_states(&scene.plan));
        }
    }
}

#[test]
fn draft_rejects_a_task_of_unknown_capability() {
    let scene = RunScene::from_submission(cast::planner_submission());
    let mut draft =
        PlanDraft::new(scene.plan, Arc::new(cast::registry_of_capabilities(&["echo"])), scene.now);
    let search = TaskSpec { capability: cast::capability_name("search"), ..cast::echo_task("a", &[]) };
    let refused = draft.apply_edit(Edit::Add(vec![search])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "task a needs the capability search, which no worker provides; available: echo"
    );
    assert!(draft.edits().is_empty() && draft.plan().tasks().is_empty());
}

#[test]
fn finished_draft_rejects_edits() {
    let mut scene = RunScene::from_submission(Submission {
        mode: PlanningMode::Hybrid,
        ..cast::fixed_plan_submission(vec![
            TaskSpec { is_final: true, ..cast::echo_task("a", &[]) },
            cast::echo_task("b", &[]),
        ])
    });
    scene.claim_and_finish_task(&cast::task_id("a"), "w1");
    let mut draft =
        PlanDraft::new(scene.plan, Arc::new(cast::registry_of_capabilities(&["echo"])), scene.now);
    draft.apply_edit(Edit::Finish { reason: "it is there".into() }).unwrap();
    let refused = draft.apply_edit(Edit::Add(vec![cast::echo_task("c", &[])])).unwrap_err();
    assert!(matches!(refused, Refusal::WrongMoment(_)), "{refused}");
    assert_eq!(draft.edits().len(), 1);
}

/// The defaults are 1,000 tasks, and 100 in a row.
#[test]
fn planner_is_told_the_limits_of_the_plan() {
    let draft = || {
        let scene = RunScene::from_submission(cast::planner_submission());
        PlanDraft::new(scene.plan, Arc::new(cast::registry_of_capabilities(&["echo"])), scene.now)
    };
    let side_by_side =
        |count: u32| (0..count).map(|at| cast::echo_task(&format!("t{at}"), &[])).collect::<Vec<_>>();
    assert!(draft().apply_edit(Edit::Add(side_by_side(DEFAULT_TASKS))).is_ok());
    let refused = draft().apply_edit(Edit::Add(side_by_side(DEFAULT_TASKS + 1))).unwrap_err();
    assert_eq!(refused.to_string(), "the plan would have 1001 tasks; at most 1000 are allowed in this run");
    let in_a_row = |count: u32| {
        let above = |at: u32| at.checked_sub(1).map(|above| format!("t{above}"));
        let task = |at| {
            cast::echo_task(&format!("t{at}"), &above(at).iter().map(String::as_str).collect::<Vec<_>>())
        };
        (0..count).map(task).collect::<Vec<_>>()
    };
    assert!(draft().apply_edit(Edit::Add(in_a_row(DEFAULT_DEPTH))).is_ok());
    let refused = draft().apply_edit(Edit::Add(in_a_row(DEFAULT_DEPTH + 1))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the plan would have 101 tasks in a row; at most 100 are allowed in this run"
    );
    // A plan that a user has made deeper may still grow elsewhere.
    let deep =
        Submission { mode: PlanningMode::Hybrid, ..cast::fixed_plan_submission(in_a_row(DEFAULT_DEPTH + 5)) };
    let scene = RunScene::from_submission(deep);
    let mut draft =
        PlanDraft::new(scene.plan, Arc::new(cast::registry_of_capabilities(&["echo"])), scene.now);
    assert!(draft.apply_edit(Edit::Add(vec![cast::echo_task("beside", &["t0"])])).is_ok());
    assert!(draft.apply_edit(Edit::Add(vec![cast::echo_task("below", &["t104"])])).is_err());
}

#[test]
fn many_rejected_edits_are_summarised() {
    let mut scene = RunScene::from_submission(Submission {
        mode: PlanningMode::Hybrid,
        ..cast::fixed_plan_submission(vec![
            cast::echo_task("a", &[]),
            TaskSpec { is_final: true, ..cast::echo_task("z", &["a"]) },
        ])
    });
    let text = "look".to_owned();
    scene
        .decide_fact(&cast::command_fact("c1", millrace_protocol::plan::CommandAction::Message { text }))
        .unwrap();
    let cancel = |at: u32| Edit::Cancel { task: cast::task_id(&format!("nobody-{at}")), reason: "r".into() };
    let mut edits: Vec<Edit> = (0..5_000).map(cancel).collect();
    edits.push(Edit::Add(vec![cast::echo_task("b", &[])]));
    let events = deliver_proposal(&mut scene, edits);
    let Event::Planning(PlanningEvent::ProposalAccepted { refused, .. }) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(refused.len(), 21);
    assert_eq!(refused[20], "and 4980 more");
    assert!(scene.plan.task(&cast::task_id("b")).is_some(), "valid edits are applied");
}
