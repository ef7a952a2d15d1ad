//! Delegated tasks: they run on any machine, their parents wait for them without a worker and get their ends, whatever dies
//! meanwhile, and nothing is left of them when their parents are cancelled.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{
    AttemptEnd, Budget, EndReason, ResourceAmounts, ResourceKind, Submission, TaskSpec, TaskState,
};
use millrace_protocol::registry;
use millrace_protocol::wait::WaitEnd;
use millrace_protocol::wire::{InlineOrStoredBytes, decode_task_result};
use millrace_runtime::Bus;
use millrace_tests::cluster::{ClusterSetup, NamedProcesses, ProcessRole, TestCluster};
use millrace_tests::crashes::crash_one_at_random;
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::machines::TestMachines;
use millrace_tests::pages::{first_code_block, repository_folder};
use millrace_tests::plans::{
    SeededRandom, echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history,
};
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use millrace_tests::waits::{TIMEOUT, wait_for_task_count};
use serde_json::{Value, json};

async fn result_of(bus: &Bus, history: &History, task: &str) -> millrace_protocol::result::TaskResult {
    let bytes = bus.blobs().read_inline_or_stored(&history.accepted_results()[&task_id(task)]).await.unwrap();
    decode_task_result(&bytes).unwrap()
}

fn assert_completed(history: &History) {
    history.assert_consistent();
    let end = history.folded_plan().run.end.as_ref().map(|end| (end.reason, end.detail.clone()));
    assert_eq!(end.as_ref().map(|(reason, _)| *reason), Some(EndReason::Completed), "{end:?}");
}

fn text_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Writes a file of a test, and returns its path.
fn write_file(folder: &std::path::Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// One slot: a parent delegates three tasks at once. One fails, one times out, one delegates further and succeeds; the parent
/// gets all three ends and completes.
#[tokio::test(flavor = "multi_thread")]
async fn parent_gets_every_end_of_its_children_and_goes_on() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("three"));
    let children = json!([
        {"parameters": {"fail_rate": 1.0}},
        {"parameters": {"delay_ms": 60_000}, "run_ms": 500},
        {"parameters": {"delegate": [{"parameters": {"steps": 1}}]}},
    ]);
    let parent = echo_task("parent", &json!({"delegate": children, "steps": 2}));
    submit_run(&bus, &run, &fixed_submission(vec![parent])).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let plan = history.folded_plan();
    assert_eq!(
        result_of(&bus, &history, "parent").await.data,
        Some(json!(["failed", "timed_out", ["completed"]]))
    );
    assert_eq!(plan.run.end.as_ref().unwrap().deliverable.as_ref().unwrap().0, task_id("parent"));
    let depths: Vec<u32> =
        plan.tasks().iter().filter_map(|task| Some(task.spec.parent.as_ref()?.depth)).collect();
    assert_eq!(depths, [1, 1, 1, 2]);
    assert_eq!(plan.task(&task_id("parent")).unwrap().attempts.len(), 1);
    assert_eq!(cluster.read_ledger().lines().count(), 3, "each step once");

    let show = text_of(&cluster.millrace_command().args(["show", "three"]).output().unwrap());
    assert!(show.contains("completed       parent-"), "{show}");
    let json: Value = serde_json::from_slice(
        &cluster.millrace_command().args(["show", "three", "--json"]).output().unwrap().stdout,
    )
    .unwrap();
    assert_eq!(json["tasks"][1]["parent"]["task"], "parent", "{json:#}");
    cluster.stop_all();
}

