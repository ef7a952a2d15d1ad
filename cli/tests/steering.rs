//! Steering as a user does it: the real `millrace` binary against local clusters with real supervisors, workers and a
//! nats-server. Each test has its own data folder, and its cluster is down when it ends.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::fs;

use serde_json::Value;

#[path = "support/user.rs"]
mod user;

use user::{CHAIN, User};

#[test]
fn a_run_is_paused_changed_and_resumed_by_named_people() {
    let user = User::new();
    let run = user.begins(CHAIN, &[]);
    user.waits_for(&run, "b", "running");
    let paused =
        format!("millrace: run {run} is paused: what runs goes on to its end, and nothing more is given out");
    user.does(&["pause", &run, "--by", "ann"]).is(0).says_only(&paused);
    user.does(&["pause", &run]).is(2).says_only("error: the run is paused already");
    let listed = user.does(&["list"]);
    user.waits_for(&run, "b", "completed");
    assert!(listed.out.contains("paused") || user.does(&["list"]).out.contains("paused"), "{listed:?}");
    let board = user.does(&["show", &run]).out;
    assert!(board.contains("paused, ") && board.contains("ann: pause"), "{board}");

    let edit = ["edit", &run, "c", "--objective", "end well", "--param", "bytes=5", "--by", "ann"];
    user.does(&edit).is(0).says_only("millrace: task c is changed");
    user.does(&edit).is(2).says_only("error: the patch changes nothing of task c");
    user.does(&["edit", &run, "b", "--objective", "late"])
        .is(2)
        .says_only("error: task b is completed, so that a change (retry it, or add another) changes nothing");
    user.does(&["edit", &run, "cc", "--objective", "x"])
        .is(2)
        .says_only("error: there is no task cc in this run; did you mean \"c\"?; there are a, b, c");
    user.does(&["edit", &run, "a", "--depends-on", "c"]).is(2);
    user.does(&["edit", &run, "c", "--depends-on", "b,c"]).is(2).says_only("error: task c depends on itself");

    user.writes("more.yaml", "tasks:\n  - {id: d, objective: besides, capability: echo, depends_on: [a]}\n");
    user.does(&["add", &run, "--plan", "more.yaml"]).is(0).says_only("millrace: task d is added");
    user.does(&["add", &run, "--plan", "more.yaml"])
        .is(2)
        .says("more.yaml:2:10: task d is there twice; every task needs an id of its own");
    user.writes("odd.yaml", "mode: hybrid\ntasks:\n  - {id: e, objective: besides, capability: echo}\n");
    user.does(&["add", &run, "--plan", "odd.yaml"])
        .is(2)
        .says("odd.yaml:1:7: \"mode\" is said when a run begins");

    let told = "error: this run has no planner that could be told something";
    user.does(&["tell", &run, "be quick"]).is(2).says_only(told);
    user.does(&["retry", &run, "b", "--feedback", "slower, please"])
        .is(0)
        .says_only("millrace: task b runs once more, as attempt 2; done again with it: c");
    user.does(&["retry", &run, "b"]).is(2).says("so that a retry (it is to run anyway) changes nothing");

    let done = user.does(&["resume", &run]);
    done.is(0).says(&format!("millrace: run {run} goes on")).says("completed: 4 of 4 tasks completed");
    let result = user.shows(&run);
    let by: Vec<_> =
        result["commands"].as_array().unwrap().iter().map(|one| (&one["by"], &one["what"])).collect();
    let expected = [
        ("ann", "pause"),
        ("ann", "change task c"),
        ("bea", "add 1 tasks"),
        ("bea", "retry task b"),
        ("bea", "resume"),
    ];
    assert_eq!(
        by,
        expected
            .map(|(by, what)| (by.into(), what.into()))
            .iter()
            .map(|(by, what): &(Value, Value)| (by, what))
            .collect::<Vec<_>>()
    );
    let task =
        |id: &str| result["tasks"].as_array().unwrap().iter().find(|task| task["id"] == id).unwrap().clone();
    assert_eq!(task("c")["objective"], "end well");
    let attempts = task("b")["attempts"].as_array().unwrap().clone();
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_eq!(
        (&attempts[1]["state"], &attempts[1]["told"]),
        (&"accepted".into(), &serde_json::json!(["slower, please"]))
    );
    assert_eq!(attempts[0]["told"], Value::Null);

    // It is over: what it left is shown again, and nothing more can be asked of it.
    user.does(&["resume", &run]).is(0).says("completed: 4 of 4 tasks completed");
    let over = format!("error: run {run} is over (completed); `millrace show {run}` shows what it left");
    for command in [
        &["cancel", &run][..],
        &["pause", &run],
        &["tell", &run, "x"],
        &["retry", &run, "a"],
        &["edit", &run, "a", "--objective", "x"],
        &["add", &run, "--plan", "more.yaml"],
        &["resume", &run, "--budget", "tokens=5"],
    ] {
        user.does(command).is(2).says(&over);
    }
}

