//! Questions to persons: the real `millrace` binary against local clusters with real supervisors, workers and a nats-server.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::terminal::Terminal;
use crate::support::user::{CliUser, PATIENCE};

/// A task that needs an approval, and one that asks two questions at once.
const RELEASE: &str = "
objective: release
tasks:
  - {id: deploy, objective: deploy, capability: echo, parameters: {approve: true}}
  - {id: plan, objective: plan, capability: echo, parameters: {ask: [\"Which region?\", \"Which version?\"]}, final: true}
";
/// A task that asks.
const SURVEY: &str = "
objective: survey
tasks:
  - {id: ask, objective: ask, capability: echo, parameters: {ask: [\"How many?\"]}}
";

/// Reads the open questions until there are so many, oldest run first.
fn wait_for_questions(user: &CliUser, arguments: &[&str], count: usize) -> Vec<Value> {
    let started = Instant::now();
    loop {
        let listed = user.run_command(&[&["inbox", "--json"], arguments].concat());
        listed.assert_exit_code(0);
        let lines: Vec<Value> = listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if lines.len() == count {
            return lines;
        }
        assert!(started.elapsed() < PATIENCE, "never {count} questions: {lines:#?}");
    }
}

fn question_id<'a>(questions: &'a [Value], run: &str, text: &str) -> &'a str {
    let is_it = |one: &&Value| one["run"] == run && (one["text"] == text || one["tool"] == text);
    questions.iter().find(is_it).unwrap()["id"].as_str().unwrap()
}

fn data_of_task(user: &CliUser, run: &str, task: &str) -> Value {
    let shown = user.run_command(&["show", run, task, "--json"]);
    serde_json::from_str(&shown.out).unwrap()
}

#[test]
fn questions_of_two_runs_are_answered_in_any_order() {
    let user = CliUser::new();
    user.write_file("arguments.json", "{\"text\": \"checked\"}");
    let release = user.submit_detached(RELEASE, &[]);
    let survey = user.submit_detached(SURVEY, &[]);
    let questions = wait_for_questions(&user, &[], 4);
    let id = |run: &str, text: &str| question_id(&questions, run, text).to_owned();
    let deploy = id(&release, "echo_action");
    let (region, version) = (id(&release, "Which region?"), id(&release, "Which version?"));
    let many = id(&survey, "How many?");
    assert_eq!(deploy, format!("{release}/deploy/1/1"));
    assert_eq!(version, format!("{release}/plan/1/2"));
    let inbox = user.run_command(&["inbox", &release]).out;
    for text in ["Appends a line to the ledger.", "tool: echo_action", "text: proposed", "Which region?"] {
        assert!(inbox.contains(text), "{text}: {inbox}");
    }
    let command = format!("answer: millrace answer {deploy} --approve   (or --edit FILE, --reject TEXT");
    assert!(inbox.contains(&command), "{inbox}");
    assert!(!inbox.contains(&survey), "{inbox}");
    let listed = user.run_command(&["list"]).out;
    assert!(listed.contains("waiting (question), 3 questions"), "{listed}");
    assert!(listed.contains("waiting (question), 1 question "), "{listed}");
    let shown = user.run_command(&["show", &release]).out;
    assert!(shown.contains(&format!("question {region}: Which region?")), "{shown}");

    // A run id selects a question only if the run has one open question.
    let ambiguous = user.run_command(&["answer", &release, "--decline"]);
    ambiguous
        .assert_exit_code(2)
        .assert_stderr_contains("has 3 open questions")
        .assert_stderr_contains(&region);
    user.run_command(&["answer", &version, "--value", "1.4", "--by", "ann"]).assert_exit_code(0);
    user.run_command(&["answer", &survey, "--value", "3"])
        .assert_exit_code(0)
        .assert_stderr_is(&format!("millrace: {many} is answered: answered 3"));
    // Mistakes are found before anything is sent.
    user.run_command(&["answer", &deploy, "--value", "3"])
        .assert_exit_code(2)
        .assert_stderr_contains("answer is not allowed here; allowed: approve, edit, reject");
    user.write_file("other.json", "{\"words\": 1}");
    user.run_command(&["answer", &deploy, "--edit", "other.json"])
        .assert_exit_code(2)
        .assert_stderr_contains("the answer was refused: the arguments: ");
    // The only open question of a task.
    user.run_command(&["answer", &format!("{release}/plan"), "--value", "north"]).assert_exit_code(0);
    user.run_command(&["answer", &deploy, "--edit", "arguments.json", "--by", "cem"]).assert_exit_code(0);
    // The outcome of a second answer names the first one, its author and its time.
    let late = user.run_command(&["answer", &deploy, "--approve"]);
    late.assert_exit_code(2).assert_stderr_contains(
        "has been answered already: cem approved with the arguments {\"text\":\"checked\"} at ",
    );
    for run in [&release, &survey] {
        user.run_command(&["watch", run]).assert_exit_code(0);
    }
    user.run_command(&["inbox"])
        .assert_exit_code(0)
        .assert_stderr_is("millrace: there are no open questions");
    let history = user.run_command(&["inbox", "--history"]).out;
    assert!(history.contains("ann answered 1.4 at ") && history.contains(" after "), "{history}");
    let result = user.show_run_json(&release);
    let asked = &result["tasks"][1]["attempts"][0]["questions"];
    assert_eq!((&asked[0]["by"], &asked[0]["answer"]["value"]), (&json!("bea"), &json!("north")));
    assert_eq!((&asked[1]["by"], &asked[1]["status"]), (&json!("ann"), &json!("answered")));
    assert!(asked[1]["time_to_decide_ms"].is_u64(), "{asked:#}");
    let transcript = data_of_task(&user, &release, "deploy");
    assert_eq!(
        transcript["task"]["attempts"][0]["questions"][0]["answer"]["value"],
        json!({"text": "checked"})
    );
    let task = user.run_command(&["show", &release, "deploy"]).out;
    assert!(task.contains("questions\n") && task.contains("cem approved with the arguments"), "{task}");
}

#[test]
fn batch_has_an_outcome_for_each_question() {
    let user = CliUser::new();
    let plan = "
objective: several
tasks:
  - {id: a, objective: ask, capability: echo, parameters: {ask: [\"A?\"]}}
  - {id: b, objective: ask, capability: echo, parameters: {ask: [\"B?\"]}}
  - {id: c, objective: act, capability: echo, parameters: {approve: true}}
  - {id: d, objective: ask, capability: echo, parameters: {ask: [\"D?\"]}}
";
    let run = user.submit_detached(plan, &[]);
    wait_for_questions(&user, &[&run], 4);
    let id = |task: &str| format!("{run}/{task}/1/1");
    user.run_command(&["answer", &id("b"), "--value", "first", "--by", "ann"]).assert_exit_code(0);
    user.run_command(&["cancel", &run, "--task", "d"]).assert_exit_code(0);
    let (a, b, c, d) = (id("a"), id("b"), id("c"), id("d"));
    let (missing, other) = (id("z"), "no-such-run/a/1/1".to_owned());
    let ids = [&b, &c, &d, &missing, &other, "a/b", &a].map(|id| id.to_owned());
    let mut arguments = vec!["answer", "--value", "second", "--json"];
    arguments.extend(ids.iter().map(String::as_str));
    let answered = user.run_command(&arguments);
    answered.assert_exit_code(2);
    let lines: Vec<Value> = answered.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let outcomes: Vec<(&str, &str)> =
        lines.iter().map(|line| (line["id"].as_str().unwrap(), line["outcome"].as_str().unwrap())).collect();
    assert_eq!(
        outcomes,
        [
            (b.as_str(), "already"),
            (&c, "refused"),
            (&d, "withdrawn"),
            (&missing, "unknown"),
            (&other, "unknown"),
            ("a/b", "unknown"),
            (&a, "answered"),
        ]
    );
    assert_eq!((&lines[0]["by"], &lines[0]["answer"]["value"]), (&json!("ann"), &json!("first")));
    assert!(
        lines[0]["at"].is_string() && lines[2]["message"].as_str().unwrap().contains("cancelled"),
        "{lines:#?}"
    );
    user.run_command(&["answer", &c, "--reject", "no"]).assert_exit_code(0);
    assert!(user.run_command(&["watch", &run]).code.is_some());
}

#[test]
fn questions_are_answered_while_no_cluster_is_running() {
    let user = CliUser::new();
    let run = user.submit_detached(SURVEY, &[]);
    wait_for_questions(&user, &[], 1);
    user.run_command(&["down"]).assert_exit_code(0);
    let listed = user.run_command(&["inbox"]);
    assert!(listed.out.contains("How many?"), "{listed:?}");
    listed.assert_stderr_contains("no cluster is running");
    user.run_command(&["answer", "latest", "--value", "\"four\""])
        .assert_exit_code(0)
        .assert_stderr_contains("is answered: answered \"four\"")
        .assert_stderr_contains("no cluster is running");
    user.run_command(&["resume", &run]).assert_exit_code(0);
    let result = user.show_run_json(&run);
    assert_eq!(result["state"], "completed", "{result:#}");
}

#[test]
fn examples_in_the_docs_work() {
    let history = run_example("## An example", 2);
    assert!(history.contains("answered \"staging\"") && history.contains(" approved at "), "{history}");
    let followed = run_example("## Approval of the plan", 2);
    assert!(followed.contains("The mill race turns the wheel"), "{followed}");
}

/// Runs the first commands below a heading of the page about people, as a user who waits for the questions, with so many answers.
/// Returns the output of the command before the last.
fn run_example(heading: &str, answers: usize) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/people.md")).unwrap();
    let example = page.split_once(heading).unwrap().1.split_once("```console\n").unwrap().1;
    let commands = example.split_once("```").unwrap().0.lines();
    let commands: Vec<Vec<&str>> =
        commands.map(|line| line.strip_prefix("$ millrace ").unwrap().split(' ').collect()).collect();
    assert!(commands.len() > 5, "{commands:?}");
    let user = CliUser::new();
    let (mut answered, mut last) = (0, [String::new(), String::new()]);
    for arguments in commands {
        let has_question = arguments[0] == "answer" || arguments == ["inbox", "latest"];
        if has_question {
            wait_for_questions(&user, &[], 1);
        }
        let paths: Vec<String> = arguments.iter().map(|one| in_repository(&root, one)).collect();
        let output = user.run_command(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        output.assert_exit_code(0);
        answered += usize::from(arguments[0] == "answer");
        last = [last[1].clone(), output.out];
    }
    assert_eq!(answered, answers);
    std::mem::take(&mut last[0])
}

/// Returns an argument with the path of a file of the repository made absolute.
fn in_repository(root: &std::path::Path, argument: &str) -> String {
    argument.replace("examples/", &format!("{}/examples/", root.display()))
}

/// A command whose output is read while it runs.
struct Following {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Following {
    fn start(user: &CliUser, arguments: &[&str]) -> Self {
        let mut command = user.millrace_command(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn next_json(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn inbox_that_is_watched_tells_new_and_answered_questions() {
    let user = CliUser::new();
    let run = user.submit_detached(SURVEY, &[]);
    wait_for_questions(&user, &[], 1);
    let mut inbox = Following::start(&user, &["inbox", "--watch", "--json"]);
    let first = inbox.next_json();
    assert_eq!((&first["run"], &first["status"]), (&json!(run), &json!("open")));
    let second = user.submit_detached(SURVEY, &[]);
    let new = inbox.next_json();
    assert_eq!((&new["run"], &new["status"]), (&json!(second), &json!("open")));
    user.run_command(&["answer", &run, "--decline", "--by", "ann"]).assert_exit_code(0);
    let closed = inbox.next_json();
    assert_eq!((&closed["id"], &closed["status"]), (&first["id"], &json!("answered")));
    assert_eq!((&closed["by"], &closed["answer"]["answer"]), (&json!("ann"), &json!("decline")));
}

#[test]
fn run_without_a_terminal_prints_the_command_that_answers() {
    let user = CliUser::new();
    user.write_file("plan.yaml", SURVEY);
    let mut command = user.millrace_command(&["run", "--plan", "plan.yaml", "--workers", "1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().unwrap().starts_with("millrace: question ")).unwrap().unwrap();
    assert!(line.contains("How many?; answer it with: millrace answer "), "{line}");
    let id = line.split_whitespace().nth(2).unwrap().trim_end_matches(':').to_owned();
    user.run_command(&["answer", &id, "--value", "4"]).assert_exit_code(0);
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn questions_are_answered_in_place_on_a_terminal() {
    let user = CliUser::new();
    user.write_file("plan.yaml", RELEASE);
    let mut command = user.millrace_command(&["run", "--plan", "plan.yaml", "--workers", "1"]);
    command.env("TERM", "xterm").env("EDITOR", "sed -i s/proposed/edited/");
    let mut terminal = Terminal::start(&command);
    for _ in 0..3 {
        // Which task asks first depends on the workers.
        let shown = ["? approval  deploy/1/1", "? input  plan/1/1", "? input  plan/1/2"];
        let expected = match terminal.wait_for_any(&shown) {
            "? approval  deploy/1/1" => {
                terminal.wait_for("approve (a), edit (e), reject (r)");
                terminal.write("x\r");
                terminal.wait_for("\"x\" is none of the decisions");
                terminal.write("e\r");
                ["/deploy/1/1 is answered: approved with", "deploy/1/1 is closed: bea approved with"]
            }
            "? input  plan/1/1" => {
                terminal.write("norht\u{7f}\u{7f}th\r");
                ["/plan/1/1 is answered: answered \"north\"", "plan/1/1 is closed: bea answered \"north\""]
            }
            _ => {
                terminal.write("1.4\r");
                ["/plan/1/2 is answered: answered \"1.4\"", "plan/1/2 is closed: bea answered \"1.4\""]
            }
        };
        // The decision and its outcome arrive in any order.
        terminal.wait_for_any(&expected);
        terminal.forget();
    }
    let status = terminal.wait();
    assert_eq!(status.code(), Some(0), "{}", terminal.screen());
    let run = user.run_command(&["list", "--json"]).out;
    let run: Value = serde_json::from_str(run.trim()).unwrap();
    let result = user.show_run_json(run["run"].as_str().unwrap());
    let attempt = |task: usize| &result["tasks"][task]["attempts"][0]["questions"];
    assert_eq!(attempt(0)[0]["answer"]["value"], json!({"text": "edited"}), "{result:#}");
    assert_eq!(attempt(1)[0]["answer"]["value"], "north");
    assert!(terminal.is_cooked(), "the modes of the terminal are restored");
}

#[test]
fn question_at_the_prompt_disappears_when_it_is_answered_elsewhere() {
    let user = CliUser::new();
    user.write_file("plan.yaml", SURVEY);
    let mut command = user.millrace_command(&["run", "--plan", "plan.yaml", "--workers", "1"]);
    command.env("TERM", "xterm");
    let mut terminal = Terminal::start(&command);
    terminal.wait_for("text, decline (/d), skip (/s): ");
    terminal.write("half an ans");
    terminal.wait_for("half an ans");
    user.run_command(&["answer", "latest", "--value", "4", "--by", "ann"]).assert_exit_code(0);
    terminal.wait_for("question ask/1/1 is closed: ann answered 4 at ");
    assert_eq!(terminal.wait().code(), Some(0));
    assert!(terminal.is_cooked());
}

#[test]
fn interrupt_at_the_prompt_interrupts_the_run() {
    let user = CliUser::new();
    user.write_file("plan.yaml", SURVEY);
    let mut command = user.millrace_command(&["run", "--plan", "plan.yaml", "--workers", "1"]);
    command.env("TERM", "xterm");
    let mut terminal = Terminal::start(&command);
    terminal.wait_for("text, decline (/d), skip (/s): ");
    terminal.write("\u{3}");
    assert_eq!(terminal.wait().code(), Some(130), "{}", terminal.screen());
    assert!(terminal.screen().contains("interrupted; run "), "{}", terminal.screen());
    assert!(terminal.is_cooked());
    let _ = std::io::stderr().flush();
}
