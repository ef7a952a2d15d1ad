//! Budgets: reserved before work starts, counted over all roles, with a warning when they run low, and raised by a
//! resume. The scripted models report the usage of each reply.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::plan::{
    AttemptEnd, Budget, BudgetEvent, BudgetExhaustionPolicy, CommandAction, DeliverableRule, EndReason,
    Event, OnFailedDependency, Plan, PlanningMode, ResourceAmounts, Submission, TaskSpec, TaskState,
};
use millrace_protocol::result::{ErrorKind, Usage};
use millrace_tests::plans::{echo_task, fixed_submission, task_id};
use millrace_tests::testbed::{TestBed, verdict_json, writer_task};
use serde_json::json;

use super::planning::planned_submission;
use super::{end_reason, task_state};

/// The usage of one reply in the cases that count attempts: 40,000 tokens.
const REPLY: &str = "usage: {input_tokens: 39000, output_tokens: 1000}";
const REPLY_TOKENS: u64 = 40_000;

fn token_amounts(amount: u64) -> ResourceAmounts {
    ResourceAmounts { tokens: Some(amount), ..ResourceAmounts::default() }
}

fn model_call_amounts(amount: u64) -> ResourceAmounts {
    ResourceAmounts { model_calls: Some(amount), ..ResourceAmounts::default() }
}

fn used_tokens(usage: &Usage) -> u64 {
    usage.input_tokens + usage.output_tokens
}

/// A run with so many writing tasks and a final one that depends on all of them.
pub fn many_writers_submission(model: String, count: u32, budget: Budget) -> Submission {
    let mut tasks: Vec<TaskSpec> = (0..count).map(|n| writer_task(&format!("t{n}"), "write it")).collect();
    let mut last = writer_task("omega", "put it together");
    last.depends_on = tasks.iter().map(|task| task.id.clone()).collect();
    last.is_final = true;
    tasks.push(last);
    Submission { model: Some(model), budget, ..fixed_submission(tasks) }
}

/// A budget of ten replies. Each attempt reserves slightly more than one; a fifth is reserved for the final task.
pub fn budget_of_ten_replies() -> Budget {
    Budget {
        amounts: token_amounts(10 * REPLY_TOKENS),
        attempt: token_amounts(REPLY_TOKENS + 5_000),
        final_percent: 20,
        ..Budget::default()
    }
}

/// The rules of a model whose replies all use the same number of tokens.
pub fn writer_model_rules() -> String {
    format!(
        "rules:\n- when: {{task: put it together}}\n  reply: {{text: all of it, {REPLY}}}\n- reply: {{text: a part, {REPLY}, delay: 0.2}}\n"
    )
}

/// Checks that nothing was dispatched beyond the budget: usage stays within it, except for one reply of each attempt
/// that was running at the end, and no reservation is left.
fn assert_within_budget(plan: &Plan, limit: u64, at_once: u64) {
    let total = used_tokens(&plan.budget.spend.total);
    assert!(total <= limit + at_once * REPLY_TOKENS, "{total} of {limit} were used");
    assert!(plan.budget.reserved.is_empty(), "all reservations are released: {:?}", plan.budget.reserved);
}

pub async fn usage_is_counted_by_role_capability_and_model(testbed: &TestBed) {
    let passes = verdict_json("");
    let rules = format!(
        "rules:
- when: {{answer: plan}}
  reply:
    answer:
      reasoning: one is enough
      tasks: [{{id: alpha, objective: find out, capability: asker, criteria: [it is there], final: true}}]
    usage: {{input_tokens: 1000, output_tokens: 10}}
- when: {{answer: verdict}}
  reply: {{answer: {passes}, usage: {{input_tokens: 3000, output_tokens: 30}}}}
- when: {{system: You know the answer}}
  reply: {{text: forty-two, usage: {{input_tokens: 500, output_tokens: 5}}}}
- when: {{tool: consult}}
  reply: {{text: it is forty-two, usage: {{input_tokens: 2000, output_tokens: 20}}}}
- reply:
    calls: [{{consult: {{capability: expert, question: What is it?}}}}]
    usage: {{input_tokens: 2000, output_tokens: 20}}
"
    );
    let model = testbed.write_scripted_model("counted", &rules);
    let budget = Budget { amounts: token_amounts(1_000_000), ..Budget::default() };
    let submission =
        Submission { model: Some(model.clone()), budget, ..Submission::new("find out", PlanningMode::Llm) };
    let run = testbed.submit_run("counted", &submission).await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::Completed);
    let spend = &plan.budget.spend;
    assert_eq!(
        [&spend.planner, &spend.workers, &spend.critics, &spend.total].map(used_tokens),
        [1_010, 4_545, 3_030, 8_585]
    );
    let of = |name: &str| {
        spend.by_capability.iter().find(|(capability, _)| capability.as_str() == name).unwrap().1
    };
    assert_eq!(["planner", "asker", "critic"].map(|name| used_tokens(of(name))), [1_010, 4_545, 3_030]);
    let by_model: Vec<(&String, u64)> =
        spend.by_model.iter().map(|(name, usage)| (name, used_tokens(usage))).collect();
    assert_eq!(by_model, [(&model, 8_585)]);
    assert!(plan.budget.reserved.is_empty(), "{:?}", plan.budget.reserved);
}

