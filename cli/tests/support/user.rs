//! A simulated user with a data folder: runs commands and checks their output.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::MILLRACE;

pub const PATIENCE: Duration = Duration::from_secs(120);

/// A user with a data folder.
pub struct CliUser {
    folder: TempDir,
}

impl CliUser {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path_of(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn millrace_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(MILLRACE);
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MILLRACE_DATA", self.path_of("data")).env("LOGNAME", "bea");
        for name in ["MILLRACE_NATS_URL", "MILLRACE_MODEL", "MILLRACE_RECORD"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command, with a timeout.
    pub fn run_command(&self, arguments: &[&str]) -> CommandOutput {
        let file = |name: &str| fs::File::create(self.path_of(name)).unwrap();
        let mut command = self.millrace_command(arguments);
        let mut child = command.stdout(file("out")).stderr(file("err")).spawn().unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{arguments:?} does not end; stderr: {}", self.read_file("err"));
            }
            std::thread::park_timeout(Duration::from_millis(5));
        };
        let (out, err) = (self.read_file("out"), self.read_file("err"));
        CommandOutput { command: arguments.join(" "), code: status.code(), out, err }
    }

    pub fn read_file(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path_of(name)).unwrap()).into_owned()
    }

    pub fn write_file(&self, name: &str, text: &str) {
        fs::write(self.path_of(name), text).unwrap();
    }

    /// Submits a plan to a cluster in the background and returns the run id.
    pub fn submit_detached(&self, plan: &str, more: &[&str]) -> String {
        self.write_file("plan.yaml", plan);
        let begun =
            self.run_command(&[&["run", "--plan", "plan.yaml", "--workers", "1", "--detach"], more].concat());
        begun.assert_exit_code(0);
        begun.out.trim().to_owned()
    }

    pub fn show_run_json(&self, run: &str) -> Value {
        let shown = self.run_command(&["show", run, "--json"]);
        serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
    }

    /// Waits until a task of a run is in a state.
    pub fn wait_for_task_state(&self, run: &str, task: &str, state: &str) {
        let started = Instant::now();
        loop {
            let shown = self.show_run_json(run);
            let tasks = shown["tasks"].as_array().unwrap();
            if tasks.iter().any(|one| one["id"] == task && one["state"] == state) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{task} is never {state}: {shown:#}");
        }
    }
}

impl Drop for CliUser {
    fn drop(&mut self) {
        drop(self.millrace_command(&["down"]).output());
    }
}

/// The output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub command: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    #[track_caller]
    pub fn assert_exit_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub fn assert_stderr_contains(&self, text: &str) -> &Self {
        assert!(self.err.contains(text), "{text:?} is not in the output: {self:#?}");
        self
    }

    /// Standard error is exactly this line.
    #[track_caller]
    pub fn assert_stderr_is(&self, text: &str) -> &Self {
        assert_eq!(self.err.trim_end(), text, "{}", self.command);
        self
    }
}

/// A chain of three tasks; the last one is final.
pub const CHAIN: &str = "
objective: one after the other
tasks:
  - {id: a, objective: begin, capability: echo, parameters: {delay_ms: 50}}
  - {id: b, objective: go on, capability: echo, depends_on: [a], parameters: {delay_ms: 1500}}
  - {id: c, objective: end, capability: echo, depends_on: [b], final: true}
";
