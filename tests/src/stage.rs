//! A stage for behaviours: one cluster on which many cases play side by side, each with a run of its own and a model
//! that answers by hand. A case sees what a user sees: the log, `millrace show`, files, and what its model was asked.

use std::fmt::Write;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all};
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{Command, Control, EndReason, Plan, Refusal, Submission, Task, TaskSpec};
use millrace_protocol::registry;
use millrace_protocol::result::TaskResult;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::read_result;
use millrace_runtime::Bus;
use millrace_runtime::log::{read_topic, tell};
use millrace_runtime::record::Record;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Role, Setup};
use crate::history::History;
use crate::plans::{appended, finished, fixed, id, run, submit};

/// How long a case waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(40);

/// The agent that writes what its model says.
pub const WRITER: &str = "writer";
/// The name of a capability that takes one parameter, which it can't do without.
pub const MEASURE: &str = "measure";

const WRITER_FILE: &str = "name: writer\ndescription: Writes what it is asked for.\ntools: [now, think]\n\
                           instructions: Write what the objective asks for.\nlimits: {tool_calls: 3}\n";
const MEASURE_FILE: &str = "kind: command\nname: measure\ndescription: Measures something.\n\
                            command: [sh, -c, 'cat > /dev/null; echo it is measured']\neffect: pure\n\
                            input: {type: object, properties: {length: {type: integer}}, required: [length]}\n";

/// A cluster and a connection to it.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    /// A connection.
    pub bus: Bus,
}

/// A case while it plays.
pub type Playing<'a> = LocalBoxFuture<'a, ()>;

/// A case by its name.
pub type Case<'a> = (&'static str, Playing<'a>);

