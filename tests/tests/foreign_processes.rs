//! Processes of programs, hooks and MCP servers, however they hide from the worker, and however the attempt ends.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{EndReason, TaskSpec, TaskState};
use millrace_runtime::Bus;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster, remove_millrace_variables};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, wait_for_run_history};
use millrace_tests::processes::NamedProcesses;
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use millrace_tests::waits::TIMEOUT;
use serde_json::{Value, json};
use tempfile::TempDir;

const ZOO: &str = include_str!("foreign_processes/zoo.py");
const LOOK: &str = include_str!("foreign_processes/look.py");
/// The capabilities: a program, an agent with a hook, and an agent with an MCP server.
const STARTERS: [&str; 3] = ["program", "hook", "server"];
/// The log line of a worker that takes tasks.
const READY: &str = "ready id=";
/// The time for ending all processes; a machine under load needs most of it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The end of an attempt.
#[derive(Debug, Clone, Copy)]
enum AttemptEnding {
    Success,
    Cancel,
    Timeout,
    KilledWorker,
    Down,
}

use AttemptEnding::{Cancel, Down, KilledWorker, Success, Timeout};

/// The folder of the capability files, with the program that starts processes.
struct Zoo {
    folder: TempDir,
    attempts: u32,
}

impl Zoo {
    fn new() -> Self {
        let zoo = Self { folder: tempfile::tempdir().unwrap(), attempts: 0 };
        fs::write(zoo.path("zoo.py"), ZOO).unwrap();
        fs::write(
            zoo.path("hook.yaml"),
            "rules:\n- turns:\n  - {text: done}\n  - {text: done}\n  - {text: done}\n",
        )
        .unwrap();
        fs::write(
            zoo.path("server.yaml"),
            "rules:\n- turns:\n  - {calls: [{zoo_start: {}}]}\n  - {text: done}\n  - {text: done}\n",
        )
        .unwrap();
        for (suffix, seconds) in [("", 600), ("-short", 2)] {
            zoo.write_capabilities(suffix, seconds);
        }
        zoo
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_capabilities(&self, suffix: &str, seconds: u32) {
        let model = |name: &str| format!("script:{}", self.path(name).display());
        let agent = |name: &str| {
            let file = format!("{name}.yaml");
            json!({"name": format!("{name}{suffix}"), "description": "x", "instructions": "x", "model": model(&file)})
        };
        let program = json!({
            "kind": "command", "name": format!("program{suffix}"), "description": "x",
            "command": ["python3", "zoo.py"], "timeout": format!("{seconds}s"),
        });
        let mut hook = agent("hook");
        hook["hooks"] = json!([{
            "on": ["before_model"], "command": ["python3", "zoo.py", "hook"], "timeout_s": seconds,
        }]);
        let mut server = agent("server");
        // A shell starts the server, and each attempt has its own server.
        let script = format!("python3 {} mcp; :", self.path("zoo.py").display());
        server["mcp"] = json!([{
            "name": "zoo", "command": "sh", "args": ["-c", script], "files": {}, "timeout_s": seconds,
        }]);
        for (name, content) in STARTERS.into_iter().zip([program, hook, server]) {
            fs::write(self.path(&format!("offered-{name}{suffix}.yaml")), content.to_string()).unwrap();
        }
    }

    fn capability_arguments(&self) -> Vec<String> {
        let names = STARTERS.iter().flat_map(|name| ["", "-short"].map(|suffix| format!("{name}{suffix}")));
        let path = |name: String| self.path(&format!("offered-{name}.yaml")).display().to_string();
        names.flat_map(|name| ["--capability".to_owned(), path(name)]).collect()
    }

    /// The mark of all servers, by which their own processes are found.
    fn server_mark(&self) -> String {
        format!("8000000.{}", std::process::id())
    }

    /// Configures the next attempt. Returns the mark of its processes, an argument of all of them.
    fn prepare_attempt(&mut self, stays: bool) -> String {
        self.attempts += 1;
        let mark = format!("9{:06}.{}", self.attempts, std::process::id());
        let order = json!({"mark": mark, "stays": stays, "server": self.server_mark()});
        fs::write(self.path("next.new"), order.to_string()).unwrap();
        fs::rename(self.path("next.new"), self.path("next.json")).unwrap();
        mark
    }

    fn start_count(&self, mark: &str) -> usize {
        let started = fs::read_to_string(self.path("started")).unwrap_or_default();
        started.lines().filter(|line| *line == mark).count()
    }

    async fn wait_for_start(&self, mark: &str, count: usize) {
        wait_for_value(TIMEOUT, "the processes of an attempt", async || {
            (self.start_count(mark) >= count).then_some(())
        })
        .await;
        assert!(!processes_with(mark).is_empty());
    }
}

/// The running processes with this text in their command line.
fn processes_with(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let command_lines = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some(format!("{pid} {}", String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    command_lines.filter(|line| line.contains(mark)).collect()
}

async fn assert_none_left(what: &str, mark: &str) {
    let deadline = std::time::Instant::now() + END_LIMIT;
    loop {
        let left = processes_with(mark);
        if left.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{what} leaves {} processes: {left:#?}", left.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn task_for(capability: &str) -> TaskSpec {
    let mut task = echo_task("t", &json!({}));
    task.limits.max_attempts = 1;
    TaskSpec { capability: Capability::new(capability).unwrap(), is_final: true, ..task }
}

async fn run_attempt(
    zoo: &mut Zoo,
    cluster: &mut TestCluster,
    bus: &Bus,
    (starter, ending): (&str, AttemptEnding),
) {
    let mark = zoo.prepare_attempt(!matches!(ending, Success));
    let run = run_id(&format!("run-{}", zoo.attempts));
    let what = format!("attempt {} of {starter} that ends by {ending:?}", zoo.attempts);
    let suffix = if matches!(ending, Timeout) { "-short" } else { "" };
    submit_run(bus, &run, &fixed_submission(vec![task_for(&format!("{starter}{suffix}"))])).await;
    zoo.wait_for_start(&mark, 1).await;
    let cancel = || cluster.millrace_command().args(["cancel", run.as_str()]).output().unwrap();
    match ending {
        Success | Timeout => {}
        Cancel => assert!(cancel().status.success()),
        KilledWorker => {
            cluster.kill_process("worker-1");
            assert_none_left(&what, &mark).await;
            assert_none_left(&what, &zoo.server_mark()).await;
            assert!(
                cluster.millrace_command().args(["cancel", run.as_str()]).output().unwrap().status.success()
            );
            let starts = cluster.read_log("worker-1").matches(READY).count();
            cluster.restart_process("worker-1");
            cluster.wait_for_log_again("worker-1", READY, starts, TIMEOUT).await;
        }
        Down => unreachable!("not in this cluster"),
    }
    let history = wait_for_run_history(bus, &run, TIMEOUT).await;
    assert_none_left(&what, &mark).await;
    let plan = history.folded_plan();
    let (reason, state) = (plan.run.end.as_ref().unwrap().reason, plan.tasks()[0].state());
    match ending {
        Success => assert_eq!((reason, state), (EndReason::Completed, TaskState::Completed), "{what}"),
        Cancel | KilledWorker => assert_eq!(reason, EndReason::Cancelled, "{what}"),
        // A model reads that its call timed out, and ends well.
        Timeout => assert_eq!(reason == EndReason::Completed, starter == "server", "{what}: {reason:?}"),
        Down => {}
    }
}

/// A cluster that `millrace up` started. It is stopped on drop.
struct LocalCluster<'a> {
    folder: &'a Path,
    data: PathBuf,
}

impl LocalCluster<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command.current_dir(self.folder).args(arguments).arg("--data").arg(&self.data);
        command.stdin(std::process::Stdio::null());
        command
    }

    fn run_successfully(&self, arguments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for LocalCluster<'_> {
    fn drop(&mut self) {
        // Not running any more, unless the test failed.
        drop(self.command(&["down"]).output());
    }
}

/// Runs `count` attempts at once in a local cluster, and stops it.
async fn stop_cluster_with_attempts(zoo: &mut Zoo, count: usize) {
    let mark = zoo.prepare_attempt(true);
    let capabilities = zoo.capability_arguments();
    let data = zoo.path(&format!("data-{}", zoo.attempts));
    let cluster = LocalCluster { folder: zoo.folder.path(), data };
    let up = ["up", "--detach", "--workers", "1", "--slots", "16"];
    cluster
        .run_successfully(&[&up[..], &capabilities.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let plans = STARTERS.map(|starter| write_plan(zoo.folder.path(), starter));
    for number in 0..count {
        cluster.run_successfully(&["submit", "--plan", &plans[number % 3]]);
    }
    zoo.wait_for_start(&mark, count).await;
    cluster.run_successfully(&["down"]);
    let what = format!("{count} attempts that end by {Down:?}");
    assert_none_left(&what, &mark).await;
    assert_none_left(&what, &zoo.server_mark()).await;
}

fn write_plan(folder: &Path, starter: &str) -> String {
    let path = folder.join(format!("plan-{starter}.json"));
    let task = json!({"id": "t", "objective": "x", "capability": starter});
    fs::write(&path, json!({"objective": "x", "mode": "fixed", "tasks": [task]}).to_string()).unwrap();
    path.display().to_string()
}

/// Attempts of every kind of program, each with processes in sessions of their own, without an environment, that ignore signals,
/// fork twice, run below shells, restart processes that were killed, and hold pipes open. `MILLRACE_FOREIGN_ATTEMPTS=200` is the long form.
#[tokio::test(flavor = "multi_thread")]
#[cfg(target_os = "linux")]
async fn no_foreign_process_outlives_its_attempt() {
    let _shared = share_machine();
    let attempts: usize =
        std::env::var("MILLRACE_FOREIGN_ATTEMPTS").ok().and_then(|it| it.parse().ok()).unwrap_or(15);
    let mut zoo = Zoo::new();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let arguments = zoo.capability_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    cluster.start_process(ProcessRole::Worker, "worker-1", &arguments);
    let bus = cluster.connect_bus().await;
    let endings = [Success, Cancel, Timeout, KilledWorker];
    let by_down = attempts / 5;
    for number in 0..attempts - by_down {
        let case = (STARTERS[number % 3], endings[number / 3 % 4]);
        run_attempt(&mut zoo, &mut cluster, &bus, case).await;
    }
    cluster.stop_all();
    assert_none_left("a worker that stops", &zoo.server_mark()).await;
    let rounds = by_down.div_ceil(8);
    for round in 0..rounds {
        stop_cluster_with_attempts(&mut zoo, by_down.saturating_sub(round * 8).min(8)).await;
    }
    eprintln!("{attempts} attempts left no process");
}

/// A program looks for the key of its worker, which has many variables: as the user of this test, and as another user if this one is root.
#[tokio::test(flavor = "multi_thread")]
#[cfg(target_os = "linux")]
async fn no_program_reads_the_keys_of_its_worker() {
    let _shared = share_machine();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let allow = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    allow(folder.path());
    fs::write(path("look.py"), LOOK).unwrap();
    fs::copy(millrace_program(), path("millrace")).unwrap();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let bus = cluster.connect_bus().await;
    for user in if is_root { &["", "65534"][..] } else { &[""] } {
        let name = format!("look{user}");
        let capability = json!({
            "kind": "command", "name": name, "description": "x", "environment": ["PASSED_ON"],
            "command": ["python3", "look.py", "planted-", "key-4f9a", name],
        });
        fs::write(path(&format!("{name}.yaml")), capability.to_string()).unwrap();
        let (program, file, home) =
            (path("millrace"), path(&format!("{name}.yaml")), path(&format!("home{user}")));
        fs::create_dir(&home).unwrap();
        allow(&home);
        let connection: Vec<_> = cluster.millrace_command().get_envs().map(own_variable).collect();
        NamedProcesses::start_process(&mut cluster, ProcessRole::Worker, &name, move |id| {
            let mut command = Command::new(&program);
            if !user.is_empty() {
                command = Command::new("setpriv");
                command
                    .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
                    .arg(&program);
            }
            let mut command = remove_millrace_variables(command);
            command.args(["worker", "--id", id, "--capability"]).arg(&file);
            command.envs(connection.clone()).env("HOME", &home).env("MILLRACE_DATA", &home);
            command.env("MILLRACE_DOCUMENT_CACHE", &home).env("OPENAI_API_KEY", "planted-key-4f9a");
            command.envs((0..2_000).map(|number| (format!("VARIABLE_{number}"), "x".repeat(50))));
            command.env("PASSED_ON", "passed on");
            command
        });
        let run = run_id(&format!("run-{name}"));
        submit_run(&bus, &run, &fixed_submission(vec![task_for(&name)])).await;
        let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
        let log = cluster.read_log(&name);
        assert_eq!(history.folded_plan().run.end.as_ref().unwrap().reason, EndReason::Completed, "{log}");
        let found: Value = serde_json::from_slice(&fs::read(path(&name)).unwrap()).unwrap();
        assert_eq!(
            (&found["shown"], &found["passed_on"]),
            (&json!([]), &json!("passed on")),
            "{user}: {found}"
        );
        let above = |field: &str| found[field].as_array().unwrap().contains(&json!(cluster.pid(&name)));
        assert!(above("above") && (is_root && user.is_empty() || !above("opened")), "{user}: {found}");
        assert!(!log.contains("cannot hide the environment"), "{log}");
    }
}

#[cfg(target_os = "linux")]
fn own_variable((name, value): (&OsStr, Option<&OsStr>)) -> (OsString, OsString) {
    (name.to_owned(), value.unwrap_or_default().to_owned())
}
