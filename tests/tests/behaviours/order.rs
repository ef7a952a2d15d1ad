//! Plans that do not change while they run: the order of tasks, and what happens to the dependents of failed tasks.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::plan::{
    CommandAction, DeliverableRule, EndReason, OnFailedDependency, Plan, TaskState,
};
use millrace_tests::plans::{echo_task, fixed_submission, task_id};
use millrace_tests::testbed::{TestBed, capability_task, writer_task};
use serde_json::json;

use super::{end_reason, task_state};

fn claim_time(plan: &Plan, task: &str) -> Timestamp {
    plan.task(&task_id(task)).unwrap().attempts[0].claimed_at.unwrap()
}

fn end_time(plan: &Plan, task: &str) -> Timestamp {
    plan.task(&task_id(task)).unwrap().attempts.last().unwrap().ended_at.unwrap()
}

/// A task that fails at its only attempt.
fn failing_task(name: &str) -> millrace_protocol::plan::TaskSpec {
    let mut task = echo_task(name, &json!({"fail_rate": 1.0}));
    task.limits.max_attempts = 1;
    task
}

pub async fn chained_tasks_run_in_order_and_see_earlier_results(testbed: &TestBed) {
    let model = testbed.write_scripted_model(
        "row",
        "rules:
- when: {task: 'the second, of the first'}
  reply: {text: 'the third, of the second'}
- when: {task: 'this is the first'}
  reply: {text: 'the second, of the first'}
- reply: {text: 'this is the first'}
",
    );
    let mut tasks = vec![writer_task("a", "begin"), writer_task("b", "go on"), writer_task("c", "end")];
    tasks[1].depends_on = vec![task_id("a")];
    tasks[2].depends_on = vec![task_id("b")];
    tasks[2].is_final = true;
    let run = testbed
        .submit_run(
            "row",
            &millrace_protocol::plan::Submission { model: Some(model), ..fixed_submission(tasks) },
        )
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::Completed);
    assert!(end_time(plan, "a") <= claim_time(plan, "b") && end_time(plan, "b") <= claim_time(plan, "c"));
    assert_eq!(run.read_task_result(&history, "c").await.output, "the third, of the second");
    let shown = run.run_show_json();
    assert_eq!(
        (&shown["deliverable"]["task"], &shown["deliverable"]["rule"]),
        (&json!("c"), &json!("final")),
        "{shown}"
    );
    assert_eq!(shown["result"]["output"], "the third, of the second");
}

pub async fn middle_of_a_diamond_runs_in_parallel(testbed: &TestBed) {
    let mut tasks = vec![
        echo_task("top", &json!({})),
        echo_task("left", &json!({"delay_ms": 1500})),
        echo_task("right", &json!({"delay_ms": 1500})),
        echo_task("bottom", &json!({})),
    ];
    tasks[1].depends_on = vec![task_id("top")];
    tasks[2].depends_on = vec![task_id("top")];
    tasks[3].depends_on = vec![task_id("left"), task_id("right")];
    let history = testbed.submit_run("diamond", &fixed_submission(tasks)).await.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::Completed);
    assert!(
        claim_time(plan, "left") < end_time(plan, "right")
            && claim_time(plan, "right") < end_time(plan, "left")
    );
    assert!(claim_time(plan, "bottom") >= end_time(plan, "left").max(end_time(plan, "right")));
}

pub async fn task_starts_once_its_own_dependencies_are_done(testbed: &TestBed) {
    let mut tasks = vec![
        echo_task("quick", &json!({})),
        echo_task("slow", &json!({"delay_ms": 6000})),
        echo_task("child", &json!({})),
    ];
    tasks[2].depends_on = vec![task_id("quick")];
    let history = testbed.submit_run("cousin", &fixed_submission(tasks)).await.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::Completed);
    assert!(end_time(plan, "child") < end_time(plan, "slow"), "the task waited for an unrelated one");
}

pub async fn dependents_of_a_failed_task_follow_their_policy(testbed: &TestBed) {
    let mut tasks = vec![
        failing_task("base"),
        echo_task("cancelled", &json!({})),
        echo_task("behind", &json!({})),
        echo_task("skips", &json!({})),
        echo_task("slow", &json!({"delay_ms": 4000})),
    ];
    tasks[1].depends_on = vec![task_id("base")];
    tasks[2].depends_on = vec![task_id("cancelled")];
    tasks[3].depends_on = vec![task_id("base")];
    tasks[3].on_failed_dependency = OnFailedDependency::Skip;
    let history = testbed.submit_run("policies", &fixed_submission(tasks)).await.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::CompletedPartial);
    let states = ["base", "cancelled", "behind", "skips", "slow"].map(|task| task_state(plan, task));
    use TaskState::{Cancelled, Completed, Failed};
    assert_eq!(states, [Failed, Cancelled, Cancelled, Completed, Completed]);
    assert_eq!(plan.task(&task_id("cancelled")).unwrap().end_reason(), Some("task base failed"));
    assert_eq!(plan.task(&task_id("behind")).unwrap().end_reason(), Some("task cancelled was cancelled"));
    assert!(
        plan.task(&task_id("behind")).unwrap().since < end_time(plan, "slow"),
        "the dependents are cancelled at once"
    );
}

