//! Control commands: the real `millrace` binary against local clusters with real supervisors, workers and a nats-server.
//! Each test has its own data folder and stops its cluster at its end.

use std::fs;

use serde_json::Value;

use crate::support::user::{CHAIN, CliUser};

#[test]
fn a_run_is_paused_changed_and_resumed_with_authors() {
    let user = CliUser::new();
    let run = user.submit_detached(CHAIN, &[]);
    user.wait_for_task_state(&run, "b", "running");
    let paused = format!("millrace: run {run} is paused: running tasks finish, no new ones start");
    user.run_command(&["pause", &run, "--by", "ann"]).assert_exit_code(0).assert_stderr_is(&paused);
    user.run_command(&["pause", &run])
        .assert_exit_code(2)
        .assert_stderr_is("error: the run is already paused");
    let listed = user.run_command(&["list"]);
    user.wait_for_task_state(&run, "b", "completed");
    assert!(
        listed.out.contains("paused") || user.run_command(&["list"]).out.contains("paused"),
        "{listed:?}"
    );
    let board = user.run_command(&["show", &run]).out;
    assert!(board.contains("paused, ") && board.contains("ann: pause"), "{board}");

    let edit = ["edit", &run, "c", "--objective", "end well", "--param", "bytes=5", "--by", "ann"];
    user.run_command(&edit).assert_exit_code(0).assert_stderr_is("millrace: task c is changed");
    user.run_command(&edit)
        .assert_exit_code(2)
        .assert_stderr_is("error: the patch changes nothing in task c");
    user.run_command(&["edit", &run, "b", "--objective", "late"])
        .assert_exit_code(2)
        .assert_stderr_is("error: task b is completed: it can't be changed; retry it, or add another task");
    user.run_command(&["edit", &run, "cc", "--objective", "x"])
        .assert_exit_code(2)
        .assert_stderr_is("error: there is no task cc in this run; did you mean \"c\"?; its tasks: a, b, c");
    user.run_command(&["edit", &run, "a", "--depends-on", "c"]).assert_exit_code(2);
    user.run_command(&["edit", &run, "c", "--depends-on", "b,c"])
        .assert_exit_code(2)
        .assert_stderr_is("error: task c depends on itself");

    user.write_file(
        "more.yaml",
        "tasks:\n  - {id: d, objective: besides, capability: echo, depends_on: [a]}\n",
    );
    user.run_command(&["add", &run, "--plan", "more.yaml"])
        .assert_exit_code(0)
        .assert_stderr_is("millrace: task d is added");
    user.run_command(&["add", &run, "--plan", "more.yaml"])
        .assert_exit_code(2)
        .assert_stderr_contains("more.yaml:2:10: duplicate task id d; every task needs a unique id");
    user.write_file("odd.yaml", "mode: hybrid\ntasks:\n  - {id: e, objective: besides, capability: echo}\n");
    user.run_command(&["add", &run, "--plan", "odd.yaml"])
        .assert_exit_code(2)
        .assert_stderr_contains("odd.yaml:1:7: \"mode\" can only be set when a run is submitted");

    let refusal = "error: this run has no planner that could receive a message";
    user.run_command(&["message", &run, "be quick"]).assert_exit_code(2).assert_stderr_is(refusal);
    user.run_command(&["retry", &run, "b", "--feedback", "slower, please"])
        .assert_exit_code(0)
        .assert_stderr_is("millrace: task b will be retried as attempt 2; dependents to run again: c");
    user.run_command(&["retry", &run, "b"])
        .assert_exit_code(2)
        .assert_stderr_contains("it will run without a retry");

    let done = user.run_command(&["resume", &run]);
    done.assert_exit_code(0)
        .assert_stderr_contains(&format!("millrace: run {run} is resumed"))
        .assert_stderr_contains("completed: 4 of 4 tasks completed");
    let result = user.show_run_json(&run);
    let by: Vec<_> =
        result["commands"].as_array().unwrap().iter().map(|one| (&one["by"], &one["description"])).collect();
    let expected = [
        ("ann", "pause"),
        ("ann", "change task c: objective, parameters"),
        ("bea", "add 1 task"),
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
        (&attempts[1]["state"], &attempts[1]["feedback"]),
        (&"accepted".into(), &serde_json::json!(["slower, please"]))
    );
    assert_eq!(attempts[0]["feedback"], Value::Null);

    // The run has ended: its results are shown again, and all commands but those that reopen it are refused.
    user.run_command(&["resume", &run])
        .assert_exit_code(0)
        .assert_stderr_contains("completed: 4 of 4 tasks completed");
    let over = format!("error: run {run} has ended (completed); `millrace show {run}` prints its results");
    for command in [
        &["cancel", &run][..],
        &["pause", &run],
        &["message", &run, "x"],
        &["edit", &run, "a", "--objective", "x"],
        &["resume", &run, "--budget", "tokens=5"],
    ] {
        user.run_command(command).assert_exit_code(2).assert_stderr_contains(&over);
    }
    user.run_command(&["add", &run, "--plan", "more.yaml"])
        .assert_exit_code(2)
        .assert_stderr_contains("more.yaml:2:10: duplicate task id d; every task needs a unique id");
    user.run_command(&["retry", &run, "x"])
        .assert_exit_code(2)
        .assert_stderr_contains("there is no task x in this run");
    assert_eq!(user.show_run_json(&run)["state"], "completed", "a refused command reopens nothing");
    user.run_command(&["retry", &run, "a", "--depends-on", "c"]).assert_exit_code(2);
    let changes = ["--param", "bytes=7", "--objective", "begin anew", "--max-attempts", "4"];
    let retried = user.run_command(&[&["retry", &run, "a"][..], &changes].concat());
    retried.assert_exit_code(0).assert_stderr_contains("retried: a; dependents to run again: b, d, c");
    let changed = user.show_run_json(&run)["tasks"][0].clone();
    assert_eq!((&changed["objective"], &changed["parameters"]["bytes"]), (&"begin anew".into(), &7.into()));
    user.run_command(&["watch", &run])
        .assert_exit_code(0)
        .assert_stderr_contains("completed: 4 of 4 tasks completed");
    let again = user.show_run_json(&run);
    let attempts =
        again["tasks"].as_array().unwrap().iter().map(|task| task["attempts"].as_array().unwrap().len());
    assert_eq!(attempts.collect::<Vec<_>>(), [2, 3, 2, 2]);
}

