//! The command line: typos, missing clusters, interrupts, closed pipes. Runs the real `millrace` binary; each test has its
//! own data folder and stops its cluster at its end.

use std::fs;
use std::io::pipe;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::user::{CHAIN, CliUser, PATIENCE};

/// A task that runs for the whole test.
const LONG: &str = "
objective: it takes its time
tasks:
  - {id: a, objective: wait, capability: echo, parameters: {delay_ms: 600000}, final: true}
";

/// A task that ends at once.
const SHORT: &str = "
objective: it is made at once
tasks:
  - {id: a, objective: made, capability: echo, parameters: {}, final: true}
";

/// A running command with its standard error.
struct CommandProcess {
    child: Child,
    stderr: std::path::PathBuf,
}

impl CommandProcess {
    fn start(user: &CliUser, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let stderr = user.path_of("stderr");
        let mut command = user.millrace_command(arguments);
        command.envs(environment.iter().copied()).stdout(Stdio::null());
        let child = command.stderr(fs::File::create(&stderr).unwrap()).spawn().unwrap();
        Self { child, stderr }
    }

    fn wait_until_stderr(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !is_so(&self.read_stderr()) {
            assert!(started.elapsed() < PATIENCE, "timeout waiting for {what}: {}", self.read_stderr());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn read_stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    /// Interrupts the command and returns its exit code.
    fn interrupt_and_wait(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < PATIENCE, "the command does not end: {}", self.read_stderr());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for CommandProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_interrupt_ends_every_waiting_command() {
    let user = CliUser::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", silent.local_addr().unwrap());
    for command in [
        &["list"][..],
        &["submit", "x"],
        &["show", "latest"],
        &["watch", "latest"],
        &["files", "latest"],
        &["replay", "latest"],
        &["cancel", "latest"],
        &["message", "latest", "x"],
        &["tell", "latest", "x"],
        &["limits"],
        &["resume"],
        &["doctor"],
    ] {
        let mut millrace = CommandProcess::start(&user, &[command, &["--nats", &url]].concat(), &[]);
        // Wait until the process handles signals.
        let _unanswered = silent.accept().unwrap();
        assert_eq!(millrace.interrupt_and_wait(), Some(130), "{command:?}: {}", millrace.read_stderr());
    }
}

#[test]
fn an_interrupt_ends_a_cluster_that_is_still_starting() {
    let user = CliUser::new();
    let python = user.path_of("python3");
    user.write_file("python3", "#!/bin/sh\n: > asked\nexec /bin/sleep 600\n");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = user.path_of("");
    let none = [
        ("PATH", path.to_str().unwrap()),
        ("XDG_CACHE_HOME", path.to_str().unwrap()),
        ("MILLRACE_NATS_SERVER", ""),
    ];
    for command in [&["up"][..], &["run", "x", "--model", "builtin:extractive"]] {
        let mut millrace = CommandProcess::start(&user, command, &none);
        millrace.wait_until_stderr("the search for a server", |_| user.path_of("asked").exists());
        assert_eq!(millrace.interrupt_and_wait(), Some(130), "{command:?}: {}", millrace.read_stderr());
        fs::remove_file(user.path_of("asked")).unwrap();
    }
}

/// Runs a command in an environment without keys for models.
fn run_without_keys(user: &CliUser, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = user.millrace_command(arguments);
    for name in
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"]
    {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_run_with_nothing_to_answer_from_is_refused() {
    let user = CliUser::new();
    for folder in ["papers", "links"] {
        fs::create_dir(user.path_of(folder)).unwrap();
    }
    user.write_file("papers/report.pdf", "%PDF-1.7");
    fs::write(user.path_of("papers/photo.png"), b"\x89PNG\0\0").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", user.path_of("links/out.txt")).unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["run", "x"], &["nothing to answer from", "--model", "--docs"]),
        (
            &["run", "x", "--docs", "papers"],
            &["report.pdf: it is damaged", "photo.png: binary files of the kind .png"],
        ),
        (&["run", "x", "--docs", "links"], &["no readable documents", "out.txt: it is a link"]),
    ];
    for (arguments, parts) in cases {
        let (code, stderr) = run_without_keys(&user, arguments);
        assert_eq!(code, Some(2), "{stderr}");
        parts.iter().for_each(|part| assert!(stderr.contains(part), "{part:?} is not in: {stderr}"));
    }
    assert!(!user.path_of("data").exists(), "no data folder is created");
}

#[test]
fn documents_of_many_formats_are_counted_read_and_cited_by_page() {
    let user = CliUser::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/documents/tests/fixtures");
    fs::create_dir_all(user.path_of("docs/.hidden")).unwrap();
    for name in ["dam.pdf", "gear.docx", "hopper.pptx", "race.xlsx", "sieve.epub", "brake.eml"] {
        fs::copy(fixtures.join(name), user.path_of(&format!("docs/{name}"))).unwrap();
    }
    for name in ["encrypted.pdf", "bomb.docx", "form-calls-itself.pdf"] {
        fs::copy(fixtures.join("hostile").join(name), user.path_of(&format!("docs/{name}"))).unwrap();
    }
    let question = "How many kilograms does the dam of mill 2 weigh?";
    let arguments = ["run", question, "--docs", "docs", "--result", "result.json", "--verbose"];
    let (code, stderr) = run_without_keys(&user, &arguments);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.starts_with("documents: 6 of 10 files (4 skipped: "), "{stderr}");
    for part in
        ["encrypted.pdf: it is encrypted", "bomb.docx: it unpacks to more than", ".hidden: it is hidden"]
    {
        assert!(stderr.contains(part), "{part:?} is not in: {stderr}");
    }
    let result: serde_json::Value = serde_json::from_str(&user.read_file("result.json")).unwrap();
    let quotations = result["result"]["quotations"].as_array().unwrap();
    let quotation =
        quotations.iter().find(|one| one["text"].as_str().unwrap().contains("dam of mill 2")).unwrap();
    assert_eq!(quotation["place"], "page 2", "{quotations:?}");
    assert!(result["result"]["output"].as_str().unwrap().contains("page 2, line"), "{result:#}");
}

#[test]
fn documents_are_named_as_files_and_patterns() {
    let user = CliUser::new();
    fs::create_dir_all(user.path_of("notes/deep")).unwrap();
    for (path, text) in [
        ("notes/deep/salt.csv", "what,when\nsalt,as soon as the water is hot\n"),
        ("notes/other.log", "nothing"),
        ("soup.yaml", "soup: boil the water first"),
    ] {
        user.write_file(path, text);
    }
    let question = "When is salt added to the water?";
    for (docs, line) in [
        (&["--docs", "notes/**/*.csv"][..], "documents: 1 of 1 file\n"),
        (&["--docs", "soup.yaml", "--docs", "notes/deep/salt.csv"], "documents: 2 of 2 files\n"),
    ] {
        let (_, stderr) = run_without_keys(&user, &[&["run", question][..], docs].concat());
        assert!(stderr.starts_with(line), "{stderr}");
    }
    for (docs, reason) in [
        ("*.pdf", "no file matches --docs *.pdf"),
        ("http://127.0.0.1/a.html", "only the public internet is allowed"),
        ("missing", "there is no folder missing"),
    ] {
        let (code, stderr) = run_without_keys(&user, &["run", question, "--docs", docs]);
        assert!(code == Some(2) && stderr.contains(reason), "{stderr}");
    }
}

#[test]
fn a_question_without_a_passage_ends_partially() {
    let user = CliUser::new();
    fs::create_dir(user.path_of("docs")).unwrap();
    user.write_file("docs/soup.md", "# Soup\n\nBoil the water first, and add salt as soon as it is hot.\n");
    let (code, stderr) = run_without_keys(
        &user,
        &["run", "When does a patent grant end?", "--docs", "docs", "--result", "result.json"],
    );
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("completed_partial") && stderr.contains("no passage"), "{stderr}");
    let result: serde_json::Value = serde_json::from_str(&user.read_file("result.json")).unwrap();
    assert_eq!((&result["state"], &result["answered"]), (&"completed_partial".into(), &false.into()));

    let (code, stderr) = run_without_keys(
        &user,
        &["run", "When is salt added to the water?", "--docs", "docs", "--result", "result.json"],
    );
    assert_eq!(code, Some(0), "{stderr}");
    let result: serde_json::Value = serde_json::from_str(&user.read_file("result.json")).unwrap();
    assert_eq!((&result["state"], &result["answered"]), (&"completed".into(), &true.into()));
}

#[test]
fn tasks_that_no_worker_can_do_are_refused_with_their_lines() {
    let user = CliUser::new();
    user.write_file(
        "plan.yaml",
        "objective: o\ntasks:\n  - {id: a, objective: x, capability: echo, parameters: {delay_ms: soon}}\n  \
         - {id: b, objective: x, capability: echo, parameters: {bytes: many}, final: true}\n",
    );
    let first = "plan.yaml:3:68: echo does not accept the parameters of task a: 'delay_ms' must be";
    let second = "plan.yaml:4:65: echo does not accept the parameters of task b: 'bytes' must be";
    user.run_command(&["run", "--plan", "plan.yaml"])
        .assert_exit_code(2)
        .assert_stderr_contains(first)
        .assert_stderr_contains(second);
    user.write_file(
        "unknown.yaml",
        "objective: o\ntasks:\n  - {id: a, objective: x, capability: reserch}\n  - {id: b, objective: x, capability: ecco}\n",
    );
    user.run_command(&["run", "--plan", "unknown.yaml"])
        .assert_exit_code(2)
        .assert_stderr_contains(
            "unknown.yaml:3:39: no worker provides \"reserch\"; did you mean \"research\"?",
        )
        .assert_stderr_contains("unknown.yaml:4:39: no worker provides \"ecco\"; did you mean \"echo\"?");
    assert!(!user.path_of("data").exists(), "no data folder is created");

    user.submit_detached(LONG, &[]);
    user.write_file(
        "plan.yaml",
        "objective: o\ntasks:\n  - {id: a, objective: x, capability: echo, parameters: {delay_ms: soon}}\n",
    );
    user.run_command(&["submit", "--plan", "plan.yaml"]).assert_exit_code(2).assert_stderr_contains(first);
}

#[test]
fn a_task_without_a_worker_says_what_it_waits_for() {
    let user = CliUser::new();
    user.submit_detached(LONG, &[]);
    user.write_file("zebra.yaml", "objective: o\ntasks:\n  - {id: a, objective: x, capability: zebra}\n");
    let submitted = user.run_command(&["submit", "--plan", "zebra.yaml"]);
    submitted.assert_exit_code(0).assert_stderr_contains("zebra.yaml:3:39: no worker provides \"zebra\"");
    let run = submitted.out.trim();
    let wait = "waiting for a worker that provides zebra";
    let started = std::time::Instant::now();
    while !user.run_command(&["show", run]).out.contains(wait) {
        assert!(started.elapsed() < PATIENCE, "{:#?}", user.run_command(&["show", run]));
    }
    let shown = user.show_run_json(run);
    assert!(
        shown["tasks"][0]["waiting_for"].as_str().unwrap().contains("a worker that provides zebra"),
        "{shown:#}"
    );
    while !user.run_command(&["list"]).out.contains("a waits for a worker that provides zebra") {
        assert!(started.elapsed() < PATIENCE, "{:#?}", user.run_command(&["list"]));
    }
}

#[test]
fn a_process_that_refuses_to_start_ends_the_command() {
    let user = CliUser::new();
    user.submit_detached(CHAIN, &["--lane-lease", "2s"]);
    user.run_command(&["down"]).assert_exit_code(0);
    user.run_command(&["run", "--plan", "plan.yaml", "--lane-lease", "7s"])
        .assert_exit_code(4)
        .assert_stderr_contains("lane lease is 2000 ms, requested 7000 ms");
    user.run_command(&["up", "--lane-lease", "7s"])
        .assert_exit_code(4)
        .assert_stderr_contains("supervisor-1 can't start: ")
        .assert_stderr_contains("lane lease is 2000 ms, requested 7000 ms");
}

#[test]
fn a_capability_file_whose_model_has_no_key_is_refused_at_once() {
    let user = CliUser::new();
    user.write_file("analyst.yaml", "name: analyst\ndescription: d\ninstructions: i\nmodel: openai:gpt-9\n");
    let arguments = ["run", "x", "--model", "builtin:extractive", "--capability", "analyst.yaml"];
    let (code, stderr) = run_without_keys(&user, &arguments);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("analyst.yaml: openai:gpt-9 needs a key"), "{stderr}");
    assert!(!user.path_of("data").exists(), "no data folder is created");
}

#[test]
fn a_closed_pipe_causes_no_panic() {
    let user = CliUser::new();
    for arguments in [&["schema", "plan"][..], &["schema", "capability"], &["doctor"], &["doctor", "--json"]]
    {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let output = user.millrace_command(arguments).stdout(writer).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        assert_ne!(output.status.code(), Some(101), "{arguments:?}");
    }
}

#[test]
fn an_empty_server_address_is_refused() {
    let user = CliUser::new();
    for command in [&["list"][..], &["resume"]] {
        let output = user.run_command(&[command, &["--nats", ""]].concat());
        output.assert_exit_code(2).assert_stderr_contains("--nats");
    }
}

#[test]
fn unknown_capability_names_lead_to_warnings() {
    let user = CliUser::new();
    user.write_file("plan.yaml", CHAIN);
    let slip =
        ["--plan", "plan.yaml", "--model", "reserch=builtin:extractive", "--budget", "critc.tokens=5k"];
    let of_model =
        "warning: \"reserch\" has a model or a budget, but no worker provides it; did you mean \"research\"?";
    let of_budget =
        "warning: \"critc\" has a model or a budget, but no worker provides it; did you mean \"critic\"?";
    user.run_command(&[&["run"], &slip[..]].concat())
        .assert_exit_code(0)
        .assert_stderr_contains(of_model)
        .assert_stderr_contains(of_budget);

    let run = user.submit_detached(LONG, &[]);
    user.write_file("plan.yaml", CHAIN);
    user.run_command(&[&["submit"], &slip[..]].concat())
        .assert_exit_code(0)
        .assert_stderr_contains(of_model)
        .assert_stderr_contains(of_budget);
    let second = user.run_command(&[&["run", "--workers", "3"], &slip[..]].concat());
    second.assert_exit_code(0).assert_stderr_contains(of_model).assert_stderr_contains(of_budget);
    second.assert_stderr_contains("ignoring --workers");
    assert!(!second.err.contains("was interrupted"), "{run} was not interrupted: {second:#?}");
    user.write_file("more.yaml", "tasks: [{id: later, objective: x, capability: echo, depends_on: [a]}]");
    user.run_command(&["add", &run, "--plan", "more.yaml"]).assert_exit_code(0);
    user.run_command(&["edit", &run, "later", "--capability", "ecco"])
        .assert_exit_code(0)
        .assert_stderr_contains("no worker provides \"ecco\" yet");
}

#[test]
fn an_interrupted_watch_says_that_the_run_continues() {
    let user = CliUser::new();
    let run = user.submit_detached(LONG, &[]);
    let mut watched = CommandProcess::start(&user, &["watch", &run], &[]);
    watched.wait_until_stderr("the run", |said| said.contains("a running"));
    assert_eq!(watched.interrupt_and_wait(), Some(130));
    assert!(
        watched.read_stderr().contains(&format!("run {run} continues in the background")),
        "{}",
        watched.read_stderr()
    );
    assert!(!watched.read_stderr().contains("interrupted"), "{}", watched.read_stderr());
}

#[test]
fn an_unfinished_run_without_a_cluster_is_listed_with_a_hint() {
    let user = CliUser::new();
    let run = user.submit_detached(LONG, &[]);
    user.wait_for_task_state(&run, "a", "running");
    user.run_command(&["down"]).assert_exit_code(0);
    let offline = "no cluster is running, so no run is making progress";
    let listed = user.run_command(&["list"]);
    listed.assert_exit_code(0).assert_stderr_contains(offline);
    assert!(listed.out.contains(&run), "{listed:#?}");

    // A backup has the log, but no summaries of unfinished runs.
    user.run_command(&["backup", "copy"]).assert_exit_code(0);
    let other = ["--data", "other"];
    user.run_command(&[&["restore", "copy"], &other[..]].concat())
        .assert_exit_code(0)
        .assert_stderr_contains("`millrace up --data other` starts the cluster");
    let listed = user.run_command(&[&["list"], &other[..]].concat());
    listed.assert_exit_code(0).assert_stderr_contains(offline);
    assert!(listed.out.contains(&run) && listed.out.contains("  running  "), "{listed:#?}");
    let listed = user.run_command(&[&["list", "--json"], &other[..]].concat());
    assert!(listed.out.contains(&format!("\"run\":\"{run}\"")), "{listed:#?}");
    let beginning = &run[..run.len() - 1];
    let shown = user.run_command(&[&["show", beginning], &other[..]].concat());
    shown
        .assert_exit_code(0)
        .assert_stderr_contains("no cluster is running, so the run makes no progress until `millrace resume");
    assert!(shown.out.contains("● running       a"), "{shown:#?}");
}

#[test]
fn a_deliverable_that_cannot_be_saved_is_still_printed() {
    let user = CliUser::new();
    user.write_file("plan.yaml", &CHAIN.replace("final: true", "parameters: {bytes: 20}, final: true"));
    let done = user.run_command(&["run", "--plan", "plan.yaml", "--out", &"x".repeat(300)]);
    done.assert_exit_code(4)
        .assert_stderr_contains("the run has ended; `millrace show ")
        .assert_stderr_contains("File name too long");
    assert!(done.out.contains("The mill race turns"), "{done:#?}");
}

#[test]
fn a_detached_cluster_runs_what_is_submitted_and_ended_runs_are_watched_without_it() {
    let user = CliUser::new();
    user.write_file("plan.yaml", SHORT);
    user.run_command(&["submit", "--plan", "plan.yaml", "--out", "report.md"])
        .assert_exit_code(2)
        .assert_stderr_contains("needs --wait");
    let up = ["up", "--detach", "--workers", "1"];
    user.run_command(&up).assert_exit_code(0).assert_stderr_contains("cluster is running on nats://");
    user.run_command(&["up", "--detach"])
        .assert_exit_code(0)
        .assert_stderr_contains("already running on nats://");

    let waited = user.run_command(&["submit", "--plan", "plan.yaml", "--wait", "--out", "report.md"]);
    waited.assert_exit_code(0).assert_stderr_contains("submitted run ");
    assert!(user.read_file("report.md").contains("The mill race"), "{waited:?}");
    let (_, rest) = waited.err.split_once("submitted run ").unwrap();
    let ended = rest.split_whitespace().next().unwrap();
    user.write_file(
        "plan.yaml",
        &SHORT.replace("parameters: {}", "limits: {max_attempts: 1}, parameters: {fail_rate: 1}"),
    );
    user.run_command(&["submit", "--plan", "plan.yaml", "--wait"]).assert_exit_code(1);
    user.write_file("plan.yaml", LONG);
    let unfinished = user.run_command(&["submit", "--plan", "plan.yaml"]);
    unfinished.assert_exit_code(0);
    user.wait_for_task_state(unfinished.out.trim(), "a", "running");
    user.run_command(&["down"]).assert_exit_code(0);

    let watched = user.run_command(&["watch", ended]);
    watched.assert_exit_code(0);
    assert!(watched.out.contains("The mill race"), "{watched:?}");
    let watched = user.run_command(&["watch", unfinished.out.trim()]);
    watched.assert_exit_code(4).assert_stderr_contains("is unfinished, and no cluster is running on");
}

// ---- settings ----

/// The setting with this name in the output of `millrace config --json`.
fn find_setting<'a>(config: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let mut settings = config["settings"].as_array().unwrap().iter();
    settings.find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("no {name}: {config:#}"))
}