/// Cancelling the parent, and cancelling the run, leaves no open task, no order and no wait.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_parent_leaves_no_child_behind() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 1);
    let bus = cluster.connect_bus().await;
    let endless = json!({"delegate": [
        {"parameters": {"delay_ms": 600_000}},
        {"parameters": {"await_event": "never"}},
        {"parameters": {"delegate": [{"parameters": {"delay_ms": 600_000}}]}},
    ]});
    for (name, arguments) in [("parent", vec!["--task", "root"]), ("run", Vec::new())] {
        let run = run_id(name);
        submit_run(&bus, &run, &fixed_submission(vec![echo_task("root", &endless)])).await;
        // The root, the child that waits for an event, and the one that delegates.
        wait_for_task_count(&bus, &run, TaskState::Waiting, 3).await;
        wait_for_task_count(&bus, &run, TaskState::Running, 2).await;
        let cancelled = cluster.millrace_command().args(["cancel", name]).args(&arguments).output().unwrap();
        assert!(cancelled.status.success(), "{}", text_of(&cancelled));
        let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
        history.assert_consistent();
        let plan = history.folded_plan();
        assert_eq!(plan.task_count_in_state(TaskState::Cancelled), 5, "{name}");
        assert_eq!(plan.parked_attempts().count(), 0);
    }
    // The slots are free again at once.
    let run = run_id("after");
    submit_run(&bus, &run, &fixed_submission(vec![echo_task("a", &json!({})), echo_task("b", &json!({}))]))
        .await;
    assert_completed(&wait_for_run_history(&bus, &run, Duration::from_secs(30)).await);
    cluster.stop_all();
}

