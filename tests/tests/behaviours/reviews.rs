//! Reviews of results, failing attempts, and the limits of an attempt.

use std::time::Duration;

use millrace_protocol::plan::{
    AttemptEnd, EndReason, Event, Plan, ReviewEvent, ReviewPolicy, Submission, Task, TaskEvent, TaskSpec,
    TaskState,
};
use millrace_protocol::result::{ErrorKind, ExceededLimit, TaskError};
use millrace_tests::plans::{echo_task, fixed_submission, task_id};
use millrace_tests::provider::{StubProvider, StubReply};
use millrace_tests::testbed::{TestBed, capability_task, verdict_json, writer_task};
use serde_json::json;

use super::{end_reason, task_state};

fn reviewed_task(name: &str, objective: &str, criterion: &str) -> TaskSpec {
    TaskSpec { review: ReviewPolicy::critic(vec![criterion.into()]), ..writer_task(name, objective) }
}

fn submission_with_model(model: String, tasks: Vec<TaskSpec>) -> Submission {
    Submission { model: Some(model), ..fixed_submission(tasks) }
}

fn only_task(plan: &Plan) -> &Task {
    plan.tasks().first().unwrap()
}

fn attempt_error(task: &Task, attempt: usize) -> &TaskError {
    let end = task.attempts[attempt].end.as_ref();
    let Some(AttemptEnd::Errored(error)) = end else { panic!("{end:?}") };
    error
}

pub async fn verdict_that_contradicts_itself_counts_by_its_criteria(testbed: &TestBed) {
    let mut contradicts = verdict_json("name the year");
    contradicts["passed"] = json!(true);
    let rules = format!(
        "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {contradicts}}}\n- reply: {{text: a draft}}\n"
    );
    let model = testbed.write_scripted_model("contradicts", &rules);
    let mut task = reviewed_task("essay", "write it", "it names the year");
    task.limits.max_attempts = 1;
    let run = testbed.submit_run("contradicts", &submission_with_model(model, vec![task])).await;
    let history = run.wait_for_end().await;
    assert_eq!(task_state(history.folded_plan(), "essay"), TaskState::Failed);
    assert_eq!(testbed.count_model_requests("contradicts", "verdict"), 1);
    let verdict = only_task(history.folded_plan()).attempts[0].verdict().map(|(_, verdict)| verdict);
    assert!(verdict.is_some_and(|verdict| !verdict.passed));
}

pub async fn rejected_result_is_redone_with_feedback(testbed: &TestBed) {
    let rules = format!(
        "rules:
- when: {{answer: verdict, task: of the year 1998}}
  reply: {{answer: {}}}
- when: {{answer: verdict}}
  reply: {{answer: {}}}
- when: {{task: say in which year}}
  reply: {{text: a draft of the year 1998}}
- reply: {{text: a draft}}
",
        verdict_json(""),
        verdict_json("say in which year it was")
    );
    let model = testbed.write_scripted_model("mended", &rules);
    let run = testbed
        .submit_run(
            "mended",
            &submission_with_model(model, vec![reviewed_task("essay", "write it", "it names the year")]),
        )
        .await;
    let history = run.wait_for_end().await;
    let task = only_task(history.folded_plan());
    assert_eq!((end_reason(history.folded_plan()), task.attempts.len()), (EndReason::Completed, 2));
    let passed = |attempt: usize| task.attempts[attempt].verdict().map(|(_, verdict)| verdict.passed);
    assert_eq!((passed(0), passed(1)), (Some(false), Some(true)));
    assert_eq!(task.spec.objective, "write it", "feedback is never added to the objective");
    assert_eq!(run.read_task_result(&history, "essay").await.output, "a draft of the year 1998");
    assert!(task.attempts.iter().all(|attempt| attempt.usage.model_calls == 1), "{:?}", task.attempts);
    assert!(
        task.attempts.iter().all(|attempt| attempt.review_usage().model_calls == 1),
        "{:?}",
        task.attempts
    );
}