#[test]
fn a_task_and_then_its_run_are_cancelled_with_what_hangs_on_them() {
    let user = User::new();
    let plan = "
objective: two ways
tasks:
  - {id: long, objective: take an hour, capability: echo, parameters: {delay_ms: 3600000}}
  - {id: after, objective: wait, capability: echo, depends_on: [long]}
  - {id: other, objective: take an hour too, capability: echo, parameters: {delay_ms: 3600000}}
  - {id: done, objective: be done, capability: echo}
";
    let run = user.begins(plan, &[]);
    user.waits_for(&run, "done", "completed");
    user.waits_for(&run, "other", "running");
    user.does(&["cancel", &run, "--task", "long", "--reason", "it takes too long"])
        .is(0)
        .says_only("millrace: task long is cancelled; cancelled with it: after");
    user.does(&["cancel", &run, "--task", "long"])
        .is(2)
        .says("task long is cancelled, so that cancelling it changes nothing");
    user.does(&["cancel", "latest", "--reason", "enough"])
        .is(0)
        .says_only(&format!("millrace: run {run} is cancelled; cancelled with it: other"));
    let watched = user.does(&["watch", &run]);
    watched.is(1).says("cancelled: 1 of 4 tasks completed").says("(enough)");
    let result = user.shows(&run);
    assert_eq!((&result["reason"], &result["end"]["resumable"]), (&"cancelled".into(), &false.into()));
    let reason = |id: &str| {
        let tasks = result["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["id"] == id).unwrap()["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!((reason("long"), reason("other")), ("it takes too long".to_owned(), "enough".to_owned()));
}

/// Steps of 300 ms in a row.
fn steps(count: u32) -> String {
    let mut plan = String::from("objective: step by step\ntasks:\n");
    for at in 0..count {
        let before = at.checked_sub(1).map(|before| format!("depends_on: [s{before}], ")).unwrap_or_default();
        plan += &format!(
            "  - {{id: s{at}, objective: step {at}, capability: echo, {before}parameters: {{delay_ms: 300}}, final: {}}}\n",
            at + 1 == count
        );
    }
    plan
}

#[test]
fn a_run_that_used_up_its_time_says_how_to_go_on_and_goes_on_with_more() {
    let user = User::new();
    user.writes("plan.yaml", &steps(12));
    let run = user.does(&["run", "--plan", "plan.yaml", "--workers", "1", "--budget", "time=1500ms"]);
    run.is(3).says("budget_exhausted: ").says("the time of 1s that it may take is over");
    let hint = run
        .err
        .lines()
        .find_map(|line| line.strip_prefix("millrace: go on with more: millrace resume "))
        .unwrap();
    let (id, budget) = hint.split_once(" --budget ").unwrap();
    assert_eq!(budget, "time=3s");

    let asleep = user.does(&["list"]);
    assert!(asleep.is(0).out.contains("budget_exhausted, resumable"), "{asleep:?}");
    user.does(&["resume", id])
        .is(2)
        .says("say what it may use from now on, all together, as in: millrace resume");
    user.does(&["resume", id, "--budget", "final=5"])
        .is(2)
        .says("how a run ends is said when it is handed in");

    // The newest that can be gone on with is meant where none is under way.
    let resumed = user.does(&["resume", "--budget", "time=60s", "--by", "ann", "--result", "result.json"]);
    resumed
        .is(0)
        .says(&format!("millrace: run {id} goes on; again: "))
        .says("completed: 12 of 12 tasks completed");
    let result: Value = serde_json::from_str(&fs::read_to_string(user.path("result.json")).unwrap()).unwrap();
    assert_eq!((&result["reason"], &result["deliverable"]["rung"]), (&"completed".into(), &"final".into()));
    assert_eq!(
        (&result["commands"][0]["by"], &result["commands"][0]["what"]),
        (&"ann".into(), &"resume with more".into())
    );
    assert_eq!(result["budget"]["limits"]["wall_time"], 60.0);
    let errors = result["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "what had gone wrong stays told: {errors:?}");
    assert!(errors[0]["text"].as_str().unwrap().starts_with("budget_exhausted: "), "{errors:?}");
    let watched = user.does(&["resume", id]);
    watched.is(0).says("completed: 12 of 12 tasks completed");
}

/// A planner that makes a plan of one task, and uses more tokens for that than the run has.
const DEAR_PLANNER: &str = "
rules:
- when: {answer: plan}
  reply:
    answer: {reasoning: One task is enough., tasks: [{id: only, objective: be done, capability: echo, final: true}]}
    usage: {input_tokens: 30000, output_tokens: 100}
";

#[test]
fn a_run_whose_tokens_are_used_up_by_its_planner_is_finished_with_more() {
    let user = User::new();
    user.writes("model.yaml", DEAR_PLANNER);
    let model = ["--model", "planner=script:model.yaml", "--workers", "1"];
    let run = user.does(
        &[&["run", "be done with it", "--mode", "llm", "--budget", "tokens=20k,steps=5"], &model[..]]
            .concat(),
    );
    run.is(1)
        .says("budget_exhausted: ")
        .says("millrace: spent 30100 tokens in 1 call (planner 30100 tokens in 1 call)");
    run.says("planner asked, turn 1: There is no plan yet: make one.");
    run.says("planner turn 1 over: One task is enough.");
    assert!(!run.err.contains(" may use "), "what is set aside for each piece of work is no news: {run:#?}");

    let shown = user.shows("latest");
    assert_eq!((&shown["mode"], &shown["end"]["resumable"]), (&"llm".into(), &true.into()));
    assert_eq!(shown["turns"][0]["reasoning"], "One task is enough.");
    assert_eq!(
        (&shown["spend"]["planner"]["input_tokens"], &shown["budget"]["left"]["tokens"]),
        (&30_000.into(), &0.into())
    );
    assert!(shown["budget"]["left"]["steps"].as_u64().unwrap() < 5, "a turn was taken: {shown:#}");
    let how = shown["end"]["resume_with"].as_str().unwrap();
    assert!(how.ends_with(" --budget tokens=40000"), "{how}");
    let board = user.does(&["show", "latest"]).out;
    assert!(board.contains("30100 of 20000 tokens") && board.contains(how), "{board}");

    let resumed =
        user.does(&[&["resume", "latest", "--budget", "tokens=100k", "--json"], &model[..]].concat());
    resumed.is(0);
    let last: Value = serde_json::from_str(resumed.out.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["result"]["reason"], &last["result"]["deliverable"]["task"]),
        (&"completed".into(), &"only".into())
    );
    assert_eq!(last["result"]["spend"]["total"]["input_tokens"], 30_000, "what was spent stays spent");
}

#[test]
fn a_planner_is_told_something_where_there_is_one() {
    let user = User::new();
    let plan = "
objective: wait for somebody
consult: judgement
tasks:
  - {id: long, objective: take an hour, capability: echo, parameters: {delay_ms: 3600000}, final: true}
";
    let run = user.begins(plan, &[]);
    user.waits_for(&run, "long", "running");
    user.does(&["tell", &run, "  "]).is(2).says_only("error: the message is empty");
    user.does(&["tell", &run, "it is late", "--by", "ann"])
        .is(0)
        .says_only(&format!("millrace: run {run} has a message for its planner"));
    let result = user.shows(&run);
    let message = &result["messages"][0];
    assert_eq!((&message["by"], &message["text"]), (&"ann".into(), &"it is late".into()));
    assert_eq!(result["turns"][0]["occasions"][0], "ann says: it is late");
    user.does(&["cancel", &run]).is(0);
}

#[test]
fn what_can_not_be_meant_on_a_command_line_is_refused_before_anything_starts() {
    let user = User::new();
    user.writes("plan.yaml", CHAIN);
    user.writes("hybrid.yaml", &format!("mode: hybrid\n{CHAIN}"));
    let plan = ["--plan", "plan.yaml"];
    let cases: [(&[&str], &str); 9] = [
        (
            &["x", "--plan", "plan.yaml", "--mode", "llm"],
            "error: in mode llm the planner makes the plan: leave --plan away",
        ),
        (&["x", "--mode", "hybrid"], "error: mode hybrid needs a plan that the planner extends and changes"),
        (&["x", "--mode", "fixed"], "error: mode fixed needs a plan: name its file with --plan"),
        (
            &["x", "--consult", "never"],
            "error: a plan that the planner makes or changes needs it to be asked",
        ),
        (
            &["--plan", "hybrid.yaml", "--consult", "never"],
            "error: a plan that the planner makes or changes needs it",
        ),
        (&["x", "--budget", "tokns=5"], "error: --budget: there is no \"tokns\"; did you mean \"tokens\"?"),
        (
            &["x", "--budget", "tokens=many"],
            "error: --budget: tokens must be a whole number, 1 or more, such as 5000, 200k",
        ),
        (&["x", "--budget", "tokens=5,tokens=6"], "error: --budget: tokens is there twice"),
        (&["x", "--mode", "fast"], "error: invalid value 'fast' for '--mode <MODE>'"),
    ];
    for command in ["run", "submit"] {
        for (arguments, told) in &cases {
            let refused = user.does(&[&[command], *arguments].concat());
            refused.is(2).says(told);
        }
    }
    for arguments in [&["edit", "r", "t", "--param", "x"][..], &["edit", "r", "t", "--review", "citic"]] {
        user.does(arguments).is(2);
    }
    user.does(&[&["run", "--mode", "fixed"], &plan[..], &["--nats", "x"]].concat()).is(2);
    assert!(!user.path("data").join("nats").exists(), "nothing was started");
}
