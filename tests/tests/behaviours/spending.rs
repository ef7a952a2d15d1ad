//! What a run may use: set aside before work begins, counted over everybody, warned of, and gone on with when there is
//! more. The model says what each of its replies took.

use std::time::Duration;

use millrace_protocol::plan::{
    Amounts, AttemptEnd, Budget, Control, EndReason, Event, FinalRung, Mode, OnFailedDependency, Plan,
    Submission, TaskSpec, TaskState, WhenSpent,
};
use millrace_protocol::result::{ErrorKind, Usage};
use millrace_tests::plans::{echo, fixed, id};
use millrace_tests::stage::{Stage, verdict, write};
use serde_json::json;

use crate::judging::{ASKER, EXPERT};
use crate::planning::planned;
use crate::{end, state};

/// The agents that ask each other.
pub const FILES: [(&str, &str); 2] = [("asker", ASKER), ("expert", EXPERT)];

/// What one reply takes in the cases that count attempts: 40,000 tokens.
const REPLY: &str = "usage: {input_tokens: 39000, output_tokens: 1000}";
const TAKES: u64 = 40_000;

fn tokens(amount: u64) -> Amounts {
    Amounts { tokens: Some(amount), ..Amounts::default() }
}

fn calls(amount: u64) -> Amounts {
    Amounts { model_calls: Some(amount), ..Amounts::default() }
}

fn used(usage: &Usage) -> u64 {
    usage.input_tokens + usage.output_tokens
}

/// A run of so many tasks that write, and a final one behind all of them.
pub fn many(model: String, count: u32, budget: Budget) -> Submission {
    let mut tasks: Vec<TaskSpec> = (0..count).map(|n| write(&format!("t{n}"), "write it")).collect();
    let mut last = write("omega", "put it together");
    last.depends_on = tasks.iter().map(|task| task.id.clone()).collect();
    last.is_final = true;
    tasks.push(last);
    Submission { model: Some(model), budget, ..fixed(tasks) }
}

/// A budget of ten replies, of which one attempt takes one and a bit, and a fifth is kept for the final task.
pub fn ten_replies() -> Budget {
    Budget {
        amounts: tokens(10 * TAKES),
        attempt: tokens(TAKES + 5_000),
        final_percent: 20,
        ..Budget::default()
    }
}

/// The rules of a model whose every reply takes the same.
pub fn writes() -> String {
    format!(
        "rules:\n- when: {{task: put it together}}\n  reply: {{text: all of it, {REPLY}}}\n- reply: {{text: a part, {REPLY}, delay: 0.2}}\n"
    )
}

/// That nothing was given out beyond the budget: what was used is within it, but for one reply of each attempt that ran
/// at the end; and at each reservation all of them together were.
fn assert_kept(plan: &Plan, limit: u64, at_once: u64) {
    let total = used(&plan.spend.total);
    assert!(total <= limit + at_once * TAKES, "{total} of {limit} were used");
    assert!(plan.reserved.is_empty(), "what was set aside is given back: {:?}", plan.reserved);
}

pub async fn what_planner_workers_critics_and_those_they_ask_use_is_counted_by_role_and_model(stage: &Stage) {
    let passes = verdict("");
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
    let model = stage.model("counted", &rules);
    let budget = Budget { amounts: tokens(1_000_000), ..Budget::default() };
    let submission =
        Submission { model: Some(model.clone()), budget, ..Submission::new("find out", Mode::Llm) };
    let run = stage.hand_in("counted", &submission).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::Completed);
    let spend = &plan.spend;
    assert_eq!(
        [&spend.planner, &spend.workers, &spend.critics, &spend.total].map(used),
        [1_010, 4_545, 3_030, 8_585]
    );
    let of = |name: &str| {
        spend.by_capability.iter().find(|(capability, _)| capability.as_str() == name).unwrap().1
    };
    assert_eq!(["planner", "asker", "critic"].map(|name| used(of(name))), [1_010, 4_545, 3_030]);
    let by_model: Vec<(&String, u64)> =
        spend.by_model.iter().map(|(name, usage)| (name, used(usage))).collect();
    assert_eq!(by_model, [(&model, 8_585)]);
    assert!(plan.reserved.is_empty(), "{:?}", plan.reserved);
}

