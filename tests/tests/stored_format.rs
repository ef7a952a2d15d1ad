//! Stores of this format, killed in the middle of a run, are opened by the current programs: the state folds to the same
//! bytes, the run resumes and completes, and archived runs are read. Stores of other formats are refused, and nothing of
//! them is changed.
//!
//! Each folder of `tests/fixtures/stores` is a store with two runs. The first is archived. The second is a hybrid run with
//! documents, a budget, a message of a user and a planner's turn: when every process was killed, `apache` was completed, `microsoft` was
//! completed in its second attempt (its first result was rejected), `mozilla` was running with two turns in its journal,
//! the review of `mit` was running, and `report` was pending. `MILLRACE_WRITE_STORE=NAME cargo test -p millrace-tests
//! --test clusters write_store -- --ignored` writes the store of a folder that has the model and the plans. A release with
//! another way to store something gets another folder; the stores that are there are never written again.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use async_nats::jetstream;
use futures::TryStreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::wire::FORMAT;
use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::{Bus, ConnectionSettings, Fault};
use millrace_tests::cluster::{
    create_file, find_tagged_processes, remove_millrace_variables, set_process_tag,
};
use millrace_tests::plans::wait_for_archive;
use millrace_tests::program::millrace_program;
use millrace_tests::{NatsServer, ServerOptions, wait_for_value};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(120);
/// The end of the name of a stream's index, which the server writes whenever it stops.
const INDEX: &str = "index.db";
/// The buckets whose entries expire, which the server removes when it reads its store.
const EXPIRING: [&str; 3] = ["KV_beats", "KV_leases", "KV_members"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// A data folder, and the processes started on it. Dropping it kills them.
struct DataFolder {
    folder: TempDir,
    model: PathBuf,
}

impl DataFolder {
    fn new(model: PathBuf) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), model }
    }

    /// Unpacks a store.
    fn unpack(store: &Path) -> Self {
        let new = Self::new(store.join("model.yaml"));
        fs::create_dir(new.data()).unwrap();
        let store = store.join("store.tar.gz");
        let unpacked = Command::new("tar").arg("-xzf").arg(store).arg("-C").arg(new.data()).status();
        assert!(unpacked.unwrap().success(), "tar cannot unpack the store");
        new
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn process_tag(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn millrace_command(&self, arguments: &[&str]) -> Command {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        set_process_tag(&mut command, &self.process_tag());
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MILLRACE_DATA", self.data());
        command.env("MILLRACE_DOCUMENT_CACHE", self.folder.path().join("documents"));
        command
    }

    /// Runs a command to its end, and kills it if it takes too long.
    fn run_command(&self, arguments: &[&str]) -> Output {
        let mut command = self.millrace_command(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let (ended, when_ended) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || {
            if when_ended.recv_timeout(TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let output = child.wait_with_output().unwrap();
        drop(ended);
        watchdog.join().unwrap();
        output
    }

    fn run_and_parse_json(&self, arguments: &[&str]) -> Value {
        let output = self.run_command(arguments);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}:\n{}", String::from_utf8_lossy(&output.stderr)))
    }

    fn start_cluster(&self) -> Child {
        let model = format!("script:{}", self.model.display());
        let mut command = self.millrace_command(&["up", "--model", &model]);
        command.stdout(create_file(self.folder.path(), "out")).stderr(create_file(self.folder.path(), "err"));
        let child = command.spawn().unwrap();
        let started = Instant::now();
        while !self.data().join("cluster.json").exists() {
            let log = fs::read_to_string(self.folder.path().join("err")).unwrap_or_default();
            assert!(started.elapsed() < TIMEOUT, "the cluster does not start:\n{log}");
            thread::sleep(Duration::from_millis(100));
        }
        child
    }

    /// Connects to the running cluster.
    async fn connect(&self) -> Bus {
        let info: Value =
            serde_json::from_slice(&fs::read(self.data().join("cluster.json")).unwrap()).unwrap();
        let text = |name: &str| info[name].as_str().unwrap().to_owned();
        let connection = ConnectionSettings {
            credentials: Credentials::Password { user: text("user"), password: text("password") },
            ..ConnectionSettings::unauthenticated(text("url"))
        };
        Bus::join_existing_cluster(&connection, "writer", TIMEOUT).await.unwrap()
    }

    /// Returns the plan of a run after a decision.
    fn replay(&self, run: &str, at: u64) -> Value {
        self.run_and_parse_json(&["replay", run, "--at", &at.to_string(), "--json"])["plan"].take()
    }

    /// Returns the sequence of a run's last decision.
    fn last_decision(&self, run: &str) -> u64 {
        let output = self.run_command(&["replay", run, "--log", "--json"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| line["sequence"].as_u64()).max().expect("a decision")
    }

    fn kill_processes(&self) {
        for pid in find_tagged_processes(&self.process_tag()) {
            let pid = Pid::from_raw(pid.cast_signed()).expect("a process has a number");
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Returns the contents of the store's files, without those that the server itself changes.
    fn stored_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        read_files(&self.data().join("nats"), &mut files);
        files.retain(|path, _| {
            let is_of = |name: &str| path.iter().any(|part| part == name);
            !is_of(INDEX) && !EXPIRING.iter().any(|bucket| is_of(bucket))
        });
        files
    }
}

fn read_files(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_files(&path, files);
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        self.kill_processes();
    }
}

fn find_task<'a>(result: &'a Value, id: &str) -> &'a Value {
    let tasks = result["tasks"].as_array().expect("a list of tasks");
    tasks.iter().find(|task| task["id"] == id).unwrap_or_else(|| panic!("no task {id}"))
}

#[test]
fn stores_of_this_format_fold_to_the_same_state_and_their_runs_complete() {
    let stores: Vec<PathBuf> =
        fs::read_dir(fixtures().join("stores")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!stores.is_empty());
    for store in stores {
        println!("{}", store.display());
        check_store(&store);
    }
}

fn check_store(store: &Path) {
    let content: Value = serde_json::from_slice(&fs::read(store.join("content.json")).unwrap()).unwrap();
    let id = |run: &str| content[run]["run"].as_str().unwrap();
    let data = DataFolder::unpack(store);
    let mut cluster = data.start_cluster();
    for run in ["archived", "live"] {
        let plan = data.replay(id(run), content[run]["at"].as_u64().unwrap());
        assert_eq!(plan, content[run]["plan"], "the log of the {run} run folds to another state");
    }

    let run = id("live");
    let watched = data.run_command(&["watch", run]);
    let report = String::from_utf8_lossy(&watched.stdout);
    assert!(watched.status.success(), "{}", String::from_utf8_lossy(&watched.stderr));
    assert!(
        report.contains("[3] Mozilla Public License Version 2.0: MPL-2.0.txt, lines 100–104"),
        "{report}"
    );

    let result = data.run_and_parse_json(&["show", run, "--json"]);
    assert_eq!(result["end"]["reason"], "completed");
    for (id, attempts) in [("apache", 1), ("microsoft", 2), ("mozilla", 1), ("mit", 1), ("report", 1)] {
        assert_eq!(find_task(&result, id)["state"], "completed", "{id}");
        assert_eq!(find_task(&result, id)["attempts"].as_array().unwrap().len(), attempts, "{id}");
    }
    // The attempt resumes after its last journaled step: three model calls in all, two of them made before the kill.
    assert_eq!(find_task(&result, "mozilla")["usage"]["model_calls"], 3);
    assert_eq!(find_task(&result, "mozilla")["usage"]["tool_calls"], 2);

    let archived = data.run_and_parse_json(&["show", id("archived"), "--json"]);
    assert_eq!(archived["end"]["reason"], "completed");
    let listed = data.run_command(&["list", "--json"]);
    let states: Vec<Value> = String::from_utf8_lossy(&listed.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an object on each line")["state"].take())
        .collect();
    assert_eq!(states, ["completed", "completed"], "both runs are listed");

    let pid = Pid::from_raw(cluster.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    cluster.wait().unwrap();
}

/// The rules of the model that take long while a store is written.
const MOZILLA: u32 = 5;
const REVIEW_OF_MIT: u32 = 8;

/// Writes the store of a folder with the model and the plans.
#[tokio::test]
#[ignore = "writes a store that is kept"]
async fn write_store() {
    let name = std::env::var("MILLRACE_WRITE_STORE").expect("MILLRACE_WRITE_STORE names the folder");
    let folder = fixtures().join("stores").join(name);
    assert!(!folder.join("store.tar.gz").exists(), "a store that is there is never written again");
    let mut data = DataFolder::new(PathBuf::new());
    let rules = fs::read_to_string(folder.join("model.yaml")).unwrap();
    data.model = data.folder.path().join("model.yaml");
    let slow = rules.replace("delay: 0 #", "delay: 600 #");
    fs::write(&data.model, format!("ledger: requests.log\n{slow}")).unwrap();
    let mut cluster = data.start_cluster();
    let bus = data.connect().await;

    let licences = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences");
    let docs = data.folder.path().join("licences");
    fs::create_dir(&docs).unwrap();
    for licence in ["Apache-2.0.txt", "MS-PL.txt", "MPL-2.0.txt", "MIT.txt"] {
        fs::copy(licences.join(licence), docs.join(licence)).unwrap();
    }
    let submit = |plan: &str| {
        let plan = folder.join(plan).display().to_string();
        let arguments = ["submit", "--plan", &plan, "--docs", docs.to_str().unwrap(), "--json"];
        let line = data.run_and_parse_json(&arguments);
        RunId::new(line["run"].as_str().unwrap()).unwrap()
    };
    let ended = submit("ended.yaml");
    wait_for_archive(&bus, &ended, TIMEOUT).await;
    let live = submit("plan.yaml");
    let told = data.run_command(&["message", live.as_str(), "Look at MIT, too, and write a report."]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let log = data.folder.path().join("requests.log");
    wait_for_value(TIMEOUT, "the last turn of mozilla and the review of mit", async || {
        let requests = fs::read_to_string(&log).unwrap_or_default();
        let has = |rule: u32, turn: u32| {
            let is_it = |line: &Value| line["rule"] == rule && line["turn"] == turn;
            requests.lines().filter_map(|line| serde_json::from_str(line).ok()).any(|line| is_it(&line))
        };
        let shown = data.run_and_parse_json(&["show", live.as_str(), "--json"]);
        let state = |task: &str| find_task(&shown, task)["state"].clone();
        let is_cut_off = has(MOZILLA, 3) && has(REVIEW_OF_MIT, 1);
        let is_ready = || state("microsoft") == "completed" && state("mit") == "needs_review";
        (is_cut_off && is_ready()).then_some(())
    })
    .await;
    let state = |run: &RunId| {
        let at = data.last_decision(run.as_str());
        json!({"run": run, "at": at, "plan": data.replay(run.as_str(), at)})
    };
    let content = json!({"archived": state(&ended), "live": state(&live)});
    data.kill_processes();
    cluster.wait().unwrap();
    let archive = folder.join("store.tar.gz");
    let packed = Command::new("tar").arg("-czf").arg(archive).arg("-C").arg(data.data()).arg("nats").status();
    assert!(packed.unwrap().success(), "tar cannot pack the store");
    let text = serde_json::to_string_pretty(&content).unwrap() + "\n";
    fs::write(folder.join("content.json"), text).unwrap();
}

/// The refusal of a store of release 0.4.0, after the name of what refuses it.
fn refusal() -> String {
    format!(
        "has a cluster that was written by a release before 0.5 (format 1; this release has format {FORMAT}), and release \
         0.4.x can finish its runs; nothing was changed; use another account or data folder\n"
    )
}

#[test]
fn commands_refuse_a_store_of_0_4_and_change_nothing() {
    let data = DataFolder::unpack(&fixtures().join("store-0.4.0"));
    let before = data.stored_files();
    assert!(before.len() > 20, "{} files", before.len());
    let docs = data.folder.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("tarn.md"), "It weighs 1.4 kg.\n").unwrap();
    for arguments in [
        &["up", "--model", "builtin:extractive"][..],
        &["run", "What does it weigh?", "--docs", "docs"],
        &["resume", "20261122-191822-ycx1mv"],
        &["list"],
        &["show", "20261122-191821"],
        &["cancel", "20261122-191822-ycx1mv"],
        &["backup", "copy"],
    ] {
        let output = data.run_command(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {errors}");
        assert!(errors.contains("error: ") && errors.ends_with(&refusal()), "{arguments:?}: {errors}");
        let after = data.stored_files();
        let changed: Vec<&PathBuf> = after
            .iter()
            .filter(|(path, bytes)| before.get(*path) != Some(bytes))
            .map(|(path, _)| path)
            .chain(before.keys().filter(|path| !after.contains_key(*path)))
            .collect();
        assert!(changed.is_empty(), "{arguments:?} changed {changed:?}");
    }
    assert!(!data.folder.path().join("copy").exists(), "no backup is left");
}

/// The configuration, the number of messages and the sequences of each stream whose messages do not expire.
async fn describe_streams(context: &jetstream::Context) -> Vec<String> {
    let infos: Vec<jetstream::stream::Info> = context.streams().try_collect().await.unwrap();
    let lasting = infos.into_iter().filter(|info| !EXPIRING.contains(&info.config.name.as_str()));
    let mut streams: Vec<String> = lasting
        .map(|info| {
            let (config, state) = (serde_json::to_string(&info.config).unwrap(), info.state);
            let jetstream::stream::State { messages, first_sequence, last_sequence, consumer_count, .. } = state;
            format!("{config}: {messages} messages, {first_sequence} to {last_sequence}, {consumer_count} consumers")
        })
        .collect();
    streams.sort();
    streams
}

#[tokio::test]
async fn programs_refuse_to_join_a_cluster_of_0_4_and_change_nothing() {
    let data = DataFolder::unpack(&fixtures().join("store-0.4.0"));
    let options = ServerOptions { store: Some(data.data().join("nats")), ..ServerOptions::default() };
    let server = NatsServer::start_with_options(&options);
    let context = jetstream::new(async_nats::connect(&server.url).await.unwrap());
    let before = describe_streams(&context).await;
    assert!(before.len() > 5, "{before:?}");
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let requested = ClusterOptions::default();
    let joined: [Result<Bus, Fault>; 2] = [
        Bus::join_existing_cluster(&connection, "worker", TIMEOUT).await,
        Bus::connect_and_ensure_cluster(&connection, "supervisor", &requested).await,
    ];
    for result in joined {
        let fault = result.err().expect("it is refused").to_string();
        assert_eq!(fault + "\n", format!("the NATS server at {} {}", server.url, refusal()));
    }
    for role in ["worker", "critic", "supervisor"] {
        let mut command = data.millrace_command(&[role, "--nats", &server.url]);
        if role == "worker" {
            command.args(["--capability", "echo"]);
        }
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{role}: {errors}");
        assert!(errors.ends_with(&refusal()), "{role}: {errors}");
    }
    assert_eq!(describe_streams(&context).await, before);
}
