//! `millrace eval`: evaluations without a model and with scripted ones, on local clusters and on a named one, interrupted
//! and continued.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::user::{CliUser, CommandOutput, PATIENCE};

/// The evaluation of a model that plans one task, which a program does.
const EVALUATION: &str = r#"
documents: documents
configurations:
  - {name: right, models: ["critic=builtin:extractive", "script:right.yaml"], capabilities: oracle.yaml}
  - {name: wrong, models: ["critic=builtin:extractive", "script:wrong.yaml"], capabilities: oracle.yaml}
objectives:
  - {id: leave, objective: How many days of leave are there?, documents: leave.md, facts: [28 days], wrong: [25 days]}
  - {id: pay, objective: When is pay day?, documents: pay.txt, facts: [the 25th]}
  - {id: parking, objective: Where is the car park?, answerable: false}
"#;

/// A capability whose task names its answer. An answer that begins with `wait` is given once a file `gate` is there.
const ORACLE: &str = r#"
kind: command
name: oracle
description: Answers.
command: [sh, oracle.sh]
effect: pure
timeout: 100s
"#;

const ORACLE_PROGRAM: &str = r#"
order=$(cat)
case "$order" in
  *"wait:"*) while [ ! -e gate ]; do sleep 0.02; done ;;
esac
case "$order" in
  *"answer A"*) echo '{"summary": "a", "output": "There are 28 days of leave."}' ;;
  *"answer B"*) echo '{"summary": "b", "output": "Pay day is the 25th."}' ;;
  *"answer C"*) echo '{"summary": "c", "output": "The documents do not say where it is.", "answered": false}' ;;
  *) echo '{"summary": "d", "output": "There are 25 days."}' ;;
esac
"#;

/// Returns a script that plans one task with an answer for each objective, and answers plain prompts.
fn script(leave: &str, pay: &str, parking: &str) -> String {
    let rule = |task: &str, answer: &str| {
        format!(
            "- when: {{answer: plan, task: {task}}}\n  reply: {{answer: {{reasoning: r, tasks: [{{id: a, objective: \"{answer}\", \
             capability: oracle, final: true}}]}}}}\n"
        )
    };
    format!(
        "ledger: ledger.jsonl\nrules:\n{}{}{}- when: {{answer: '', task: 28 days}}\n  reply: {{text: 'There are 28 days.', usage: \
         {{input_tokens: 50, output_tokens: 5}}}}\n- when: {{answer: ''}}\n  reply: {{text: No idea.}}\n",
        rule("days of leave", leave),
        rule("pay day", pay),
        rule("car park", parking),
    )
}

fn user_with_evaluation() -> CliUser {
    let user = CliUser::new();
    fs::create_dir(user.path_of("documents")).unwrap();
    user.write_file("documents/leave.md", "# Leave\n\nStaff have 28 days of leave.\n");
    user.write_file("documents/pay.txt", "Pay day is the 25th.\n");
    user.write_file("evaluation.yaml", EVALUATION);
    user.write_file("oracle.yaml", ORACLE);
    user.write_file("oracle.sh", ORACLE_PROGRAM);
    user.write_file("right.yaml", &script("answer A", "answer B", "answer C"));
    user.write_file("wrong.yaml", &script("answer D", "answer D", "answer D"));
    user
}

fn read_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn of_type<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == name).collect()
}

fn find_configuration<'a>(lines: &'a [Value], name: &str, method: &str) -> &'a Value {
    let is_wanted = |line: &&Value| {
        line["type"] == "evaluation_configuration"
            && line["configuration"] == name
            && line["method"] == method
    };
    lines.iter().find(is_wanted).unwrap_or_else(|| panic!("no {name} {method}: {lines:#?}"))
}

/// The path of the shipped evaluation.
fn shipped_evaluation() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/evaluation/evaluation.yaml");
    path.canonicalize().unwrap().display().to_string()
}

