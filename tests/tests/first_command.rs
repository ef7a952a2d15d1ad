//! The first command of README and its follow-up commands, as a user calls them: their output, the files they leave,
//! and that no process is left running.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_protocol::safe_text::markdown_line;
use millrace_tests::cluster::{
    create_file, find_tagged_processes, remove_millrace_variables, set_process_tag, wait_for_exit,
};
use millrace_tests::hostile::{
    CONTROLS, MARKDOWN, assert_inactive_markdown, assert_safe_output, hostile_text,
};
use millrace_tests::machine::share_machine;
use millrace_tests::program::millrace_program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const QUESTION: &str = "How do these licences treat patents, and when does a patent grant end?";
const TIMEOUT: Duration = Duration::from_secs(120);

fn licences_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences")
}

/// A user's machine: a data folder and the processes started with it.
struct UserMachine {
    folder: TempDir,
}

impl UserMachine {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn millrace_command(&self, arguments: &[&str]) -> Command {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        set_process_tag(&mut command, &self.process_tag());
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MILLRACE_DATA", self.path_of("data"));
        command.env("MILLRACE_DOCUMENT_CACHE", self.path_of("documents"));
        command
    }

    fn run_command(&self, arguments: &[&str]) -> Output {
        self.millrace_command(arguments).output().unwrap()
    }

    /// Runs a command in the background, with its output in files.
    fn start_in_background(&self, arguments: &[&str]) -> Child {
        self.start_with_error_file(arguments, "err")
    }

