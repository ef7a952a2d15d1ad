//! A cluster for behaviour tests, on which many cases run side by side, each with a run of its own and a scripted
//! model. A case sees what a user sees: the log, `millrace show`, files, and the requests that its model received.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{
    CommandAction, EndReason, JournalKey, Plan, Refusal, RunCommand, Submission, Task, TaskSpec,
};
use millrace_protocol::registry;
use millrace_protocol::result::TaskResult;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::decode_task_result;
use millrace_runtime::Bus;
use millrace_runtime::log::{publish_message, read_topic};
use millrace_runtime::nats::record::StreamRecord;
use serde_json::{Value, json};

use crate::cluster::{ClusterSetup, ProcessRole, TestCluster};
use crate::history::History;
use crate::plans::{
    build_publish_headers, fixed_submission, run_id, submit_run, task_id, wait_for_run_history,
};

/// The timeout of everything a case waits for.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The interval at which a run is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// The name of an agent that returns what its model replies.
pub const WRITER: &str = "writer";
/// The name of a capability with one parameter, which is required.
pub const MEASURE: &str = "measure";

const WRITER_FILE: &str = "name: writer\ndescription: Writes the requested text.\ntools: [now, think]\n\
                           version: \"2.1\"\ninstructions: Write what the objective asks for.\nlimits: {tool_calls: 3}\n";
const MEASURE_FILE: &str = "kind: command\nname: measure\ndescription: Measures something.\n\
                            command: [sh, -c, 'cat > /dev/null; echo it is measured']\neffect: pure\n\
                            input: {type: object, properties: {length: {type: integer}}, required: [length]}\n";

/// A cluster and a connection to it.
pub struct TestBed {
    /// The cluster.
    pub cluster: TestCluster,
    /// A connection.
    pub bus: Bus,
}

impl TestBed {
    /// A testbed with a supervisor, a critic and two workers that plan, echo, write and measure. All their heartbeats
    /// have arrived.
    ///
    /// # Panics
    /// A process does not start.
    pub async fn start(setup: ClusterSetup) -> Self {
        Self::start_with_capabilities(setup, &[]).await
    }

    /// The same with more capabilities: pairs of a name and the text of a file.
    ///
    /// # Panics
    /// A process does not start.
    pub async fn start_with_capabilities(setup: ClusterSetup, files: &[(&str, &str)]) -> Self {
        let mut cluster = TestCluster::with_server_only(setup);
        let own = [(WRITER, WRITER_FILE), (MEASURE, MEASURE_FILE)];
        let mut arguments: Vec<String> =
            ["--capability", "echo", "--capability", "planner"].map(Into::into).into();
        for (name, text) in own.iter().chain(files) {
            let file = cluster.test_folder().join(format!("{name}.yaml"));
            fs::write(&file, text).expect("a file in a temporary folder");
            arguments.extend(["--capability".to_owned(), file.display().to_string()]);
        }
        let record = cluster.test_folder().join("record").display().to_string();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let arguments = [arguments.as_slice(), &["--record", &record]].concat();
        cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
        cluster.start_process(ProcessRole::Critic, "critic-1", &["--record", &record]);
        for worker in ["worker-1", "worker-2"] {
            cluster.start_process(ProcessRole::Worker, worker, &arguments);
        }
        let bus = cluster.connect_bus().await;
        for (role, count) in [(registry::ProcessRole::Worker, 2), (registry::ProcessRole::Critic, 1)] {
            cluster.wait_for_heartbeats(&bus, role, count).await;
        }
        let testbed = Self { cluster, bus };
        testbed.wait_for_capability_registry().await;
        testbed
    }

    /// Waits until the supervisor has read the capability registry: from then on it holds back a task that lacks a
    /// parameter; before that, the worker refuses it.
    async fn wait_for_capability_registry(&self) {
        for number in 0..100 {
            let mut bare = capability_task("bare", "measure nothing", MEASURE);
            bare.limits.queue_wait = Duration::from_millis(1);
            let run = self.submit_run(&format!("settle-{number}"), &fixed_submission(vec![bare])).await;
            let plan = run.wait_until_run_stopped().await;
            let bare = &plan.tasks()[0];
            let reason = bare.end_reason().unwrap_or_default();
            // If a worker has claimed it, it was the worker that refused it.
            let is_held_back = bare.attempts.iter().all(|attempt| attempt.claimed_at.is_none());
            if is_held_back && reason.contains("measure rejects its parameters") {
                return;
            }
        }
        panic!("the supervisor does not read the capabilities:\n{}", self.cluster.read_all_logs());
    }

    /// Stops all processes in order and checks that none is left.
    ///
    /// # Panics
    /// A process fails, does not exit, or leaves another one behind.
    pub fn stop_and_check(self) {
        self.cluster.stop_all();
    }

    /// Kills all processes, and keeps their logs where `$MILLRACE_TEST_LOGS` names a folder.
    pub fn kill_and_save_logs(self) {
        crate::processes::save_logs(self.cluster.test_folder());
    }