fn read_config(command: &mut std::process::Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A user with settings of every kind: in the environment, `.env`, a profile and the top of two files.
fn user_with_settings() -> CliUser {
    let user = CliUser::new();
    for folder in ["project/sub", "home/.config/millrace"] {
        fs::create_dir_all(user.path_of(folder)).unwrap();
    }
    user.write_file(
        "project/millrace.toml",
        "slots = 1\nlog = 'project'\ngrace = '1s'\nprices = 'p.toml'\n[profile.staging]\nslots = 2\nlog = 'staging'\ngrace = '2s'\n",
    );
    user.write_file(
        "home/.config/millrace/millrace.toml",
        "linger = '9s'\nslots = 9\n[profile.own]\nlinger = '8s'\n",
    );
    user.write_file(
        "project/sub/.env",
        "# keys\nMILLRACE_LOG=dotenv\nMILLRACE_GRACE=3s\nOPENAI_API_KEY=sk-1\nPATH=/evil\n",
    );
    user
}

fn config_command(user: &CliUser, arguments: &[&str]) -> std::process::Command {
    let mut command = user.millrace_command(&[&["config", "--json"], arguments].concat());
    command.current_dir(user.path_of("project/sub")).env("HOME", user.path_of("home"));
    command.env_remove("XDG_CONFIG_HOME").env("MILLRACE_GRACE", "4s").env("MILLRACE_NATS_PASSWORD", "hush");
    command.env_remove("OPENAI_API_KEY");
    command
}

#[test]
fn settings_are_taken_from_the_first_place_that_has_them() {
    let user = user_with_settings();
    let config = read_config(&mut config_command(&user, &["--profile", "staging"]));
    assert_eq!(config["profile"], "staging");
    assert_eq!(config["files"].as_array().unwrap().len(), 3, "{config:#}");
    let project = user.path_of("project/millrace.toml").display().to_string();
    let dotenv = user.path_of("project/sub/.env").display().to_string();
    let own = user.path_of("home/.config/millrace/millrace.toml").display().to_string();
    for (name, value, source) in [
        ("MILLRACE_GRACE", "4s", serde_json::json!({"type": "environment"})),
        ("MILLRACE_LOG", "dotenv", serde_json::json!({"type": "file", "file": dotenv, "line": 2})),
        (
            "MILLRACE_SLOTS",
            "2",
            serde_json::json!({"type": "file", "file": project, "line": 6, "profile": "staging"}),
        ),
        ("MILLRACE_LINGER", "9s", serde_json::json!({"type": "file", "file": own, "line": 1})),
    ] {
        let setting = find_setting(&config, name);
        assert_eq!((&setting["value"], &setting["source"]), (&value.into(), &source), "{name}");
    }
    let prices = user.path_of("project/p.toml").display().to_string();
    assert_eq!(find_setting(&config, "MILLRACE_PRICES")["value"], prices, "relative to the file");
    for name in ["OPENAI_API_KEY", "MILLRACE_NATS_PASSWORD"] {
        let secret = find_setting(&config, name);
        assert!(secret["value"].is_null() && secret["secret"] == true, "{secret}");
    }
    assert!(!config.to_string().contains("sk-1") && !config.to_string().contains("/evil"), "{config:#}");

    let by_variable = read_config(config_command(&user, &[]).env("MILLRACE_PROFILE", "own"));
    assert_eq!(find_setting(&by_variable, "MILLRACE_LINGER")["value"], "8s");
    let none = read_config(config_command(&user, &[]).env("MILLRACE_CONFIG", "none"));
    assert_eq!(find_setting(&none, "MILLRACE_SLOTS")["source"]["type"], "default");
    let only = read_config(config_command(&user, &[]).env("MILLRACE_CONFIG", &own));
    assert_eq!(find_setting(&only, "MILLRACE_SLOTS")["value"], "9");
}

#[test]
fn settings_in_files_reach_commands_and_options_override_them() {
    let user = CliUser::new();
    user.write_file(
        "millrace.toml",
        "nats_url = 'nats://127.0.0.1:1'\n[profile.two]\nnats_url = 'nats://127.0.0.1:2'\n",
    );
    let list = |arguments: &[&str], url: Option<&str>| {
        let mut command = user.millrace_command(&[&["list"], arguments].concat());
        url.map(|url| command.env("MILLRACE_NATS_URL", url));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, url, port) in [
        (&[][..], None, "127.0.0.1:1"),
        (&["--profile", "two"], None, "127.0.0.1:2"),
        (&["--profile", "two"], Some("nats://127.0.0.1:3"), "127.0.0.1:3"),
        (&["--nats", "nats://127.0.0.1:4"], Some("nats://127.0.0.1:3"), "127.0.0.1:4"),
        (&[], Some(""), "127.0.0.1:1"),
    ] {
        let error = list(arguments, url);
        assert!(error.contains(port), "{arguments:?} {url:?}: {error}");
    }
}

#[test]
fn mistakes_in_settings_are_refused_with_file_and_line() {
    let user = CliUser::new();
    let refused = |file: &str, text: &str, arguments: &[&str], what: &str| {
        user.write_file(file, text);
        let output = user.run_command(arguments);
        output.assert_exit_code(2).assert_stderr_contains(what);
        fs::remove_file(user.path_of(file)).unwrap();
    };
    refused(
        "millrace.toml",
        "\nnats_ulr = 'x'\n",
        &["list"],
        "millrace.toml:2: unknown key \"nats_ulr\"; did you mean \"nats_url\"?",
    );
    refused(
        "millrace.toml",
        "[profile.staging]\n",
        &["list", "--profile", "stagin"],
        "(profiles: staging); did you mean \"staging\"?",
    );
    refused(
        "millrace.toml",
        "nats_server = './evil'\n",
        &["list"],
        "millrace.toml:1: \"nats_server\" names a program",
    );
    refused(
        ".env",
        "A=b\nMILLRACE_MODLE=x\n",
        &["list"],
        ".env:2: unknown variable MILLRACE_MODLE; did you mean \"MILLRACE_MODEL\"?",
    );
    refused(".env", "\"", &["config"], ".env:1: expected NAME=VALUE");
    user.write_file("millrace.toml", "slots = 1\n");
    fs::set_permissions(user.path_of("millrace.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    user.run_command(&["list"]).assert_exit_code(2).assert_stderr_contains("every user may write");
    user.run_command(&["completions", "bash"]).assert_exit_code(0);
}

#[test]
fn files_of_a_folder_can_run_nothing_and_get_no_credentials() {
    let user = CliUser::new();
    user.write_file("pip.py", "open('was-run', 'w').write('1')");
    user.run_command(&["doctor"]);
    assert!(!user.path_of("was-run").exists(), "a module in the working folder was run");

    let key = ("OPENAI_API_KEY", "sk-of-the-environment");
    let compatible = ("OPENAI_COMPATIBLE_API_KEY", "of-the-environment");
    let password = ("MILLRACE_NATS_PASSWORD", "of-the-environment");
    for (file, text, variable, part) in [
        (".env", "OPENAI_BASE_URL=http://127.0.0.1:1/v1\n", Some(key), "OPENAI_API_KEY of the environment"),
        (".env", "MILLRACE_RECORD=requests\n", None, "a file to write"),
        ("millrace.toml", "record = 'requests'\n", None, "a file to write"),
        ("millrace.toml", "nats_url = 'nats://127.0.0.1:1'\n", Some(password), "MILLRACE_NATS_PASSWORD of"),
        (
            "millrace.toml",
            "model = 'openai-compatible:m@http://127.0.0.1:1/v1'\n",
            Some(compatible),
            "OPENAI_COMPATIBLE_API_KEY of",
        ),
    ] {
        user.write_file(file, text);
        let mut command = user.millrace_command(&["list"]);
        let output = command.envs(variable).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("{file}:1")) && error.contains(part), "{error}");
        std::fs::remove_file(user.path_of(file)).unwrap();
    }
}

#[test]
fn settings_of_another_user_above_the_folder_are_ignored_with_one_line() {
    let user = CliUser::new();
    user.write_file("millrace.toml", "slots = 'not a number'\n");
    std::fs::create_dir(user.path_of("below")).unwrap();
    if std::os::unix::fs::chown(user.path_of("millrace.toml"), Some(54_321), None).is_err() {
        return println!("skipped: only root can give a file to another user");
    }
    let list = |folder: &str| {
        let output = user.millrace_command(&["list"]).current_dir(user.path_of(folder)).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = list("below");
    assert!(code == Some(4) && error.contains("no cluster is running on"), "{error}");
    let warnings: Vec<&str> = error.lines().filter(|line| line.contains("ignoring")).collect();
    let [warning] = warnings.as_slice() else { panic!("{error}") };
    assert!(warning.contains("millrace.toml") && warning.contains("(id 54321)"), "{warning}");
    let (code, error) = list("");
    assert!(code == Some(2) && error.contains("belongs to another user (id 54321)"), "{error}");
}

#[test]
fn empty_variables_count_as_unset() {
    let user = CliUser::new();
    let mut command = user.millrace_command(&["list"]);
    for name in ["MILLRACE_NATS_URL", "MILLRACE_LOG", "MILLRACE_PROFILE", "MILLRACE_CONFIG"] {
        command.env(name, "");
    }
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && error.contains("no cluster is running on"), "{error}");
    let mut worker =
        user.millrace_command(&["worker", "--nats", "nats://127.0.0.1:1", "--capability", "none.yaml"]);
    let output = worker.env("MILLRACE_SLOTS", "").env("MILLRACE_HTTP", "").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("none.yaml"), "the arguments are accepted: {error}");
}

