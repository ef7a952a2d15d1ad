//! Views of a run and of the cluster: transcripts of tasks, and the status of processes, queues and lanes.

use std::process::{Output, Stdio};

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{EndReason, Plan, PlanningMode, ReviewPolicy, Submission, TaskSpec, TaskState};
use millrace_protocol::result::CapabilityDescription;
use millrace_runtime::work::registry;
use millrace_tests::plans::{echo_task, fixed_submission};
use millrace_tests::testbed::{MEASURE, TIMEOUT, TestBed, capability_task, verdict_json, writer_task};
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use super::planning::planned_submission;
use super::{end_reason, task_state};

fn run_command(testbed: &TestBed, arguments: &[&str]) -> Output {
    testbed.cluster.millrace_command().args(arguments).output().unwrap()
}

fn printed(testbed: &TestBed, arguments: &[&str]) -> String {
    let output = run_command(testbed, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(testbed: &TestBed, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(testbed, arguments)).unwrap()
}

/// The entries of a kind in an attempt of a transcript.
fn entries<'a>(attempt: &'a Value, kind: &str) -> Vec<&'a Value> {
    attempt["entries"].as_array().unwrap().iter().filter(|entry| entry["type"] == kind).collect()
}

/// A model that thinks, writes, is rejected once, and writes again.
fn drafting_rules() -> String {
    format!(
        "rules:
- when: {{answer: verdict, task: of the year 1998}}
  reply: {{answer: {}}}
- when: {{answer: verdict}}
  reply: {{answer: {}}}
- when: {{task: say in which year}}
  reply: {{text: a draft of the year 1998, usage: {{input_tokens: 300, output_tokens: 20}}}}
- turns:
  - {{text: I think first., calls: [think: {{thought: which year was it}}, now], usage: {{input_tokens: 100, output_tokens: 10}}}}
  - {{text: \"a draft \\e]52;c;eA==\\a\", usage: {{input_tokens: 200, output_tokens: 15}}}}
",
        verdict_json(""),
        verdict_json("say in which year it was")
    )
}

pub async fn transcript_shows_what_an_agent_did(testbed: &TestBed) {
    let model = testbed.write_scripted_model("transcript", &drafting_rules());
    let essay = TaskSpec {
        review: ReviewPolicy::critic(vec!["it names the year".into()]),
        ..writer_task("essay", "write it")
    };
    let tasks = vec![essay, echo_task("echo", &json!({"steps": 2})), {
        let parameters = serde_json::from_value(json!({"length": 3})).unwrap();
        TaskSpec { parameters, ..capability_task("measured", "measure it", MEASURE) }
    }];
    let run = testbed
        .submit_run("transcript", &Submission { model: Some(model.clone()), ..fixed_submission(tasks) })
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    let name = run.id.as_str();
    for where_ in ["in its lane", "in the archive"] {
        let document = json_of(testbed, &["show", name, "essay", "--json"]);
        assert_eq!(document["run"], name);
        assert_eq!(
            (&document["task"]["id"], &document["task"]["state"]),
            (&json!("essay"), &json!("completed"))
        );
        let [first, second] = document["task"]["attempts"].as_array().unwrap().as_slice() else {
            panic!("two attempts {where_}: {document:#}")
        };
        assert_eq!((&first["state"], &second["state"]), (&json!("rejected"), &json!("accepted")));
        assert!(first["duration_ms"].is_u64() && first["usage"]["input_tokens"] == 300, "{first:#}");

        let calls = entries(first, "model_call");
        let own = |entry: &&&Value| entry["journal"] == "attempt";
        let own: Vec<&Value> = calls.iter().filter(own).copied().collect();
        let [thinking, writing] = own.as_slice() else { panic!("two model calls: {first:#}") };
        let roles: Vec<&str> = thinking["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|message| message["role"].as_str())
            .collect();
        assert_eq!(roles, ["system", "user"], "{thinking:#}");
        assert!(
            thinking["messages"][0]["text"].as_str().unwrap().contains("Write what the objective asks for.")
        );
        assert!(thinking["messages"][1]["text"].as_str().unwrap().contains("write it"));
        assert_eq!(thinking["text"], "I think first.");
        assert_eq!(thinking["calls"][0]["tool"], "think");
        assert_eq!(thinking["calls"][0]["arguments"], json!({"thought": "which year was it"}));
        assert_eq!((&thinking["usage"]["input_tokens"], &thinking["model"]), (&json!(100), &json!(model)));
        assert!(thinking["tools"].as_array().unwrap().contains(&json!("think")));
        // Thinking is answered by the agent itself; only the other call has a step of its own.
        let answered = writing["messages"].as_array().unwrap();
        assert_eq!((answered.len(), &answered[0]["role"]), (1, &json!("tool")), "{writing:#}");
        assert_eq!(answered[0]["call_id"], thinking["calls"][0]["id"]);
        let results = entries(first, "tool_result");
        assert_eq!((results.len(), &results[0]["tool"]), (1, &json!("now")));
        assert_eq!(results[0]["call_id"], thinking["calls"][1]["id"]);

        let verdicts = entries(first, "verdict");
        assert_eq!(verdicts[0]["verdict"]["passed"], false);
        assert_eq!(verdicts[0]["verdict"]["criteria"][0]["met"], false, "{verdicts:#?}");
        assert_eq!(entries(second, "verdict")[0]["verdict"]["passed"], true);
        assert_eq!(entries(second, "result")[0]["result"]["output"], "a draft of the year 1998");
        assert_eq!(entries(first, "claimed").len(), 2, "the worker's and the critic's");
        let at = first["entries"][0]["at"].as_str().unwrap();
        assert!(at.parse::<jiff::Timestamp>().is_ok(), "{at}");

        let capability = &first["build"]["capability"];
        assert!(first["build"]["program"].as_str().unwrap().starts_with("millrace "), "{first:#}");
        assert_eq!(
            (&capability["version"], capability["sha256"].as_str().unwrap().len()),
            (&json!("2.1"), 64)
        );
        assert_eq!(&entries(first, "claimed")[0]["build"], &first["build"]);

        let only = json_of(testbed, &["show", name, "essay", "--attempt", "2", "--json"]);
        assert_eq!(only["task"]["attempts"], json!([second]), "{where_}");

        let text = printed(testbed, &["show", name, "essay"]);
        for line in [
            "\nattempt 1  rejected  on ",
            ", millrace 0.",
            ", version 2.1, file ",
            "  system:\n",
            "    → think {\"thought\":\"which year was it\"}\n",
            "100 tokens in, 10 out",
            "    ✗ ",
            "\nattempt 2  accepted  on ",
            " verdict: passed by ",
            "    a draft of the year 1998\n",
        ] {
            assert!(text.contains(line), "{where_}: {line:?} in\n{text}");
        }
        assert!(text.contains("a draft �]52;c;eA==�"), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "no control character is printed");

        let echoed = json_of(testbed, &["show", name, "echo", "--json"]);
        let steps = entries(&echoed["task"]["attempts"][0], "step");
        assert_eq!(
            steps.iter().map(|step| step["name"].as_str().unwrap()).collect::<Vec<_>>(),
            ["echo.1", "echo.2"]
        );
        let measured = printed(testbed, &["show", name, "measured"]);
        assert!(measured.contains(" step outcome\n") && measured.contains("it is measured"), "{measured}");

        let missing = run_command(testbed, &["show", name, "esay"]);
        let error = String::from_utf8_lossy(&missing.stderr);
        assert!(missing.status.code() == Some(2) && error.contains("did you mean essay?"), "{error}");
        let missing = run_command(testbed, &["show", name, "essay", "--attempt", "3"]);
        let error = String::from_utf8_lossy(&missing.stderr);
        assert!(
            missing.status.code() == Some(2) && error.contains("no attempt 3; the last one is 2"),
            "{error}"
        );
        wait_for_value(TIMEOUT, "the archive", async || {
            let summary = registry::read_summary(&testbed.bus, &run.id).await.ok()??;
            summary.archived.then_some(())
        })
        .await;
    }
}

pub async fn transcript_is_followed_until_the_task_ends(testbed: &TestBed) {
    let model = testbed.write_scripted_model(
        "followed",
        "rules:\n- turns:\n  - {calls: [now], delay: 0.5}\n  - {text: it is written, delay: 4}\n",
    );
    let tasks = vec![writer_task("text", "write it"), echo_task("later", &json!({"delay_ms": 600_000}))];
    let run =
        testbed.submit_run("followed", &Submission { model: Some(model), ..fixed_submission(tasks) }).await;
    // On a slow machine the attempt may end before the plan is read. The followers print the same then.
    let has_begun = |plan: &Plan| !matches!(task_state(plan, "text"), TaskState::Pending | TaskState::Ready);
    run.wait_for_plan("the attempt", |plan| has_begun(plan).then_some(())).await;
    let follow = |arguments: &[&str]| {
        let mut command = testbed.cluster.millrace_command();
        command.args(["show", run.id.as_str(), "text", "--follow"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let followers = [follow(&["--json"]), follow(&[]), follow(&["--attempt", "1", "--json"])];
    let outputs = followers.map(|follower| follower.wait_with_output().unwrap());
    // The run continues; the followers ended with the task.
    let plan = run.read_plan().await.unwrap();
    assert_eq!(
        (task_state(&plan, "text"), task_state(&plan, "later")),
        (TaskState::Completed, TaskState::Running)
    );
    let [lines, text, attempt] = outputs.map(|output| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    });
    for (lines, _) in [&lines, &attempt] {
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
        // A worker that could not renew its lease in time claims again.
        let (claims, rest): (Vec<&str>, Vec<&str>) = kinds.iter().partition(|kind| **kind == "claimed");
        assert!(kinds[0] == "claimed" && !claims.is_empty(), "{kinds:?}");
        assert_eq!(rest, ["model_call", "tool_result", "model_call", "result"]);
        assert!(lines.iter().all(|line| line["run"] == run.id.as_str() && line["task"] == "text"));
        let sequences: Vec<u64> = lines.iter().map(|line| line["sequence"].as_u64().unwrap()).collect();
        assert!(sequences.is_sorted_by(|a, b| a < b), "each entry once, in order: {sequences:?}");
    }
    assert!(text.0.contains("it is written"), "{}", text.0);
    assert!(text.1.contains("millrace: task text is completed"), "{}", text.1);
    let cancelled = run_command(testbed, &["cancel", run.id.as_str()]);
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    run.wait_for_end().await;
}

pub async fn transcript_of_the_planner_shows_its_turns(testbed: &TestBed) {
    let rules = "
- when: {answer: plan}
  reply:
    answer:
      reasoning: One text.
      tasks: [{id: text, objective: write it, capability: writer, final: true}]
- reply: {text: it is written}
";
    let submission = planned_submission(testbed, "planner-transcript", PlanningMode::Llm, Vec::new(), rules);
    let run = testbed.submit_run("planner-transcript", &submission).await;
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    let document = json_of(testbed, &["show", run.id.as_str(), "@planner", "--json"]);
    let turn = &document["turns"][0];
    assert_eq!(turn["turn"], 1);
    assert_eq!(entries(turn, "proposal")[0]["proposal"]["reasoning"], "One text.");
    assert_eq!(entries(turn, "model_call")[0]["planner_turn"], 1);
    let text = printed(testbed, &["show", run.id.as_str(), "@planner"]);
    assert!(text.contains("\nplanner turn 1\n") && text.contains("One text."), "{text}");
}

fn find<'a>(list: &'a Value, field: &str, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one[field] == name);
    found.unwrap_or_else(|| panic!("no {field} {name} in {list:#}"))
}

pub async fn status_shows_processes_queues_lanes_and_runs(testbed: &TestBed) {
    // A capability that no worker provides: its order waits in the queue.
    let absent = CapabilityDescription::new(Capability::new("absent").unwrap(), "Has no worker.");
    registry::register_capability(&testbed.bus, &absent).await.unwrap();
    let tasks =
        vec![capability_task("waits", "wait", "absent"), echo_task("runs", &json!({"delay_ms": 600_000}))];
    let run = testbed.submit_run("status", &fixed_submission(tasks)).await;
    let status = wait_for_value(TIMEOUT, "the order in its queue and the task on a worker", async || {
        let status = json_of(testbed, &["status", "--json"]);
        let is_waiting = find(&status["capabilities"], "name", "absent")["queue"]["pending"] == 1;
        let is_busy = find(&status["capabilities"], "name", "echo")["slots"]["busy"].as_u64()? >= 1;
        let is_counted =
            status["runs"]["running"].as_u64()? >= 1 && status["lanes"][0]["live_runs"].as_u64()? >= 1;
        (is_waiting && is_busy && is_counted).then_some(status)
    })
    .await;
    let absent = find(&status["capabilities"], "name", "absent");
    assert_eq!((&absent["workers"], &absent["description"]), (&json!(0), &json!("Has no worker.")));
    assert!(absent["queue"]["oldest_order_age_ms"].is_u64(), "{absent:#}");
    let processes = status["processes"].as_array().unwrap();
    let count = |role: &str| processes.iter().filter(|process| process["role"] == role).count();
    assert_eq!((count("supervisor"), count("worker"), count("critic")), (1, 2, 1), "{status:#}");
    for process in processes {
        assert!(process["heartbeat_age_ms"].as_u64().unwrap() < 15_000, "{process:#}");
        assert!(
            process["version"] == env!("CARGO_PKG_VERSION") && process["host"].is_string(),
            "{process:#}"
        );
        assert!(process["started_at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{process:#}");
    }
    let owner = status["lanes"][0]["owner"].as_str().unwrap();
    assert_eq!(find(&status["processes"], "id", owner)["lanes"], json!([0]));
    let echo_slots = &find(&status["capabilities"], "name", "echo")["slots"];
    assert_eq!(echo_slots["total"], 64, "32 slots in each of two workers");

    let workers = json_of(testbed, &["workers", "--json"]);
    let ids: Vec<&Value> =
        workers["workers"].as_array().unwrap().iter().map(|worker| &worker["id"]).collect();
    assert!(ids.len() == 3 && !ids.contains(&&json!(owner)), "{workers:#}");
    let capabilities = json_of(testbed, &["capabilities", "--json"]);
    assert_eq!(find(&capabilities["capabilities"], "name", MEASURE)["description"], "Measures something.");
    let text = printed(testbed, &["status"]);
    for head in ["PROCESS ", "CAPABILITY ", "LANE ", "runs: "] {
        assert!(text.contains(head), "{head} in\n{text}");
    }
    assert!(text.contains(owner), "{text}");
    let cancelled = run_command(testbed, &["cancel", run.id.as_str()]);
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    run.wait_for_end().await;
}
