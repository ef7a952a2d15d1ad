//! Skills through processes: an attempt whose worker is killed continues on another worker with the skills that it began with, even if
//! its own folder differs, and `execute` runs their scripts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{JournalKey, TaskSpec};
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history};
use millrace_tests::wait_for_value;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);

/// An agent that reads a skill and one of its files, and runs its script. The second reply is slow, so that the worker can be killed.
const SCRIPT: &str = "\
rules:
- turns:
  - {calls: [{read_file: {file_path: /skills/sums/SKILL.md}}]}
  - {calls: [{read_file: {file_path: /skills/sums/references/method.md}}], delay: 3}
  - {calls: [{execute: {command: \"python3 skills/sums/scripts/sum.py 1 2 3; ./skills/sums/scripts/sum.sh\"}}]}
  - {text: It is done.}
";

const CAPABILITY: &str = "\
name: clerk
description: Adds numbers.
instructions: Add the numbers.
tools: [read_file, execute: {require: []}]
skills: [./skills]
";

/// Writes the capability of a worker, with skills that name the worker.
fn write_capability(folder: &Path, worker: &str) -> String {
    let skill = folder.join("skills/sums");
    for part in ["scripts", "references"] {
        fs::create_dir_all(skill.join(part)).unwrap();
    }
    let front_matter = format!("---\nname: sums\ndescription: Sums of {worker}.\n---\n");
    fs::write(skill.join("SKILL.md"), format!("{front_matter}Instructions of {worker}.\n")).unwrap();
    fs::write(skill.join("references/method.md"), format!("The method of {worker}.\n")).unwrap();
    let python = format!("import sys\nprint('sum of {worker}:', sum(map(int, sys.argv[1:])))\n");
    fs::write(skill.join("scripts/sum.py"), python).unwrap();
    fs::write(skill.join("scripts/sum.sh"), format!("#!/bin/sh\necho script of {worker}\n")).unwrap();
    // A skill that can't be used is passed over.
    fs::create_dir_all(folder.join("skills/broken")).unwrap();
    fs::write(folder.join("skills/broken/SKILL.md"), "no front matter").unwrap();
    fs::write(folder.join("clerk.yaml"), CAPABILITY).unwrap();
    fs::write(folder.join("model.yaml"), SCRIPT).unwrap();
    folder.join("clerk.yaml").display().to_string()
}

async fn read_steps(bus: &Bus, run: &RunId) -> Vec<(String, String)> {
    let topic = Topic::Journal(JournalKey::Task(task_id("sums"), 1));
    let mut steps = Vec::new();
    for record in read_topic(bus, bus.lane_of_run(run), run, &topic).await.unwrap_or_default() {
        if let JournalEntry::Step { name, value, .. } = bus.decode_record(&record).await.unwrap() {
            let InlineOrStoredBytes::Inline(bytes) = value else { panic!("{name} is stored apart") };
            steps.push((name, String::from_utf8(bytes.to_vec()).unwrap()));
        }
    }
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_continues_with_the_skills_that_the_attempt_began_with() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let bus = cluster.connect_bus().await;
    let run = run_id("skills");
    let folder = cluster.test_folder().to_owned();
    let start_worker = |cluster: &mut TestCluster, name: &str| {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        let file = write_capability(&folder, name);
        let model = format!("script:{}", folder.join("model.yaml").display());
        let record = folder.join("record").display().to_string();
        cluster.start_process(
            ProcessRole::Worker,
            name,
            &["--capability", &file, "--model", &model, "--record", &record],
        );
    };
    start_worker(&mut cluster, "first");
    let task = TaskSpec { capability: Capability::new("clerk").unwrap(), ..echo_task("sums", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![TaskSpec { is_final: true, ..task }])).await;
    let has_read = async || (read_steps(&bus, &run).await.len() >= 2).then_some(());
    wait_for_value(TIMEOUT, "the skill is read", has_read).await;
    cluster.kill_process("first");
    start_worker(&mut cluster, "second");

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    let plan = history.folded_plan();
    let attempt = plan.tasks()[0].current_attempt().unwrap();
    assert_eq!((attempt.number, attempt.result_summary()), (1, Some("It is done.")));
    let steps = read_steps(&bus, &run).await;
    let value = |name: &str| steps.iter().find(|step| step.0 == name).map(|step| step.1.as_str()).unwrap();
    assert!(value("model.0").contains("\"sha256\"") && value("model.0").contains("Sums of first."));
    assert!(value("tool.0.0.read_file").contains("Instructions of first."));
    assert!(value("tool.1.0.read_file").contains("The method of first."));
    let output = value("tool.2.0.execute");
    assert!(output.contains("sum of first: 6") && output.contains("script of first"), "{output}");
    // The second worker did these calls, and its own skills are nowhere.
    let requests = fs::read_to_string(folder.join("second/record")).unwrap();
    assert!(requests.contains("Sums of first."), "{requests}");
    assert!(!requests.contains("of second"), "{requests}");
    let log = cluster.read_log("second");
    assert!(log.contains("skipping skill") && log.contains("broken/SKILL.md"), "{log}");
    cluster.stop_all();
}
