//! Planners that go round in circles: a task that was lost twice is refused, turns that only repeat end the run, and a run
//! without a budget does not use tokens without end.

use millrace_protocol::plan::{
    Budget, Edit, EndReason, Event, Fact, PlanningEvent, PlanningResult, ReviewPolicy, Submission,
    TaskLimits, TaskSpec, TaskState, suggest_larger_limits,
};
use millrace_protocol::result::{ErrorKind, ModelUsage, PlanProposal, TaskError, Usage};

use crate::cast;
use crate::scene::RunScene;

fn question(id: &str, objective: &str) -> TaskSpec {
    TaskSpec {
        objective: objective.into(),
        review: ReviewPolicy::None,
        limits: TaskLimits { max_attempts: 1, ..TaskLimits::default() },
        is_final: false,
        ..cast::echo_task(id, &[])
    }
}

/// Answers the open planning turn.
fn propose(scene: &mut RunScene, edits: Vec<Edit>, fallback: Option<&str>) -> Vec<Event> {
    let turn = scene.plan.planning.turn.as_ref().expect("the planner is asked");
    let (turn, attempt) = (turn.turn, turn.attempt);
    let fallback = fallback.map(str::to_owned);
    let proposal = PlanProposal { reasoning: "again".into(), tasks: Vec::new(), edits, fallback };
    let planned = PlanningResult { proposal, usage: Usage::default(), models: ModelUsage::new() };
    scene.decide_fact(&Fact::Planned { turn, attempt, outcome: Ok(planned) }).unwrap()
}

/// The current attempt of a task fails for good, after this many tokens.
fn fail(scene: &mut RunScene, id: &str, tokens: u64) {
    fail_at_cost(scene, id, tokens, 0);
}

fn fail_at_cost(scene: &mut RunScene, id: &str, tokens: u64, cost_micros: u64) {
    let id = cast::task_id(id);
    scene.claim_task(&id, "w1");
    let attempt = scene.plan.task(&id).unwrap().attempt;
    let usage = Usage { model_calls: 1, input_tokens: tokens, cost_micros, ..Usage::default() };
    let error = TaskError { usage, ..TaskError::new(ErrorKind::InvalidTask, "no quotation stands") };
    scene.decide_fact(&cast::attempt_ended_fact(&id, attempt, "w1", Err(error))).unwrap();
}

#[test]
fn task_that_was_lost_twice_is_refused_with_what_failed() {
    let mut scene = RunScene::from_submission(cast::planner_submission());
    for id in ["a1", "a2"] {
        propose(&mut scene, vec![Edit::Add(vec![question(id, "How heavy is it?")])], None);
        fail(&mut scene, id, 10);
    }
    let again = propose(&mut scene, vec![Edit::Add(vec![question("a3", "how  heavy is IT?")])], None);
    let [Event::Planning(PlanningEvent::Errored { error, .. })] = again.as_slice() else {
        panic!("{again:?}")
    };
    assert!(
        error.contains("task a3 asks the same as a1 and a2, which failed")
            && error.contains("no quotation stands"),
        "{error}"
    );
    assert!(scene.plan.task(&cast::task_id("a3")).is_none());
}

#[test]
fn user_and_other_questions_are_not_refused() {
    let mut scene = RunScene::from_submission(cast::planner_submission());
    for id in ["a1", "a2"] {
        propose(&mut scene, vec![Edit::Add(vec![question(id, "How heavy is it?")])], None);
        fail(&mut scene, id, 10);
    }
    propose(&mut scene, vec![Edit::Add(vec![question("b", "What does the data sheet say?")])], None);
    assert_eq!(scene.plan.planning.repeated_turns, 0, "another question is progress");
    let edit = Edit::Add(vec![question("a3", "How heavy is it?")]);
    scene
        .decide_fact(&cast::command_fact("mine", millrace_protocol::plan::CommandAction::Edit(edit)))
        .unwrap();
    assert_eq!(scene.plan.task(&cast::task_id("a3")).unwrap().state(), TaskState::Ready);
}