/// An agent delegates two tasks in one message and one in the background; its worker dies while it waits. Another one
/// continues with the results, and nothing is delegated twice.
#[tokio::test(flavor = "multi_thread")]
async fn agent_delegates_and_continues_with_the_results() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 1);
    let folder = tempfile::tempdir().unwrap();
    let (script, capability) = (folder.path().join("model.yaml"), folder.path().join("lead.yaml"));
    std::fs::write(
        &script,
        "rules:\n\
         - when: {task: count}\n  turns:\n  - {text: \"seven\"}\n\
         - turns:\n\
         \x20 - calls:\n\
         \x20   - task: {capability: echo, description: first, parameters: {delay_ms: 1500}}\n\
         \x20   - task: {capability: nobody, description: second}\n\
         \x20   - start_task: {capability: echo, description: third, parameters: {delay_ms: 100}}\n\
         \x20 - calls:\n\
         \x20   - wait_for: {tasks: [lead-1-0-2]}\n\
         \x20   - list_tasks: {}\n\
         \x20 - {text: \"{{last}}\"}\n",
    )
    .unwrap();
    std::fs::write(
        &capability,
        "name: lead\ndescription: Delegates.\ninstructions: Delegate.\n\
         tools: [task, start_task, wait_for, list_tasks]\nagents: [echo]\n",
    )
    .unwrap();
    let model = format!("script:{}", script.display());
    let arguments = ["--capability", capability.to_str().unwrap(), "--model", &model];
    cluster.start_process(ProcessRole::Worker, "lead-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("agent"));
    let task = TaskSpec { capability: Capability::new("lead").unwrap(), ..echo_task("lead", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    cluster.kill_process("lead-1");
    cluster.start_process(ProcessRole::Worker, "lead-2", &arguments);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let plan = history.folded_plan();
    let ids: Vec<&str> = plan.tasks().iter().map(|task| task.spec.id.as_str()).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
    assert!(plan.tasks().iter().all(|task| task.attempts.len() == 1), "{ids:?}");
    let result = result_of(&bus, &history, "lead").await;
    assert!(result.output.contains("lead-1-0-2"), "{}", result.output);
    assert_eq!(
        (result.usage.model_calls, result.usage.tool_calls),
        (3, 5),
        "no reply and no result is requested twice"
    );
    let transcript =
        text_of(&cluster.millrace_command().args(["show", "agent", "lead", "--full"]).output().unwrap());
    assert!(transcript.contains("there is no capability \"nobody\" to ask; there are: echo"), "{transcript}");
    assert!(transcript.contains("starts lead-1-0-2"), "{transcript}");
    cluster.stop_all();
}

/// A restricted agent has none of the tools that its delegation took away, and its delegated tasks are restricted too: a program,
/// which can't be, refuses the task.
#[tokio::test(flavor = "multi_thread")]
async fn restricted_agent_gets_no_more_by_delegating() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 1);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| write_file(folder.path(), name, text);
    let script = write(
        "model.yaml",
        "rules:\n\
         - when: {task: help me}\n\
         \x20 turns:\n\
         \x20 - calls:\n\
         \x20   - write_file: {file_path: /x.md, content: x}\n\
         \x20   - ls: {path: /}\n\
         \x20   - task: {capability: echo, description: sneak}\n\
         \x20 - {text: \"{{last}}\"}\n\
         - turns:\n\
         \x20 - calls:\n\
         \x20   - task: {capability: helper, description: help me}\n\
         \x20 - {text: \"{{last}}\"}\n",
    );
    let lead = write(
        "lead.yaml",
        "name: lead\ndescription: Delegates.\ninstructions: Delegate.\ntools: [task, ls]\n\
         agents: [{name: helper, tools: [task, ls], limits: {turns: 4}}]\n",
    );
    let helper = write(
        "helper.yaml",
        "name: helper\ndescription: Helps.\ninstructions: Help.\ntools: [task, ls, write_file]\n",
    );
    let model = format!("script:{script}");
    let arguments = ["--capability", &lead, "--capability", &helper, "--model", &model];
    cluster.start_process(ProcessRole::Worker, "agents", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("strict"));
    let task = TaskSpec { capability: Capability::new("lead").unwrap(), ..echo_task("lead", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let output = result_of(&bus, &history, "lead").await.output;
    assert!(output.contains("echo is no agent and can't be restricted"), "{output}");
    let show = |arguments: &[&str]| {
        text_of(&cluster.millrace_command().arg("show").args(arguments).output().unwrap())
    };
    let transcript = show(&["strict", "lead-1-0-0", "--full"]);
    assert!(transcript.contains("there is no tool 'write_file'"), "{transcript}");
    let json: Value = serde_json::from_str(&show(&["strict", "--json"])).unwrap();
    assert_eq!(json["tasks"][1]["overrides"], json!({"tools": ["ls", "task"], "turns": 4}), "{json:#}");
    assert_eq!(json["tasks"][2]["overrides"], json!({"tools": ["ls", "task"]}), "{json:#}");
    let board = show(&["strict"]);
    assert!(board.contains("with the tools ls task, 4 turns"), "{board}");
    cluster.stop_all();
}

/// An agent forks itself. Its worker dies while it waits; the fork runs on another one, from a conversation in the blob store, with the
/// results that its parent has, and pays for its own reply alone.
#[tokio::test(flavor = "multi_thread")]
async fn fork_continues_the_conversation_on_any_worker() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 1);
    let folder = tempfile::tempdir().unwrap();
    let (script, capability) = (folder.path().join("model.yaml"), folder.path().join("lead.yaml"));
    std::fs::write(
        &script,
        "rules:\n\
         - when: {last: You are a fork}\n\
         \x20 reply: {calls: [get_task_result: {task_id: first}], delay: 1.5}\n\
         - when: {tool: get_task_result}\n\
         \x20 reply: {text: \"{{last}}\"}\n\
         - turns:\n\
         \x20 - calls:\n\
         \x20   - task: {capability: lead, description: look again, mode: fork}\n\
         \x20 - {text: \"the fork says {{last}}\"}\n",
    )
    .unwrap();
    let instructions = "Delegate. ".repeat(600);
    std::fs::write(
        &capability,
        format!(
            "name: lead\ndescription: Delegates.\ninstructions: {instructions}\n\
             tools: [task, get_task_result]\nagents: {{ask: [], fork: true}}\n"
        ),
    )
    .unwrap();
    let model = format!("script:{}", script.display());
    let arguments = ["--capability", capability.to_str().unwrap(), "--model", &model];
    cluster.start_process(ProcessRole::Worker, "lead-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("fork"));
    let first = echo_task("first", &json!({}));
    let task = TaskSpec {
        capability: Capability::new("lead").unwrap(),
        depends_on: vec![task_id("first")],
        is_final: true,
        ..echo_task("lead", &json!({}))
    };
    submit_run(&bus, &run, &fixed_submission(vec![first, task])).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    cluster.kill_process("lead-1");
    cluster.start_process(ProcessRole::Worker, "lead-2", &arguments);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let plan = history.folded_plan();
    let fork = plan.task(&task_id("lead-1-0-0")).unwrap();
    assert!(
        matches!(fork.spec.fork.as_deref(), Some(InlineOrStoredBytes::Stored(_))),
        "{:?}",
        fork.spec.fork
    );
    let of_fork = result_of(&bus, &history, "lead-1-0-0").await;
    assert_eq!(of_fork.usage.model_calls, 2, "its own replies alone");
    let result = result_of(&bus, &history, "lead").await;
    assert!(
        result.output.starts_with("the fork says") && result.output.contains("first"),
        "{}",
        result.output
    );
    assert_eq!(result.usage.model_calls, 2);
    let json = cluster.millrace_command().args(["show", "fork", "--json"]).output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["tasks"][2]["fork"], true, "{json:#}");
    cluster.stop_all();
}