pub async fn result_rejected_three_times_fails_the_task(testbed: &TestBed) {
    let verdict = verdict_json("no year");
    let rules = format!(
        "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {verdict}}}\n- reply: {{text: a draft}}\n"
    );
    let model = testbed.write_scripted_model("hopeless", &rules);
    let run = testbed
        .submit_run(
            "hopeless",
            &submission_with_model(model, vec![reviewed_task("essay", "write it", "it names the year")]),
        )
        .await;
    let history = run.wait_for_end().await;
    let task = only_task(history.folded_plan());
    assert_eq!(
        (end_reason(history.folded_plan()), task.state(), task.attempts.len()),
        (EndReason::Failed, TaskState::Failed, 3)
    );
    let reason = task.end_reason().unwrap().to_owned();
    assert!(reason.contains("rejected at attempt 3 of 3") && reason.contains("no year"), "{reason}");
    assert_eq!(
        (testbed.count_model_requests("hopeless", ""), testbed.count_model_requests("hopeless", "verdict")),
        (3, 3)
    );
}

pub async fn failed_attempts_are_never_reviewed_or_accepted(testbed: &TestBed) {
    let mut fails = echo_task("fails", &json!({"fail_rate": 1.0}));
    let mut empty = echo_task("empty", &json!({"bytes": 0}));
    for task in [&mut fails, &mut empty] {
        task.review = ReviewPolicy::critic(vec!["it is short".into()]);
        task.limits.backoff = Duration::from_millis(100);
    }
    let run = testbed.submit_run("errs", &fixed_submission(vec![fails, empty])).await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::Failed);
    for (name, why) in [("fails", "failed because of fail_rate"), ("empty", "the result is empty")] {
        let task = plan.task(&task_id(name)).unwrap();
        assert_eq!((task.state(), task.attempts.len()), (TaskState::Failed, 3), "{name}");
        assert!(attempt_error(task, 2).message.contains(why), "{task:?}");
    }
    let is_judged = |event: &Event| {
        matches!(
            event,
            Event::Review(ReviewEvent::VerdictGiven { .. }) | Event::Task(TaskEvent::Accepted { .. })
        )
    };
    assert!(!history.timed_events().any(|(_, event)| is_judged(event)));
}

pub async fn endless_tool_calls_hit_the_limit_and_fail_the_attempt(testbed: &TestBed) {
    // Three calls are allowed; the model makes a fourth one after it was told to stop.
    let rules = "rules:\n- reply: {calls: [now]}\n";
    let model = testbed.write_scripted_model("restless", rules);
    let mut restless = writer_task("restless", "think of it");
    restless.limits.max_attempts = 1;
    let history = testbed
        .submit_run("restless", &submission_with_model(model, vec![restless]))
        .await
        .wait_for_end()
        .await;
    let task = only_task(history.folded_plan());
    assert_eq!(task.state(), TaskState::Failed);
    let error = attempt_error(task, 0);
    assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(ExceededLimit::ToolCalls)), "{error}");
    assert!(error.usage.model_calls <= 5, "{:?}", error.usage);
}

pub async fn context_overflow_continues_from_notes_at_most_twice(testbed: &TestBed) {
    let overflow = "{error: context_overflow, message: this is too long}";
    let twice = testbed.write_scripted_model(
        "long-twice",
        &format!("rules:\n- times: 2\n  reply: {overflow}\n- reply: {{text: done all the same}}\n"),
    );
    let always = testbed.write_scripted_model("long-always", &format!("rules:\n- reply: {overflow}\n"));
    let mut long = writer_task("long", "read it all");
    long.limits.max_attempts = 1;
    let twice = testbed.submit_run("long-twice", &submission_with_model(twice, vec![long.clone()])).await;
    let always = testbed.submit_run("long-always", &submission_with_model(always, vec![long])).await;
    let (done, given_up) = (twice.wait_for_end().await, always.wait_for_end().await);
    assert_eq!(twice.read_task_result(&done, "long").await.output, "done all the same");
    assert_eq!(testbed.count_model_requests("long-twice", ""), 3);
    let error = attempt_error(only_task(given_up.folded_plan()), 0);
    assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(ExceededLimit::Context)), "{error}");
    assert_eq!(testbed.count_model_requests("long-always", ""), 3, "the first try and two from notes");
}