pub async fn a_budget_that_is_used_up_ends_the_run_with_the_final_task_made_from_what_was_kept_for_it(
    stage: &Stage,
) {
    let model = stage.model("hard", &writes());
    let run = stage.hand_in("hard", &many(model, 20, ten_replies())).await;
    let plan = run.stopped().await;
    assert_eq!(end(&plan), EndReason::BudgetExhausted, "{:?}", plan.end);
    assert_kept(&plan, 10 * TAKES, 8);
    let done = plan.tasks().iter().filter(|task| task.state == TaskState::Completed).count();
    assert!((3..=10).contains(&done), "{done} were done");
    assert_eq!(
        plan.end.as_ref().unwrap().deliverable,
        Some((id("omega"), FinalRung::Final)),
        "{:?}",
        plan.end
    );
    assert!(plan.is_resumable());

    // With more it goes on where it stopped: what is done stays, and the final task is made anew from all of it.
    let kept: Vec<_> =
        plan.tasks().iter().filter(|task| task.state == TaskState::Completed).cloned().collect();
    let more = Budget { amounts: tokens(100 * TAKES), ..Budget::default() };
    run.command("more", Control::Resume { budget: Some(more) }).await.unwrap();
    let history = run.completed().await;
    let plan = history.plan();
    assert_eq!(plan.count(TaskState::Completed), 21);
    for task in kept.iter().filter(|task| !task.spec.is_final) {
        assert_eq!(plan.task(&task.spec.id).unwrap().attempts.len(), task.attempts.len(), "{}", task.spec.id);
    }
    assert_eq!(plan.end.as_ref().unwrap().deliverable, Some((id("omega"), FinalRung::Final)));
}

pub async fn a_planner_is_told_once_that_the_budget_comes_to_its_end(stage: &Stage) {
    let rules = format!(
        "
- when: {{answer: plan, task: The budget comes to its end}}
  reply: {{answer: {{reasoning: I wrap up, cancel: [{{task: luxury, reason: too dear}}]}}, usage: {{input_tokens: 10}}}}
- when: {{answer: plan}}
  reply: {{answer: {{reasoning: as it is}}, usage: {{input_tokens: 10}}}}
- reply: {{text: it is written, {REPLY}, delay: 0.5}}
"
    );
    let mut tasks =
        vec![write("a", "x"), write("b", "x"), write("c", "x"), write("luxury", "x"), write("omega", "x")];
    for (at, on) in [(1, "a"), (2, "b"), (3, "c"), (4, "c")] {
        tasks[at].depends_on = vec![id(on)];
        tasks[at].on_failed_dependency = OnFailedDependency::Skip;
    }
    tasks[3].depends_on.push(id("a"));
    tasks[4].depends_on.push(id("luxury"));
    tasks[4].is_final = true;
    let mut submission = planned(stage, "soft", Mode::Hybrid, tasks, &rules);
    submission.budget = Budget { soft_percent: 15, ..ten_replies() };
    let run = stage.hand_in("soft", &submission).await;
    let history = run.ended().await;
    let plan = history.plan();
    let low = history.events().filter(|(_, event)| matches!(event, Event::BudgetLow { .. })).count();
    assert_eq!((low, state(plan, "luxury")), (1, TaskState::Cancelled), "{:?}", plan.reasoning);
    assert_eq!(plan.reasoning, ["I wrap up"]);
    assert_eq!((end(plan), state(plan, "omega")), (EndReason::CompletedPartial, TaskState::Completed));
}

pub async fn an_attempt_is_held_to_what_was_set_aside_for_it(stage: &Stage) {
    // Every reply takes 40,000 of the 45,000 that the attempt may use, and it never comes to an end.
    let rules = format!("rules:\n- reply: {{calls: [{{think: {{thought: 'at {{{{turn}}}}'}}}}], {REPLY}}}\n");
    let mut restless = write("restless", "think of it");
    restless.limits.max_attempts = 1;
    let submission = Submission {
        model: Some(stage.model("held", &rules)),
        budget: ten_replies(),
        ..fixed(vec![restless, echo("other", &json!({}))])
    };
    let history = stage.hand_in("held", &submission).await.ended().await;
    let plan = history.plan();
    let attempt = &plan.task(&id("restless")).unwrap().attempts[0];
    let Some(AttemptEnd::Errored(error)) = &attempt.end else { panic!("{attempt:?}") };
    assert_eq!(error.kind, ErrorKind::Limit, "{error}");
    assert!(error.message.contains("budget"), "{error}");
    let took = used(&attempt.usage);
    assert!(
        (TAKES..=2 * TAKES).contains(&took),
        "{took} tokens: more than one reply beyond {}",
        TAKES + 5_000
    );
}