/// Three calls of a shared agent, two of them at once: each continues the conversation of the one before, on whichever worker.
#[tokio::test(flavor = "multi_thread")]
async fn shared_agent_keeps_one_conversation_across_calls_and_workers() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 0);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| write_file(folder.path(), name, text);
    let script = write(
        "model.yaml",
        "rules:\n\
         - when: {system: librarian}\n\
         \x20 turns: [{text: first, delay: 1}, {text: second, delay: 1}, {text: third}]\n\
         - turns:\n\
         \x20 - calls:\n\
         \x20   - task: {capability: library, description: one}\n\
         \x20   - task: {capability: library, description: two}\n\
         \x20 - calls:\n\
         \x20   - task: {capability: library, description: three}\n\
         \x20 - {text: \"{{last}}\"}\n",
    );
    let lead = write(
        "lead.yaml",
        "name: lead\ndescription: Delegates.\ninstructions: Delegate.\ntools: [task]\n\
         agents: [{name: library, shared: true}]\n",
    );
    let library =
        write("library.yaml", "name: library\ndescription: Answers.\ninstructions: You are a librarian.\n");
    let model = format!("script:{script}");
    let arguments = ["--capability", &lead, "--capability", &library, "--model", &model];
    cluster.start_process(ProcessRole::Worker, "library-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("shared"));
    let task = TaskSpec { capability: Capability::new("lead").unwrap(), ..echo_task("lead", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    wait_for_task_count(&bus, &run, TaskState::Completed, 1).await;
    cluster.kill_process("library-1");
    cluster.start_process(ProcessRole::Worker, "library-2", &arguments);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    for (task, answer) in [("lead-1-0-0", "first"), ("lead-1-0-1", "second"), ("lead-1-1-0", "third")] {
        let result = result_of(&bus, &history, task).await;
        assert_eq!((result.output.as_str(), result.usage.model_calls), (answer, 1), "{task}");
    }
    assert_eq!(result_of(&bus, &history, "lead").await.output, "third");
    let json = cluster.millrace_command().args(["show", "shared", "--json"]).output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["tasks"][1]["shared"], true, "{json:#}");
    cluster.stop_all();
}

/// A program delegates two tasks in its reply, its worker dies, and another one runs it again with their ends and results.
#[tokio::test(flavor = "multi_thread")]
async fn program_delegates_in_its_reply() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 1);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("lead.py"),
        "import json, sys\ntask = json.load(sys.stdin)\nended = task.get('ended_waits', {})\n\
         one = {'capability': 'echo', 'description': 'one', 'parameters': {'delay_ms': 1500, 'steps': 1}}\n\
         bad = {'capability': 'echo', 'description': 'bad', 'parameters': {'fail_rate': 1.0}, 'limits': {'attempts': 1}}\n\
         if 'work' not in ended:\n    print(json.dumps({'wait_for': {'work': {'delegate': [one, bad]}}}))\nelse:\n    \
         states = [end['state'] for end in ended['work']['tasks']]\n    \
         print(json.dumps({'states': states, 'inputs': [given['task'] for given in task['inputs']]}))\n",
    )
    .unwrap();
    let capability = folder.path().join("lead.yaml");
    std::fs::write(
        &capability,
        "{kind: command, name: lead, description: Delegates., command: [python3, lead.py]}",
    )
    .unwrap();
    let arguments = ["--capability", capability.to_str().unwrap()];
    cluster.start_process(ProcessRole::Worker, "lead-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("program"));
    let task = TaskSpec { capability: Capability::new("lead").unwrap(), ..echo_task("lead", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    cluster.kill_process("lead-1");
    cluster.start_process(ProcessRole::Worker, "lead-2", &arguments);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let data = json!({"states": ["completed", "failed"], "inputs": ["lead-1-work-0"]});
    assert_eq!(result_of(&bus, &history, "lead").await.data, Some(data));
    assert_eq!(history.folded_plan().tasks().len(), 3, "each task once");
    assert_eq!(cluster.read_ledger().lines().count(), 1, "each step once");
    cluster.stop_all();
}

/// A run whose budget its root reserves as a whole: children and grandchildren run within that reservation.
#[tokio::test(flavor = "multi_thread")]
async fn budget_of_children_comes_out_of_their_parents_reservation() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("budget"));
    let nested = json!({"delegate": [{"parameters": {"delegate": [{}, {}]}}, {}]});
    let mut submission = fixed_submission(vec![echo_task("root", &nested)]);
    let calls = ResourceAmounts { model_calls: Some(100), ..ResourceAmounts::default() };
    submission.budget = Budget { amounts: calls, attempt: calls, final_percent: 0, ..Budget::default() };
    submit_run(&bus, &run, &submission).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let plan = history.folded_plan();
    assert_eq!(plan.tasks().len(), 5);
    let budget = |task: &millrace_protocol::plan::Task| task.spec.budget.model_calls.unwrap_or(0);
    for parent in plan.tasks() {
        let of_children: u64 = plan.children(parent).map(budget).sum();
        let own = if parent.spec.is_child() { budget(parent) } else { 100 };
        assert!(of_children <= own, "{} delegates {of_children} of {own}", parent.spec.id);
    }
    assert_eq!(plan.budget.reserved.total_reserved(ResourceKind::ModelCalls), 0);
    cluster.stop_all();
}