/// Names cases and calls each on a stage.
#[macro_export]
macro_rules! cases {
    ($stage:expr; $($case:ident),+ $(,)?) => {
        vec![$((stringify!($case), Box::pin($case($stage)) as $crate::stage::Playing<'_>)),+]
    };
}

/// Plays cases side by side. Each goes to its end whatever becomes of the others. `$MILLRACE_CASE` chooses those whose
/// names hold it.
///
/// # Panics
/// Some fail; they are named.
pub async fn play(cases: Vec<Case<'_>>) {
    let chosen = std::env::var("MILLRACE_CASE").unwrap_or_default();
    let cases = cases.into_iter().filter(|(name, _)| name.contains(&chosen));
    let played = cases.map(|(name, case)| async move {
        let started = std::time::Instant::now();
        let is_fine = AssertUnwindSafe(case).catch_unwind().await.is_ok();
        let word = if is_fine { "ok" } else { "FAILED" };
        println!("  {name} … {word} ({:.1} s)", started.elapsed().as_secs_f64());
        (!is_fine).then_some(name)
    });
    let failed: Vec<&str> = join_all(played).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} cases failed: {}", failed.len(), failed.join(", "));
}

impl Stage {
    /// A stage with a supervisor, a critic and two workers that plan, echo, write and measure, all of them known.
    ///
    /// # Panics
    /// Something does not start.
    pub async fn open(setup: Setup) -> Self {
        Self::with(setup, &[]).await
    }

    /// The same, with capability files besides, each by its name.
    ///
    /// # Panics
    /// Something does not start.
    pub async fn with(setup: Setup, files: &[(&str, &str)]) -> Self {
        let mut cluster = Cluster::new(setup);
        let own = [(WRITER, WRITER_FILE), (MEASURE, MEASURE_FILE)];
        let mut arguments: Vec<String> =
            ["--capability", "echo", "--capability", "planner"].map(Into::into).into();
        for (name, text) in own.iter().chain(files) {
            let file = cluster.folder().join(format!("{name}.yaml"));
            fs::write(&file, text).expect("a file in a temporary folder");
            arguments.extend(["--capability".to_owned(), file.display().to_string()]);
        }
        let record = cluster.folder().join("record").display().to_string();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let arguments = [arguments.as_slice(), &["--record", &record]].concat();
        cluster.add(Role::Supervisor, "supervisor-1", &[]);
        cluster.add(Role::Critic, "critic-1", &["--record", &record]);
        for worker in ["worker-1", "worker-2"] {
            cluster.add(Role::Worker, worker, &arguments);
        }
        let bus = cluster.bus().await;
        for (role, count) in [(registry::Role::Worker, 2), (registry::Role::Critic, 1)] {
            cluster.known(&bus, role, count).await;
        }
        let stage = Self { cluster, bus };
        stage.settle().await;
        stage
    }

    /// Waits until the supervisor knows what there is: it then holds back a task that lacks a parameter, which the worker
    /// refuses until then.
    async fn settle(&self) {
        for number in 0..100 {
            let mut bare = task("bare", "measure nothing", MEASURE);
            bare.limits.queue_wait = Duration::from_millis(1);
            let run = self.hand_in(&format!("settle-{number}"), &fixed(vec![bare])).await;
            let plan = run.stopped().await;
            let bare = &plan.tasks()[0];
            let reason = bare.reason.clone().unwrap_or_default();
            // Where a worker has claimed it, it was the worker who refused.
            let is_held_back = bare.attempts.iter().all(|attempt| attempt.claimed_at.is_none());
            if is_held_back && reason.contains("its parameters are not what measure takes") {
                return;
            }
        }
        panic!("the supervisor does not learn what there is:\n{}", self.cluster.logs());
    }

    /// Stops everything in order.
    pub fn close(self) {
        self.cluster.end();
    }

    /// Writes the rules of a model that answers by hand, and names the model.
    ///
    /// # Panics
    /// They can't be written.
    #[must_use]
    pub fn model(&self, name: &str, rules: &str) -> String {
        let file = self.cluster.folder().join(format!("{name}.model.yaml"));
        fs::write(&file, format!("ledger: {name}.asked\n{rules}")).expect("a file in a temporary folder");
        format!("script:{}", file.display())
    }

    /// The requests that such a model was asked, a JSON object each: `rule`, `answer`, `turn` and `task`.
    #[must_use]
    pub fn asked(&self, name: &str) -> Vec<Value> {
        let file = self.cluster.folder().join(format!("{name}.asked"));
        let lines = fs::read_to_string(file).unwrap_or_default();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How often such a model was asked for an answer of a form.
    #[must_use]
    pub fn times_asked(&self, name: &str, answer: &str) -> usize {
        self.asked(name).iter().filter(|asked| asked["answer"] == answer).count()
    }

    /// The replies of models that were written down, in all processes.
    #[must_use]
    pub fn recorded(&self) -> Vec<Value> {
        let lines = fs::read_to_string(self.record()).unwrap_or_default();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn record(&self) -> PathBuf {
        self.cluster.folder().join("record")
    }

    /// Hands a run in under a name.
    ///
    /// # Panics
    /// There is a run of that name.
    pub async fn hand_in(&self, name: &str, submission: &Submission) -> Run<'_> {
        let run = run(name);
        submit(&self.bus, &run, submission).await;
        self.run(run)
    }

    /// The last entry of the journal of an attempt at a task.
    ///
    /// # Panics
    /// There is none.
    pub async fn last_entry(&self, run: &RunId, task: &str, attempt: u32) -> Record {
        let topic = Topic::Task(id(task), attempt);
        let records = read_topic(&self.bus, self.bus.lane(run), run, &topic).await;
        records.expect("the lane can be read").pop().expect("the attempt was begun")
    }

    /// Writes the bytes of a message once more, on this subject, and gives the sequence.
    ///
    /// # Panics
    /// The server does not take it.
    pub async fn write_again(&self, record: &Record, subject: &str) -> u64 {
        let context = async_nats::jetstream::new(self.bus.client().clone());
        let sent = context.publish_with_headers(subject.to_owned(), appended(), record.payload.clone()).await;
        sent.expect("it is sent").await.expect("it is taken").sequence
    }

    /// A run that was handed in.
    #[must_use]
    pub fn run(&self, id: RunId) -> Run<'_> {
        Run { bus: &self.bus, cluster: &self.cluster, id }
    }
}

/// A task for the agent that writes what its model says.
///
/// # Panics
/// The name is none.
#[must_use]
pub fn write(name: &str, objective: &str) -> TaskSpec {
    task(name, objective, WRITER)
}

/// A task for a capability, which is tried again soon.
///
/// # Panics
/// A name is none.
#[must_use]
pub fn task(name: &str, objective: &str, capability: &str) -> TaskSpec {
    let capability = Capability::new(capability).expect("a test names its capabilities well");
    let mut task = TaskSpec::new(id(name), objective, capability);
    task.limits.backoff = Duration::from_millis(100);
    task
}

/// A verdict as a model gives it: the first criterion is not met, for this reason; none passes the result.
#[must_use]
pub fn verdict(gap: &str) -> Value {
    let met = gap.is_empty();
    // A critic has criteria of its own beside the task's, and each wants a word.
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

/// A run as a case watches it.
pub struct Run<'a> {
    bus: &'a Bus,
    cluster: &'a Cluster,
    /// Its name.
    pub id: RunId,
}

impl Run<'_> {
    /// The run as it stands.
    pub async fn plan(&self) -> Option<Plan> {
        History::read(self.bus, &self.id).await.ok().map(|history| history.plan().clone())
    }

    /// Waits until the plan, once it has begun, is as `look` wants it, and gives what it found.
    ///
    /// # Panics
    /// It is never so, or the run has ended before; the text says how it stands.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&Plan) -> Option<T>) -> T {
        let started = std::time::Instant::now();
        loop {
            let plan = self.plan().await;
            let begun = plan.as_ref().filter(|plan| plan.start.is_some());
            if let Some(found) = begun.and_then(&look) {
                return found;
            }
            let is_late = started.elapsed() > PATIENCE;
            let is_over = plan.as_ref().is_some_and(|plan| plan.end.is_some());
            assert!(
                !is_late && !is_over,
                "run {}: waited in vain for {what}: {}",
                self.id,
                story(plan.as_ref())
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits for the end, sees that the log holds what it promises, and gives all of it.
    ///
    /// # Panics
    /// The run does not end, or its log breaks a promise.
    pub async fn ended(&self) -> History {
        let history = finished(self.bus, &self.id, PATIENCE).await;
        history.assert_holds();
        history
    }

    /// Waits until the run has stopped, for good or until somebody resumes it.
    ///
    /// # Panics
    /// It does not stop.
    pub async fn stopped(&self) -> Plan {
        let mut last = None;
        let started = std::time::Instant::now();
        while started.elapsed() < PATIENCE {
            last = self.plan().await;
            if let Some(plan) = last.as_ref().filter(|plan| plan.end.is_some()) {
                return plan.clone();
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("run {} does not stop: {}", self.id, story(last.as_ref()));
    }

    /// Waits for an end with everything done, which may be its second one, and sees that the log holds what it promises.
    ///
    /// # Panics
    /// It does not come to that.
    pub async fn completed(&self) -> History {
        let is_completed =
            |plan: &Plan| plan.end.as_ref().is_some_and(|end| end.reason == EndReason::Completed);
        let started = std::time::Instant::now();
        while !self.plan().await.as_ref().is_some_and(is_completed) {
            let plan = self.plan().await;
            assert!(
                started.elapsed() < PATIENCE,
                "run {} is not completed: {}",
                self.id,
                story(plan.as_ref())
            );
            tokio::time::sleep(LOOK).await;
        }
        self.ended().await
    }

    /// Waits for the end, whatever the log holds: a case may have written into it what nobody else would.
    ///
    /// # Panics
    /// The run does not end.
    pub async fn over(&self) -> Plan {
        finished(self.bus, &self.id, PATIENCE).await.plan().clone()
    }

    /// Gives a command, and waits for what is decided on it.
    ///
    /// # Errors
    /// Why it was refused.
    ///
    /// # Panics
    /// Nothing is decided.
    pub async fn command(&self, name: &str, control: Control) -> Result<(), Refusal> {
        let command = Command { id: name.into(), by: "ann".into(), control };
        // Two messages, if it is given twice: only the rules know that they are one command.
        let message = uuid::Uuid::new_v4().to_string();
        let lane = self.bus.lane(&self.id);
        let sequence = tell(self.bus, lane, &self.id, &Topic::Control, &command, &message).await;
        self.decided(sequence.expect("the command is written")).await
    }

    /// Waits for what is decided on a fact, by its sequence.
    ///
    /// # Errors
    /// Why it was refused.
    ///
    /// # Panics
    /// Nothing is decided.
    pub async fn decided(&self, fact: u64) -> Result<(), Refusal> {
        crate::eventually(PATIENCE, "a word on what was written", async || {
            History::read(self.bus, &self.id).await.ok()?.answer_to(fact)
        })
        .await
    }

    /// The result of a task that is completed.
    ///
    /// # Panics
    /// It is not, or its result can't be read.
    pub async fn result(&self, history: &History, name: &str) -> TaskResult {
        let blob = history.results().remove(&id(name)).expect("the task is completed");
        let bytes = self.bus.blobs().resolve(&blob).await.expect("the result is there");
        read_result(&bytes).expect("it is a result")
    }

    /// What `millrace show --json` says of it.
    ///
    /// # Panics
    /// It says nothing.
    #[must_use]
    pub fn shown(&self) -> Value {
        let said = self.cluster.command().args(["show", self.id.as_str(), "--json"]).output();
        let said = said.expect("millrace can be started");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// How a plan stands, for whoever waited for something else.
#[must_use]
pub fn story(plan: Option<&Plan>) -> String {
    let Some(plan) = plan else { return "there is no such run".into() };
    let mut text = format!("turns {}, idle {}, {:?}", plan.turns, plan.idle_turns, plan.planning);
    for task in plan.tasks() {
        let _ = write!(text, "\n  {} {} #{}: {}", task.spec.id, task.state, task.attempt, last(task));
    }
    if let Some(end) = &plan.end {
        let _ = write!(text, "\n  {}: {}", end.reason, end.detail);
    }
    text
}

fn last(task: &Task) -> String {
    let end = task.attempts.last().and_then(|attempt| attempt.end.as_ref());
    let end = end.map(|end| format!("{end:?}"));
    [task.reason.clone(), task.problem.clone(), end].into_iter().flatten().collect::<Vec<_>>().join("; ")
}