// ---- completions and manual pages ----

#[test]
fn completions_of_every_shell_know_the_commands() {
    let user = CliUser::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = user.run_command(&["completions", shell]);
        output.assert_exit_code(0);
        for word in ["resume", "nats-config", "provider-timeout"] {
            assert!(output.out.contains(word), "{shell} has no {word}");
        }
    }
    let mut bash = std::process::Command::new("bash");
    user.write_file("completions", &user.run_command(&["completions", "bash"]).out);
    let Ok(output) = bash.arg("-c").arg(COMPLETE_RE).current_dir(user.path_of("")).output() else {
        return println!("skipped: no bash");
    };
    let completed = String::from_utf8_lossy(&output.stdout);
    let mut completed: Vec<&str> = completed.split_whitespace().collect();
    completed.sort_unstable();
    assert_eq!(completed, ["replay", "restore", "resume", "retention", "retry"], "{output:?}");
}

/// Completes `millrace re`, as bash does after a tab.
const COMPLETE_RE: &str = "source completions; COMP_WORDS=(millrace re); COMP_CWORD=1; \
                           _millrace millrace re millrace; echo ${COMPREPLY[@]}";

#[test]
fn manual_pages_describe_every_command_and_no_machine() {
    let user = CliUser::new();
    let mut man = user.millrace_command(&["man", "pages"]);
    man.env("HOME", user.path_of("")).env_remove("XDG_DATA_HOME");
    assert!(man.output().unwrap().status.success());
    let page = |name: &str| user.read_file(&format!("pages/{name}.1"));
    assert!(user.run_command(&["man"]).out.starts_with(page("millrace").lines().next().unwrap()));
    for command in ["run", "nats-config", "worker", "config"] {
        assert!(
            page("millrace").contains(&format!("millrace\\-{}(1)", command.replace('-', "\\-"))),
            "{command}"
        );
    }
    let run = page("millrace-run");
    let title = run.lines().find(|line| line.starts_with(".TH"));
    assert!(title.is_some_and(|title| title.contains("MILLRACE-RUN") && title.contains("1")), "{title:?}");
    for text in [r"\fB\-\-docs\fR", "MILLRACE_MODEL", "Examples:", "~/.local/share/millrace"] {
        assert!(run.contains(text), "{text}: {run}");
    }
    assert!(!fs::read_dir(user.path_of("pages")).unwrap().any(|page| {
        fs::read_to_string(page.unwrap().path()).unwrap().contains(&user.path_of("").display().to_string())
    }));
}

