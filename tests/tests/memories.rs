//! Memories through processes: what an agent stores in one run is in the prompt of the next one, and `millrace memories` shows,
//! attributes and removes it.

use std::fs;
use std::process::Output;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Submission, TaskSpec};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, wait_for_run_history};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);

/// An agent that looks the colour up and stores it, unless it remembers it.
const SCRIPT: &str = "\
rules:
- when: {system: the mill is red}
  turns:
  - {text: I remember that it is red.}
- turns:
  - calls: [{write_file: {file_path: /memories/team.md, content: \"<!-- for people -->the mill is red\"}}]
  - {text: I looked it up.}
";

const CAPABILITY: &str = "\
name: clerk
description: Knows the mill.
instructions: Say which colour the mill has.
memory: [AGENTS.md, missing.md, /memories/team.md]
tools: [read_file, write_file, edit_file]
";

fn submission() -> Submission {
    let task = echo_task("colour", &json!({}));
    fixed_submission(vec![TaskSpec { capability: Capability::new("clerk").unwrap(), is_final: true, ..task }])
}

fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn second_run_uses_what_the_first_one_stored() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("model.yaml"), SCRIPT).unwrap();
    fs::write(path("clerk.yaml"), CAPABILITY).unwrap();
    fs::write(path("AGENTS.md"), "Be brief.\n").unwrap();
    let (capability, model) = (path("clerk.yaml"), format!("script:{}", path("model.yaml")));
    let record = path("record.jsonl");
    cluster.start_process(
        ProcessRole::Worker,
        "clerk-1",
        &["--capability", &capability, "--model", &model, "--record", &record],
    );
    let bus = cluster.connect_bus().await;
    for (name, expected) in [("first", "I looked it up."), ("second", "I remember that it is red.")] {
        let run = run_id(name);
        submit_run(&bus, &run, &submission()).await;
        let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
        let summary = history.folded_plan().tasks()[0].current_attempt().unwrap().result_summary();
        assert_eq!(summary, Some(expected), "{name}");
    }
    let requests = fs::read_to_string(&record).unwrap();
    let last = requests.lines().last().unwrap();
    assert!(
        last.contains("### AGENTS.md\\n\\nBe brief.")
            && last.contains("### /memories/team.md\\n\\nthe mill is red"),
        "{last}"
    );
    assert!(!requests.contains("### missing.md"), "missing files are passed over");
    assert!(!last.contains("for people"), "comments are left out");

    let run = |arguments: &[&str]| cluster.millrace_command().args(arguments).output().unwrap();
    let listed = stdout_of(&run(&["memories"]));
    assert!(listed.contains("/team.md") && listed.contains("task colour of run first"), "{listed}");
    assert_eq!(stdout_of(&run(&["memories", "team.md"])), "<!-- for people -->the mill is red");
    let removed = stdout_of(&run(&["memories", "team.md", "--remove", "--json"]));
    assert!(removed.contains("\"memory_removed\"") && removed.contains("\"version\":2"), "{removed}");
    assert_eq!(stdout_of(&run(&["memories"])), "");
    let versions = stdout_of(&run(&["memories", "team.md", "--list"]));
    assert!(versions.contains("deleted") && versions.contains("millrace memories"), "{versions}");
    let gone = run(&["memories", "team.md"]);
    assert_eq!(gone.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&gone.stderr)
            .contains("/team.md of the memories was deleted by millrace memories")
    );
    cluster.stop_all();
}