    /// Writes the rules of a scripted model and returns the name of the model.
    ///
    /// # Panics
    /// They can't be written.
    #[must_use]
    pub fn write_scripted_model(&self, name: &str, rules: &str) -> String {
        let file = self.cluster.test_folder().join(format!("{name}.model.yaml"));
        fs::write(&file, format!("ledger: {name}.asked\n{rules}")).expect("a file in a temporary folder");
        format!("script:{}", file.display())
    }

    /// The requests that such a model received, each a JSON object: `rule`, `answer`, `turn` and `task`.
    #[must_use]
    pub fn read_model_requests(&self, name: &str) -> Vec<Value> {
        let file = self.cluster.test_folder().join(format!("{name}.asked"));
        let lines = fs::read_to_string(file).unwrap_or_default();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The number of requests for an answer in this format that such a model received.
    #[must_use]
    pub fn count_model_requests(&self, name: &str, answer: &str) -> usize {
        self.read_model_requests(name).iter().filter(|request| request["answer"] == answer).count()
    }

    /// The model replies that all processes have recorded.
    #[must_use]
    pub fn read_recorded_replies(&self) -> Vec<Value> {
        let lines = fs::read_to_string(self.record_path()).unwrap_or_default();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn record_path(&self) -> PathBuf {
        self.cluster.test_folder().join("record")
    }

    /// Submits a run under a name.
    ///
    /// # Panics
    /// A run of that name exists.
    pub async fn submit_run(&self, name: &str, submission: &Submission) -> RunHandle<'_> {
        let run = run_id(name);
        submit_run(&self.bus, &run, submission).await;
        self.run_handle(run)
    }

    /// The last entry in the journal of an attempt at a task.
    ///
    /// # Panics
    /// There is no entry.
    pub async fn last_journal_record(&self, run: &RunId, task: &str, attempt: u32) -> StreamRecord {
        let topic = Topic::Journal(JournalKey::Task(task_id(task), attempt));
        let records = read_topic(&self.bus, self.bus.lane_of_run(run), run, &topic).await;
        records.expect("the lane can be read").pop().expect("the attempt was begun")
    }

    /// Publishes the payload of a message again, on this subject, and returns the new sequence number.
    ///
    /// # Panics
    /// The server rejects it.
    pub async fn republish_payload(&self, record: &StreamRecord, subject: &str) -> u64 {
        let context = async_nats::jetstream::new(self.bus.client().clone());
        let sent = context
            .publish_with_headers(subject.to_owned(), build_publish_headers(), record.payload.clone())
            .await;
        sent.expect("it is sent").await.expect("it is taken").sequence
    }

    /// A run that was submitted.
    #[must_use]
    pub fn run_handle(&self, id: RunId) -> RunHandle<'_> {
        RunHandle { bus: &self.bus, cluster: &self.cluster, id }
    }
}

/// A task for [`WRITER`].
///
/// # Panics
/// The name is not valid.
#[must_use]
pub fn writer_task(name: &str, objective: &str) -> TaskSpec {
    capability_task(name, objective, WRITER)
}

/// A task for a capability, with a short retry backoff.
///
/// # Panics
/// A name is not valid.
#[must_use]
pub fn capability_task(name: &str, objective: &str, capability: &str) -> TaskSpec {
    let capability = Capability::new(capability).expect("a valid capability name");
    let mut task = TaskSpec::new(task_id(name), objective, capability);
    task.limits.backoff = Duration::from_millis(100);
    task
}

/// A verdict in a model's answer format: the first criterion is not met, for this reason. An empty reason accepts the
/// result.
#[must_use]
pub fn verdict_json(gap: &str) -> Value {
    let met = gap.is_empty();
    // A critic has criteria of its own besides the task's, and each needs an answer.
    let criteria = (1..=12).map(|number| match (number, met) {
        (1, false) => json!({"criterion": "C1", "met": false, "gap": gap}),
        _ => json!({"criterion": format!("C{number}"), "met": true}),
    });
    let criteria: Vec<Value> = criteria.collect();
    let mut verdict =
        json!({"criteria": criteria, "reasoning": "as it is read", "passed": met, "confidence": 0.9});
    if !met {
        verdict["feedback"] = gap.into();
    }
    verdict
}

/// A handle to a submitted run.
pub struct RunHandle<'a> {
    bus: &'a Bus,
    cluster: &'a TestCluster,
    /// The run's name.
    pub id: RunId,
}