/// Waits until the log of an evaluation has a number of lines of a type.
fn wait_for_log_lines(user: &CliUser, results: &str, kind: &str, count: usize) {
    let log = user.path_of(results).join("samples.jsonl");
    let started = Instant::now();
    let marker = format!("\"type\":\"{kind}\"");
    loop {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text.lines().filter(|line| line.contains(&marker)).count() >= count {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "never {count} lines {kind}: {text}");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
}

#[test]
fn the_shipped_evaluation_runs_without_a_model_and_is_measured_once() {
    let user = CliUser::new();
    let file = shipped_evaluation();
    let arguments = [
        "eval",
        &file,
        "--model",
        "builtin:extractive",
        "--limit",
        "5",
        "--seed",
        "3",
        "--results",
        "results",
    ];
    let first = user.run_command(&arguments);
    first.assert_exit_code(0);
    assert!(first.out.starts_with("configuration"), "{first:#?}");
    let row = first.out.lines().find(|line| line.starts_with("accepted")).unwrap();
    assert!(first.out.contains("builtin-extractive") && row.contains("5 of 5 (100%"), "{}", first.out);
    // Nothing is measured again: the store of the cluster is gone, and stays so.
    fs::remove_dir_all(user.path_of("results/clusters")).unwrap();
    let second = user.run_command(&arguments);
    second.assert_exit_code(0).assert_stderr_contains("5 of 5 samples (run) are in the results already");
    assert_eq!(second.out, first.out);
    assert!(!user.path_of("results/clusters").exists());
}

#[test]
fn configurations_are_compared_with_each_other_and_with_their_ceiling() {
    let user = user_with_evaluation();
    let arguments = ["eval", "evaluation.yaml", "--samples", "2", "--ceiling", "--parallel", "6", "--json"];
    let output = user.run_command(&arguments);
    output.assert_exit_code(0);
    let lines = read_lines(&output.out);
    let schema: Value = serde_json::from_str(&user.run_command(&["schema", "eval"]).out).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for line in &lines {
        assert!(schema.is_valid(line), "{line:#}");
    }
    assert_eq!(of_type(&lines, "evaluation_sample").len(), 2 * 2 * 3 + 2 * 2 * 2);
    let right = find_configuration(&lines, "right", "run");
    for (field, expected) in [
        ("samples", 6),
        ("accepted", 6),
        ("facts_found", 4),
        ("facts_expected", 4),
        ("wrong", 0),
        ("unanswerable", 2),
        ("not_answered", 2),
        ("unfounded", 0),
        ("answers_missed", 0),
    ] {
        assert_eq!(right[field], expected, "{field}: {right:#}");
    }
    assert_eq!(right["share_of_ceiling"], serde_json::json!({"found": 2, "expected": 2}));
    let wrong = find_configuration(&lines, "wrong", "run");
    for (field, expected) in [("facts_found", 0), ("wrong", 2), ("not_answered", 0), ("unfounded", 2)] {
        assert_eq!(wrong[field], expected, "{field}: {wrong:#}");
    }
    assert_eq!(wrong["share_of_ceiling"], serde_json::json!({"found": 0, "expected": 2}));
    let ceiling = find_configuration(&lines, "wrong", "ceiling");
    assert_eq!((&ceiling["facts_found"], &ceiling["samples"]), (&2.into(), &4.into()), "{ceiling:#}");
    assert_eq!(ceiling["usage"]["model_calls"], 4);

    let required = ["eval", "evaluation.yaml", "--samples", "2", "--min-facts", "50"];
    let required = user.run_command(&required);
    required
        .assert_exit_code(1)
        .assert_stderr_contains("wrong found 0% of the facts; at least 50% are required");
}

#[test]
fn a_corrected_fact_is_scored_again_without_a_new_measurement() {
    let user = user_with_evaluation();
    let arguments = ["eval", "evaluation.yaml", "--configuration", "right", "--only", "pay", "--json"];
    let line = |output: &CommandOutput| find_configuration(&read_lines(&output.out), "right", "run").clone();
    assert_eq!(line(user.run_command(&arguments).assert_exit_code(0))["facts_found"], 1);
    user.write_file("evaluation.yaml", &EVALUATION.replace("[the 25th]", "[the 26th]"));
    let again = user.run_command(&arguments);
    again.assert_exit_code(0).assert_stderr_contains("are in the results already");
    assert_eq!(line(&again)["facts_found"], 0);
    user.write_file("evaluation.yaml", &EVALUATION.replace("When is pay day?", "On which date is pay day?"));
    let changed = user.run_command(&arguments);
    assert!(!changed.err.contains("already"), "another question is measured: {changed:#?}");
}

#[test]
fn a_changed_program_is_measured_again() {
    let user = user_with_evaluation();
    let arguments = ["eval", "evaluation.yaml", "--configuration", "right", "--only", "pay"];
    user.run_command(&arguments).assert_exit_code(0);
    user.run_command(&arguments)
        .assert_exit_code(0)
        .assert_stderr_contains("1 of 1 samples (run) are in the results already");
    user.write_file("oracle.sh", &ORACLE_PROGRAM.replace("the 25th", "the 26th"));
    let changed = user.run_command(&arguments);
    changed.assert_exit_code(0);
    assert!(!changed.err.contains("already") && changed.out.contains("0 of 1 (0%"), "{changed:#?}");
}

#[test]
fn the_web_is_offered_only_if_the_evaluation_says_so() {
    let user = user_with_evaluation();
    // The planner gives a wrong answer if it sees the capability.
    let misled = ["task", "system"].map(|place| {
        format!(
            "- when: {{answer: plan, {place}: web_research}}\n  reply: {{answer: {{reasoning: r, tasks: [{{id: a, objective: answer D, \
             capability: oracle, final: true}}]}}}}\n"
        )
    });
    let rules = script("answer A", "answer B", "answer C")
        .replace("rules:\n", &format!("rules:\n{}", misled.concat()));
    user.write_file("right.yaml", &rules);
    let measure = |more: &[&str]| {
        let arguments = ["eval", "evaluation.yaml", "--configuration", "right", "--only", "pay", "--json"];
        let mut command = user.millrace_command(&[&arguments, more].concat());
        command
            .env("MILLRACE_WEB", "true")
            .env("SEARXNG_URL", "http://127.0.0.1:9/")
            .env_remove("TAVILY_API_KEY");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let lines = read_lines(&String::from_utf8(output.stdout).unwrap());
        let found = find_configuration(&lines, "right", "run")["facts_found"].clone();
        (found, String::from_utf8(output.stderr).unwrap())
    };
    let (found, messages) = measure(&[]);
    assert_eq!(found, 1, "{messages}");
    assert!(
        messages.contains("MILLRACE_WEB, SEARXNG_URL offers no web_research in an evaluation"),
        "{messages}"
    );
    let (found, messages) = measure(&["--web"]);
    assert_eq!(found, 0, "{messages}");
    assert!(messages.contains("settings that change what agents do: SEARXNG_URL"), "{messages}");
    assert!(!messages.contains("already"), "the web is a part of the setup: {messages}");
}

/// Serves the same page for each request, until the test ends, and returns its address.
fn serve_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4_096];
            // A client may close its connection.
            let _ = stream.read(&mut head);
            let body = "<title>Pay</title><h1>Pay</h1><p>Pay day is the 25th.</p>";
            let length = body.len();
            let reply = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    format!("http://127.0.0.1:{port}/pay")
}

