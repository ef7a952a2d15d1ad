//! Planners that send invalid answers or none: finished tasks stay finished, and the run ends within its limits with
//! the right reason.

use std::time::Instant;

use millrace_protocol::plan::{DeliverableRule, EndReason, Event, Plan, PlanningEvent, PlanningMode};
use millrace_tests::plans::task_id;
use millrace_tests::testbed::{TIMEOUT, TestBed};
use serde_json::json;

use super::planning::{planned_submission, two_tasks};
use super::{end_reason, task_state};

/// Runs a plan with a finished task and a planner scripted by these rules. Returns the plan at the end of the run.
async fn run_and_read_final_plan(testbed: &TestBed, name: &str, rules: &str) -> Plan {
    let submission = planned_submission(testbed, name, PlanningMode::Hybrid, two_tasks("done"), rules);
    let run = testbed.submit_run(name, &submission).await;
    let started = Instant::now();
    let history = run.wait_for_end().await;
    assert!(started.elapsed() < TIMEOUT);
    let plan = history.folded_plan().clone();
    assert_eq!(
        task_state(&plan, "done"),
        millrace_protocol::plan::TaskState::Completed,
        "a finished task stays finished"
    );
    assert_eq!(plan.task(&task_id("done")).unwrap().attempts.len(), 1);
    let tries = history
        .timed_events()
        .filter(|(_, event)| matches!(event, Event::Planning(PlanningEvent::Requested { .. })))
        .count();
    assert!(tries <= 9, "the planner was consulted {tries} times");
    let deliverable = plan.run.end.as_ref().unwrap().deliverable.clone();
    assert_eq!(deliverable, Some((task_id("done"), DeliverableRule::Detailed)), "{:?}", plan.run.end);
    plan
}

fn end_detail(plan: &Plan) -> &str {
    &plan.run.end.as_ref().unwrap().detail
}

pub async fn planner_that_ignores_the_answer_format_is_given_up(testbed: &TestBed) {
    let rules = "- when: {answer: plan}\n  reply: {text: 'Sure! Here is the plan: [1) do it'}\n";
    let plan = run_and_read_final_plan(testbed, "no-form", rules).await;
    assert_eq!(
        (end_reason(&plan), plan.tasks().len()),
        (EndReason::PlannerUnavailable, 2),
        "{}",
        end_detail(&plan)
    );
}

pub async fn planner_that_calls_unknown_tools_is_given_up(testbed: &TestBed) {
    let rules = "- when: {answer: plan}\n  reply: {calls: [{launch_rocket: {at: '{{turn}}'}}]}\n";
    let plan = run_and_read_final_plan(testbed, "no-tool", rules).await;
    assert_eq!(end_reason(&plan), EndReason::PlannerUnavailable, "{}", end_detail(&plan));
}

pub async fn planner_that_proposes_cycles_changes_nothing(testbed: &TestBed) {
    let rules = "
- when: {answer: plan}
  reply:
    answer:
      reasoning: round and round
      tasks:
      - {id: a, objective: x, capability: writer, depends_on: [b]}
      - {id: b, objective: x, capability: writer, depends_on: [a]}
";
    let plan = run_and_read_final_plan(testbed, "circles", rules).await;
    assert_eq!(
        (end_reason(&plan), plan.tasks().len()),
        (EndReason::PlannerUnavailable, 2),
        "{}",
        end_detail(&plan)
    );
    assert!(end_detail(&plan).contains("dependency cycle"), "{}", end_detail(&plan));
}

pub async fn planner_that_proposes_too_many_tasks_adds_none(testbed: &TestBed) {
    let tasks: Vec<_> = (0..5_000)
        .map(|n| json!({"id": format!("t{n}"), "objective": format!("do {n}"), "capability": "writer"}))
        .collect();
    let answer = json!({"reasoning": "the more the better", "tasks": tasks});
    let rules = format!("- when: {{answer: plan}}\n  reply: {{answer: {answer}}}\n");
    let plan = run_and_read_final_plan(testbed, "thousands", &rules).await;
    assert_eq!(
        (end_reason(&plan), plan.tasks().len()),
        (EndReason::PlannerUnavailable, 2),
        "{}",
        end_detail(&plan)
    );
    assert!(
        end_detail(&plan).contains("5002") && end_detail(&plan).contains("1000"),
        "{}",
        end_detail(&plan)
    );
}