#[test]
fn a_task_and_its_run_are_cancelled_with_their_dependents() {
    let user = CliUser::new();
    let plan = "
objective: two ways
tasks:
  - {id: long, objective: take an hour, capability: echo, parameters: {delay_ms: 3600000}}
  - {id: after, objective: wait, capability: echo, depends_on: [long]}
  - {id: other, objective: take an hour too, capability: echo, parameters: {delay_ms: 3600000}}
  - {id: done, objective: be done, capability: echo}
";
    let run = user.submit_detached(plan, &[]);
    user.wait_for_task_state(&run, "done", "completed");
    user.wait_for_task_state(&run, "other", "running");
    user.run_command(&["cancel", &run, "--task", "long", "--reason", "it takes too long"])
        .assert_exit_code(0)
        .assert_stderr_is("millrace: task long is cancelled; also cancelled: after");
    user.run_command(&["cancel", &run, "--task", "long"])
        .assert_exit_code(2)
        .assert_stderr_contains("task long is cancelled: it can't be cancelled");
    user.run_command(&["cancel", "latest", "--reason", "enough"])
        .assert_exit_code(0)
        .assert_stderr_is(&format!("millrace: run {run} is cancelled; also cancelled: other"));
    let watched = user.run_command(&["watch", &run]);
    watched
        .assert_exit_code(1)
        .assert_stderr_contains("cancelled: 1 of 4 tasks completed")
        .assert_stderr_contains("(enough)");
    let result = user.show_run_json(&run);
    assert_eq!((&result["state"], &result["resumable"]), (&"cancelled".into(), &false.into()));
    let reason = |id: &str| {
        let tasks = result["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["id"] == id).unwrap()["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!((reason("long"), reason("other")), ("it takes too long".to_owned(), "enough".to_owned()));
}

/// A chain of steps of 300 ms.
fn plan_with_step_chain(count: u32) -> String {
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
fn a_run_out_of_time_is_resumed_with_a_larger_budget() {
    let user = CliUser::new();
    user.write_file("plan.yaml", &plan_with_step_chain(12));
    let run = user.run_command(&["run", "--plan", "plan.yaml", "--workers", "1", "--budget", "time=1500ms"]);
    run.assert_exit_code(3)
        .assert_stderr_contains("budget_exhausted: ")
        .assert_stderr_contains("the time limit of 1s has passed");
    let hint =
        run.err.lines().find_map(|line| line.strip_prefix("millrace: resume it: millrace resume ")).unwrap();
    let (id, budget) = hint.split_once(" --budget ").unwrap();
    assert!(["time=3s", "time=6s"].contains(&budget), "{budget}");

    let listed = user.run_command(&["list"]);
    assert!(listed.assert_exit_code(0).out.contains("budget_exhausted, resumable"), "{listed:?}");
    user.run_command(&["resume", id])
        .assert_exit_code(2)
        .assert_stderr_contains("give it a larger total budget to resume it: millrace resume");
    user.run_command(&["resume", id, "--budget", "final=5"])
        .assert_exit_code(2)
        .assert_stderr_contains("final can only be set at submission");

    // Without unfinished runs, the default is the newest resumable one.
    let resumed =
        user.run_command(&["resume", "--budget", "time=60s", "--by", "ann", "--result", "result.json"]);
    resumed
        .assert_exit_code(0)
        .assert_stderr_contains(&format!("millrace: run {id} is resumed; retried: "))
        .assert_stderr_contains("completed: 12 of 12 tasks completed");
    let result: Value =
        serde_json::from_str(&fs::read_to_string(user.path_of("result.json")).unwrap()).unwrap();
    assert_eq!((&result["state"], &result["deliverable"]["rule"]), (&"completed".into(), &"final".into()));
    assert_eq!(
        (&result["commands"][0]["by"], &result["commands"][0]["description"]),
        (&"ann".into(), &"resume with a larger budget".into())
    );
    assert_eq!(result["budget"]["limits"]["wall_time"], 60.0);
    let errors = result["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "earlier errors are kept: {errors:?}");
    assert!(errors[0]["message"].as_str().unwrap().starts_with("budget_exhausted: "), "{errors:?}");
    let watched = user.run_command(&["resume", id]);
    watched.assert_exit_code(0).assert_stderr_contains("completed: 12 of 12 tasks completed");
}

/// A planner that makes a plan of one task and uses more tokens than the budget of the run.
const EXPENSIVE_PLANNER: &str = "
rules:
- when: {answer: plan}
  reply:
    answer: {reasoning: One task is enough., tasks: [{id: only, objective: be done, capability: act, final: true}]}
    usage: {input_tokens: 30000, output_tokens: 100}
";

#[test]
fn a_run_out_of_tokens_is_finished_with_a_larger_budget() {
    let user = CliUser::new();
    user.write_file("model.yaml", EXPENSIVE_PLANNER);
    user.write_file(
        "act.yaml",
        "kind: command\nname: act\ndescription: Acts.\ncommand: [sh, -c, \"echo '{}'\"]\n",
    );
    let model = ["--model", "planner=script:model.yaml", "--workers", "1", "--capability", "act.yaml"];
    let run = user.run_command(
        &[&["run", "be done with it", "--mode", "llm", "--budget", "tokens=20k,steps=5"], &model[..]]
            .concat(),
    );
    run.assert_exit_code(1)
        .assert_stderr_contains("budget_exhausted: ")
        .assert_stderr_contains("millrace: used 30,100 tokens in 1 call (planner 30,100 tokens in 1 call)");
    run.assert_stderr_contains("planner turn 1 requested: There is no plan yet: make one.");
    run.assert_stderr_contains("planner turn 1 finished: One task is enough.");
    assert!(!run.err.contains(" may use "), "reservations are not shown: {run:#?}");

    let shown = user.show_run_json("latest");
    assert_eq!((&shown["mode"], &shown["resumable"]), (&"llm".into(), &true.into()));
    assert_eq!(shown["turns"][0]["reasoning"], "One task is enough.");
    assert_eq!(
        (&shown["spend"]["planner"]["input_tokens"], &shown["budget"]["left"]["tokens"]),
        (&30_000.into(), &0.into())
    );
    assert!(shown["budget"]["left"]["steps"].as_u64().unwrap() < 5, "a turn was taken: {shown:#}");
    let how = shown["end"]["resume_with"].as_str().unwrap();
    assert!(how.ends_with(" --budget tokens=80000"), "twice the limit would leave too little: {how}");
    let board = user.run_command(&["show", "latest"]).out;
    assert!(board.contains("30,100 of 20,000 tokens") && board.contains(how), "{board}");

    let resumed =
        user.run_command(&[&["resume", "latest", "--budget", "tokens=100k", "--json"], &model[..]].concat());
    resumed.assert_exit_code(0);
    let last: Value = serde_json::from_str(resumed.out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["state"], &last["deliverable"]["task"]), (&"completed".into(), &"only".into()));
    assert_eq!(last["spend"]["total"]["input_tokens"], 30_000, "usage is kept");
}

#[test]
fn messages_reach_the_planner() {
    let user = CliUser::new();
    let plan = "
objective: wait for a user
consult: judgement
tasks:
  - {id: long, objective: take an hour, capability: echo, parameters: {delay_ms: 3600000}, final: true}
";
    let run = user.submit_detached(plan, &[]);
    user.wait_for_task_state(&run, "long", "running");
    user.run_command(&["tell", &run, "  "])
        .assert_exit_code(2)
        .assert_stderr_is("error: the message is empty");
    user.run_command(&["message", &run, "it is late", "--by", "ann"])
        .assert_exit_code(0)
        .assert_stderr_is(&format!("millrace: run {run} has received the message for its planner"));
    let result = user.show_run_json(&run);
    let message = &result["messages"][0];
    assert_eq!((&message["by"], &message["text"]), (&"ann".into(), &"it is late".into()));
    assert_eq!(result["turns"][0]["triggers"][0], "ann says: it is late");
    user.run_command(&["cancel", &run]).assert_exit_code(0);
}

#[test]
fn invalid_arguments_are_refused_before_anything_starts() {
    let user = CliUser::new();
    user.write_file("plan.yaml", CHAIN);
    user.write_file("hybrid.yaml", &format!("mode: hybrid\n{CHAIN}"));
    let plan = ["--plan", "plan.yaml"];
    let cases: [(&[&str], &str); 9] = [
        (
            &["x", "--plan", "plan.yaml", "--mode", "llm"],
            "error: in mode llm the planner makes the plan: omit --plan",
        ),
        (&["x", "--mode", "hybrid"], "error: mode hybrid needs a plan for the planner to extend and change"),
        (&["x", "--mode", "fixed"], "error: mode fixed needs a plan: give its file with --plan"),
        (&["x", "--consult", "never"], "error: modes llm and hybrid call the planner"),
        (&["--plan", "hybrid.yaml", "--consult", "never"], "error: modes llm and hybrid call the planner"),
        (
            &["x", "--budget", "tokns=5"],
            "error: --budget: unknown budget \"tokns\"; did you mean \"tokens\"?",
        ),
        (
            &["x", "--budget", "tokens=many"],
            "error: --budget: tokens must be a whole number, 1 or more, such as 5000, 200k",
        ),
        (&["x", "--budget", "tokens=5,tokens=6"], "error: --budget: tokens is given twice"),
        (&["x", "--mode", "fast"], "error: invalid value 'fast' for '--mode <MODE>'"),
    ];
    for command in ["run", "submit"] {
        for (arguments, message) in &cases {
            let refused = user.run_command(&[&[command], *arguments].concat());
            refused.assert_exit_code(2).assert_stderr_contains(message);
        }
    }
    for arguments in [&["edit", "r", "t", "--param", "x"][..], &["edit", "r", "t", "--review", "citic"]] {
        user.run_command(arguments).assert_exit_code(2);
    }
    user.run_command(&[&["run", "--mode", "fixed"], &plan[..], &["--nats", "x"]].concat())
        .assert_exit_code(2);
    assert!(!user.path_of("data").join("nats").exists(), "nothing was started");
}
