//! Plans that nobody changes while they run: what runs when, and what becomes of those who depend on others.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::plan::{Control, EndReason, FinalRung, OnFailedDependency, Plan, TaskState};
use millrace_tests::plans::{echo, fixed, id};
use millrace_tests::stage::{Stage, task, write};
use serde_json::json;

use crate::{end, state};

fn claimed(plan: &Plan, task: &str) -> Timestamp {
    plan.task(&id(task)).unwrap().attempts[0].claimed_at.unwrap()
}

fn over(plan: &Plan, task: &str) -> Timestamp {
    plan.task(&id(task)).unwrap().attempts.last().unwrap().ended_at.unwrap()
}

/// A task that fails at once and for good.
fn fails(name: &str) -> millrace_protocol::plan::TaskSpec {
    let mut task = echo(name, &json!({"fail_rate": 1.0}));
    task.limits.max_attempts = 1;
    task
}

pub async fn tasks_in_a_row_run_one_behind_the_other_and_see_each_other_s_results(stage: &Stage) {
    let model = stage.model(
        "row",
        "rules:
- when: {task: 'the second, of the first'}
  reply: {text: 'the third, of the second'}
- when: {task: 'this is the first'}
  reply: {text: 'the second, of the first'}
- reply: {text: 'this is the first'}
",
    );
    let mut tasks = vec![write("a", "begin"), write("b", "go on"), write("c", "end")];
    tasks[1].depends_on = vec![id("a")];
    tasks[2].depends_on = vec![id("b")];
    tasks[2].is_final = true;
    let run = stage
        .hand_in("row", &millrace_protocol::plan::Submission { model: Some(model), ..fixed(tasks) })
        .await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::Completed);
    assert!(over(plan, "a") <= claimed(plan, "b") && over(plan, "b") <= claimed(plan, "c"));
    assert_eq!(run.result(&history, "c").await.output, "the third, of the second");
    let shown = run.shown();
    assert_eq!(
        (&shown["deliverable"]["task"], &shown["deliverable"]["rung"]),
        (&json!("c"), &json!("final")),
        "{shown}"
    );
    assert_eq!(shown["result"]["output"], "the third, of the second");
}

pub async fn the_middle_of_a_diamond_runs_at_once(stage: &Stage) {
    let mut tasks = vec![
        echo("top", &json!({})),
        echo("left", &json!({"delay_ms": 1500})),
        echo("right", &json!({"delay_ms": 1500})),
        echo("bottom", &json!({})),
    ];
    tasks[1].depends_on = vec![id("top")];
    tasks[2].depends_on = vec![id("top")];
    tasks[3].depends_on = vec![id("left"), id("right")];
    let history = stage.hand_in("diamond", &fixed(tasks)).await.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::Completed);
    assert!(claimed(plan, "left") < over(plan, "right") && claimed(plan, "right") < over(plan, "left"));
    assert!(claimed(plan, "bottom") >= over(plan, "left").max(over(plan, "right")));
}

pub async fn a_child_begins_before_its_parent_s_slow_sibling_has_ended(stage: &Stage) {
    let mut tasks =
        vec![echo("quick", &json!({})), echo("slow", &json!({"delay_ms": 6000})), echo("child", &json!({}))];
    tasks[2].depends_on = vec![id("quick")];
    let history = stage.hand_in("cousin", &fixed(tasks)).await.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::Completed);
    assert!(over(plan, "child") < over(plan, "slow"), "the child waited for its parent's sibling");
}

pub async fn whoever_depends_on_a_failed_task_goes_by_its_own_policy_at_once(stage: &Stage) {
    let mut tasks = vec![
        fails("base"),
        echo("cancelled", &json!({})),
        echo("behind", &json!({})),
        echo("skips", &json!({})),
        echo("slow", &json!({"delay_ms": 4000})),
    ];
    tasks[1].depends_on = vec![id("base")];
    tasks[2].depends_on = vec![id("cancelled")];
    tasks[3].depends_on = vec![id("base")];
    tasks[3].on_failed_dependency = OnFailedDependency::Skip;
    let history = stage.hand_in("policies", &fixed(tasks)).await.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::CompletedPartial);
    let states = ["base", "cancelled", "behind", "skips", "slow"].map(|task| state(plan, task));
    use TaskState::{Cancelled, Completed, Failed};
    assert_eq!(states, [Failed, Cancelled, Cancelled, Completed, Completed]);
    assert_eq!(plan.task(&id("cancelled")).unwrap().reason.as_deref(), Some("task base failed"));
    assert_eq!(plan.task(&id("behind")).unwrap().reason.as_deref(), Some("task cancelled was cancelled"));
    assert!(plan.task(&id("behind")).unwrap().since < over(plan, "slow"), "it was decided at once");
}