pub async fn planner_that_keeps_claiming_the_end_is_stopped(testbed: &TestBed) {
    let rules = "- when: {answer: plan}\n  reply: {calls: [{finish: {reason: it is done}}]}\n";
    let plan = run_and_read_final_plan(testbed, "claims", rules).await;
    let reasons = [EndReason::NoProgress, EndReason::PlannerUnavailable];
    assert!(reasons.contains(&end_reason(&plan)), "{:?}", plan.run.end);
}

pub async fn planner_that_keeps_adding_work_reaches_its_step_limit(testbed: &TestBed) {
    // Each turn adds a task with a new name, and none is ever final.
    let rules = "
- when: {answer: plan}
  reply: {answer: {reasoning: more, tasks: [{objective: one more thing, capability: writer}]}}
- reply: {text: it is written}
";
    let mut submission =
        planned_submission(testbed, "for-ever", PlanningMode::Hybrid, two_tasks("done"), rules);
    submission.budget.steps = Some(6);
    let plan = testbed.submit_run("for-ever", &submission).await.wait_until_run_stopped().await;
    assert!(plan.planning.turns <= 6, "{} turns", plan.planning.turns);
    assert!(
        [EndReason::MaxSteps, EndReason::Completed, EndReason::NoProgress].contains(&end_reason(&plan)),
        "{:?}",
        plan.run.end
    );
    assert_eq!(task_state(&plan, "done"), millrace_protocol::plan::TaskState::Completed);
}

pub async fn unresponsive_planner_is_stopped_by_the_time_budget(testbed: &TestBed) {
    let rules = "- when: {answer: plan}\n  reply: {text: '', delay: 600}\n";
    let mut submission =
        planned_submission(testbed, "silent", PlanningMode::Hybrid, two_tasks("done"), rules);
    submission.budget.wall_time = Some(std::time::Duration::from_secs(4));
    let run = testbed.submit_run("silent", &submission).await;
    let plan = run.wait_until_run_stopped().await;
    assert_eq!(end_reason(&plan), EndReason::BudgetExhausted, "{:?}", plan.run.end);
    assert_eq!(
        plan.run.end.as_ref().unwrap().deliverable,
        Some((task_id("done"), DeliverableRule::Detailed))
    );
}

pub async fn temporary_planner_errors_only_delay_the_run(testbed: &TestBed) {
    // Two attempts at the turn fail, each after all retries of its model request; the third one succeeds.
    let rules = "
- times: 2
  when: {answer: plan}
  reply: {error: overloaded, message: come back later}
- when: {answer: plan}
  reply: {answer: {reasoning: here it is, tasks: [{id: omega, objective: end, capability: writer, final: true}]}}
- reply: {text: it is written}
";
    // The script counts requests per worker, so both workers may fail twice.
    let submission = planned_submission(testbed, "errors", PlanningMode::Hybrid, two_tasks("done"), rules);
    let history = testbed.submit_run("errors", &submission).await.wait_for_end().await;
    let plan = history.folded_plan();
    let errors = history
        .timed_events()
        .filter(|(_, event)| matches!(event, Event::Planning(PlanningEvent::Errored { .. })))
        .count();
    // If the attempts alternated between the workers, the third one failed too.
    let expected = if errors == 3 { EndReason::PlannerUnavailable } else { EndReason::Completed };
    assert_eq!((end_reason(plan), errors >= 2), (expected, true), "{errors} errors: {}", end_detail(plan));
    assert_eq!(task_state(plan, "done"), millrace_protocol::plan::TaskState::Completed);
}