pub async fn blocked_plan_ends_with_a_report_of_what_waits_for_what(testbed: &TestBed) {
    let mut tasks =
        vec![failing_task("base"), echo_task("waits", &json!({})), echo_task("behind", &json!({}))];
    for (at, on) in [(1, "base"), (2, "waits")] {
        tasks[at].depends_on = vec![task_id(on)];
        tasks[at].on_failed_dependency = OnFailedDependency::Ask;
    }
    let history = testbed.submit_run("blocked", &fixed_submission(tasks)).await.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::NoProgress);
    let detail = &plan.run.end.as_ref().unwrap().detail;
    for part in ["2 tasks can never begin", "waits waits for base, which is failed", "behind waits for waits"]
    {
        assert!(detail.contains(part), "{detail}");
    }
}

pub async fn cancelling_a_task_cancels_only_its_dependents(testbed: &TestBed) {
    let mut tasks = vec![
        echo_task("a", &json!({"delay_ms": 60_000})),
        echo_task("b", &json!({})),
        echo_task("c", &json!({})),
        echo_task("other", &json!({"delay_ms": 500})),
    ];
    tasks[1].depends_on = vec![task_id("a")];
    tasks[2].depends_on = vec![task_id("b"), task_id("other")];
    let run = testbed.submit_run("cascade", &fixed_submission(tasks)).await;
    run.wait_for_plan("a under way", |plan| (task_state(plan, "a") == TaskState::Running).then_some(()))
        .await;
    let cancel = CommandAction::CancelTask { task: task_id("a"), reason: "not needed".into() };
    run.send_command("cascade", cancel).await.unwrap();
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::CompletedPartial);
    let reason = |task: &str| plan.task(&task_id(task)).unwrap().end_reason().unwrap_or_default();
    assert_eq!(
        [reason("a"), reason("b"), reason("c")].map(|why| why.split(' ').next_back().unwrap().to_owned()),
        ["needed", "cancelled", "cancelled"]
    );
    assert_eq!(task_state(plan, "other"), TaskState::Completed);
}

pub async fn failure_does_not_stop_siblings_unless_fail_fast(testbed: &TestBed) {
    let tasks = || {
        vec![
            failing_task("bad"),
            echo_task("good", &json!({"delay_ms": 2000})),
            echo_task("quick", &json!({})),
        ]
    };
    let isolated = testbed.submit_run("isolated", &fixed_submission(tasks())).await;
    let mut submission = fixed_submission(tasks());
    Arc::make_mut(&mut submission.tasks[0]).parameters.insert("delay_ms".into(), json!(1000));
    Arc::make_mut(&mut submission.tasks[1]).parameters.insert("delay_ms".into(), json!(60_000));
    submission.fail_fast = true;
    let hasty = testbed.submit_run("hasty", &submission).await;
    let (isolated, hasty) = (isolated.wait_for_end().await, hasty.wait_for_end().await);
    let states = |plan: &Plan| ["bad", "good", "quick"].map(|task| task_state(plan, task));
    use TaskState::{Cancelled, Completed, Failed};
    assert_eq!(states(isolated.folded_plan()), [Failed, Completed, Completed]);
    assert_eq!(states(hasty.folded_plan()), [Failed, Cancelled, Completed], "completed tasks stay completed");
}

/// A program whose result has no more than its summary.
pub const BRIEF: &str = r#"kind: command
name: brief
description: Says one word.
command: [sh, -c, 'cat > /dev/null; echo "{\"summary\": \"brief\", \"output\": \"brief\"}"']
effect: pure
"#;

/// A program under the name of the capability that combines results.
pub const PRODUCER: &str = r#"kind: command
name: producer
description: Says one word.
command: [sh, -c, 'cat > /dev/null; echo "{\"summary\": \"made\", \"output\": \"made\"}"']
effect: pure
"#;