/// The schemas that `millrace schema` prints.
struct Schemas<'a> {
    user: &'a CliUser,
    compiled: std::collections::BTreeMap<String, jsonschema::Validator>,
}

impl Schemas<'_> {
    /// Runs a command with `--json`, checks each line of its output against the schema of the command, and returns the lines.
    fn run_and_check(&mut self, code: i32, arguments: &[&str]) -> Vec<serde_json::Value> {
        let printed = self.user.run_command(&[arguments, &["--json"]].concat());
        printed.assert_exit_code(code);
        assert!(!printed.err.contains("error: "), "errors are JSON: {printed:#?}");
        let name = arguments[0].to_owned();
        if !self.compiled.contains_key(&name) {
            let schema = self.user.run_command(&["schema", &name]);
            schema.assert_exit_code(0);
            let schema = serde_json::from_str(&schema.out).unwrap();
            self.compiled.insert(name.clone(), jsonschema::validator_for(&schema).unwrap());
        }
        let lines: Vec<serde_json::Value> = printed
            .out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {printed:#?}")))
            .collect();
        for line in &lines {
            let mistakes: Vec<String> =
                self.compiled[&name].iter_errors(line).map(|one| one.to_string()).collect();
            assert!(
                mistakes.is_empty() && line["type"].is_string(),
                "{arguments:?}: {mistakes:#?} in {line:#}"
            );
        }
        lines
    }

    /// The same for a command that prints one object.
    fn run_and_check_one(&mut self, code: i32, arguments: &[&str]) -> serde_json::Value {
        let mut lines = self.run_and_check(code, arguments);
        assert_eq!(lines.len(), 1, "{arguments:?}: {lines:#?}");
        lines.remove(0)
    }
}

