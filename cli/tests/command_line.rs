//! The command line as a user meets it: what is said of slips, of what is not there, and when the user has had enough.
//! The real `millrace` binary; each test has its own data folder, and its cluster is down when it ends.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::fs;
use std::io::pipe;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

#[path = "support/user.rs"]
mod user;

use user::{CHAIN, PATIENCE, User};

/// A task that is still there when it is looked at.
const LONG: &str = "
objective: it takes its time
tasks:
  - {id: a, objective: wait, capability: echo, parameters: {delay_ms: 600000}, final: true}
";

/// A command that the user follows on its standard error.
struct Followed {
    child: Child,
    said: std::path::PathBuf,
}

impl Followed {
    fn starts(user: &User, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let said = user.path("said");
        let mut command = user.command(arguments);
        command.envs(environment.iter().copied()).stdout(Stdio::null());
        let child = command.stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
        Self { child, said }
    }

    fn waits_until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let started = Instant::now();
        while !is_so(&self.says()) {
            assert!(started.elapsed() < PATIENCE, "{what} does not come: {}", self.says());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn says(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    /// Interrupts it, and gives its exit code.
    fn is_interrupted(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < PATIENCE, "it does not end: {}", self.says());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_interrupt_ends_whatever_waits_for_its_cluster() {
    let user = User::new();
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
        &["tell", "latest", "x"],
        &["limits"],
        &["resume"],
        &["doctor"],
    ] {
        let mut millrace = Followed::starts(&user, &[command, &["--nats", &url]].concat(), &[]);
        // It is there, and has taken the signals for its own.
        let _unanswered = silent.accept().unwrap();
        assert_eq!(millrace.is_interrupted(), Some(130), "{command:?}: {}", millrace.says());
    }
}

#[test]
fn an_interrupt_ends_a_cluster_that_is_still_starting() {
    let user = User::new();
    let python = user.path("python3");
    user.writes("python3", "#!/bin/sh\n: > asked\nexec /bin/sleep 600\n");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = user.path("");
    let none = [
        ("PATH", path.to_str().unwrap()),
        ("XDG_CACHE_HOME", path.to_str().unwrap()),
        ("MILLRACE_NATS_SERVER", ""),
    ];
    for command in [&["up"][..], &["run", "x"]] {
        let mut millrace = Followed::starts(&user, command, &none);
        millrace.waits_until("the search for a server", |_| user.path("asked").exists());
        assert_eq!(millrace.is_interrupted(), Some(130), "{command:?}: {}", millrace.says());
        fs::remove_file(user.path("asked")).unwrap();
    }
}

#[test]
fn a_closed_pipe_is_no_reason_to_panic() {
    let user = User::new();
    for arguments in [&["schema", "plan"][..], &["schema", "capability"], &["doctor"], &["doctor", "--json"]]
    {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let output = user.command(arguments).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert_ne!(output.status.code(), Some(101), "{arguments:?}");
    }
}

#[test]
fn an_address_that_is_empty_is_refused_by_its_name() {
    let user = User::new();
    for command in [&["list"][..], &["resume"]] {
        let output = user.command(command).env("MILLRACE_NATS_URL", "").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--nats"), "{said}");
    }
}

#[test]
fn a_name_that_no_worker_has_is_told() {
    let user = User::new();
    user.writes("plan.yaml", CHAIN);
    let slip =
        ["--plan", "plan.yaml", "--model", "reserch=builtin:extractive", "--budget", "critc.tokens=5k"];
    let of_model = "warning: no worker offers \"reserch\", for which a model or a budget is named; did you mean \"research\"?";
    let of_budget = "warning: no worker offers \"critc\", for which a model or a budget is named; did you mean \"critic\"?";
    user.does(&[&["run"], &slip[..]].concat()).is(0).says(of_model).says(of_budget);

    let run = user.begins(LONG, &[]);
    user.writes("plan.yaml", CHAIN);
    user.does(&[&["submit"], &slip[..]].concat()).is(0).says(of_model).says(of_budget);
    let second = user.does(&[&["run", "--workers", "3"], &slip[..]].concat());
    second.is(0).says(of_model).says(of_budget);
    second.says("of which --workers can change nothing");
    assert!(!second.err.contains("was interrupted"), "{run} goes on as it did: {second:#?}");
    user.writes("more.yaml", "tasks: [{id: later, objective: x, capability: echo, depends_on: [a]}]");
    user.does(&["add", &run, "--plan", "more.yaml"]).is(0);
    user.does(&["edit", &run, "later", "--capability", "ecco"]).is(0).says("no worker offers \"ecco\" yet");
}

#[test]
fn whoever_stops_watching_is_told_what_becomes_of_the_run() {
    let user = User::new();
    let run = user.begins(LONG, &[]);
    let mut watched = Followed::starts(&user, &["watch", &run], &[]);
    watched.waits_until("the run", |said| said.contains("a running"));
    assert_eq!(watched.is_interrupted(), Some(130));
    assert!(watched.says().contains(&format!("run {run} goes on without you")), "{}", watched.says());
    assert!(!watched.says().contains("interrupted"), "{}", watched.says());
}

#[test]
fn a_run_that_nobody_works_on_is_listed_and_that_is_said() {
    let user = User::new();
    let run = user.begins(LONG, &[]);
    user.waits_for(&run, "a", "running");
    user.does(&["down"]).is(0);
    let asleep = "no cluster runs on the data folder";
    let listed = user.does(&["list"]);
    listed.is(0).says(asleep);
    assert!(listed.out.contains(&run), "{listed:#?}");

    // A backup has the log, and of runs that are under way no summary.
    user.does(&["backup", "copy"]).is(0);
    let other = ["--data", "other"];
    user.does(&[&["restore", "copy"], &other[..]].concat()).is(0).says("`millrace up` with this data folder");
    let listed = user.does(&[&["list"], &other[..]].concat());
    listed.is(0).says(asleep);
    assert!(listed.out.contains(&format!("{run}  running")), "{listed:#?}");
    let listed = user.does(&[&["list", "--json"], &other[..]].concat());
    assert!(listed.out.contains(&format!("\"run\":\"{run}\"")), "{listed:#?}");
    let beginning = &run[..run.len() - 1];
    let shown = user.does(&[&["show", beginning], &other[..]].concat());
    shown.is(0).says(asleep);
    assert!(shown.out.contains("a  ● running"), "{shown:#?}");
}

#[test]
fn a_deliverable_that_can_not_be_saved_is_printed_all_the_same() {
    let user = User::new();
    user.writes("plan.yaml", &CHAIN.replace("final: true", "parameters: {bytes: 20}, final: true"));
    let done = user.does(&["run", "--plan", "plan.yaml", "--out", "plan.yaml/report.md"]);
    done.is(4).says("the run is over, and `millrace show ").says("can't make the folder plan.yaml");
    assert!(done.out.contains("The mill race turns"), "{done:#?}");
}