pub async fn a_capability_and_a_task_have_budgets_of_their_own(stage: &Stage) {
    let rejected = verdict("it is not good enough");
    let rules = format!(
        "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {rejected}}}\n- reply: {{text: a part}}\n"
    );
    let model = stage.model("own", &rules);
    let mut tasks: Vec<TaskSpec> = (0..4).map(|n| write(&format!("t{n}"), "write it")).collect();
    tasks.push(echo("other", &json!({"delay_ms": 500})));
    let mut submission = Submission { model: Some(model.clone()), ..fixed(tasks) };
    let writer = submission.tasks[0].capability.clone();
    submission.budget.capabilities.insert(writer, calls(2));
    let capability = stage.hand_in("own-capability", &submission).await;
    let mut dear = write("dear", "write it");
    dear.budget = calls(2);
    dear.review = millrace_protocol::plan::Review::critic(vec!["it is good".into()]);
    let own = stage.hand_in("own-task", &Submission { model: Some(model), ..fixed(vec![dear]) }).await;

    let history = capability.ended().await;
    let plan = history.plan();
    assert_eq!((plan.count(TaskState::Completed), plan.count(TaskState::Failed)), (3, 2), "{:?}", plan.end);
    let failed = plan.tasks().iter().filter(|task| task.state == TaskState::Failed);
    let reasons: Vec<&str> = failed.filter_map(|task| task.reason.as_deref()).collect();
    assert!(
        reasons.iter().all(|why| why.starts_with("the budget of its capability is used up")),
        "{reasons:?}"
    );
    let history = own.ended().await;
    let task = history.plan().task(&id("dear")).unwrap();
    assert_eq!((task.state, task.attempts.len()), (TaskState::Failed, 1), "{task:?}");
    assert!(task.reason.as_ref().unwrap().starts_with("its budget is used up"), "{:?}", task.reason);
}

pub async fn a_run_whose_time_is_over_ends_with_what_it_has_and_its_running_work_by_its_policy(
    stage: &Stage,
) {
    let tasks = || {
        let mut behind = echo("behind", &json!({}));
        behind.depends_on = vec![id("slow")];
        vec![echo("quick", &json!({})), echo("slow", &json!({"delay_ms": 60_000})), behind]
    };
    let short = || Budget { wall_time: Some(Duration::from_secs(2)), ..Budget::default() };
    let cut = Submission { budget: Budget { when_spent: WhenSpent::Cancel, ..short() }, ..fixed(tasks()) };
    let cut = stage.hand_in("time-cut", &cut).await;
    let mut left = Submission { budget: short(), ..fixed(tasks()) };
    left.tasks[1].parameters.insert("delay_ms".into(), json!(5000));
    let left = stage.hand_in("time-left", &left).await;
    let (cut, left) = (cut.stopped().await, left.stopped().await);
    assert_eq!((end(&cut), state(&cut, "slow")), (EndReason::BudgetExhausted, TaskState::Cancelled));
    assert_eq!((end(&left), state(&left, "slow")), (EndReason::BudgetExhausted, TaskState::Completed));
    assert_eq!(state(&left, "behind"), TaskState::Cancelled);
    assert_eq!(cut.end.as_ref().unwrap().deliverable, Some((id("quick"), FinalRung::Detailed)));
}

pub async fn a_planner_keeps_to_the_number_of_tasks_and_to_the_depth_that_a_run_may_have(stage: &Stage) {
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
        let mut submission = planned(stage, name, Mode::Llm, Vec::new(), rules);
        submission.budget = budget;
        let history = stage.hand_in(name, &submission).await.ended().await;
        assert_eq!((end(history.plan()), history.plan().tasks().len()), (EndReason::Completed, 2), "{name}");
    }
}