#[test]
fn the_json_of_every_command_matches_its_printed_schema() {
    let user = CliUser::new();
    let mut all = Schemas { user: &user, compiled: Default::default() };
    user.write_file("plan.yaml", CHAIN);
    let run = all.run_and_check_one(0, &["run", "--plan", "plan.yaml", "--workers", "1", "--detach"]);
    assert_eq!(run["type"], "run_submitted");
    let watched = all.run_and_check(0, &["watch", "latest"]);
    let types: Vec<&str> = watched.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!((types[0], types[types.len() - 1]), ("run_started", "result"), "{types:?}");
    assert!(types.contains(&"task_completed") && types.contains(&"run_ended"), "{types:?}");
    assert_eq!(watched.last().unwrap()["task_counts"]["completed"], 3);
    let listed = all.run_and_check_one(0, &["list"]);
    assert_eq!((&listed["state"], &listed["task_counts"]["total"]), (&"completed".into(), &3.into()));
    assert_eq!(all.run_and_check_one(0, &["show", "latest"])["state"], "completed");
    assert_eq!(all.run_and_check_one(0, &["show", "latest", "b"])["task"]["id"], "b");
    assert!(all.run_and_check(0, &["replay", "latest", "--log"]).len() > 3);
    for command in
        ["status", "workers", "capabilities", "doctor", "files latest", "limits", "logs", "backup copy"]
    {
        all.run_and_check(0, &command.split(' ').collect::<Vec<_>>());
    }
    all.run_and_check_one(0, &["limits", "set", "openai:x", "--requests", "5"]);
    assert_eq!(all.run_and_check_one(0, &["limits"])["requests"]["left"], 5);
    all.run_and_check_one(0, &["limits", "clear", "openai:x"]);

    // Commands for a run, and their errors.
    user.write_file("long.yaml", LONG);
    let submitted = all.run_and_check_one(0, &["submit", "--plan", "long.yaml"]);
    let long = submitted["run"].as_str().unwrap();
    user.wait_for_task_state(long, "a", "running");
    let paused = all.run_and_check_one(0, &["pause", long]);
    assert_eq!((&paused["type"], &paused["run"]), (&"command_applied".into(), &long.into()));
    user.write_file("more.yaml", "tasks:\n  - {id: c, objective: more, capability: echo}\n");
    all.run_and_check_one(0, &["add", long, "--plan", "more.yaml"]);
    all.run_and_check_one(0, &["edit", long, "c", "--objective", "less"]);
    let wrong = "tasks:\n  - {id: d, objective: x, capability: echo, parameters: {delay_ms: soon}}\n";
    user.write_file("wrong.yaml", wrong);
    let refused = all.run_and_check_one(2, &["add", long, "--plan", "wrong.yaml"]);
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("wrong.yaml:2:") && message.contains("delay_ms"), "{message}");
    let refused = all.run_and_check_one(2, &["edit", long, "c"]);
    assert_eq!((&refused["type"], &refused["exit_code"]), (&"error".into(), &2.into()));
    assert!(refused["message"].as_str().unwrap().contains("--objective"), "{refused}");
    all.run_and_check_one(2, &["message", long, "there is no planner"]);
    all.run_and_check_one(2, &["retry", long, "nothing-like-it"]);
    all.run_and_check_one(0, &["cancel", long]);
    assert_eq!(all.run_and_check_one(2, &["show", "nothing-like-it"])["error"], "refused");
    assert_eq!(all.run_and_check_one(2, &["list", "--no-such-option"])["error"], "refused");
    assert_eq!(all.run_and_check_one(2, &["replay", "latest", "--at", "1"])["type"], "error");
    assert_eq!(all.run_and_check_one(0, &["down"])["was_running"], true);
    assert_eq!(all.run_and_check_one(0, &["restore", "copy", "--data", "other"])["archived_runs"], 1);
    assert_eq!(all.run_and_check_one(4, &["submit", "x", "--data", "nowhere"])["error"], "environment");
    all.run_and_check_one(0, &["nats-config", "--out", "nats"]);
}