/// The model of the agents on several machines.
const SCRIPT_OF_MACHINES: &str = r#"
rules:
- when: {task: "ask somebody"}
  turns: [{calls: [{write_file: {file_path: /a.txt, content: x}}]}, {text: "{{last}}"}]
- when: {task: "count words"}
  turns: [{text: "seven"}]
- when: {task: "delegate further"}
  turns: [{calls: [{task: {capability: counter, description: count words}}]}, {text: "{{last}}"}]
- when: {task: "delegate a sleep"}
  turns: [{calls: [{task: {capability: slow, description: sleep}}]}, {text: "{{last}}"}]
- when: {task: "echo boss"}
  turns:
  - calls:
    - task: {capability: brittle, description: fail, limits: {attempts: 1}}
    - task: {capability: slow, description: sleep, limits: {seconds: 2, attempts: 1}}
    - task: {capability: lead, description: delegate further}
  - {text: "{{last}}"}
- when: {task: "echo endless"}
  turns:
  - calls:
    - task: {capability: slow, description: sleep}
    - task: {capability: asker, description: ask somebody}
    - task: {capability: lead, description: delegate a sleep}
"#;

/// Writes the capability files of each machine; returns the arguments of their workers.
fn write_machines(folder: &Path, sleep: &str) -> [Vec<String>; 3] {
    let script = folder.join("model.yaml");
    std::fs::write(&script, SCRIPT_OF_MACHINES).unwrap();
    let agent = |name: &str, more: Value| {
        let mut file =
            json!({"name": name, "description": "Works.", "instructions": "Work.", "tools": ["task"]});
        file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        file
    };
    let program = |name: &str, command: Value| json!({"name": name, "kind": "command", "description": "Works.", "command": command});
    let machines = [
        vec![program("brittle", json!(["sh", "-c", "echo broken >&2; exit 1"]))],
        vec![program("slow", json!(["sleep", sleep]))],
        vec![
            agent("boss", json!({})),
            agent("lead", json!({})),
            agent("counter", json!({"tools": []})),
            agent("asker", json!({"tools": ["write_file"], "approve": [{"tool": "write_file"}]})),
        ],
    ];
    machines.map(|files| {
        let mut arguments = vec!["--model".to_owned(), format!("script:{}", script.display())];
        for file in files {
            let path = folder.join(format!("{}.yaml", file["name"].as_str().unwrap()));
            std::fs::write(&path, file.to_string()).unwrap();
            arguments.extend(["--capability".to_owned(), path.display().to_string()]);
        }
        arguments
    })
}