#[test]
fn citations_of_web_pages_resolve_without_documents() {
    let user = CliUser::new();
    let url = serve_page();
    let port = url.trim_end_matches("/pay").rsplit(':').next().unwrap();
    user.write_file(
        "reader.yaml",
        &format!(
            "name: reader\ndescription: Reads pages.\nanswer: findings\ninstructions: Read the page.\ntools:\n\
             - fetch_url: {{ports: [{port}], allow_private: [127.0.0.1/32]}}\n"
        ),
    );
    let answer = serde_json::json!({
        "quotations": [{"document": url, "first_line": 1, "last_line": 1}],
        "output": "Pay day is the 25th [1].", "summary": "the 25th",
    });
    let task = serde_json::json!({"id": "a", "objective": "When is pay day?", "capability": "reader", "final": true});
    let rules = serde_json::json!({"rules": [
        {"when": {"answer": "plan"}, "reply": {"answer": {"reasoning": "r", "tasks": [task]}}},
        {"when": {"answer": "findings"}, "turns": [{"calls": [{"fetch_url": {"url": url}}]}, {"answer": answer}]},
    ]});
    user.write_file("script.yaml", &rules.to_string());
    let file = "configurations: [{name: web, models: ['critic=builtin:extractive', 'script:script.yaml'], capabilities: reader.yaml}]\n\
                objectives: [{id: pay, objective: When is pay day?, facts: [the 25th]}]\n";
    user.write_file("evaluation.yaml", file);
    let output = user.run_command(&["eval", "evaluation.yaml", "--json"]);
    output.assert_exit_code(0);
    let lines = read_lines(&output.out);
    let measured = find_configuration(&lines, "web", "run");
    assert_eq!((&measured["facts_found"], &measured["accepted"]), (&1.into(), &1.into()), "{lines:#?}");
    let citations = (&measured["citations"], &measured["citations_resolved"]);
    assert_eq!(citations, (&1.into(), &1.into()), "{lines:#?}");
    let refused = user.run_command(&["eval", "evaluation.yaml", "--model", "script:script.yaml"]);
    refused
        .assert_exit_code(2)
        .assert_stderr_contains("configuration \"script-script.yaml\" has neither documents nor the web");
}