#[test]
fn hints_can_be_copied() {
    let user = CliUser::new();
    let plan = "plan.yaml";
    user.write_file(plan, LONG);
    let other = user.path_of("other data");
    let data = format!("--data={}", other.display());
    let started = user.run_command(&["run", "--plan", plan, "--workers", "1", "--detach", &data]);
    started.assert_exit_code(0).assert_stderr_contains(&format!("--data '{}'", other.display()));
    let run = started.out.trim();
    user.run_command(&["list"]).assert_exit_code(4).assert_stderr_contains("millrace up`");
    // A typed data folder overrules a server in the environment.
    let mut listed = user.millrace_command(&["list", &data]);
    let listed = listed.env("MILLRACE_NATS_URL", "nats://127.0.0.1:9").output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains(run), "{listed:?}");
    let mut warned = user.millrace_command(&["run", "--plan", "no-such-plan.yaml", &data]);
    let warned = warned.env("MILLRACE_NATS_URL", "nats://127.0.0.1:9").output().unwrap();
    assert_eq!(warned.status.code(), Some(2));
    user.run_command(&["pause", run, &data]).assert_exit_code(0);
    let shown = user.run_command(&["show", run, &data]).out;
    let hint = format!("`millrace resume {run} --data '{}'`", other.display());
    assert!(shown.contains(&hint), "{shown}");
    user.run_command(&["down", &data]).assert_exit_code(0);
}