pub async fn spent_budget_still_pays_for_the_final_task(testbed: &TestBed) {
    let model = testbed.write_scripted_model("hard", &writer_model_rules());
    let run = testbed.submit_run("hard", &many_writers_submission(model, 20, budget_of_ten_replies())).await;
    let plan = run.wait_until_run_stopped().await;
    assert_eq!(end_reason(&plan), EndReason::BudgetExhausted, "{:?}", plan.run.end);
    assert_within_budget(&plan, 10 * REPLY_TOKENS, 8);
    let completed = plan.tasks().iter().filter(|task| task.state() == TaskState::Completed).count();
    assert!((3..=10).contains(&completed), "{completed} were done");
    assert_eq!(
        plan.run.end.as_ref().unwrap().deliverable,
        Some((task_id("omega"), DeliverableRule::Final)),
        "{:?}",
        plan.run.end
    );
    assert!(plan.is_resumable());

    // With a larger budget the run resumes where it stopped: finished tasks stay, and the final task is redone.
    let completed: Vec<_> =
        plan.tasks().iter().filter(|task| task.state() == TaskState::Completed).cloned().collect();
    let more = Budget { amounts: token_amounts(100 * REPLY_TOKENS), ..Budget::default() };
    run.send_command("more", CommandAction::Resume { budget: Some(more) }).await.unwrap();
    let history = run.wait_for_completion().await;
    let plan = history.folded_plan();
    assert_eq!(plan.task_count_in_state(TaskState::Completed), 21);
    for task in completed.iter().filter(|task| !task.spec.is_final) {
        assert_eq!(plan.task(&task.spec.id).unwrap().attempts.len(), task.attempts.len(), "{}", task.spec.id);
    }
    assert_eq!(plan.run.end.as_ref().unwrap().deliverable, Some((task_id("omega"), DeliverableRule::Final)));
}

pub async fn planner_is_warned_once_that_the_budget_runs_low(testbed: &TestBed) {
    let rules = format!(
        "
- when: {{answer: plan, task: The budget is running low}}
  reply: {{answer: {{reasoning: I wrap up, cancel: [{{task: luxury, reason: too dear}}]}}, usage: {{input_tokens: 10}}}}
- when: {{answer: plan}}
  reply: {{answer: {{reasoning: as it is}}, usage: {{input_tokens: 10}}}}
- reply: {{text: it is written, {REPLY}, delay: 0.5}}
"
    );
    let mut tasks = vec![
        writer_task("a", "x"),
        writer_task("b", "x"),
        writer_task("c", "x"),
        writer_task("luxury", "x"),
        writer_task("omega", "x"),
    ];
    for (at, on) in [(1, "a"), (2, "b"), (3, "c"), (4, "c")] {
        tasks[at].depends_on = vec![task_id(on)];
        tasks[at].on_failed_dependency = OnFailedDependency::Skip;
    }
    tasks[3].depends_on.push(task_id("a"));
    tasks[4].depends_on.push(task_id("luxury"));
    tasks[4].is_final = true;
    let mut submission = planned_submission(testbed, "soft", PlanningMode::Hybrid, tasks, &rules);
    submission.budget = Budget { soft_percent: 15, ..budget_of_ten_replies() };
    let run = testbed.submit_run("soft", &submission).await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    let low = history
        .timed_events()
        .filter(|(_, event)| matches!(event, Event::Budget(BudgetEvent::Low { .. })))
        .count();
    assert_eq!((low, task_state(plan, "luxury")), (1, TaskState::Cancelled), "{:?}", plan.planning.reasoning);
    assert_eq!(plan.planning.reasoning, ["I wrap up"]);
    assert_eq!(
        (end_reason(plan), task_state(plan, "omega")),
        (EndReason::CompletedPartial, TaskState::Completed)
    );
}

pub async fn attempt_cannot_exceed_its_reserved_budget(testbed: &TestBed) {
    // Every reply uses 40,000 of the attempt's 45,000 tokens, and the model never finishes.
    let rules = format!("rules:\n- reply: {{calls: [{{think: {{thought: 'at {{{{turn}}}}'}}}}], {REPLY}}}\n");
    let mut restless = writer_task("restless", "think of it");
    restless.limits.max_attempts = 1;
    let submission = Submission {
        model: Some(testbed.write_scripted_model("held", &rules)),
        budget: budget_of_ten_replies(),
        ..fixed_submission(vec![restless, echo_task("other", &json!({}))])
    };
    let history = testbed.submit_run("held", &submission).await.wait_for_end().await;
    let plan = history.folded_plan();
    let attempt = &plan.task(&task_id("restless")).unwrap().attempts[0];
    let Some(AttemptEnd::Errored(error)) = &attempt.end else { panic!("{attempt:?}") };
    assert_eq!(error.kind, ErrorKind::Limit, "{error}");
    assert!(error.message.contains("budget"), "{error}");
    let took = used_tokens(&attempt.usage);
    assert!(
        (REPLY_TOKENS..=2 * REPLY_TOKENS).contains(&took),
        "{took} tokens: more than one reply beyond {}",
        REPLY_TOKENS + 5_000
    );
}