#[test]
fn a_killed_evaluation_continues_its_runs() {
    let user = user_with_evaluation();
    user.write_file("right.yaml", &script("answer A", "answer B", "wait: answer C"));
    let arguments = ["eval", "evaluation.yaml", "--configuration", "right", "--results", "results", "--json"];
    let mut command = user.millrace_command(&arguments);
    let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_log_lines(&user, "results", "finished", 2);
    wait_for_log_lines(&user, "results", "started", 3);
    killed.kill().unwrap();
    killed.wait().unwrap();
    user.write_file("gate", "");
    let continued = user.run_command(&arguments);
    continued.assert_exit_code(0).assert_stderr_contains("2 of 3 samples (run) are in the results already");
    let lines = read_lines(&continued.out);
    assert_eq!(find_configuration(&lines, "right", "run")["samples"], 3);
    let log = read_lines(&user.read_file("results/samples.jsonl"));
    assert_eq!(of_type(&log, "started").len(), 3, "the interrupted run is continued, not repeated");
    let requests = read_lines(&user.read_file("ledger.jsonl"));
    assert_eq!(requests.len(), 3, "no objective is planned twice: {requests:#?}");
}

#[test]
fn an_interrupted_evaluation_names_the_command_that_continues_it() {
    let user = user_with_evaluation();
    user.write_file("right.yaml", &script("wait: answer A", "wait: answer B", "wait: answer C"));
    let arguments =
        ["eval", "evaluation.yaml", "--configuration", "right", "--results", "results", "--parallel", "2"];
    let file = |name: &str| fs::File::create(user.path_of(name)).unwrap();
    let mut command = user.millrace_command(&arguments);
    let mut process = command.stdout(file("out")).stderr(file("err")).spawn().unwrap();
    wait_for_log_lines(&user, "results", "started", 2);
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(130), "{}", user.read_file("err"));
    let expected = format!("interrupted; continue with `millrace {}`", arguments.join(" "));
    assert!(user.read_file("err").contains(&expected), "{}", user.read_file("err"));
    assert!(user.read_file("out").contains("0 of 3"), "{}", user.read_file("out"));
    user.write_file("gate", "");
    let continued = user.run_command(&arguments);
    continued.assert_exit_code(0);
    let log = read_lines(&user.read_file("results/samples.jsonl"));
    assert_eq!((of_type(&log, "started").len(), of_type(&log, "finished").len()), (3, 3));
}

