//! Parked attempts: they wait for times and events without a worker, and continue as the same attempts, whatever dies meanwhile.

use std::time::{Duration, Instant};

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{
    AttemptEnd, EndReason, Event, PlanTime, RunEvent, StartEvent, StartEventExpiry, StartExpiryAction,
    Submission, TaskSpec, TaskState,
};
use millrace_protocol::wire::decode_task_result;
use millrace_runtime::Bus;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::crashes::crash_one_at_random;
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::pages::{first_code_block, repository_folder};
use millrace_tests::plans::{
    SeededRandom, echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history,
};
use millrace_tests::wait_for_value;
use millrace_tests::waits::{TIMEOUT, signal_event, wait_for_task_count};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The data of a task's result.
async fn result_data(bus: &Bus, history: &History, task: &str) -> Value {
    let result = &history.accepted_results()[&task_id(task)];
    let bytes = bus.blobs().read_inline_or_stored(result).await.unwrap();
    decode_task_result(&bytes).unwrap().data.unwrap_or_default()
}

fn assert_completed(history: &History) {
    history.assert_consistent();
    let end = history.folded_plan().run.end.as_ref().map(|end| (end.reason, end.detail.clone()));
    assert_eq!(end.as_ref().map(|(reason, _)| *reason), Some(EndReason::Completed), "{end:?}");
    for task in history.folded_plan().tasks() {
        assert_eq!(task.attempts.len(), 1, "{} has another attempt", task.spec.id);
    }
}

fn tasks_that_wait(count: u32, parameters: &Value) -> Vec<TaskSpec> {
    (0..count).map(|task| echo_task(&format!("w{task}"), parameters)).collect()
}

fn text_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The longest time without a sign is 5 s: this is an absence.
const ABSENCE: Duration = Duration::from_secs(8);

/// The number of steps that an attempt has journaled.
async fn wait_for_steps(bus: &Bus, run: &RunId, count: usize) {
    wait_for_value(TIMEOUT, "steps of the attempt", async || {
        let history = History::read_from_log(bus, run).await.ok()?;
        (history.recorded_echo_steps().len() >= count).then_some(())
    })
    .await;
}

/// Of a time limit of 20 s, an attempt needs 10. It gets them, although it is parked, its worker is killed and replaced later,
/// all processes are suspended, and the power fails, for 8 s each.
#[tokio::test(flavor = "multi_thread")]
async fn run_time_counts_only_the_time_in_which_a_worker_had_the_attempt() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (mut bus, run) = (cluster.connect_bus().await, run_id("sums"));
    let mut task = echo_task("t", &json!({"delay_ms": 10_000, "steps": 10, "await_event": "go"}));
    task.limits.run_time = Duration::from_secs(20);
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;

    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    tokio::time::sleep(ABSENCE).await;
    signal_event(&bus, &run, "go", "1").await;
    wait_for_steps(&bus, &run, 3).await;
    cluster.kill_process("worker-1");
    tokio::time::sleep(ABSENCE).await;
    cluster.restart_process("worker-1");
    wait_for_steps(&bus, &run, 5).await;
    for signal in [Signal::STOP, Signal::CONT] {
        ["supervisor-1", "worker-1"].iter().for_each(|name| cluster.send_signal(name, signal));
        tokio::time::sleep(if signal == Signal::STOP { ABSENCE } else { Duration::ZERO }).await;
    }
    wait_for_value(TIMEOUT, "the record of the suspension", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        let is_stop = |event: &Event| matches!(event, Event::Run(RunEvent::ClocksStopped(_)));
        (history.timed_events().filter(|(_, event)| is_stop(event)).count() == 2).then_some(())
    })
    .await;
    cluster.server.kill();
    cluster.names().iter().for_each(|name| cluster.kill_process(name));
    tokio::time::sleep(ABSENCE).await;
    cluster.server.restart();
    cluster.names().iter().for_each(|name| cluster.restart_process(name));
    bus = cluster.connect_bus().await;

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let attempt = &history.folded_plan().task(&task_id("t")).unwrap().attempts[0];
    let passed = attempt.ended_at.unwrap().duration_since(attempt.claimed_at.unwrap());
    assert!(passed.as_secs() >= 34, "{passed:?}");
    // A step is journaled each second.
    assert!((6..=20).contains(&attempt.worked.as_secs()), "{:?} of {passed:?}", attempt.worked);
}