#[test]
fn turns_that_only_repeat_end_the_run() {
    let mut scene = RunScene::from_submission(cast::planner_submission());
    propose(&mut scene, vec![Edit::Add(vec![question("a", "How heavy is it?")])], None);
    fail(&mut scene, "a", 10);
    propose(&mut scene, vec![Edit::Add(vec![question("b", "How heavy is it?")])], None);
    assert_eq!(scene.plan.planning.repeated_turns, 1, "the same task again");
    fail(&mut scene, "b", 10);
    let retry = || vec![Edit::Retry { task: cast::task_id("b"), feedback: None, changes: None }];
    propose(&mut scene, retry(), None);
    assert_eq!(scene.plan.planning.repeated_turns, 0, "the first retry");
    for idle in 1..=3 {
        fail(&mut scene, "b", 10);
        propose(&mut scene, retry(), None);
        assert_eq!(scene.plan.planning.repeated_turns, idle, "the same retry again");
    }
    fail(&mut scene, "b", 10);
    let end = scene.plan.run.end.as_ref().unwrap();
    assert_eq!((end.reason, end.is_resumable), (EndReason::NoProgress, true), "{end:?}");
}

#[test]
fn run_without_a_budget_stops_at_the_default_tokens() {
    let run = |submission: Submission, tokens: u64| {
        let mut scene = RunScene::from_submission(submission);
        propose(&mut scene, vec![Edit::Add(vec![question("a", "How heavy is it?")])], None);
        fail(&mut scene, "a", tokens);
        scene.plan
    };
    let plan = run(cast::planner_submission(), 199_999);
    assert!(plan.run.end.is_none() && plan.planning.turn.is_some(), "{:?}", plan.run);
    let plan = run(cast::planner_submission(), 200_000);
    let end = plan.run.end.as_ref().unwrap();
    assert_eq!((end.reason, end.is_resumable), (EndReason::BudgetExhausted, true));
    assert!(end.detail.starts_with("200000 tokens are used, and without a budget"), "{}", end.detail);
    let mut budget = Budget::default();
    budget.amounts.tokens = Some(1_000_000_000);
    let mut limited = cast::planner_submission();
    limited.budget = budget;
    // A run with a budget of its own is not limited by the default.
    assert_eq!(RunScene::from_submission(limited).plan.default_token_limit(), None);
    // A limit that no call has used so far stops nothing: the default stays, and the end suggests a limit that helps.
    for (cost, cached, cost_of_work, ends) in [
        (Some(10_000), None, 0, true),
        (None, Some(10_000), 0, true),
        (Some(9_000_000), None, 1, false),
        (None, None, 1, true),
    ] {
        let mut submission = cast::planner_submission();
        submission.budget.amounts.cost_micros = cost;
        submission.budget.amounts.cached_tokens = cached;
        let mut scene = RunScene::from_submission(submission);
        propose(&mut scene, vec![Edit::Add(vec![question("a", "How heavy is it?")])], None);
        fail_at_cost(&mut scene, "a", 200_000, cost_of_work);
        assert_eq!(scene.plan.run.end.is_some(), ends, "{cost:?} {cached:?} {cost_of_work}");
        let larger = suggest_larger_limits(&scene.plan).map(|larger| larger.amounts.tokens);
        assert_eq!(larger, ends.then_some(Some(400_000)));
    }
    // Each different question has its own share.
    let mut scene = RunScene::from_submission(cast::planner_submission());
    let questions: Vec<TaskSpec> =
        (0..5).map(|n| question(&format!("a{n}"), &format!("What is {n}?"))).collect();
    propose(&mut scene, vec![Edit::Add(questions)], None);
    fail(&mut scene, "a0", 300_000);
    assert!(scene.plan.run.winding_down.is_none());
    fail(&mut scene, "a1", 200_000);
    assert!(scene.plan.run.winding_down.is_some());
}

#[test]
fn end_says_that_a_plain_plan_was_carried_out() {
    let mut scene = RunScene::from_submission(cast::planner_submission());
    let last = TaskSpec { is_final: true, ..question("a", "How heavy is it?") };
    propose(&mut scene, vec![Edit::Add(vec![last])], Some("dependency cycle: a → b"));
    scene.claim_and_finish_task(&cast::task_id("a"), "w1");
    let end = scene.plan.run.end.as_ref().unwrap();
    assert_eq!(end.reason, EndReason::Completed);
    assert_eq!(
        end.detail,
        "the planner gave no valid plan, so a plain one was carried out: dependency cycle: a → b"
    );
}
