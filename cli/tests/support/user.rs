//! A user with a data folder of their own, for tests of the command: does what is asked, and looks at what comes of it.

#![allow(dead_code, reason = "each test that has a user needs something else of them")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A user with a data folder.
pub struct User {
    folder: TempDir,
}

impl User {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(MILLRACE);
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MILLRACE_DATA", self.path("data")).env("LOGNAME", "bea");
        for name in ["MILLRACE_NATS_URL", "MILLRACE_MODEL", "MILLRACE_RECORD"] {
            command.env_remove(name);
        }
        command
    }

    /// Does it, and does not wait for ever.
    pub fn does(&self, arguments: &[&str]) -> Done {
        let file = |name: &str| fs::File::create(self.path(name)).unwrap();
        let mut command = self.command(arguments);
        let mut child = command.stdout(file("out")).stderr(file("err")).spawn().unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{arguments:?} does not end; it said: {}", self.reads("err"));
            }
            std::thread::park_timeout(Duration::from_millis(5));
        };
        let (out, err) = (self.reads("out"), self.reads("err"));
        Done { command: arguments.join(" "), code: status.code(), out, err }
    }

    pub fn reads(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap()).into_owned()
    }

    pub fn writes(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Hands a plan in to a cluster that goes on in the background; gives the run.
    pub fn begins(&self, plan: &str, more: &[&str]) -> String {
        self.writes("plan.yaml", plan);
        let begun =
            self.does(&[&["run", "--plan", "plan.yaml", "--workers", "1", "--detach"], more].concat());
        begun.is(0);
        begun.out.trim().to_owned()
    }

    pub fn shows(&self, run: &str) -> Value {
        let shown = self.does(&["show", run, "--json"]);
        serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
    }

    /// Waits until a task of a run is in a state.
    pub fn waits_for(&self, run: &str, task: &str, state: &str) {
        let started = Instant::now();
        loop {
            let shown = self.shows(run);
            let tasks = shown["tasks"].as_array().unwrap();
            if tasks.iter().any(|one| one["id"] == task && one["state"] == state) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{task} is never {state}: {shown:#}");
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        drop(self.command(&["down"]).output());
    }
}

/// What a command said.
#[derive(Debug)]
pub struct Done {
    pub command: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    #[track_caller]
    pub fn is(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(self.err.contains(text), "{text:?} is not among what was said: {self:#?}");
        self
    }

    /// Says exactly this, in one line.
    #[track_caller]
    pub fn says_only(&self, text: &str) -> &Self {
        assert_eq!(self.err.trim_end(), text, "{}", self.command);
        self
    }
}

/// Three tasks in a row, the last of them final.
pub const CHAIN: &str = "
objective: one after the other
tasks:
  - {id: a, objective: begin, capability: echo, parameters: {delay_ms: 50}}
  - {id: b, objective: go on, capability: echo, depends_on: [a], parameters: {delay_ms: 1500}}
  - {id: c, objective: end, capability: echo, depends_on: [b], final: true}
";