/// The only supervisor is suspended while an attempt of 4 s ends: until it reads the report, twice the time limit passes.
#[tokio::test(flavor = "multi_thread")]
async fn time_until_a_supervisor_reads_a_report_is_no_run_time() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("late"));
    let mut task = echo_task("t", &json!({"delay_ms": 4_000, "steps": 4}));
    task.limits.run_time = Duration::from_secs(9);
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;

    wait_for_steps(&bus, &run, 1).await;
    cluster.send_signal("supervisor-1", Signal::STOP);
    wait_for_steps(&bus, &run, 4).await;
    tokio::time::sleep(2 * ABSENCE).await;
    cluster.send_signal("supervisor-1", Signal::CONT);

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let attempts = &history.folded_plan().task(&task_id("t")).unwrap().attempts;
    assert_eq!(attempts.len(), 1);
    assert!((3..=7).contains(&attempts[0].worked.as_secs()), "{:?}", attempts[0].worked);
}

/// One slot, five attempts that wait for an event: another task runs meanwhile, every view names the wait, and one signal
/// wakes all.
#[tokio::test(flavor = "multi_thread")]
async fn parked_attempts_hold_no_slot_and_one_event_wakes_them_all() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("event"));
    let mut tasks = tasks_that_wait(5, &json!({"await_event": "deployed", "steps": 2}));
    tasks.push(echo_task("plain", &json!({})));
    submit_run(&bus, &run, &fixed_submission(tasks)).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 5).await;
    wait_for_task_count(&bus, &run, TaskState::Completed, 1).await;

    let millrace = |arguments: &[&str]| cluster.millrace_command().args(arguments).output().unwrap();
    let show = text_of(&millrace(&["show", "event"]));
    assert!(show.contains("waiting for the event \"deployed\"") && show.contains("5 waiting"), "{show}");
    let transcript = text_of(&millrace(&["show", "event", "w0"]));
    assert!(transcript.contains("waits for the event \"deployed\""), "{transcript}");
    wait_for_value(TIMEOUT, "the wait in the list", async || {
        let list: Value =
            serde_json::from_slice(millrace(&["list", "--json"]).stdout.trim_ascii_end()).ok()?;
        let wait = list["waiting_for"].as_str()?.to_owned();
        (wait == "w0 waits for the event \"deployed\"" && list["task_counts"]["waiting"] == 5).then_some(())
    })
    .await;
    let signalled = millrace(&["signal", "event", "deployed", "--payload", r#"{"version":3}"#]);
    assert!(signalled.status.success(), "{}", text_of(&signalled));

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    for task in 0..5 {
        assert_eq!(result_data(&bus, &history, &format!("w{task}")).await, json!({"version": 3}));
    }
    let ledger = cluster.read_ledger();
    assert_eq!(ledger.lines().count(), 10, "each step of the five attempts once: {ledger}");
    let late = millrace(&["signal", "event", "deployed"]);
    assert_eq!(late.status.code(), Some(2), "{}", text_of(&late));
    let not_json = millrace(&["signal", "event", "deployed", "--payload", "{"]);
    assert!(text_of(&not_json).contains("--payload is not JSON"), "{}", text_of(&not_json));
    cluster.stop_all();
}

/// An event counts that was signalled before the wait began; the end of a run with nothing else to do is not its standstill.
#[tokio::test(flavor = "multi_thread")]
async fn event_that_comes_before_the_wait_is_kept() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("early"));
    let mut second = echo_task("second", &json!({"await_event": "go"}));
    second.depends_on = vec![task_id("first")];
    let first = echo_task("first", &json!({"await_event": "start"}));
    submit_run(&bus, &run, &fixed_submission(vec![first, second])).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    signal_event(&bus, &run, "go", "7").await;
    signal_event(&bus, &run, "start", "").await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    assert_eq!(result_data(&bus, &history, "second").await, json!(7));
    cluster.stop_all();
}