pub async fn capabilities_and_tasks_have_budgets_of_their_own(testbed: &TestBed) {
    let rejected = verdict_json("it is not good enough");
    let rules = format!(
        "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {rejected}}}\n- reply: {{text: a part}}\n"
    );
    let model = testbed.write_scripted_model("own", &rules);
    let mut tasks: Vec<TaskSpec> = (0..4).map(|n| writer_task(&format!("t{n}"), "write it")).collect();
    tasks.push(echo_task("other", &json!({"delay_ms": 500})));
    let mut submission = Submission { model: Some(model.clone()), ..fixed_submission(tasks) };
    let writer = submission.tasks[0].capability.clone();
    submission.budget.capabilities.insert(writer, model_call_amounts(2));
    let capability = testbed.submit_run("own-capability", &submission).await;
    let mut dear = writer_task("dear", "write it");
    dear.budget = model_call_amounts(2);
    dear.review = millrace_protocol::plan::ReviewPolicy::critic(vec!["it is good".into()]);
    let own = testbed
        .submit_run("own-task", &Submission { model: Some(model), ..fixed_submission(vec![dear]) })
        .await;

    let history = capability.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(
        (plan.task_count_in_state(TaskState::Completed), plan.task_count_in_state(TaskState::Failed)),
        (3, 2),
        "{:?}",
        plan.run.end
    );
    let failed = plan.tasks().iter().filter(|task| task.state() == TaskState::Failed);
    let reasons: Vec<&str> = failed.filter_map(|task| task.end_reason()).collect();
    assert!(
        reasons.iter().all(|why| why.starts_with("the budget of its capability is exhausted")),
        "{reasons:?}"
    );
    let history = own.wait_for_end().await;
    let task = history.folded_plan().task(&task_id("dear")).unwrap();
    assert_eq!((task.state(), task.attempts.len()), (TaskState::Failed, 1), "{task:?}");
    assert!(task.end_reason().unwrap().starts_with("its budget is exhausted"), "{:?}", task.end_reason());
}

pub async fn run_out_of_time_ends_running_tasks_by_policy(testbed: &TestBed) {
    let tasks = || {
        let mut behind = echo_task("behind", &json!({}));
        behind.depends_on = vec![task_id("slow")];
        vec![echo_task("quick", &json!({})), echo_task("slow", &json!({"delay_ms": 60_000})), behind]
    };
    let short = || Budget { wall_time: Some(Duration::from_secs(6)), ..Budget::default() };
    let cut = Submission {
        budget: Budget { when_spent: BudgetExhaustionPolicy::Cancel, ..short() },
        ..fixed_submission(tasks())
    };
    let cut = testbed.submit_run("time-cut", &cut).await;
    let mut left = Submission { budget: short(), ..fixed_submission(tasks()) };
    Arc::make_mut(&mut left.tasks[1]).parameters.insert("delay_ms".into(), json!(10_000));
    let left = testbed.submit_run("time-left", &left).await;
    let (cut, left) = (cut.wait_until_run_stopped().await, left.wait_until_run_stopped().await);
    assert_eq!(
        (end_reason(&cut), task_state(&cut, "slow")),
        (EndReason::BudgetExhausted, TaskState::Cancelled)
    );
    assert_eq!(
        (end_reason(&left), task_state(&left, "slow")),
        (EndReason::BudgetExhausted, TaskState::Completed)
    );
    assert_eq!(task_state(&left, "behind"), TaskState::Cancelled);
    assert_eq!(
        cut.run.end.as_ref().unwrap().deliverable,
        Some((task_id("quick"), DeliverableRule::Detailed))
    );
}

pub async fn planner_respects_the_limits_on_tasks_and_depth(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, last: at most 3}
  reply: {answer: {reasoning: two will do, tasks: [{id: a, objective: x, capability: writer},
          {id: omega, objective: put it together, capability: writer, depends_on: [a], final: true}]}}
- when: {answer: plan}
  reply: {answer: {reasoning: a long row, tasks: [{id: a, objective: one, capability: writer},
          {id: b, objective: two, capability: writer, depends_on: [a]},
          {id: c, objective: three, capability: writer, depends_on: [b]},
          {id: omega, objective: four, capability: writer, depends_on: [c], final: true}]}}
- reply: {text: it is written}
";
    for (name, budget) in [
        ("few", Budget { tasks: Some(3), ..Budget::default() }),
        ("flat", Budget { depth: Some(3), ..Budget::default() }),
    ] {
        let mut submission = planned_submission(testbed, name, PlanningMode::Llm, Vec::new(), rules);
        submission.budget = budget;
        let history = testbed.submit_run(name, &submission).await.wait_for_end().await;
        assert_eq!(
            (end_reason(history.folded_plan()), history.folded_plan().tasks().len()),
            (EndReason::Completed, 2),
            "{name}"
        );
    }
}