pub async fn a_plan_in_which_nothing_can_begin_any_more_ends_with_a_report_of_what_waits_for_what(
    stage: &Stage,
) {
    let mut tasks = vec![fails("base"), echo("waits", &json!({})), echo("behind", &json!({}))];
    for (at, on) in [(1, "base"), (2, "waits")] {
        tasks[at].depends_on = vec![id(on)];
        tasks[at].on_failed_dependency = OnFailedDependency::Ask;
    }
    let history = stage.hand_in("blocked", &fixed(tasks)).await.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::NoProgress);
    let detail = &plan.end.as_ref().unwrap().detail;
    for part in ["2 tasks can never begin", "waits waits for base, which is failed", "behind waits for waits"]
    {
        assert!(detail.contains(part), "{detail}");
    }
}

pub async fn a_cancelled_task_takes_all_with_it_that_hang_on_it_and_no_others(stage: &Stage) {
    let mut tasks = vec![
        echo("a", &json!({"delay_ms": 60_000})),
        echo("b", &json!({})),
        echo("c", &json!({})),
        echo("other", &json!({"delay_ms": 500})),
    ];
    tasks[1].depends_on = vec![id("a")];
    tasks[2].depends_on = vec![id("b"), id("other")];
    let run = stage.hand_in("cascade", &fixed(tasks)).await;
    run.until("a under way", |plan| (state(plan, "a") == TaskState::Running).then_some(())).await;
    let cancel = Control::CancelTask { task: id("a"), reason: "not needed".into() };
    run.command("cascade", cancel).await.unwrap();
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::CompletedPartial);
    let reason = |task: &str| plan.task(&id(task)).unwrap().reason.clone().unwrap_or_default();
    assert_eq!(
        [reason("a"), reason("b"), reason("c")].map(|why| why.split(' ').next_back().unwrap().to_owned()),
        ["needed", "cancelled", "cancelled"]
    );
    assert_eq!(state(plan, "other"), TaskState::Completed);
}

pub async fn a_sibling_s_failure_stops_nobody_unless_the_first_failure_is_to_end_the_run(stage: &Stage) {
    let tasks = || vec![fails("bad"), echo("good", &json!({"delay_ms": 2000})), echo("quick", &json!({}))];
    let isolated = stage.hand_in("isolated", &fixed(tasks())).await;
    let mut submission = fixed(tasks());
    submission.tasks[0].parameters.insert("delay_ms".into(), json!(1000));
    submission.tasks[1].parameters.insert("delay_ms".into(), json!(60_000));
    submission.fail_fast = true;
    let hasty = stage.hand_in("hasty", &submission).await;
    let (isolated, hasty) = (isolated.ended().await, hasty.ended().await);
    let states = |plan: &Plan| ["bad", "good", "quick"].map(|task| state(plan, task));
    use TaskState::{Cancelled, Completed, Failed};
    assert_eq!(states(isolated.plan()), [Failed, Completed, Completed]);
    assert_eq!(states(hasty.plan()), [Failed, Cancelled, Completed], "what is completed stays");
}

/// A program whose result has nothing beyond its summary.
pub const BRIEF: &str = r#"kind: command
name: brief
description: Says one word.
command: [sh, -c, 'cat > /dev/null; echo "{\"summary\": \"brief\", \"output\": \"brief\"}"']
effect: pure
"#;

/// A program that goes by the name of the capability that puts results together.
pub const PRODUCER: &str = r#"kind: command
name: producer
description: Says one word.
command: [sh, -c, 'cat > /dev/null; echo "{\"summary\": \"made\", \"output\": \"made\"}"']
effect: pure
"#;