#[test]
fn background_start_reports_why_its_cluster_ended() {
    let user = CliUser::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = user.run_command(&["up", "--detach", "--api", &address]);
    failed.assert_exit_code(4).assert_stderr_contains(&format!("cannot serve the API at {address}"));
    assert!(failed.err.contains("choose another address with --api"), "{failed:#?}");
    drop(taken);
    // The advice works, and so does the same address once it is free.
    user.run_command(&["up", "--detach", "--api", &address]).assert_exit_code(0);
    user.run_command(&["down"]).assert_exit_code(0);
}

#[test]
fn resume_hint_of_a_run_with_a_capability_file_continues_it() {
    let user = CliUser::new();
    let program = "kind: command\nname: clock\ndescription: x\ncommand: [cat, go]\n";
    user.write_file("clock.yaml", program);
    user.write_file(
        "plan.yaml",
        "objective: x\ntasks:\n  - {id: a, objective: x, capability: clock, final: true}\n",
    );
    let failed = user.run_command(&["run", "--plan", "plan.yaml", "--capability", "clock.yaml"]);
    let hint = failed.err.lines().find_map(|line| line.strip_prefix("millrace: resume it: millrace "));
    let hint = hint.unwrap_or_else(|| panic!("{failed:#?}")).to_owned();
    assert!(hint.ends_with(" --capability clock.yaml"), "{hint}");
    user.write_file("go", "there it is");
    let resumed = user.run_command(&hint.split(' ').collect::<Vec<_>>());
    resumed.assert_exit_code(0).assert_stderr_contains("completed: 1 of 1 task completed");
    assert!(!resumed.err.contains("no worker provides"), "{resumed:#?}");
    // Without the file, no worker provides the capability of the run, and the command warns of it.
    let retried = ["retry", "latest", "a"];
    user.run_command(&retried).assert_exit_code(0);
    let mut waiting = CommandProcess::start(&user, &["resume", "latest"], &[]);
    waiting.wait_until_stderr("a warning", |text| text.contains("no worker provides \"clock\" yet"));
    waiting.interrupt_and_wait();
}