pub async fn rate_limited_request_is_retried_after_the_given_wait(testbed: &TestBed) {
    let provider = StubProvider::start(vec![StubReply::Busy(1), StubReply::Text("here it is".into())]).await;
    let run = testbed
        .submit_run(
            "patient",
            &submission_with_model(provider.model.clone(), vec![writer_task("asks", "ask it")]),
        )
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    assert_eq!(run.read_task_result(&history, "asks").await.output, "here it is");
    let request_times = provider.recorded_activity().requests;
    assert_eq!(
        (request_times.len(), only_task(history.folded_plan()).attempts.len()),
        (2, 1),
        "one attempt with a retried request"
    );
    let waited = request_times[1].duration_since(request_times[0]);
    assert!(waited >= Duration::from_millis(990), "it was retried after {waited:?}");
}

pub async fn consulting_another_capability_is_one_counted_reply(testbed: &TestBed) {
    let rules = "rules:
- when: {system: You know the answer}
  reply: {text: 'it is forty-two', usage: {input_tokens: 500, output_tokens: 5}}
- when: {tool: consult, last: forty-two}
  reply: {text: 'the expert says forty-two', usage: {input_tokens: 100, output_tokens: 1}}
- reply:
    calls: [{consult: {capability: expert, question: What is it?}}]
    usage: {input_tokens: 100, output_tokens: 1}
";
    let model = testbed.write_scripted_model("consults", rules);
    let run = testbed
        .submit_run(
            "consults",
            &submission_with_model(model, vec![capability_task("asks", "find out", "asker")]),
        )
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(run.read_task_result(&history, "asks").await.output, "the expert says forty-two");
    let usage = only_task(history.folded_plan()).attempts[0].usage;
    assert_eq!((usage.model_calls, usage.input_tokens, usage.output_tokens), (3, 700, 7), "{usage:?}");
    assert_eq!(history.folded_plan().budget.spend.total, usage);
}

/// An agent that may consult others.
pub const ASKER: &str =
    "name: asker\ndescription: Asks others.\ninstructions: Ask the expert.\ntools: [consult]\n";
/// An agent that may be consulted.
pub const EXPERT: &str = "name: expert\ndescription: Knows.\ninstructions: You know the answer.\ntools: [now, think]\nconsult: true\n";

pub async fn invalid_verdict_is_asked_again_and_never_counts(testbed: &TestBed) {
    let mut foreign = verdict_json("");
    foreign["task_id"] = json!("another");
    let mut empty = verdict_json("");
    empty["criteria"] = json!([]);
    for (name, wrong) in [("foreign", foreign), ("empty", empty)] {
        // The critic's first verdict is invalid; it corrects that after feedback.
        let rules = format!(
            "rules:\n- when: {{answer: verdict, turn: 1}}\n  reply: {{answer: {wrong}}}\n\
             - when: {{answer: verdict}}\n  reply: {{answer: {}}}\n- reply: {{text: a draft of 1998}}\n",
            verdict_json("")
        );
        let model = testbed.write_scripted_model(name, &rules);
        let run = testbed
            .submit_run(
                name,
                &submission_with_model(model, vec![reviewed_task("essay", "write it", "it names the year")]),
            )
            .await;
        let history = run.wait_for_end().await;
        assert_eq!(end_reason(history.folded_plan()), EndReason::Completed, "{name}");
        assert_eq!(testbed.count_model_requests(name, "verdict"), 2, "{name}");
        if name == "empty" {
            // Criteria that are left out twice are not met.
            continue;
        }
        // If the verdict stays invalid, the result is not reviewed.
        let name = format!("{name}-for-ever");
        let rules = format!(
            "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {wrong}}}\n- reply: {{text: a draft}}\n"
        );
        let model = testbed.write_scripted_model(&name, &rules);
        let mut task = reviewed_task("essay", "write it", "it names the year");
        task.limits.max_attempts = 1;
        let history =
            testbed.submit_run(&name, &submission_with_model(model, vec![task])).await.wait_for_end().await;
        assert_eq!(task_state(history.folded_plan(), "essay"), TaskState::Failed, "{name}");
        let reason = only_task(history.folded_plan()).end_reason().unwrap();
        assert!(reason.contains("could not be reviewed"), "{name}: {reason}");
    }
}