pub async fn the_deliverable_is_chosen_by_four_rungs_and_the_newest_wins(stage: &Stage) {
    let brief = |name: &str| task(name, "say it", "brief");
    let producer = || task("made", "put it together", "producer");
    let mut last = brief("last");
    last.is_final = true;
    let cases = [
        ("rung-1", vec![last, echo("detailed", &json!({})), producer()], ("last", FinalRung::Final)),
        (
            "rung-2",
            vec![echo("old", &json!({})), echo("new", &json!({})), producer(), brief("b")],
            ("new", FinalRung::Detailed),
        ),
        ("rung-3", vec![brief("b"), producer(), brief("c")], ("made", FinalRung::Producer)),
        ("rung-4", vec![brief("b"), brief("c")], ("c", FinalRung::Any)),
    ];
    for (name, tasks, (task, rung)) in cases {
        let history = stage.hand_in(name, &fixed(tasks)).await.ended().await;
        let end = history.plan().end.clone().unwrap();
        assert_eq!(end.deliverable, Some((id(task), rung)), "{name}");
    }
    // A final task that fails leaves the choice to the others; where nothing is there, nothing is chosen.
    let mut lost = fails("lost");
    lost.is_final = true;
    let partial = stage.hand_in("rung-lost", &fixed(vec![lost.clone(), echo("kept", &json!({}))])).await;
    let nothing = stage.hand_in("rung-none", &fixed(vec![lost])).await;
    let (partial, nothing) = (partial.ended().await, nothing.ended().await);
    let found = |plan: &Plan| (end(plan), plan.end.as_ref().unwrap().deliverable.clone());
    let kept = Some((id("kept"), FinalRung::Detailed));
    assert_eq!(found(partial.plan()), (EndReason::CompletedPartial, kept));
    assert_eq!(found(nothing.plan()), (EndReason::Failed, None));
}

/// Plans in YAML that are none, with what must be said of each.
const BAD_PLANS: [(&str, &str); 8] = [
    (
        "tasks:\n- {id: a, objective: x, capability: echo}\n- {id: a, objective: x, capability: echo}\n",
        "twice",
    ),
    ("tasks:\n- {id: a, objective: x, capability: echo, depends_on: [b]}\n", "depends on b"),
    ("tasks:\n- {id: a, objective: x, capability: echo, depends_on: [a]}\n", "depends on itself"),
    (
        "tasks:\n- {id: a, objective: x, capability: echo, depends_on: [b]}\n\
         - {id: b, objective: x, capability: echo, depends_on: [a]}\n",
        "circle",
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

pub async fn a_plan_file_that_is_none_is_refused_with_its_line_and_nothing_is_handed_in(stage: &Stage) {
    for (number, (text, told)) in BAD_PLANS.iter().enumerate() {
        let file = stage.cluster.folder().join(format!("bad-{number}.yaml"));
        std::fs::write(&file, text).unwrap();
        let mut command = stage.cluster.command();
        let said = command.args(["submit", "do it", "--plan"]).arg(&file).output().unwrap();
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{text}: {error}");
        let place = format!("bad-{number}.yaml:");
        assert!(error.contains(told) && error.contains(&place), "{text}: {error}");
        assert!(said.stdout.is_empty(), "no run came of it");
    }
}

pub async fn an_end_that_comes_twice_or_late_is_refused_and_changes_nothing(stage: &Stage) {
    let mut late = echo("late", &json!({"delay_ms": 60_000}));
    late.limits.run_time = Duration::from_secs(2);
    late.limits.max_attempts = 2;
    let tasks = vec![echo("once", &json!({})), late, echo("slow", &json!({"delay_ms": 6000}))];
    let run = stage.hand_in("twice", &fixed(tasks)).await;
    run.until("the first result", |plan| (state(plan, "once") == TaskState::Completed).then_some(())).await;
    let outcome = stage.last_entry(&run.id, "once", 1).await;
    let again = stage.write_again(&outcome, &outcome.subject).await;
    // The first attempt ran out of its time; whoever had it in hand comes with a result when the second one runs.
    run.until("a second attempt", |plan| {
        let late = plan.task(&id("late"))?;
        (late.attempt == 2 && late.state == TaskState::Running).then_some(())
    })
    .await;
    let subject = outcome.subject.as_str().replace("task.once.1", "task.late.1");
    let late = stage.write_again(&outcome, &subject).await;
    let plan = run.until("the second attempt's end", |plan| {
        (state(plan, "late") == TaskState::Failed).then(|| plan.clone())
    });
    let plan = plan.await;
    let refused = async |fact: u64| run.decided(fact).await.unwrap_err().to_string();
    assert_eq!(refused(again).await, "task once is completed, so that an outcome changes nothing");
    assert_eq!(refused(late).await, "task late is at attempt 2, not 1");
    let attempts = |task: &str| plan.task(&id(task)).unwrap().attempts.len();
    assert_eq!((attempts("once"), attempts("late")), (1, 2));
    assert_eq!(end(&run.over().await), EndReason::CompletedPartial);
}
