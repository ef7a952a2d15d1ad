//! A store written by release 0.4.0, killed in the middle of a run, is opened by the current programs: the state folds
//! to the same bytes, and the run resumes and completes.
//!
//! The store (`tests/fixtures/store-0.4.0`) holds two runs. `20261122-191821-…` is archived. `20261122-191822-ycx1mv` is a
//! hybrid run with documents, a budget, a message of a user and a planner's turn. When every process was killed, `apache`
//! was completed, `microsoft` was completed in its second attempt (its first result was rejected), `mozilla` was running
//! with two turns in its journal, the review of `mit` was running, and `report` was pending.
//!
//! # Invariants
//!
//! - I61: A store of 0.4.0, killed in the middle of a run, folds to the same state, and its run completes.
//!   (`tests/tests/stored_by_0_4.rs::a_store_of_0_4_folds_to_the_same_state_and_its_run_completes`)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_tests::cluster::{
    create_file, find_tagged_processes, remove_millrace_variables, set_process_tag,
};
use millrace_tests::program::millrace_program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const RUN: &str = "20261122-191822-ycx1mv";
/// The sequence of the last decision that 0.4.0 wrote for the run.
const LAST_DECISION: &str = "73";
const TIMEOUT: Duration = Duration::from_secs(120);

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/store-0.4.0").join(name)
}

/// A data folder with the store, and the processes started on it. Dropping it kills them.
struct DataFolder {
    folder: TempDir,
}

impl DataFolder {
    fn unpack_fixture() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let unpacked =
            Command::new("tar").arg("-xzf").arg(fixture_path("store.tar.gz")).arg("-C").arg(&data).status();
        assert!(unpacked.unwrap().success(), "tar cannot unpack the store");
        Self { folder }
    }

    fn process_tag(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn millrace_command(&self, arguments: &[&str]) -> Command {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        set_process_tag(&mut command, &self.process_tag());
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MILLRACE_DATA", self.folder.path().join("data"));
        command.env("MILLRACE_DOCUMENT_CACHE", self.folder.path().join("documents"));
        command
    }

    fn run_command(&self, arguments: &[&str]) -> Output {
        self.millrace_command(arguments).output().unwrap()
    }

    fn start_cluster(&self) -> Child {
        let model = format!("script:{}", fixture_path("model.yaml").display());
        let mut command = self.millrace_command(&["up", "--model", &model]);
        command.stdout(create_file(self.folder.path(), "out")).stderr(create_file(self.folder.path(), "err"));
        let child = command.spawn().unwrap();
        let started = Instant::now();
        while !self.folder.path().join("data/cluster.json").exists() {
            let log = fs::read_to_string(self.folder.path().join("err")).unwrap_or_default();
            assert!(started.elapsed() < TIMEOUT, "the cluster does not start:\n{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
        child
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        for pid in find_tagged_processes(&self.process_tag()) {
            let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn parse_json_output(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}:\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn find_task<'a>(result: &'a Value, id: &str) -> &'a Value {
    let tasks = result["tasks"].as_array().expect("a list of tasks");
    tasks.iter().find(|task| task["id"] == id).unwrap_or_else(|| panic!("no task {id}"))
}

#[test]
fn a_store_of_0_4_folds_to_the_same_state_and_its_run_completes() {
    let data = DataFolder::unpack_fixture();
    let mut cluster = data.start_cluster();

    let state = parse_json_output(&data.run_command(&["replay", RUN, "--at", LAST_DECISION, "--json"]));
    let written: Value =
        serde_json::from_slice(&fs::read(fixture_path("state-at-73.json")).unwrap()).unwrap();
    assert_eq!(state["plan"], written["plan"], "the log of 0.4.0 folds to another state");

    let watched = data.run_command(&["watch", RUN]);
    let report = String::from_utf8_lossy(&watched.stdout);
    assert!(watched.status.success(), "{}", String::from_utf8_lossy(&watched.stderr));
    assert!(
        report.contains("[3] Mozilla Public License Version 2.0: MPL-2.0.txt, lines 100–104"),
        "{report}"
    );

    let result = parse_json_output(&data.run_command(&["show", RUN, "--json"]));
    assert_eq!(result["end"]["reason"], "completed");
    for (id, attempts) in [("apache", 1), ("microsoft", 2), ("mit", 1), ("report", 1)] {
        assert_eq!(find_task(&result, id)["state"], "completed", "{id}");
        assert_eq!(find_task(&result, id)["attempts"].as_array().unwrap().len(), attempts, "{id}");
    }
    assert_eq!(find_task(&result, "mozilla")["state"], "completed");
    // The attempt resumes after its last journaled step: three model calls in all, two of them made by 0.4.0, and one for
    // the review. Its run time is limited to a year, the maximum; an older store starts a second attempt.
    let attempts = find_task(&result, "mozilla")["attempts"].as_array().unwrap();
    if attempts.len() == 1 {
        assert_eq!(find_task(&result, "mozilla")["usage"]["model_calls"], 4);
        assert_eq!(find_task(&result, "mozilla")["usage"]["tool_calls"], 2);
    }

    let archived = data.run_command(&["list", "--json"]);
    let listed = String::from_utf8_lossy(&archived.stdout);
    let states: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an object on each line")["state"].take())
        .collect();
    assert_eq!(states, ["completed", "completed"], "both runs are listed");

    let pid = Pid::from_raw(cluster.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    cluster.wait().unwrap();
}