#[test]
fn samples_run_on_a_cluster_that_is_named() {
    let user = user_with_evaluation();
    let up = user.run_command(&["up", "--detach", "--capability", "oracle.yaml", "--json"]);
    up.assert_exit_code(0);
    let info: Value = serde_json::from_str(&user.read_file("data/cluster.json")).unwrap();
    let (url, name, password) = (&info["url"], &info["user"], &info["password"]);
    let arguments = [
        "eval",
        "evaluation.yaml",
        "--model",
        "script:right.yaml",
        "--model",
        "critic=builtin:extractive",
        "--nats",
        url.as_str().unwrap(),
        "--results",
        "results",
        "--json",
    ];
    let mut command = user.millrace_command(&arguments);
    command
        .env("MILLRACE_NATS_USER", name.as_str().unwrap())
        .env("MILLRACE_NATS_PASSWORD", password.as_str().unwrap());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = read_lines(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(find_configuration(&lines, "script-right.yaml", "run")["facts_found"], 2);
    assert!(!user.path_of("results/clusters").exists(), "no cluster is started");
    let refused = user.run_command(&["eval", "evaluation.yaml", "--nats", url.as_str().unwrap()]);
    refused.assert_exit_code(2).assert_stderr_contains("capability files, which belong to workers");
}

#[test]
fn a_model_without_access_is_reported_and_nothing_is_recorded() {
    let user = user_with_evaluation();
    user.write_file("refusing.yaml", "rules:\n- reply: {error: authentication, message: wrong key}\n");
    let arguments = [
        "eval",
        "evaluation.yaml",
        "--model",
        "script:refusing.yaml",
        "--results",
        "results",
        "--only",
        "leave",
        "--ceiling",
    ];
    let output = user.run_command(&arguments);
    output.assert_exit_code(4).assert_stderr_contains("script-refusing.yaml leave 1: not measured");
    output.assert_stderr_contains("leave 1 (ceiling): not measured");
    assert!(!user.read_file("results/samples.jsonl").contains("finished"));
}

#[test]
fn mistakes_are_refused_before_anything_is_started() {
    let user = user_with_evaluation();
    user.write_file("bad.yaml", &EVALUATION.replace("facts: [28 days]", "fcts: [28 days]"));
    let refused = user.run_command(&["eval", "bad.yaml"]);
    refused.assert_exit_code(2).assert_stderr_contains(
        "bad.yaml:7:84: there is no field \"fcts\" in an objective; did you mean \"facts\"?",
    );
    let bare = EVALUATION.replace("documents: leave.md, ", "");
    user.write_file("bare.yaml", &bare);
    for (arguments, expected) in [
        (&["eval", "evaluation.yaml", "--only", "leafe"][..], "did you mean \"leave\"?"),
        (&["eval", "evaluation.yaml", "--configuration", "rigth"], "did you mean \"right\"?"),
        (&["eval", "bare.yaml", "--ceiling"], "objective \"leave\" does not name the documents"),
        (&["eval", "evaluation.yaml", "--budget", "tokns=5"], "tokns"),
        (&["eval", "none.yaml"], "none.yaml"),
    ] {
        user.run_command(arguments).assert_exit_code(2).assert_stderr_contains(expected);
    }
    assert!(!user.path_of("data/evaluations/evaluation/clusters").exists());
}