    /// The same, with this name of the file for standard error.
    fn start_with_error_file(&self, arguments: &[&str], name: &str) -> Child {
        let mut command = self.millrace_command(arguments);
        command.stdout(create_file(self.folder.path(), "out")).stderr(create_file(self.folder.path(), name));
        command.spawn().unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output and its standard error.
    fn run_successfully(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run_command(arguments);
        let (out, err) = (utf8_text(&output.stdout), utf8_text(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
        (out, err)
    }

    fn read_file(&self, name: &str) -> String {
        fs::read_to_string(self.path_of(name)).unwrap_or_default()
    }

    fn process_tag(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn wait_until(&self, what: &str, mut state: impl FnMut() -> bool) {
        let started = Instant::now();
        while !state() {
            assert!(started.elapsed() < TIMEOUT, "{what}:\n{}", self.read_file("err"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn assert_nothing_running(&self) {
        self.wait_until("processes are left", || find_tagged_processes(&self.process_tag()).is_empty());
    }

    /// A plan of so many tasks one after the other, 100 ms each in four steps.
    fn write_chain_plan(&self, tasks: u32) -> String {
        let mut text = String::from("objective: go through all of them\ntasks:\n");
        for n in 0..tasks {
            text += &format!("  - {{id: t{n}, objective: step {n}, capability: echo, ");
            if n > 0 {
                text += &format!("depends_on: [t{}], ", n - 1);
            }
            text += &format!("parameters: {{delay_ms: 100, steps: 4}}, final: {}}}\n", n + 1 == tasks);
        }
        fs::write(self.path_of("plan.yaml"), text).unwrap();
        self.path_of("plan.yaml").display().to_string()
    }
}

impl Drop for UserMachine {
    fn drop(&mut self) {
        for pid in find_tagged_processes(&self.process_tag()) {
            let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The content of the only JSON result file.
fn read_result_json(data: &Path) -> Value {
    let runs: Vec<_> = fs::read_dir(data.join("results")).unwrap().map(|run| run.unwrap().path()).collect();
    let newest = runs.iter().max().expect("a run leaves its result");
    serde_json::from_str(&fs::read_to_string(newest.join("result.json")).unwrap()).unwrap()
}

fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The numbers in square brackets.
fn cited_numbers(text: &str) -> BTreeSet<String> {
    let parts = text.split('[').skip(1).filter_map(|part| part.split_once(']'));
    let numbers = parts.map(|(number, _)| number).filter(|number| number.parse::<u32>().is_ok());
    numbers.map(str::to_owned).collect()
}

/// Checks that every citation resolves, every source is cited, and every quotation is in its file verbatim.
fn check_citations(report: &str, result: &Value) {
    let (body, list) = report.split_once("## Sources").expect("the report lists its sources");
    let listed: BTreeSet<String> = list
        .lines()
        .filter(|line| line.starts_with("- ["))
        .flat_map(|line| cited_numbers(&line[..6]))
        .collect();
    assert!(listed.len() > 3, "several licences are sources: {list}");
    assert_eq!(cited_numbers(body), listed, "citations and sources");

    let quotations = result["result"]["quotations"].as_array().unwrap();
    let sources = result["result"]["sources"].as_array().unwrap();
    assert!(quotations.len() > 5 && sources.len() == listed.len());
    for quotation in quotations {
        let source = sources.iter().find(|source| source["id"] == quotation["source"]).expect("its source");
        let document =
            fs::read_to_string(licences_folder().join(source["location"].as_str().unwrap())).unwrap();
        let lines = |key: &str| usize::try_from(quotation[key].as_u64().unwrap()).unwrap();
        let (first, last) = (lines("first_line"), lines("last_line"));
        let passage: Vec<&str> = document.lines().skip(first - 1).take(last - first + 1).collect();
        let words = collapse_whitespace(quotation["text"].as_str().unwrap());
        assert!(
            collapse_whitespace(&passage.join(" ")).contains(&words),
            "{source}, lines {first} to {last}: {words}"
        );
    }
    let in_text = body.lines().filter_map(|line| line.strip_prefix("> "));
    let mut count = 0;
    for line in in_text {
        count += 1;
        let words = line.rsplit_once(" [").map_or(line, |(words, _)| words);
        let is_in_result = quotations.iter().any(|quotation| {
            markdown_line(quotation["text"].as_str().unwrap()) == collapse_whitespace(words)
        });
        assert!(is_in_result, "a quotation in the text is not in the result: {words}");
    }
    assert!(count >= 5, "the report has quotations: {body}");
}

#[test]
fn first_command_leaves_a_report_with_valid_citations() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let docs = licences_folder().display().to_string();
    let done = user.run_command(&["run", QUESTION, "--docs", &docs]);
    let (report, said) = (utf8_text(&done.stdout), utf8_text(&done.stderr));
    assert!(done.status.success(), "{said}");
    assert!(said.contains("no language model configured"), "{said}");
    let result = read_result_json(&user.path_of("data"));
    check_citations(&report, &result);
    assert_eq!((&result["state"], &result["deliverable"]["rule"]), (&"completed".into(), &"final".into()));
    user.assert_nothing_running();

    // Again with the same data folder and output to files.
    let started = Instant::now();
    let out = user.path_of("report.md");
    fs::create_dir(user.path_of("deep")).unwrap();
    let arguments =
        ["run", QUESTION, "--docs", &docs, "--out", out.to_str().unwrap(), "--result", "deep/whole.json"];
    let done = user.run_command(&arguments);
    println!("again on the same folder: {:.1} s", started.elapsed().as_secs_f64());
    assert!(done.status.success(), "{}", utf8_text(&done.stderr));
    assert_eq!(utf8_text(&done.stdout), "", "the report is in its file");
    assert_eq!(
        fs::read_to_string(out).unwrap().trim(),
        report.trim(),
        "the same question has the same answer"
    );
    let whole: Value = serde_json::from_str(&user.read_file("deep/whole.json")).unwrap();
    assert_eq!(whole["result"]["quotations"], result["result"]["quotations"]);
    user.assert_nothing_running();
}

#[test]
fn run_of_a_capability_with_its_own_model_needs_no_other_one() {
    let _shared = share_machine();
    let machine = UserMachine::new();
    let write = |name: &str, text: &str| fs::write(machine.path_of(name), text).unwrap();
    write("model.yaml", "rules: [{reply: {text: the mill turns}}]\n");
    let clerk = "name: clerk\ndescription: Knows the mill.\ninstructions: Describe the mill.\nmodel: \"script:model.yaml\"\n";
    write("clerk.yaml", clerk);
    write("plan.yaml", "objective: x\ntasks: [{id: a, objective: x, capability: clerk, final: true}]\n");
    let (out, err) = machine.run_successfully(&["run", "--plan", "plan.yaml", "--capability", "clerk.yaml"]);
    assert!(out.contains("the mill turns"), "{out}{err}");
    assert!(!err.contains("no language model configured"), "{err}");
    machine.assert_nothing_running();
}

#[test]
fn follow_up_searches_and_cites_the_results_of_an_earlier_run() {
    let _shared = share_machine();
    let machine = UserMachine::new();
    fs::create_dir(machine.path_of("notes")).unwrap();
    fs::write(machine.path_of("notes/valves.txt"), "The Zephyr valve opens at 42 degrees.\n").unwrap();
    machine.run_successfully(&["run", "When does the Zephyr valve open?", "--docs", "notes"]);
    let data = machine.path_of("data");
    let first = read_result_json(&data)["run"].as_str().unwrap().to_owned();

    let unknown = machine.run_command(&["run", "And at night?", "--after", "20200101-000000-aaaaaa"]);
    let error = utf8_text(&unknown.stderr);
    assert!(unknown.status.code() == Some(2) && error.contains("no run \"20200101"), "{error}");

    fs::remove_dir_all(machine.path_of("notes")).unwrap();
    let question = "At how many degrees opens the Zephyr valve?";
    let follow_up = ["run", question, "--after", "latest", "--label", "team=mill", "--json"];
    let (out, err) = machine.run_successfully(&follow_up);
    assert!(err.contains(&format!("following up on run {first} (")), "{err}");
    let result: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(result["after"][0]["run"], first.as_str(), "{result:#}");
    assert_eq!(result["after"][0]["objective"], "When does the Zephyr valve open?");
    assert_eq!(result["labels"], json!({"team": "mill"}));
    for (selector, count) in [("team", 1), ("team=mill", 1), ("team=sea", 0), ("owner", 0)] {
        let (listed, _) = machine.run_successfully(&["list", "--label", selector, "--json"]);
        assert_eq!(listed.lines().count(), count, "{selector}: {listed}");
    }
    let report = format!("earlier/{first}/report.md");
    let sources = result["result"]["sources"].as_array().unwrap();
    assert!(sources.iter().any(|source| source["location"] == report.as_str()), "{sources:#?}");
    assert!(result["result"]["output"].as_str().unwrap().contains("42 degrees"), "{result:#}");

    let plan = machine.write_chain_plan(200);
    let (out, _) = machine.run_successfully(&["run", "--plan", &plan, "--detach"]);
    let running = machine.run_command(&["submit", "And then?", "--after", out.trim()]);
    let error = utf8_text(&running.stderr);
    assert!(running.status.code() == Some(2) && error.contains("has not ended"), "{error}");
    machine.run_successfully(&["cancel", out.trim()]);
    machine.run_successfully(&["down"]);
    machine.assert_nothing_running();
}

#[test]
fn json_output_is_one_object_per_line_with_the_result_last() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let done =
        user.run_command(&["run", QUESTION, "--docs", &licences_folder().display().to_string(), "--json"]);
    assert!(done.status.success(), "{}", utf8_text(&done.stderr));
    let lines: Vec<Value> =
        utf8_text(&done.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, events) = lines.split_last().expect("there are lines");
    assert!(last["result"]["output"].as_str().is_some_and(|output| output.contains("patent")));
    assert!(events.len() > 10);
    for event in events {
        assert!(event["type"].is_string() && event["sequence"].as_u64() > Some(0), "{event}");
    }
    user.assert_nothing_running();
}

#[test]
fn closed_output_pipe_does_not_disturb_the_run() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let arguments = ["run", QUESTION, "--docs", &licences_folder().display().to_string(), "--json"];
    let mut child =
        user.millrace_command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(wait_for_exit("the run", &mut child).success());
    assert_eq!(read_result_json(&user.path_of("data"))["state"], "completed");
    user.assert_nothing_running();
}

#[test]
fn interrupted_run_exits_with_130_and_can_be_resumed() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let plan = user.write_chain_plan(20);
    let mut child = user.start_in_background(&["run", "--plan", &plan]);
    user.wait_until("two tasks are completed", || user.read_file("err").contains("t1 completed"));
    assert!(
        find_tagged_processes(&user.process_tag()).len() >= 5,
        "the tag finds the processes of the cluster"
    );
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(wait_for_exit("the run", &mut child).code(), Some(130), "{}", user.read_file("err"));
    assert!(user.read_file("err").contains("millrace resume"), "{}", user.read_file("err"));
    assert!(!user.read_file("err").contains("run completed"), "the run was interrupted");
    user.assert_nothing_running();

    let output = user.run_command(&["resume"]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    assert!(utf8_text(&output.stdout).contains("mill race"), "{}", utf8_text(&output.stdout));
    assert_eq!(count_completed_tasks(&read_result_json(&user.path_of("data"))), 20);
    user.assert_nothing_running();
    assert_eq!(user.run_command(&["resume"]).status.code(), Some(2), "there is nothing left to resume");
}

#[test]
fn killed_run_leaves_no_process_and_can_be_resumed() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let plan = user.write_chain_plan(20);
    let mut child = user.start_in_background(&["run", "--plan", &plan]);
    user.wait_until("two tasks are completed", || user.read_file("err").contains("t1 completed"));
    child.kill().unwrap();
    child.wait().unwrap();
    user.assert_nothing_running();

    let started = Instant::now();
    let output = user.run_command(&["resume", "--out", "report.md"]);
    println!("resumed and finished after a kill in {:.1} s", started.elapsed().as_secs_f64());
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    let result = read_result_json(&user.path_of("data"));
    assert_eq!(count_completed_tasks(&result), 20);
    let attempts = result_tasks(&result).iter().map(|task| task["attempts"].as_array().unwrap().len());
    assert!(attempts.eq([1; 20]), "in-flight work was continued, not restarted");
    user.assert_nothing_running();
}

#[test]
fn watch_ends_when_its_run_is_interrupted() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let plan = user.write_chain_plan(40);
    let mut run = user.start_in_background(&["run", "--plan", &plan]);
    user.wait_until("a task is completed", || user.read_file("err").contains("t1 completed"));
    let mut watch =
        user.millrace_command(&["watch", "latest", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(watch.stdout.take().unwrap());
    let mut first = String::new();
    events.read_line(&mut first).unwrap();
    assert!(first.contains("\"type\""), "{first}");
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let last = events.lines().map(Result::unwrap).last().unwrap();
    assert_eq!(watch.wait().unwrap().code(), Some(5));
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (&last["type"], &last["error"], &last["exit_code"]),
        (&json!("error"), &json!("paused"), &json!(5))
    );
    assert!(last["message"].as_str().unwrap().contains("millrace resume"), "{last}");
    user.assert_nothing_running();
}

#[test]
fn interrupted_run_stays_stopped_until_it_is_resumed() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let plan = user.write_chain_plan(40);
    let interrupt = |signal| {
        let mut child = user.start_in_background(&["run", "--plan", &plan]);
        user.wait_until("two tasks are completed", || user.read_file("err").contains("t1 completed"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        user.assert_nothing_running();
        let listed = user.run_successfully(&["list"]).0;
        listed.lines().last().unwrap().split_whitespace().next().unwrap().to_owned()
    };
    let (first, second) = (interrupt(Signal::INT), interrupt(Signal::KILL));
    let completed = |run: &str| {
        let shown = user.run_successfully(&["show", run, "--json"]).0;
        count_completed_tasks(&serde_json::from_str(&shown).unwrap())
    };
    let before = [completed(&first), completed(&second)];

    // Another run does not continue them.
    fs::write(user.path_of("one.yaml"), "objective: x\ntasks: [{id: a, objective: x, capability: echo}]")
        .unwrap();
    let (_, said) = user.run_successfully(&["run", "--plan", "one.yaml"]);
    for run in [&first, &second] {
        assert!(said.contains(&format!("`millrace resume {run}`")), "{said}");
        assert!(said.contains(&format!("`millrace cancel {run}`")), "{said}");
    }
    assert!(said.contains("2 interrupted runs are kept"), "{said}");
    assert_eq!([completed(&first), completed(&second)], before);
    let (listed, _) = user.run_successfully(&["list"]);
    assert_eq!(listed.matches("interrupted").count(), 2, "{listed}");
    let (_, hint) = user.run_successfully(&["list"]);
    for run in [&first, &second] {
        assert!(hint.contains(&format!("`millrace resume {run}`")), "{hint}");
    }
    assert!(!hint.contains("millrace up"), "`up` does not continue them: {hint}");
    let (shown, hint) = user.run_successfully(&["show", &first]);
    assert!(hint.contains(&format!("until `millrace resume {first}`")), "{hint}");
    assert!(!hint.contains("millrace up") && !shown.contains("a worker"), "{shown}{hint}");
    let (_, said) = user.run_successfully(&["up", "--detach"]);
    assert!(said.contains("2 interrupted runs are kept"), "{said}");
    let (_, said) = user.run_successfully(&["up", "--detach"]);
    assert!(said.contains("already running") && said.contains("2 interrupted runs are kept"), "{said}");
    user.run_successfully(&["down"]);
    user.assert_nothing_running();

    // They can be changed and cancelled while nothing runs.
    let (_, said) = user.run_successfully(&["edit", &first, "t39", "--objective", "the last one"]);
    assert!(said.contains("task t39 is changed") && said.contains("no cluster is running"), "{said}");
    assert_eq!(user.run_command(&["pause", &first]).status.code(), Some(2), "it does not run");
    let (_, said) = user.run_successfully(&["cancel", &second]);
    assert!(said.contains("is cancelled"), "{said}");
    user.assert_nothing_running();

    let (_, said) = user.run_successfully(&["resume", &first]);
    assert!(!said.contains("interrupted run"), "{said}");
    let shown: Value = serde_json::from_str(&user.run_successfully(&["show", &first, "--json"]).0).unwrap();
    assert_eq!(count_completed_tasks(&shown), 40);
    let attempts = result_tasks(&shown).iter().map(|task| task["attempts"].as_array().unwrap().len());
    assert!(attempts.eq([1; 40]), "in-flight work was continued, not restarted");
    user.assert_nothing_running();
}

#[test]
fn run_paused_for_its_provider_stays_so_when_its_cluster_has_stopped() {
    let _shared = share_machine();
    let user = UserMachine::new();
    // Nothing listens on this port.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let model = format!("openai-compatible:away@http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let docs = licences_folder().display().to_string();
    let run = ["run", QUESTION, "--docs", &docs, "--model", &model, "--provider-timeout", "1s"];
    let done = user.run_command(&run);
    assert_eq!(done.status.code(), Some(5), "{}", utf8_text(&done.stderr));
    user.assert_nothing_running();

    let (listed, hint) = user.run_successfully(&["list"]);
    let run = listed.lines().last().unwrap().split_whitespace().next().unwrap().to_owned();
    assert!(listed.contains("paused: provider") && !listed.contains("interrupted"), "{listed}");
    assert!(hint.contains(&format!("millrace resume {run}")) && !hint.contains("millrace up"), "{hint}");
    let (line, _) = user.run_successfully(&["list", "--json"]);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["state"], "paused", "{line}");
    assert!(line["waiting_for_provider"].to_string().contains("can't be reached"), "{line}");
    let (shown, _) = user.run_successfully(&["show", &run]);
    assert!(shown.contains("paused, ") && !shown.contains("interrupted, "), "{shown}");
    assert!(shown.contains("last error: the model's provider"), "{shown}");
    let (shown, _) = user.run_successfully(&["show", &run, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["state"], "paused");

    // Later commands tell it apart from interrupted runs.
    fs::write(user.path_of("one.yaml"), "objective: x\ntasks: [{id: a, objective: x, capability: echo}]")
        .unwrap();
    let (_, said) = user.run_successfully(&["run", "--plan", "one.yaml"]);
    assert!(said.contains("1 run is paused because a model provider did not answer"), "{said}");
    let resumed = user.run_command(&["resume", &run]);
    let said = utf8_text(&resumed.stderr);
    assert_eq!(resumed.status.code(), Some(5), "{said}");
    assert!(said.contains(&format!("run {run} is paused: the provider of")), "{said}");
    user.assert_nothing_running();
}

#[test]
fn runs_of_a_stopped_cluster_are_not_shown_as_waiting_for_workers() {
    let _shared = share_machine();
    let user = UserMachine::new();
    fs::write(
        user.path_of("odd.yaml"),
        "objective: x\ntasks: [{id: a, objective: x, capability: nobody-has-this}]",
    )
    .unwrap();
    user.run_successfully(&["up", "--detach"]);
    user.run_successfully(&["submit", "--plan", "odd.yaml"]);
    user.wait_until("the task to wait", || {
        user.run_successfully(&["list"]).0.contains("a waits for a worker that provides nobody-has-this")
    });
    user.run_successfully(&["down"]);
    user.assert_nothing_running();
    let (listed, hint) = user.run_successfully(&["list"]);
    assert!(listed.contains("(no cluster is running)") && !listed.contains("a worker"), "{listed}");
    assert!(hint.contains("`millrace up` continues unfinished runs"), "{hint}");
    let (shown, hint) = user.run_successfully(&["show", "latest"]);
    assert!(shown.contains("unfinished, no cluster is running"), "{shown}");
    assert!(
        shown.contains("waiting for a cluster; none is running") && !shown.contains("a worker"),
        "{shown}"
    );
    assert!(hint.contains("millrace up") && hint.contains("millrace resume"), "{hint}");
    let (shown, _) = user.run_successfully(&["show", "latest", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["tasks"][0]["waiting_for"], "a cluster; none is running", "{shown}");
}

#[test]
fn cluster_stays_as_long_as_a_command_uses_it() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let plan = user.write_chain_plan(600);
    let mut first = user.start_with_error_file(&["run", "--plan", &plan], "first");
    user.wait_until("the first run has begun", || user.read_file("first").contains("t1 completed"));
    let mut second = user.start_with_error_file(&["run", "--plan", &plan, "--workers", "3"], "second");
    user.wait_until("the second run has begun", || user.read_file("second").contains("t0 running"));
    let plan = user.write_chain_plan(60);
    let mut third = user.start_with_error_file(&["run", "--plan", &plan], "third");
    for name in ["second", "third"] {
        user.wait_until("another run has begun", || user.read_file(name).contains("t0 running"));
        let said = user.read_file(name);
        assert!(said.contains("joined the cluster of process"), "{said}");
        assert!(said.contains("its model is builtin:extractive"), "{said}");
    }
    assert!(user.read_file("second").contains("; ignoring --workers"));
    // The cluster survives the commands that leave it, and only their runs stop.
    first.kill().unwrap();
    first.wait().unwrap();
    kill_process(Pid::from_child(&second), Signal::INT).unwrap();
    assert_eq!(wait_for_exit("the second run", &mut second).code(), Some(130));
    assert!(user.read_file("second").contains("is kept, resume it with `millrace resume"));
    user.wait_until("the third run ends", || third.try_wait().unwrap().is_some());
    assert!(third.wait().unwrap().success(), "{}", user.read_file("third"));
    user.assert_nothing_running();
    let (listed, _) = user.run_successfully(&["list"]);
    assert!(listed.contains("interrupted") && listed.contains("completed"), "{listed}");
    assert_eq!(user.run_command(&["show", ""]).status.code(), Some(2), "every run begins with nothing");
}

#[test]
fn lost_connection_is_reported_and_a_stopped_cluster_ends_the_watch() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let plan = user.write_chain_plan(900);
    let mut up = user.start_with_error_file(&["up"], "up");
    user.wait_until("the cluster runs", || user.read_file("up").contains("cluster is running"));
    let run = user.run_successfully(&["submit", "--plan", &plan]).0.trim().to_owned();
    let watch = |name: &str| {
        let child = user.start_with_error_file(&["watch", &run], name);
        user.wait_until("the run is watched", || user.read_file(name).contains("t0 completed"));
        child
    };
    let mut watched = watch("watch");
    up.kill().unwrap();
    up.wait().unwrap();
    assert_eq!(wait_for_exit("the watch", &mut watched).code(), Some(4), "{}", user.read_file("watch"));
    let said = user.read_file("watch");
    assert!(said.contains("connection to the cluster lost at"), "{said}");
    let kept = format!("has stopped; run {run} is kept: `millrace resume {run}` continues it");
    assert!(said.contains(&kept), "{said}");

    // A store that is deleted is not kept.
    let mut up = user.start_with_error_file(&["up"], "up");
    user.wait_until("the run continues", || user.read_file("up").contains("1 unfinished run; continuing"));
    let mut watched = watch("watch-2");
    fs::remove_dir_all(user.path_of("data/nats")).unwrap();
    assert_eq!(wait_for_exit("the cluster", &mut up).code(), Some(4), "{}", user.read_file("up"));
    assert!(user.read_file("up").contains("was deleted, and its runs with it"), "{}", user.read_file("up"));
    assert_eq!(wait_for_exit("the watch", &mut watched).code(), Some(4));
    assert!(user.read_file("watch-2").contains("was deleted"), "{}", user.read_file("watch-2"));
    user.assert_nothing_running();
}

fn result_tasks(result: &Value) -> &Vec<Value> {
    result["tasks"].as_array().unwrap()
}

fn count_completed_tasks(result: &Value) -> usize {
    result_tasks(result).iter().filter(|task| task["state"] == "completed").count()
}

#[test]
fn detached_run_can_be_watched_listed_cancelled_and_replayed() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let ok = |arguments: &[&str]| {
        let output = user.run_command(arguments);
        let printed = utf8_text(&output.stdout) + &utf8_text(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {printed}");
        utf8_text(&output.stdout)
    };
    let first = ok(&["run", "--plan", &user.write_chain_plan(5), "--detach"]).trim().to_owned();
    assert!(find_tagged_processes(&user.process_tag()).len() >= 5, "the cluster stays");
    assert!(ok(&["watch", &first]).contains("mill race"));
    assert!(ok(&["list"]).contains(&first));
    let listed: Value = serde_json::from_str(ok(&["list", "--json"]).lines().next().unwrap()).unwrap();
    assert_eq!((&listed["run"], &listed["state"]), (&first.as_str().into(), &"completed".into()));
    assert!(ok(&["show", "latest"]).contains("mill race"));
    let shown: Value = serde_json::from_str(&ok(&["show", &first, "--json"])).unwrap();
    assert_eq!(count_completed_tasks(&shown), 5);

    // Replay of the log, decision by decision, up to one in the middle.
    let log = ok(&["replay", &first, "--log", "--json"]);
    let log = serde_json::Deserializer::from_str(&log).into_iter::<Value>();
    let decisions: Vec<Value> =
        log.map(|value| value.unwrap()).filter(|value| value["type"] == "decision").collect();
    let middle = decisions[decisions.len() / 2]["sequence"].to_string();
    let state: Value = serde_json::from_str(&ok(&["replay", &first, "--at", &middle, "--json"])).unwrap();
    assert!((1..5).contains(&count_completed_tasks(&state["result"])), "{state}");
    assert!(ok(&["replay", &first]).contains("t4"));

    let second = ok(&["submit", "--plan", &user.write_chain_plan(300)]).trim().to_owned();
    ok(&["cancel", &second]);
    let watched = user.run_command(&["watch", &second]);
    assert_eq!(watched.status.code(), Some(1), "{}", utf8_text(&watched.stderr));
    assert_eq!(user.run_command(&["show", "nothing-like-it"]).status.code(), Some(2));

    ok(&["down"]);
    user.assert_nothing_running();
    assert!(ok(&["list"]).contains(&second), "the data of a stopped cluster can be read");
}

#[test]
fn up_and_logs_tell_of_every_run_and_attempt() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let missing = user.run_command(&["logs"]);
    assert_eq!(missing.status.code(), Some(4), "{}", utf8_text(&missing.stderr));
    assert!(utf8_text(&missing.stderr).contains("there are no logs in "), "{}", utf8_text(&missing.stderr));

    let mut up = user.start_in_background(&["up", "--workers", "2"]);
    user.wait_until("the cluster is not up", || user.read_file("err").contains("cluster is running"));
    let submitted = user.run_command(&["submit", "--plan", &user.write_chain_plan(2)]);
    let run = utf8_text(&submitted.stdout).trim().to_owned();
    assert!(!run.is_empty(), "{}", utf8_text(&submitted.stderr));
    let ended = format!("run {run} completed after ");
    user.wait_until("no line about the end of the run", || user.read_file("err").contains(&ended));
    let err = user.read_file("err");
    assert!(err.contains(&format!("run {run} submitted: go through all of them\n")), "{err}");
    assert!(err.contains(": 2 of 2 tasks completed\n"), "{err}");

    let follower = user.millrace_command(&["logs", "--role", "worker", "--follow", "--lines", "0"]);
    let mut follower = { follower }.stdout(create_file(user.folder.path(), "followed")).spawn().unwrap();
    let second = user.run_command(&["submit", "--plan", &user.write_chain_plan(1)]);
    let second = utf8_text(&second.stdout).trim().to_owned();
    let line = format!("attempt ended run={second} task=t0 attempt=1 capability=echo outcome=\"finished\"");
    user.wait_until("the follower prints no new line", || user.read_file("followed").contains(&line));
    assert!(!user.read_file("followed").contains(&run), "only new lines: {}", user.read_file("followed"));
    kill_process(Pid::from_child(&follower), Signal::INT).unwrap();
    assert_eq!(wait_for_exit("logs", &mut follower).code(), Some(130));
    kill_process(Pid::from_child(&up), Signal::INT).unwrap();
    assert_eq!(wait_for_exit("up", &mut up).code(), Some(0));

    // The logs stay when the cluster has stopped.
    let printed = |arguments: &[&str]| utf8_text(&user.run_command(&[&["logs"], arguments].concat()).stdout);
    let logs = printed(&["--lines", "1000"]);
    let count = |what: &str| logs.lines().filter(|line| line.contains(what) && line.contains(&run)).count();
    for (what, times) in [("run started", 1), ("run ended", 1), ("attempt started", 2), ("attempt ended", 2)]
    {
        assert_eq!(count(what), times, "{what}:\n{logs}");
    }
    let position = |what: &str| logs.find(&format!("{what} run={run}")).unwrap();
    assert!(position("run started") < position("attempt started"), "in the order of time:\n{logs}");
    let supervisor = printed(&["--role", "supervisor", "--lines", "3"]);
    assert_eq!(supervisor.lines().count(), 3, "{supervisor}");
    assert!(supervisor.lines().all(|line| line.starts_with("supervisor-1 ")), "{supervisor}");
    assert!(printed(&["--role", "nats", "--lines", "1000"]).contains("Server is ready"));
    user.assert_nothing_running();
}

#[test]
fn hostile_documents_steer_neither_a_terminal_nor_a_renderer() {
    let _shared = share_machine();
    let user = UserMachine::new();
    let docs = user.path_of("docs");
    fs::create_dir(&docs).unwrap();
    let name_controls = CONTROLS.replace('\r', "");
    let markdown_name = MARKDOWN.replace('/', "");
    for (name, text) in [
        (
            format!("a{name_controls}b.txt"),
            "The patent grant of the controls ends in January 2031.".to_owned(),
        ),
        (" lead.txt".to_owned(), "The patent grant of the blank ends in February 2032.".to_owned()),
        ("new\nline.txt".to_owned(), "The patent grant of the line ends in March 2033.".to_owned()),
        (
            format!("{markdown_name}.md"),
            format!(
                "# The patent grant {MARKDOWN} {CONTROLS}\n\nThe patent grant {CONTROLS} {MARKDOWN} ends in April 2034."
            ),
        ),
        (
            "page.html".to_owned(),
            format!(
                "<title>Patent {CONTROLS} ![image](http://evil.example)</title><p>The patent grant of the page ends in May 2035. &lt;img src=x&gt;</p>"
            ),
        ),
        (format!("skipped{name_controls}.pdf"), "%PDF".to_owned()),
    ] {
        fs::write(docs.join(name), text).unwrap();
    }
    let docs = docs.display().to_string();
    let report = user.path_of("report.md").display().to_string();
    let objective = hostile_text("When does a patent grant end?");
    for arguments in [
        &["run", objective.as_str(), "--docs", docs.as_str()][..],
        &["run", objective.as_str(), "--docs", docs.as_str(), "--json"],
        &["run", "When does a patent grant end?", "--docs", docs.as_str(), "--out", report.as_str()],
    ] {
        let done = user.run_command(arguments);
        assert_safe_output("the output", &done.stdout);
        assert_safe_output("the messages", &done.stderr);
        assert!(done.status.success(), "{}", utf8_text(&done.stderr));
    }
    let mut reports = vec![user.path_of("report.md")];
    for run in fs::read_dir(user.path_of("data/results")).unwrap() {
        let run = run.unwrap().path();
        assert_safe_output("the result", &fs::read(run.join("result.json")).unwrap());
        reports.extend(Some(run.join("report.md")).filter(|path| path.exists()));
    }
    assert_eq!(reports.len(), 3);
    for path in &reports {
        assert_safe_output("the report", &fs::read(path).unwrap());
        assert_inactive_markdown("the report", &fs::read_to_string(path).unwrap());
    }

    let report = user.read_file("report.md");
    let quotations: Vec<&str> = report.lines().filter_map(|line| line.strip_prefix("> ")).collect();
    for year in ["2031", "2032", "2033", "2034"] {
        let quotation = quotations.iter().find(|line| line.contains(year));
        let quotation = quotation.unwrap_or_else(|| panic!("no quotation of {year} in {report}"));
        let (_, citation) = quotation.rsplit_once(" [").expect("it has a citation");
        let number = citation.split(']').next().unwrap();
        assert!(report.contains(&format!("\n- [{number}] ")), "{number} is no source in {report}");
    }
    assert!(report.contains("!\\[image\\]"), "{report}");
    let sources = report.split_once("## Sources").unwrap().1;
    for name in [": lead.txt", ": new line.txt"] {
        assert!(sources.contains(name), "{name} is not in {sources}");
    }
    user.assert_nothing_running();
}
