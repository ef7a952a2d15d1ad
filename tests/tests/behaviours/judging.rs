//! Results that are judged, attempts that fail, and the limits that hold an attempt.

use std::time::Duration;

use millrace_protocol::plan::{
    AttemptEnd, EndReason, Event, Plan, Review, Submission, Task, TaskSpec, TaskState,
};
use millrace_protocol::result::{ErrorKind, Limit, TaskError};
use millrace_tests::plans::{echo, fixed, id};
use millrace_tests::provider::{Provider, Reply};
use millrace_tests::stage::{Stage, task, verdict, write};
use serde_json::json;

use crate::{end, state};

fn reviewed(name: &str, objective: &str, criterion: &str) -> TaskSpec {
    TaskSpec { review: Review::critic(vec![criterion.into()]), ..write(name, objective) }
}

fn by(model: String, tasks: Vec<TaskSpec>) -> Submission {
    Submission { model: Some(model), ..fixed(tasks) }
}

fn only(plan: &Plan) -> &Task {
    plan.tasks().first().unwrap()
}

fn error(task: &Task, attempt: usize) -> &TaskError {
    let end = task.attempts[attempt].end.as_ref();
    let Some(AttemptEnd::Errored(error)) = end else { panic!("{end:?}") };
    error
}

pub async fn a_rejected_result_is_made_again_with_the_reason_beside_an_unchanged_objective(stage: &Stage) {
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
        verdict(""),
        verdict("say in which year it was")
    );
    let model = stage.model("mended", &rules);
    let run =
        stage.hand_in("mended", &by(model, vec![reviewed("essay", "write it", "it names the year")])).await;
    let history = run.ended().await;
    let task = only(history.plan());
    assert_eq!((end(history.plan()), task.attempts.len()), (EndReason::Completed, 2));
    let passed = |attempt: usize| task.attempts[attempt].verdict.as_ref().map(|(_, verdict)| verdict.passed);
    assert_eq!((passed(0), passed(1)), (Some(false), Some(true)));
    assert_eq!(task.spec.objective, "write it", "what was said of it never grows into it");
    assert_eq!(run.result(&history, "essay").await.output, "a draft of the year 1998");
    assert!(task.attempts.iter().all(|attempt| attempt.usage.model_calls == 1), "{:?}", task.attempts);
    assert!(task.attempts.iter().all(|attempt| attempt.review_usage.model_calls == 1), "{:?}", task.attempts);
}

pub async fn a_result_that_is_rejected_three_times_fails(stage: &Stage) {
    let verdict = verdict("no year");
    let rules = format!(
        "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {verdict}}}\n- reply: {{text: a draft}}\n"
    );
    let model = stage.model("hopeless", &rules);
    let run =
        stage.hand_in("hopeless", &by(model, vec![reviewed("essay", "write it", "it names the year")])).await;
    let history = run.ended().await;
    let task = only(history.plan());
    assert_eq!(
        (end(history.plan()), task.state, task.attempts.len()),
        (EndReason::Failed, TaskState::Failed, 3)
    );
    let reason = task.reason.clone().unwrap();
    assert!(reason.contains("rejected at attempt 3 of 3") && reason.contains("no year"), "{reason}");
    assert_eq!((stage.times_asked("hopeless", ""), stage.times_asked("hopeless", "verdict")), (3, 3));
}

pub async fn an_attempt_that_fails_is_never_judged_and_never_accepted(stage: &Stage) {
    let mut fails = echo("fails", &json!({"fail_rate": 1.0}));
    let mut empty = echo("empty", &json!({"bytes": 0}));
    for task in [&mut fails, &mut empty] {
        task.review = Review::critic(vec!["it is short".into()]);
        task.limits.backoff = Duration::from_millis(100);
    }
    let run = stage.hand_in("errs", &fixed(vec![fails, empty])).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::Failed);
    for (name, why) in [("fails", "echo was asked to fail"), ("empty", "the result is empty")] {
        let task = plan.task(&id(name)).unwrap();
        assert_eq!((task.state, task.attempts.len()), (TaskState::Failed, 3), "{name}");
        assert!(error(task, 2).message.contains(why), "{task:?}");
    }
    let is_judged = |event: &Event| matches!(event, Event::VerdictGiven { .. } | Event::TaskAccepted { .. });
    assert!(!history.events().any(|(_, event)| is_judged(event)));
}

pub async fn an_agent_that_calls_tools_without_end_reaches_its_limit_and_is_not_accepted(stage: &Stage) {
    // Three calls are allowed; it wants one more after it was told so.
    let rules = "rules:\n- reply: {calls: [now]}\n";
    let model = stage.model("restless", rules);
    let mut restless = write("restless", "think of it");
    restless.limits.max_attempts = 1;
    let history = stage.hand_in("restless", &by(model, vec![restless])).await.ended().await;
    let task = only(history.plan());
    assert_eq!(task.state, TaskState::Failed);
    let error = error(task, 0);
    assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(Limit::ToolCalls)), "{error}");
    assert!(error.usage.model_calls <= 5, "{:?}", error.usage);
}