/// Starts a worker on each machine.
fn start_far_workers(cluster: &mut TestCluster, machines: &Arc<TestMachines>, arguments: &[Vec<String>; 3]) {
    let (url, setup) = (cluster.server.url.clone(), cluster.millrace_command());
    let environment: Vec<(OsString, Option<OsString>)> =
        setup.get_envs().map(|(name, value)| (name.into(), value.map(Into::into))).collect();
    for (number, more) in arguments.iter().enumerate() {
        let (machines, more) = (Arc::clone(machines), more.clone());
        let (url, environment) = (url.clone(), environment.clone());
        let start = move |id: &str| {
            let mut command = machines.command_on_machine(number, millrace_program());
            for (name, value) in &environment {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            command.args(["worker", "--nats", &url, "--id", id]).args(&more);
            command
        };
        NamedProcesses::start_process(cluster, ProcessRole::Worker, &format!("machine-{number}"), start);
    }
}

fn agent_task(name: &str) -> TaskSpec {
    TaskSpec { capability: Capability::new("boss").unwrap(), ..echo_task(name, &json!({})) }
}

/// The numbers of running programs with this first argument, and of all processes with it.
fn count_processes(argument: &str) -> (usize, usize) {
    let folders = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
    let places =
        lines.filter_map(|line| line.split(|byte| *byte == 0).position(|word| word == argument.as_bytes()));
    // A program has it as its first argument, the keeper of a program further on.
    places.fold((0, 0), |(programs, all), place| (programs + usize::from(place == 1), all + 1))
}

/// Three capabilities, each on a machine of its own: one fails, one times out, one succeeds with the help of a fourth. Their
/// parent gets all three ends and continues, within its reservation. Cancelling a root leaves no work, process or question.
#[tokio::test(flavor = "multi_thread")]
async fn agent_delegates_to_capabilities_on_several_machines() {
    let _shared = share_machine();
    let machines = match TestMachines::new(3) {
        Ok(machines) => Arc::new(machines),
        Err(why) => {
            return println!("passed over: no network namespaces here ({why}); they need root and iproute2");
        }
    };
    let mut setup = ClusterSetup::default();
    setup.server.host = Some(machines.host_address());
    let mut cluster = TestCluster::start_with_workers(setup, 0);
    let (folder, sleep) = (tempfile::tempdir().unwrap(), format!("86{}", 100_000 + std::process::id()));
    let arguments = write_machines(folder.path(), &sleep);
    start_far_workers(&mut cluster, &machines, &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("machines"));
    cluster.wait_for_heartbeats(&bus, registry::ProcessRole::Worker, 3).await;

    let calls = ResourceAmounts { model_calls: Some(40), ..ResourceAmounts::default() };
    let budget = Budget { amounts: calls, attempt: calls, final_percent: 0, ..Budget::default() };
    let submission = fixed_submission(vec![agent_task("boss")]);
    submit_run(&bus, &run, &Submission { budget: budget.clone(), ..submission }).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let plan = history.folded_plan();
    let boss = plan.task(&task_id("boss")).unwrap();
    assert_eq!(boss.attempts.len(), 1);
    let ends = boss.attempts[0].waits.iter().filter_map(|wait| match &wait.end {
        Some(WaitEnd::TasksEnded(ended)) => Some(ended[0].end.name()),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), ["failed", "timed_out", "completed"]);
    let children = plan.tasks().iter().filter(|task| task.spec.is_child());
    let places: Vec<String> = children
        .map(|task| task.attempts[0].worker.as_ref().unwrap().as_str().rsplit_once('-').unwrap().0.to_owned())
        .collect();
    assert_eq!(places, ["machine-0", "machine-1", "machine-2", "machine-2"]);
    // The calls of the boss, of the lead and of the counter are counted once, within the reservation of the boss.
    let calls = plan.tasks().iter().map(|task| (task.spec.id.as_str(), task.total_usage().model_calls));
    let calls: Vec<(&str, u64)> = calls.collect();
    let total: u64 = calls.iter().map(|(_, calls)| calls).sum();
    assert_eq!((calls[0], calls[3].1, calls[4].1), (("boss", 2), 2, 1), "{calls:?}");
    // The usage of the program that timed out is unknown: its reservation counts.
    assert!(total < 40, "{calls:?}");
    assert_eq!(plan.usage_with_children(boss).model_calls, total, "{calls:?}");
    assert_eq!(plan.budget.spend.total.model_calls, total, "{calls:?}");
    let grandchild = plan.tasks().iter().find(|task| task.spec.capability.as_str() == "counter").unwrap();
    assert!(
        grandchild.spec.budget.model_calls.is_some_and(|calls| calls < 40),
        "{:?}",
        grandchild.spec.budget
    );
    assert_eq!(plan.budget.reserved.total_reserved(ResourceKind::ModelCalls), 0);

    let endless = run_id("endless");
    submit_run(&bus, &endless, &Submission { budget, ..fixed_submission(vec![agent_task("endless")]) }).await;
    wait_for_task_count(&bus, &endless, TaskState::Waiting, 3).await;
    wait_for_task_count(&bus, &endless, TaskState::Running, 2).await;
    wait_for_value(TIMEOUT, "two programs", async || (count_processes(&sleep).0 == 2).then_some(())).await;
    let cancelled = cluster.millrace_command().args(["cancel", "endless"]).output().unwrap();
    assert!(cancelled.status.success(), "{}", text_of(&cancelled));
    let history = wait_for_run_history(&bus, &endless, TIMEOUT).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    assert_eq!(plan.task_count_in_state(TaskState::Cancelled), 5);
    assert_eq!(plan.open_questions().count(), 0);
    wait_for_value(TIMEOUT, "the ends of the programs", async || {
        (count_processes(&sleep).1 == 0).then_some(())
    })
    .await;
    wait_for_value(TIMEOUT, "empty queues", async || {
        let context = async_nats::jetstream::new(bus.client().clone());
        let mut queues = context.get_stream("WORK").await.ok()?;
        (queues.info().await.ok()?.state.messages == 0).then_some(())
    })
    .await;
    cluster.stop_all();
}

/// Parents with children and grandchildren, some of which sleep.
fn nested_delegations(random: &mut SeededRandom) -> Vec<TaskSpec> {
    let leaf = |random: &mut SeededRandom| json!({"parameters": {"delay_ms": random.next_below(200), "park_ms": random.next_below(500), "steps": 1}});
    (0..4)
        .map(|number| {
            let grandchildren = json!([leaf(random), leaf(random)]);
            let children = json!([leaf(random), {"parameters": {"delegate": grandchildren, "steps": 1}}]);
            let mut task = echo_task(&format!("p{number}"), &json!({"delegate": children, "steps": 1}));
            task.limits.max_attempts = 1;
            task
        })
        .collect()
}

/// Processes and the server are killed at random moments while tasks are delegated and end. No child is there twice, none is
/// lost, and no parent sleeps on. `MILLRACE_WAITING_SEEDS=50` is the long form.
#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_no_child_and_no_wake_up() {
    let _shared = share_machine();
    let seeds: u64 = std::env::var("MILLRACE_WAITING_SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(3);
    for seed in 0..seeds {
        let mut random = SeededRandom::new(1_000 + seed);
        let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
        let (bus, run) = (cluster.connect_bus().await, run_id(&format!("kills-{seed}")));
        let started = Instant::now();
        submit_run(&bus, &run, &fixed_submission(nested_delegations(&mut random))).await;
        for _ in 0..6 {
            crash_one_at_random(&mut cluster, &mut random).await;
            cluster.restart_exited();
            tokio::time::sleep(Duration::from_millis(random.next_below(500))).await;
        }
        let history = wait_for_value(TIMEOUT, &format!("the end of seed {seed}"), async || {
            cluster.restart_exited();
            let history = History::read_from_log(&bus, &run).await.ok()?;
            history.folded_plan().run.end.is_some().then_some(history)
        })
        .await;
        println!("seed {seed}: over after {:.1?}, {} takeovers", started.elapsed(), history.takeover_count());
        assert_completed(&history);
        let plan = history.folded_plan();
        assert_eq!(plan.tasks().len(), 4 * 5, "each child once");
        for task in plan.tasks() {
            assert_eq!(task.attempts.len(), 1, "{} has another attempt", task.spec.id);
            assert!(matches!(task.attempts[0].end, Some(AttemptEnd::Finished { .. })), "{}", task.spec.id);
        }
        for number in 0..4 {
            let data = result_of(&bus, &history, &format!("p{number}")).await.data;
            assert_eq!(data, Some(json!(["completed", ["completed", "completed"]])));
        }
        cluster.stop_all();
    }
}

/// The example of docs/delegation.md, with a scripted model.
#[tokio::test(flavor = "multi_thread")]
async fn documented_example_runs() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 0);
    let page = std::fs::read_to_string(repository_folder().join("docs/delegation.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [lead, counter, script] =
        ["lead.yaml", "counter.yaml", "model.yaml"].map(|name| folder.path().join(name));
    std::fs::write(&lead, first_code_block(&page, "yaml").unwrap()).unwrap();
    std::fs::write(&counter, first_code_block(&page, "yaml counter").unwrap()).unwrap();
    std::fs::write(
        &script,
        "rules:\n\
         - when: {task: count}\n  turns:\n  - {text: \"seven words\"}\n\
         - turns:\n\
         \x20 - calls:\n\
         \x20   - task: {capability: counter, description: count one}\n\
         \x20   - task: {capability: counter, description: count two}\n\
         \x20 - {text: \"{{last}}\"}\n",
    )
    .unwrap();
    let model = format!("script:{}", script.display());
    let (lead, counter) = (lead.to_str().unwrap(), counter.to_str().unwrap());
    // The other examples are valid capability files, or parts of one.
    let others = ["overrides", "fork", "shared"].map(|name| {
        let block = first_code_block(&page, &format!("yaml {name}")).unwrap();
        let head = format!(
            "name: {name}\ndescription: An example.\ninstructions: Delegate.\ntools: [task, search_documents, read_document]\n"
        );
        let path = folder.path().join(format!("{name}.yaml"));
        std::fs::write(&path, if block.starts_with("name:") { block } else { head + &block }).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let files = [lead, counter].into_iter().chain(others.iter().map(String::as_str));
    let mut arguments: Vec<&str> = files.flat_map(|file| ["--capability", file]).collect();
    arguments.extend(["--model", &model]);
    cluster.start_process(ProcessRole::Worker, "agents", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("example"));
    let mut task = echo_task("compare", &json!({}));
    task.capability = Capability::new("lead").unwrap();
    task.objective = "compare".into();
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let plan = history.folded_plan();
    assert_eq!(plan.tasks().len(), 3);
    assert!(result_of(&bus, &history, "compare").await.output.contains("seven words"));
    let limits = &plan.task(&task_id("compare-1-0-1")).unwrap().spec.limits;
    assert_eq!((limits.run_time.as_secs(), limits.max_attempts), (600, 2), "the limits of the file");
    let show = text_of(&cluster.millrace_command().args(["show", "example"]).output().unwrap());
    assert!(show.contains("  compare-1-0-0") && show.contains("with its delegated tasks"), "{show}");
    cluster.stop_all();
}