#[test]
fn a_service_that_refuses_connections_is_named_while_it_is_retried() {
    let user = CliUser::new();
    let service = "kind: http\nname: service\ndescription: A service.\nurl: http://127.0.0.1:9/work\n";
    user.write_file("service.yaml", service);
    let plan = "objective: ask\ntasks:\n  - {id: a, objective: ask, capability: service, final: true}\n";
    let run = user.submit_detached(plan, &["--capability", "service.yaml"]);
    let started = Instant::now();
    loop {
        let shown = user.run_command(&["show", &run]);
        if shown.out.contains("waiting for http://127.0.0.1:9/work since") {
            assert!(shown.out.contains("connection failed: connection refused"), "{shown:#?}");
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{shown:#?}");
    }
    while !user.run_command(&["list"]).out.contains("http://127.0.0.1:9/work") {
        assert!(started.elapsed() < PATIENCE, "{:#?}", user.run_command(&["list"]));
    }
    let wrong = "tasks:\n  - {id: d, objective: x, capability: echo, parameters: {delay_ms: soon}}\n";
    user.write_file("wrong.yaml", wrong);
    let refused = user.run_command(&["add", &run, "--plan", "wrong.yaml"]);
    refused.assert_exit_code(2).assert_stderr_contains("wrong.yaml:2:").assert_stderr_contains("delay_ms");
    user.run_command(&["cancel", &run]).assert_exit_code(0);
}

#[test]
fn an_answer_has_exactly_one_decision() {
    let user = CliUser::new();
    for (arguments, mistake) in [
        (&["answer", "r/t/1/1"][..], "required arguments were not provided"),
        (&["answer", "--approve"], "required arguments were not provided"),
        (&["answer", "r/t/1/1", "--approve", "--decline"], "cannot be used with"),
        (&["answer", "r/t/1/1", "--reject", "no", "--value", "3"], "cannot be used with"),
        (
            &["answer", "r/t/1/1", "--approve", "--scope", "always"],
            "possible values: once, this_call_in_run, this_tool_in_run",
        ),
        (&["answer", "r/t/1/1", "--edit", "no-such-file.json"], "no-such-file.json can't be read"),
        (&["answer", "r/t/1/1", "--edit", "-"], "standard input is not JSON"),
        (&["inbox", "--watch", "--history"], "cannot be used with"),
    ] {
        user.run_command(arguments).assert_exit_code(2).assert_stderr_contains(mistake);
    }
    // A decision that is complete gets as far as the cluster.
    user.run_command(&["answer", "r/t/1/1", "--approve"]).assert_exit_code(4);
}