/// Everything is killed while attempts sleep; they wake at their time, as the same attempts.
#[tokio::test(flavor = "multi_thread")]
async fn sleeping_attempts_survive_the_death_of_every_process() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("asleep"));
    let started = Instant::now();
    let asleep = Duration::from_secs(4);
    submit_run(&bus, &run, &fixed_submission(tasks_that_wait(20, &json!({"park_ms": 4_000, "steps": 1}))))
        .await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 20).await;
    drop(bus);
    cluster.kill_and_restart_all();
    let bus = cluster.connect_bus().await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    assert!(started.elapsed() >= asleep, "they woke too early");
    assert_eq!(cluster.read_ledger().lines().count(), 20);
    cluster.stop_all();
}

/// A cancelled attempt waits for nothing any more, and a run that is cancelled leaves no wait behind.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_attempts_do_not_wake() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("cancelled"));
    submit_run(&bus, &run, &fixed_submission(tasks_that_wait(2, &json!({"await_event": "go"})))).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 2).await;
    let cancelled =
        cluster.millrace_command().args(["cancel", "cancelled", "--task", "w0"]).output().unwrap();
    assert!(cancelled.status.success(), "{}", text_of(&cancelled));
    signal_event(&bus, &run, "go", "").await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    assert_eq!(plan.task(&task_id("w0")).unwrap().state(), TaskState::Cancelled);
    assert_eq!(plan.task(&task_id("w1")).unwrap().state(), TaskState::Completed);
    assert!(cluster.read_ledger().is_empty());
    let second = run_id("second");
    submit_run(&bus, &second, &fixed_submission(tasks_that_wait(3, &json!({"park_ms": 86_400_000})))).await;
    wait_for_task_count(&bus, &second, TaskState::Waiting, 3).await;
    let cancelled = cluster.millrace_command().args(["cancel", "second"]).output().unwrap();
    assert!(cancelled.status.success(), "{}", text_of(&cancelled));
    let history = wait_for_run_history(&bus, &second, TIMEOUT).await;
    assert_eq!(history.folded_plan().task_count_in_state(TaskState::Cancelled), 3);
    cluster.stop_all();
}