impl RunHandle<'_> {
    /// The current state of the run, if it can be read.
    pub async fn read_plan(&self) -> Option<Plan> {
        History::read_from_log(self.bus, &self.id).await.ok().map(|history| history.folded_plan().clone())
    }

    /// Waits until the run has started and `check` returns a value for its plan, and returns that value.
    ///
    /// # Panics
    /// The timeout expires or the run ends before. The text shows the state of the run.
    pub async fn wait_for_plan<T>(&self, what: &str, check: impl Fn(&Plan) -> Option<T>) -> T {
        let started = std::time::Instant::now();
        loop {
            let plan = self.read_plan().await;
            let started_plan = plan.as_ref().filter(|plan| plan.run.start.is_some());
            if let Some(value) = started_plan.and_then(&check) {
                return value;
            }
            let is_late = started.elapsed() > TIMEOUT;
            let is_over = plan.as_ref().is_some_and(|plan| plan.run.end.is_some());
            assert!(
                !is_late && !is_over,
                "run {}: timed out waiting for {what}: {}",
                self.id,
                describe_plan_state(plan.as_ref())
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for the end, checks the invariants of the log, and returns the history.
    ///
    /// # Panics
    /// The run does not end, or its log violates an invariant.
    pub async fn wait_for_end(&self) -> History {
        let history = wait_for_run_history(self.bus, &self.id, TIMEOUT).await;
        history.assert_consistent();
        history
    }

    /// Waits until the run has stopped, for good or until a user resumes it.
    ///
    /// # Panics
    /// It does not stop.
    pub async fn wait_until_run_stopped(&self) -> Plan {
        let mut last = None;
        let started = std::time::Instant::now();
        while started.elapsed() < TIMEOUT {
            last = self.read_plan().await;
            if let Some(plan) = last.as_ref().filter(|plan| plan.run.end.is_some()) {
                return plan.clone();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("run {} does not stop: {}", self.id, describe_plan_state(last.as_ref()));
    }

    /// Waits until the run is completed, if need be after it was resumed, and checks the invariants of the log.
    ///
    /// # Panics
    /// It is not completed in time, or its log violates an invariant.
    pub async fn wait_for_completion(&self) -> History {
        let is_completed =
            |plan: &Plan| plan.run.end.as_ref().is_some_and(|end| end.reason == EndReason::Completed);
        let started = std::time::Instant::now();
        while !self.read_plan().await.as_ref().is_some_and(is_completed) {
            let plan = self.read_plan().await;
            assert!(
                started.elapsed() < TIMEOUT,
                "run {} is not completed: {}",
                self.id,
                describe_plan_state(plan.as_ref())
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.wait_for_end().await
    }

    /// Waits for the end without checking the log, for cases that write messages into it that no client would.
    ///
    /// # Panics
    /// The run does not end.
    pub async fn wait_for_end_unchecked(&self) -> Plan {
        wait_for_run_history(self.bus, &self.id, TIMEOUT).await.folded_plan().clone()
    }

    /// Publishes a command and waits for the decision on it.
    ///
    /// # Errors
    /// The reason why it was refused.
    ///
    /// # Panics
    /// There is no decision in time.
    pub async fn send_command(&self, name: &str, control: CommandAction) -> Result<(), Refusal> {
        let command = RunCommand { id: name.into(), by: "ann".into(), control };
        // A repeated command is two messages: only the rules know that they are one command.
        let message = uuid::Uuid::new_v4().to_string();
        let lane = self.bus.lane_of_run(&self.id);
        let sequence = publish_message(self.bus, lane, &self.id, &Topic::Control, &command, &message).await;
        self.wait_for_decision_on(sequence.expect("the command is written")).await
    }

    /// Waits for the decision on a fact, which is named by its sequence number.
    ///
    /// # Errors
    /// The reason why it was refused.
    ///
    /// # Panics
    /// There is no decision in time.
    pub async fn wait_for_decision_on(&self, fact: u64) -> Result<(), Refusal> {
        crate::wait_for_value(TIMEOUT, "a decision on the fact", async || {
            History::read_from_log(self.bus, &self.id).await.ok()?.decision_on_fact(fact)
        })
        .await
    }

    /// The result of a completed task.
    ///
    /// # Panics
    /// The task is not completed, or its result can't be read.
    pub async fn read_task_result(&self, history: &History, name: &str) -> TaskResult {
        let blob = history.accepted_results().remove(&task_id(name)).expect("the task is completed");
        let bytes = self.bus.blobs().read_inline_or_stored(&blob).await.expect("the result is there");
        decode_task_result(&bytes).expect("it is a result")
    }

    /// The output of `millrace show --json` for this run.
    ///
    /// # Panics
    /// It prints no JSON.
    #[must_use]
    pub fn run_show_json(&self) -> Value {
        let output = self.cluster.millrace_command().args(["show", self.id.as_str(), "--json"]).output();
        let output = output.expect("millrace can be started");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// A summary of a plan's state for failure messages.
#[must_use]
pub fn describe_plan_state(plan: Option<&Plan>) -> String {
    let Some(plan) = plan else { return "there is no such run".into() };
    let mut text =
        format!("turns {}, idle {}, {:?}", plan.planning.turns, plan.planning.idle_turns, plan.planning.turn);
    for task in plan.tasks() {
        let _ = write!(
            text,
            "\n  {} {} #{}: {}",
            task.spec.id,
            task.state(),
            task.attempt,
            describe_last_attempt(task)
        );
    }
    if let Some(end) = &plan.run.end {
        let _ = write!(text, "\n  {}: {}", end.reason, end.detail);
    }
    text
}

fn describe_last_attempt(task: &Task) -> String {
    let end = task.attempts.last().and_then(|attempt| attempt.end.as_ref());
    let end = end.map(|end| format!("{end:?}"));
    [task.end_reason().map(str::to_owned), task.parameter_problem().map(str::to_owned), end]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
}