pub async fn a_conversation_that_is_too_long_goes_on_from_its_notes_at_most_twice(stage: &Stage) {
    let overflow = "{error: context_overflow, message: this is too long}";
    let twice = stage.model(
        "long-twice",
        &format!("rules:\n- times: 2\n  reply: {overflow}\n- reply: {{text: done all the same}}\n"),
    );
    let always = stage.model("long-always", &format!("rules:\n- reply: {overflow}\n"));
    let mut long = write("long", "read it all");
    long.limits.max_attempts = 1;
    let twice = stage.hand_in("long-twice", &by(twice, vec![long.clone()])).await;
    let always = stage.hand_in("long-always", &by(always, vec![long])).await;
    let (done, given_up) = (twice.ended().await, always.ended().await);
    assert_eq!(twice.result(&done, "long").await.output, "done all the same");
    assert_eq!(stage.times_asked("long-twice", ""), 3);
    let error = error(only(given_up.plan()), 0);
    assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(Limit::Context)), "{error}");
    assert_eq!(stage.times_asked("long-always", ""), 3, "once, and twice more");
}

pub async fn a_provider_that_is_asked_too_often_is_asked_again_when_it_says_so(stage: &Stage) {
    let provider = Provider::start(vec![Reply::Busy(1), Reply::Text("here it is".into())]).await;
    let run = stage.hand_in("patient", &by(provider.model.clone(), vec![write("asks", "ask it")])).await;
    let history = run.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed);
    assert_eq!(run.result(&history, "asks").await.output, "here it is");
    let asked = provider.seen().asked;
    assert_eq!((asked.len(), only(history.plan()).attempts.len()), (2, 1), "one attempt, asked again");
    let waited = asked[1].duration_since(asked[0]);
    assert!(waited >= Duration::from_millis(990), "it was asked again after {waited:?}");
}

pub async fn a_question_to_another_capability_is_one_reply_and_counts(stage: &Stage) {
    let rules = "rules:
- when: {system: You know the answer}
  reply: {text: 'it is forty-two', usage: {input_tokens: 500, output_tokens: 5}}
- when: {tool: consult, last: forty-two}
  reply: {text: 'the expert says forty-two', usage: {input_tokens: 100, output_tokens: 1}}
- reply:
    calls: [{consult: {capability: expert, question: What is it?}}]
    usage: {input_tokens: 100, output_tokens: 1}
";
    let model = stage.model("consults", rules);
    let run = stage.hand_in("consults", &by(model, vec![task("asks", "find out", "asker")])).await;
    let history = run.ended().await;
    assert_eq!(run.result(&history, "asks").await.output, "the expert says forty-two");
    let usage = only(history.plan()).attempts[0].usage;
    assert_eq!((usage.model_calls, usage.input_tokens, usage.output_tokens), (3, 700, 7), "{usage:?}");
    assert_eq!(history.plan().spend.total, usage);
}

/// An agent that may ask another.
pub const ASKER: &str =
    "name: asker\ndescription: Asks others.\ninstructions: Ask the expert.\ntools: [consult]\n";
/// An agent that may be asked.
pub const EXPERT: &str = "name: expert\ndescription: Knows.\ninstructions: You know the answer.\ntools: [now, think]\nconsult: true\n";

pub async fn a_verdict_that_contradicts_itself_is_asked_again_and_never_counts(stage: &Stage) {
    let mut contradicts = verdict("name the year");
    contradicts["passed"] = json!(true);
    let mut foreign = verdict("");
    foreign["task_id"] = json!("another");
    let mut empty = verdict("");
    empty["criteria"] = json!([]);
    for (name, wrong) in [("contradicts", contradicts), ("foreign", foreign), ("empty", empty)] {
        // At its first reply the critic is wrong, and mends it when it is told.
        let rules = format!(
            "rules:\n- when: {{answer: verdict, turn: 1}}\n  reply: {{answer: {wrong}}}\n\
             - when: {{answer: verdict}}\n  reply: {{answer: {}}}\n- reply: {{text: a draft of 1998}}\n",
            verdict("")
        );
        let model = stage.model(name, &rules);
        let run =
            stage.hand_in(name, &by(model, vec![reviewed("essay", "write it", "it names the year")])).await;
        let history = run.ended().await;
        assert_eq!(end(history.plan()), EndReason::Completed, "{name}");
        assert_eq!(stage.times_asked(name, "verdict"), 2, "{name}");
        // One that stays wrong judges nothing.
        let name = format!("{name}-for-ever");
        let rules = format!(
            "rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {wrong}}}\n- reply: {{text: a draft}}\n"
        );
        let model = stage.model(&name, &rules);
        let mut task = reviewed("essay", "write it", "it names the year");
        task.limits.max_attempts = 1;
        let history = stage.hand_in(&name, &by(model, vec![task])).await.ended().await;
        assert_eq!(state(history.plan(), "essay"), TaskState::Failed, "{name}");
        let reason = only(history.plan()).reason.clone().unwrap();
        assert!(reason.contains("could not be judged"), "{name}: {reason}");
    }
}
