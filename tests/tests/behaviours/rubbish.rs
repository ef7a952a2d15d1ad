//! Planners that answer rubbish, or not at all: what is finished stays finished, and the run ends within its limits with
//! the reason that is true.

use std::time::Instant;

use millrace_protocol::plan::{EndReason, Event, FinalRung, Mode, Plan};
use millrace_tests::plans::id;
use millrace_tests::stage::{PATIENCE, Stage};
use serde_json::json;

use crate::planning::{planned, two};
use crate::{end, state};

/// A run with one finished task and a planner that answers by these rules; gives how it ended.
async fn ends(stage: &Stage, name: &str, rules: &str) -> Plan {
    let submission = planned(stage, name, Mode::Hybrid, two("done"), rules);
    let run = stage.hand_in(name, &submission).await;
    let started = Instant::now();
    let history = run.ended().await;
    assert!(started.elapsed() < PATIENCE);
    let plan = history.plan().clone();
    assert_eq!(
        state(&plan, "done"),
        millrace_protocol::plan::TaskState::Completed,
        "what is finished stays so"
    );
    assert_eq!(plan.task(&id("done")).unwrap().attempts.len(), 1);
    let tries = history.events().filter(|(_, event)| matches!(event, Event::PlanningAsked { .. })).count();
    assert!(tries <= 9, "the planner was asked {tries} times");
    let deliverable = plan.end.as_ref().unwrap().deliverable.clone();
    assert_eq!(deliverable, Some((id("done"), FinalRung::Detailed)), "{:?}", plan.end);
    plan
}

fn detail(plan: &Plan) -> &str {
    &plan.end.as_ref().unwrap().detail
}

pub async fn a_planner_that_never_answers_in_its_form_is_given_up(stage: &Stage) {
    let rules = "- when: {answer: plan}\n  reply: {text: 'Sure! Here is the plan: [1) do it'}\n";
    let plan = ends(stage, "no-form", rules).await;
    assert_eq!((end(&plan), plan.tasks().len()), (EndReason::PlannerUnavailable, 2), "{}", detail(&plan));
}

pub async fn a_planner_that_calls_tools_that_there_are_not_is_given_up(stage: &Stage) {
    let rules = "- when: {answer: plan}\n  reply: {calls: [{launch_rocket: {at: '{{turn}}'}}]}\n";
    let plan = ends(stage, "no-tool", rules).await;
    assert_eq!(end(&plan), EndReason::PlannerUnavailable, "{}", detail(&plan));
}

pub async fn a_planner_that_wants_circles_changes_nothing(stage: &Stage) {
    let rules = "
- when: {answer: plan}
  reply:
    answer:
      reasoning: round and round
      tasks:
      - {id: a, objective: x, capability: writer, depends_on: [b]}
      - {id: b, objective: x, capability: writer, depends_on: [a]}
";
    let plan = ends(stage, "circles", rules).await;
    assert_eq!((end(&plan), plan.tasks().len()), (EndReason::PlannerUnavailable, 2), "{}", detail(&plan));
    assert!(detail(&plan).contains("circle"), "{}", detail(&plan));
}

pub async fn a_planner_that_wants_thousands_of_tasks_gets_none_of_them(stage: &Stage) {
    let tasks: Vec<_> = (0..5_000)
        .map(|n| json!({"id": format!("t{n}"), "objective": format!("do {n}"), "capability": "writer"}))
        .collect();
    let answer = json!({"reasoning": "the more the better", "tasks": tasks});
    let rules = format!("- when: {{answer: plan}}\n  reply: {{answer: {answer}}}\n");
    let plan = ends(stage, "thousands", &rules).await;
    assert_eq!((end(&plan), plan.tasks().len()), (EndReason::PlannerUnavailable, 2), "{}", detail(&plan));
    assert!(detail(&plan).contains("5002") && detail(&plan).contains("1000"), "{}", detail(&plan));
}

pub async fn a_planner_that_claims_the_end_for_ever_is_stopped(stage: &Stage) {
    let rules = "- when: {answer: plan}\n  reply: {calls: [{finish: {reason: it is done}}]}\n";
    let plan = ends(stage, "claims", rules).await;
    let reasons = [EndReason::NoProgress, EndReason::PlannerUnavailable];
    assert!(reasons.contains(&end(&plan)), "{:?}", plan.end);
}

pub async fn a_planner_that_makes_more_work_for_ever_comes_to_the_end_of_its_steps(stage: &Stage) {
    // Each turn adds a task under a new name, and none is ever final.
    let rules = "
- when: {answer: plan}
  reply: {answer: {reasoning: more, tasks: [{objective: one more thing, capability: writer}]}}
- reply: {text: it is written}
";
    let mut submission = planned(stage, "for-ever", Mode::Hybrid, two("done"), rules);
    submission.budget.steps = Some(6);
    let plan = stage.hand_in("for-ever", &submission).await.stopped().await;
    assert!(plan.turns <= 6, "{} turns", plan.turns);
    assert!(
        [EndReason::MaxSteps, EndReason::Completed, EndReason::NoProgress].contains(&end(&plan)),
        "{:?}",
        plan.end
    );
    assert_eq!(state(&plan, "done"), millrace_protocol::plan::TaskState::Completed);
}

pub async fn a_planner_whose_model_says_nothing_is_given_up_in_its_time(stage: &Stage) {
    let rules = "- when: {answer: plan}\n  reply: {text: '', delay: 600}\n";
    let mut submission = planned(stage, "silent", Mode::Hybrid, two("done"), rules);
    submission.budget.wall_time = Some(std::time::Duration::from_secs(4));
    let run = stage.hand_in("silent", &submission).await;
    let plan = run.stopped().await;
    assert_eq!(end(&plan), EndReason::BudgetExhausted, "{:?}", plan.end);
    assert_eq!(plan.end.as_ref().unwrap().deliverable, Some((id("done"), FinalRung::Detailed)));
}

pub async fn errors_of_the_planner_s_model_for_a_while_delay_the_run_and_no_more(stage: &Stage) {
    // Two tries of the turn come to nothing, each with all the requests that a model is asked again; the third one works.
    let rules = "
- times: 2
  when: {answer: plan}
  reply: {error: overloaded, message: come back later}
- when: {answer: plan}
  reply: {answer: {reasoning: here it is, tasks: [{id: omega, objective: end, capability: writer, final: true}]}}
- reply: {text: it is written}
";
    // Each worker counts by itself: both may fail twice.
    let submission = planned(stage, "errors", Mode::Hybrid, two("done"), rules);
    let history = stage.hand_in("errors", &submission).await.ended().await;
    let plan = history.plan();
    let errors = history.events().filter(|(_, event)| matches!(event, Event::PlanningErrored { .. })).count();
    // Where the workers took turns, the third try failed too.
    let wanted = if errors == 3 { EndReason::PlannerUnavailable } else { EndReason::Completed };
    assert_eq!((end(plan), errors >= 2), (wanted, true), "{errors} errors: {}", detail(plan));
    assert_eq!(state(plan, "done"), millrace_protocol::plan::TaskState::Completed);
}