/// The worker of an agent dies while its calls wait; another one continues in the middle of the turn, with the recorded results.
#[tokio::test(flavor = "multi_thread")]
async fn agent_continues_in_the_middle_of_a_turn() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 0);
    let folder = tempfile::tempdir().unwrap();
    let (script, capability) = (folder.path().join("model.yaml"), folder.path().join("release.yaml"));
    std::fs::write(
        &script,
        "rules:\n- turns:\n  - calls: [write_file: {file_path: /a.txt, content: once}, sleep_for: {seconds: 1}, \
         wait_for_event: {name: approved}]\n  - {text: \"{{last}}\"}\n",
    )
    .unwrap();
    std::fs::write(
        &capability,
        "name: release\ndescription: Waits.\ninstructions: Wait.\ntools: [write_file, sleep_for, wait_for_event]\n",
    )
    .unwrap();
    let model = format!("script:{}", script.display());
    let arguments = ["--capability", capability.to_str().unwrap(), "--model", &model];
    cluster.start_process(ProcessRole::Worker, "worker-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("agent"));
    let task = TaskSpec { capability: Capability::new("release").unwrap(), ..echo_task("wait", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    cluster.kill_process("worker-1");
    signal_event(&bus, &run, "approved", r#"{"by":"ann"}"#).await;
    cluster.start_process(ProcessRole::Worker, "worker-2", &arguments);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let bytes =
        bus.blobs().read_inline_or_stored(&history.accepted_results()[&task_id("wait")]).await.unwrap();
    let result = decode_task_result(&bytes).unwrap();
    assert!(result.output.contains(r#"{"by":"ann"}"#), "{}", result.output);
    assert_eq!((result.usage.model_calls, result.usage.tool_calls), (2, 3), "nothing is asked for twice");
    cluster.stop_all();
}

/// Layers of tasks that sleep and wait for events.
fn layers_that_wait(random: &mut SeededRandom) -> Submission {
    let mut tasks = Vec::new();
    for layer in 0..3 {
        for place in 0..6 {
            let park = if random.next_bool_with_percent(60) { random.next_below(1_500) } else { 0 };
            let event = if random.next_bool_with_percent(50) { "go" } else { "" };
            let parameters =
                json!({"park_ms": park, "await_event": event, "delay_ms": random.next_below(100)});
            let mut task = echo_task(&format!("l{layer}-{place}"), &parameters);
            task.limits.max_attempts = 1;
            if layer > 0 {
                task.depends_on = vec![task_id(&format!("l{}-{place}", layer - 1))];
            }
            tasks.push(task);
        }
    }
    fixed_submission(tasks)
}

/// Processes and the server are killed at random moments between parking, waking and the ends. No wake-up is lost and no
/// attempt is begun a second time. `MILLRACE_WAITING_SEEDS=50` is the long form.
#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_no_wake_up() {
    let _shared = share_machine();
    let seeds: u64 = std::env::var("MILLRACE_WAITING_SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(3);
    for seed in 0..seeds {
        let mut random = SeededRandom::new(seed);
        let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
        let (bus, run) = (cluster.connect_bus().await, run_id(&format!("kills-{seed}")));
        let started = Instant::now();
        submit_run(&bus, &run, &layers_that_wait(&mut random)).await;
        for crash in 0..6 {
            crash_one_at_random(&mut cluster, &mut random).await;
            cluster.restart_exited();
            if crash == 3 {
                signal_event(&bus, &run, "go", "1").await;
            }
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
        let ends = history.folded_plan().tasks().iter().flat_map(|task| &task.attempts);
        assert!(ends.clone().all(|attempt| matches!(attempt.end, Some(AttemptEnd::Finished { .. }))));
        cluster.stop_all();
    }
}

/// A task that starts with an event.
fn task_with_start_event(name: &str, event: &str, expiry: Option<StartEventExpiry>) -> TaskSpec {
    let event = StartEvent { name: event.into(), expiry };
    TaskSpec { wait_for_event: Some(Box::new(event)), ..echo_task(name, &json!({"steps": 1})) }
}

fn start_expiry(action: StartExpiryAction) -> Option<StartEventExpiry> {
    Some(StartEventExpiry { until: PlanTime::AfterStart(Duration::from_secs(2)), action })
}

/// Tasks with start conditions are in no queue until these are met, also if processes die. Then each has one attempt.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_start_at_their_time_and_after_their_event() {
    let _shared = share_machine();
    let setup = ClusterSetup { slots: 1, ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 0);
    let folder = tempfile::tempdir().unwrap();
    let (capability, input) = (folder.path().join("publish.yaml"), folder.path().join("input.json"));
    let program = format!("cat > {}; echo published", input.display());
    let text = json!({"name": "publish", "kind": "command", "description": "Publishes.", "command": ["sh", "-c", program]});
    std::fs::write(&capability, text.to_string()).unwrap();
    let worker = ["--capability", capability.to_str().unwrap(), "--capability", "echo"];
    cluster.start_process(ProcessRole::Worker, "worker-1", &worker);
    let (bus, run) = (cluster.connect_bus().await, run_id("starts"));
    let delay = Duration::from_secs(5);
    let publish = TaskSpec {
        capability: Capability::new("publish").unwrap(),
        depends_on: vec![task_id("plain")],
        parameters: Default::default(),
        ..task_with_start_event("publish", "deployed", None)
    };
    let tasks = vec![
        echo_task("plain", &json!({})),
        TaskSpec {
            not_before: Some(PlanTime::AfterStart(delay)),
            ..echo_task("later", &json!({"steps": 1}))
        },
        publish,
        task_with_start_event("edited", "never", None),
        task_with_start_event("expired", "never", start_expiry(StartExpiryAction::Start)),
        task_with_start_event("failed", "never", start_expiry(StartExpiryAction::FailTask)),
    ];
    submit_run(&bus, &run, &fixed_submission(tasks)).await;
    let wanted = [
        ("failed", TaskState::Failed),
        ("expired", TaskState::Completed),
        ("publish", TaskState::Waiting),
        ("edited", TaskState::Waiting),
    ];
    wait_for_value(TIMEOUT, "the ends of the waits that expire", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        let is_state = |(name, state): &(&str, TaskState)| {
            history.folded_plan().task(&task_id(name)).is_some_and(|task| task.state() == *state)
        };
        wanted.iter().all(is_state).then_some(())
    })
    .await;
    let millrace = |arguments: &[&str]| cluster.millrace_command().args(arguments).output().unwrap();
    let show = text_of(&millrace(&["show", "starts"]));
    assert!(show.contains("waiting for the event \"deployed\""), "{show}");
    let shown: Value = serde_json::from_slice(&millrace(&["show", "starts", "--json"]).stdout).unwrap();
    let waits = &shown["tasks"][2]["attempts"][0]["waits"];
    assert_eq!(waits[0]["event"], "deployed", "{shown:#}");
    assert!(waits[0]["since"].is_string() && waits[0]["end"].is_null(), "{waits}");
    let edited = millrace(&["edit", "starts", "edited", "--wait-for-event", "none"]);
    assert!(edited.status.success(), "{}", text_of(&edited));
    for name in ["supervisor-1", "worker-1"] {
        cluster.kill_process(name);
        cluster.restart_process(name);
    }
    signal_event(&bus, &run, "deployed", r#"{"version":3}"#).await;

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    let started = plan.run.start.as_ref().unwrap().at;
    for (name, attempt) in [("plain", 1), ("later", 1), ("publish", 1), ("edited", 2), ("expired", 1)] {
        let task = plan.task(&task_id(name)).unwrap();
        assert_eq!((task.state(), task.attempt), (TaskState::Completed, attempt), "{name}");
    }
    let failed = plan.task(&task_id("failed")).unwrap().end_reason().unwrap();
    assert!(failed.contains("the event \"never\" was not signalled until 2 s after the start"), "{failed}");
    let claimed = plan.task(&task_id("later")).unwrap().attempts[0].claimed_at.unwrap();
    assert!(claimed.duration_since(started).unsigned_abs() >= delay, "{claimed} is too early");
    let input: Value = serde_json::from_slice(&std::fs::read(input).unwrap()).unwrap();
    assert_eq!(input["ended_waits"]["plan.wait_for_event"]["data"], json!({"version": 3}), "{input}");
    assert_eq!(cluster.read_ledger().lines().count(), 3, "later, edited and expired have one step each");
    cluster.stop_all();
}

/// The example of the documentation, which anybody may copy, runs as the page says.
#[tokio::test(flavor = "multi_thread")]
async fn documented_plan_with_start_conditions_runs() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let page = std::fs::read_to_string(repository_folder().join("docs/plans.md")).unwrap();
    let plan = cluster.test_folder().join("plan.yaml");
    std::fs::write(&plan, first_code_block(&page, "yaml start conditions").unwrap()).unwrap();
    let millrace = |arguments: &[&str]| {
        let output = cluster.millrace_command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        output
    };
    let submitted = millrace(&["submit", "--plan", plan.to_str().unwrap()]);
    let id = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();
    let (bus, run) = (cluster.connect_bus().await, run_id(&id));
    wait_for_task_count(&bus, &run, TaskState::Waiting, 1).await;
    let list = text_of(&millrace(&["show", &id]));
    assert!(list.contains("waiting for the event \"deployed\" until "), "{list}");
    millrace(&["signal", &id, "deployed"]);
    assert_completed(&wait_for_run_history(&bus, &run, TIMEOUT).await);
    cluster.stop_all();
}

/// An agent and a program wait for an approval, an event or an hour. Everything is killed while they wait and after the event; both go on
/// at the event, and the questions are withdrawn.
#[tokio::test(flavor = "multi_thread")]
async fn first_of_several_waits_goes_on_whatever_dies() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    write(
        "deploy.py",
        "import datetime, json, sys\ntask = json.load(sys.stdin)\nended = task.get('ended_waits', {})\n\
         hour = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)\nif ended:\n    \
         print(json.dumps({name: end['end'] for name, end in ended.items()}))\nelse:\n    \
         print(json.dumps({'any': True, 'wait_for': {'go': {'approve': {'action': 'deploy'}}, 'stop': {'event': 'stop'}, \
         'hour': {'until': hour.isoformat()}}}))\n",
    );
    let program = write(
        "deploy.yaml",
        "{kind: command, name: deploy, description: Deploys., command: [python3, deploy.py]}",
    );
    let agent = write(
        "release.yaml",
        "name: release\ndescription: Waits.\ninstructions: Wait.\n\
         tools: [write_file, sleep_for, wait_for_event, continue_at_first]\napprove: [{tool: write_file}]\n",
    );
    let script = write(
        "model.yaml",
        "rules:\n- turns:\n  - calls: [write_file: {file_path: /a.txt, content: once}, sleep_for: {seconds: 3600}, \
         wait_for_event: {name: stop}, continue_at_first: {}]\n  - {text: \"over\"}\n",
    );
    let model = format!("script:{script}");
    let arguments =
        ["--capability", &program, "--capability", &agent, "--capability", "echo", "--model", &model];
    cluster.start_process(ProcessRole::Worker, "worker-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("first"));
    let task =
        |name: &str| TaskSpec { capability: Capability::new(name).unwrap(), ..echo_task(name, &json!({})) };
    let worker = echo_task("worker", &json!({"first": true, "await_event": "stop", "ask": ["Go on?"]}));
    submit_run(&bus, &run, &fixed_submission(vec![task("deploy"), task("release"), worker])).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 3).await;
    let millrace =
        |arguments: &[&str]| text_of(&cluster.millrace_command().args(arguments).output().unwrap());
    let show = millrace(&["show", "first"]);
    assert_eq!(show.matches("the first of ").count(), 3, "{show}");
    let inbox = millrace(&["inbox", "--json"]);
    assert_eq!(inbox.lines().count(), 3, "{inbox}");
    let shows_groups = |shown: String| {
        assert!(shown.contains(r#""group":"any""#) && shown.contains(r#""group":"turn.0""#), "{shown}");
    };
    shows_groups(millrace(&["show", "first", "--json"]));

    cluster.kill_process("worker-1");
    signal_event(&bus, &run, "stop", "").await;
    drop(bus);
    cluster.kill_and_restart_all();
    let bus = cluster.connect_bus().await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed(&history);
    let result = result_data(&bus, &history, "deploy").await;
    assert_eq!(result, json!({"go": "withdrawn", "stop": "signalled", "hour": "withdrawn"}));
    assert_eq!(result_data(&bus, &history, "worker").await, json!([false, true]));
    assert_eq!(history.folded_plan().open_questions().count(), 0);
    let millrace =
        |arguments: &[&str]| text_of(&cluster.millrace_command().args(arguments).output().unwrap());
    shows_groups(millrace(&["watch", "first", "--json"]));
    let transcript =
        text_of(&cluster.millrace_command().args(["show", "first", "release"]).output().unwrap());
    assert!(transcript.contains("The call was not approved and did not run."), "{transcript}");
    cluster.stop_all();
}