pub async fn deliverable_is_chosen_by_four_rules_and_the_newest_wins(testbed: &TestBed) {
    let brief = |name: &str| capability_task(name, "say it", "brief");
    let producer = || capability_task("made", "put it together", "producer");
    let mut last = brief("last");
    last.is_final = true;
    let cases = [
        (
            "rung-1",
            vec![last, echo_task("detailed", &json!({})), producer()],
            ("last", DeliverableRule::Final),
        ),
        (
            "rung-2",
            vec![echo_task("old", &json!({})), echo_task("new", &json!({})), producer(), brief("b")],
            ("new", DeliverableRule::Detailed),
        ),
        ("rung-3", vec![brief("b"), producer(), brief("c")], ("made", DeliverableRule::Producer)),
        ("rung-4", vec![brief("b"), brief("c")], ("c", DeliverableRule::Any)),
    ];
    for (name, tasks, (task, rung)) in cases {
        let history = testbed.submit_run(name, &fixed_submission(tasks)).await.wait_for_end().await;
        let end = history.folded_plan().run.end.clone().unwrap();
        assert_eq!(end.deliverable, Some((task_id(task), rung)), "{name}");
    }
    // If the final task fails, the other rules apply; without any result there is no deliverable.
    let mut lost = failing_task("lost");
    lost.is_final = true;
    let partial = testbed
        .submit_run("rung-lost", &fixed_submission(vec![lost.clone(), echo_task("kept", &json!({}))]))
        .await;
    let nothing = testbed.submit_run("rung-none", &fixed_submission(vec![lost])).await;
    let (partial, nothing) = (partial.wait_for_end().await, nothing.wait_for_end().await);
    let ending = |plan: &Plan| (end_reason(plan), plan.run.end.as_ref().unwrap().deliverable.clone());
    let expected = Some((task_id("kept"), DeliverableRule::Detailed));
    assert_eq!(ending(partial.folded_plan()), (EndReason::CompletedPartial, expected));
    assert_eq!(ending(nothing.folded_plan()), (EndReason::Failed, None));
}

/// Invalid plan files, each with a part of the expected error.
const BAD_PLANS: [(&str, &str); 8] = [
    (
        "tasks:\n- {id: a, objective: x, capability: echo}\n- {id: a, objective: x, capability: echo}\n",
        "duplicate task id a",
    ),
    ("tasks:\n- {id: a, objective: x, capability: echo, depends_on: [b]}\n", "depends on b"),
    ("tasks:\n- {id: a, objective: x, capability: echo, depends_on: [a]}\n", "depends on itself"),
    (
        "tasks:\n- {id: a, objective: x, capability: echo, depends_on: [b]}\n\
         - {id: b, objective: x, capability: echo, depends_on: [a]}\n",
        "dependency cycle",
    ),
    (
        "tasks:\n- {id: a, objective: x, capability: echo, final: true}\n\
         - {id: b, objective: x, capability: echo, final: true}\n",
        "both final",
    ),
    ("tasks:\n- {id: a, objektive: x, capability: echo}\n", "did you mean \"objective\""),
    ("tasks: []\n", "no tasks"),
    ("tasks:\n- {id: a, objective: x, capability: echo, limits: {max_attempts: 0}}\n", "max_attempts"),
];

pub async fn invalid_plan_file_is_rejected_with_its_line(testbed: &TestBed) {
    for (number, (text, expected)) in BAD_PLANS.iter().enumerate() {
        let file = testbed.cluster.test_folder().join(format!("bad-{number}.yaml"));
        std::fs::write(&file, text).unwrap();
        let mut command = testbed.cluster.millrace_command();
        let output = command.args(["submit", "do it", "--plan"]).arg(&file).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}: {error}");
        let place = format!("bad-{number}.yaml:");
        assert!(error.contains(expected) && error.contains(&place), "{text}: {error}");
        assert!(output.stdout.is_empty(), "no run was submitted");
    }
}

pub async fn duplicate_and_late_outcomes_are_rejected(testbed: &TestBed) {
    let mut late = echo_task("late", &json!({"delay_ms": 60_000}));
    late.limits.run_time = Duration::from_secs(2);
    late.limits.max_attempts = 2;
    let tasks = vec![echo_task("once", &json!({})), late, echo_task("slow", &json!({"delay_ms": 6000}))];
    let run = testbed.submit_run("twice", &fixed_submission(tasks)).await;
    run.wait_for_plan("the first result", |plan| {
        (task_state(plan, "once") == TaskState::Completed).then_some(())
    })
    .await;
    let outcome = testbed.last_journal_record(&run.id, "once", 1).await;
    let again = testbed.republish_payload(&outcome, &outcome.subject).await;
    // The first attempt timed out; its worker sends a result while the second attempt runs.
    run.wait_for_plan("a second attempt", |plan| {
        let late = plan.task(&task_id("late"))?;
        (late.attempt == 2 && late.state() == TaskState::Running).then_some(())
    })
    .await;
    let subject = outcome.subject.as_str().replace("task.once.1", "task.late.1");
    let late = testbed.republish_payload(&outcome, &subject).await;
    let plan = run.wait_for_plan("the second attempt's end", |plan| {
        (task_state(plan, "late") == TaskState::Failed).then(|| plan.clone())
    });
    let plan = plan.await;
    let refused = async |fact: u64| run.wait_for_decision_on(fact).await.unwrap_err().to_string();
    assert_eq!(refused(again).await, "task once is completed: outcome ignored");
    assert_eq!(refused(late).await, "task late is at attempt 2, not 1");
    let attempts = |task: &str| plan.task(&task_id(task)).unwrap().attempts.len();
    assert_eq!((attempts("once"), attempts("late")), (1, 2));
    assert_eq!(end_reason(&run.wait_for_end_unchecked().await), EndReason::CompletedPartial);
}
