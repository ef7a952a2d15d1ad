//! README's first command and those that follow it, as a user calls them: what they print and leave, and that nothing
//! goes on running that should not.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_tests::cluster::{alone, clean, file, left, mark, wait_for};
use millrace_tests::program::millrace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const QUESTION: &str = "How do these licences treat patents, and when does a patent grant end?";
const PATIENCE: Duration = Duration::from_secs(30);

fn licences() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences")
}

/// A user's machine: a data folder, and all that is started on it.
struct User {
    folder: TempDir,
}

impl User {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = clean(Command::new(millrace()));
        mark(&mut command, &self.mark());
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MILLRACE_DATA", self.path("data"));
        command.env("MILLRACE_DOCUMENT_CACHE", self.path("documents"));
        command
    }

    fn does(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Does it in the background, with its words in files.
    fn begins(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(file(self.folder.path(), "out")).stderr(file(self.folder.path(), "err"));
        command.spawn().unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn waits_until(&self, what: &str, mut state: impl FnMut() -> bool) {
        let started = Instant::now();
        while !state() {
            assert!(started.elapsed() < PATIENCE, "{what}:\n{}", self.read("err"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn leaves_nothing_running(&self) {
        self.waits_until("processes are left", || left(&self.mark()).is_empty());
    }

    /// A plan of so many tasks one after the other, 100 ms each in four steps.
    fn plan(&self, tasks: u32) -> String {
        let mut text = String::from("objective: go through all of them\ntasks:\n");
        for n in 0..tasks {
            text += &format!("  - {{id: t{n}, objective: step {n}, capability: echo, ");
            if n > 0 {
                text += &format!("depends_on: [t{}], ", n - 1);
            }
            text += &format!("parameters: {{delay_ms: 100, steps: 4}}, final: {}}}\n", n + 1 == tasks);
        }
        fs::write(self.path("plan.yaml"), text).unwrap();
        self.path("plan.yaml").display().to_string()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        for pid in left(&self.mark()) {
            let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The only JSON file with the whole result.
fn result_in(data: &Path) -> Value {
    let runs: Vec<_> = fs::read_dir(data.join("results")).unwrap().map(|run| run.unwrap().path()).collect();
    let newest = runs.iter().max().expect("a run leaves its result");
    serde_json::from_str(&fs::read_to_string(newest.join("result.json")).unwrap()).unwrap()
}

fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The numbers in square brackets.
fn cited(text: &str) -> BTreeSet<String> {
    let parts = text.split('[').skip(1).filter_map(|part| part.split_once(']'));
    let numbers = parts.map(|(number, _)| number).filter(|number| number.parse::<u32>().is_ok());
    numbers.map(str::to_owned).collect()
}

/// Every citation resolves, every source is cited, and every quotation stands in its file word for word.
fn check_report(report: &str, result: &Value) {
    let (body, list) = report.split_once("## Sources").expect("the report lists its sources");
    let listed: BTreeSet<String> =
        list.lines().filter(|line| line.starts_with("- [")).flat_map(|line| cited(&line[..6])).collect();
    assert!(listed.len() > 3, "several licences are sources: {list}");
    assert_eq!(cited(body), listed, "citations and sources");

    let quotations = result["result"]["quotations"].as_array().unwrap();
    let sources = result["result"]["sources"].as_array().unwrap();
    assert!(quotations.len() > 5 && sources.len() == listed.len());
    for quotation in quotations {
        let source = sources.iter().find(|source| source["id"] == quotation["source"]).expect("its source");
        let document = fs::read_to_string(licences().join(source["location"].as_str().unwrap())).unwrap();
        let lines = |key: &str| usize::try_from(quotation[key].as_u64().unwrap()).unwrap();
        let (first, last) = (lines("first_line"), lines("last_line"));
        let passage: Vec<&str> = document.lines().skip(first - 1).take(last - first + 1).collect();
        let words = folded(quotation["text"].as_str().unwrap());
        assert!(folded(&passage.join(" ")).contains(&words), "{source}, lines {first} to {last}: {words}");
    }
    let in_text = body.lines().filter_map(|line| line.strip_prefix("> "));
    let mut count = 0;
    for line in in_text {
        count += 1;
        let words = line.rsplit_once(" [").map_or(line, |(words, _)| words);
        let known = quotations.iter().any(|known| folded(known["text"].as_str().unwrap()) == folded(words));
        assert!(known, "a quotation in the text is none of the result's: {words}");
    }
    assert!(count >= 5, "the report quotes: {body}");
}

#[test]
fn the_first_command_leaves_a_report_whose_every_citation_resolves_and_no_process() {
    let _alone = alone();
    let user = User::new();
    let docs = licences().display().to_string();
    let done = user.does(&["run", QUESTION, "--docs", &docs]);
    let (report, said) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{said}");
    assert!(said.contains("no language model is in use"), "{said}");
    let result = result_in(&user.path("data"));
    check_report(&report, &result);
    assert_eq!((&result["reason"], &result["deliverable"]["rung"]), (&"completed".into(), &"final".into()));
    user.leaves_nothing_running();

    // Again on the same data folder, into files.
    let started = Instant::now();
    let out = user.path("report.md");
    let arguments =
        ["run", QUESTION, "--docs", &docs, "--out", out.to_str().unwrap(), "--result", "deep/whole.json"];
    let done = user.does(&arguments);
    println!("again on the same folder: {:.1} s", started.elapsed().as_secs_f64());
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(text(&done.stdout), "", "the report is in its file");
    assert_eq!(
        fs::read_to_string(out).unwrap().trim(),
        report.trim(),
        "the same question has the same answer"
    );
    let whole: Value = serde_json::from_str(&user.read("deep/whole.json")).unwrap();
    assert_eq!(whole["result"]["quotations"], result["result"]["quotations"]);
    user.leaves_nothing_running();
}

#[test]
fn every_line_for_machines_is_json_and_the_last_is_the_result() {
    let _alone = alone();
    let user = User::new();
    let done = user.does(&["run", QUESTION, "--docs", &licences().display().to_string(), "--json"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let lines: Vec<Value> =
        text(&done.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, events) = lines.split_last().expect("there are lines");
    assert!(last["result"]["result"]["output"].as_str().is_some_and(|output| output.contains("patent")));
    assert!(events.len() > 10);
    for event in events {
        assert!(event["event"].is_object() && event["sequence"].as_u64() > Some(0), "{event}");
    }
    user.leaves_nothing_running();
}

#[test]
fn a_reader_that_closes_the_pipe_early_does_not_disturb_the_run() {
    let _alone = alone();
    let user = User::new();
    let arguments = ["run", QUESTION, "--docs", &licences().display().to_string(), "--json"];
    let mut child = user.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(wait_for("the run", &mut child).success());
    assert_eq!(result_in(&user.path("data"))["reason"], "completed");
    user.leaves_nothing_running();
}

#[test]
fn an_interrupted_run_ends_with_130_and_resume_finishes_it() {
    let _alone = alone();
    let user = User::new();
    let plan = user.plan(20);
    let mut child = user.begins(&["run", "--plan", &plan]);
    user.waits_until("two tasks are completed", || user.read("err").contains("t1 completed"));
    assert!(left(&user.mark()).len() >= 5, "the mark finds the processes of the cluster");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(wait_for("the run", &mut child).code(), Some(130), "{}", user.read("err"));
    assert!(user.read("err").contains("millrace resume"), "{}", user.read("err"));
    assert!(!user.read("err").contains("run completed"), "it was interrupted in the middle");
    user.leaves_nothing_running();

    let done = user.does(&["resume"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("mill race"), "{}", text(&done.stdout));
    assert_eq!(completed(&result_in(&user.path("data"))), 20);
    user.leaves_nothing_running();
    assert_eq!(user.does(&["resume"]).status.code(), Some(2), "there is nothing to resume any more");
}

#[test]
fn a_killed_run_leaves_no_process_and_resume_finishes_it() {
    let _alone = alone();
    let user = User::new();
    let plan = user.plan(20);
    let mut child = user.begins(&["run", "--plan", &plan]);
    user.waits_until("two tasks are completed", || user.read("err").contains("t1 completed"));
    child.kill().unwrap();
    child.wait().unwrap();
    user.leaves_nothing_running();

    let started = Instant::now();
    let done = user.does(&["resume", "--out", "report.md"]);
    println!("resumed and finished after a kill in {:.1} s", started.elapsed().as_secs_f64());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let result = result_in(&user.path("data"));
    assert_eq!(completed(&result), 20);
    let attempts = tasks(&result).iter().map(|task| task["attempts"].as_array().unwrap().len());
    assert!(attempts.eq([1; 20]), "what was in hand was continued, not begun anew");
    user.leaves_nothing_running();
}

fn tasks(result: &Value) -> &Vec<Value> {
    result["plan"]["tasks"].as_array().unwrap()
}

fn completed(result: &Value) -> usize {
    tasks(result).iter().filter(|task| task["state"] == "completed").count()
}

#[test]
fn a_detached_run_is_watched_listed_shown_cancelled_and_replayed_and_down_ends_the_cluster() {
    let _alone = alone();
    let user = User::new();
    let ok = |arguments: &[&str]| {
        let done = user.does(arguments);
        let said = text(&done.stdout) + &text(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {said}");
        text(&done.stdout)
    };
    let first = ok(&["run", "--plan", &user.plan(5), "--detach"]).trim().to_owned();
    assert!(left(&user.mark()).len() >= 5, "the cluster stays");
    assert!(ok(&["watch", &first]).contains("mill race"));
    assert!(ok(&["list"]).contains(&first));
    let listed: Value = serde_json::from_str(ok(&["list", "--json"]).lines().next().unwrap()).unwrap();
    assert_eq!((&listed["run"], &listed["end"]), (&first.as_str().into(), &"completed".into()));
    assert!(ok(&["show", "latest"]).contains("mill race"));
    let shown: Value = serde_json::from_str(&ok(&["show", &first, "--json"])).unwrap();
    assert_eq!(completed(&shown), 5);

    // The log, told decision by decision: the state as of one in the middle lies between the ends.
    let told = ok(&["replay", &first, "--log", "--json"]);
    let told = serde_json::Deserializer::from_str(&told).into_iter::<Value>();
    let decisions: Vec<Value> =
        told.map(|value| value.unwrap()).filter(|value| value["decision"].is_object()).collect();
    let middle = decisions[decisions.len() / 2]["sequence"].to_string();
    let state: Value = serde_json::from_str(&ok(&["replay", &first, "--at", &middle, "--json"])).unwrap();
    assert!((1..5).contains(&completed(&state)), "{state}");
    assert!(ok(&["replay", &first]).contains("t4"));

    let second = ok(&["submit", "--plan", &user.plan(300)]).trim().to_owned();
    ok(&["cancel", &second]);
    let watched = user.does(&["watch", &second]);
    assert_eq!(watched.status.code(), Some(1), "{}", text(&watched.stderr));
    assert_eq!(user.does(&["show", "nothing-like-it"]).status.code(), Some(2));

    ok(&["down"]);
    user.leaves_nothing_running();
    assert!(ok(&["list"]).contains(&second), "what a stopped cluster left can be read");
}
